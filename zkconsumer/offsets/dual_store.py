"""The offsets of the partitions we own, wherever they are kept: in ZooKeeper, elsewhere (Kafka, a user's store), or
both.

Called by one thread (the committer's); ``close`` from any. In ZooKeeper every write is fenced. What is kept elsewhere
cannot be; there the owner nodes are looked at right before each try. With ``dual.commit.enabled`` what was written
elsewhere is written to ZooKeeper too, and a partition starts at the larger of both.

Kafka keeps no version with an offset, so a write by somebody else shows only in its value: :meth:`DualStore.looked`
compares what stands there with what we last read or wrote. A commit of ours that comes between his write and that look
writes over it unseen.

Differs from the original on purpose in the number of tries: its documentation says that
``offsets.commit.max.retries`` is for the commit at shutdown and not for the timer's, its code from 0.9 on does the
opposite. Here the timer's commit is one try (the next is due anyway) and any other commit is repeated, within its
deadline. As documented, a search for the coordinator that fails does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event
from typing import NamedTuple, Protocol

from zkconsumer.core.merged_start import MergedStart, merged_start
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerResponseError,
    CoordinatorUnavailableError,
    ZkConsumerError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.store import CommitRefusedError, OffsetStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.zookeeper.fenced_writes import KnownOffset

log = logging.getLogger(__name__)

Failures = Mapping[TopicPartition, Exception]
Check = Callable[[Collection[TopicPartition], Deadline], Failures]

ONE_TRY = 10.0
"""Seconds for one call of a store where no deadline is nearer."""


class Fence(Protocol):
    """Knows which partitions are ours, for stores that cannot refuse a former owner themselves."""

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """Note a claimed partition, with its offset node as of the claim."""

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """Forget a released or lost partition; return its offset node as last seen."""

    def not_ours(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return the partitions that are not ours, looked up now."""

    def owned(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return the partitions, none of them ours, that have an owner now."""


class Looked(NamedTuple):
    """Stored offsets that differ from those we knew. Somebody else wrote ``theirs``. A commit of ours whose answer was
    lost wrote ``ours``. The store lost the offsets of ``forgotten`` partitions and did not tell those of ``untold``.
    """

    theirs: dict[TopicPartition, int]
    ours: dict[TopicPartition, int]
    forgotten: set[TopicPartition]
    untold: set[TopicPartition]


class DualStore:
    """Offsets in one or two stores.

    Arguments: ``nodes`` are the offset nodes in ZooKeeper, ``elsewhere`` is the store outside of it; None for a store
    that is not used. ``expires`` says that unchanged offsets must be written again because the store elsewhere forgets
    them (KAFKA-1510). ``backoff`` in seconds between tries; ``max_retries`` further tries of a commit.
    ``zookeeper_first`` writes to ZooKeeper first, also if the other store cannot be written, and writes elsewhere only
    offsets that ZooKeeper took.
    """

    def __init__(
        self,
        fence: Fence,
        nodes: ZooKeeperOffsets | None = None,
        elsewhere: OffsetStore | None = None,
        *,
        expires: bool = False,
        backoff: float = 1.0,
        max_retries: int = 5,
        zookeeper_first: bool = False,
    ) -> None:
        self._fence = fence
        self._nodes = nodes
        self._elsewhere = elsewhere
        self._expires = expires
        self._backoff = backoff
        self._max_retries = max_retries
        self._zookeeper_first = zookeeper_first
        self._closing = Event()
        self._stored: dict[TopicPartition, int] = {}
        """What the store elsewhere holds of tracked partitions, as last read or written."""
        self._doubtful: dict[TopicPartition, tuple[int, int]] = {}
        """The lowest and highest offset of tries whose outcome is unknown."""

    @property
    def in_zookeeper(self) -> bool:
        """Whether ZooKeeper keeps the offsets too, or alone."""
        return self._nodes is not None

    @property
    def asks(self) -> bool:
        """Whether a start is to be asked for; else it is the one of the offset node that was read at the claim."""
        return self._elsewhere is not None

    @property
    def forgets(self) -> bool:
        """Whether unchanged offsets must be written again from time to time, since the store elsewhere forgets them."""
        return self._expires

    @property
    def keeps_refused(self) -> bool:
        """Whether what ZooKeeper refuses was written elsewhere before."""
        return self._elsewhere is not None and not self._zookeeper_first

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """The partition was claimed."""
        self._stored.pop(partition, None)
        self._doubtful.pop(partition, None)
        self._fence.track(partition, known)

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """The partition is given up or lost; returns its offset node as last seen."""
        self._stored.pop(partition, None)
        self._doubtful.pop(partition, None)
        return self._fence.untrack(partition)

    def starts(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, MergedStart]:
        """Where tracked partitions begin. Raises whatever the store raises, where one is not known."""
        stored = self._elsewhere.fetch(partitions, deadline.bounded(ONE_TRY)) if self._elsewhere is not None else {}
        found = {}
        self._stored.update((tp, offset) for tp, offset in stored.items() if offset >= 0)
        for tp in partitions:
            held = [stored.get(tp)] if self._elsewhere is not None else []
            if self._nodes is not None:
                held.append(self._nodes.known(tp))
            found[tp] = merged_start(held)
        return found

    def commit(
        self,
        changed: Mapping[TopicPartition, int],
        unchanged: Mapping[TopicPartition, int],
        deadline: Deadline,
        *,
        patient: bool,
    ) -> Failures:
        """Write offsets of tracked partitions. Returns what was not written, with the reason.

        Arguments: ``unchanged`` are written only where a store forgets them; ``patient`` repeats what fails.
        Raises: RegistryError where nothing is known of the outcome.
        """
        wanted = {**unchanged, **changed} if self._expires else changed
        if self._elsewhere is None:
            return self._write_nodes(changed, deadline)
        if self._zookeeper_first:
            refused = self._write_nodes(changed, deadline)
            left = {tp: offset for tp, offset in wanted.items() if tp not in refused}
            return {**refused, **self._write_elsewhere(left, self._fence.not_ours, deadline, patient=patient)}
        failures = self._write_elsewhere(wanted, self._fence.not_ours, deadline, patient=patient)
        also = {tp: offset for tp, offset in changed.items() if tp not in failures}
        return {**failures, **self._write_nodes(also, deadline)}

    def _write_nodes(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> Failures:
        if self._nodes is None or not offsets:
            return {}
        return self._nodes.commit(offsets, deadline.bounded(ONE_TRY))

    @property
    def releases(self) -> bool:
        """Whether the last commit can give the ownership up as well: both are in ZooKeeper alone."""
        return self._elsewhere is None

    def release(
        self, changed: Mapping[TopicPartition, int], unchanged: Collection[TopicPartition], deadline: Deadline
    ) -> tuple[Failures, frozenset[TopicPartition]]:
        """Write offsets for the last time and give up the ownership of all these, in one request, where
        :attr:`releases`. Returns what was not written, with the reason, and what is released.

        Raises: RegistryError where nothing is known of the outcome.
        """
        assert self._nodes is not None
        return self._nodes.release(changed, unchanged, Deadline(deadline.bounded(ONE_TRY)))

    def commit_unowned(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> Failures:
        """Write offsets of partitions that are not ours; refused for one that anybody owns now.

        Raises: RegistryError where nothing is known of the outcome.
        """
        failures = self._write_nodes(offsets, deadline)  # first, since here the check and the write are one
        if self._elsewhere is None:
            return failures
        left = {tp: offset for tp, offset in offsets.items() if tp not in failures}
        return {**failures, **self._write_elsewhere(left, self._fence.owned, deadline, patient=True)}

    def moved(self, deadline: Deadline) -> Collection[TopicPartition]:
        """Partitions of ours whose offset nodes somebody else wrote; none where they do not matter. Raises
        RegistryError.
        """
        return () if self._nodes is None else self._nodes.moved(deadline)

    def looked(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Looked:
        """See what a store that forgets holds of tracked partitions; never raises. A difference is told once.

        In a group that moves nothing is looked at: ZooKeeper alone decides there, and the other store has a copy.
        """
        found = Looked({}, {}, set(), set())
        wanted = [tp for tp in partitions if tp in self._stored]
        if self._elsewhere is None or not self._expires or self._zookeeper_first or not wanted:
            return found
        stored, untold = self._fetch_what_is_told(wanted, deadline)
        found.untold.update(untold)
        for tp in wanted:
            offset = stored.get(tp, -1)
            if tp in untold or offset == self._stored[tp]:
                continue
            if offset < 0:
                found.forgotten.add(tp)
                del self._stored[tp]
                continue
            self._stored[tp] = offset
            lowest, highest = self._doubtful.get(tp, (0, -1))
            (found.ours if lowest <= offset <= highest else found.theirs)[tp] = offset
        return found

    def _fetch_what_is_told(
        self, wanted: Sequence[TopicPartition], deadline: Deadline
    ) -> tuple[Mapping[TopicPartition, int], frozenset[TopicPartition]]:
        """Offsets, and the partitions that are not known. One that is refused must not hide the others for ever."""
        assert self._elsewhere is not None
        try:
            return self._elsewhere.fetch(wanted, deadline.bounded(ONE_TRY)), frozenset()
        except Exception as e:  # noqa: BLE001 (whatever a store raises: nothing is known)
            topics = sorted({tp.topic for tp in wanted})
            of_a_topic = isinstance(e, BrokerResponseError) and e.code == error_codes.TOPIC_AUTHORIZATION_FAILED
            if not of_a_topic or len(topics) == 1 or deadline.expired:
                log.info("whether somebody else wrote our offsets could not be seen: %s", e)
                return {}, frozenset(wanted)
        half = set(topics[: len(topics) // 2])
        stored, untold = self._fetch_what_is_told([tp for tp in wanted if tp.topic in half], deadline)
        more, also_untold = self._fetch_what_is_told([tp for tp in wanted if tp.topic not in half], deadline)
        return {**stored, **more}, untold | also_untold

    def close(self) -> None:
        """Wake and fail whatever waits for a store."""
        self._closing.set()
        if self._elsewhere is not None:
            self._elsewhere.close()

    def _write_elsewhere(
        self, offsets: Mapping[TopicPartition, int], check: Check, deadline: Deadline, *, patient: bool
    ) -> dict[TopicPartition, Exception]:
        failures: dict[TopicPartition, Exception] = {}
        left, tries = dict(offsets), 0
        while left:
            refused = check(left, deadline)
            failures |= refused
            failed = self._one_try({tp: o for tp, o in left.items() if tp not in refused}, deadline)
            for tp in [tp for tp in left if tp not in failed]:
                if tp not in refused:
                    failures.pop(tp, None)
            failures |= failed
            left = {tp: left[tp] for tp, e in failed.items() if may_pass(e)}
            tries += any(not isinstance(failed[tp], CoordinatorUnavailableError) for tp in left)
            if not left or not patient or tries > self._max_retries or not self._pause(deadline):
                break
        return failures

    def _one_try(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, Exception]:
        assert self._elsewhere is not None
        if not offsets:
            return {}
        try:
            answered = self._elsewhere.commit(offsets, deadline.bounded(ONE_TRY)) or {}
            failures = {tp: failure for tp, failure in answered.items() if tp in offsets}
        except ZkConsumerError as e:
            failures = dict.fromkeys(offsets, e)
        except Exception as e:
            log.exception("the store of offsets failed unexpectedly")
            failures = dict.fromkeys(offsets, e)
        self._note(offsets, failures)
        return failures

    def _note(self, offsets: Mapping[TopicPartition, int], failures: Failures) -> None:
        """Remember what the store holds now, and what it may hold."""
        for tp, offset in offsets.items():
            failure = failures.get(tp)
            if failure is None:
                self._stored[tp] = offset
                self._doubtful.pop(tp, None)
            elif not isinstance(failure, CoordinatorUnavailableError):  # else nothing was sent
                lowest, highest = self._doubtful.get(tp, (offset, offset))
                self._doubtful[tp] = min(lowest, offset), max(highest, offset)

    def _pause(self, deadline: Deadline) -> bool:
        """Wait before the next try; False where there is no time for one, or everything ends."""
        left = deadline.remaining()
        if left is not None and left <= self._backoff:
            return False
        return not self._closing.wait(self._backoff)


def may_pass(error: Exception) -> bool:
    """Whether another try may succeed without anybody changing anything."""
    if isinstance(error, BrokerResponseError):
        return error_codes.retriable(error.code)
    return not isinstance(error, CommitRefusedError | BrokerAuthenticationError)
