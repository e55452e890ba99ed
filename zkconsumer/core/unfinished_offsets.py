"""The unfinished offsets of one partition, where messages are finished in any order. Pure; the caller locks.

The plain offset that everybody reads is the base, the lowest unfinished offset. :class:`Finished` values have the
finished messages beyond the base. ``finished_note`` writes them down. Only *unfinished* messages are listed. So the
holes that compaction and transactions leave count as finished, and nothing walks over a range of offsets.

Source: the offset maps of parallel-consumer and atleon, which list what is finished, or one bit for each offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import lt
from typing import NamedTuple

from zkconsumer.core.key_slots import ALL_SLOTS, SLOTS


class Finished(NamedTuple):
    """All offsets from ``start`` on and before ``end`` that belong to ``slots`` are finished, except ``unfinished``.

    ``unfinished`` ascends. It may name offsets of other slots, which then say nothing.
    """

    start: int
    end: int
    unfinished: Sequence[int] = ()
    slots: int = ALL_SLOTS

    def covers(self, offset: int, slot: int) -> bool:
        """Return whether this says that the message is finished."""
        if not (self.start <= offset < self.end and self.slots >> slot & 1):
            return False
        at = bisect_left(self.unfinished, offset)
        return at == len(self.unfinished) or self.unfinished[at] != offset

    def beyond(self, offset: int) -> Finished | None:
        """Return the part from ``offset`` on, None if there is none."""
        if self.end <= offset:
            return None
        if self.start >= offset:
            return self
        return Finished(offset, self.end, self.unfinished[bisect_left(self.unfinished, offset) :], self.slots)

    def before(self, offset: int) -> Finished | None:
        """Return the part before ``offset``, None if there is none."""
        if self.end <= offset:
            return self
        if self.start >= offset:
            return None
        return Finished(self.start, offset, self.unfinished[: bisect_left(self.unfinished, offset)], self.slots)

    def without(self, offset: int) -> Finished:
        """Return the same, with this offset finished as well."""
        at = bisect_left(self.unfinished, offset)
        if at == len(self.unfinished) or self.unfinished[at] != offset:
            return self
        return self._replace(unfinished=(*self.unfinished[:at], *self.unfinished[at + 1 :]))

    def of_slots(self, slots: int) -> Finished | None:
        """Return what this says of ``slots``, None if nothing."""
        return self._replace(slots=self.slots & slots) if self.slots & slots else None


class UnfinishedOffsets:
    """The unfinished messages of one stay at a partition, as far as its log has been read.

    * ``slots``: the slots whose messages are counted here
    * ``read_to``: the offset after the last one that was read
    * ``highest``: the offset after the highest finished message; the base if there is none beyond it

    Arguments: ``start`` is the first offset that is not finished for certain; ``known`` tells what is finished beyond.
    """

    __slots__ = ("_known", "_lowest", "_pushed", "_unfinished", "highest", "read_to", "slots")

    def __init__(self, start: int, known: Iterable[Finished] = (), slots: int = ALL_SLOTS) -> None:
        self.slots = slots
        self.read_to = self.highest = start
        self._unfinished: set[int] = set()
        self._lowest: list[int] = []  # a heap, which may hold finished offsets as well
        self._pushed = -1  # the highest offset that was ever in it
        self._known = tuple(rest for one in known if (rest := one.beyond(start)) is not None)

    def __len__(self) -> int:
        return len(self._unfinished)

    def __contains__(self, offset: int) -> bool:
        return offset in self._unfinished

    @property
    def base(self) -> int:
        """The lowest unfinished offset."""
        heap, unfinished = self._lowest, self._unfinished
        while heap and heap[0] not in unfinished:
            heappop(heap)
        return min(heap[0], self.read_to) if heap else self.read_to

    @property
    def plain(self) -> bool:
        """Whether every message that is read next is unfinished, so that :meth:`wants` need not be asked."""
        return not self._known and self.slots == ALL_SLOTS

    def wants(self, offset: int, slot: int) -> bool:
        """Return whether the message is neither finished nor counted here already, and belongs to our slots."""
        if not self.slots >> slot & 1 or offset < self.read_to or offset in self._unfinished:
            return False
        return not any(one.covers(offset, slot) for one in self._known)

    def read(self, wanted: Iterable[int], to: int) -> None:
        """Count messages as read and unfinished. ``to`` is the offset after what was read.

        The offsets before ``to`` that are not wanted are finished, belong to other slots, or have no message.
        """
        offsets = list(wanted)
        self._unfinished.update(offsets)
        if offsets and offsets[0] > self._pushed and all(map(lt, offsets, islice(offsets, 1, None))):
            self._lowest.extend(offsets)  # ascending and above all others: it is still a heap
        else:
            for offset in offsets:
                heappush(self._lowest, offset)
        if offsets:
            self._pushed = max(self._pushed, *offsets)
        if to > self.read_to:
            self.read_to = to
            if self._known:
                self.highest = max(self.highest, *(min(one.end, to) for one in self._known))
                self._known = tuple(rest for one in self._known if (rest := one.beyond(to)) is not None)

    def finish(self, offset: int) -> bool:
        """Count a message as finished; returns whether it was unfinished."""
        if offset not in self._unfinished:
            return False
        self._unfinished.remove(offset)
        if offset >= self.read_to:
            # the log is being read again before it: ``highest`` must not pass what was not read
            self._known = tuple(one.without(offset) for one in self._known)
        elif offset >= self.highest:
            self.highest = offset + 1
        return True

    def finish_together(self, offsets: Collection[int]) -> bool:
        """Count messages as finished if each of them is unfinished and was read; returns whether that was so."""
        unfinished = self._unfinished
        if not unfinished.issuperset(offsets):
            return False
        last = max(offsets, default=-1)
        if last >= self.read_to:
            return False
        unfinished.difference_update(offsets)
        self.highest = max(self.highest, last + 1)
        return True

    def forget_from(self, end: int) -> None:
        """Believe nothing that is said of ``end`` and later offsets, unless they were read here."""
        end = max(end, self.read_to)
        self._known = tuple(part for one in self._known if (part := one.before(end)) is not None)

    def base_without(self, passed: Collection[int]) -> int:
        """Return the base as it will be once these messages are finished as well."""
        if not passed:
            return self.base
        lowest = min((offset for offset in self._unfinished if offset not in passed), default=self.read_to)
        # while the log is being read again, there may be unfinished messages between here and what is in hand
        return min(lowest, self.read_to)

    def finished(self, passed: Collection[int] = ()) -> tuple[Finished, ...]:
        """Return what is finished from the base on, for our slots. ``passed`` counts as finished."""
        base = self.base_without(passed)
        ahead = max((offset + 1 for offset in passed if offset < self.read_to), default=0)
        end = max(self.highest, ahead)
        found = []
        if end > base and self.slots:
            listed = sorted(offset for offset in self._unfinished if offset < end and offset not in passed)
            found.append(Finished(base, end, tuple(listed), self.slots))
        return joined((*found, *self._known))

    @property
    def finished_beyond(self) -> int:
        """The number of offsets beyond the base that are finished; an estimate where slots are shared."""
        base, found = self.base, 0
        if self.highest > base:
            open_ones = sum(offset < self.highest for offset in self._unfinished)
            found = _share(self.highest - base - open_ones, self.slots)
        return found + sum(_share(one.end - one.start - len(one.unfinished), one.slots) for one in self._known)

    # ---- slots that come and go

    def give_up(self, slots: int, offsets: Iterable[int]) -> tuple[Finished, ...]:
        """Count these slots here no more. Returns what is finished of them.

        Arguments: ``offsets`` are their unfinished messages.
        """
        given = joined(part for one in self._everything() if (part := one.of_slots(slots)) is not None)
        self.slots &= ~slots
        self._unfinished.difference_update(offsets)
        self._known = tuple(part for one in self._known if (part := one.of_slots(~slots & ALL_SLOTS)) is not None)
        return given

    def take_on(self, slots: int, base: int, known: Iterable[Finished]) -> int:
        """Count these slots here from now on. Returns the offset from which the log must be read again.

        Messages that are counted already stay so. Arguments: everything of the slots is finished before ``base``, and
        ``known`` tells what is finished beyond it.
        """
        again = min(base, self.read_to)
        mine = self._everything()
        theirs = [part for one in known if (part := one.of_slots(slots)) is not None]
        if base > again:
            theirs.append(Finished(again, base, (), slots))
        elif self.base > again and self.slots:
            mine = (Finished(again, self.base, (), self.slots), *mine)
        self.slots |= slots
        self._known = joined(rest for one in (*mine, *theirs) if (rest := one.beyond(again)) is not None)
        # also of slots whose highest finished message is beyond ours
        self.read_to = self.highest = again
        return again

    def _everything(self) -> tuple[Finished, ...]:
        """Return what is finished of our slots, up to where the log was read and beyond."""
        base, listed = (self.base, sorted(offset for offset in self._unfinished if offset < self.read_to))
        if not self.slots or base >= self.read_to:
            return self._known
        return (Finished(base, self.read_to, tuple(listed), self.slots), *self._known)


def joined(pieces: Iterable[Finished]) -> tuple[Finished, ...]:
    """Return the pieces with neighbours of the same slots joined, so that their number does not grow for ever."""
    found: list[Finished] = []
    for one in sorted(pieces, key=lambda piece: (piece.slots, piece.start, piece.end)):
        last = found[-1] if found else None
        if last is not None and last.slots == one.slots and last.end == one.start:
            found[-1] = last._replace(end=one.end, unfinished=(*last.unfinished, *one.unfinished))
        else:
            found.append(one)
    return tuple(found)


def _share(offsets: int, slots: int) -> int:
    return max(0, offsets) * slots.bit_count() // SLOTS
