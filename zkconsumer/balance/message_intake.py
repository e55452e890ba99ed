"""Takes in the messages of a run: those that the reader reads, and those of pointers. They wait here for workers.

Slots and partitions that leave take their waiting messages along.

Threads: the reader, the thread of parked messages and the sharing thread. The lock, which is the dispatcher's too,
guards the lanes and the numbers of messages in hand. Nothing waits under it, and no function of the application is
called under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from zkconsumer.balance.dispatched_work import ReadWork
from zkconsumer.balance.failed_messages import Parking
from zkconsumer.balance.idle_workers import BatchSize, IdleWorkers
from zkconsumer.balance.message_order import Order, WaitingMessages
from zkconsumer.balance.open_partition import OpenPartition, SharedSlots
from zkconsumer.core.key_slots import NO_SLOT, slot_of_key
from zkconsumer.core.message_pointers import key_mark
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag
from zkconsumer.streams.stream_queue import Chunk

ENOUGH = 512
"""Startable messages, or keys, after which no more is read: many live objects make Python's garbage collector slow."""


class ReaderPause:
    """Keeps the reader from reading while ``enough`` messages are startable. The reader waits for ``flag``."""

    def __init__(self, waiting: WaitingMessages) -> None:
        self.flag = WakeFlag()
        self.enough = ENOUGH
        self._waiting = waiting
        self._pauses = False

    def has_enough(self) -> bool:
        """Return whether there is enough to begin; if so, the reader is woken when that changes."""
        if self._waiting.startable < self.enough:
            return False
        self._pauses = True
        return self._waiting.startable >= self.enough  # it may have changed before the note

    def taken(self) -> None:
        """Wake the reader if it is time to read on: workers have taken some messages."""
        if self._pauses and self._waiting.startable < self.enough // 2:
            self._pauses = False
            self.flag.set()


class MessageIntake:
    """The messages that wait in one run, as those see them that bring them.

    Arguments: ``order`` of the run; ``wake_executor`` is called when there may be work to take; ``sizes`` says how many
    messages a worker takes.
    """

    def __init__(self, order: Order, wake_executor: Callable[[], None], sizes: BatchSize) -> None:
        self.lock = InterruptibleLock()
        self.waiting = WaitingMessages(order)
        self.parking = Parking(self.waiting, order)
        self.workers = IdleWorkers(self.lock, wake_executor, sizes)
        self.pause = ReaderPause(self.waiting)
        self.order = order

    # ---- the reader

    def push(self, partition: OpenPartition, works: Sequence[ReadWork]) -> None:
        """Add messages that were read, in order."""
        chunk, slots = works[0].part.chunk, partition.slots
        with self.lock:
            if slots is not None and slots.hand:
                # a slot came back while a message of it was in hand: its outcome is still to come
                in_hand = {work.offset for work in slots.hand if not work.pointer}
                works = [work for work in works if work.offset not in in_hand]
            works = self.parking.behind_parked(partition, works)
            if chunk is not None:
                chunk.unfinished += len(works)
            self.waiting.add(partition, works)
            startable = self.waiting.startable
        self.workers.wake_for(startable)
        self.workers.wake_executor()

    def chunk_read(self, partition: OpenPartition, chunk: Chunk) -> None:
        """Note that a chunk was read to its end, so that its messages alone keep it."""
        with self.lock:
            chunk.unfinished -= 1
            if not chunk.unfinished:
                partition.chunk_finished(chunk)

    def open(self, partition: OpenPartition, others: Iterable[OpenPartition]) -> None:
        """Take messages of this stay from now on. ``others`` are open, too, perhaps at the same partition."""
        with self.lock:
            for other in others:
                if other.position.tp == partition.position.tp and other.slots is not None:
                    self.waiting.hold(other.slots.hand)

    def resume(self, partition: OpenPartition) -> None:
        """Let messages of a partition begin again that was paused or stopped."""
        with self.lock:
            self.waiting.resume(partition)
            startable = self.waiting.startable
        self.workers.wake_for(startable)
        self.workers.wake_executor()

    def drop(self, partition: OpenPartition) -> None:
        """Forget what has not begun of a stay that has ended."""
        with self.lock:
            if partition.slots is not None:  # a borrower may become the owner without a new session
                self.waiting.hold(partition.slots.hand)
            self.waiting.drop(partition)
            partition.held_chunks.clear()

    # ---- messages of pointers

    def add_pointer_work(self, work: ReadWork) -> bool:
        """Add the message of a pointer, which goes before later messages of its key. Any thread.

        Returns False if the stay has ended, if the key is on loan, if an earlier message of the key is parked, or if
        the log is not read so far yet. The caller adds the message later then.
        """
        partition, key = work.partition, work.key
        # without a key no order holds it back, and whoever has its slot does not handle what is parked
        by_key = self.order is Order.KEY and key is not None
        work.slot = slot_of_key(key) if by_key and key is not None else NO_SLOT
        with self.lock:
            if partition.position.revoked:
                return False
            if partition.slots is not None and partition.slots.leaving >> work.slot & 1:
                return False
            if by_key and key is not None:
                if not work.ledger.comes_first(work.offset, key_mark(key)):
                    return False  # a message that was parked while this one was read from the log comes first
                if work.offset >= partition.reading.at and not partition.full_because:
                    return False  # an earlier one of the key may come yet, unless there is no room to park that as well
            self.waiting.put_back(work)
        self.workers.look()
        return True

    def return_pointer_works(self, partition: OpenPartition) -> None:
        """Forget the messages of pointers of a partition that have not begun; each is told as settled. Any thread."""
        with self.lock:
            for work in self.waiting.remove_all(partition, attrgetter("pointer")):
                work.forget()

    def refresh_parked(self, partition: OpenPartition) -> None:
        """Look at the pointers of a partition again: somebody may have dropped or replayed some. Any thread."""
        with self.lock:
            self.parking.refresh(partition)
            startable = self.waiting.startable
        self.workers.wake_for(startable)

    # ---- slots that come and go

    def give_up(self, partition: OpenPartition, slots: int, empty: Callable[[], None]) -> None:
        """Begin no more messages of these slots, and forget those that wait, which stay unfinished. Any thread.

        ``empty`` is called once when no message of the slots is in hand, perhaps before this returns.
        """
        shared = partition.shared
        with self.lock:
            shared.leave(slots, empty)
            for work in self.waiting.remove_all(partition, lambda work: slots >> work.slot & 1):
                shared.note_gap(work)
                work.forget()
        self.tell_leavers(shared)

    def take_on(self, partition: OpenPartition, slots: int) -> None:
        """Begin messages of these slots, which come back."""
        with self.lock:
            partition.shared.take_on(slots)

    def reopen(self, partition: OpenPartition, slots: int) -> tuple[int, set[int]]:
        """Begin messages of these slots again, which stay after all. Any thread.

        A slot stays closed while a message of it is forgotten and a later message of the same key is in hand. Otherwise
        the later message could begin first. Returns the slots that are open now, and the offsets of their messages in
        hand.
        """
        with self.lock:
            return partition.shared.reopen(slots)

    def tell_leavers(self, slots: SharedSlots) -> None:
        """Tell those who wait for slots to be empty of messages in hand."""
        with self.lock:
            empty = slots.empty()
        for tell in empty:
            tell()
