"""Lag-aware placement: threads with equal loads, and no move for noise. Pure; any thread.

The load of a partition is the rate of its new messages, and its lag spread over :data:`CATCH_UP_S`. A thread with much
to catch up has a large load then, although no more comes in than elsewhere. A partition whose load is not known counts
as a middling one. Each also has a small load of its own, so that idle partitions are spread by their number.

Invariants, which the tests check:

* Complete: every partition of a topic with threads has exactly one, of that topic.
* Nothing moves while no thread has more than :data:`TOLERANCE` beyond its fair share for :data:`LOOKS` measurements in
  a row, and the members stay.
* A move lessens the larger one of the two loads by a quarter of the moved one at least.
* Deterministic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection
from heapq import heapreplace

from zkconsumer.assignors.assignor import NO_RACKS, Members, Partitions, Racks, threads_by_topic
from zkconsumer.assignors.sticky_placement import TopicPartitions, TopicThreads
from zkconsumer.core.placement_plan import Loads, PartitionLoad
from zkconsumer.model import Assignment, ThreadId, TopicPartition

CATCH_UP_S = 300.0
"""Seconds in which a lag should be caught up: it counts as so much more rate."""
TOLERANCE = 0.25
"""A thread may have so much more than its fair share before anything moves."""
LOOKS = 3
"""Measurements in a row that must show it."""
PAUSE_LOOKS = 5
"""Measurements after a move that are not judged: moved partitions have a lag of their own at first."""
BARRED_LOOKS, BARRED_MOST = 20, 640
"""Measurements for which a thread gets no partition by a move, after some were moved away from it because it lagged.
Each time it is twice as many, up to the second number. Otherwise partitions of a slow member would move for ever: away
while it lags, and back when it has caught up. It is forgotten after as many measurements as the second number.
"""
BEHIND_S = 30.0
"""A thread lags if it is behind by the messages of so many seconds."""
WIDE_GAP, NARROW_GAP = 0.25, 0.125
"""Partitions move until the totals of two threads differ by no more, in parts of a fair share: after a change of the
members, and after measurements. The second is narrower, or the next noise would be too much again.
"""
_SMOOTHED = 0.05
"""Part of the middling load that every partition has."""
_WORTH = 0.25
MOST_MOVES = 1_000
"""Moves for even loads in one plan; the next plan goes on."""


def weight(load: PartitionLoad) -> float:
    """Return a load as a rate."""
    return max(0.0, load.rate) + max(0.0, load.lag) / CATCH_UP_S


def smoothed(before: Loads, measured: Loads) -> dict[TopicPartition, PartitionLoad]:
    """Return the loads to go by: the mean of a measurement and the loads before it."""
    return {
        tp: PartitionLoad((load.lag + before[tp].lag) / 2, (load.rate + before[tp].rate) / 2) if tp in before else load
        for tp, load in measured.items()
    }


def growing_lags(before: Loads, measured: Loads) -> frozenset[TopicPartition]:
    """Return the partitions whose lag is larger than before."""
    return frozenset(tp for tp, load in measured.items() if tp in before and load.lag > before[tp].lag)


def even_load(
    threads: TopicThreads,
    partitions: TopicPartitions,
    before: Assignment,
    loads: Loads,
    *,
    gap: float | None = None,
    barred: Collection[ThreadId] = (),
) -> dict[TopicPartition, ThreadId]:
    """Return the assignment. Free partitions go to threads with little load.

    Others move only with a ``gap``, the difference of two totals that may stay, in parts of a fair share. They do not
    move to ``barred`` threads.
    """
    return _Loads(threads, partitions, before, loads, barred).settled(gap)


def is_uneven(
    threads: TopicThreads,
    partitions: TopicPartitions,
    assignment: Assignment,
    loads: Loads,
    barred: Collection[ThreadId] = (),
) -> bool:
    """Return whether a thread has too much, and an exchange of one partition could help."""
    return _Loads(threads, partitions, assignment, loads, barred).uneven


def rescues(
    threads: TopicThreads,
    assignment: Assignment,
    loads: Loads,
    growing: Collection[TopicPartition],
    barred: Collection[ThreadId] = (),
) -> dict[TopicPartition, ThreadId]:
    """Return moves of partitions that lag although their threads have no other, to threads that do not lag.

    Such a move lessens no load. But a slow member would keep a partition that others can read fast enough. Only
    partitions with ``growing`` lags count: a new owner has a lag to catch up at first.
    """
    behind = frozenset(_lagging(assignment, loads))
    owned, total = Counter(assignment.values()), dict.fromkeys(assignment.values(), 0.0)
    for tp, thread in assignment.items():
        total[thread] += weight(loads[tp]) if tp in loads else 0.0
    unable = behind.union(barred)
    able: dict[str, list[ThreadId]] = {}  # of each topic, the emptiest last
    found: dict[TopicPartition, ThreadId] = {}
    taken: set[ThreadId] = set()
    for tp, thread in sorted(assignment.items()):
        if not (tp in growing and thread in behind and owned[thread] == 1):
            continue
        if tp.topic not in able:
            others = [one for one in threads.get(tp.topic, ()) if one not in unable]
            able[tp.topic] = sorted(others, key=lambda one: total.get(one, 0.0))[::-1]
        while able[tp.topic] and able[tp.topic][-1] in taken:
            able[tp.topic].pop()
        if able[tp.topic]:
            found[tp] = able[tp.topic].pop()
            taken.add(found[tp])
    return found


class PlanJudgement:
    """Decides whether to move partitions, measurement by measurement, so that no single one moves anything."""

    def __init__(self) -> None:
        self._looks = 0
        self._uneven = 0
        self._pause = 0
        self._barred: dict[ThreadId, tuple[int, int]] = {}  # until which look, and for how many

    @property
    def barred(self) -> frozenset[ThreadId]:
        """The threads that get no partitions by a move now."""
        return frozenset(thread for thread, (until, _) in self._barred.items() if self._looks < until)

    def looked(self, uneven: bool) -> bool:
        """Note a measurement. Returns whether to move partitions now."""
        self._looks += 1
        if self._pause:
            self._pause -= 1
            return False
        self._uneven = self._uneven + 1 if uneven else 0
        if self._uneven < LOOKS:
            return False
        self._uneven, self._pause = 0, PAUSE_LOOKS
        return True

    def moved(self, before: Assignment, after: Assignment, loads: Loads) -> None:
        """Note the moves that followed a measurement: lagging threads that have fewer partitions now are barred."""
        fewer = Counter(before.values())
        fewer.subtract(Counter(after.values()))
        for thread in _lagging(before, loads):
            if fewer[thread] > 0:
                until, times = self._barred.get(thread, (0, 0))
                again = times and self._looks < until + BARRED_MOST
                times = min(2 * times, BARRED_MOST) if again else BARRED_LOOKS
                self._barred[thread] = self._looks + times, times

    def changed(self) -> None:
        """Note that the members have changed, so that partitions have moved for another reason."""
        self._uneven, self._pause = 0, PAUSE_LOOKS
        self._barred.clear()


def _lagging(assignment: Assignment, loads: Loads) -> list[ThreadId]:
    """Return the threads that are behind by the messages of :data:`BEHIND_S` or more."""
    behind: dict[ThreadId, float] = {}
    for tp, thread in assignment.items():
        load = loads.get(tp)
        if load is not None:
            behind[thread] = behind.get(thread, 0.0) + load.lag - BEHIND_S * load.rate
    return [thread for thread, messages in behind.items() if messages > 0]


class _Loads:
    """One computation."""

    def __init__(
        self,
        threads: TopicThreads,
        partitions: TopicPartitions,
        before: Assignment,
        loads: Loads,
        barred: Collection[ThreadId],
    ) -> None:
        self._threads = threads
        all_partitions = [TopicPartition(t, n) for t, numbers in partitions.items() if threads.get(t) for n in numbers]
        known = [weight(loads[tp]) for tp in all_partitions if tp in loads]
        middling = sum(known) / len(known) if known else 0.0
        least = _SMOOTHED * middling or 1.0
        self._weight = {tp: (weight(loads[tp]) if tp in loads else middling) + least for tp in all_partitions}
        self._load = {thread: 0.0 for listed in threads.values() for thread in listed}
        self._order = {thread: at for at, thread in enumerate(self._load)}
        self._numbered = list(self._load)
        self._owner: dict[TopicPartition, ThreadId] = {}
        taking = {topic: frozenset(listed) for topic, listed in threads.items()}
        self._may_take = {topic: listed.difference(barred) for topic, listed in taking.items()}
        for tp in all_partitions:
            thread = before.get(tp)
            if thread is not None and thread in taking[tp.topic]:
                self._give(tp, thread)

    def settled(self, gap: float | None) -> dict[TopicPartition, ThreadId]:
        """Return the assignment with free partitions given, and moves for this gap made."""
        self._give_free()
        if gap is not None:
            self._rank()
            allowed = gap * self._fair
            for _ in range(MOST_MOVES):
                found = self._best_move(allowed)
                if found is None:
                    break
                self._move(*found)
        return dict(self._owner)

    @property
    def uneven(self) -> bool:
        """Whether a thread has too much, and a move helps."""
        self._rank()
        found = self._best_move(NARROW_GAP * self._fair)
        return found is not None and self._load[self._owner[found[0]]] > (1 + TOLERANCE) * self._fair

    @property
    def _fair(self) -> float:
        return sum(self._load.values()) / max(1, len(self._load))

    def _give(self, tp: TopicPartition, thread: ThreadId) -> None:
        self._owner[tp] = thread
        self._load[thread] += self._weight[tp]

    def _give_free(self) -> None:
        """Give each free partition, the heaviest first, to the emptiest thread of its topic."""
        free = [tp for tp in self._weight if tp not in self._owner]
        waiting = {topic: self._ranked(self._threads[topic]) for topic in {tp.topic for tp in free}}
        for tp in sorted(free, key=lambda tp: (-self._weight[tp], tp)):
            heap = waiting[tp.topic]
            while (now := self._load[self._numbered[heap[0][1]]]) != heap[0][0]:  # it was given some of another topic
                heapreplace(heap, (now, heap[0][1]))
            thread = self._numbered[heap[0][1]]
            self._give(tp, thread)
            heapreplace(heap, (self._load[thread], heap[0][1]))

    def _ranked(self, threads: Collection[ThreadId]) -> list[tuple[float, int]]:
        return sorted((self._load[thread], self._order[thread]) for thread in threads)

    # ---- moves: the threads stay in two sorted lists, because a large group would take seconds otherwise

    def _rank(self) -> None:
        self._owned: dict[ThreadId, set[TopicPartition]] = {thread: set() for thread in self._load}
        for tp, thread in self._owner.items():
            self._owned[thread].add(tp)
        self._rising = self._ranked(self._load)
        self._falling = sorted((-load, self._order[thread]) for thread, load in self._load.items())

    def _move(self, tp: TopicPartition, thread: ThreadId) -> None:
        former, weight = self._owner[tp], self._weight[tp]
        self._owner[tp] = thread
        self._owned[former].remove(tp)
        self._owned[thread].add(tp)
        for changed, more in ((former, -weight), (thread, weight)):
            load, number = self._load[changed], self._order[changed]
            del self._rising[bisect_left(self._rising, (load, number))]
            del self._falling[bisect_left(self._falling, (-load, number))]
            self._load[changed] = load = load + more
            insort(self._rising, (load, number))
            insort(self._falling, (-load, number))

    def _emptiest_by_topic(self) -> dict[str, ThreadId]:
        found: dict[str, ThreadId] = {}
        topics = {topic for topic, listed in self._may_take.items() if listed}
        for _, number in self._rising:
            if not topics:
                break
            thread = self._numbered[number]
            taken = [topic for topic in topics if thread in self._may_take[topic]]
            found.update(dict.fromkeys(taken, thread))
            topics.difference_update(taken)
        return found

    def _best_move(self, allowed: float) -> tuple[TopicPartition, ThreadId] | None:
        """Return a partition of the fullest possible thread and the thread to move it to; None if no move helps.

        Of one thread's partitions the one is moved that leaves the two threads most even.
        """
        emptiest = self._emptiest_by_topic()
        least = self._rising[0][0] if self._rising else 0.0
        for negative, number in self._falling:
            load = -negative
            if load - least <= allowed:
                break
            best: tuple[float, TopicPartition] | None = None
            for tp in self._owned[self._numbered[number]]:
                to = emptiest.get(tp.topic)
                if to is None:
                    continue
                less, weight = self._load[to], self._weight[tp]
                larger = max(load - weight, less + weight)
                helps = load - less > allowed and larger <= load - _WORTH * weight
                if helps and (best is None or (larger, tp) < best):
                    best = larger, tp
            if best is not None:
                return best[1], emptiest[best[1].topic]
        return None


class LagAwareAssignor:
    """Assigns as the first plan of a group whose loads are not known, for tools. Members follow the group's plan."""

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment."""
        return even_load(threads_by_topic(members), partitions, {}, {})
