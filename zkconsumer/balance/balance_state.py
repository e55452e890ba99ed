"""The work of a balanced member at one moment, as values for its state, metrics and health, and a run's summary. Pure.

The dispatcher makes one :class:`BalanceState` when somebody asks. Times are seconds, counted from that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from zkconsumer.model import TopicPartition
from zkconsumer.runtime.metrics import BucketsValue


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """The unfinished message that keeps a base where it is.

    ``attempts`` of it have failed, the last one with ``error`` (the name of its class, or a reason). ``next_in`` is
    None unless it waits for its next attempt. ``in_hand`` is for how long its handler has run, None if none runs.
    ``where`` names the member that has its slot on loan, empty if it is ours. ``passing``: it was parked or given up,
    and the next commit stores its pointer and passes it.
    """

    offset: int
    attempts: int = 0
    next_in: float | None = None
    error: str = ""
    in_hand: float | None = None
    where: str = ""
    passing: bool = False

    def __str__(self) -> str:
        said = [f"attempt {self.attempts}"] if self.attempts else []
        if self.where:
            said.append(f"on loan to {self.where}")
        elif self.passing:
            said.append("passed by the next commit")
        elif self.in_hand is not None:
            said.append(f"in hand for {self.in_hand:.0f} s")
        elif self.next_in is not None:
            said.append(f"next in {max(0.0, self.next_in):.0f} s")
        else:
            said.append("waiting")
        return f"{self.offset:,} ({', '.join(said)}{f': {self.error}' if self.error else ''})"


@dataclass(frozen=True, slots=True)
class PartitionBalance:
    """The messages of one partition that a balanced member owns, or has slots of on loan.

    * ``base``: the lowest unfinished offset; ``held``: the message there, None if everything that was read is finished
    * ``finished_beyond``, ``unfinished``: messages beyond the base that are finished, and that were read and are not
    * ``in_hand``: messages whose handlers run; ``oldest``: for how many seconds the same message has held the base
    * ``parked``, ``dead``: pointers of each kind; ``unnoted``: outcomes since the last commit, which a crash repeats
    * ``lent``: number of slots on loan, by member; ``lender``: the owner of a partition of which ``borrowed`` slots are
      on loan to this member (empty and 0 for an own one)
    * ``full``: whether so much of it is unfinished that no more is fetched
    * ``stopped``: why no further message of the partition is handled until somebody acts, in words that follow its
      name; empty if all is well
    """

    partition: TopicPartition
    base: int
    held: HeldMessage | None = None
    finished_beyond: int = 0
    unfinished: int = 0
    in_hand: int = 0
    oldest: float = 0.0
    parked: int = 0
    dead: int = 0
    unnoted: int = 0
    lent: Mapping[str, int] = field(default_factory=dict)
    lender: str = ""
    borrowed: int = 0
    full: bool = False
    stopped: str = ""

    def __str__(self) -> str:
        said = [f"base {self.base:,}" + (f" held by {self.held}" if self.held is not None else "")]
        said.append(f"{self.finished_beyond:,} finished beyond")
        said.append(f"{self.in_hand:,} in hand")
        if self.parked or self.dead:
            said.append(f"{self.parked:,} parked, {self.dead:,} dead")
        said += [f"{slots} slots lent to {member}" for member, slots in sorted(self.lent.items())]
        if self.lender:
            said.append(f"{self.borrowed} slots borrowed from {self.lender}")
        if self.full:
            said.append("full")
        if self.stopped:
            said.append(self.stopped)
        return f"{self.partition}: {', '.join(said)}"


@dataclass(frozen=True, slots=True)
class BalanceState:
    """A balanced member at one moment.

    ``failed`` counts attempts that failed since the run began; ``late`` results that came after their partition or
    slot had left, ``zombies`` handlers that were running when a session ended, and ``lost`` parked messages that were
    no longer in the log. ``troubles`` say what keeps the run from its work, beside stopped partitions, for instance a
    handler that does not return. ``warnings`` say what somebody should look after although everything is handled.
    ``handler_times`` are the durations of handlers in seconds.
    """

    concurrency: int = 0
    partitions: tuple[PartitionBalance, ...] = ()
    failed: int = 0
    late: int = 0
    zombies: int = 0
    lost: int = 0
    troubles: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    handler_times: BucketsValue | None = None

    @property
    def in_hand(self) -> int:
        """Number of messages whose handlers run."""
        return sum(one.in_hand for one in self.partitions)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the member does not do all of its work, in words; empty if it does."""
        stopped = (f"{one.partition} {one.stopped}" for one in self.partitions if one.stopped)
        return (*stopped, *self.troubles)

    def lines(self) -> tuple[str, ...]:
        """Return a line for each partition with anything unfinished, parked, dead or on loan, and all troubles."""
        return (*(str(one) for one in self.partitions if _tells(one)), *self.troubles, *self.warnings)


def _tells(one: PartitionBalance) -> bool:
    counts = (one.unfinished, one.in_hand, one.finished_beyond, one.parked, one.dead, one.lent, one.lender)
    return one.held is not None or any(counts) or bool(one.stopped)


RunEnd = Literal["until", "timeout", "shutdown", "signal"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The work of one call of ``run``.

    * ``handled``: messages whose handler finished them
    * ``failed``: attempts that failed. Without ``concurrency`` the first one ends the run, by its exception
    * ``parked``: messages that were parked, also behind others of their key. ``handled`` may count them, too
    * ``dead``: messages that became dead letters
    * ``ended``: ``"until"``, ``"timeout"`` (``consumer.timeout.ms``), ``"signal"`` (``stop_on``) or ``"shutdown"``
    """

    handled: int = 0
    failed: int = 0
    parked: int = 0
    dead: int = 0
    ended: RunEnd = "shutdown"

    def __str__(self) -> str:
        return (
            f"{self.handled:,} messages handled, {self.failed:,} attempts failed, {self.parked:,} messages parked, "
            f"{self.dead:,} dead letters; ended by {self.ended}"
        )
