"""A stream's messages as Arrow columns, many at a time.

Threads: the application's thread that reads the stream, nobody else.

How it goes together with messages: both read the chunk in ``queue.taken`` from ``position.consumed`` on, and whoever is
asked first finishes what the other has handed out. A batch of rows in the user's hands is announced as a message is:
``consumed`` is its first offset, ``batch_until`` its end, and it is finished by the one write that moves ``consumed``
there. Rows that were read and not handed out yet are in nobody's hands: they are announced all together, when they are
handed out, so that a revocation meanwhile waits for nothing and takes them away. They count as handed out when the
function that the user has called returns, which sets ``handed_out`` as its last act. An ask that was interrupted before
that leaves ``handed_out`` unset, and the next ask takes its rows back.

The original has nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConsumerTimeoutException, UnreadableMessageError
from zkconsumer.streams.chunk_batches import ANY, BatchLimits, ChunkDecoder, ChunkPart
from zkconsumer.streams.chunk_reader import ChunkReader, ReadDeadline
from zkconsumer.streams.stream_queue import Chunk

if TYPE_CHECKING:
    import pyarrow as pa


class ColumnReader:
    """Hands the rows of a stream out. Arguments: ``reader`` is the stream's.

    ``in_hand`` is what was read for the user and not finished yet; ``handed_out`` says whether it has reached him.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader
        self._queue = reader.queue
        self._decoder: ChunkDecoder | None = None
        self.in_hand: Sequence[ChunkPart] = ()
        self.handed_out = False
        self._released = False

    @property
    def withheld(self) -> bool:
        """Whether rows were read for the user and have not reached him yet."""
        return bool(self.in_hand) and not self.handed_out

    # ---- what was handed out

    def settle(self) -> None:
        """The rows in the user's hands, if there are any, are finished; what has not reached him comes again."""
        if not self.handed_out:
            self.take_back()
            return
        for part in self.in_hand:
            position, chunk = part.position, part.chunk
            # one write: no longer held and consumed up to here, so that who waits for them to be let go commits them
            position.consumed = part.end
            taken = chunk is self._queue.taken
            self._reader.passed(chunk, part.first, part.end, closing=part.whole and not taken)
            if taken and (part.whole or position.halted):
                self._reader.finish(chunk)
            elif position.revoked:
                self._queue.let_go()
        self._clear()

    def take_back(self) -> None:
        """What was read for the user did not reach him: it comes again."""
        self.handed_out = False
        parts = self.in_hand
        if parts:
            self._retract(parts)
            if self._released:
                for position in {part.position: None for part in parts}:
                    self._queue.read_again(position)
            else:
                self._put_back(parts)
        self._clear()

    def take_back_unless(self, before: Sequence[ChunkPart]) -> None:
        """An ask has failed: what it read comes again. ``before`` is what was in hand when it was begun, which stays
        where that is still so: the ask was refused before it began (a wrong argument, a stream that is being asked).
        """
        if self.in_hand is not before or not self.handed_out:
            self.take_back()

    def _clear(self) -> None:
        self.in_hand = ()
        # after the line above: an interrupt between the two must not count what is in hand for something else
        self.handed_out = self._released = False

    def release(self) -> None:
        """The rows were made into what the user gets: what was fetched of them need not be kept. Should they have to
        come again after this, they are fetched again.
        """
        self._released = True
        kept = []
        for part in self.in_hand:
            if part.chunk is not self._queue.taken:
                self._reader.count_bytes(part.chunk)
                part = part._replace(chunk=_emptied(part.chunk))
            kept.append(part)
        self.in_hand = kept

    # ---- what is to be handed out

    def next_batch(self, schema: pa.Schema, limits: BatchLimits, ask: ReadDeadline) -> pa.RecordBatch | None:
        """The next rows of one partition; None at the end of the stream. ``settle`` was called before.

        Raises: ConsumerTimeoutException; what cannot be read; what made the connector fail.
        """
        while True:
            part = self._next_part(schema, limits, ask, {})
            if part is None:
                return None
            if part.rows is None:
                self._pass(part)
                continue
            self.in_hand = parts = [part]
            if self._hand_over(parts, ask):
                return part.rows
            self._clear()

    def collect(
        self, schema: pa.Schema, rows: int, ask: ReadDeadline, quiet: ReadDeadline, patience: float | None
    ) -> list[pa.RecordBatch]:
        """So many rows of any partitions, or what there is at the end of the ask, or when no row came for ``patience``
        seconds (``quiet`` is the time for the first one), or before what cannot be read. ``settle`` was called before.

        Raises: what cannot be read where there are no rows before it; what made the connector fail.
        """
        parts: list[ChunkPart] = []
        self.in_hand = parts
        try:
            self._gather(parts, schema, rows, ask, quiet, patience)
            if not self._hand_over(parts, _sooner(ask, ReadDeadline(patience))):
                self._clear()
                return []
        except ConsumerTimeoutException:  # at the gate
            self.take_back()
            return []
        return [part.rows for part in parts if part.rows is not None]

    def _gather(
        self,
        parts: list[ChunkPart],
        schema: pa.Schema,
        wanted: int,
        ask: ReadDeadline,
        quiet: ReadDeadline,
        patience: float | None,
    ) -> None:
        reached: dict[PartitionPosition, int] = {}
        last: dict[PartitionPosition, int] = {}  # where in ``pieces`` the last one of each is
        rows = 0
        while rows < wanted:
            if parts and self._decoder is not None and self._decoder.fails:
                return  # the next ask raises it
            try:
                part = self._next_part(schema, BatchLimits(wanted - rows, ANY), _sooner(ask, quiet), reached)
            except ConsumerTimeoutException:
                return
            except UnreadableMessageError:
                if not parts:
                    raise
                return  # it stands where it stood: the next ask raises it
            if part is None:
                return
            position = part.position
            if part.rows is not None:
                rows += part.rows.num_rows
                quiet = ReadDeadline(patience)
            elif position not in last:
                self._pass(part)
                continue
            before = parts[last[position]] if position in last else None
            kept = _kept(part, before)
            if before is not None and kept.first == before.first:
                parts[last[position]] = kept
            else:
                last[position] = len(parts)
                parts.append(kept)
            reached[position] = part.end
            if part.whole:
                if kept.chunk is not part.chunk:
                    self._reader.count_bytes(part.chunk)
                self._queue.taken = None

    def _pass(self, part: ChunkPart) -> None:
        """Nothing is in the piece but markers of transactions, aborted data, or what compaction left."""
        part.position.consumed = part.end
        if part.whole:
            self._reader.finish(part.chunk)

    def _next_part(
        self, schema: pa.Schema, limits: BatchLimits, ask: ReadDeadline, reached: Mapping[PartitionPosition, int]
    ) -> ChunkPart | None:
        """The next rows of the chunk that is read, or of the next one; None at the end of the stream, and before what
        moves a partition of which rows were read already (``reached``).
        """
        reader, queue = self._reader, self._queue
        while not queue.closed:
            chunk = reader.next_chunk(ask)
            if chunk is None:
                return None
            position = chunk.position
            start = reached.get(position)
            if start is None:
                start = reader.begin(chunk)
                if start is None:
                    continue
            elif chunk.jump or chunk.error or chunk.fetch_offset > start or position.halted:
                return None
            if not reader.lease.valid:
                reader.wait_at_gate(ask)
                continue
            decoder = self._decoder
            if decoder is None or decoder.chunk is not chunk or decoder.at != start or decoder.schema != schema:
                decoder = self._decoder = ChunkDecoder(reader, chunk, start, schema)
            part = decoder.next_part(limits)
            if part.whole:
                self._decoder = None
            return part
        return None

    def _hand_over(self, parts: list[ChunkPart], deadline: Deadline) -> bool:
        """Announce the rows and look at the gate; returns whether there are any that may be handed out, which are
        those left in ``pieces``, and ``in_hand``.

        Raises: ConsumerTimeoutException where the gate stays closed.
        """
        reader = self._reader
        while parts and not self._queue.closed:
            for part in parts:
                position = part.chunk.position
                position.batch_until = position.held_until = part.end
            # in this order, or a token would be taken for nothing
            if not any(part.chunk.position.halted for part in parts) and reader.may_hand_out():
                reader.handed_out(sum(part.rows.num_rows for part in parts if part.rows is not None))
                self.in_hand = [part._replace(rows=None) for part in parts]  # the rows are the user's to keep
                return True
            self._retract(parts)
            halted = {part.position for part in parts if part.position.halted}
            self._put_back([part for part in parts if part.position in halted])
            parts[:] = [part for part in parts if part.position not in halted]
            if parts and not reader.lease.valid:
                reader.wait_at_gate(deadline)
        return False

    def _retract(self, parts: Sequence[ChunkPart]) -> None:
        for part in parts:
            # in this order, or the rows would count as a message in hand for a moment
            part.position.held_until = NOTHING_HELD
            part.position.batch_until = NOTHING_HELD
        self._queue.let_go()

    def _put_back(self, parts: Sequence[ChunkPart]) -> None:
        """These rows are not handed out: what was fetched waits again, unless it is no longer ours."""
        if not parts:
            return
        self._decoder = None
        chunks = {id(part.chunk): part.chunk for part in parts}
        taken = self._queue.taken
        if taken is not None and taken.position in {part.position for part in parts}:
            chunks[id(taken)] = taken
        for chunk in reversed(chunks.values()):
            self._queue.put_back(chunk)


def _sooner(one: ReadDeadline, other: ReadDeadline) -> ReadDeadline:
    return one if other.at is None or (one.at is not None and one.at <= other.at) else other


def _kept(part: ChunkPart, before: ChunkPart | None) -> ChunkPart:
    """What to keep of the piece while a table is collected, so that it can be put back behind ``before``, its
    partition's last one: of a chunk without rows its place, for it may be any amount of aborted data, which nobody
    counts. Two such places become one, which begins where ``before`` does.
    """
    chunk = part.chunk
    if part.rows is not None or not part.whole or before is None or before.chunk is chunk:
        return part
    if before.rows is not None or before.chunk.records:
        return part._replace(chunk=_emptied(chunk))
    earlier = before.chunk
    messages = None if chunk.messages is None or earlier.messages is None else earlier.messages + chunk.messages
    place = Chunk(chunk.position, b"", earlier.fetch_offset, chunk.next_offset, messages=messages)
    return part._replace(chunk=place, first=before.first)


def _emptied(chunk: Chunk) -> Chunk:
    return Chunk(chunk.position, b"", chunk.fetch_offset, chunk.next_offset, messages=chunk.messages)
