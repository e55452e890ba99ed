"""Reads many of a stream's messages at a time: as Arrow columns, or as a list of messages.

Threads: the application thread that reads the stream, no other.

Rows and single messages come from the same chunk, ``queue.taken``, from ``position.consumed`` on. The first read of one
kind finishes the messages that the other kind has handed out. A batch of rows in the user's hands is announced like a
message. ``consumed`` is the batch's first offset and ``batch_until`` its end. A single write, of ``consumed``, finishes
the batch.

Rows that are read and not handed out yet are held by nobody. All are announced together, when they are handed out. So a
revocation meanwhile waits for nothing and takes them away. They count as handed out when the function that the user
called returns, which sets ``handed_out`` as its last act. After a read that was interrupted before that, ``handed_out``
is unset and the next read takes the rows back.

The original has nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zkconsumer.errors import ConsumerTimeoutException, UnreadableMessageError
from zkconsumer.ownership.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.chunk_batches import ANY, BatchLimits, ChunkDecoder, ChunkPart, RowForm
from zkconsumer.streams.chunk_reader import ChunkReader, ReadDeadline
from zkconsumer.streams.stream_queue import Chunk


class ColumnReader:
    """Hands out the rows of a stream. Arguments: ``reader`` is the stream's.

    ``in_hand`` holds the rows that were read for the user and are not finished; ``handed_out`` says whether they have
    reached the user.
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
        """Whether the stream has read rows that the user has not received yet."""
        return bool(self.in_hand) and not self.handed_out

    # ---- rows that were handed out

    def settle(self) -> None:
        """Finish the rows in the user's hands, if there are any; rows that have not reached the user come again."""
        if not self.handed_out:
            self.return_last()
            return
        for part in self.in_hand:
            position, chunk = part.position, part.chunk
            # one write: no longer held and consumed up to here; otherwise a revocation could commit without these rows
            position.consumed = part.end
            taken = chunk is self._queue.taken
            self._reader.passed(chunk, part.first, part.end, closing=part.whole and not taken)
            if taken and (part.whole or position.halted):
                self._reader.finish(chunk)
            elif position.revoked:
                self._queue.wake_revocation()
        self._clear()

    def return_last(self) -> None:
        """Have the rows that were read for the user come again: they did not reach the user."""
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

    def return_rows_unless(self, before: Sequence[ChunkPart]) -> None:
        """Have the rows of a failed read come again.

        ``before`` are the rows that were in hand when the read began. They stay in hand if the read was refused before
        it began (a wrong argument, a stream that another thread is reading).
        """
        if self.in_hand is not before or not self.handed_out:
            self.return_last()

    def _clear(self) -> None:
        self.in_hand = ()
        # after the line above: otherwise an interrupt between the two could count rows that are still in hand
        self.handed_out = self._released = False

    def release(self) -> None:
        """Drop the fetched bytes of the rows, which are copied into the user's table.

        If the rows have to come again after this, they are fetched again.
        """
        self._released = True
        kept = []
        for part in self.in_hand:
            if part.chunk is not self._queue.taken:
                self._reader.count_bytes(part.chunk)
                part = part._replace(chunk=_emptied(part.chunk))
            kept.append(part)
        self.in_hand = kept

    # ---- rows to hand out

    def next_batch(self, form: RowForm, limits: BatchLimits, deadline: ReadDeadline) -> Any:
        """Return the next rows of one partition; None at the end of the stream. ``settle`` was called before.

        Raises: ConsumerTimeoutException; an unreadable place; the error that made the connector fail.
        """
        while True:
            part = self._next_part(form, limits, deadline, {})
            if part is None:
                return None
            if part.rows is None:
                self._pass(part)
                continue
            self.in_hand = parts = [part]
            if self.hand_over(parts, deadline):
                return part.rows
            self._clear()

    def collect(
        self,
        form: RowForm,
        rows: int,
        deadline: ReadDeadline,
        quiet: ReadDeadline,
        patience: float | None,
        report: Callable[[int], object],
    ) -> list[Any]:
        """Return ``rows`` rows of any partitions, or fewer. ``settle`` was called before.

        It returns fewer rows at the end of ``deadline``, when no row came for ``patience`` seconds (``quiet`` is the
        deadline for the first one), or before an unreadable place. ``report`` is called with the number of rows so far.

        Raises: an unreadable place if there are no rows before it; the error that made the connector fail.
        """
        parts: list[ChunkPart] = []
        self.in_hand = parts
        try:
            self.gather(parts, form, rows, deadline, quiet, patience, report)
            if not self.hand_over(parts, _sooner(deadline, ReadDeadline(patience))):
                self._clear()
                return []
        except ConsumerTimeoutException:  # at the gate
            self.return_last()
            return []
        finally:
            self._queue.ahead = {}
        return [part.rows for part in parts if part.rows is not None]

    def gather(
        self,
        parts: list[ChunkPart],
        form: RowForm,
        wanted: int,
        deadline: ReadDeadline,
        quiet: ReadDeadline,
        patience: float | None,
        report: Callable[[int], object],
    ) -> None:
        """Put rows into ``parts`` until there are enough, a deadline passes, or an unreadable place comes."""
        reached: dict[PartitionPosition, int] = {}
        self._queue.ahead = reached
        last: dict[PartitionPosition, int] = {}
        rows = 0
        while rows < wanted:
            if parts and self._decoder is not None and self._decoder.fails:
                return  # the next read raises it
            try:
                part = self._next_part(form, BatchLimits(wanted - rows, ANY), _sooner(deadline, quiet), reached)
            except ConsumerTimeoutException:
                return
            except UnreadableMessageError:
                if not parts:
                    raise
                return  # the position has not moved: the next read raises it
            if part is None:
                return
            position = part.position
            if part.rows is not None:
                rows += part.rows.num_rows
                quiet = ReadDeadline(patience)
            elif position not in last:
                self._pass(part)
                continue
            self._keep(part, parts, last)
            reached[position] = part.end
            report(rows)

    def _keep(self, part: ChunkPart, parts: list[ChunkPart], last: dict[PartitionPosition, int]) -> None:
        """Add a part to ``parts``; ``last`` is the index of each partition's last one there."""
        position = part.position
        before = parts[last[position]] if position in last else None
        kept = _kept(part, before)
        if before is not None and kept.first == before.first:
            parts[last[position]] = kept
        else:
            last[position] = len(parts)
            parts.append(kept)
        if part.whole:
            if kept.chunk is not part.chunk:
                self._reader.count_bytes(part.chunk)
            self._queue.finish_taken()

    def _pass(self, part: ChunkPart) -> None:
        """Pass a part without rows: markers of transactions, aborted data, or offsets that were compacted away."""
        part.position.consumed = part.end
        if part.whole:
            self._reader.finish(part.chunk)

    def _next_part(
        self, form: RowForm, limits: BatchLimits, deadline: ReadDeadline, reached: Mapping[PartitionPosition, int]
    ) -> ChunkPart | None:
        """Return the next rows of the chunk being read, or of the next one. Returns None at the end of the stream, and
        before a chunk that moves a partition in ``reached``, of which rows were read already.
        """
        reader, queue = self._reader, self._queue
        while not queue.closed:
            chunk = reader.next_chunk(deadline)
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
                reader.wait_at_gate(deadline)
                continue
            decoder = self._decoder
            if decoder is None or decoder.chunk is not chunk or decoder.at != start or decoder.form != form:
                decoder = self._decoder = ChunkDecoder(reader, chunk, start, form)
            part = decoder.next_part(limits)
            if part.whole:
                self._decoder = None
            return part
        return None

    def hand_over(self, parts: list[ChunkPart], deadline: Deadline) -> bool:
        """Announce the rows and look at the gate; returns whether any may be handed out.

        These are left in ``parts`` and in ``in_hand``. Raises: ConsumerTimeoutException if the gate stays closed.
        """
        reader = self._reader
        while parts and not self._queue.closed:
            for part in parts:
                position = part.chunk.position
                position.batch_until = position.held_until = part.end
            # in this order, otherwise a token would be taken for nothing
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
            # in this order, otherwise the rows would count as a message in hand for a moment
            part.position.held_until = NOTHING_HELD
            part.position.batch_until = NOTHING_HELD
        self._queue.wake_revocation()

    def _put_back(self, parts: Sequence[ChunkPart]) -> None:
        """Queue the chunks of these rows again: they are not handed out. Chunks that are no longer ours are dropped."""
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
    """Return the part to keep while a table is collected, so that it can be put back behind ``before``.

    ``before`` is the last kept part of the same partition. Of a chunk without rows only the place is kept. Otherwise
    any amount of aborted data would stay in memory, which no limit counts. Two such places become one, which begins
    where ``before`` does.
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
