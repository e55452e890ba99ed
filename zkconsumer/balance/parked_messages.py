"""Parks messages, and what must not overtake them: with ``order=key`` the later messages of the same key.

Threads: the dispatcher calls it, with its lock held. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic, time

from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.read_work import ReadWork
from zkconsumer.balance.retry import RetryDecision
from zkconsumer.balance.waiting_messages import Order, WaitingMessages
from zkconsumer.core.message_pointers import MOST_POINTERS, Pointer, PointerKind, key_mark

ROOM_AGAIN = MOST_POINTERS * 3 // 4
"""Parked messages of a partition at which it is read again, after there was no room."""
NO_ROOM = "no more messages can be parked: {} pointers are there already"


class Parking:
    """The parked messages of one run, as its lanes see them."""

    def __init__(self, waiting: WaitingMessages, order: Order) -> None:
        self._waiting = waiting
        self._by_key = order is Order.KEY
        self.parked = 0
        """Messages that were parked, also behind others of their key."""

    def mark(self, work: ReadWork) -> str:
        """Return the mark of the work's key, empty if order does not matter to it."""
        return key_mark(work.key) if self._by_key and work.key is not None else ""

    def park(self, work: ReadWork, decision: RetryDecision) -> list[ReadWork] | None:
        """Park a message, and what waits behind it in its lane.

        If only the message itself has room, its successors wait in their lane, and nothing more of the partition is
        read. Returns the parked successors; None if there was no room at all.
        """
        partition, mark = work.partition, self.mark(work)
        pointer = Pointer(
            work.offset,
            PointerKind.PARKED,
            decision.attempts,
            decision.due_ms,
            decision.first_ms,
            mark,
            decision.reason or work.failure,
        )
        behind = self._waiting.waiting_behind(work) if mark else []
        if not partition.ledger.point_at([pointer, *map(self._pointer, behind)]):
            behind = []
            self._full(partition)
            if not partition.ledger.point_at([pointer]):
                return None
        if mark:
            partition.parked.add(mark)
            self._waiting.block(work, behind)
            self._waiting.lose_pointers(work)
        for one in behind:
            self._leave(one)
            one.part.passed(1)
        self.parked += len(behind) + (not work.pointer)
        return behind

    def behind_parked(self, partition: OpenPartition, works: Sequence[ReadWork]) -> Sequence[ReadWork]:
        """Park messages that were just read, and whose key has parked ones.

        Returns those that are not parked. Where there is no room they wait in their lane, and so do later ones of their
        key: a parked message is handled before those that wait.
        """
        if not partition.parked or not self._by_key:
            return works
        tp = partition.position.tp
        goes: dict[bytes, bool] = {}
        rest: list[ReadWork] = []
        behind: list[ReadWork] = []
        for work in works:
            key = work.key
            if key is not None and key not in goes:
                goes[key] = key_mark(key) in partition.parked and not self._waiting.waits(tp, key)
            (behind if key is not None and goes[key] else rest).append(work)
        if behind and not self._parked(partition, behind):
            for one in behind:
                self._waiting.block_key(tp, one.key or b"")
            return works
        return rest if behind else works

    def not_parked(self, works: Sequence[ReadWork]) -> Sequence[ReadWork]:
        """Park messages that come back although they did not begin, because an earlier one of their key was parked.

        Returns those that are not parked. Otherwise they would stand in the lane before later ones that are parked.
        """
        if not self._by_key or not any(work.part.partition.parked for work in works):
            return works
        rest = []
        for work in works:
            partition = work.part.partition
            behind = not work.pointer and self.mark(work) in partition.parked and not partition.position.revoked
            if not behind or not self._parked(partition, [work]):
                rest.append(work)
        return rest

    def _parked(self, partition: OpenPartition, works: Sequence[ReadWork]) -> bool:
        """Park messages behind earlier ones of their keys. Returns whether there was room."""
        if not partition.ledger.point_at([self._pointer(one) for one in works]):
            self._full(partition)
            return False
        self.parked += len(works)
        for one in works:
            self._leave(one)
            self._waiting.lose_pointers(one)
        return True

    @staticmethod
    def _leave(work: ReadWork) -> None:
        """End a work that is parked behind others."""
        work.open = False
        work.part.partition.failing.pop(work.offset, None)

    def _pointer(self, work: ReadWork) -> Pointer:
        """Return the pointer of a message that is parked behind others. It may have failed before."""
        wait = work.not_before - monotonic()
        due_ms = int((time() + wait) * 1000) if wait > 0 else 0
        return Pointer(
            work.offset, PointerKind.PARKED, work.attempts, due_ms, work.first_ms, self.mark(work), work.failure
        )

    def refresh(self, partition: OpenPartition) -> None:
        """Take the keys with parked messages from the ledger, and let the other keys go on.

        A message of a pointer may have ended, and an operator may have dropped or replayed some.
        """
        lowest: dict[str, int] = {}
        parked = 0
        for one in partition.ledger.pointers.values():
            if one.kind is PointerKind.PARKED:
                parked += 1
                if one.key:
                    lowest[one.key] = min(one.offset, lowest.get(one.key, one.offset))
        partition.parked = set(lowest)
        if parked <= ROOM_AGAIN:
            partition.full_because = ""
        self._waiting.unblock(partition, lowest)

    @staticmethod
    def _full(partition: OpenPartition) -> None:
        partition.full_because = NO_ROOM.format(len(partition.ledger.pointers))
