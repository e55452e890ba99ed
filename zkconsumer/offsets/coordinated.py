"""Offsets of a group that the brokers coordinate: every commit carries who writes it, and is refused to anybody else.

Called by one thread (the committer's); ``close`` from any, which makes a call that waits for a broker raise. One call
is one try: whoever calls repeats. Who we are is read for each commit; what an outdated one is refused with is told to
the group's thread, for which it means that our share is lost.

Mirrors the Java consumer's part of ``ConsumerCoordinator``. Differs on purpose: there a refused commit is the
application's to deal with, while streams go on with what others own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from threading import Event
from typing import Protocol

from zkconsumer.brokers import errors
from zkconsumer.brokers.group_requests import GroupChannel, Membership
from zkconsumer.brokers.search import CoordinatorSearch
from zkconsumer.core.coordinated.remedies import Remedy, remedy
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerError, BrokerResponseError, FencedInstanceIdError, OffsetCommitError
from zkconsumer.model import TopicPartition
from zkconsumer.registry.fenced import ABSENT, KnownOffset

log = logging.getLogger(__name__)

LOOK_AGAIN = 0.05
"""Seconds between two tries while the group passes into the next generation."""

_LOST = (Remedy.LOST, Remedy.RESET)
_BETWEEN = (Remedy.LOST, Remedy.REJOIN)
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
    def lives(self) -> int:
        """How often everything that was ours was lost."""


class GroupOffsets:
    """The offsets of one group as its coordinator keeps them (an ``OffsetStore``).

    Arguments: ``search`` is this store's alone; ``refused`` is told, on the committer's thread, as whom we were
    refused, and why; ``sent`` how many offsets each answered commit had.
    """

    def __init__(
        self,
        group: str,
        search: CoordinatorSearch,
        identity: Identity,
        refused: Callable[[Membership, Exception], None],
        sent: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._group = group
        self._search = search
        self._identity = identity
        self._refused = refused
        self._sent = sent
        self._coordinator: GroupChannel | None = None
        self._closing = Event()

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Read offsets. Raises BrokerError where that of any partition is unknown, whatever the reason."""
        deadline = Deadline(timeout)
        try:
            answered = self._find(deadline).offsets(self._group, partitions, deadline)
        except BrokerError as e:
            self._drop_after(e)
            raise
        for tp, stored in answered.items():
            if stored.error:
                raise errors.error(stored.error, f"the offset of {tp} in group {self._group!r}")
        return {tp: stored.offset for tp, stored in answered.items() if stored.offset >= 0}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """Write offsets in one request. Returns what the coordinator refused. Raises BrokerError.

        While the group passes into the next generation nobody may commit, for as long as its leader decides: that is
        waited for. What we own in both is ours all the while; what we do not is not committed any more by then.
        """
        deadline, lives = Deadline(timeout), self._identity.lives
        while True:
            who = self._identity.who
            try:
                codes = self._find(deadline).commit(who, offsets, deadline)
                break
            except BrokerError as e:
                self._drop_after(e)
                between = remedy(e) in _BETWEEN and (not self._identity.settled or self._identity.who != who)
                between = between and self._identity.lives == lives
                if between and not deadline.expired and not self._closing.wait(deadline.bounded(LOOK_AGAIN)):
                    continue
                if not between and (remedy(e) in _LOST or isinstance(e, FencedInstanceIdError)):
                    self._refused(who, e)
                raise
        self._sent(len(offsets))
        asked = f"offset commit of group {self._group!r}"
        return {tp: errors.error(code, asked) for tp, code in codes.items() if code}

    def close(self) -> None:
        """Close all connections, for good."""
        self._closing.set()
        self._search.close()

    def _find(self, deadline: Deadline) -> GroupChannel:
        if self._coordinator is None:
            self._coordinator = self._search.find(deadline)
        return self._coordinator

    def _drop_after(self, error: BrokerError) -> None:
        """The connection is of no use after any error but an answer that came from the coordinator itself."""
        if isinstance(error, BrokerResponseError) and remedy(error) is not Remedy.FIND:
            return
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            log.info("broker %d is not (or no longer) taken for the coordinator", coordinator.endpoint.broker_id)
            self._search.discard(coordinator)


class NoOwnerNodes:
    """Stands for ZooKeeper's part in the offsets of a group that ZooKeeper knows nothing of.

    The coordinator lets any member of its generation commit any partition, so what was lost is not tried again here:
    the next try would be one of our next life.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._lives: dict[TopicPartition, int] = {}

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """It is ours, in this life."""
        self._lives[partition] = self._identity.lives

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """There is no offset node."""
        self._lives.pop(partition, None)
        return ABSENT

    def known(self, partition: TopicPartition) -> int | None:
        """There is no offset node."""
        return None

    def not_ours(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, Exception]:
        """Those that were lost since; the coordinator itself refuses the rest of what is not ours."""
        now = self._identity.lives
        reason = "lost with our membership of the group, whoever owns it now"
        return {tp: OffsetCommitError(reason) for tp in partitions if self._lives.get(tp, now) != now}

    def owned(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, Exception]:
        """Whether anybody owns them only the group's leader knows: nobody writes what is not his."""
        reason = "not owned by this member, and in a group that the brokers coordinate only the owner commits"
        return {tp: OffsetCommitError(reason) for tp in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """Never asked for."""
        raise OffsetCommitError("offsets of a group that the brokers coordinate are not written to ZooKeeper")

    def release(
        self, offsets: Mapping[TopicPartition, int], unchanged: Collection[TopicPartition], deadline: Deadline
    ) -> tuple[Mapping[TopicPartition, Exception], frozenset[TopicPartition]]:
        """Never asked for."""
        raise OffsetCommitError("partitions of a group that the brokers coordinate have no owner nodes")

    def moved(self, deadline: Deadline) -> Collection[TopicPartition]:
        """Nobody else writes offsets of ours."""
        return ()
