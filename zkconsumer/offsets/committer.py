"""When offsets are written, and the one thread that writes them.

Everything that touches offset state runs on the committer's thread, in the order it was asked for: the timer's
commits, the user's, the last one before a release, and the store of a resolved start position. So a user's commit is
served also while a rebalance waits for that user to finish a message, and no lock is held over a request.

Threads: every method may be called from any thread; those that wait take a deadline.

Differs from the original on purpose: errors of an explicit commit reach the caller (there they are dropped after the
retries, in Kafka mode); a commit is refused, not written, when the partition is no longer ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Protocol, TypeVar

from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import OffsetCommitError, RegistryError, RegistryUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.registry.fenced import KnownOffset, Outcome
from zkconsumer.registry.lease import Lease

log = logging.getLogger(__name__)

T = TypeVar("T")
_IDLE = 60.0


class OffsetStore(Protocol):
    """Where offsets live; called on the committer's thread only."""

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        """The partition was claimed."""

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        """The partition is given up or lost."""

    def commit(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> Mapping[TopicPartition, Outcome]:
        """Write offsets; returns what became of each. Raises RegistryError where nothing is known of the outcome."""


Refused = Callable[[Mapping[PartitionPosition, Outcome]], None]
"""Told, on the committer's thread, of the partitions whose commit ZooKeeper refused."""


class Committer:
    """Writes the offsets of the partitions we own.

    Arguments: ``interval`` in seconds between automatic commits, None for none (``auto.commit.enable=false``);
    ``timeout`` in seconds for one automatic commit; ``count_held`` counts a message as consumed when it is handed out
    (``consumed.on=return``).
    """

    def __init__(
        self,
        name: str,
        store: OffsetStore,
        lease: Lease,
        *,
        interval: float | None,
        timeout: float,
        count_held: bool,
        refused: Refused,
    ) -> None:
        self._store = store
        self._lease = lease
        self._interval = interval
        self._timeout = timeout
        self._count_held = count_held
        self._refused = refused
        self._positions: dict[TopicPartition, PartitionPosition] = {}
        self._requests: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._next_auto = float("inf")
        self._ended = False
        self._thread = Thread(target=self._run, name=f"{name}-committer", daemon=True)

    def open(self) -> None:
        """Start the thread; the first automatic commit comes after one interval."""
        self._schedule()
        self._thread.start()

    def close(self, deadline: Deadline) -> None:
        """End the thread after what was asked before; commits nothing by itself."""
        self._requests.put(None)
        if self._thread.is_alive():
            self._thread.join(deadline.remaining())
        self._ended = True

    # ---- what may be asked ----

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Partitions were claimed: write their progress from now on. Returns at once."""
        self._ask(lambda: self._track(claimed))

    def store_start(self, position: PartitionPosition, offset: int, done: Callable[[bool], None]) -> None:
        """Write the resolved start position of a partition that had none, before anything of it is handed out.

        ``done`` is told, on the committer's thread, whether it is stored. Without the node a member that lost the
        partition could still commit to it, and "largest" would lose what arrives before the first commit.
        """
        self._ask(lambda: done(self._store_start(position, offset)))

    def commit(self, count_held: Callable[[PartitionPosition], bool], deadline: Deadline) -> None:
        """Write the progress of all partitions now and wait for it.

        Arguments: ``count_held`` says for which partitions the message in hand counts as finished.
        Raises: :class:`OffsetCommitError` naming the partitions that could not be written, and why.
        """
        self._wait(self._ask(lambda: self._commit(self._positions.values(), count_held, deadline)), deadline, "commit")

    def surrender(
        self,
        positions: Collection[PartitionPosition],
        *,
        commit: bool,
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
    ) -> Mapping[TopicPartition, KnownOffset]:
        """The last commit (if ``commit``) of partitions that are given up, after which they are no longer written.

        Returns their offset nodes as last seen. A failed commit is logged: the next owner starts at the one before.
        """
        return self._wait(
            self._ask(lambda: self._surrender(positions, commit, count_held, deadline)), deadline, "last commit"
        )

    def forget(self, positions: Collection[PartitionPosition]) -> None:
        """These partitions are lost: write nothing of them any more. Returns at once."""
        self._ask(lambda: self._untrack(positions))

    def _ask(self, request: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._requests.put((request, future))
        return future

    @staticmethod
    def _wait(future: Future[T], deadline: Deadline, what: str) -> T:
        try:
            return future.result(deadline.remaining())
        except FutureTimeoutError as e:
            raise OffsetCommitError(f"the {what} did not end in time; ZooKeeper may be unreachable") from e

    # ---- the thread ----

    def _run(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """Serve one request, or the timer; returns False at the end."""
        try:
            request = self._requests.get(timeout=max(0.0, min(self._next_auto - monotonic(), _IDLE)))
        except Empty:
            if monotonic() >= self._next_auto:
                self._auto_commit()
                self._schedule()
            return True
        if request is None:
            return False
        work, future = request
        try:
            future.set_result(work())
        except Exception as e:
            if not isinstance(e, RegistryError | OffsetCommitError):
                log.exception("an offset operation failed unexpectedly")
            future.set_exception(e)
        return True

    def _schedule(self) -> None:
        if self._interval is not None:
            self._next_auto = monotonic() + self._interval

    def _auto_commit(self) -> None:
        if not self._lease.valid:
            return  # the session is away: what we own may be another's by now
        try:
            self._commit(self._positions.values(), lambda _: False, Deadline(self._timeout))
        except RegistryUnavailableError as e:
            log.info("the automatic commit is put off: %s", e)
        except (RegistryError, OffsetCommitError) as e:
            log.warning("the automatic commit failed: %s", e)

    def _track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        for position, known in claimed:
            self._positions[position.tp] = position
            self._store.track(position.tp, known)

    def _untrack(self, positions: Collection[PartitionPosition]) -> Mapping[TopicPartition, KnownOffset]:
        known = {}
        for position in positions:
            if self._positions.get(position.tp) is position:
                del self._positions[position.tp]
                known[position.tp] = self._store.untrack(position.tp)
        return known

    def _store_start(self, position: PartitionPosition, offset: int) -> bool:
        if self._positions.get(position.tp) is not position:
            return False
        try:
            outcomes = self._store.commit({position.tp: offset}, Deadline(self._timeout))
        except RegistryError as e:
            log.warning("%s: its start offset %d could not be stored yet: %s", position.tp, offset, e)
            return False
        return self._outcome(position, offset, outcomes[position.tp])

    def _surrender(
        self,
        positions: Collection[PartitionPosition],
        commit: bool,
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
    ) -> Mapping[TopicPartition, KnownOffset]:
        held = [p for p in positions if self._positions.get(p.tp) is p]
        if commit:
            try:
                self._commit(held, count_held, deadline)
            except (RegistryError, OffsetCommitError) as e:
                log.warning(
                    "the last commit before giving partitions up failed, so their next owner repeats some: %s", e
                )
        return self._untrack(held)

    def _commit(
        self,
        positions: Collection[PartitionPosition],
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
    ) -> None:
        due: dict[TopicPartition, int] = {}
        by_tp: dict[TopicPartition, PartitionPosition] = {}
        for position in positions:
            offset = self._due(position, counting_held=self._count_held or count_held(position))
            if offset is not None:
                due[position.tp] = offset
                by_tp[position.tp] = position
        if not due:
            return
        outcomes = self._store.commit(due, deadline)
        failed = {
            tp: outcome
            for tp, outcome in outcomes.items()
            if not self._outcome(by_tp[tp], due[tp], outcome, report=False)
        }
        if failed:
            self._refused({by_tp[tp]: outcome for tp, outcome in failed.items()})
            raise OffsetCommitError(
                "not committed: "
                + ", ".join(f"{tp} at {due[tp]} ({outcome.value})" for tp, outcome in sorted(failed.items()))
            )

    @staticmethod
    def _due(position: PartitionPosition, *, counting_held: bool) -> int | None:
        """The offset to write, None where nothing is new (unchanged offsets are not rewritten: KAFKA-987)."""
        held = position.held
        offset = position.finished(including_held=counting_held)
        if offset is None or offset == position.committed:
            return None
        if held and offset + 1 == position.committed:
            return None  # the message in hand was committed explicitly before
        return offset

    def _outcome(self, position: PartitionPosition, offset: int, outcome: Outcome, *, report: bool = True) -> bool:
        if outcome is Outcome.DONE:
            position.committed = offset
            return True
        if report:
            self._refused({position: outcome})
        return False
