"""One message on its way through the dispatcher, and the two sides of an executor.

Little is stored of each message, because a :class:`ReadWork` is made for every one.

Threads: any may call :class:`PointerWorks`, which has a lock of its own.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Protocol, final

from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.outcomes import Outcome
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag
from zkconsumer.streams.stream_queue import Chunk


class Work:
    """One message that a handler is to be called with.

    * ``message``: what the handler gets
    * ``chunk``: the fetched chunk that the message is read from; None for one that was fetched alone (a pointer's)
    * ``lane``: the lane that keeps its order; None if it has none
    * ``attempts``: the failed attempts so far, the first at ``first_ms`` (milliseconds since 1970; 0: none)
    * ``failure``: why the last attempt failed, empty if none did, or nobody here knows
    * ``not_before``: when it may be handed out again (monotonic seconds; 0: at once)
    * ``answer``: the outcome that the application told before the handler ended
    * ``partition``: its partition in this stay, as the dispatcher sees it
    """

    attempts = 0
    first_ms = 0
    failure = ""
    not_before = 0.0
    answer: Outcome | None = None
    partition: Any = None

    def __init__(
        self, message: Any, offset: int, ledger: BalancedLedger, chunk: Chunk | None, lane: Any = None
    ) -> None:
        self.message = message
        self.offset = offset
        self.ledger = ledger
        self.chunk = chunk
        self.lane = lane


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
    def ledger(self) -> BalancedLedger:  # type: ignore[override]
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
        self._sizes: dict[tuple[BalancedLedger, int], int] = {}  # the bytes of each, by its ledger and offset

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

    def offsets(self, ledger: BalancedLedger) -> frozenset[int]:
        """Return the offsets of one stay."""
        with self._lock:
            return frozenset(offset for one, offset in self._sizes if one is ledger)

    def sizes(self, standing: Container[BalancedLedger]) -> list[int]:
        """Return the bytes of each message, but for those of the stays that are ``standing`` still."""
        with self._lock:
            return [size for (ledger, _), size in self._sizes.items() if ledger not in standing]


class WorkSource(Protocol):
    """The dispatcher, as executors see it. Any thread."""

    def take(self, most: int, deadline: Deadline) -> Sequence[Work]:
        """Return work to begin now, at most so many; nothing at the deadline, or when the run ends.

        Those of one lane are in order and follow each other. When one of them does not end with DONE, the later ones of
        its lane must be settled with NOT_STARTED.
        """

    @property
    def lease_until(self) -> float:
        """Until when handlers may begin: the lease's end, in monotonic seconds, which a machine's processes share."""

    def may_start(self, work: Work) -> bool:
        """Return whether the handler may begin now: the session's lease is good, the partition and slot are ours.

        If not, settle it with NOT_STARTED.
        """

    def look(self) -> None:
        """Have another worker look for messages: the caller has settled some, and will not take any soon."""

    def settle(self, outcomes: Sequence[tuple[Work, Outcome]]) -> None:
        """Note outcomes, several at once. A work that was taken is settled exactly once, PENDING then once more."""

    def took(self, messages: int, seconds: float) -> None:
        """Note how long the handlers of some messages took together. Any thread; returns at once."""

    def abort(self, error: BaseException) -> None:
        """End the run with an error that is nobody's handler's."""

    @property
    def ended(self) -> bool:
        """Whether nothing is to be taken any more."""


class Executor(Protocol):
    """Runs handlers. Made for one run; ``concurrency`` handlers at the same time at most."""

    def start(self, source: WorkSource) -> None:
        """Begin to take work, on threads of its own."""

    def wake(self) -> None:
        """There may be work to take. Any thread; returns at once."""

    def drained(self, deadline: Deadline) -> bool:
        """Take no more, and wait for handlers until the deadline; end none. Returns whether all have returned."""

    def stop(self, deadline: Deadline) -> bool:
        """End: take no more, wait for handlers until the deadline. Returns whether all have returned.

        Handlers in processes and coroutines that have not returned are ended; threads cannot be.
        """
