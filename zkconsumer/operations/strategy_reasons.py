"""Why a strategy gives a partition to a thread: its arithmetic, in words and with the numbers of the group.

The words are computed beside the assignors, not from their result: the tests compare the two for random groups. Pure;
any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from zkconsumer.assignors.assignor import java_hash
from zkconsumer.assignors.java_consumer_assignors import SubscribedMember, in_java_order
from zkconsumer.assignors.rocketmq import ConsistentHashAssignor, MessageQueue, md5_hash
from zkconsumer.member.zookeeper.claim_plan import GroupView, Threads
from zkconsumer.model import PLACEMENTS, ThreadId, TopicPartition, utf16_key
from zkconsumer.operations.group_snapshot import BrokersGroup
from zkconsumer.operations.strategy_inference import OLD_ORDER, Strategy

_LISTED = 12


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a strategy comes to its answer: the thread, None where the words cannot tell, and the steps in words."""

    thread: ThreadId | None
    steps: tuple[str, ...]


class StrategyWords:
    """The arithmetic of one strategy for one group. Computes once what several partitions have in common.

    Arguments: ``strategy`` is computable for this group, or one without arithmetic in words.
    """

    def __init__(self, strategy: Strategy, view: GroupView, threads: Threads) -> None:
        self.strategy = strategy
        self.view = view
        self.threads = threads
        self._orders: dict[str, tuple[ThreadId, ...]] = {}

    def threads_of(self, topic: str) -> tuple[ThreadId, ...]:
        """Return the threads that subscribe to a topic, in the order of the strategies."""
        if topic not in self._orders:
            self._orders[topic] = tuple(threads_of_topic(self.threads, topic))
        return self._orders[topic]

    def of(self, partition: TopicPartition) -> Arithmetic:
        """Return the arithmetic of one partition."""
        if partition in self.view.kept:
            kept = self.view.kept[partition]
            return Arithmetic(kept, (f"{kept} owns it, and its registration cannot be read: it keeps what it owns",))
        if not self.threads_of(partition.topic):  # nobody looked which partitions it has
            return Arithmetic(None, (f"no member has a thread for {partition.topic}",))
        if partition.partition not in self.view.partitions.get(partition.topic, ()):
            return Arithmetic(None, (f"{partition} does not exist",))
        planned = self.view.placement
        if self.strategy.name in PLACEMENTS and planned is not None and partition in planned:
            thread = planned[partition]
            return Arithmetic(thread, (f"the plan of the group gives it to {thread}, so that few partitions move",))
        words = _WORDS.get(self.strategy.name)
        if words is None:
            label = self.strategy.label
            return Arithmetic(None, (f"the strategy {label} decides it, which has no arithmetic in words here",))
        return words(self, partition)

    @cached_property
    def ring(self) -> tuple[ThreadId, ...]:
        """All threads of ``roundrobin``, in the order of their turns."""
        every = {thread for by_topic in self.threads.values() for ids in by_topic.values() for thread in ids}
        return tuple(sorted(every, key=utf16_key))

    @cached_property
    def equal_threads(self) -> bool:
        """Whether every thread takes part in every topic, so that no turn is lost."""
        topics = {topic for by_topic in self.threads.values() for topic in by_topic}
        return all(len(self.threads_of(topic)) in (0, len(self.ring)) for topic in topics)

    @cached_property
    def turns(self) -> Mapping[TopicPartition, tuple[int, int, int]]:
        """For each partition its place in the order of ``roundrobin``, the place of its thread, and the lost turns."""
        takers = {topic: set(self.threads_of(topic)) for by_topic in self.threads.values() for topic in by_topic}
        every = [TopicPartition(t, n) for t, some in takers.items() if some for n in self.view.partitions.get(t, ())]
        every.sort(key=lambda tp: (java_hash(self.hashed(tp)), utf16_key(tp.topic), tp.partition))
        at, found = -1, {}
        for place, tp in enumerate(every):
            steps = 1
            while self.ring[(at + steps) % len(self.ring)] not in takers[tp.topic]:
                steps += 1
            at = (at + steps) % len(self.ring)
            found[tp] = place, at, steps - 1
        return found

    def hashed(self, partition: TopicPartition) -> str:
        """Return the text of a partition that ``roundrobin`` hashes."""
        old = self.strategy.scala_release == OLD_ORDER
        return f"[{partition.topic},{partition.partition}]" if old else str(partition)


def arithmetic(strategy: Strategy, view: GroupView, threads: Threads, partition: TopicPartition) -> Arithmetic:
    """Return the arithmetic of one partition. For several of a group use :class:`StrategyWords`."""
    return StrategyWords(strategy, view, threads).of(partition)


