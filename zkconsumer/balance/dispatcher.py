"""Hands messages to executors, and decides what becomes of them by their outcomes.

The reader gives it messages, executors take them and settle them. Outcomes go to the ledger of the stay at a partition
that the message belongs to. So a late outcome of an earlier stay touches nothing of the present one.

Threads: the reader and all workers. The lock guards the lanes and the numbers of messages in hand. Nothing waits under
it, and no function of the application is called under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import monotonic

from zkconsumer.balance.batch_size import BatchSize
from zkconsumer.balance.dead_letters import DeadLetters
from zkconsumer.balance.failed_messages import FailedMessages, RunRules
from zkconsumer.balance.open_partition import HELD, OpenPartition, SharedSlots
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, Outcome, Pending, answered
from zkconsumer.balance.read_work import PointerWorks, ReadPart, ReadWork
from zkconsumer.balance.waiting_messages import Order, WaitingMessages
from zkconsumer.balance.work import Work
from zkconsumer.core.key_slots import NO_SLOT, slot_of_key
from zkconsumer.core.message_pointers import key_mark
from zkconsumer.ownership.message_ledger import MessageLedger
from zkconsumer.ownership.partition_position import NOTHING_HELD
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag
from zkconsumer.streams.rate_limit import HandOutGate, RateLimitedLease
from zkconsumer.streams.stream_queue import Chunk

ENOUGH = 512
"""Startable messages, or keys, after which no more is read: many live objects make Python's garbage collector slow."""
LOOK = 0.1
"""Seconds after which a waiting worker looks whether the lease has come back."""
_PART_OF = attrgetter("part")


