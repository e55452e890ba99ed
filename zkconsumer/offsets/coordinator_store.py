"""Offsets of a group that the brokers coordinate: every commit carries who writes it, and is refused to anybody else.

Called by one thread (the committer's); ``close`` from any, which makes a call that waits for a broker raise. One call
is one try: whoever calls repeats. Who we are is read for each commit; what an outdated one is refused with is told to
the group's thread, for which it means that our share is lost.

Mirrors the Java consumer's part of ``ConsumerCoordinator``. Differs on purpose: there a refused commit is the
application's to deal with, while streams go on with what others own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from threading import Event
from typing import Protocol

from zkconsumer.core.error_actions import ErrorAction, action_for
from zkconsumer.core.leader_epochs import NO_EPOCH, epoch_before
from zkconsumer.core.ownership_epochs import GenerationEpochs
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerError, FencedInstanceIdError, OffsetCommitError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership, StoredOffset
from zkconsumer.kafka.offset_client import OffsetClient
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper.fenced_writes import ABSENT, KnownOffset

LOOK_AGAIN = 0.05
"""Seconds between two tries while the group passes into the next generation."""

Offsets = Mapping[TopicPartition, int]
Failures = Mapping[TopicPartition, Exception]

ASKED = "an offset commit"
NOT_OURS = "lost with our membership of the group, or given to another member since"
"""Why nothing is sent."""

_LOST = (ErrorAction.REJOIN_WITHOUT_PARTITIONS, ErrorAction.REJOIN_AS_NEW_MEMBER)
_BETWEEN = (ErrorAction.REJOIN_WITHOUT_PARTITIONS, ErrorAction.REJOIN)
"""How a commit is refused between two generations."""


class Identity(Protocol):
    """Who we are in the group; read by any thread."""

    @property
    def who(self) -> Membership:
        """As whom to commit."""

    @property
    def settled(self) -> bool:
        """Whether no next generation is under way, in which we may be already without knowing it."""

    @property
    def held(self) -> GenerationEpochs | None:
        """What nobody else can have in that generation, or in a later one: to be read after ``who``. None where others
        say what is ours.
        """


class CoordinatorOffsets:
    """The offsets of one group as its coordinator keeps them (an ``OffsetStore``).

    Arguments: ``search`` is this store's alone; ``refused`` is told, on the committer's thread, as whom we were
    refused, and why; ``sent`` how many offsets each answered commit had. ``positions`` are what is owned: an offset
    is stored with the leader epoch of the message before it (brokers from 2.1 on), by which its next owner sees whether
    the log is still the same (KIP-320).
    """

    def __init__(
        self,
        search: CoordinatorSearch,
        identity: Identity,
        refused: Callable[[Membership, Exception], None],
        sent: Callable[[int], None] = lambda _: None,
        positions: Callable[[], Mapping[TopicPartition, PartitionPosition]] = dict,
    ) -> None:
        self._positions = positions
        self._client = OffsetClient(search)
        self._identity = identity
        self._refused = refused
        self._sent = sent
        self._closing = Event()

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Read offsets. Raises BrokerError where that of any partition is unknown, whatever the reason."""
        found = self._client.fetch(partitions, Deadline(timeout))
        positions = self._positions()
        for tp, stored in found.items():
            position = positions.get(tp)
            # before it begins there nobody fetches it
            if position is not None and position.fetched is None and stored.leader_epoch >= 0:
                position.epochs = ((stored.offset - 1, stored.leader_epoch),)
        return {tp: stored.offset for tp, stored in found.items()}

    def _with_epochs(self, offsets: Offsets) -> dict[TopicPartition, int | StoredOffset]:
        positions = self._positions()
        found: dict[TopicPartition, int | StoredOffset] = dict(offsets)
        for tp, offset in offsets.items():
            epoch = epoch_before(positions[tp].epochs, offset) if tp in positions else NO_EPOCH
            if epoch > NO_EPOCH:
                found[tp] = StoredOffset(offset, leader_epoch=epoch)
        return found

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """Write offsets in one request. Returns what the coordinator refused. Raises BrokerError.

        While the group passes into the next generation nobody may commit, for as long as its leader decides: that is
        waited for. What we own in both is ours all the while; what is not ours in the next one is not sent in it.
        """
        deadline, started = Deadline(timeout), self._identity.held
        while True:
            who, held = self._identity.who, self._identity.held  # in this order: what we hold is never older
            left, refused, unclear = _sorted_out(offsets, started, held)
            if unclear and held is not None and not held.decided and self._may_wait(deadline):
                continue
            try:
                failures = self._client.commit(who, self._with_epochs(left), deadline) if left else {}
                break
            except BrokerError as e:
                between = action_for(e) in _BETWEEN and (not self._identity.settled or self._identity.who != who)
                if between and self._may_wait(deadline):
                    continue
                if between:  # the next try may do: nothing of this says that anything is lost
                    raise error_codes.error(error_codes.REBALANCE_IN_PROGRESS, ASKED) from e
                if action_for(e) in _LOST or isinstance(e, FencedInstanceIdError):
                    self._refused(who, e)
                raise
        if left:
            self._sent(len(left))
        return {**refused, **unclear, **failures}

    def _may_wait(self, deadline: Deadline) -> bool:
        """Wait a moment; False where there is no time, or everything ends."""
        return not deadline.expired and not self._closing.wait(deadline.bounded(LOOK_AGAIN))

    def close(self) -> None:
        """Close all connections, for good."""
        self._closing.set()
        self._client.close()


def _sorted_out(
    offsets: Offsets, started: GenerationEpochs | None, held: GenerationEpochs | None
) -> tuple[Offsets, Failures, Failures]:
    """Offsets to send; those of stays that have ended since the commit ``started``; and those to be asked for again:
    whose they are was not said yet, then or now.
    """
    if started is None or held is None:
        return offsets, {}, {}
    left: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, Exception] = {}
    unclear: dict[TopicPartition, Exception] = {}
    for tp, offset in offsets.items():
        stay = started.epochs.get(tp)
        if stay is not None and held.epochs.get(tp) == stay:
            left[tp] = offset
        elif stay is not None and held.ended(tp, stay):
            refused[tp] = OffsetCommitError(NOT_OURS)
        else:
            unclear[tp] = error_codes.error(error_codes.REBALANCE_IN_PROGRESS, ASKED)
    return left, refused, unclear


class Holding(Protocol):
    """What we hold; read by any thread."""

    @property
    def held(self) -> GenerationEpochs:
        """Our stays with partitions, as of now."""


class EpochFence:
    """Knows by their ownership epochs which partitions are ours in a group that the brokers coordinate (a ``Fence``).

    The coordinator lets any member of its generation commit any partition. So a partition that was lost or handed over
    is not tried again: the next try would be one of our next life, or generation.
    """

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._stays: dict[TopicPartition, int | None] = {}

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """Note a partition in its present stay; in none if the group has gone on since. There is no offset node."""
        self._stays[partition] = self._holding.held.epochs.get(partition)

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """Forget a partition. There is no offset node."""
        self._stays.pop(partition, None)
        return ABSENT

    def not_ours(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, Exception]:
        """Return those that were lost or handed over since; the coordinator itself refuses others that are not ours."""
        held, stays = self._holding.held, self._stays
        return {tp: OffsetCommitError(NOT_OURS) for tp in partitions if tp in stays and held.ended(tp, stays[tp])}

    def owned(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, Exception]:
        """Return all: only the group's leader knows whether they have owners."""
        reason = "not owned by this member, and in a group that the brokers coordinate only the owner commits"
        return {tp: OffsetCommitError(reason) for tp in partitions}
