"""A source of works for tests of executors, in place of the dispatcher."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Condition
from typing import Any

from zkconsumer import MessageAndMetadata
from zkconsumer.balance.dispatched_work import Work
from zkconsumer.balance.outcomes import DONE, NotStarted, Outcome
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.stream_queue import Chunk
from zkconsumer.testing.partition_log import encode_batch

TP = TopicPartition("events", 0)


def new_works(values: Iterable[bytes], *, lanes: Sequence[object] = (), first: int = 0, each: int = 4) -> list[Work]:
    """Works for messages of one chunk, whose batches have ``each`` messages."""
    given = list(values)
    position = PartitionPosition(TP, ThreadId("g_c-0"), first)
    ledger = BalancedLedger(position, first)
    records = b"".join(
        encode_batch(given[at : at + each], 1000, [b"k"] * len(given[at : at + each]), first + at)
        for at in range(0, len(given), each)
    )
    chunk = Chunk(position, records, first, first + len(given))
    works = []
    for batch in batches(records, check_crc=True, where=TP, fetch_offset=first):
        for record in batch:
            message: MessageAndMetadata[Any, Any] = MessageAndMetadata(record, TP)
            works.append(Work(message, record.offset, ledger, chunk))
    for work, lane in zip(works, lanes, strict=False):
        work.lane = lane
    return works


class WorkList:
    """Gives out works in order, and keeps what became of each.

    A work that did not begin is given out again. So is a failed one, up to ``attempts``.
    """

    def __init__(self, works: Iterable[Work], attempts: int = 1) -> None:
        self._attempts = attempts
        self._changed = Condition()
        self._waiting = deque(works)
        self.wanted = len(self._waiting)
        self.outcomes: dict[int, list[Outcome]] = {}
        self.taken: list[list[int]] = []
        self.settled = 0
        self.times: list[tuple[int, float]] = []
        self.ended = False
        self.halted = False
        self.error: BaseException | None = None
        self.wake: Callable[[], None] = lambda: None

    def abort(self, error: BaseException) -> None:
        self.error = error
        self.ended = True

    def take(self, most: int, deadline: Deadline) -> Sequence[Work]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.ended, deadline.remaining())
            works = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))] if not self.ended else []
            if works:
                self.taken.append([work.offset for work in works])
            return works

    lease_until = float("inf")

    def may_start(self, work: Work) -> bool:
        return not self.halted

    def look(self) -> None:
        self.wake()

    def took(self, messages: int, seconds: float) -> None:
        self.times.append((messages, seconds))

    def settle(self, outcomes: Sequence[tuple[Work, Outcome]]) -> None:
        with self._changed:
            for work, outcome in outcomes:
                known = self.outcomes.setdefault(work.offset, [])
                known.append(outcome)
                if isinstance(outcome, NotStarted):
                    if not self.ended and not self.halted:
                        self._waiting.appendleft(work)
                    continue
                work.attempts += outcome is not DONE
                if outcome is not DONE and work.attempts < self._attempts:
                    self._waiting.append(work)
                else:
                    self.settled += 1
            self._changed.notify_all()
        self.wake()

    def add(self, works: Iterable[Work]) -> None:
        """Have more works to give out."""
        with self._changed:
            self._waiting.extend(works)
            self.wanted = self.wanted + len(self._waiting)
            self._changed.notify_all()
        self.wake()

    def done(self) -> bool:
        """Whether each work has come to its end."""
        return self.settled >= self.wanted

    def end(self) -> None:
        """Give out nothing more."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        self.wake()

    def last(self) -> dict[int, Outcome]:
        """The last outcome of each offset."""
        return {offset: known[-1] for offset, known in sorted(self.outcomes.items())}
