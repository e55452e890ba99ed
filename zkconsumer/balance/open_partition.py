"""One stay at a partition, as the reader and the dispatcher see it.

Threads: the reader has the fields of reading; everything else is guarded by the dispatcher's lock. Others may look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from zkconsumer.balance.balanced_message import Answers, balanced_class
from zkconsumer.balance.failure_limit import FailureCount
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS
from zkconsumer.core.message_ledger import MessageLedger
from zkconsumer.core.message_pointers import PointerKind
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.errors import ZkConsumerError
from zkconsumer.kafka.record_batch import RecordBatch
from zkconsumer.model import TopicPartition
from zkconsumer.streams import KafkaStream, QueueBudget
from zkconsumer.streams.stream_queue import Chunk
from zkconsumer.zookeeper.lease import Lease

HELD = 1 << 62
"""``held_until`` of a position while some of its messages are in hand."""

NO_LIMIT = 1 << 63
"""The ``limit`` of a partition that is read without end."""


class ReadLimits(NamedTuple):
    """``window`` is ``unfinished.max.offsets``; ``budget`` is shared with the queues; ``stores``: a timer commits;
    ``end`` returns the offset at which reading of a partition ends, see ``balance.until``.
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


class OpenPartition:
    """One stay at a partition.

    * ``position``, ``ledger``, ``stream``: what the messages belong to, and the stream that their chunks come through
    * ``messages``: the class of its messages; ``answers`` takes outcomes that the application tells elsewhere
    * ``at``: the offset at which reading goes on; ``chunks`` are to be read, the first perhaps in part
    * ``limit``: the offset before which the run ends
    * ``records``: the rest of the batch that is being read; ``batches``: the rest of the chunk
    * ``in_hand``: number of messages that executors have
    * ``stopped``: why nothing of it may begin before ``retry_at`` (monotonic seconds); empty if it may
    * ``full_because``: why no more of it is read, if it is neither the window nor the bytes
    * ``failing``: messages that wait for a further attempt, by offset
    * ``parked``: the keys with parked messages, by their marks
    * ``held_chunks``: chunks with messages that are not finished
    * ``own``: whether the member owns the partition; otherwise it handles slots of ``lender``'s
    * ``held_base``: the base at the reader's last look; it is there since ``held_since`` (monotonic)
    * ``cut``: the offset from which the log is another one than what was read; -1 if it is not
    * ``shared``: whether slots come and go; ``hand`` are the works in hand then, ``leaving`` the slots that go,
      ``gaps`` those of them with a key whose earlier message was given back before later ones, ``refused`` those that
      go back to the owner because a message fails, and ``leavers`` wait until nothing of their slots is in hand
    * ``loan``: the connection in which the loan of a partition of ``lender``'s was seen last, None if it was not yet
    """

    lender = ""
    held_base = cut = -1
    held_since = 0.0

    def __init__(
        self,
        position: PartitionPosition,
        ledger: MessageLedger,
        stream: KafkaStream[Any, Any],
        answers: Answers,
        *,
        own: bool = True,
    ) -> None:
        self.position = position
        self.ledger = ledger
        self.stream = stream
        self.messages = balanced_class(stream.message_class)
        self.answers = answers
        self.own, self.shared = own, not own
        self.at = position.consumed or 0
        self.limit = NO_LIMIT
        self.chunks: deque[Chunk] = deque()
        self.batches: Iterator[RecordBatch] | None = None
        self.batch: RecordBatch | None = None
        self.records: Iterator[Any] | None = None
        self.error: ZkConsumerError | None = None
        self.in_hand = 0
        self.stopped = self.full_because = ""
        self.retry_at = 0.0
        self.wants_room = False
        self.room_at = self.attempts_to = 0
        self.failing: dict[int, Failing] = {}
        self.parked: set[str] = set()
        self.aside: list[Any] = []
        self.held_chunks: dict[Chunk, None] = {}  # a dict keeps its order
        self.outcomes = FailureCount()
        self.leaving = self.gaps = self.refused = NO_SLOTS
        self.leavers: list[tuple[int, Callable[[], None]]] = []
        self.hand: dict[Any, None] = {}
        self.loan: LoanSight | None = None

    @property
    def current(self) -> bool:
        """Whether a message may begin now for all that is known of the loan; always of an own partition. Any thread.

        It is asked last: a worker may have looked at everything else before the session and the loan ended. For the
        same reason each stay has its own. Otherwise what is current of the next loan would count for that worker.
        """
        if self.own:
            return True
        loan = self.loan
        return loan is not None and not self.position.revoked and loan.epoch == loan.lease.epoch

    @property
    def slots_in_hand(self) -> int:
        """The slots of the messages that handlers have, of a partition whose slots come and go. Any thread."""
        found = NO_SLOTS
        for work in self.hand.copy():
            found |= 1 << work.slot
        return found & ALL_SLOTS

    @property
    def held_bytes(self) -> int:
        """Bytes of the chunks that wait to be read, or whose messages are not all finished."""
        waiting = sum(len(chunk.records) for chunk in list(self.chunks))
        return waiting + sum(chunk.in_use for chunk in list(self.held_chunks))

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk that is to be read."""
        position = self.position
        if not position.log_end_compared and position.cursor.first_log_end >= 0:
            # A log that was cut short and grows again gets other messages at the offsets of the note. A later run
            # compares nothing: what was finished meanwhile lies behind the first end.
            position.log_end_compared = True
            self.ledger.forget_from(position.cursor.first_log_end)
        self.chunks.append(chunk)

    def note_pointers(self) -> None:
        """Note which keys have parked messages, and to which offset messages may have failed before."""
        for pointer in self.ledger.pointers.values():
            if pointer.key and pointer.kind is PointerKind.PARKED:
                self.parked.add(pointer.key)
        note = self.position.known_note
        if note is not None and note.attempts:
            self.attempts_to = max(note.attempts) + 1

    def forget_chunks(self) -> None:
        """Forget what waits to be read."""
        self.chunks.clear()
        self.batches = self.batch = self.records = None

    def chunk_finished(self, chunk: Chunk) -> None:
        """Count a chunk all of whose messages are finished."""
        self.held_chunks.pop(chunk, None)
        if not self.position.revoked:
            self.stream.chunk_reader.passed(chunk, chunk.fetch_offset, chunk.next_offset, closing=True)

    def __repr__(self) -> str:
        return f"<OpenPartition {self.position.tp} at {self.at}, {self.in_hand} in hand>"


class Lending(Protocol):
    """The partitions of ours whose slots may be lent, as the reader sees them. Returns at once."""

    def concerns(self, position: PartitionPosition) -> bool:
        """Return whether slots of the partition are or may be on loan."""

    def ledger_of(self, position: PartitionPosition) -> MessageLedger | None:
        """Make the ledger of a partition whose slots may be lent; return None until it is known what is lent."""


def begin_lending(position: PartitionPosition, lending: Lending, *, jumps: bool) -> bool:
    """Make the ledger of a partition whose slots may be lent; returns False if it is too early.

    A ledger that is there already is an earlier run's, whose loans are all back. What is finished in it stays so.

    Arguments: ``lending`` makes it; ``jumps``: the partition goes on at another place of its log.
    """
    former = position.ledger
    if former is not None:
        position.known_pointers = former.stored_pointers
    if jumps:
        position.ledger = position.known_note = former = None
    elif former is not None:
        position.known_note = former.point(pointers=False).note
    made = lending.ledger_of(position)
    position.full = made is None
    if made is None:
        return False
    if former is not None:
        made.pointers_read(former.stored_pointers)
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
