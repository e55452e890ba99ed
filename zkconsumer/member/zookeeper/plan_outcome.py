"""The effects of the group's plan on a round. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.member.zookeeper.round_schedule import NEVER


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The effects of the plan on a round, beside its assignment.

    ``waiting`` says which plan the member waits for, in words. ``again_at`` is when the next round must be, even if
    nothing changes (monotonic seconds). ``reread``: it must read the whole group again. ``advertise``: it must write
    our registration again, because what we advertise has changed.
    """

    waiting: str = ""
    again_at: float = NEVER
    reread: bool = False
    advertise: bool = False


NO_PLAN = PlanOutcome()