class Dispatcher:
    """The messages of one run: a :class:`~zkconsumer.balance.work.WorkSource`.

    Arguments: ``gate`` says whether a handler may begin (the lease, perhaps with a rate limit); ``rules`` of the run;
    ``failed`` gets what ends the run; ``dead_letters`` takes what is given up (None: pointers); ``wake_executor`` is
    called when there may be work to take; ``sizes`` says how many messages a worker takes.

    The reader waits for ``reader_flag``. ``pointer_works`` are the messages of pointers in hand.
    """

    def __init__(
        self,
        gate: HandOutGate,
        rules: RunRules,
        *,
        failed: Callable[[BaseException], None] = lambda _: None,
        dead_letters: DeadLetters | None = None,
        wake_executor: Callable[[], None] = lambda: None,
        sizes: BatchSize | None = None,
    ) -> None:
        self._pace = gate if isinstance(gate, RateLimitedLease) else None
        self._lease = gate.lease if isinstance(gate, RateLimitedLease) else gate
        self.rules = rules
        self.waiting = WaitingMessages(rules.order)
        self.reader_flag = WakeFlag()
        self.pointer_works = PointerWorks()
        self._wake_executor = wake_executor
        self._failed = failed
        self._lock = InterruptibleLock()
        self.failures = FailedMessages(rules, self.waiting, self._lock, dead_letters, self.abort, self._buried)
        self._idle: list[WakeFlag] = []
        self._called: set[WakeFlag] = set()  # of workers that were woken, and have not looked yet
        self.sizes = sizes or BatchSize()
        self._partitions: dict[MessageLedger, OpenPartition] = {}
        self.enough = ENOUGH
        self.reader_waits = False
        """The reader has stopped because there is enough to begin."""
        self._ended = False
        self._left = False
        self.in_hand = self.handled = 0
        self.zombies = 0
        """Handlers that ended when the session's lease was no longer valid."""
        self.active_at = monotonic()
        """When a message was last handed out or settled (monotonic seconds)."""

    @property
    def busy(self) -> bool:
        """Whether a message is in hand, or may begin now."""
        due = self.waiting.next_due()
        return bool(self.in_hand or self.waiting.startable or (due is not None and due <= monotonic()))

    # ---- executors

    @property
    def ended(self) -> bool:
        """Whether nothing is to be taken any more."""
        return self._ended

    def end(self) -> None:
        """Hand nothing out any more. Any thread; returns at once."""
        self._ended = True
        for flag in self._idle.copy():
            flag.set()
        self._wake_executor()

    def left_to_parent(self) -> None:
        """Hand nothing out in a forked process: its handler may return, and the parent goes on with the messages."""
        self._ended = self._left = True
        self._lock = InterruptibleLock()  # another thread may have held it

    def take(self, most: int, deadline: Deadline) -> Sequence[Work]:
        """Return work to begin now, at most so many; nothing at the deadline, or when the run ends."""
        while not self._ended:
            seconds = LOOK
            if self._lease.valid and not (seconds := 0.0 if self._pace is None else self._pace.missing()):
                with self._lock:
                    works = self._taken(most)
                    if works or deadline.expired:
                        return works
                    flag = WakeFlag()
                    self._idle.append(flag)
                    due = self.waiting.next_due()
                seconds = LOOK if due is None else max(0.0, min(due - monotonic(), LOOK))
                woken = flag.wait(deadline.bounded(seconds))
                self._called.discard(flag)
                if not woken:
                    self._give_up_waiting(flag)
            elif deadline.expired:
                break
            else:
                WakeFlag().wait(deadline.bounded(min(seconds, LOOK)))
        return ()

    def _give_up_waiting(self, flag: WakeFlag) -> None:
        with self._lock:
            if flag in self._idle:
                self._idle.remove(flag)
                return
        self._called.discard(flag)
        self._wake(1)  # it was chosen for a message at the same moment: another one takes that

    def _taken(self, most: int) -> list[ReadWork]:
        """Return what may begin, counted as in hand. The caller holds the lock."""
        pace = self._pace
        if pace is not None:
            granted = 0
            while granted < most and pace.take():
                granted += 1
            most = granted
        now = monotonic()
        works = self.waiting.take(most, now)
        if pace is not None and len(works) < most:
            pace.spend(len(works) - most)  # what was not used
        for lost in self.waiting.lost():
            self._forget(lost)
        if self.reader_waits and self.waiting.startable < self.enough // 2:
            self.reader_waits = False
            self.reader_flag.set()
        if works:
            self.in_hand += len(works)
            self.active_at = now
            for part, count in Counter(map(_PART_OF, works)).items():
                partition = part.partition
                if not partition.in_hand:
                    # before the worker looks whether the partition is revoked, see ownership.partition_position
                    partition.position.held_until = HELD
                partition.in_hand += count
                if partition.slots is not None:
                    partition.slots.hand.update((work, None) for work in works if work.part is part)
        return works

    @property
    def lease_until(self) -> float:
        """Until when handlers may begin (monotonic seconds)."""
        return self._lease.until

    def may_start(self, work: Work) -> bool:
        """Return whether the handler may begin now: the session's lease is good, the partition and slot are ours."""
        assert type(work) is ReadWork
        partition = work.part.partition
        # Before the partition: a worker held up between the two would go on with the lease of the next session.
        until = self._lease.until
        if partition.position.halted or monotonic() >= until or self._ended or partition.stopped:
            return False
        return partition.slots is None or partition.may_begin(work.slot)

    def answer(self, work: Work, outcome: Outcome) -> None:
        """Take the outcome that the application tells elsewhere; see ``message.ack()``."""
        assert type(work) is ReadWork
        with self._lock:
            if not work.open or work.answer is not None:
                return
            work.answer = outcome
            if not work.pending:
                return  # its handler has not returned yet
        self.settle([(work, outcome)])
        self.look()

    def look(self) -> None:
        """Have a worker look for messages: the calling thread, which settled some, takes none. Any thread."""
        self._wake(1)
        self._wake_executor()

    def took(self, messages: int, seconds: float) -> None:
        """Note how long the handlers of some messages took together. Any thread; returns at once."""
        self.sizes.times.add(seconds / messages, messages)

    def settle(self, outcomes: Sequence[tuple[Work, Outcome]]) -> None:
        """Note outcomes, several at once. Any thread."""
        if self._left:
            return
        done: list[ReadWork] = []
        others: list[tuple[ReadWork, Outcome]] = []
        with self._lock:
            for work, outcome in outcomes:
                assert type(work) is ReadWork
                if outcome is DONE and work.open:
                    work.open = False
                    done.append(work)
                else:
                    self._sort(work, outcome, done, others)
            self.handled += len(done)
            if not self._lease.valid:
                self.zombies += sum(outcome is not NOT_STARTED for _, outcome in outcomes)
        # first: a revocation that sees nothing in hand commits what is finished by then
        self._finish(done)
        again = []
        for work, outcome in others:
            attempt = self.failures.next_attempt(work, outcome)
            if attempt is not work:
                done.append(work)
                if attempt is not None:
                    again.append(attempt)
        if done:
            self._close(done, again)

    @staticmethod
    def _sort(work: ReadWork, outcome: Outcome, done: list[ReadWork], others: list[tuple[ReadWork, Outcome]]) -> None:
        """Sort an outcome that is not simply done. The caller holds the lock."""
        if not work.open:
            return
        outcome = answered(outcome, work.answer)
        if isinstance(outcome, Pending):
            work.pending = True
            return
        work.open = False
        if outcome is DONE:
            done.append(work)
        else:
            others.append((work, outcome))

    @staticmethod
    def _finish(done: Sequence[ReadWork]) -> None:
        offsets: dict[ReadPart, list[int]] = {}
        for work in done:
            part = work.part
            if part in offsets:
                offsets[part].append(work.offset)
            else:
                offsets[part] = [work.offset]
        for part, finished in offsets.items():
            partition = part.partition
            partition.ledger.finish(finished)
            partition.outcomes.succeeded(len(finished))
            if partition.failing:
                for offset in finished:
                    partition.failing.pop(offset, None)

    def _close(self, works: Sequence[ReadWork], again: Sequence[ReadWork]) -> None:
        """Count works as in hand no more; ``again`` come again in place of some of them."""
        counts = Counter(map(_PART_OF, works))
        partitions = list(dict.fromkeys(part.partition for part in counts))  # a set of objects has no order of its own
        pointers = [work for work in works if work.pointer]
        with self._lock:
            again = self.failures.parking.not_parked(again)
            for work in again:
                self._put_back(work)
            self.waiting.returned(works)
            self.in_hand -= len(works)
            for part, count in counts.items():
                part.partition.in_hand -= count
                part.passed(count - sum(work.part is part for work in again))
            for partition in partitions:
                if not partition.in_hand:
                    partition.position.held_until = NOTHING_HELD
                if partition.slots is not None:
                    for work in works:
                        partition.slots.hand.pop(work, None)
                if pointers:
                    self.failures.parking.refresh(partition)
            startable = self.waiting.startable
            self.active_at = monotonic()
        for work in pointers:
            if not any(one.part is work.part for one in again):  # it does not come again by itself
                self.pointer_works.settled(work)
        for partition in partitions:
            self._tell_of(partition)
        if startable and self._idle:
            self._wake(self.sizes.workers(startable) - 1)  # the caller takes some itself

    def _put_back(self, work: ReadWork) -> None:
        partition, slots = work.part.partition, work.part.partition.slots
        leaves = slots is not None and slots.leaving >> work.slot & 1
        if partition.position.revoked or leaves:  # whoever gets its slot handles it again
            if slots is not None:
                slots.note_gap(work)
            self._forget(work)
        else:
            self.waiting.put_back(work)

    def _tell_of(self, partition: OpenPartition) -> None:
        """Tell those who wait for messages to leave a hand."""
        if not partition.in_hand and partition.position.revoked:
            partition.stream.queue.wake_revocation()
        if partition.slots is not None:
            self._tell_leavers(partition.slots)
        reading = partition.reading
        if reading.wants_room and partition.ledger.unfinished <= reading.room_at:
            self.reader_flag.set()

    def _wake(self, workers: int) -> None:
        """Have so many workers look. Those on their way count: otherwise all wake up, and most find nothing."""
        flags: list[WakeFlag] = []
        with self._lock:
            while self._idle and len(self._called) < workers:
                flags.append(self._idle.pop())  # the last one: few threads do the work of quick handlers
                self._called.add(flags[-1])
        for flag in flags:
            flag.set()

    # ---- messages that are not done

    def _buried(self, work: ReadWork) -> None:
        """Note that a dead letter that waited was delivered, or that its partition has left. Any thread."""
        work.partition.failing.pop(work.offset, None)
        self._close([work], [])
        self.look()

    def abort(self, error: BaseException) -> None:
        """End the run with this error. Any thread."""
        self._failed(error)
        self.end()

    # ---- the reader

    def has_enough(self) -> bool:
        """Return whether there is enough to begin; if so, the reader is woken when that changes."""
        if self.waiting.startable < self.enough:
            return False
        self.reader_waits = True
        return self.waiting.startable >= self.enough  # it may have changed before the note

    def push(self, partition: OpenPartition, works: Sequence[ReadWork]) -> None:
        """Add messages that were read, in order."""
        chunk, slots = works[0].part.chunk, partition.slots
        with self._lock:
            if slots is not None and slots.hand:
                # a slot came back while a message of it was in hand: its outcome is still to come
                in_hand = {work.offset for work in slots.hand if not work.pointer}
                works = [work for work in works if work.offset not in in_hand]
            works = self.failures.parking.behind_parked(partition, works)
            if chunk is not None:
                chunk.unfinished += len(works)
            self.waiting.add(partition, works)
            startable = self.waiting.startable
        if self._idle:
            self._wake(self.sizes.workers(startable))
        self._wake_executor()

    def chunk_read(self, partition: OpenPartition, chunk: Chunk) -> None:
        """Note that a chunk was read to its end, so that its messages alone keep it."""
        with self._lock:
            chunk.unfinished -= 1
            if not chunk.unfinished:
                partition.chunk_finished(chunk)

    def open(self, partition: OpenPartition) -> None:
        """Take messages of this stay from now on."""
        with self._lock:
            for other in self._partitions.values():
                if other.position.tp == partition.position.tp and other.slots is not None:
                    self.waiting.hold(other.slots.hand)
            self._partitions[partition.ledger] = partition

    def add_pointer_work(self, work: Work) -> bool:
        """Add the record of a pointer, ``work.message``, which goes before later messages of its key. Any thread.

        Returns False if the stay has ended, if the key is on loan, if an earlier message of the key is parked, or if
        the log is not read so far yet. The caller adds the message later then.
        """
        record = work.message
        # without a key no order holds it back, and whoever has its slot does not handle what is parked
        by_key = self.rules.order is Order.KEY and record.key is not None
        slot = slot_of_key(record.key) if by_key else NO_SLOT
        with self._lock:
            partition = self._partitions.get(work.ledger)
            if partition is None or partition.position.revoked:
                return False
            if partition.slots is not None and partition.slots.leaving >> slot & 1:
                return False
            if by_key and not work.ledger.comes_first(work.offset, key_mark(record.key)):
                return False  # a message that was parked while this one was read from the log comes first
            if by_key and work.offset >= partition.reading.at and not partition.full_because:
                return False  # an earlier message of the key may come yet, unless there is no room to park that as well
            made = ReadWork(record, work.offset, record.key, ReadPart(partition, None, 0))
            made.attempts, made.first_ms, made.failure, made.pointer = work.attempts, work.first_ms, work.failure, True
            made.slot = slot
            self.waiting.put_back(made)
        self.look()
        return True

    def return_pointer_works(self, partition: OpenPartition) -> None:
        """Forget the messages of pointers of a partition that have not begun; each is told as settled. Any thread."""
        with self._lock:
            for work in self.waiting.remove_all(partition, attrgetter("pointer")):
                self._forget(work)

    def refresh_parked(self, partition: OpenPartition) -> None:
        """Look at the pointers of a partition again: somebody may have dropped or replayed some. Any thread."""
        with self._lock:
            self.failures.parking.refresh(partition)
            startable = self.waiting.startable
        if startable and self._idle:
            self._wake(self.sizes.workers(startable))

    def give_up(self, partition: OpenPartition, slots: int, empty: Callable[[], None]) -> list[int]:
        """Begin no more messages of these slots, and forget those that wait. Any thread.

        Returns the offsets of the forgotten ones, which stay unfinished. ``empty`` is called once when no message of
        the slots is in hand, perhaps before this returns.
        """
        shared = partition.shared
        with self._lock:
            shared.leave(slots, empty)
            dropped = self.waiting.remove_all(partition, lambda work: slots >> work.slot & 1)
            for work in dropped:
                shared.note_gap(work)
                self._forget(work)
        self._tell_leavers(shared)
        return [work.offset for work in dropped]

    def take_on(self, partition: OpenPartition, slots: int) -> None:
        """Begin messages of these slots, which come back."""
        with self._lock:
            partition.shared.take_on(slots)

    def reopen(self, partition: OpenPartition, slots: int) -> tuple[int, set[int]]:
        """Begin messages of these slots again, which stay after all. Any thread.

        A slot stays closed while a message of it is forgotten and a later message of the same key is in hand. Otherwise
        the later message could begin first. Returns the slots that are open now, and the offsets of their messages in
        hand.
        """
        with self._lock:
            return partition.shared.reopen(slots)

    def _tell_leavers(self, slots: SharedSlots) -> None:
        with self._lock:
            empty = slots.empty()
        for tell in empty:
            tell()

    def _forget(self, work: ReadWork) -> None:
        """Forget a message that waits. The caller holds the lock."""
        work.open = False
        work.part.passed(1)
        work.partition.failing.pop(work.offset, None)
        if work.pointer:
            self.pointer_works.settled(work)

    def resume(self, partition: OpenPartition) -> None:
        """Let messages of a partition begin again that was paused or stopped."""
        with self._lock:
            self.waiting.resume(partition)
            startable = self.waiting.startable
        self._wake(self.sizes.workers(startable))
        self._wake_executor()

    def drop(self, partition: OpenPartition) -> None:
        """Forget what has not begun of a stay that has ended."""
        with self._lock:
            if partition.slots is not None:  # a borrower may become the owner without a new session
                self.waiting.hold(partition.slots.hand)
            for work in self.waiting.drop(partition):
                self._forget(work)
            partition.held_chunks.clear()
            self._partitions.pop(partition.ledger, None)
