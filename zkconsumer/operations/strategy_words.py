"""Why a strategy gives a partition to a thread: its arithmetic, in words and with the numbers of the group.

The words are computed beside the assignors, not from their result: the tests compare the two for random groups. Pure;
any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.assignors.assignor import java_hash
from zkconsumer.assignors.consistent_hash import ConsistentHashAssignor, md5_hash
from zkconsumer.assignors.rocketmq import MessageQueue
from zkconsumer.member.zookeeper.planner import GroupView, Threads
from zkconsumer.model import ThreadId, TopicPartition, utf16_key
from zkconsumer.operations.strategy_inference import OLD_ORDER, Strategy

_LISTED = 12


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a strategy comes to its answer: the thread, None where the words cannot tell, and the steps in words."""

    thread: ThreadId | None
    steps: tuple[str, ...]


def arithmetic(strategy: Strategy, view: GroupView, threads: Threads, partition: TopicPartition) -> Arithmetic:
    """Return the arithmetic of one partition that exists and to which a member subscribes."""
    order = threads_of_topic(threads, partition.topic)
    numbers = view.partitions.get(partition.topic, ())
    if partition in view.kept:
        kept = view.kept[partition]
        return Arithmetic(kept, (f"{kept} owns it, and its registration cannot be read: it keeps what it owns",))
    if partition.partition not in numbers:
        return Arithmetic(None, (f"{partition} does not exist",))
    if not order:
        return Arithmetic(None, (f"no member has a thread for {partition.topic}",))
    words = _WORDS.get(strategy.name)
    if words is None:
        return Arithmetic(None, (f"the strategy {strategy.label} decides it, which has no arithmetic in words here",))
    return words(strategy, view, threads, partition)


def threads_of_topic(threads: Threads, topic: str) -> list[ThreadId]:
    """Return the threads that subscribe to a topic, in the order of Java's text: thread 10 before thread 2."""
    found = [thread for by_topic in threads.values() for thread in by_topic.get(topic, ())]
    return sorted(found, key=utf16_key)


def _in_blocks(strategy: Strategy, view: GroupView, threads: Threads, partition: TopicPartition) -> Arithmetic:
    """``range`` and ``average``: contiguous blocks, the first ones larger by one."""
    order = threads_of_topic(threads, partition.topic)
    numbers = view.partitions[partition.topic]
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
            f"{strategy.name}: {_count(len(numbers), 'partition')} of {partition.topic}, "
            f"{_count(len(order), 'thread')}: {_sizes(size, more, len(order))}",
            f"thread {at + 1} of {len(order)}, {order[at]}, gets {_partitions(block)}; "
            f"{partition} is the {ordinal(position - first + 1)} of these",
        ),
    )


def _sizes(size: int, more: int, count: int) -> str:
    """Say how many partitions each thread gets, by its place."""
    if not more:
        return f"each gets {size}"
    rest = count - more
    return (
        f"the first {more} get {size + 1}, the last {rest} {size}" if size else f"the first {more} get 1, {rest} none"
    )


def _by_hash(strategy: Strategy, view: GroupView, threads: Threads, partition: TopicPartition) -> Arithmetic:
    """``roundrobin``: partitions in the order of a hash, threads in turn; a thread without the topic is skipped."""
    text = (lambda tp: f"[{tp.topic},{tp.partition}]") if strategy.scala_release == OLD_ORDER else str
    by_topic = {t: set(threads_of_topic(threads, t)) for member in threads.values() for t in member}
    every = [TopicPartition(t, n) for t, takers in by_topic.items() if takers for n in view.partitions.get(t, ())]
    every.sort(key=lambda tp: (java_hash(text(tp)), utf16_key(tp.topic), tp.partition))
    ring = sorted({thread for takers in by_topic.values() for thread in takers}, key=utf16_key)
    place = every.index(partition)
    turn, skipped = _turn(every[: place + 1], ring, by_topic)
    orders = "" if strategy.scala_release else ", in the order of either release"
    steps = [
        f"roundrobin: all {_count(len(every), 'partition')} in the order of the Java hash of their text{orders}: "
        f'"{text(partition)}" has {java_hash(text(partition))} and is number {place + 1}',
        f"{_count(len(ring), 'thread')} take one each in turn, in the order of their ids",
    ]
    if all(takers == set(ring) for takers in by_topic.values() if takers):
        steps.append(f"({place + 1} - 1) modulo {len(ring)} is {turn}: thread {turn + 1} of {len(ring)}, {ring[turn]}")
    elif skipped:
        passed = _count(skipped, "thread")
        steps.append(
            f"the turn passes over {passed} without {partition.topic} to thread {turn + 1} of {len(ring)}, {ring[turn]}"
        )
    else:
        steps.append(f"it is the turn of thread {turn + 1} of {len(ring)}, {ring[turn]}")
    return Arithmetic(ring[turn], tuple(steps))


