"""Decides about messages that are not done: they come again, are parked, or become dead letters.

Threads: those that settle outcomes. The lock is the dispatcher's, which guards the lanes. No function of the
application is called under it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import random
from time import monotonic, time

from zkconsumer.balance.dead_letters import DeadLetters
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.open_partition import Failing, OpenPartition
from zkconsumer.balance.outcomes import Failed, NotStarted, Outcome
from zkconsumer.balance.parked_messages import Parking
from zkconsumer.balance.read_work import ReadWork
from zkconsumer.balance.retry import Kind, Retry, RetryDecision, decide, failure_of
from zkconsumer.balance.waiting_messages import Order, WaitingMessages
from zkconsumer.core.finished_note import Attempts
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
    """Decides about messages that are not done.

    Arguments: as for the dispatcher; ``abort`` ends the run with an error; ``buried`` takes a work whose dead letter
    waited, once it was delivered or its partition has left.
    """

    def __init__(
        self,
        rules: RunRules,
        waiting: WaitingMessages,
        lock: InterruptibleLock,
        dead_letters: DeadLetters | None,
        abort: Callable[[BaseException], None],
        buried: Callable[[ReadWork], None],
    ) -> None:
        self._rules = rules
        self._lock = lock
        self._abort = abort
        self._buried = buried
        self.parking = Parking(waiting, rules.order)
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
            made.not_before, made.failure = partition.retry_at, failure
            return made
        try:
            decision = self._decided(work, outcome)
        except Exception as e:  # noqa: BLE001 (the policy is the application's: it is told)
            self._abort(e)
            return work.again()
        given_up = decision.kind is Kind.DEAD or decision.attempts >= self._rules.retry.park_after
        if given_up and not partition.own:
            partition.shared.refused |= 1 << work.slot  # only the owner parks messages and buries them
            return self._held(work, replace(decision, seconds=max(decision.seconds, REFUSED)))
        if decision.kind is Kind.DEAD:
            return self._dead(work, decision)
        if decision.kind is Kind.PARK and self._park(work, decision):
            return None
        return self._held(work, decision)

    def _decided(self, work: ReadWork, outcome: Outcome) -> RetryDecision:
        partition = work.partition
        return decide(
            self._rules.retry,
            outcome,
            work.attempts,
            work.first_ms,
            int(time() * 1000),
            may_park=self._may_park(partition),
            random=random(),
            parked=work.pointer,
        )

    def _may_park(self, partition: OpenPartition) -> bool:
        kept = self._rules.parks and partition.own and partition.ledger.may_park
        return kept and self._rules.order is not Order.PARTITION

    def _limit_reached(self, work: ReadWork, failure: str) -> bool:
        """Count a failure; returns whether nearly everything fails, so that it counts for none of the messages."""
        partition, limit = work.partition, self._rules.failure_limit
        partition.outcomes.failed()
        why = partition.outcomes.reached(limit) if limit is not None else ""
        if not why:
            return False
        if not partition.retry_at:
            partition.retry_at = monotonic() + TRY_AGAIN
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
