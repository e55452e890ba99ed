"""What can happen to a member, as values on one queue. Pure.

Watches, the session, fetchers and the committer only put these; the group's thread alone decides what they mean.
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
    """The store outside ZooKeeper told where partitions start; None: nothing is stored, so ``auto.offset.reset``
    decides.
    """

    starts: Mapping[PartitionPosition, int | None]


@dataclass(frozen=True, slots=True)
class StartsResolved:
    """A broker told where partitions without a stored offset begin."""

    starts: Mapping[PartitionPosition, int]


@dataclass(frozen=True, slots=True)
class StartsStored:
    """Start offsets of partitions are stored; those of the ``refused`` could not be."""

    starts: Mapping[PartitionPosition, int]
    refused: frozenset[PartitionPosition]


@dataclass(frozen=True, slots=True)
class CommitsRefused:
    """ZooKeeper refused commits: somebody else owns the partition or wrote its offset."""

    outcomes: Mapping[PartitionPosition, Outcome]


@dataclass(frozen=True, slots=True)
class OffsetsMoved:
    """Somebody else wrote offsets of ours to the store outside ZooKeeper; these stand there now."""

    offsets: Mapping[PartitionPosition, int]


NEVER = Deadline(None)


LEAVING = 0.6
"""Seconds of a shutdown that are kept for the last commit, the release and the leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The connector is to be shut down.

    At ``deadline`` the connection is taken away, and nothing is waited for any more. ``hurried``: messages in the
    user's hands are not waited for.
    """

    deadline: Deadline = NEVER
    hurried: bool = False

    @property
    def drain(self) -> Deadline:
        """Until when messages in the user's hands are waited for. Without a deadline nothing is."""
        return Deadline(0.0) if self.hurried or self.deadline.at is None else self.deadline.earlier(LEAVING)


def first_stop(requests: Iterable[StopRequested]) -> StopRequested | None:
    """Return the first of these, hurried where any of them is; None where there is none."""
    found = list(requests)
    return replace(found[0], hurried=any(request.hurried for request in found)) if found else None


@dataclass(frozen=True, slots=True)
class SeekRequested:
    """Partitions are to go on at other offsets. ``done`` is told those that are not ours."""

    offsets: Mapping[TopicPartition, int]
    done: Future[frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    """The member wants other topics: register that, and rebalance.

    ``registration`` makes the node's content; ``leaving`` are the topics no longer wanted; ``holder`` is the thread
    that asks, whose messages of those count as finished; ``applied`` is called by the group's thread once it is so,
    then ``done`` is set.
    """

    registration: Callable[[], Registration]
    leaving: frozenset[str]
    holder: int
    applied: Callable[[], None]
    done: Future[None]


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Whatever decides what we keep has changed its mind: plan again at once. ``reason`` is for the log."""

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
