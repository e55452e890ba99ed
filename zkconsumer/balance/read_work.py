"""The works of the dispatcher's own making. Little is stored of each, because one is made for every message.

Threads: any may call :class:`PointerWorks`, which has a lock of its own.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, final

from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.work import Work
from zkconsumer.ownership.message_ledger import MessageLedger
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag
from zkconsumer.streams.stream_queue import Chunk


class ReadPart:
    """The common data of messages that were read together.

    Their ``partition`` in this stay, their ``chunk`` (None for a pointer's message), and a ``serial`` number by age.
    """

    __slots__ = ("chunk", "partition", "serial")

    def __init__(self, partition: OpenPartition, chunk: Chunk | None, serial: int) -> None:
        self.partition = partition
        self.chunk = chunk
        self.serial = serial

    def passed(self, count: int) -> None:
        """Count so many messages as unfinished ones of their chunk no more. The caller holds the dispatcher's lock."""
        chunk = self.chunk
        if chunk is not None and count:
            chunk.unfinished -= count
            if not chunk.unfinished:
                self.partition.chunk_finished(chunk)


@final
class ReadWork(Work):
    """One message of a :class:`ReadPart`, as read from ``record``.

    * ``taken`` once a worker has it; ``open`` until it has its outcome
    * ``pending`` while only the application knows when it ends
    * ``slot`` is set where slots are shared
    * ``pointer``: of a pointer's message, the works of pointers that it is one of; None for any other message

    A further attempt is another work. So an answer to an earlier attempt finds that one closed, and does nothing.
    """

    lane: Any = None
    taken = False
    open = True
    pending = False
    slot = 0
    pointer: PointerWorks | None = None

    def __init__(self, record: Any, offset: int, key: bytes | None, part: ReadPart) -> None:
        self.record = record
        self.offset = offset
        self.key = key
        self.part = part

    @property
    def message(self) -> Any:
        """A message for the handler, made anew each time: kept, it and the work would refer to each other."""
        record, partition = self.record, self.part.partition
        return partition.messages(record, partition.position.tp, self)

    @property
    def partition(self) -> OpenPartition:
        """The stay at the partition."""
        return self.part.partition

    @property
    def ledger(self) -> MessageLedger:  # type: ignore[override]
        """The ledger of the stay."""
        return self.part.partition.ledger

    @property
    def chunk(self) -> Chunk | None:  # type: ignore[override]
        """The fetched chunk, None for a pointer's message."""
        return self.part.chunk

    def forget(self) -> None:
        """End a message that waits and that is not begun here. The caller holds the dispatcher's lock."""
        self.open = False
        self.part.passed(1)
        self.partition.failing.pop(self.offset, None)
        if self.pointer:
            self.pointer.settled(self)

    def again(self) -> ReadWork:
        """Return the work of another attempt."""
        made = ReadWork(self.record, self.offset, self.key, self.part)
        made.lane, made.pointer, made.slot = self.lane, self.pointer, self.slot
        made.attempts, made.first_ms, made.failure = self.attempts, self.first_ms, self.failure
        return made


class PointerWorks:
    """The messages of pointers in hand. ``flag`` is set when one was settled: the reader of pointers waits for it."""

    def __init__(self) -> None:
        self.flag = WakeFlag()
        self._lock = InterruptibleLock()
        self._sizes: dict[tuple[MessageLedger, int], int] = {}  # the bytes of each, by its ledger and offset

    def add(self, work: Work, size: int) -> None:
        """Note that the dispatcher gets this message of so many bytes."""
        with self._lock:
            self._sizes[work.ledger, work.offset] = size

    def settled(self, work: Work) -> None:
        """Note that the dispatcher has this message no more, whatever its outcome."""
        self.forget(work)
        self.flag.set()

    def forget(self, work: Work) -> None:
        """Note that the dispatcher has not taken this message."""
        with self._lock:
            self._sizes.pop((work.ledger, work.offset), None)

    def forget_ended(self) -> None:
        """Forget the messages of stays that have ended."""
        with self._lock:
            self._sizes = {place: size for place, size in self._sizes.items() if not place[0].position.revoked}

    def offsets(self, ledger: MessageLedger) -> frozenset[int]:
        """Return the offsets of one stay."""
        with self._lock:
            return frozenset(offset for one, offset in self._sizes if one is ledger)

    def sizes(self, standing: Container[MessageLedger]) -> list[int]:
        """Return the bytes of each message, but for those of the stays that are ``standing`` still."""
        with self._lock:
            return [size for (ledger, _), size in self._sizes.items() if ledger not in standing]
