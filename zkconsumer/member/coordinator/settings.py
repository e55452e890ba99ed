"""What a coordinated member is told: its limits, and the streams that it feeds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from zkconsumer.core.poll_watchdog import Place, StreamKey
from zkconsumer.member.coordinator.assignment import ShareSettings
from zkconsumer.member.owned_partitions import Delivery

NEVER = float("inf")
LONGEST_WAIT = 60.0
LEAVE_WITHIN = 0.75
"""Seconds that leaving waits for a coordinator: a dead one finds out by itself."""
LOOK_FOR_MISSING = 1.0
"""Seconds between two looks for a topic that somebody in the group waits for."""
OTHERS_MAY_TAKE = 600.0
"""Seconds that a join, or the leader, may take at the least: the other members' rebalance timeouts are not ours."""
AT_ONCE = 3
"""How often who is sent back to join does so without a pause before it has a share."""
REFUSED_MOST = 30.0
"""Seconds between two tries where only an operator can let us in, at most."""
LOOK_FOR_READER = 0.1
"""Seconds between two looks for a reader that did not come back."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What of the configuration concerns the group; seconds.

    ``max_poll`` is ``max.poll.interval.ms``, ``interval`` how often topics are looked at, ``backoff`` the first pause
    after a failure. ``static_leaves``: also a static member leaves once it wants nothing, while it lives on.
    ``conflict`` is ``offset.conflict``.
    """

    session: float
    max_poll: float
    interval: float
    backoff: float
    backoff_max: float
    request_timeout: float
    shares: ShareSettings
    static_leaves: bool = False
    conflict: str = "adopt"


class Streams(Delivery, Protocol):
    """Fetching and streams, with their readers."""

    def refuse(self, error: Exception | None) -> None:
        """Make every reader raise ``error``; None takes it back."""

    def places(self) -> Mapping[StreamKey, Place]:
        """Where each stream stands whose reader does something else."""

    def came_back(self, key: StreamKey, place: Place) -> bool:
        """Whether the reader of a stream has come back since it stood there."""
