"""What becomes of messages that are not done: they come again, are parked, or are dead letters.

Threads: those that settle outcomes. The lock is the engine's, which guards the lanes. No function of the application is
called under it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import random
from threading import Lock
from time import monotonic, time

from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.lanes import Lanes, Order
from zkconsumer.balance.open_partition import Failing, OpenPartition
from zkconsumer.balance.outcomes import Failed, NotStarted, Outcome
from zkconsumer.balance.read_work import ReadWork
from zkconsumer.balance.retry import Decision, Kind, Retry, decide, reason_of
from zkconsumer.core.finished_note import Attempts
from zkconsumer.core.message_pointers import Fate, Pointer, key_mark

TRY_AGAIN = 30.0
"""Seconds after which a partition that has stopped is tried again, by one round of its messages."""

REFUSED = 5.0
"""Seconds that a message waits for its slot to go back to the owner, before it is tried again here."""

Bury = Callable[[ReadWork, Decision], None]
"""Begins to make a dead letter of a message, and returns at once; ``Engine.buried`` is told the end."""


@dataclass(frozen=True, slots=True)
class EngineRules:
    """How a run treats messages: their ``order``, the ``retry`` policy, the ``failure_limit`` of each partition (None:
    none), and whether pointers can be kept (``parks``).
    """

    order: Order = Order.KEY
    retry: Retry = field(default_factory=Retry)
    failure_limit: FailureLimit | None = None
    parks: bool = True


class MessageFates:
    """Decides about messages that are not done. Arguments: as for the engine; ``abort`` ends the run with an error."""

    def __init__(
        self, rules: EngineRules, lanes: Lanes, lock: Lock, bury: Bury | None, abort: Callable[[BaseException], None]
    ) -> None:
        self._rules = rules
        self._lanes = lanes
        self._lock = lock
        self.bury = bury
        self._abort = abort
        self.parked: Callable[[], None] = lambda: None
        """Told when a message was parked, or its due time changed; it returns at once."""
        self.failed = 0
        """Attempts that failed."""
        self.late = 0
        """Outcomes that came after the end of their stay."""

    def replacement(self, work: ReadWork, outcome: Outcome) -> ReadWork | None:
        """Return the work that comes again in place of this one, None if none does; itself if it stays in hand."""
        home = work.home
        if isinstance(outcome, NotStarted):
            return work.again()
        if isinstance(outcome, Failed):
            if not outcome.worker_died and not isinstance(outcome.error, Exception):
                self._abort(_with_place(outcome.error, work))
                return work.again()
            self.failed += 1
        if home.position.revoked:
            self.late += 1
            return None
        if isinstance(outcome, Failed) and self._limit_reached(home, outcome):
            made = work.again()
            made.not_before = home.retry_at
            return made
        try:
            decision = self._decided(work, outcome)
        except Exception as e:  # noqa: BLE001 (the policy is the application's: it is told)
            self._abort(e)
            return work.again()
        if not home.own and (decision.kind is Kind.DEAD or decision.attempts >= self._rules.retry.park_after):
            home.refused |= 1 << work.slot  # only the owner parks messages and buries them
            return self._held(work, replace(decision, seconds=max(decision.seconds, REFUSED)))
        if decision.kind is Kind.DEAD:
            return self._dead(work, decision)
        if decision.kind is Kind.PARK and self._park(work, decision):
            return None
        return self._held(work, decision)

    def _decided(self, work: ReadWork, outcome: Outcome) -> Decision:
        home = work.home
        return decide(
            self._rules.retry,
            outcome,
            work.attempts,
            work.first_ms,
            int(time() * 1000),
            may_park=self._may_park(home),
            random=random(),
            parked=work.pointer,
        )

    def _may_park(self, home: OpenPartition) -> bool:
        kept = self._rules.parks and home.own and home.ledger.may_park
        return kept and self._rules.order is not Order.PARTITION

    def _limit_reached(self, home: OpenPartition, outcome: Failed) -> bool:
        """Count a failure; returns whether nearly everything fails, so that it counts for none of the messages."""
        home.outcomes.failed()
        limit = self._rules.failure_limit
        why = home.outcomes.reached(limit) if limit is not None else ""
        if not why:
            return False
        self._stop(home, f"{why}, the last with {reason_of(outcome.error)}; it is tried again every {TRY_AGAIN:.0f} s")
        return True

    @staticmethod
    def _stop(home: OpenPartition, why: str) -> None:
        if not home.stopped:
            home.retry_at = monotonic() + TRY_AGAIN
        home.stopped = why

    def _held(self, work: ReadWork, decision: Decision) -> ReadWork:
        """Return the work of the next attempt at a message that holds the base."""
        home = work.home
        made = work.again()
        made.attempts, made.first_ms = decision.attempts, decision.first_ms
        made.not_before = monotonic() + decision.seconds
        if decision.attempts and not work.pointer:
            home.ledger.failed(work.offset, Attempts(decision.attempts, decision.first_ms))
        home.failing[work.offset] = Failing(decision.attempts, made.not_before, decision.reason)
        return made

    # ---- parked messages

    def _mark(self, work: ReadWork) -> str:
        return key_mark(work.key) if work.key is not None and self._rules.order is Order.KEY else ""

    def _park(self, work: ReadWork, decision: Decision) -> bool:
        """Park a message, and what waits behind it. Returns whether there was room."""
        home, mark = work.home, self._mark(work)
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
            behind = self._lanes.waiting_behind(work) if mark else []
            if not home.ledger.point_at([pointer, *(Pointer(one.offset, key=mark) for one in behind)]):
                self._no_room(home)
                return False
            if mark:
                home.parked[mark] = home.parked.get(mark, 0) + len(behind) + (not work.pointer)
                self._lanes.block(work, behind)
            for one in behind:
                one.open = False
                one.part.passed(1)
        home.failing.pop(work.offset, None)
        self.parked()
        return True

    @staticmethod
    def _no_room(home: OpenPartition) -> None:
        home.full_because = f"{len(home.ledger.pointers)} messages are parked or dead letters, and no more can be"

    def behind_parked(self, home: OpenPartition, works: Sequence[ReadWork]) -> Sequence[ReadWork]:
        """Park those whose keys have parked messages. Returns the others. The caller holds the lock."""
        behind, others = [], []
        for work in works:
            mark = self._mark(work)
            if mark and mark in home.parked:
                behind.append((work, mark))
            else:
                others.append(work)
        if not behind:
            return works
        if not home.ledger.point_at([Pointer(work.offset, key=mark) for work, mark in behind]):
            self._no_room(home)
            for work, _ in behind:
                if work.key is not None:
                    self._lanes.block_key(home.position.tp, work.key)
            return works  # they wait in their lanes
        for work, mark in behind:
            home.parked[mark] += 1
            work.open = False
            work.part.passed(1)
        return others

    def pointer_ended(self, work: ReadWork) -> None:
        """Let the key of a parked message go on if that was the last one. The caller holds the lock."""
        home, mark = work.home, self._mark(work)
        home.failing.pop(work.offset, None)
        pointer = home.ledger.pointers.get(work.offset)
        if pointer is not None and pointer.fate is Fate.PARKED:
            return  # it comes again
        home.full_because = ""
        if not mark or work.key is None:
            return
        left = home.parked.get(mark, 1) - 1
        if left > 0:
            home.parked[mark] = left
            return
        home.parked.pop(mark, None)
        self._lanes.unblock(home.position.tp, work.key)

    # ---- dead letters

    def _dead(self, work: ReadWork, decision: Decision) -> ReadWork | None:
        """Make a dead letter of a message. Returns as :meth:`replacement`."""
        home = work.home
        if self.bury is not None:
            self.bury(work, decision)
            return work
        if not (self._rules.parks and home.ledger.may_park):
            return self.stopped(
                work, decision, f"{decision.reason}; this group keeps no dead letters: give dead_letter"
            )
        pointer = Pointer(
            work.offset, Fate.DEAD, decision.attempts, 0, decision.first_ms, self._mark(work), decision.reason
        )
        if not home.ledger.point_at([pointer]):
            return self.stopped(work, decision, "no more dead letters can be kept: see `zkconsumer dead`")
        home.failing.pop(work.offset, None)
        return None

    def stopped(self, work: ReadWork, decision: Decision, why: str) -> ReadWork:
        """Stop the partition at this message, which stays unfinished. Returns its next attempt."""
        self._stop(work.home, f"offset {work.offset}: {why}")
        made = self._held(work, decision)
        made.not_before = work.home.retry_at
        return made


def _with_place(error: BaseException, work: ReadWork) -> BaseException:
    position = work.home.position
    error.add_note(
        f"raised by the handler of {position.topic}-{position.partition} at offset {work.offset}; this message is not"
        " committed"
    )
    return error
