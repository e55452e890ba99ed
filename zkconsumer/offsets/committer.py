"""The committer thread, the only thread that reads and writes offsets.

Everything that touches offset state runs on the committer's thread, in the order of the calls: commits of the timer and
of the user, the last commit before a release, start offsets. So a user's commit is served while a rebalance waits for
the user's message. No lock is held over a request. A store that does not answer delays the group's thread by a bounded
time only.

The caller's messages in hand are part of a request, as of the call. When the request is executed, its caller may hold
other messages. A request of the application that has not begun at its deadline, or when its caller leaves the call, is
dropped.

Threads: every method may be called from any thread; methods that wait take a deadline.

Differs from the original on purpose: the caller gets the errors of an explicit commit, which the original drops after
its retries in Kafka mode. A commit of a partition that is no longer ours is refused and not written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import monotonic
from typing import Any, TypeVar

from zkconsumer.errors import OffsetCommitError, RegistryError, RegistryUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.commit_schedule import ACK_LOOK, NEVER, AckSchedule, CommitSchedule, CommitSettings, GivenOffset
from zkconsumer.offsets.commit_tracker import CommitTracker, Moved, Refused
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.start_lookup import Barred, Found, Stored
from zkconsumer.ownership.partition_position import NONE_HELD, Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.ownership_transactions import KnownOffset

log = logging.getLogger(__name__)

T = TypeVar("T")
_IDLE = 60.0
MEANWHILE = 0.2
NOT_SENT = "the commit was not sent in time, and will not be; where offsets are kept may be unreachable"
NOT_ANSWERED = "the commit did not end in time, and may still land; where offsets are kept may be unreachable"
TO_DRAIN = 1.0
"""Seconds for requests made before the end; then the stores are closed under them."""


class LateCommitError(OffsetCommitError):
    """The committer did not begin in time, or did not end in time."""


class Committer:
    """Writes the offsets of the partitions we own.

    Arguments: ``refused`` is told of partitions whose commit ZooKeeper refused; ``moved`` of offsets that somebody else
    wrote outside ZooKeeper. ``barred`` is told why no partition can start (the store refuses our login, or a right is
    missing), and None when that is over. ``tracker`` and ``schedule`` belong to the committer's thread.
    """

    def __init__(
        self,
        name: str,
        store: MemberStore,
        lease: Lease,
        settings: CommitSettings,
        *,
        refused: Refused,
        moved: Moved = lambda _: None,
        barred: Barred = lambda _: None,
    ) -> None:
        self._store = store
        self.asks = store.asks
        """Whether :meth:`find_starts` has to ask a store."""
        self.reads_nodes = store.in_zookeeper
        """Whether the offset nodes in ZooKeeper hold offsets of the group."""
        self.copies = store.copies
        """Whether commits are copies only, so that one that fails makes no message come again."""
        self._lease = lease
        self._settings = settings
        self.schedule = CommitSchedule(settings.interval, settings.refresh, forgets=store.forgets)
        self.acks = AckSchedule(settings.interval)
        self.tracker = CommitTracker(store, lease, settings, refused=refused, moved=moved, barred=barred)
        self._requests: SimpleQueue[tuple[Callable[[], Any], Request[Any]] | None] = SimpleQueue()
        self._failing = self._failure = ""
        self._closing: Thread | None = None
        self._ended = False
        self.thread = Thread(target=self._run, name=f"{name}-committer", daemon=True)

    def open(self) -> None:
        """Start the thread; the first automatic commit comes after one interval."""
        self.schedule.start(monotonic())
        self.thread.start()

    def close(self, deadline: Deadline) -> None:
        """End the thread after the requests made before; commit nothing. Never waits beyond the deadline."""
        self._requests.put(None)
        if self.thread.is_alive() and self.thread is not current_thread():  # a callback of a commit may shut down
            self.thread.join(deadline.bounded(TO_DRAIN))
        self.interrupt()
        for thread in (self._closing, self.thread):
            if thread is not None and thread.is_alive() and thread is not current_thread():
                thread.join(deadline.remaining())

    def interrupt(self) -> None:
        """Close the stores, so that a waiting call fails. Returns at once.

        A thread closes a user's own store, and is left behind if that does not return.
        """
        if self._store.releases:
            self._store.close()
        elif self._closing is None:
            self._closing = Thread(target=self._close_store, name=f"{self.thread.name}-closing", daemon=True)
            try:
                self._closing.start()
            except RuntimeError:  # the system gives no more threads
                self._close_store()

    def _close_store(self) -> None:
        try:
            self._store.close()
        except Exception:
            log.exception("closing the store of offsets failed")

    # ---- what may be asked ----

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Write the progress of these claimed partitions from now on. Returns at once."""
        self.submit(lambda: self.tracker.track(claimed))

    def succeed(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Write the progress of the new position from now on. Returns at once."""
        self.submit(lambda: self.tracker.succeed(old, new))

    def begin_other_log(self, old: PartitionPosition, new: PartitionPosition, known: KnownOffset) -> None:
        """Write the progress of the new position, which reads another log, from now on. Returns at once.

        ``known`` is the offset node as it was read for the new position. A commit of the old position may have been
        under way then.
        """
        self.submit(lambda: self._begin_other_log(old, new, known))

    def _begin_other_log(self, old: PartitionPosition, new: PartitionPosition, known: KnownOffset) -> None:
        # Otherwise our own commit would count as another client's, and the new log would be read from its offset on.
        with suppress(Exception):  # a commit without an answer stays open if the store does not answer now either
            self._store.settle_unanswered([old.tp], Deadline(self._settings.timeout))
        last = self.tracker.untrack([old]).get(old.tp, known)
        if last.version is not None and known.version is not None and last.version > known.version:
            known = replace(known, offset=last.offset, version=last.version)
        self.tracker.track([(new, known)])

    def find_starts(self, positions: Sequence[PartitionPosition], found: Found) -> Sequence[PartitionPosition]:
        """Look up the starts of claimed partitions, unless their offset nodes alone say them. Returns at once.

        Returns the partitions whose start is known. ``found`` is told of the others, on the committer's thread, when
        their start is known for certain, however long the store does not answer.
        """
        if not self.asks:
            return positions
        self.submit(lambda: self.tracker.starts.find(positions, found, len(self.tracker)))
        return ()

    @property
    def trouble(self) -> str:
        """Why partitions wait for their start, or why the timer's commit fails; empty if nothing is wrong."""
        return "; ".join(filter(None, (self.tracker.starts.trouble, self._failure if self._failing else "")))

    def store_starts(self, starts: Mapping[PartitionPosition, int], done: Stored) -> None:
        """Write resolved starts of partitions that had none, before anything of them is handed out.

        ``done`` is told of each once, on the committer's thread, whether it is stored. A store that does not answer is
        tried again. Without the offset node a member that lost the partition could still commit to it. And "largest"
        would lose messages that arrive before the first commit.
        """
        self.submit(lambda: self.tracker.store_starts(starts, done))

    def commit(self, held: Held, deadline: Deadline, given: Mapping[TopicPartition, GivenOffset] | None = None) -> None:
        """Write the progress of all partitions now, or ``given`` offsets as they are, and wait for it.

        Arguments: the messages that the caller ``held`` count as finished. Of ``given`` offsets, a partition of ours is
        written as its owner; a partition without an owner is written as well.
        Raises :class:`OffsetCommitError` with the partitions that were not written, and the reasons.
        """
        self._ask(self._commit(held, deadline, given), deadline)

    def begin_commit(
        self, held: Held, deadline: Deadline, given: Mapping[TopicPartition, GivenOffset] | None
    ) -> Future[None]:
        """Begin what :meth:`commit` does, and return at once."""
        return self.submit(self._commit(held, deadline, given), Request(deadline))

    def _commit(
        self, held: Held, deadline: Deadline, given: Mapping[TopicPartition, GivenOffset] | None
    ) -> Callable[[], None]:
        if given is None:
            return lambda: self.tracker.commit(held, deadline, patient=True)
        return lambda: self.tracker.commit_given(given, deadline)

    def prepare_seek(self, positions: Collection[PartitionPosition], deadline: Deadline) -> None:
        """Wait until no commit of these positions is under way, and begin none until the deadline.

        Also called by a callback of a commit, on the committer's thread.
        Raises: :class:`LateCommitError` at the deadline; OffsetCommitError if the outcome of a commit is not known.
        """
        if self.thread is current_thread():
            self.tracker.prepare_seek(positions, deadline)
        else:
            self._ask(lambda: self.tracker.prepare_seek(positions, deadline), deadline)

    def of_group(self, partitions: Collection[TopicPartition]) -> Future[Mapping[TopicPartition, int]]:
        """Ask for the stored offsets of any partitions of the group. Returns at once.

        The result has no entry, or a negative one, for a partition without an offset. It raises what the store raises.
        """
        return self.submit(lambda: self._store.of_group(partitions, Deadline(self._settings.timeout)))

    def overwrite(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        """Let the next commit overwrite ``known``, which another client wrote (None: outside ZooKeeper).

        Returns at once.
        """
        self.submit(lambda: self.tracker.overwrite(position, known))

    def write_starts(self, positions: Collection[PartitionPosition]) -> None:
        """Write the start offsets of these to every store, now or with the next commit. Returns at once."""
        self.submit(lambda: self.tracker.write_starts(positions))

    def check(self) -> None:
        """Check whether another client wrote our offsets; call ``refused`` or ``moved`` if so. Returns at once."""
        self.submit(self.tracker.check)

    def hurry(self) -> None:
        """Do the timer's next commit now, if it commits at all. Returns at once."""
        if self.schedule.interval < NEVER:
            self.submit(self._auto_commit)

    def commit_last(
        self,
        positions: Collection[PartitionPosition],
        *,
        commit: bool,
        held: Held,
        deadline: Deadline,
        meanwhile: Callable[[], None] = lambda: None,
        release: bool = False,
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """Do the last commit (if ``commit``) of revoked partitions, and stop tracking them.

        Messages that a caller ``held`` as it unsubscribed count as finished. ``meanwhile`` is called a few times a
        second. With ``release`` the commit may delete their owner nodes as well.
        Returns their offset nodes as last seen, None for released partitions. Partitions that may be released or not
        are left out. A failed commit is logged: the next owner starts at the one before.
        """
        asked = self.submit(
            lambda: self.tracker.commit_last(positions, commit=commit, held=held, deadline=deadline, release=release)
        )
        while not asked.done() and not deadline.expired:
            meanwhile()
            wait([asked], deadline.bounded(MEANWHILE))
        try:
            return asked.result(deadline.remaining())
        except TimeoutError as e:
            raise OffsetCommitError(f"last: {NOT_ANSWERED}") from e
        except RegistryError as e:
            raise OffsetCommitError(f"the last commit failed: {e}") from e

    def forget(self, positions: Collection[PartitionPosition]) -> None:
        """Stop tracking these lost partitions. Returns at once."""
        self.submit(lambda: self.tracker.untrack(positions))

    def submit(self, work: Callable[[], T], request: Request[T] | None = None) -> Request[T]:
        """Let the committer's thread call ``work``. Without a request it does so, however late."""
        request = Request(Deadline(None)) if request is None else request
        self._requests.put((work, request))
        if self._ended:
            self._refuse_rest()
        return request

    def _ask(self, work: Callable[[], T], deadline: Deadline) -> T:
        """Let the committer's thread call ``work``, and wait for the result.

        If this is left in any other way before the thread begins, ``work`` is never called.
        """
        request = Request[T](deadline)
        try:
            return request.ask(lambda: self.submit(work, request))
        except TimeoutError as e:
            raise LateCommitError(NOT_SENT if request.withdrawn else NOT_ANSWERED) from e
        except RegistryError as e:
            raise OffsetCommitError(f"the commit failed: {e}") from e

    # ---- the thread ----

    def _run(self) -> None:
        while self.step():
            pass
        self._ended = True
        self._refuse_rest()

    def _refuse_rest(self) -> None:
        """Refuse the requests that came after the end: nobody would answer them."""
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return
            if request is not None:
                request[1].set_exception(OffsetCommitError("the connector was shut down"))

    def step(self, *, waiting: bool = True) -> bool:
        """Serve one request, and the timers that are due; returns False at the end."""
        balanced = self._settings.balanced()
        due = min(self.schedule.due, self.tracker.starts.due)
        if balanced:
            due = min(due, self.acks.look_at, monotonic() + ACK_LOOK)
        try:
            request = self._requests.get(waiting, timeout=max(0.0, min(due - monotonic(), _IDLE)))
        except Empty:
            pass
        else:
            if request is None:
                return False
            self._execute(*request)
        self.run_timers(monotonic())
        return True

    @staticmethod
    def _execute(work: Callable[[], T], request: Request[T]) -> None:
        if not request.begin():
            request.set_exception(LateCommitError(NOT_SENT))
            return
        try:
            request.set_result(work())
        except Exception as e:
            if not isinstance(e, RegistryError | OffsetCommitError):
                log.exception("an offset operation failed unexpectedly")
            request.set_exception(e)

    def run_timers(self, now: float) -> None:
        """Run the timers that are due at ``now`` (monotonic seconds). Called by the committer's thread."""
        schedule = self.schedule
        if now >= schedule.commit_at:
            self._auto_commit()
            schedule.committed(monotonic())
        if now >= self.tracker.starts.due:
            self.tracker.starts.try_all(len(self.tracker))
        if self._settings.balanced():
            self._tend_acks(now)
        if now >= schedule.refresh_at:
            self.tracker.rewrite(schedule.unchanged_before(now), everywhere=schedule.refreshes_all)
            schedule.refreshed(now)

    def _tend_acks(self, now: float) -> None:
        """Commit acknowledgements, and look at pointers that somebody else may have written, if it is time."""
        unnoted, dirty = self.tracker.unnoted()
        if self.acks.is_due(unnoted, now, dirty=dirty, failing=bool(self._failing)):
            self._auto_commit()
        if self.acks.pointers_are_due(now):
            self.tracker.look_at_pointers()

    def _auto_commit(self) -> None:
        if not self._lease.valid:
            return  # the session is away: another member may own our partitions by now
        try:
            self.tracker.commit(NONE_HELD, Deadline(self._settings.timeout), patient=False)
            self._failing = ""
        except RegistryUnavailableError as e:
            log.info("the automatic commit is put off: %s", e)
        except (RegistryError, OffsetCommitError) as e:
            # the offsets differ every time, the reason does not
            reason = str(e.__cause__ or type(e).__name__)
            level = logging.DEBUG if reason == self._failing else logging.WARNING
            log.log(level, "the automatic commit failed: %s", e)
            self._failing, self._failure = reason, f"the automatic commit failed: {e}"
        except Exception:  # the thread that all commits need must live on
            log.exception("the automatic commit failed unexpectedly")