def threads_of_topic(threads: Threads, topic: str) -> list[ThreadId]:
    """Return the threads that subscribe to a topic, in the order of Java's text: thread 10 before thread 2."""
    found = [thread for by_topic in threads.values() for thread in by_topic.get(topic, ())]
    return sorted(found, key=utf16_key)


def _in_blocks(words: StrategyWords, partition: TopicPartition) -> Arithmetic:
    """``range`` and ``average``: contiguous blocks, the first ones larger by one."""
    numbers = words.view.partitions[partition.topic]
    return in_block(words.strategy.name, partition, numbers, words.threads_of(partition.topic))


def in_block(
    name: str, partition: TopicPartition, numbers: Sequence[int], order: Sequence[ThreadId], noun: str = "thread"
) -> Arithmetic:
    """Return the arithmetic of contiguous blocks: the partitions ``numbers`` for the threads of ``order``."""
    size, more = divmod(len(numbers), len(order))
    position = numbers.index(partition.partition)
    larger = more * (size + 1)  # the partitions of the threads that get one more
    at = position // (size + 1) if position < larger else more + (position - larger) // size
    first = at * size + min(at, more)
    last = first + size + (at < more)
    block = numbers[first:last]
    return Arithmetic(
        order[at],
        (
            f"{name}: {count_of(len(numbers), 'partition')} of {partition.topic}, "
            f"{count_of(len(order), noun)}: {_sizes(size, more, len(order))}",
            f"{noun} {at + 1} of {len(order)}, {order[at]}, gets {_partitions(block)}; "
            f"{partition} is the {ordinal(position - first + 1)} of these",
        ),
    )


def _sizes(size: int, more: int, count: int) -> str:
    """Say how many partitions each thread gets, by its place."""
    if not more:
        return f"each gets {size}"
    rest, gets = count - more, "gets" if count - more == 1 else "get"
    first = f"the first {more} {'gets' if more == 1 else 'get'} {size + 1}"
    return f"{first}, the last {rest} {gets} {size or 'none'}"


def _by_hash(words: StrategyWords, partition: TopicPartition) -> Arithmetic:
    """``roundrobin``: partitions in the order of a hash, threads in turn; a thread without the topic is skipped."""
    place, turn, skipped = words.turns[partition]
    ring, text = words.ring, words.hashed(partition)
    orders = "" if words.strategy.scala_release else ", in the order of either release"
    count = count_of(len(words.turns), "partition")
    steps = [
        f"roundrobin: all {count} in the order of the Java hash of their text{orders}: "
        f'"{text}" has {java_hash(text)} and is number {place + 1}',
        f"{count_of(len(ring), 'thread')} take one each in turn, in the order of their ids",
    ]
    whose = f"thread {turn + 1} of {len(ring)}, {ring[turn]}"
    if words.equal_threads:
        steps.append(f"({place + 1} - 1) modulo {len(ring)} is {turn}: {whose}")
    elif skipped:
        steps.append(f"the turn passes over {count_of(skipped, 'thread')} without {partition.topic} to {whose}")
    else:
        steps.append(f"it is the turn of {whose}")
    return Arithmetic(ring[turn], tuple(steps))


def _by_circle(words: StrategyWords, partition: TopicPartition) -> Arithmetic:
    """``average-by-circle``: the partitions of one topic in turn."""
    order = words.threads_of(partition.topic)
    position = words.view.partitions[partition.topic].index(partition.partition)
    at = position % len(order)
    return Arithmetic(
        order[at],
        (
            f"{words.strategy.name}: the {count_of(len(order), 'thread')} of {partition.topic} take one each in turn",
            f"{partition} is number {position + 1} of {partition.topic}: ({position + 1} - 1) modulo {len(order)} is "
            f"{at}, thread {at + 1}, {order[at]}",
        ),
    )


def _on_a_ring(words: StrategyWords, partition: TopicPartition) -> Arithmetic:
    """``consistent-hash``: the first point of a ring at or after the partition's hash."""
    ring = ConsistentHashAssignor().ring(words.threads_of(partition.topic))
    value = md5_hash(str(MessageQueue(partition.topic, "", partition.partition)))
    after = [point for point in ring if point >= value]
    point = min(after or ring)
    how = "the first point at or after it is" if after else "no point is at or after it, so the first of all counts:"
    return Arithmetic(
        ThreadId(ring[point]),
        (
            f"{words.strategy.name}: each thread has 10 points on a ring, at hashes of its id",
            f"{partition} has the hash {value}; {how} {point}, of {ring[point]}",
        ),
    )


