"""Carries out what ``retry_policy`` decides about failed messages: they come again, are parked, or become dead letters.

With ``order=key`` the later messages of a parked one's key are parked as well, so that none overtakes it.

Threads: those that settle outcomes. The lock is the dispatcher's, which guards the lanes. Its holder calls
:class:`Parking`. No function of the application is called under it, and nothing waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import random
from time import monotonic, time

from zkconsumer.balance.dead_letters import DeadLetters
from zkconsumer.balance.dispatched_work import ReadWork
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.message_order import Order, WaitingMessages
from zkconsumer.balance.open_partition import Failing, OpenPartition
from zkconsumer.balance.outcomes import Failed, NotStarted, Outcome
from zkconsumer.balance.retry_policy import Kind, Retry, RetryDecision, decide, failure_of
from zkconsumer.core.finished_note import Attempts
from zkconsumer.core.message_pointers import MOST_POINTERS, Pointer, PointerKind, key_mark
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

log = logging.getLogger(__name__)

TRY_AGAIN = 30.0
"""Seconds after which a partition that has stopped is tried again, by one round of its messages."""

REFUSED = 5.0
"""Seconds that a message waits for its slot to go back to the owner, before it is tried again here."""


@dataclass(frozen=True, slots=True)
class RunRules:
    """How a run treats messages: their ``order``, the ``retry`` policy, the ``failure_limit`` of each partition (None:
    none), and whether pointers can be kept (``parks``).
    """

    order: Order = Order.KEY
    retry: Retry = field(default_factory=Retry)
    failure_limit: FailureLimit | None = None
    parks: bool = True


class FailedMessages:
    """Parks, repeats or buries messages that are not done, as ``retry_policy`` decides.

    Arguments: as for the dispatcher; ``abort`` ends the run with an error; ``buried`` takes a work whose dead letter
    waited, once it was delivered or its partition has left.
    """

    def __init__(
        self,
        rules: RunRules,
        parking: Parking,
        lock: InterruptibleLock,
        dead_letters: DeadLetters | None,
        abort: Callable[[BaseException], None],
        buried: Callable[[ReadWork], None],
    ) -> None:
        self.rules = rules
        self._lock = lock
        self._abort = abort
        self._buried = buried
        self.parking = parking
        self.dead_letters = dead_letters or DeadLetters("", "", None, keeps_pointers=rules.parks)
        self.failed = 0
        """Attempts that failed."""
        self.late = 0
        """Outcomes that came after the end of their stay."""

    def next_attempt(self, work: ReadWork, outcome: Outcome) -> ReadWork | None:
        """Return the work that comes again in place of this one, None if none does; itself if it stays in hand."""
        partition = work.partition
        if isinstance(outcome, NotStarted):
            return work.again()
        if isinstance(outcome, Failed) and not outcome.worker_died and not isinstance(outcome.error, Exception):
            self._abort(_with_place(outcome.error, work))
            return work.again()
        failure = failure_of(outcome)
        if failure:
            with self._lock:
                self.failed += 1
        if partition.position.revoked:
            self.late += 1
            return None
        if failure and self._limit_reached(work, failure):
            made = work.again()
            made.not_before, made.failure = partition.outcomes.retry_at, failure
            return made
        try:
            decision = self._decided(work, outcome)
        except Exception as e:  # noqa: BLE001 (the policy is the application's: it is told)
            self._abort(e)
            return work.again()
        given_up = decision.kind is Kind.DEAD or decision.attempts >= self.rules.retry.park_after
        if given_up and not partition.own:
            partition.borrowed.refused |= 1 << work.slot  # only the owner parks messages and buries them
            return self._held(work, replace(decision, seconds=max(decision.seconds, REFUSED)))
        if decision.kind is Kind.DEAD:
            return self._dead(work, decision)
        if decision.kind is Kind.PARK and self._park(work, decision):
            return None
        return self._held(work, decision)

    def _decided(self, work: ReadWork, outcome: Outcome) -> RetryDecision:
        partition = work.partition
        return decide(
            self.rules.retry,
            outcome,
            work.attempts,
            work.first_ms,
            int(time() * 1000),
            may_park=self._may_park(partition),
            random=random(),
            parked=work.pointer is not None,
        )

    def _may_park(self, partition: OpenPartition) -> bool:
        kept = self.rules.parks and partition.own and partition.position.stored.may_park
        return kept and self.rules.order is not Order.PARTITION

    def _limit_reached(self, work: ReadWork, failure: str) -> bool:
        """Count a failure; returns whether nearly everything fails, so that it counts for none of the messages."""
        partition, limit = work.partition, self.rules.failure_limit
        partition.outcomes.failed()
        why = partition.outcomes.reached(limit) if limit is not None else ""
        if not why:
            return False
        if not partition.outcomes.retry_at:
            partition.outcomes.retry_at = monotonic() + TRY_AGAIN
        partition.stopped = f"{why}, the last with {failure}; it is tried again every {TRY_AGAIN:.0f} s"
        if partition.outcomes.tell():  # once, not at every try
            log.warning(
                "%s has stopped at offset %d: %s. Its limit is %s. No message is given up by that; mend the handler or"
                " what it calls, or give run another failure_limit",
                partition.position.tp,
                work.offset,
                partition.stopped,
                limit,
            )
        return True

    def _held(self, work: ReadWork, decision: RetryDecision) -> ReadWork:
        """Return the work of the next attempt at a message that holds the base."""
        partition = work.partition
        made = work.again()
        made.attempts, made.first_ms = decision.attempts, decision.first_ms
        made.failure = decision.reason or work.failure
        made.not_before = monotonic() + decision.seconds
        if decision.attempts and not work.pointer:
            partition.ledger.failed(work.offset, Attempts(decision.attempts, decision.first_ms))
        partition.failing[work.offset] = Failing(decision.attempts, made.not_before, decision.reason)
        return made

    def _park(self, work: ReadWork, decision: RetryDecision) -> bool:
        """Park a message, and what waits behind it. Returns whether there was room."""
        with self._lock:
            if self.parking.park(work, decision) is None:
                return False
        work.partition.failing.pop(work.offset, None)
        return True

    def _dead(self, work: ReadWork, decision: RetryDecision) -> ReadWork | None:
        """Make a dead letter of a message. Returns as :meth:`next_attempt`."""
        partition = work.partition
        # before: a dead letter may be delivered, and taken out there, at once
        partition.failing[work.offset] = Failing(decision.attempts, monotonic(), f"dead letter: {decision.reason}")
        if not self.dead_letters.bury(work, decision, self._buried, self.parking.mark(work)):
            return work
        partition.failing.pop(work.offset, None)
        return None


def _with_place(error: BaseException, work: ReadWork) -> BaseException:
    place = f"{work.partition.position.tp} at offset {work.offset}"
    error.add_note(f"raised by the handler of {place}; this message is not committed")
    return error


ROOM_AGAIN = MOST_POINTERS * 3 // 4
"""Parked messages of a partition at which it is read again, after there was no room."""
NO_ROOM = "no more messages can be parked: {} pointers are there already"


class Parking:
    """The parked messages of one run, as its lanes see them."""

    def __init__(self, waiting: WaitingMessages, order: Order) -> None:
        self._waiting = waiting
        self._by_key = order is Order.KEY
        self.parked = 0
        """Messages that were parked, also behind others of their key."""

    def mark(self, work: ReadWork) -> str:
        """Return the mark of the work's key, empty if order does not matter to it."""
        return key_mark(work.key) if self._by_key and work.key is not None else ""

    def park(self, work: ReadWork, decision: RetryDecision) -> list[ReadWork] | None:
        """Park a message, and what waits behind it in its lane.

        If only the message itself has room, its successors wait in their lane, and nothing more of the partition is
        read. Returns the parked successors; None if there was no room at all.
        """
        partition, mark = work.partition, self.mark(work)
        pointer = Pointer(
            work.offset,
            PointerKind.PARKED,
            decision.attempts,
            decision.due_ms,
            decision.first_ms,
            mark,
            decision.reason or work.failure,
        )
        behind = self._waiting.waiting_behind(work) if mark else []
        if not partition.ledger.point_at([pointer, *map(self._pointer, behind)]):
            behind = []
            self._full(partition)
            if not partition.ledger.point_at([pointer]):
                return None
        if mark:
            partition.parked.add(mark)
            self._waiting.block(work, behind)
            self._waiting.lose_pointers(work)
        for one in behind:
            one.forget()
        self.parked += len(behind) + (not work.pointer)
        return behind

    def behind_parked(self, partition: OpenPartition, works: Sequence[ReadWork]) -> Sequence[ReadWork]:
        """Park messages that were just read, and whose key has parked ones.

        Returns those that are not parked. Where there is no room they wait in their lane, and so do later ones of their
        key: a parked message is handled before those that wait.
        """
        if not partition.parked or not self._by_key:
            return works
        tp = partition.position.tp
        goes: dict[bytes, bool] = {}
        rest: list[ReadWork] = []
        behind: list[ReadWork] = []
        for work in works:
            key = work.key
            if key is not None and key not in goes:
                goes[key] = key_mark(key) in partition.parked and not self._waiting.waits(tp, key)
            (behind if key is not None and goes[key] else rest).append(work)
        if behind and not self._parked(partition, behind):
            for one in behind:
                self._waiting.block_key(tp, one.key or b"")
            return works
        return rest if behind else works

    def not_parked(self, works: Sequence[ReadWork]) -> Sequence[ReadWork]:
        """Park messages that come back although they did not begin, because an earlier one of their key was parked.

        Returns those that are not parked. Otherwise they would stand in the lane before later ones that are parked.
        """
        if not self._by_key or not any(work.part.partition.parked for work in works):
            return works
        rest = []
        for work in works:
            partition = work.part.partition
            behind = not work.pointer and self.mark(work) in partition.parked and not partition.position.revoked
            if not behind or not self._parked(partition, [work]):
                rest.append(work)
        return rest

    def _parked(self, partition: OpenPartition, works: Sequence[ReadWork]) -> bool:
        """Park messages behind earlier ones of their keys. Returns whether there was room."""
        if not partition.ledger.point_at([self._pointer(one) for one in works]):
            self._full(partition)
            return False
        self.parked += len(works)
        for one in works:
            self._leave(one)
            self._waiting.lose_pointers(one)
        return True

    @staticmethod
    def _leave(work: ReadWork) -> None:
        """End a work that is parked behind others."""
        work.open = False
        work.part.partition.failing.pop(work.offset, None)

    def _pointer(self, work: ReadWork) -> Pointer:
        """Return the pointer of a message that is parked behind others. It may have failed before."""
        wait = work.not_before - monotonic()
        due_ms = int((time() + wait) * 1000) if wait > 0 else 0
        return Pointer(
            work.offset, PointerKind.PARKED, work.attempts, due_ms, work.first_ms, self.mark(work), work.failure
        )

    def refresh(self, partition: OpenPartition) -> None:
        """Take the keys with parked messages from the ledger, and let the other keys go on.

        A message of a pointer may have ended, and an operator may have dropped or replayed some.
        """
        lowest: dict[str, int] = {}
        parked = 0
        for one in partition.ledger.pointers.values():
            if one.kind is PointerKind.PARKED:
                parked += 1
                if one.key:
                    lowest[one.key] = min(one.offset, lowest.get(one.key, one.offset))
        partition.parked = set(lowest)
        if parked <= ROOM_AGAIN:
            partition.full_because = ""
        self._waiting.unblock(partition, lowest)

    @staticmethod
    def _full(partition: OpenPartition) -> None:
        partition.full_because = NO_ROOM.format(len(partition.ledger.pointers))