def _turn(
    partitions: Sequence[TopicPartition], ring: Sequence[ThreadId], by_topic: Mapping[str, set[ThreadId]]
) -> tuple[int, int]:
    """Return the place in the ring of the thread that gets the last of these, and how many were skipped for it."""
    at = -1
    skipped = 0
    for tp in partitions:
        steps = 1
        while ring[(at + steps) % len(ring)] not in by_topic[tp.topic]:
            steps += 1
        at, skipped = (at + steps) % len(ring), steps - 1
    return at, skipped


def _by_circle(strategy: Strategy, view: GroupView, threads: Threads, partition: TopicPartition) -> Arithmetic:
    """``average-by-circle``: the partitions of one topic in turn."""
    order = threads_of_topic(threads, partition.topic)
    position = view.partitions[partition.topic].index(partition.partition)
    at = position % len(order)
    return Arithmetic(
        order[at],
        (
            f"{strategy.name}: the {_count(len(order), 'thread')} of {partition.topic} take one partition each in turn",
            f"{partition} is number {position + 1} of {partition.topic}: ({position + 1} - 1) modulo {len(order)} is "
            f"{at}, thread {at + 1}, {order[at]}",
        ),
    )


def _on_a_ring(strategy: Strategy, view: GroupView, threads: Threads, partition: TopicPartition) -> Arithmetic:
    """``consistent-hash``: the first point of a ring at or after the partition's hash."""
    ring = ConsistentHashAssignor().ring(threads_of_topic(threads, partition.topic))
    value = md5_hash(str(MessageQueue(partition.topic, "", partition.partition)))
    after = [point for point in ring if point >= value]
    point = min(after or ring)
    how = "the first point at or after it is" if after else "no point is at or after it, so the first of all counts:"
    return Arithmetic(
        ring[point],  # type: ignore[arg-type]
        (
            f"{strategy.name}: each thread has 10 points on a ring, at hashes of its id",
            f"{partition} has the hash {value}; {how} {point}, of {ring[point]}",
        ),
    )


def _in_its_room(strategy: Strategy, view: GroupView, threads: Threads, partition: TopicPartition) -> Arithmetic:
    """``machine-room-nearby``: partitions go to threads in the room of their leader, if there are any."""
    room = view.racks.get(partition)
    rooms = {
        thread: view.members[c].extra.get("room")
        for c, by_topic in threads.items()
        for thread in by_topic.get(partition.topic, ())
    }
    order = threads_of_topic(threads, partition.topic)
    near = [thread for thread in order if rooms[thread] == room]
    numbers = [
        n for n in view.partitions[partition.topic] if view.racks.get(TopicPartition(partition.topic, n)) == room
    ]
    within = GroupView(view.members, {partition.topic: tuple(numbers)})
    takers = near or order
    narrowed = {c: {t: tuple(x for x in ids if x in set(takers)) for t, ids in by.items()} for c, by in threads.items()}
    blocks = _in_blocks(Strategy("average"), within, narrowed, partition)
    who = f"{len(near)} of {len(order)} threads are there" if near else "no thread is there, so all threads share it"
    return Arithmetic(
        blocks.thread,
        (f"{strategy.name}: the leader of {partition} is in room {room}; {who}", *blocks.steps),
    )


_Words = Callable[[Strategy, GroupView, Threads, TopicPartition], Arithmetic]
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


def _count(number: int, noun: str) -> str:
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