def _in_its_room(words: StrategyWords, partition: TopicPartition) -> Arithmetic:
    """``machine-room-nearby``: partitions go to threads in the room of their leader, if there are any."""
    view, topic = words.view, partition.topic
    room = view.racks.get(partition)
    rooms = {t: view.members[c].extra.get("room") for c, wanted in words.threads.items() for t in wanted.get(topic, ())}
    order = words.threads_of(topic)
    near = [thread for thread in order if rooms[thread] == room]
    numbers = [n for n in view.partitions[topic] if view.racks.get(TopicPartition(topic, n)) == room]
    blocks = in_block("average", partition, numbers, near or order)
    who = f"{len(near)} of {len(order)} threads are there" if near else "no thread is there, so all threads share it"
    first = f"{words.strategy.name}: the leader of {partition} is in room {room}; {who}"
    return Arithmetic(blocks.thread, (first, *blocks.steps))


_Words = Callable[[StrategyWords, TopicPartition], Arithmetic]
_WORDS: Mapping[str, _Words] = {
    "range": _in_blocks,
    "average": _in_blocks,
    "roundrobin": _by_hash,
    "average-by-circle": _by_circle,
    "consistent-hash": _on_a_ring,
    "machine-room-nearby": _in_its_room,
}


def ordinal(number: int) -> str:
    """Return ``1st``, ``2nd``, ``3rd``, ``4th`` and so on."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 thread``, ``2 threads``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _partitions(numbers: Sequence[int]) -> str:
    listed = number_runs(numbers)
    return ("partition " if len(numbers) == 1 else "partitions ") + listed


def number_runs(numbers: Sequence[int]) -> str:
    """Return ascending numbers with runs put together: ``0-3, 7``. Long lists end in how many more there are."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    said = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    more = f" and {len(said) - _LISTED} more" if len(said) > _LISTED else ""
    return ", ".join(said[:_LISTED]) + more


_STICKY = ("sticky", "cooperative-sticky")


def brokers_arithmetic(
    group: BrokersGroup, partitions: Mapping[str, Sequence[int]], partition: TopicPartition
) -> Arithmetic:
    """Return how the leader came to the member of a partition; ``thread`` is the member id, None if words cannot tell.

    The leader of a brokers' group, a member, computes the assignment. ``range`` and ``roundrobin`` can be computed
    again from the coordinator's description of the group. ``sticky`` depends on earlier assignments, which nobody
    keeps. Mirrors the Java consumer's strategies without racks. ``partitions`` has the numbers of each existing topic.
    """
    members = {one.member_id: SubscribedMember(one.topics, instance=one.instance_id) for one in group.members}
    order = [ThreadId(member) for member in in_java_order(members)]
    takers = [member for member in order if partition.topic in members[member].topics]
    leader = f"the leader of the brokers' group computed it with {group.strategy or 'an unknown strategy'}"
    if group.strategy in _STICKY:
        kept = "each member keeps what it had, and only as many partitions move as an even share needs"
        return Arithmetic(None, (f"{leader}: {kept}",))
    if not takers or partition.partition not in partitions.get(partition.topic, ()):
        return Arithmetic(None, (leader,))
    if group.strategy == "range":
        return in_block("range", partition, partitions[partition.topic], takers, "member")
    if group.strategy == "roundrobin":
        return _in_turn(members, order, partitions, partition)
    return Arithmetic(None, (leader,))


def _in_turn(
    members: Mapping[str, SubscribedMember],
    order: Sequence[ThreadId],
    partitions: Mapping[str, Sequence[int]],
    partition: TopicPartition,
) -> Arithmetic:
    wanted = {topic for member in members.values() for topic in member.topics if topic in partitions}
    every = [TopicPartition(t, n) for t in sorted(wanted, key=utf16_key) for n in partitions[t]]
    place = every.index(partition)
    at, skipped = -1, 0
    for tp in every[: place + 1]:
        steps = 1
        while tp.topic not in members[order[(at + steps) % len(order)]].topics:
            steps += 1
        at, skipped = (at + steps) % len(order), steps - 1
    whose = f"member {at + 1} of {len(order)}, {order[at]}"
    turn = (
        f"the turn passes over {count_of(skipped, 'member')} without {partition.topic} to"
        if skipped
        else "the turn is at"
    )
    return Arithmetic(
        order[at],
        (
            f"roundrobin: {count_of(len(every), 'partition')} by topic and number, of which {partition} is number "
            f"{place + 1}; {count_of(len(order), 'member')} take one each in turn",
            f"{turn} {whose}",
        ),
    )
