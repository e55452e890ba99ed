"""Sticky placement: threads with equal numbers of partitions, and as few moves as that allows. Pure; any thread.

Invariants for every input, which the tests check:

* Complete: every partition of a topic with threads has exactly one, of that topic.
* Even for each topic: the numbers of two threads of a topic differ by one at most.
* Even in total: with equal subscriptions the totals of two threads differ by one at most. With other subscriptions no
  partition could make two totals more even, as far as the first rule allows.
* Sticky: among all such assignments the fewest partitions leave a thread that could keep them.
* Deterministic.

Each thread gets the smaller number of a topic, and some threads get one more, an extra. So only the extras are to be
chosen. That is a flow with costs: first the sum of the squared totals, then the extras of threads that own too few to
fill them. A choice is the best if no cycle of exchanges has a negative cost (Klein, 1967). The search begins from a
greedy choice. It is left out for large groups, where it takes too long; the greedy choice is even, and moves a few
partitions more.

Kafka's sticky assignor evens out totals only. A member may have all partitions of a topic there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest

from zkconsumer.assignors.assignor import NO_RACKS, Members, Partitions, Racks, threads_by_topic
from zkconsumer.model import Assignment, ThreadId, TopicPartition

SEARCHED = 4_000
"""The number of pairs of a thread and a topic up to which the fewest moves are searched for."""
MOST_CYCLES = 2_000
"""Exchanges after the greedy choice, at most."""

TopicThreads = Mapping[str, Sequence[ThreadId]]
"""The threads of each topic, in a fixed order."""
TopicPartitions = Mapping[str, Sequence[int]]


def fewest_moves(
    threads: TopicThreads, partitions: TopicPartitions, before: Assignment
) -> dict[TopicPartition, ThreadId]:
    """Return the even assignment that moves the fewest partitions.

    ``before`` is the assignment until now. Partitions and threads that do not exist any more are ignored.
    """
    topics = [topic for topic in partitions if threads.get(topic) and partitions[topic]]
    owned = _owned(topics, threads, partitions, before)
    extras = _Extras({topic: threads[topic] for topic in topics}, partitions, owned)
    extras.choose()
    assignment: dict[TopicPartition, ThreadId] = {}
    for at, topic in enumerate(topics):
        assignment |= _placed(topic, threads[topic], partitions[topic], owned[topic], extras.quotas(at))
    return assignment


def _owned(
    topics: Sequence[str], threads: TopicThreads, partitions: TopicPartitions, before: Assignment
) -> dict[str, dict[ThreadId, list[int]]]:
    """Return the partitions of each topic that each of its threads owns, ascending."""
    owned: dict[str, dict[ThreadId, list[int]]] = {}
    for topic in topics:
        of_topic: dict[ThreadId, list[int]] = {thread: [] for thread in threads[topic]}
        for number in sorted(partitions[topic]):
            thread = before.get(TopicPartition(topic, number))
            if thread is not None and thread in of_topic:
                of_topic[thread].append(number)
        owned[topic] = of_topic
    return owned


def _placed(
    topic: str,
    threads: Sequence[ThreadId],
    numbers: Sequence[int],
    owned: Mapping[ThreadId, Sequence[int]],
    quotas: Mapping[ThreadId, int],
) -> dict[TopicPartition, ThreadId]:
    """Return one topic's assignment: threads keep what fits their quotas, and free partitions fill the rest."""
    placed = {TopicPartition(topic, n): thread for thread in threads for n in owned[thread][: quotas[thread]]}
    free = iter([tp for n in sorted(numbers) if (tp := TopicPartition(topic, n)) not in placed])
    for thread in threads:
        for _ in range(quotas[thread] - len(owned[thread])):
            placed[next(free)] = thread
    return placed


