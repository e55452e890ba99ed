"""One stay at a partition, as the reader and the dispatcher see it.

Threads: the reader has what is of reading; everything else is guarded by the dispatcher's lock. Others may look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from zkconsumer.balance.balanced_message import Answers, balanced_class
from zkconsumer.balance.failure_limit import FailureCount
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS
from zkconsumer.core.message_pointers import PointerKind
from zkconsumer.errors import ZkConsumerError
from zkconsumer.kafka.record_batch import RecordBatch
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.stream_queue import Chunk
from zkconsumer.zookeeper.lease import Lease

HELD = 1 << 62
"""``held_until`` of a position while some of its messages are in hand."""

NO_LIMIT = 1 << 63
"""The ``limit`` of a partition that is read without end."""


class ReadLimits(NamedTuple):
    """``window`` is ``unfinished.max.offsets``; ``budget`` is shared with the queues; ``stores``: a timer commits;
    ``end`` returns the offset at which reading of a partition ends, see ``streams.until``.
    """

    window: int
    budget: QueueBudget
    stores: bool = True
    end: Callable[[TopicPartition], int] = lambda _: NO_LIMIT


class LoanSight(NamedTuple):
    """The connection in which a loan was seen: the ``epoch`` that the session's ``lease`` had."""

    lease: Lease
    epoch: int


@dataclass(frozen=True, slots=True)
class Failing:
    """A message that failed and comes again: ``attempts`` so far, the time of the next (monotonic), and why."""

    attempts: int
    due: float
    reason: str


class ReadProgress:
    """How far a partition is read, and what waits to be read. The reader's thread writes it, others may look.

    * ``at``: the offset at which reading goes on; ``limit``: the offset before which the run ends
    * ``chunks`` are to be read, the first perhaps in part: ``batches`` are the rest of it, ``records`` of its ``batch``
    * ``error``: what cannot be read
    * ``attempts_to``: the offset before which messages may have failed in earlier runs, or elsewhere
    * ``wants_room``: it goes on once no more than ``room_at`` messages are unfinished
    * ``base``: that of the reader's last look; it is there since ``base_since`` (monotonic seconds)
    * ``cut``: the offset from which the log is another one than what was read; -1 if it is not
    """

    def __init__(self, at: int, limit: int) -> None:
        self.at = at
        self.limit = limit
        self.chunks: deque[Chunk] = deque()
        self.batches: Iterator[RecordBatch] | None = None
        self.batch: RecordBatch | None = None
        self.records: Iterator[Any] | None = None
        self.error: ZkConsumerError | None = None
        self.wants_room = False
        self.room_at = self.attempts_to = 0
        self.base = self.cut = -1
        self.base_since = 0.0

    def forget_chunks(self) -> None:
        """Forget what waits to be read."""
        self.chunks.clear()
        self.batches = self.batch = self.records = None


class SharedSlots:
    """The slots of a partition that come and go between members. The dispatcher's lock guards them.

    * ``leaving``: the slots that go, or are elsewhere
    * ``hand``: the works in hand
    """

    def __init__(self, leaving: int = NO_SLOTS) -> None:
        self.leaving = leaving
        self.hand: dict[Any, None] = {}
        self._gaps = NO_SLOTS  # slots with a key whose earlier message was given back before later ones
        self._leavers: list[tuple[int, Callable[[], None]]] = []  # wait until nothing of their slots is in hand

    @property
    def unseen(self) -> bool:
        """Whether they are on loan to us, by a loan that was not seen in the present connection. Any thread."""
        return False

    @property
    def in_hand(self) -> int:
        """The slots of the messages that handlers have. Any thread."""
        found = NO_SLOTS
        for work in self.hand.copy():
            found |= 1 << work.slot
        return found & ALL_SLOTS

    def leave(self, slots: int, empty: Callable[[], None]) -> None:
        """Begin no more messages of these slots; ``empty`` is to be called once none is in hand."""
        self.leaving |= slots
        self._leavers.append((slots, empty))

    def empty(self) -> list[Callable[[], None]]:
        """Return what is to be called now, because nothing of its slots is in hand any more."""
        if not self._leavers:
            return []
        in_hand = self.in_hand
        empty = [leaver for leaver in self._leavers if not leaver[0] & in_hand]
        self._leavers = [leaver for leaver in self._leavers if leaver not in empty]
        return [tell for _, tell in empty]

    def note_gap(self, work: Any) -> None:
        """Note if a message is forgotten before a later one of its lane, which is in hand."""
        lane = work.lane
        if lane is not None and any(one.lane is lane and one.offset > work.offset for one in self.hand):
            self._gaps |= 1 << work.slot

    def take_on(self, slots: int) -> None:
        """Begin messages of these slots."""
        self.leaving &= ~slots
        self._gaps &= ~slots

    def reopen(self, slots: int) -> tuple[int, set[int]]:
        """Begin messages of these slots again; see ``MessageIntake.reopen``."""
        slots &= ~(self._gaps & self.in_hand)
        self.take_on(slots)
        return slots, {work.offset for work in self.hand if slots >> work.slot & 1}


