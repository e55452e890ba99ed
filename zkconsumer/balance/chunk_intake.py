"""Reads the chunks of all streams, and gives their messages to the dispatcher.

It takes each chunk at once, so that a partition that is not read on holds up no other. A partition is read on while it
has fewer unfinished messages than the window (``unfinished.max.offsets``) and holds no more than its share of the byte
budget. Otherwise its position is ``full``, and the fetcher leaves it out.

Threads: ``<consumer>-reader`` alone reads. Any thread may call :meth:`ChunkIntake.wake`, :meth:`ChunkIntake.submit` and
:meth:`ChunkIntake.stop`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, time_ns
from typing import Any

from zkconsumer.balance.dispatched_work import ReadPart, ReadWork
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.message_order import Order
from zkconsumer.balance.open_partition import (
    BorrowedSlots,
    Lending,
    OpenPartition,
    OpenPartitions,
    ReadLimits,
    SharedSlots,
    begin_lending,
    unstored,
)
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS, slot_of_key, slot_of_offset
from zkconsumer.errors import ConsumerTimeoutException, UnreadableMessageError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.member_streams import MemberStreams
from zkconsumer.streams.stream_queue import Chunk

log = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between two looks at partitions that came, left, were paused or resumed."""
PART = 256
"""Messages that are read at a time from one partition."""
WAITING = 2
"""Chunks of one partition that wait to be read before no more are fetched."""
SHARE = 4
"""One partition may hold at most 1/``SHARE`` of the free bytes."""
RANGE = 100
"""The base may be at most so many windows behind, whatever is finished between: a note lists what is not."""


