"""The events of a member, as values on one queue. Pure.

Watches, the session, fetchers and the committer only put events; the group thread alone decides what an event means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from zkconsumer.member.close_times import drain_end
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request

if TYPE_CHECKING:
    from zkconsumer.ownership.partition_position import Held, PartitionPosition
    from zkconsumer.zookeeper.ownership_transactions import Outcome
    from zkconsumer.zookeeper.session import SessionChanged


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A watched node of ZooKeeper changed."""

    path: str


@dataclass(frozen=True, slots=True)
class StartsFound:
    """The store outside ZooKeeper told where partitions start; None: ``auto.offset.reset`` decides."""

    starts: Mapping[PartitionPosition, int | None]


@dataclass(frozen=True, slots=True)
class StartsResolved:
    """A broker told where partitions without a stored offset start."""

    starts: Mapping[PartitionPosition, int]


@dataclass(frozen=True, slots=True)
class StartsStored:
    """The start offsets of partitions are stored, except those of ``refused`` partitions."""

    starts: Mapping[PartitionPosition, int]
    refused: frozenset[PartitionPosition]


@dataclass(frozen=True, slots=True)
class CommitsRefused:
    """ZooKeeper refused commits, because another member owns the partition or another client wrote its offset."""

    outcomes: Mapping[PartitionPosition, Outcome]


@dataclass(frozen=True, slots=True)
class OffsetsMoved:
    """Somebody else wrote these offsets of our partitions to the store outside ZooKeeper."""

    offsets: Mapping[PartitionPosition, int]


NEVER = Deadline(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The connector must shut down.

    At ``deadline`` the connection is closed, and nothing is waited for any more. ``hurried``: messages in the user's
    hands are not waited for.
    """

    deadline: Deadline = NEVER
    hurried: bool = False

    @property
    def drain(self) -> Deadline:
        """The end of the wait for messages in the user's hands; without a deadline there is no wait."""
        return Deadline(0.0) if self.hurried else drain_end(self.deadline)


def first_stop(requests: Iterable[StopRequested]) -> StopRequested | None:
    """Return the first of these, hurried if any of them is; None if there is none."""
    found = list(requests)
    return replace(found[0], hurried=any(request.hurried for request in found)) if found else None


@dataclass(frozen=True, slots=True)
class SeekRequested:
    """A seek: partitions must continue at other offsets.

    ``done`` gets the positions that did not move, because they have ended or were replaced.
    """

    offsets: Mapping[PartitionPosition, int]
    done: Request[frozenset[PartitionPosition]]


def _nothing() -> None:
    """Do nothing."""


@dataclass(slots=True, eq=False)
class SubscriptionChanged:
    """The member subscribes to other topics.

    ``revise`` makes the new subscription (topic -> number of streams) of the one before. ``leaving`` are the dropped
    topics. Their messages that the caller ``held`` at its call count as finished. A handler of a balanced run, which is
    the caller, has messages of the positions ``in_handler``, and ``finish`` counts those of left topics as done. The
    group thread calls ``finish`` and ``begun`` when it begins to tell the group, or ``withdrawn`` if the caller has
    gone before, or the connector has ended. Once the change is in force, the group thread calls ``applied`` and sets
    ``done``.
    """

    revise: Callable[[Mapping[str, int]], Mapping[str, int]]
    done: Request[None]
    leaving: frozenset[str] = frozenset()
    held: Held = field(default_factory=dict)
    in_handler: Collection[PartitionPosition] = ()
    finish: Callable[[], object] = _nothing
    begun: Callable[[], object] = _nothing
    withdrawn: Callable[[], object] = _nothing
    applied: Callable[[], object] = _nothing

    def awaits(self, position: PartitionPosition) -> bool:
        """Return whether the caller waits for us with a message of this position, for which we would wait."""
        return self.holds(position) or position in self.in_handler

    def answer_early(self) -> None:
        """Answer the caller now. The change is made later, and no message of the caller counts as finished then."""
        self.finish()
        asked, self.done, self.held, self.in_handler = self.done, Request(Deadline(None)), {}, ()
        self.finish = _nothing
        asked.set_result(None)

    def holds(self, position: PartitionPosition) -> bool:
        """Return whether the position still stands at a message that the caller held at its call."""
        consumed = position.consumed
        return consumed is not None and consumed in self.held.get(position, range(0))


@dataclass(frozen=True, slots=True)
class LookAgain:
    """The assignment may have changed: plan again at once. ``reason`` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class ListenerReturned:
    """A call of the application's listener has returned."""


Event: TypeAlias = (
    "SessionChanged | NodeChanged | StartsFound | StartsResolved | StartsStored | CommitsRefused | OffsetsMoved"
    "| SeekRequested | SubscriptionChanged | LookAgain | ListenerReturned | StopRequested"
)