class _Extras:
    """The choice of the threads that get one partition of a topic more than others.

    Threads and topics are numbers here. ``takes[t]`` are the threads of topic ``t``, ``has[t]`` those with an extra.
    ``fills[t]`` are threads that own enough to fill an extra without a move. ``loads`` are the totals.
    """

    def __init__(
        self, threads: TopicThreads, partitions: TopicPartitions, owned: Mapping[str, Mapping[ThreadId, Sequence[int]]]
    ) -> None:
        self._threads = list(dict.fromkeys(thread for listed in threads.values() for thread in listed))
        number = {thread: at for at, thread in enumerate(self._threads)}
        self._least: list[int] = []
        self._left: list[int] = []
        self.loads = [0] * len(self._threads)
        self._takes: list[list[int]] = []
        self._fills: list[set[int]] = []
        self._has: list[set[int]] = []
        for topic in threads:
            least, left = divmod(len(partitions[topic]), len(threads[topic]))
            takes = [number[thread] for thread in threads[topic]]
            self._least.append(least)
            self._left.append(left)
            self._takes.append(takes)
            self._fills.append({number[thread] for thread, have in owned[topic].items() if len(have) > least})
            self._has.append(set())
            for thread in takes:
                self.loads[thread] += least

    def quotas(self, topic: int) -> dict[ThreadId, int]:
        """Return the number of partitions of a topic that each of its threads gets."""
        return {self._threads[n]: self._least[topic] + (n in self._has[topic]) for n in self._takes[topic]}

    def choose(self) -> None:
        """Choose the extras."""
        for first in (True, False):
            for topic, takes in enumerate(self._takes):
                has, fills = self._has[topic], self._fills[topic]
                wanting = [n for n in takes if n not in has and (n in fills or not first)]
                for thread in nsmallest(self._left[topic] - len(has), wanting, key=lambda n: (self.loads[n], n)):
                    self._give(topic, thread)
        self._level()
        if sum(map(len, self._takes)) <= SEARCHED:
            for _ in range(MOST_CYCLES):
                if not self._exchange():
                    break

    def _give(self, topic: int, thread: int) -> None:
        self._has[topic].add(thread)
        self.loads[thread] += 1

    def _take(self, topic: int, thread: int) -> None:
        self._has[topic].remove(thread)
        self.loads[thread] -= 1

    def _level(self) -> None:
        """Hand extras to threads with less while that makes totals more even. Each lessens the sum of squares."""
        moved = True
        while moved:
            moved = False
            for topic, takes in enumerate(self._takes):
                has, fills = self._has[topic], self._fills[topic]
                if not has or len(has) == len(takes):
                    continue
                fullest = max(has, key=lambda n: (self.loads[n], n not in fills, n))
                emptiest = min((n for n in takes if n not in has), key=lambda n: (self.loads[n], n not in fills, n))
                if self.loads[fullest] > self.loads[emptiest] + 1:
                    self._take(topic, fullest)
                    self._give(topic, emptiest)
                    moved = True

    def _exchange(self) -> bool:
        """Perform one exchange that is worth it. Returns whether there was one."""
        cycle = self._negative_cycle()
        outside = len(self._threads) + len(self._takes)
        for start, end in cycle:
            if start < len(self._threads) <= end < outside:
                self._take(end - len(self._threads), start)
            elif end < len(self._threads) <= start < outside:
                self._give(start - len(self._threads), end)
        return bool(cycle)

    def _negative_cycle(self) -> list[tuple[int, int]]:
        """Return the edges of a cycle with a negative cost, as pairs of places; empty if there is none (Bellman, Ford).

        Places are the threads, the topics, and the outside. An edge from a thread to a topic gives an extra up, and an
        edge from a topic to a thread takes it. An edge from the outside lessens a thread's total, and an edge to the
        outside raises the total.
        """
        edges = self._edges()
        places = len(self._threads) + len(self._takes) + 1
        cost = [0] * places
        came_from = [-1] * places
        changed = -1
        for _ in range(places + 1):
            changed = -1
            for start, end, price in edges:
                if cost[start] + price < cost[end]:
                    cost[end] = cost[start] + price
                    came_from[end] = start
                    changed = end
            if changed < 0:
                return []
        for _ in range(places):  # from a place behind the cycle to one on it
            changed = came_from[changed]
        cycle: list[tuple[int, int]] = []
        at = changed
        while not cycle or at != changed:
            cycle.append((came_from[at], at))
            at = came_from[at]
        return cycle

    def _edges(self) -> list[tuple[int, int, int]]:
        count = len(self._threads)
        outside = count + len(self._takes)
        worth = 4 * (outside + 1)  # more than all moves of a cycle: totals come first
        edges = []
        holding = set().union(*self._has) if self._has else set()
        for thread, load in enumerate(self.loads):
            if thread in holding:
                edges.append((outside, thread, -worth * (2 * load - 1)))
            edges.append((thread, outside, worth * (2 * load + 1)))
        for topic, takes in enumerate(self._takes):
            has, fills = self._has[topic], self._fills[topic]
            for thread in takes:
                if thread in has:
                    edges.append((thread, count + topic, int(thread in fills)))
                else:
                    edges.append((count + topic, thread, -int(thread in fills)))
        return edges


class StickyAssignor:
    """Assigns as the first plan of a group, for tools. Members follow the group's plan (``placement_decision``)."""

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment."""
        return fewest_moves(threads_by_topic(members), partitions, {})
