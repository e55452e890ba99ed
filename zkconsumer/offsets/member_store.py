"""Reads and writes offsets in ZooKeeper, elsewhere (Kafka, a user's store), or both.

Called by one thread (the committer's); any may ``close``. ZooKeeper fences every write. A store elsewhere cannot; there
the coordinator's store says right before each try which partitions are still ours. With ``dual.commit.enabled`` offsets
are written elsewhere and then to ZooKeeper, and a partition starts at the larger of both.

Kafka keeps no version with an offset, so a write by somebody else shows only in its value. :meth:`MemberStore.compare`
compares the stored offset with the one we last read or wrote. A commit of ours between the other write and that look
writes over it unseen.

Differs from the original on purpose in the number of tries. Its documentation says that
``offsets.commit.max.retries`` is for the commit at shutdown and not for the timer's; its code from 0.9 on does the
opposite. Here the timer's commit is one try, since the next is due anyway. Any other commit is repeated within its
deadline. As documented, a failed search for the coordinator does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.stored_start import MergedStart, merged_start
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerResponseError,
    CoordinatorUnavailableError,
    OffsetCommitError,
    RegistryError,
    ZkConsumerError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.store import (
    NO_POINTS,
    CommitRefusedError,
    Failures,
    FencedStore,
    NotingStore,
    OffsetStore,
    Points,
    ReadPointers,
)
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets, see_node, seen_node
from zkconsumer.ownership.stored_offset import OffsetElsewhere, StoredOffset
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import KnownOffset

if TYPE_CHECKING:
    from zkconsumer.offsets.kafka_store import BridgeOffsets, MemberOffsets


log = logging.getLogger(__name__)

Check = Callable[[Collection[TopicPartition], Deadline], Failures]

NO_POINTERS = "a group that the brokers coordinate has no place for pointers to messages"
ONE_TRY = 10.0
"""Seconds for one call of a store, if no deadline is nearer."""


class Differences(NamedTuple):
    """Stored offsets that differ from those we knew.

    Somebody else wrote ``theirs``. A commit of ours whose answer was lost wrote ``ours``. The store lost the offsets of
    ``forgotten`` partitions and did not tell those of ``untold``.
    """

    theirs: dict[TopicPartition, int]
    ours: dict[TopicPartition, int]
    forgotten: set[TopicPartition]
    untold: set[TopicPartition]


class MemberStore:
    """Offsets in one or two stores.

    Arguments: ``coordinator`` is the store of the group's coordinator, which knows which partitions this member owns.
    ``nodes`` are the offset nodes in ZooKeeper, ``elsewhere`` is the store outside of it; None for a store that is not
    used. ``expires`` says that unchanged offsets must be written again because the store elsewhere forgets them
    (KAFKA-1510). ``backoff`` in seconds between tries; ``max_retries`` further tries of a commit.
    ``zookeeper_first`` writes to ZooKeeper first, also if the other store cannot be written, and writes elsewhere only
    offsets that ZooKeeper took. ``brokers_side`` is the store elsewhere, if it must hear of claims.
    """

    def __init__(
        self,
        coordinator: ZooKeeperOffsets | MemberOffsets,
        nodes: ZooKeeperOffsets | None = None,
        elsewhere: OffsetStore | None = None,
        *,
        expires: bool = False,
        backoff: float = 1.0,
        max_retries: int = 5,
        zookeeper_first: bool = False,
        brokers_side: BridgeOffsets | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._brokers_side = brokers_side
        if brokers_side is not None:
            brokers_side.tracked = coordinator.tracked
        self.tracked = coordinator.tracked
        """The partitions that this member owns, and what is stored of them. The committer's thread alone uses it."""
        self._nodes = nodes
        self._elsewhere = elsewhere
        self.in_zookeeper = nodes is not None
        """Whether ZooKeeper keeps the offsets too, or alone."""
        self.asks = elsewhere is not None
        """Whether a start must be asked for. Otherwise it is in the offset node that was read at the claim."""
        self.releases = elsewhere is None
        """Whether the last commit can release the partition as well: ZooKeeper alone keeps its offset and owner."""
        self.keeps_refused = elsewhere is not None and not zookeeper_first
        """Whether offsets that ZooKeeper refuses were written elsewhere before."""
        self.copies = isinstance(elsewhere, FencedStore)
        """Whether commits are copies for monitors, because the user's own transactions record what is consumed."""
        self.forgets = expires
        self._backoff = backoff
        self._max_retries = max_retries
        self._zookeeper_first = zookeeper_first
        self._closing = Event()

    @property
    def _pointers(self) -> ZooKeeperOffsets | None:
        return self._coordinator if isinstance(self._coordinator, ZooKeeperOffsets) else None

    def track(self, partition: TopicPartition, stored: StoredOffset, known: KnownOffset) -> None:
        """Keep what is stored of a claimed partition from now on. ``known`` is its offset node as of the claim."""
        self.tracked[partition] = stored
        self.see(stored, known)
        self._coordinator.claimed(partition)
        if self._brokers_side is not None:
            self._brokers_side.claimed(partition)

    def see(self, stored: StoredOffset, known: KnownOffset) -> None:
        """Keep the offset node of a tracked partition as somebody else has written it."""
        see_node(stored, known)
        stored.elsewhere = OffsetElsewhere(epoch=stored.elsewhere.epoch)

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """Forget a released or lost partition; return its offset node as last seen."""
        return seen_node(self.tracked.pop(partition))

    def look_at_pointers(self, partitions: Collection[TopicPartition], deadline: Deadline) -> ReadPointers:
        """Return the pointers of tracked partitions that somebody else wrote since. Raises RegistryError."""
        return {} if self._pointers is None else self._pointers.notes.look(list(partitions), deadline)

    def start_note(self, partition: TopicPartition, start: int | None) -> FinishedNote | None:
        """Return what is finished beyond the start that :meth:`starts` found, if a store knows it."""
        stored = self.tracked[partition]
        note, stored.elsewhere.note = stored.elsewhere.note, None
        if note is None and self._nodes is not None and stored.notes is not None:
            note = stored.notes.start_note
        return note if note is not None and note.base == start else None

    def starts(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, MergedStart]:
        """Return where tracked partitions begin. Raises the error of the store if one is unknown."""
        with _exceptions_only():
            stored = self._fetch_starts(partitions, deadline)
        found = {}
        for tp in partitions:
            ours = self.tracked[tp]
            if stored.get(tp, -1) >= 0:
                ours.elsewhere.offset = stored[tp]
            held = [stored.get(tp)] if self._elsewhere is not None else []
            copy = None if self._nodes is None else ours.node.offset
            if self._nodes is not None and not isinstance(self._elsewhere, FencedStore):
                held.append(copy)
            found[tp] = merged_start(held)
            if isinstance(self._elsewhere, FencedStore):
                # the node is a copy that may be ahead of the rows of the user, so it never decides
                found[tp] = MergedStart(found[tp].offset, stores_agree=copy == found[tp].offset)
        return found

    def _fetch_starts(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, int]:
        if isinstance(self._elsewhere, FencedStore):
            assert self._nodes is not None, "a fenced store has its copy there"
            epochs = self._nodes.epochs(partitions, deadline)
            return self._elsewhere.claim(epochs, deadline.bounded(ONE_TRY))
        timeout = deadline.bounded(ONE_TRY)
        if isinstance(self._elsewhere, NotingStore):
            stored, notes = self._elsewhere.fetch_noted(partitions, timeout)
            for tp in partitions:
                self.tracked[tp].elsewhere.note = notes.get(tp)
            return stored
        return self._elsewhere.fetch(partitions, timeout) if self._elsewhere is not None else {}

    def commit(
        self,
        changed: Mapping[TopicPartition, int],
        unchanged: Mapping[TopicPartition, int],
        deadline: Deadline,
        *,
        patient: bool,
        points: Points = NO_POINTS,
    ) -> Failures:
        """Write offsets of tracked partitions. Returns the partitions that were not written, with the reasons.

        Arguments: ``unchanged`` are written only to a store that forgets them; ``patient`` repeats failed writes;
        ``points`` say what is written with offsets of partitions whose messages are finished in any order.
        Raises RegistryError if the outcome is unknown.
        """
        wanted = {**unchanged, **changed} if self.forgets else changed
        if self._elsewhere is None:
            return self._write_nodes(changed, deadline, points)
        if self._zookeeper_first:
            refused = self._write_nodes(changed, deadline, points)
            left = {tp: offset for tp, offset in wanted.items() if tp not in refused}
            return {**refused, **self._write_elsewhere(left, self._not_ours, deadline, patient=patient)}
        # pointers first: an offset that passes a message without one would lose it
        unstored = self._write_pointers(points, deadline)
        wanted = {tp: offset for tp, offset in wanted.items() if tp not in unstored}
        failures = self._write_elsewhere(wanted, self._not_ours, deadline, patient=patient, points=points)
        failures |= unstored
        also = {tp: offset for tp, offset in changed.items() if tp not in failures}
        return {**failures, **self._write_nodes(also, deadline, points)}

    def only_in_zookeeper(self, partition: TopicPartition, offset: int, failure: Exception) -> bool:
        """Return whether ZooKeeper, which was written first, has the offset of a commit that failed elsewhere.

        The offset counts as committed. Otherwise the next commit would take it back by the message in hand.
        """
        if not self._zookeeper_first or isinstance(failure, CommitRefusedError):
            return False
        stored = self.tracked.get(partition)
        return stored is not None and stored.node.offset == offset

    def _write_pointers(self, points: Points, deadline: Deadline) -> Failures:
        if not points:
            return {}
        if self._pointers is None:
            return {tp: OffsetCommitError(NO_POINTERS) for tp, point in points.items() if point.changes}
        try:
            return self._pointers.write_pointers(points, Deadline(deadline.bounded(ONE_TRY)))
        except RegistryError as e:
            return dict.fromkeys(points, e)

    def _write_nodes(
        self, offsets: Mapping[TopicPartition, int], deadline: Deadline, points: Points = NO_POINTS
    ) -> Failures:
        if self._nodes is None or not offsets:
            return {}
        return self._nodes.commit(offsets, deadline.bounded(ONE_TRY), points)

    def release(
        self,
        changed: Mapping[TopicPartition, int],
        unchanged: Collection[TopicPartition],
        deadline: Deadline,
        points: Points = NO_POINTS,
    ) -> tuple[Failures, frozenset[TopicPartition]]:
        """Write offsets for the last time and release all these partitions, in one request. Only if :attr:`releases`.

        Returns the partitions that were not written, with the reasons, and the released ones. Raises RegistryError if
        the outcome is unknown.
        """
        assert self._nodes is not None
        return self._nodes.release(changed, unchanged, Deadline(deadline.bounded(ONE_TRY)), points)

    def commit_unowned(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> Failures:
        """Write offsets of partitions that are not ours; a partition with an owner is refused.

        Raises RegistryError if the outcome is unknown.
        """
        failures = self._write_nodes(offsets, deadline)  # first, since here the check and the write are one
        if self._elsewhere is None:
            return failures
        left = {tp: offset for tp, offset in offsets.items() if tp not in failures}
        return {**failures, **self._write_elsewhere(left, self._coordinator.with_owner, deadline, patient=True)}

    def moved(self, deadline: Deadline) -> Collection[TopicPartition]:
        """Return owned partitions whose offset nodes another client wrote, if nodes are used. Raises RegistryError."""
        return () if self._nodes is None else self._nodes.moved(deadline)

    def compare(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Differences:
        """Compare a store that forgets with the offsets we know there. Never raises; tells a difference once.

        With ``zookeeper_first`` it does not look: ZooKeeper alone decides, and the other store has a copy.
        """
        found = Differences({}, {}, set(), set())
        wanted = [tp for tp in partitions if self.tracked[tp].elsewhere.offset is not None]
        if self._elsewhere is None or not self.forgets or self._zookeeper_first or not wanted:
            return found
        stored, untold = self._fetch_known(wanted, deadline)
        found.untold.update(untold)
        for tp in wanted:
            offset, known = stored.get(tp, -1), self.tracked[tp].elsewhere
            if tp in untold or offset == known.offset:
                continue
            if offset < 0:
                found.forgotten.add(tp)
                known.offset = None
                continue
            known.offset = offset
            lowest, highest = known.doubtful or (0, -1)
            (found.ours if lowest <= offset <= highest else found.theirs)[tp] = offset
        return found

    def _fetch_known(
        self, wanted: Sequence[TopicPartition], deadline: Deadline
    ) -> tuple[Mapping[TopicPartition, int], frozenset[TopicPartition]]:
        """Return offsets, and the unknown partitions. A topic that is refused to us must not hide the others."""
        assert self._elsewhere is not None
        try:
            with _exceptions_only():
                return self._elsewhere.fetch(wanted, deadline.bounded(ONE_TRY)), frozenset()
        except Exception as e:  # noqa: BLE001 (whatever a store raises: nothing is known)
            topics = sorted({tp.topic for tp in wanted})
            of_a_topic = isinstance(e, BrokerResponseError) and e.code == error_codes.TOPIC_AUTHORIZATION_FAILED
            if not of_a_topic or len(topics) == 1 or deadline.expired:
                log.info("whether somebody else wrote our offsets could not be seen: %s", e)
                return {}, frozenset(wanted)
        half = set(topics[: len(topics) // 2])
        stored, untold = self._fetch_known([tp for tp in wanted if tp.topic in half], deadline)
        more, also_untold = self._fetch_known([tp for tp in wanted if tp.topic not in half], deadline)
        return {**stored, **more}, untold | also_untold

    def of_group(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, int]:
        """Return the stored offsets of any partitions of the group, as :meth:`OffsetStore.fetch` does."""
        store = self._elsewhere if self._elsewhere is not None else self._nodes
        assert store is not None
        with _exceptions_only():
            return store.fetch(partitions, deadline.bounded(ONE_TRY))

    def settle_unanswered(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> Collection[TopicPartition]:
        """Find out the outcome of commits of tracked partitions whose answer did not come. Returns these partitions.

        A commit whose outcome is known by then cannot land later: ZooKeeper serves a session in order, and what another
        store answers after it counts. Raises RegistryError, or what the store raises if it does not answer.
        """
        found = set() if self._nodes is None else self._nodes.settle_unanswered(partitions, deadline)
        ours = {tp: self.tracked[tp].elsewhere for tp in partitions if tp in self.tracked}
        doubtful = {tp: known for tp, known in ours.items() if known.doubtful is not None}
        if doubtful and self._elsewhere is not None:
            with _exceptions_only():
                stored = self._elsewhere.fetch(list(doubtful), deadline.bounded(ONE_TRY))
            for tp, known in doubtful.items():
                lowest, highest = known.doubtful or (0, -1)
                if lowest <= stored.get(tp, -1) <= highest:
                    known.offset, known.doubtful = stored[tp], None
                elif stored.get(tp, -1) == (-1 if known.offset is None else known.offset):
                    known.doubtful = None
        return found.union(doubtful)

    def close(self) -> None:
        """Fail calls that wait for a store, and close it."""
        self._closing.set()
        if self._elsewhere is not None:
            self._elsewhere.close()

    def _not_ours(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        refused = self._coordinator.not_ours(partitions, deadline)
        also = {} if self._brokers_side is None else self._brokers_side.not_ours(partitions, deadline)
        return {**also, **refused}

    def _write_elsewhere(
        self,
        offsets: Mapping[TopicPartition, int],
        check: Check,
        deadline: Deadline,
        *,
        patient: bool,
        points: Points = NO_POINTS,
    ) -> dict[TopicPartition, Exception]:
        failures: dict[TopicPartition, Exception] = {}
        left, tries = dict(offsets), 0
        while left:
            refused = check(left, deadline)
            failures |= refused
            failed = self._one_try({tp: o for tp, o in left.items() if tp not in refused}, points, deadline)
            for tp in [tp for tp in left if tp not in failed]:
                if tp not in refused:
                    failures.pop(tp, None)
            failures |= failed
            left = {tp: left[tp] for tp, e in failed.items() if may_pass(e)}
            tries += any(not isinstance(failed[tp], CoordinatorUnavailableError) for tp in left)
            if not left or not patient or tries > self._max_retries or not self._pause(deadline):
                break
        return failures

    def _one_try(
        self, offsets: Mapping[TopicPartition, int], points: Points, deadline: Deadline
    ) -> dict[TopicPartition, Exception]:
        assert self._elsewhere is not None
        if not offsets:
            return {}
        try:
            with _exceptions_only():
                answered = self._send(offsets, points, deadline.bounded(ONE_TRY)) or {}
            failures = {tp: failure for tp, failure in answered.items() if tp in offsets}
        except ZkConsumerError as e:
            failures = dict.fromkeys(offsets, e)
        except Exception as e:
            log.exception("the store of offsets failed unexpectedly")
            failures = dict.fromkeys(offsets, e)
        self._note(offsets, failures)
        return failures

    def _send(
        self, offsets: Mapping[TopicPartition, int], points: Points, timeout: float
    ) -> Mapping[TopicPartition, Exception] | None:
        assert self._elsewhere is not None
        notes = {tp: points[tp].note for tp in offsets if tp in points}
        if notes and isinstance(self._elsewhere, NotingStore):
            return self._elsewhere.commit(offsets, timeout, notes)
        return self._elsewhere.commit(offsets, timeout)

    def _note(self, offsets: Mapping[TopicPartition, int], failures: Failures) -> None:
        """Remember the offsets that the store holds now, and those that it may hold."""
        for tp, offset in offsets.items():
            stored, failure = self.tracked.get(tp), failures.get(tp)
            if stored is None:
                continue
            known = stored.elsewhere
            if failure is None:
                known.offset, known.doubtful = offset, None
            elif not _wrote_nothing(failure):
                lowest, highest = known.doubtful or (offset, offset)
                known.doubtful = min(lowest, offset), max(highest, offset)

    def _pause(self, deadline: Deadline) -> bool:
        """Wait before the next try; return False if no time is left for one, or the store is closed."""
        left = deadline.remaining()
        if left is not None and left <= self._backoff:
            return False
        return not self._closing.wait(self._backoff) and not deadline.expired


@contextmanager
def _exceptions_only() -> Iterator[None]:
    """Raise a ZkConsumerError in place of a BaseException of a user's store, such as asyncio's CancelledError.

    Such an error would end the thread that all commits need.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as e:
        raise ZkConsumerError(f"the store of offsets raised {e!r}") from e


def _wrote_nothing(error: Exception) -> bool:
    """Return whether a failed write has certainly written nothing: nothing was sent, or the write was refused."""
    refused = isinstance(error, BrokerResponseError) and not may_pass(error)
    return refused or isinstance(error, CoordinatorUnavailableError)


def may_pass(error: Exception) -> bool:
    """Return whether another try may succeed though nobody changes anything."""
    if isinstance(error, BrokerResponseError):
        return error_codes.retriable(error.code)
    return not isinstance(error, CommitRefusedError | BrokerAuthenticationError)