class ChunkIntake:
    """Reads all streams of a member.

    Arguments: ``positions`` returns those of the member now; ``wake_fetchers`` is called when a partition has room
    again; ``lending`` makes the ledgers of partitions whose slots may be lent (None: no slots are lent);
    ``idle_calls`` are made at each look, on the reader's thread, and must return at once.
    """

    def __init__(
        self,
        name: str,
        dispatcher: Dispatcher,
        limits: ReadLimits,
        delivery: MemberStreams,
        positions: Callable[[], Mapping[TopicPartition, PartitionPosition]],
        wake_fetchers: Callable[[], None],
        lending: Lending | None = None,
        idle_calls: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self.intake = dispatcher.intake
        self._limits = limits
        self._delivery = delivery
        self._positions = positions
        self._wake_fetchers = wake_fetchers
        self._lending = lending
        self._idle_calls = idle_calls
        self.partitions = OpenPartitions()
        self.unstored: Mapping[TopicPartition, float] = {}
        """See :func:`~zkconsumer.balance.open_partition.unstored`. Replaced, and never changed."""
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = False
        self._tended = 0.0
        self._serial = 0
        self.thread = Thread(target=self._run, name=f"{name}-reader", daemon=True)

    # ---- any thread

    def start(self) -> None:
        """Start the thread."""
        self._limits.budget.enter(self.partitions)
        self.thread.start()

    def wake(self) -> None:
        """Look again: there is room, or something changed."""
        self.intake.pause.flag.set()

    def borrow(
        self, position: PartitionPosition, ledger: BalancedLedger, stream: KafkaStream[Any, Any]
    ) -> OpenPartition:
        """Read slots of a partition of another member, which ``ledger`` counts. Called on the reader's thread."""
        limit, slots = self._limits.end(position.tp), BorrowedSlots()
        partition = OpenPartition(position, ledger, stream, self._dispatcher, limit=limit, slots=slots)
        self.partitions.borrowed[position] = partition
        self.intake.open(partition, self.partitions)
        return partition

    def return_borrowed(self, position: PartitionPosition) -> None:
        """Read this partition of another member no more. Called on the reader's thread."""
        partition = self.partitions.borrowed.pop(position, None)
        if partition is not None:
            partition.reading.forget_chunks()
            self.intake.drop(partition)

    def submit(self, call: Callable[[], None]) -> None:
        """Have the reader's thread call this between two messages. It must return at once."""
        self._calls.put(call)
        self.intake.pause.flag.set()

    def stop(self) -> None:
        """End the thread; returns at once."""
        self._stopping = True
        self.intake.pause.flag.set()

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.intake.pause.flag.clear()
                if not self.step():
                    self.intake.pause.flag.wait(TICK)
        except BaseException as e:  # noqa: BLE001 (the caller of run raises it)
            self._dispatcher.abort(e)
        finally:
            self._limits.budget.leave(self.partitions)
            for stream in self._streams():
                stream.queue.watch(None)
            for partition in self.partitions:
                partition.position.full = False
            self._wake_fetchers()

    def step(self) -> bool:
        """Do one round; returns whether something was read."""
        self._serve_calls()
        now = monotonic()
        if now - self._tended >= TICK:
            self._tended = now
            self._tend()
        for stream in (*self._streams(), *(partition.stream for partition in list(self.partitions.borrowed.values()))):
            if not stream.queue.closed:
                self._take_chunks(stream)
        if self.intake.pause.has_enough():
            return False
        read = False
        for partition in self.partitions:
            read = self._read(partition) or read
        return read

    def _streams(self) -> list[KafkaStream[Any, Any]]:
        return [stream for _, _, stream in self._delivery.streams()]

    def _serve_calls(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            call()

    def _tend(self) -> None:
        """Open partitions that came, and drop those that left."""
        for tp, position in self._positions().items():
            partition = self.partitions.own.get(tp)
            known = partition is not None and partition.position is position
            if not known and position.consumed is not None and not position.revoked:
                self._open(position)
        for partition in self.partitions:
            reading = partition.reading
            if reading.base != partition.ledger.base:
                reading.base, reading.base_since = partition.ledger.base, self._tended
            if partition.position.revoked:
                self._drop(partition)
                self.return_borrowed(partition.position)
            elif partition.outcomes.retry_at and monotonic() >= partition.outcomes.retry_at:
                partition.stopped, partition.outcomes.retry_at = "", 0.0
                self.intake.resume(partition)
            elif partition.aside and not (partition.position.halted or partition.stopped or partition.unseen_loan):
                self.intake.resume(partition)
        if self._limits.stores:
            self.unstored = unstored(self.partitions.own.values(), self._tended)
        for call in self._idle_calls:
            call()

    def _take_chunks(self, stream: KafkaStream[Any, Any]) -> None:
        queue = stream.queue
        queue.watch(self.intake.pause.flag.set)
        while queue.ready:
            try:
                chunk = queue.take(Deadline(0))
            except ConsumerTimeoutException:
                return  # it was revoked or paused a moment ago
            if chunk is None:
                return
            position = chunk.position
            if not position.revoked:
                partition = self.partitions.of(position)
                if partition is None:
                    partition = self._open(position, chunk)
                if partition is not None:
                    partition.add(chunk)
                    self._note_room(partition)
            queue.finish_taken()
        if any(one.stream.queue is queue and (one.reading.chunks or one.held_chunks) for one in self.partitions):
            queue.withdraw_ask()
        else:
            queue.ask()  # it is served before all others: nothing of it is in hand

    # ---- partitions that come and go

    def _open(
        self, position: PartitionPosition, chunk: Chunk | None = None, kept: FinishedNote | None = None
    ) -> OpenPartition | None:
        """Begin a stay at a partition. Returns None if the chunk is not the next one to read.

        Arguments: ``kept`` tells what is finished beyond the place that the chunk jumps to.
        """
        old = self.partitions.own.get(position.tp)
        if old is not None:
            self._drop(old)
        stream = self._delivery.stream_of(position)
        again = position.ledger is not None or position.full  # some were dropped
        jumps = chunk is not None and (chunk.jump or position.consumed is None)
        if chunk is not None and jumps:
            position.consumed = chunk.fetch_offset
            position.batch_until = NOTHING_HELD
        lending = self._lending
        shared = lending is not None and lending.concerns(position)
        if lending is not None and shared:
            if not begin_lending(position, lending, jumps=jumps):
                return None
            again = True
        elif position.ledger is None or jumps:
            # what is stored, and no more: a message must not be passed by a pointer that nobody writes any more
            base, note = position.consumed or 0, kept if jumps else position.ledger_start.note
            pointers = position.stored.pointers
            position.ledger = BalancedLedger(position, base, note, pointers, lock=InterruptibleLock())
        elif again:
            position.ledger.begin_again()
        assert position.ledger is not None
        position.ledger.lose_cut(time_ns() // 1_000_000)
        # parked messages of lent keys wait until the slot is back
        slots = SharedSlots(leaving=ALL_SLOTS & ~position.ledger.slots) if shared else None
        limit = self._limits.end(position.tp)
        partition = OpenPartition(position, position.ledger, stream, self._dispatcher, limit=limit, slots=slots)
        partition.note_pointers()
        self.partitions.own[position.tp] = partition
        self.intake.open(partition, self.partitions)
        if again and (shared or not jumps):
            stream.queue.read_again(position, partition.reading.at)  # an earlier run has read beyond
            return None if chunk is None or chunk.fetch_offset > partition.reading.at else partition
        return partition

    def _drop(self, partition: OpenPartition) -> None:
        """Forget a stay that has ended. Messages of it that are in hand are settled with its own ledger."""
        if self.partitions.own.get(partition.position.tp) is partition:
            del self.partitions.own[partition.position.tp]
        partition.reading.forget_chunks()
        self.intake.drop(partition)

    # ---- reading

    def _note_room(self, partition: OpenPartition) -> bool:
        """Note whether more of the partition may be read; returns so."""
        limits, ledger, reading = self._limits, partition.ledger, partition.reading
        unfinished = ledger.unfinished
        room = unfinished < limits.window and reading.at - ledger.base < RANGE * limits.window
        room = room and not partition.full_because and reading.at < reading.limit
        room = room and partition.position.tp not in self.unstored
        if room and unfinished:
            room = partition.held_bytes < max(0, limits.budget.free()) // SHARE
        reading.wants_room = not room
        reading.room_at = limits.window * 3 // 4
        full = not room or len(reading.chunks) >= WAITING
        if partition.position.full != full:
            partition.position.full = full
            if not full:
                self._wake_fetchers()
        return room

    def _read(self, partition: OpenPartition) -> bool:
        """Read some messages of a partition; returns whether there was anything to read."""
        reading = partition.reading
        if reading.error is not None:
            self._raise_if_reached(partition)
            return False
        if partition.position.halted or not (reading.chunks or reading.records is not None):
            if partition.position.full and not partition.position.halted:
                self._note_room(partition)
            return False
        if not self._note_room(partition):
            return False
        try:
            self._read_part(partition)
        except UnreadableMessageError as e:
            self._unreadable(partition, e)
        return True

    def _read_part(self, partition: OpenPartition) -> None:
        """Give some messages to the dispatcher. Raises UnreadableMessageError."""
        reading = partition.reading
        chunk = reading.chunks[0]
        if reading.batches is None and not self._begin(partition, chunk):
            return
        if reading.records is None:
            batch = next(reading.batches, None) if reading.batches is not None else None
            if batch is None:
                self._end_chunk(partition, chunk)
                return
            reading.batch, reading.records = batch, iter(batch)
        works: list[ReadWork] = []
        end = reading.at
        self._serial += 1
        try:
            whole = self._make_works(partition, chunk, works) < PART
            if whole and reading.batch is not None:
                end, reading.records = max(end, reading.batch.next_offset), None
        finally:  # what comes before an unreadable place is handled
            if works:
                end = max(end, works[-1].offset + 1)
            self._give(partition, chunk, works, end)

    def _make_works(self, partition: OpenPartition, chunk: Chunk, works: list[ReadWork]) -> int:
        """Append a work for each of the next records; returns how many records there were."""
        records = partition.reading.records
        assert records is not None
        part = ReadPart(partition, chunk, self._serial)
        # what was read before an error stays in the list
        works.extend(ReadWork(record, record.offset, record.key, part) for record in islice(records, PART))
        return len(works)

    def _give(self, partition: OpenPartition, chunk: Chunk, works: list[ReadWork], end: int) -> None:
        ledger, reading, slots = partition.ledger, partition.reading, partition.slots
        if end > reading.limit:  # the run ends before it: what is beyond must not count as read
            end, works = reading.limit, [work for work in works if work.offset < reading.limit]
        wanted = works
        if slots is not None or not ledger.plain or reading.at < reading.attempts_to:
            wanted = [work for work in works if self._wants(partition, work)]
        ledger.read([work.offset for work in wanted], end)
        if slots is not None and slots.leaving:  # counted as unfinished, and read again by whoever gets the slot
            wanted = [work for work in wanted if not slots.leaving >> work.slot & 1]
        if wanted:
            self.intake.push(partition, wanted)
        reading.at = end  # last: a parked message of a key may begin from now on, if it is before the place

    def _wants(self, partition: OpenPartition, work: ReadWork) -> bool:
        key = work.key
        slot = slot_of_key(key) if key is not None and self.intake.order is Order.KEY else slot_of_offset(work.offset)
        if not partition.ledger.wants(work.offset, slot):
            return False
        work.slot = slot
        attempts = partition.ledger.attempts(work.offset)
        if attempts is not None:
            work.attempts, work.first_ms = attempts
        return True

    def _begin(self, partition: OpenPartition, chunk: Chunk) -> bool:
        """Begin to read a chunk; returns whether it may be read now. Raises the error that it stands for."""
        reading = partition.reading
        if chunk.jump:
            reading.chunks.popleft()
            self._jump(partition, chunk.fetch_offset)
            return False
        if chunk.fetch_offset > reading.at:
            found = f"expected offset {reading.at} but the next chunk begins at {chunk.fetch_offset}"
            log.error("%s: %s; reading again from %d", partition.position.tp, found, reading.at)
            self.read_again(partition, reading.at)
            return False
        if chunk.error is not None:
            raise chunk.error
        chunk.unfinished = 1  # until it is read to its end
        partition.held_chunks[chunk] = None
        reading.batches = partition.stream.chunk_reader.batches(chunk, reading.at)
        return True

    def _end_chunk(self, partition: OpenPartition, chunk: Chunk) -> None:
        reading = partition.reading
        reading.chunks.popleft()
        reading.batches = reading.records = reading.batch = None
        end = min(chunk.next_offset, reading.limit)
        if end > reading.at:  # the rest was compacted away
            partition.ledger.read((), end)
            reading.at = end
        self.intake.chunk_read(partition, chunk)
        self._note_room(partition)

    def read_again(self, partition: OpenPartition, offset: int) -> None:
        """Read a partition again from an offset. Called on this thread."""
        reading = partition.reading
        if reading.batches is not None:  # what was read of it keeps it until that is finished, and no longer
            self.intake.chunk_read(partition, reading.chunks[0])
        # as in the queue: the fetcher has found a truncation already, and would not find it again
        back = [chunk for chunk in reading.chunks if chunk.jump and chunk.fetch_offset < offset]
        reading.forget_chunks()
        reading.at = offset
        partition.stream.queue.read_again(partition.position, offset)
        if back:
            reading.chunks.append(min(back, key=lambda chunk: chunk.fetch_offset))
            partition.position.cursor.fetch_from = reading.chunks[0].fetch_offset
            self._wake_fetchers()

    def _jump(self, partition: OpenPartition, offset: int) -> None:
        """Go on at the offset that ``auto.offset.reset`` or a truncated log names."""
        reading = partition.reading
        if offset >= reading.at:
            partition.ledger.read((), offset)
            reading.at = offset
            return
        # another log from there on: outcomes of messages in hand say nothing of it. What is before is still to be done.
        position, chunks, former = partition.position, reading.chunks, partition.ledger
        reading.chunks = type(chunks)()
        offset = min(offset, *(chunk.fetch_offset for chunk in chunks if chunk.jump), reading.at)
        reading.cut = position.ledger_start.cut = offset
        if not partition.own:
            position.revoked = True  # its loan begins anew, see BorrowedPartition.obey
            return
        start, note = min(former.base, offset), former.point(pointers=False).note.before(offset)
        former.leave_position()
        partition.position = former.position  # it has ended, and its messages with it
        position.held_until = NOTHING_HELD
        self._drop(partition)
        made = self._open(position, Chunk(position, b"", start, start, jump=True), note if start < offset else None)
        if made is not None:
            if start < offset:
                self.read_again(made, start)
            else:
                made.reading.chunks = chunks

    # ---- unreadable places

    def _unreadable(self, partition: OpenPartition, error: UnreadableMessageError) -> None:
        reading = partition.reading
        if reading.at >= reading.limit:
            return
        chunk = reading.chunks[0]
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__
        if partition.stream.chunk_reader.is_doubtful(chunk, error):
            self.read_again(partition, reading.at)
            return
        if not partition.stream.chunk_reader.skips(error):
            reading.error = error
            self._raise_if_reached(partition)
            return
        partition.stream.queue.count_skipped(error)
        if chunk.error is error:
            end = max(error.next_offset, reading.at)
            partition.ledger.read((), end)
            self.read_again(partition, end)
            return
        end = max(min(error.next_offset, chunk.next_offset), reading.at)
        partition.ledger.read((), end)
        reading.at = end
        reading.records = reading.batch = None
        if end >= chunk.next_offset:
            self._end_chunk(partition, chunk)
        else:
            reading.batches = partition.stream.chunk_reader.batches(chunk, end)

    def _raise_if_reached(self, partition: OpenPartition) -> None:
        """Raise what cannot be read once all before it is finished; otherwise it would come first after each start."""
        error = partition.reading.error
        if error is not None and not partition.ledger.unfinished and not partition.in_hand:
            raise error
