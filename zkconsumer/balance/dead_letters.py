"""Brings dead letters where they belong: to pointers in the node, to a function of the application, or to a topic.

A dead letter that cannot be brought there holds the base of its partition, and stops the partition visibly. It is tried
again for as long as the partition is owned: nothing is lost, and nothing is given up silently.

Threads: one thread of its own, ``<consumer>-dead-letters``, calls functions and topics. Any thread may call the other
methods. A lock guards what waits; nothing waits, and no function of others runs, under it.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

from zkconsumer.balance.dead_letter_topic import DeadLetterTopic, Failure
from zkconsumer.balance.dispatched_work import ReadWork
from zkconsumer.balance.handler_check import takes
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.retry_policy import RetryDecision, reason_of
from zkconsumer.core.message_pointers import MOST_POINTERS, Pointer, PointerKind
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline, backoff
from zkconsumer.runtime.fork_guard import ends_forked_child
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag

log = logging.getLogger(__name__)

DeadLetterTarget = DeadLetterTopic | Callable[[Any, Failure], object] | None
"""What ``dead_letter=`` of ``run`` takes."""

AT_ONCE = 100
"""Dead letters that are delivered at once."""
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 60.0
"""Seconds until a dead letter is tried again."""
_CLOSE_WITHIN = 5.0

_FULL = (
    f"there are {MOST_POINTERS} dead letters already, and there is no room for more:"
    " see 'zkconsumer dead list', then replay or drop some"
)
_NO_POINTERS = (
    "a dead letter has no place: the brokers coordinate this group and keep no pointers;"
    " give dead_letter= to run, a function or a DeadLetterTopic"
)


@dataclass(slots=True, eq=False)
class _Waiting:
    work: ReadWork
    failure: Failure
    pointer: Pointer
    ended: Callable[[ReadWork], None]
    failures: int = 0
    retry_at: float = 0.0


def checked_target(target: object) -> DeadLetterTarget:
    """Return the ``dead_letter`` argument of ``run``. Raises TypeError for one that cannot be used."""
    if target is None:
        return None
    if not callable(target):
        raise TypeError(
            f"dead_letter takes a function of (message, failure), a DeadLetterTopic or None, not {target!r:.80}"
        )
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__):
        raise TypeError("dead_letter takes no coroutine function: it is called from a thread")
    if not takes(target, 2):
        raise TypeError(f"dead_letter is called with (message, failure), and {target!r:.80} cannot be")
    return target


class DeadLetters:
    """The dead letters of one run.

    Arguments: ``name`` of the consumer; ``group`` is the ``group.id``; ``target`` is a checked ``dead_letter``
    argument; ``failed`` gets an error of a function that ends the run (not an ``Exception``); ``keeps_pointers`` says
    whether the group can keep pointers; ``monotonic`` is the time of back-offs.

    * ``delivered``, ``failed``: numbers of dead letters that were delivered, and of tries that failed
    """

    def __init__(
        self,
        name: str,
        group: str,
        target: DeadLetterTarget,
        *,
        failed: Callable[[BaseException], None] = lambda _: None,
        keeps_pointers: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.delivered = 0
        self.failed = 0
        self._end_run = failed
        self._group = group
        self._target = target
        self._keeps_pointers = keeps_pointers
        self._monotonic = monotonic
        self._lock = InterruptibleLock()
        self._waiting: list[_Waiting] = []
        self._stopped: dict[TopicPartition, str] = {}
        self._wake = WakeFlag()
        self._ending = False
        self._thread = Thread(target=self._run, name=f"{name}-dead-letters", daemon=True)

    # ---- any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def bury(self, work: ReadWork, decision: RetryDecision, ended: Callable[[ReadWork], None], key: str = "") -> bool:
        """Make a message a dead letter.

        Returns True if that is done: its pointer is in the ledger. Otherwise the message waits, its partition's base
        holds, and ``ended`` is called from the thread here, once it was delivered or its partition has left.
        Arguments: ``key`` is its ``key_mark``, empty if order does not matter.
        """
        reason, attempts, first_ms = decision.reason, decision.attempts, decision.first_ms
        pointer = Pointer(work.offset, PointerKind.DEAD, attempts, 0, first_ms, key, reason)
        waiting = _Waiting(work, Failure(reason, attempts, first_ms, self._group, decision.error), pointer, ended)
        trouble = self._point_at(waiting) if self._target is None else ""
        if self._target is None and not trouble:
            with self._lock:
                self.delivered += 1
            return True
        with self._lock:
            self._waiting.append(waiting)
            if trouble:
                self._stop(waiting, trouble)
        self._wake.set()
        return False

    def waiting_of(self, partition: OpenPartition) -> int:
        """Return how many dead letters of a partition are not delivered yet."""
        with self._lock:
            return sum(one.work.partition is partition for one in self._waiting)

    def tend(self) -> None:
        """Have the thread look if something waits: a partition may have left. It tries nothing before it is due."""
        if self._waiting:
            self._wake.set()

    def close(self, deadline: Deadline) -> bool:
        """End. Returns whether the thread has ended by the deadline. Messages that were not delivered come again."""
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(deadline.bounded(_CLOSE_WITHIN))
        if self._thread.is_alive():
            return False
        self._remove(list(self._waiting))
        return True

    # ---- the thread

    def _run(self) -> None:
        while not self._ending:
            try:
                pause = self.look()
            except BaseException as error:  # noqa: BLE001 (whatever it is ends the run, which says so)
                self._end_run(error)
                return
            self._wake.wait(pause)

    def look(self) -> float:
        """Deliver what is due. Returns the seconds until the next look."""
        now = self._monotonic()
        with self._lock:
            gone = [one for one in self._waiting if one.work.ledger.position.revoked]
            left = set(gone)
            due = [one for one in self._waiting if one not in left and one.retry_at <= now][:AT_ONCE]
        self._remove(gone)
        errors = self._deliver(due)
        done = []
        for one, error in zip(due, errors, strict=True):
            if error:
                with self._lock:
                    self._stop(one, error)
                self.failed += 1
            else:
                if self._target is not None:
                    one.work.ledger.finish([one.work.offset])
                done.append(one)
        self._remove(done)
        with self._lock:
            self.delivered += len(done)
            if not self._waiting:
                return LONGEST_BACKOFF
            return min(LONGEST_BACKOFF, max(0.0, min(one.retry_at for one in self._waiting) - self._monotonic()))

    def _stop(self, one: _Waiting, error: str) -> None:
        """Stop the partition, and have this dead letter tried again later. The lock is held."""
        tp = one.work.ledger.position.tp
        one.failures += 1
        one.retry_at = self._monotonic() + backoff(one.failures, FIRST_BACKOFF, LONGEST_BACKOFF)
        text = f"has stopped: the message at offset {one.work.offset} is a dead letter, and {error}"
        if tp not in self._stopped:
            log.error("%s %s", tp, text)
        self._stopped[tp] = text
        one.work.partition.stopped = text

    def _remove(self, ended: Sequence[_Waiting]) -> None:
        """Take dead letters out that do not wait any more, and have their partitions go on."""
        if not ended:
            return
        removed = set(ended)
        with self._lock:
            self._waiting = [one for one in self._waiting if one not in removed]
            still = {one.work.ledger.position.tp for one in self._waiting if one.failures}
            for tp in [tp for tp in self._stopped if tp not in still]:
                self._go_on(tp, self._stopped.pop(tp), ended)
        for one in ended:
            one.ended(one.work)

    @staticmethod
    def _go_on(tp: TopicPartition, text: str, ended: Sequence[_Waiting]) -> None:
        """Let the partition go on, unless it was stopped for another reason. The lock is held."""
        log.info("%s goes on: its dead letters are delivered", tp)
        for one in ended:
            if one.work.partition.position.tp == tp and one.work.partition.stopped == text:
                one.work.partition.stopped = ""  # the reader's thread lets its messages begin again

    def _deliver(self, due: Sequence[_Waiting]) -> list[str]:
        """Try to deliver. Returns the error of each, empty for one that was delivered."""
        target = self._target
        if target is None:
            return [self._point_at(one) for one in due]
        if isinstance(target, DeadLetterTopic):
            sent = target.send_all([(one.work.message, one.failure) for one in due]) if due else []
            return ["" if error is None else str(error) for error in sent]
        return [_call(target, one) for one in due]

    def _point_at(self, one: _Waiting) -> str:
        if not self._keeps_pointers:
            return _NO_POINTERS
        if trouble := one.work.ledger.position.stored.parking_trouble:
            return f"no pointers of it can be kept: {trouble}"
        return "" if one.work.ledger.point_at([one.pointer]) else _FULL


def _call(target: Callable[[Any, Failure], object], one: _Waiting) -> str:
    try:
        result = ends_forked_child(lambda message: target(message, one.failure))(one.work.message)
    except Exception as error:
        log.exception("the dead_letter function failed; it is called again")
        return f"the dead_letter function failed: {reason_of(error)}"
    if inspect.iscoroutine(result):
        result.close()
        return "the dead_letter function returned a coroutine, which nobody awaits; give a plain function"
    return ""
