"""The events of a member, as values on one queue. Pure.

Watches, the session, fetchers and the committer only put them; the group thread alone decides what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.registration import Registration
from zkconsumer.deadline import Deadline
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper.fenced_writes import Outcome
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


LEAVING = 0.6
"""Seconds at the end of a shutdown that are left to the last commit, the release and the leave."""


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
        return Deadline(0.0) if self.hurried or self.deadline.at is None else self.deadline.earlier(LEAVING)


def first_stop(requests: Iterable[StopRequested]) -> StopRequested | None:
    """Return the first of these, hurried if any of them is; None if there is none."""
    found = list(requests)
    return replace(found[0], hurried=any(request.hurried for request in found)) if found else None


@dataclass(frozen=True, slots=True)
class SeekRequested:
    """A seek: partitions must continue at other offsets. ``done`` gets the partitions that are not owned."""

    offsets: Mapping[TopicPartition, int]
    done: Future[frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    """The member subscribes to other topics.

    ``registration`` makes the new registration. ``leaving`` are the topics that it drops; messages of them that the
    asking thread ``holder`` has in its hands count as finished. Once the change is in force, the group thread calls
    ``applied`` and sets ``done``.
    """

    registration: Callable[[], Registration]
    leaving: frozenset[str]
    holder: int
    applied: Callable[[], None]
    done: Future[None]


@dataclass(frozen=True, slots=True)
class LookAgain:
    """The assignment may have changed: plan again at once. ``reason`` is for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class ListenerReturned:
    """A call of the application's listener has returned."""


Event = (
    SessionChanged
    | NodeChanged
    | StartsFound
    | StartsResolved
    | StartsStored
    | CommitsRefused
    | OffsetsMoved
    | SeekRequested
    | SubscriptionChanged
    | LookAgain
    | ListenerReturned
    | StopRequested
)
