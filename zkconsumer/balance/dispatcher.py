"""Hands messages to executors, and decides what becomes of them by their outcomes.

The messages wait in a :class:`~zkconsumer.balance.message_intake.MessageIntake`. Executors take them here and settle
them. Outcomes go to the ledger of the stay at a partition that the message belongs to. So a late outcome of an earlier
stay touches nothing of the present one.

Threads: all workers. The lock of the intake guards the lanes and the numbers of messages in hand. Nothing waits under
it, and no function of the application is called under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from zkconsumer.balance.dead_letters import DeadLetters
from zkconsumer.balance.dispatched_work import ReadPart, ReadWork, Work
from zkconsumer.balance.failed_messages import FailedMessages, RunRules
from zkconsumer.balance.idle_workers import BatchSize
from zkconsumer.balance.message_intake import MessageIntake
from zkconsumer.balance.open_partition import HELD, OpenPartition
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, Outcome, Pending, answered
from zkconsumer.ownership.partition_position import NOTHING_HELD
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import WakeFlag
from zkconsumer.streams.rate_limit import HandOutGate, RateLimitedLease

LOOK = 0.1
"""Seconds after which a waiting worker looks whether the lease has come back."""


class Dispatcher:
    """The messages of one run: a :class:`~zkconsumer.balance.dispatched_work.WorkSource`.

    Arguments: ``gate`` says whether a handler may begin (the lease, perhaps with a rate limit); ``rules`` of the run;
    ``failed`` gets what ends the run; ``dead_letters`` takes what is given up (None: pointers); ``wake_executor`` is
    called when there may be work to take; ``sizes`` says how many messages a worker takes.

    * ``intake``: the messages that wait
    * ``in_hand``, ``handled``: numbers of messages that workers have, and that were done
    * ``zombies``: handlers that ended when the session's lease was no longer valid
    * ``active_at``: when a message was last handed out or settled (monotonic seconds)
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
        self.intake = intake = MessageIntake(rules.order, wake_executor, sizes or BatchSize())
        self.failures = FailedMessages(rules, intake.parking, intake.lock, dead_letters, self.abort, self._buried)
        self._waiting = intake.waiting
        self._workers = intake.workers
        self._lock = intake.lock
        self._failed = failed
        self._ended = False
        self._left = False
        self.in_hand = self.handled = self.zombies = 0
        self.active_at = monotonic()

    @property
    def busy(self) -> bool:
        """Whether a message is in hand, or may begin now."""
        due = self._waiting.next_due()
        return bool(self.in_hand or self._waiting.startable or (due is not None and due <= monotonic()))

    # ---- executors

    @property
    def ended(self) -> bool:
        """Whether nothing is to be taken any more."""
        return self._ended

    def end(self) -> None:
        """Hand nothing out any more. Any thread; returns at once."""
        self._ended = True
        self._workers.end()

    def left_to_parent(self) -> None:
        """Hand nothing out in a forked process: its handler may return, and the parent goes on with the messages."""
        self._ended = self._left = True

    def take(self, most: int, deadline: Deadline) -> Sequence[Work]:
        """Return work to begin now, at most so many; nothing at the deadline, or when the run ends."""
        while not self._ended:
            seconds = LOOK
            if self._lease.valid and not (seconds := 0.0 if self._pace is None else self._pace.missing()):
                with self._lock:
                    works = self._taken(most)
                    if works or deadline.expired:
                        return works
                    flag = self._workers.enter()
                    due = self._waiting.next_due()
                seconds = LOOK if due is None else max(0.0, min(due - monotonic(), LOOK))
                self._workers.wait(flag, deadline.bounded(seconds))
            elif deadline.expired:
                break
            else:
                WakeFlag().wait(deadline.bounded(min(seconds, LOOK)))
        return ()

    def _taken(self, most: int) -> list[ReadWork]:
        """Return what may begin, counted as in hand. The caller holds the lock."""
        pace = self._pace
        if pace is not None:
            granted = 0
            while granted < most and pace.take():
                granted += 1
            most = granted
        now = monotonic()
        works = self._waiting.take(most, now)
        if pace is not None and len(works) < most:
            pace.spend(len(works) - most)  # what was not used
        self.intake.pause.taken()
        if works:
            self.in_hand += len(works)
            self.active_at = now
            counts: dict[ReadPart, int] = {}
            for work in works:
                counts[work.part] = counts.get(work.part, 0) + 1
            for part, count in counts.items():
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
        if self._left:
            return  # another thread of the parent may have held the lock
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
        self._workers.look()

    def took(self, messages: int, seconds: float) -> None:
        """Note how long the handlers of some messages took together. Any thread; returns at once."""
        self._workers.sizes.times.add(seconds / messages, messages)

    def settle(self, outcomes: Sequence[tuple[Work, Outcome]]) -> None:
        """Note outcomes, several at once. Any thread."""
        if self._left:
            return
        done: dict[ReadPart, list[ReadWork]] = {}
        others: list[tuple[ReadWork, Outcome]] = []
        with self._lock:
            handled = 0
            for work, outcome in outcomes:
                assert type(work) is ReadWork
                if (outcome is DONE and work.open) or _is_done(work, outcome, others):
                    work.open = False
                    handled += 1
                    if (works := done.get(work.part)) is None:
                        works = done[work.part] = []
                    works.append(work)
            self.handled += handled
            if not self._lease.valid:
                self.zombies += sum(outcome is not NOT_STARTED for _, outcome in outcomes)
            # first: a revocation that sees nothing in hand commits what is finished by then
            _finish(done)
            startable = self._closed(done) if done and not others else 0
        if not others:
            if done:
                self._tell(done, startable)
            return
        again = []
        for work, outcome in others:
            attempt = self.failures.next_attempt(work, outcome)
            if attempt is not work:
                done.setdefault(work.part, []).append(work)
                if attempt is not None:
                    again.append(attempt)
        if done:
            self._close(done, again)

    def _close(self, parts: Mapping[ReadPart, Sequence[ReadWork]], again: Sequence[ReadWork]) -> None:
        """Count works as in hand no more; ``again`` come again in place of some of them."""
        with self._lock:
            again = self.intake.parking.not_parked(again)
            for work in again:
                self._put_back(work)
            startable = self._closed(parts, again)
        self._tell(parts, startable, again)

    def _closed(self, parts: Mapping[ReadPart, Sequence[ReadWork]], again: Sequence[ReadWork] = ()) -> int:
        """Count works as in hand no more. Return how many messages may begin now. The caller holds the lock."""
        for part, works in parts.items():
            partition, count = part.partition, len(works)
            self._waiting.returned(works)
            self.in_hand -= count
            partition.in_hand -= count
            part.passed(count - sum([work.part is part for work in again]) if again else count)
            if not partition.in_hand:
                partition.position.held_until = NOTHING_HELD
            if partition.slots is not None:
                for work in works:
                    partition.slots.hand.pop(work, None)
        for part, works in parts.items():
            if part.chunk is None and any(work.pointer for work in works):
                self.intake.parking.refresh(part.partition)
        self.active_at = monotonic()
        return self._waiting.startable

    def _tell(
        self, parts: Mapping[ReadPart, Sequence[ReadWork]], startable: int, again: Sequence[ReadWork] = ()
    ) -> None:
        """Tell those who wait for works to leave a hand, and for work to begin."""
        for part, works in parts.items():
            for work in works:
                if work.pointer and not any(one.part is part for one in again):  # it does not come again by itself
                    work.pointer.settled(work)
        told = None
        for part in parts:
            if part.partition is not told:  # parts of one partition mostly follow each other
                told = part.partition
                self._tell_of(told)
        if startable > 1:  # the caller takes some itself
            self._workers.wake_for(startable, besides=1)

    def _put_back(self, work: ReadWork) -> None:
        partition, slots = work.part.partition, work.part.partition.slots
        leaves = slots is not None and slots.leaving >> work.slot & 1
        if partition.position.revoked or leaves:  # whoever gets its slot handles it again
            if slots is not None:
                slots.note_gap(work)
            work.forget()
        else:
            self._waiting.put_back(work)

    def _tell_of(self, partition: OpenPartition) -> None:
        """Tell those who wait for messages to leave a hand."""
        if not partition.in_hand and partition.position.revoked:
            partition.stream.queue.wake_revocation()
        if partition.slots is not None:
            self.intake.tell_leavers(partition.slots)
        reading = partition.reading
        if reading.wants_room and partition.ledger.unfinished <= reading.room_at:
            self.intake.pause.flag.set()

    # ---- messages that are not done

    def _buried(self, work: ReadWork) -> None:
        """Note that a dead letter that waited was delivered, or that its partition has left. Any thread."""
        work.partition.failing.pop(work.offset, None)
        self._close({work.part: [work]}, [])
        self.look()

    def abort(self, error: BaseException) -> None:
        """End the run with this error. Any thread."""
        self._failed(error)
        self.end()


def _is_done(work: ReadWork, outcome: Outcome, others: list[tuple[ReadWork, Outcome]]) -> bool:
    """Return whether the message is done by an answer; add what is neither done nor pending to ``others``.

    The caller holds the lock.
    """
    if not work.open:
        return False
    outcome = answered(outcome, work.answer)
    if isinstance(outcome, Pending):
        work.pending = True
        return False
    if outcome is DONE:
        return True
    work.open = False
    others.append((work, outcome))
    return False


def _finish(done: Mapping[ReadPart, Sequence[ReadWork]]) -> None:
    """Count messages as finished."""
    for part, works in done.items():
        partition = part.partition
        finished = [work.offset for work in works]
        partition.ledger.finish(finished)
        partition.outcomes.succeeded(len(finished))
        if partition.failing:
            for offset in finished:
                partition.failing.pop(offset, None)