class BorrowedSlots(SharedSlots):
    """The slots that a partition's owner, the ``lender``, has lent to us.

    * ``refused``: the slots that go back because a message of them fails
    * ``loan``: the connection in which the loan was seen last, None if it was not yet
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused = NO_SLOTS
        self.lender = ""
        self.loan: LoanSight | None = None

    @property
    def unseen(self) -> bool:
        """See :attr:`SharedSlots.unseen`."""
        return self.loan is None or self.loan.epoch != self.loan.lease.epoch


class OpenPartition:
    """One stay at a partition.

    * ``position``, ``ledger``, ``stream``: what the messages belong to, and the stream that their chunks come through
    * ``messages``: the class of its messages; ``answers`` takes outcomes that the application tells elsewhere
    * ``slots``: the slots of a partition that is shared; None for one that is not
    * ``in_hand``: number of messages that executors have
    * ``stopped``: why nothing of it may begin; empty if it may
    * ``full_because``: why no more of it is read, if it is neither the window nor the bytes
    * ``failing``: messages that wait for a further attempt, by offset
    * ``parked``: the keys with parked messages, by their marks
    * ``held_chunks``: chunks with messages that are not finished
    """

    def __init__(
        self,
        position: PartitionPosition,
        ledger: BalancedLedger,
        stream: KafkaStream[Any, Any],
        answers: Answers,
        *,
        limit: int = NO_LIMIT,
        slots: SharedSlots | None = None,
    ) -> None:
        self.position = position
        self.ledger = ledger
        self.stream = stream
        self.messages = balanced_class(stream.message_class)
        self.answers = answers
        self.reading = ReadProgress(position.consumed or 0, limit)
        self.slots = slots
        self.in_hand = 0
        self.stopped = self.full_because = ""
        self.failing: dict[int, Failing] = {}
        self.parked: set[str] = set()
        self.aside: list[Any] = []
        self.held_chunks: dict[Chunk, None] = {}  # a dict keeps its order
        self.outcomes = FailureCount()

    @property
    def own(self) -> bool:
        """Whether the member owns the partition; otherwise it handles some slots of it."""
        return not isinstance(self.slots, BorrowedSlots)

    def may_begin(self, slot: int) -> bool:
        """Return whether a message of a slot may begin, for all that is known of loans. Any thread.

        The loan is looked at last: a worker may have looked at everything else before the session and the loan ended.
        For the same reason each stay has its own. Otherwise what is current of the next loan would count for that
        worker.
        """
        slots = self.slots
        if slots is None:
            return True
        if slots.leaving >> slot & 1:
            return False
        return self.own or (not self.position.revoked and not self.unseen_loan)

    @property
    def unseen_loan(self) -> bool:
        """Whether this is a loan that was not seen in the present connection. Any thread."""
        return self.slots is not None and self.slots.unseen

    @property
    def shared(self) -> SharedSlots:
        """The slots of a partition that is shared."""
        assert self.slots is not None
        return self.slots

    @property
    def borrowed(self) -> BorrowedSlots:
        """The slots of a partition that another member owns."""
        assert isinstance(self.slots, BorrowedSlots)
        return self.slots

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks that wait to be read, or whose messages are not all finished."""
        waiting = sum(len(chunk.records) for chunk in list(self.reading.chunks))
        return waiting + sum(chunk.in_use for chunk in list(self.held_chunks))

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk that is to be read."""
        begins, log_end = self.position.ledger_start, self.position.cursor.first_log_end
        if not begins.log_end_compared and log_end >= 0:
            # A log that was cut short and grows again gets other messages at the offsets of the note. A later run
            # compares nothing: what was finished meanwhile lies behind the first end.
            begins.log_end_compared = True
            self.ledger.forget_from(log_end)
        self.reading.chunks.append(chunk)

    def note_pointers(self) -> None:
        """Note which keys have parked messages, and to which offset messages may have failed before."""
        for pointer in self.ledger.pointers.values():
            if pointer.key and pointer.kind is PointerKind.PARKED:
                self.parked.add(pointer.key)
        note = self.position.ledger_start.note
        if note is not None and note.attempts:
            self.reading.attempts_to = max(note.attempts) + 1

    def chunk_finished(self, chunk: Chunk) -> None:
        """Count a chunk all of whose messages are finished."""
        self.held_chunks.pop(chunk, None)
        if not self.position.revoked:
            self.stream.chunk_reader.passed(chunk, chunk.fetch_offset, chunk.next_offset, closing=True)

    def __repr__(self) -> str:
        return f"<OpenPartition {self.position.tp} at {self.reading.at}, {self.in_hand} in hand>"


class OpenPartitions:
    """The stays of one run. The reader's thread writes; any thread may look.

    * ``own``: those at partitions of ours; ``borrowed``: those at partitions of which other members have lent us slots
    """

    def __init__(self) -> None:
        self.own: dict[TopicPartition, OpenPartition] = {}
        self.borrowed: dict[PartitionPosition, OpenPartition] = {}

    def __iter__(self) -> Iterator[OpenPartition]:
        return iter([*list(self.own.values()), *list(self.borrowed.values())])

    def of(self, position: PartitionPosition) -> OpenPartition | None:
        """Return the stay that reads for this position, None if there is none."""
        partition = self.borrowed.get(position) or self.own.get(position.tp)
        return partition if partition is not None and partition.position is position else None

    @property
    def held_bytes(self) -> int:
        """Bytes of all chunks that wait to be read, or whose messages are not all finished."""
        return sum(partition.held_bytes for partition in self)


class Lending(Protocol):
    """The partitions of ours whose slots may be lent, as the reader sees them. Returns at once."""

    def concerns(self, position: PartitionPosition) -> bool:
        """Return whether slots of the partition are or may be on loan."""

    def ledger_of(self, position: PartitionPosition) -> BalancedLedger | None:
        """Make the ledger of a partition whose slots may be lent; return None until it is known what is lent."""


def begin_lending(position: PartitionPosition, lending: Lending, *, jumps: bool) -> bool:
    """Make the ledger of a partition whose slots may be lent; returns False if it is too early.

    A ledger that is there already is an earlier run's, whose loans are all back. What is finished in it stays so, but a
    parked message comes again if the removal of its pointer is not stored.

    Arguments: ``lending`` makes it; ``jumps``: the partition goes on at another place of its log.
    """
    former, begins = position.ledger, position.ledger_start
    if jumps:
        position.ledger = begins.note = former = None
    elif former is not None:
        begins.note = former.point(pointers=False).note
    made = lending.ledger_of(position)
    position.full = made is None
    if made is None:
        return False
    if former is not None:
        made.pointers_read(position.stored.pointers)
        made.touch()
    position.ledger = made
    return True


UNSTORED = 3.0
"""Seconds for which results of a partition may wait to be stored before no more of the partition is handled."""
MOST_UNSTORED = 100
"""Results of one partition that may wait for ever: so few are repeated soon."""


def unstored(partitions: Iterable[OpenPartition], now: float) -> Mapping[TopicPartition, float]:
    """Return the partitions not to read on until their results are stored, with the seconds that these have waited.

    Otherwise handlers on a busy machine would run ahead of the commits, and a crash would repeat all of it.
    """
    waiting = {partition: now - partition.ledger.unnoted_since(now) for partition in partitions}
    return {
        partition.position.tp: seconds
        for partition, seconds in waiting.items()
        if seconds > UNSTORED and partition.ledger.unnoted > MOST_UNSTORED
    }
