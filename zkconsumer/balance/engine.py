"""Hands messages to executors, and decides what becomes of them by their outcomes.

The reader gives it messages, executors take them and settle them. Outcomes go to the ledger of the stay at a partition
that the message belongs to. So a late outcome of an earlier stay touches nothing of the present one.

Threads: the reader and all workers. The lock guards the lanes and the counts of what is in hand. Nothing waits under
it, and no function of the application is called under it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import random
from threading import Lock
from time import monotonic, time

from zkconsumer.balance.batch_size import BatchSize
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.lanes import Lanes, Order
from zkconsumer.balance.open_partition import HELD, Failing, OpenPartition
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, Failed, NotStarted, Outcome, Pending
from zkconsumer.balance.retry import Decision, Kind, Retry, decide
from zkconsumer.balance.work import Work
from zkconsumer.core.finished_note import Attempts
from zkconsumer.core.message_ledger import MessageLedger
from zkconsumer.core.message_pointers import Fate, Pointer, key_mark
from zkconsumer.core.partition_position import NOTHING_HELD
from zkconsumer.deadline import Deadline
from zkconsumer.interruptible_wait import WakeFlag
from zkconsumer.streams.rate_limit import HandOutGate, RateLimitedLease
from zkconsumer.streams.stream_queue import Chunk

MOST_POINTER_WORKS = 1000
"""Messages of pointers that may wait or be in hand."""
REFUSED = 5.0
"""Seconds that a message waits for its slot to go back to the owner, before it is tried again here."""
LOOK = 0.1
"""Seconds after which a waiting worker looks whether the lease has come back."""
NO_ROOM = "no more messages can be parked: {} are"

Bury = Callable[[Work, Decision], bool]
"""Makes a dead letter of a message. Returns whether it is finished by that; otherwise it stays a pointer of ours."""


@dataclass(frozen=True, slots=True)
class EngineRules:
    """How a run treats messages: their ``order``, the ``retry`` policy, the ``failure_limit`` of each partition (None:
    none), and whether pointers can be kept (``parks``).
    """

    order: Order = Order.KEY
    retry: Retry = field(default_factory=Retry)
    failure_limit: FailureLimit | None = None
    parks: bool = True


class Engine:
    """The messages of one run: a :class:`~zkconsumer.balance.work.WorkSource`.

    Arguments: ``gate`` says whether a handler may begin (the lease, perhaps with a rate limit); ``rules`` of the run;
    ``wake_reader`` is called when there is room again; ``failed`` gets what ends the run; ``bury`` is told of dead
    letters (None: they become pointers).
    """

    def __init__(
        self,
        gate: HandOutGate,
        rules: EngineRules,
        *,
        wake_reader: Callable[[], None] = lambda: None,
        failed: Callable[[BaseException], None] = lambda _: None,
        bury: Bury | None = None,
    ) -> None:
        self._pace = gate if isinstance(gate, RateLimitedLease) else None
        self._lease = gate.lease if isinstance(gate, RateLimitedLease) else gate
        self.rules = rules
        self.lanes = Lanes(rules.order)
        self.wake_reader = wake_reader
        self.wake_executor: Callable[[], None] = lambda: None
        self._failed = failed
        self._bury = bury
        self._lock = Lock()
        self._waiting: deque[WakeFlag] = deque()
        self.sizes = BatchSize()
        self._homes: dict[MessageLedger, OpenPartition] = {}
        self._pointer_works = 0
        self.pointer_settled: Callable[[Work], None] = lambda _: None
        """Told of each message of a pointer that has an outcome or was dropped; it returns at once, under the lock."""
        self._ended = False
        self.in_hand = 0
        self.late = 0
        """Outcomes that came after the end of their stay."""
        self.active_at = monotonic()
        """When a message was last handed out or settled (monotonic seconds)."""

    # ---- executors

    @property
    def ended(self) -> bool:
        """Whether nothing is to be taken any more."""
        return self._ended

    def end(self) -> None:
        """Hand nothing out any more. Any thread; returns at once."""
        self._ended = True
        self._wake(len(self._waiting))
        self.wake_executor()

    def take(self, most: int, deadline: Deadline) -> Sequence[Work]:
        """Return work to begin now, at most so many; nothing at the deadline, or when the run ends."""
        while not self._ended:
            seconds = LOOK
            if self._lease.valid and not (seconds := self._missing()):
                with self._lock:
                    works = self._taken(most)
                    if works or deadline.expired:
                        return works
                    flag = WakeFlag()
                    self._waiting.append(flag)
                    due = self.lanes.next_due()
                seconds = LOOK if due is None else max(0.0, min(due - monotonic(), LOOK))
                woken = flag.wait(deadline.bounded(seconds))
                if not woken:
                    self._give_up_waiting(flag)
            elif deadline.expired:
                break
            else:
                WakeFlag().wait(deadline.bounded(min(seconds, LOOK)))
        return ()

    def _missing(self) -> float:
        return 0.0 if self._pace is None else self._pace.missing()

    def _give_up_waiting(self, flag: WakeFlag) -> None:
        with self._lock:
            if flag in self._waiting:
                self._waiting.remove(flag)
                return
        self._wake(1)  # it was chosen for a message at the same moment: another one takes that

    def _taken(self, most: int) -> list[Work]:
        """Return what may begin, counted as in hand. The caller holds the lock."""
        pace = self._pace
        if pace is not None:
            granted = 0
            while granted < most and pace.take():
                granted += 1
            most = granted
        now = monotonic()
        works = self.lanes.take(most, now)
        if pace is not None and len(works) < most:
            pace.spend(len(works) - most)  # what was not used
        if works:
            self.in_hand += len(works)
            self.active_at = now
            for work in works:
                home = work.home
                if not home.in_hand:
                    # before the worker looks whether the partition is revoked, see core.partition_position
                    home.position.held_until = HELD
                home.in_hand += 1
                if home.shared:
                    home.hand.add(work)
        return works

    def may_start(self, work: Work) -> bool:
        """Return whether the handler may begin now: the session's lease is good, the partition and slot are ours."""
        home = work.home
        if home.position.halted or monotonic() >= self._lease.until or self._ended or home.stopped:
            return False
        return not home.shared or (not home.leaving >> work.slot & 1 and home.may_start(work))

    def answer(self, work: Work, outcome: Outcome) -> None:
        """Take the outcome that the application tells elsewhere; see ``message.ack()``."""
        with self._lock:
            if not work.open or work.answer is not None:
                return
            work.answer = outcome
            if not work.pending:
                return  # its handler has not returned yet
        self.settle([(work, outcome)])

    def settle(self, outcomes: Sequence[tuple[Work, Outcome]]) -> None:
        """Note outcomes, several at once. Any thread."""
        done: dict[OpenPartition, list[int]] = {}
        with self._lock:
            closed, others = self._sorted(outcomes, done)
        # first: a revocation that sees nothing in hand commits what is finished by then
        for home, offsets in done.items():
            home.ledger.finish(offsets)
            if home.failing:
                for offset in offsets:
                    home.failing.pop(offset, None)
        again = []
        for work, outcome in others:
            replacement = self._replacement(work, outcome)
            if replacement is not work:
                closed.append(work)
                if replacement is not None:
                    work.chunk = None  # it goes on with the replacement
                    again.append(replacement)
        if closed:
            self._close(closed, again)

    @staticmethod
    def _sorted(
        outcomes: Sequence[tuple[Work, Outcome]], done: dict[OpenPartition, list[int]]
    ) -> tuple[list[Work], list[tuple[Work, Outcome]]]:
        """Return what is done (its offsets go to ``done``), and what else has an outcome. The caller locks."""
        closed: list[Work] = []
        others: list[tuple[Work, Outcome]] = []
        for work, outcome in outcomes:
            if not work.open:
                continue
            if work.answer is not None and outcome is not NOT_STARTED:
                outcome = work.answer
            if isinstance(outcome, Pending):
                work.pending = True
                continue
            work.open = False
            if outcome is DONE:
                closed.append(work)
                offsets = done.get(work.home)
                if offsets is None:
                    done[work.home] = [work.offset]
                else:
                    offsets.append(work.offset)
            else:
                others.append((work, outcome))
        for home, offsets in done.items():
            home.outcomes.succeeded(len(offsets))
        return closed, others

    def _close(self, works: Sequence[Work], again: Sequence[Work]) -> None:
        """Count works as in hand no more; ``again`` come again in place of some of them."""
        homes: set[OpenPartition] = set()
        with self._lock:
            for work in again:
                if work.home.leaving >> work.slot & 1:
                    self._forget(work)  # its slot goes: whoever gets it handles the message again
                elif not work.home.position.revoked:
                    self.lanes.put_back(work)
            self.in_hand -= len(works)
            for work in works:
                home = work.home
                homes.add(home)
                home.in_hand -= 1
                if work.lane is not None:
                    self.lanes.returned(work)
                if home.shared:
                    home.hand.discard(work)
                if work.pointer:
                    self._pointer_ended(work)
                self._unread(work)
            for home in homes:
                if not home.in_hand:
                    home.position.held_until = NOTHING_HELD
            startable = self.lanes.startable
            self.active_at = monotonic()
        for home in homes:
            if not home.in_hand and home.position.revoked:
                home.queue.let_go()
            if home.leavers:
                self._tell_leavers(home)
            if home.wants_room and home.ledger.unfinished <= home.room_at:
                self.wake_reader()
        if startable and self._waiting:
            self._wake(self.sizes.workers(startable))

    def _wake(self, workers: int) -> None:
        for _ in range(workers):
            try:
                flag = self._waiting.popleft()
            except IndexError:
                return
            flag.set()

    # ---- messages that are not done

    def _replacement(self, work: Work, outcome: Outcome) -> Work | None:
        """Return the work that comes again in place of this one, None if there is none; itself if it stays in hand."""
        home = work.home
        if isinstance(outcome, NotStarted):
            return _copy(work)
        if isinstance(outcome, Failed) and not outcome.worker_died and not isinstance(outcome.error, Exception):
            self.abort(outcome.error)
            return _copy(work)
        if home.position.revoked:
            self.late += 1
            return None
        if isinstance(outcome, Failed):
            home.outcomes.failed()
        try:
            decision = decide(
                self.rules.retry,
                outcome,
                work.attempts,
                work.first_ms,
                int(time() * 1000),
                may_park=self._may_park(home),
                random=random(),
                parked=work.pointer,
            )
        except Exception as e:  # noqa: BLE001 (the policy is the application's: it is told)
            self.abort(e)
            return _copy(work)
        if not home.own and (decision.kind is Kind.DEAD or decision.attempts >= self.rules.retry.park_after):
            home.refused |= 1 << work.slot  # only the owner parks messages and buries them
            return self._held(work, replace(decision, seconds=max(decision.seconds, REFUSED)))
        if decision.kind is Kind.DEAD:
            return self._dead(work, decision)
        if decision.kind is Kind.PARK and self._park(work, decision):
            return None
        return self._held(work, decision)

    def _may_park(self, home: OpenPartition) -> bool:
        return self.rules.parks and home.own and self.rules.order is not Order.PARTITION

    def _held(self, work: Work, decision: Decision) -> Work:
        """Return the work of the next attempt at a message that holds the base."""
        home = work.home
        made = _copy(work)
        made.attempts, made.first_ms = decision.attempts, decision.first_ms
        made.not_before = monotonic() + decision.seconds
        if decision.attempts:
            home.ledger.failed(work.offset, Attempts(decision.attempts, decision.first_ms))
        home.failing[work.offset] = Failing(decision.attempts, made.not_before, decision.reason)
        return made

    def _park(self, work: Work, decision: Decision) -> bool:
        """Park a message, and what waits behind it. Returns whether there was room."""
        home, key = work.home, work.key
        ordered = self.rules.order is Order.KEY and key is not None
        mark = key_mark(key) if ordered and key is not None else ""
        pointer = Pointer(
            work.offset,
            Fate.PARKED,
            decision.attempts,
            decision.due_ms,
            decision.first_ms,
            mark,
            decision.reason,
        )
        with self._lock:
            behind = self.lanes.block(work.lane) if work.lane is not None and mark else []
            room = home.ledger.point_at([pointer, *(Pointer(one.offset, key=mark) for one in behind)])
            if not room:
                home.full_because = NO_ROOM.format(len(home.ledger.pointers))
                if work.lane is not None and mark not in home.parked:
                    work.lane.blocked = False
                return work.pointer
            if mark:
                home.parked[mark] = home.parked.get(mark, 0) + len(behind) + (not work.pointer)
                self.lanes.remove(work.lane, behind)
            for one in behind:
                one.open = False
                self._unread(one)
        home.failing.pop(work.offset, None)
        return True

    @staticmethod
    def _unread(work: Work) -> None:
        """Count a message as none of its chunk's any more. The caller holds the lock."""
        chunk = work.chunk
        if chunk is not None:
            chunk.unfinished -= 1
            if not chunk.unfinished:
                work.home.chunk_finished(chunk)
        work.message = None  # which refers to the work

    def _pointer_ended(self, work: Work) -> None:
        """Let the key of a parked message go on if that was the last one. The caller holds the lock."""
        home, key = work.home, work.key
        self._pointer_works -= 1
        self.pointer_settled(work)
        if key is None or self.rules.order is not Order.KEY or work.offset in home.ledger.pointers:
            return
        mark = key_mark(key)
        left = home.parked.get(mark, 1) - 1
        if left > 0:
            home.parked[mark] = left
            return
        home.parked.pop(mark, None)
        home.full_because = ""
        self.lanes.unblock(home.position.tp, key)

    def _dead(self, work: Work, decision: Decision) -> Work | None:
        """Make a dead letter of a message. Returns as :meth:`_replacement`."""
        home = work.home
        if self._bury is not None:
            self._bury(work, decision)
            return work
        if not self.rules.parks:
            return self._stopped(work, decision, f"{decision.reason}; no dead letter can be kept: give dead_letter")
        mark = key_mark(work.key) if work.key is not None and self.rules.order is Order.KEY else ""
        pointer = Pointer(work.offset, Fate.DEAD, decision.attempts, 0, decision.first_ms, mark, decision.reason)
        if home.ledger.point_at([pointer]):
            home.failing.pop(work.offset, None)
            return None
        return self._stopped(work, decision, "no more dead letters can be kept: see `zkconsumer dead`")

    def _stopped(self, work: Work, decision: Decision, why: str) -> Work:
        """Stop the partition at this message, which stays unfinished."""
        work.home.stopped = f"{work.home.position.tp} stopped at {work.offset}: {why}"
        return self._held(work, decision)

    def buried(self, work: Work, decision: Decision, error: BaseException | None) -> None:
        """Note that a dead letter was delivered, or failed to be. Any thread."""
        again = []
        if error is None:
            work.home.ledger.finish([work.offset])
            work.home.failing.pop(work.offset, None)
        else:
            again.append(self._stopped(work, decision, f"its dead letter could not be delivered: {error!r:.200}"))
            work.chunk = None
        self._close([work], again)

    def abort(self, error: BaseException) -> None:
        """End the run with this error. Any thread."""
        self._failed(error)
        self.end()

    # ---- the reader

    def push(self, home: OpenPartition, works: Sequence[Work]) -> None:
        """Add messages that were read, in order."""
        chunk = works[0].chunk
        with self._lock:
            if chunk is not None:
                chunk.unfinished += len(works)
            self.lanes.add(home, works)
            startable = self.lanes.startable
        if self._waiting:
            self._wake(self.sizes.workers(startable))
        self.wake_executor()

    def chunk_read(self, home: OpenPartition, chunk: Chunk) -> None:
        """Note that a chunk was read to its end, so that its messages alone keep it."""
        with self._lock:
            chunk.unfinished -= 1
            if not chunk.unfinished:
                home.chunk_finished(chunk)

    def open(self, home: OpenPartition) -> None:
        """Take messages of this stay from now on."""
        with self._lock:
            self._homes[home.ledger] = home

    def pointer_room(self) -> int:
        """Return how many more messages of pointers may be added now. Any thread."""
        return 0 if self._ended else max(0, MOST_POINTER_WORKS - self._pointer_works)

    def add_pointer_work(self, work: Work) -> bool:
        """Take the message of a pointer, which goes before later ones of its key. Any thread.

        Returns False if it is not wanted any more; otherwise ``pointer_settled`` is called once when it has an outcome,
        or is dropped.
        """
        with self._lock:
            home = self._homes.get(work.ledger)
            if home is None or self._ended or home.position.revoked:
                return False
            record, position, value = work.message[0], work.message[1], work.message[2]
            work.home, work.key, work.pointer = home, record.key, True
            work.message = home.messages((record, position, value, work))
            self._pointer_works += 1
            self.lanes.put_back(work)
        self._wake(1)
        self.wake_executor()
        return True

    def give_up(self, home: OpenPartition, slots: int, empty: Callable[[], None]) -> list[int]:
        """Begin no more messages of these slots, and forget those that wait. Any thread.

        Returns the offsets of the forgotten ones, which stay unfinished. ``empty`` is called once when no message of
        the slots is in hand, perhaps before this returns.
        """
        with self._lock:
            home.leaving |= slots
            dropped = self.lanes.remove_slots(home, slots)
            for work in dropped:
                self._forget(work)
            home.leavers.append((slots, empty))
        self._tell_leavers(home)
        return [work.offset for work in dropped]

    def take_on(self, home: OpenPartition, slots: int) -> None:
        """Begin messages of these slots again."""
        with self._lock:
            home.leaving &= ~slots

    def _tell_leavers(self, home: OpenPartition) -> None:
        with self._lock:
            empty = [(slots, tell) for slots, tell in home.leavers if not any(slots >> w.slot & 1 for w in home.hand)]
            home.leavers = [leaver for leaver in home.leavers if leaver not in empty]
        for _, tell in empty:
            tell()

    def _forget(self, work: Work) -> None:
        """Forget a message that waits. The caller holds the lock."""
        work.open = False
        self._unread(work)
        if work.pointer:
            self._pointer_works -= 1
            self.pointer_settled(work)

    def resume(self, home: OpenPartition) -> None:
        """Let messages of a partition begin again that was paused or stopped."""
        with self._lock:
            self.lanes.resume(home)
            startable = self.lanes.startable
        self._wake(self.sizes.workers(startable))
        self.wake_executor()

    def drop(self, home: OpenPartition) -> None:
        """Forget what has not begun of a stay that has ended."""
        with self._lock:
            for work in self.lanes.drop(home):
                self._forget(work)
            home.held_chunks.clear()
            self._homes.pop(home.ledger, None)


def _copy(work: Work) -> Work:
    """Return the work of another attempt at the same message, which answers to the former attempt do not reach."""
    made = Work(None, work.offset, work.ledger, work.chunk, work.lane)
    message = work.message
    made.message = type(message)((message[0], message[1], message[2], made))
    made.key, made.home, made.serial = work.key, work.home, work.serial
    made.attempts, made.first_ms, made.pointer, made.slot = work.attempts, work.first_ms, work.pointer, work.slot
    return made
