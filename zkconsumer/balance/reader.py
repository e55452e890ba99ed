"""Reads the chunks of all streams, and gives their messages to the dispatcher.

It takes each chunk at once, so that a partition that is not read on holds up no other. A partition is read on while it
has fewer unfinished messages than the window (``unfinished.max.offsets``) and holds no more than its share of the byte
budget. Otherwise its position is ``full``, and the fetcher leaves it out.

Threads: ``<consumer>-reader`` alone reads. Any thread may call :meth:`Reader.wake`, :meth:`Reader.submit` and
:meth:`Reader.stop`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, time_ns
from typing import Any

from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.open_partition import (
    Lending,
    OpenPartition,
    ReadLimits,
    begin_lending,
    unstored,
)
from zkconsumer.balance.read_work import ReadPart, ReadWork
from zkconsumer.balance.waiting_messages import Order
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS, slot_of_key, slot_of_offset
from zkconsumer.core.message_ledger import MessageLedger
from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.errors import ConsumerTimeoutException, UnreadableMessageError
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.streams import KafkaStream
from zkconsumer.streams.stream_delivery import StreamDelivery
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


class Reader:
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
        delivery: StreamDelivery,
        positions: Callable[[], Mapping[TopicPartition, PartitionPosition]],
        wake_fetchers: Callable[[], None],
        lending: Lending | None = None,
        idle_calls: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._order = dispatcher.rules.order
        self._limits = limits
        self._delivery = delivery
        self._positions = positions
        self._wake_fetchers = wake_fetchers
        self._lending = lending
        self._idle_calls = idle_calls
        self._homes: dict[TopicPartition, OpenPartition] = {}
        self.unstored: Mapping[TopicPartition, float] = {}
        """See :func:`~zkconsumer.balance.open_partition.unstored`. Replaced, and never changed."""
        self._borrowed: dict[PartitionPosition, OpenPartition] = {}
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._flag = dispatcher.reader_flag
        self._stopping = False
        self._tended = 0.0
        self._serial = 0
        self.thread = Thread(target=self._run, name=f"{name}-reader", daemon=True)

    # ---- any thread

    @property
    def partitions(self) -> Sequence[OpenPartition]:
        """The partitions that are read, also those of other members (a copy)."""
        return [*list(self._homes.values()), *list(self._borrowed.values())]

    @property
    def held_bytes(self) -> int:
        """Bytes of all chunks that wait to be read, or whose messages are not all finished."""
        return sum(home.held_bytes for home in self.partitions)

    def start(self) -> None:
        """Start the thread."""
        self._limits.budget.enter(self)
        self.thread.start()

    def wake(self) -> None:
        """Look again: there is room, or something changed."""
        self._flag.set()

    def borrow(
        self, position: PartitionPosition, ledger: MessageLedger, stream: KafkaStream[Any, Any]
    ) -> OpenPartition:
        """Read slots of a partition of another member, which ``ledger`` counts. Called on the reader's thread."""
        home = OpenPartition(position, ledger, stream, self._dispatcher, own=False)
        home.limit = self._limits.end(position.tp)
        self._borrowed[position] = home
        self._dispatcher.open(home)
        return home

    def return_borrowed(self, position: PartitionPosition) -> None:
        """Read this partition of another member no more. Called on the reader's thread."""
        home = self._borrowed.pop(position, None)
        if home is not None:
            home.forget_chunks()
            self._dispatcher.drop(home)

    def home_of(self, position: PartitionPosition) -> OpenPartition | None:
        """Return the stay that reads for this position, None if there is none. Any thread."""
        home = self._borrowed.get(position) or self._homes.get(position.tp)
        return home if home is not None and home.position is position else None

    def submit(self, call: Callable[[], None]) -> None:
        """Have the reader's thread call this between two messages. It must return at once."""
        self._calls.put(call)
        self._flag.set()

    def stop(self) -> None:
        """End the thread; returns at once."""
        self._stopping = True
        self._flag.set()

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._flag.clear()
                if not self.step():
                    self._flag.wait(TICK)
        except BaseException as e:  # noqa: BLE001 (the caller of run raises it)
            self._dispatcher.abort(e)
        finally:
            self._limits.budget.leave(self)
            for stream in self._streams():
                stream.queue.watch(None)
            for home in self.partitions:
                home.position.full = False
            self._wake_fetchers()

    def step(self) -> bool:
        """Do one round; returns whether something was read."""
        self._serve_calls()
        now = monotonic()
        if now - self._tended >= TICK:
            self._tended = now
            self._tend()
        for stream in (*self._streams(), *(home.stream for home in list(self._borrowed.values()))):
            if not stream.queue.closed:
                self._take_chunks(stream)
        if self._dispatcher.has_enough():
            return False
        read = False
        for home in self.partitions:
            read = self._read(home) or read
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
            home = self._homes.get(tp)
            known = home is not None and home.position is position
            if not known and position.consumed is not None and not position.revoked:
                self._open(position)
        for home in self.partitions:
            if home.held_base != home.ledger.base:
                home.held_base, home.held_since = home.ledger.base, self._tended
            if home.position.revoked:
                self._drop(home)
                self.return_borrowed(home.position)
            elif home.retry_at and monotonic() >= home.retry_at:
                home.stopped, home.retry_at = "", 0.0
                self._dispatcher.resume(home)
            elif home.aside and not home.position.halted and not home.stopped:
                self._dispatcher.resume(home)
        if self._limits.stores:
            self.unstored = unstored(self._homes.values(), self._tended)
        for call in self._idle_calls:
            call()

    def _take_chunks(self, stream: KafkaStream[Any, Any]) -> None:
        queue = stream.queue
        queue.watch(self._flag.set)
        while queue.ready:
            try:
                chunk = queue.take(Deadline(0))
            except ConsumerTimeoutException:
                return  # it was revoked or paused a moment ago
            if chunk is None:
                return
            position = chunk.position
            if not position.revoked:
                home = self.home_of(position)
                if home is None:
                    home = self._open(position, chunk)
                if home is not None:
                    home.add(chunk)
                    self._note_room(home)
            queue.finish_taken()
        if any(home.stream.queue is queue and (home.chunks or home.held_chunks) for home in self.partitions):
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
        old = self._homes.get(position.tp)
        if old is not None:
            self._drop(old)
        stream, again = (
            self._delivery.stream_of(position),
            position.ledger is not None or position.full,
        )  # some were dropped
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
            pointers = position.ledger.stored_pointers if position.ledger is not None else position.known_pointers
            note = kept if jumps else position.known_note
            position.ledger = MessageLedger(position, position.consumed or 0, note, pointers, lock=InterruptibleLock())
        elif again:
            position.ledger.begin_again()
        assert position.ledger is not None
        position.ledger.lose_cut(time_ns() // 1_000_000)
        home = OpenPartition(position, position.ledger, stream, self._dispatcher)
        home.shared = shared
        home.leaving = ALL_SLOTS & ~home.ledger.slots  # parked messages of lent keys wait until the slot is back
        home.limit = self._limits.end(position.tp)
        home.note_pointers()
        self._homes[position.tp] = home
        self._dispatcher.open(home)
        if again and (shared or not jumps):
            stream.queue.read_again(position, home.at)  # an earlier run has read beyond
            return None if chunk is None or chunk.fetch_offset > home.at else home
        return home

    def _drop(self, home: OpenPartition) -> None:
        """Forget a stay that has ended. Messages of it that are in hand are settled with its own ledger."""
        if self._homes.get(home.position.tp) is home:
            del self._homes[home.position.tp]
        home.forget_chunks()
        self._dispatcher.drop(home)

    # ---- reading

    def _note_room(self, home: OpenPartition) -> bool:
        """Note whether more of the partition may be read; returns so."""
        limits, ledger = self._limits, home.ledger
        unfinished = ledger.unfinished
        room = unfinished < limits.window and home.at - ledger.base < RANGE * limits.window and not home.full_because
        room = room and home.at < home.limit and home.position.tp not in self.unstored
        if room and unfinished:
            room = home.held_bytes < max(0, limits.budget.free()) // SHARE
        home.wants_room = not room
        home.room_at = limits.window * 3 // 4
        full = not room or len(home.chunks) >= WAITING
        if home.position.full != full:
            home.position.full = full
            if not full:
                self._wake_fetchers()
        return room

    def _read(self, home: OpenPartition) -> bool:
        """Read some messages of a partition; returns whether there was anything to read."""
        if home.error is not None:
            self._raise_if_reached(home)
            return False
        if home.position.halted or not (home.chunks or home.records is not None):
            if home.position.full and not home.position.halted:
                self._note_room(home)
            return False
        if not self._note_room(home):
            return False
        try:
            self._read_part(home)
        except UnreadableMessageError as e:
            self._unreadable(home, e)
        return True

    def _read_part(self, home: OpenPartition) -> None:
        """Give some messages to the dispatcher. Raises UnreadableMessageError."""
        chunk = home.chunks[0]
        if home.batches is None and not self._begin(home, chunk):
            return
        if home.records is None:
            batch = next(home.batches, None) if home.batches is not None else None
            if batch is None:
                self._end_chunk(home, chunk)
                return
            home.batch, home.records = batch, iter(batch)
        works: list[ReadWork] = []
        end = home.at
        self._serial += 1
        try:
            whole = self._make_works(home, chunk, works) < PART
            if whole and home.batch is not None:
                end, home.records = max(end, home.batch.next_offset), None
        finally:  # what comes before an unreadable place is handled
            if works:
                end = max(end, works[-1].offset + 1)
            self._give(home, chunk, works, end)

    def _make_works(self, home: OpenPartition, chunk: Chunk, works: list[ReadWork]) -> int:
        """Append a work for each of the next records; returns how many records there were."""
        assert home.records is not None
        part = ReadPart(home, chunk, self._serial)
        records = islice(home.records, PART)
        # what was read before an error stays in the list
        works.extend(ReadWork(record, record.offset, record.key, part) for record in records)
        return len(works)

    def _give(self, home: OpenPartition, chunk: Chunk, works: list[ReadWork], end: int) -> None:
        ledger = home.ledger
        if end > home.limit:  # the run ends before it: what is beyond must not count as read
            end, works = home.limit, [work for work in works if work.offset < home.limit]
        wanted = works
        if home.shared or not ledger.plain or home.at < home.attempts_to:
            wanted = [work for work in works if self._wants(home, work)]
        ledger.read([work.offset for work in wanted], end)
        home.at = end
        if home.leaving:  # counted as unfinished, and read again by whoever gets the slot
            wanted = [work for work in wanted if not home.leaving >> work.slot & 1]
        if wanted:
            self._dispatcher.push(home, wanted)

    def _wants(self, home: OpenPartition, work: ReadWork) -> bool:
        key = work.key
        slot = slot_of_key(key) if key is not None and self._order is Order.KEY else slot_of_offset(work.offset)
        if not home.ledger.wants(work.offset, slot):
            return False
        work.slot = slot
        attempts = home.ledger.attempts(work.offset)
        if attempts is not None:
            work.attempts, work.first_ms = attempts
        return True

    def _begin(self, home: OpenPartition, chunk: Chunk) -> bool:
        """Begin to read a chunk; returns whether it may be read now. Raises the error that it stands for."""
        if chunk.jump:
            home.chunks.popleft()
            self._jump(home, chunk.fetch_offset)
            return False
        if chunk.fetch_offset > home.at:
            log.error(
                "%s: expected offset %d but the next chunk begins at %d; reading again from %d",
                home.position.tp,
                home.at,
                chunk.fetch_offset,
                home.at,
            )
            self.read_again(home, home.at)
            return False
        if chunk.error is not None:
            raise chunk.error
        chunk.unfinished = 1  # until it is read to its end
        home.held_chunks[chunk] = None
        home.batches = home.stream.chunk_reader.batches(chunk, home.at)
        return True

    def _end_chunk(self, home: OpenPartition, chunk: Chunk) -> None:
        home.chunks.popleft()
        home.batches = home.records = home.batch = None
        end = min(chunk.next_offset, home.limit)
        if end > home.at:  # the rest was compacted away
            home.ledger.read((), end)
            home.at = end
        self._dispatcher.chunk_read(home, chunk)
        self._note_room(home)

    def read_again(self, home: OpenPartition, offset: int) -> None:
        """Read a partition again from an offset. Called on this thread."""
        if home.batches is not None:  # what was read of it keeps it until that is finished, and no longer
            self._dispatcher.chunk_read(home, home.chunks[0])
        # as in the queue: the fetcher has found a truncation already, and would not find it again
        back = [chunk for chunk in home.chunks if chunk.jump and chunk.fetch_offset < offset]
        home.forget_chunks()
        home.at = offset
        home.stream.queue.read_again(home.position, offset)
        if back:
            home.chunks.append(min(back, key=lambda chunk: chunk.fetch_offset))
            home.position.cursor.fetch_from = home.chunks[0].fetch_offset
            self._wake_fetchers()

    def _jump(self, home: OpenPartition, offset: int) -> None:
        """Go on at the offset that ``auto.offset.reset`` or a truncated log names."""
        if offset >= home.at:
            home.ledger.read((), offset)
            home.at = offset
            return
        # another log from there on: outcomes of messages in hand say nothing of it. What is before is still to be done.
        position, chunks, former = home.position, home.chunks, home.ledger
        home.chunks = type(chunks)()
        home.cut = position.cut = offset = min(offset, *(chunk.fetch_offset for chunk in chunks if chunk.jump), home.at)
        if not home.own:
            position.revoked = True  # its loan begins anew, see BorrowedPartition.obey
            return
        start, note = min(former.base, offset), former.point(pointers=False).note.before(offset)
        former.leave_position()
        home.position = former.position  # it has ended, and its messages with it
        position.held_until = NOTHING_HELD
        self._drop(home)
        made = self._open(position, Chunk(position, b"", start, start, jump=True), note if start < offset else None)
        if made is not None:
            if start < offset:
                self.read_again(made, start)
            else:
                made.chunks = chunks

    # ---- unreadable places

    def _unreadable(self, home: OpenPartition, error: UnreadableMessageError) -> None:
        if home.at >= home.limit:
            return
        chunk = home.chunks[0]
        if isinstance(error.__cause__, MemoryError):
            raise error.__cause__
        if not home.stream.chunk_reader.skips(error):
            home.error = error
            self._raise_if_reached(home)
            return
        home.stream.queue.count_skipped(error)
        if chunk.error is error:
            end = max(error.next_offset, home.at)
            home.ledger.read((), end)
            self.read_again(home, end)
            return
        end = max(min(error.next_offset, chunk.next_offset), home.at)
        home.ledger.read((), end)
        home.at = end
        home.records = home.batch = None
        if end >= chunk.next_offset:
            self._end_chunk(home, chunk)
        else:
            home.batches = home.stream.chunk_reader.batches(chunk, end)

    def _raise_if_reached(self, home: OpenPartition) -> None:
        """Raise what cannot be read once all before it is finished; otherwise it would come first after each start."""
        if home.error is not None and not home.ledger.unfinished and not home.in_hand:
            raise home.error
