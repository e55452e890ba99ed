"""The offsets to read: from where, how far, in which pieces. Pure: no threads, no clock, no I/O.

Offsets are half-open, [start, end), and "next to ..." as everywhere. A checkpoint of Spark contains a
``Progress``: the whole range of the last planned batch for every partition. So a batch is replayed from the checkpoint
alone, whatever ZooKeeper or the group say meanwhile.

Learned from Spark's own range calculator. It differs in two ways: small ranges are packed into one task (a task of a
Python source costs some 35 ms), and a limit is shared evenly instead of by backlog.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from zkconsumer.errors import ConfigException
from zkconsumer.model import OffsetRange, TopicPartition

K = TypeVar("K", bound=Hashable)

VERSION: Final = 1
PACKED_OFFSETS: Final = 16_384
"""So many offsets may share a task; a range of at least so many has one of its own."""


class Span(NamedTuple):
    """The offsets [start, end) of a partition in a batch; empty for a partition that only keeps its place."""

    start: int
    end: int


Progress = Mapping[TopicPartition, Span]
"""What a batch reads, and by the ends how far the query is. Empty: a query that has not begun."""


class LogSpan(NamedTuple):
    """The offsets of a partition's log: [first, end)."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """Where to start or end.

    ``word`` is "earliest", "latest", "group", "timestamp" or "given". "timestamp" comes with the ``time`` in ms since
    1970, or with the ``times`` of partitions. "given" comes with the offsets in ``given``. There -2 stands for the
    earliest offset and -1 for the latest.
    """

    word: str
    given: Mapping[TopicPartition, int] | None = None
    time: int | None = None
    times: Mapping[TopicPartition, int] | None = None

    @property
    def by_time(self) -> bool:
        """Whether a time names the place."""
        return self.word == "timestamp"

    @property
    def named(self) -> Mapping[TopicPartition, int] | None:
        """The offsets or times of single partitions; None if one word or time counts for all."""
        return self.given if self.times is None else self.times

    def times_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the times that name places in these, without partitions of which none is named."""
        if self.times is not None:
            return {tp: self.times[tp] for tp in partitions if tp in self.times}
        return {} if self.time is None else dict.fromkeys(partitions, self.time)


EARLIEST: Final = OffsetChoice("earliest")
LATEST: Final = OffsetChoice("latest")
GROUP: Final = OffsetChoice("group")


def encode_progress(progress: Progress) -> dict[str, Any]:
    """Return the form of a checkpoint: ``{"v":1,"topics":{"T":{"0":{"from":600,"to":800}}}}``; ``{}`` if empty."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for partition, span in sorted(progress.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = {"from": span.start, "to": span.end}
    return {"v": VERSION, "topics": topics} if topics else {}


def decode_progress(offset: object) -> dict[TopicPartition, Span]:
    """Return the progress of a checkpoint.

    Raises ConfigException if it is not ours: of a later version, or of another source.
    """
    if offset in ({}, None):
        return {}
    try:
        if not isinstance(offset, Mapping) or offset["v"] != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
        return {
            TopicPartition(topic, int(partition)): _span(span["from"], span["to"])
            for topic, partitions in offset["topics"].items()
            for partition, span in partitions.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"its offsets cannot be read ({error!r}): {str(offset)[:200]}"
        raise ConfigException("checkpointLocation", reason) from error


def _span(start: object, end: object) -> Span:
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        raise ValueError(f"from {start!r} to {end!r}")
    return Span(start, end)


def ranges_of(progress: Progress) -> list[OffsetRange]:
    """Return the ranges to read, without the empty ones, in the order of partitions."""
    return [OffsetRange(*tp, span.start, span.end) for tp, span in sorted(progress.items()) if span.end > span.start]


_NAMED: Final = 5


def in_words(ranges: Sequence[OffsetRange]) -> str:
    """Return some ranges as text: "t-0 [5, 9), t-1 [0, 3) and 2 more"."""
    named = ", ".join(f"{topic}-{number} [{start}, {end})" for topic, number, start, end in ranges[:_NAMED])
    return named + (f" and {len(ranges) - _NAMED} more" if len(ranges) > _NAMED else "")


# ---- where to start ----


def named_position(wanted: OffsetChoice, partition: TopicPartition, log: LogSpan, found: int | None, none: int) -> int:
    """Return the offset that an option names for a partition.

    Arguments: ``found`` is the group's offset, or that of the time, if the option means one of these; ``none`` counts
    without one.
    """
    if wanted.word in ("group", "timestamp"):
        return none if found is None else found
    if wanted.given is not None:
        offset = wanted.given[partition]
        return {-2: log.first, -1: log.end}.get(offset, offset)
    return log.first if wanted.word == "earliest" else log.end


def stream_position(
    partition: TopicPartition,
    done: Progress,
    committed: int | None,
    wanted: OffsetChoice,
    log: LogSpan,
    at_time: int | None = None,
) -> int:
    """Return where a stream reads a partition on.

    The position is the checkpoint's, or the group's ``committed`` if it counts and is further: other members went on
    meanwhile. A partition that the checkpoint does not know starts at the group's offset; without one, at ``wanted``
    (``at_time`` is the offset of that time). Once the query has begun, ``wanted`` counts only if it names a place in
    this very partition, or a time. Otherwise the partition starts at its beginning: a new partition must not
    lose a message.
    """
    known = done.get(partition)
    if known is not None:
        return known.end if committed is None else max(known.end, committed)
    if committed is not None:
        return committed
    if done and not (wanted.times_of([partition]) or (wanted.given or {}).get(partition, -1) != -1):
        return log.first
    return named_position(wanted, partition, log, at_time, log.end)


def remembered(progress: Progress, done: Progress, existing: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
    """Return a batch together with the places of partitions that others own now, in case they come back."""
    places = {tp: Span(done[tp].end, done[tp].end) for tp in existing if tp in done}
    return {**places, **progress}


# ---- how far ----


def fair_share(sizes: Mapping[K, int], limit: int) -> dict[K, int]:
    """Divide a limit among sizes as equally as possible, so that a large backlog starves no other partition.

    Each non-empty size gets at least 1, even if the sum is then above the limit.
    """
    shares: dict[K, int] = {}
    left = limit
    order = sorted(sizes, key=lambda key: sizes[key])
    for number, key in enumerate(order):
        share = min(sizes[key], max(left // (len(order) - number), 1))
        shares[key] = share
        left -= share
    return shares


def advance(positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int | None) -> Progress:
    """Return the next batch: from the positions to the ends (nothing without an end), at most ``limit`` offsets."""
    sizes = {tp: max(0, ends.get(tp, position) - position) for tp, position in positions.items()}
    if limit is not None and sum(sizes.values()) > limit:
        sizes |= fair_share({tp: size for tp, size in sizes.items() if size}, limit)
    return {tp: Span(position, position + sizes[tp]) for tp, position in positions.items()}


def is_news(progress: Progress, done: Progress) -> bool:
    """Return whether a batch is due: there is something to read, or a place that the checkpoint does not have."""
    return any(span.end > span.start or tp not in done or span.start != done[tp].end for tp, span in progress.items())


def out_of_log(range_: OffsetRange, log: LogSpan) -> str | None:
    """Return why a range cannot be read as it is, or None."""
    if log.first >= 0 and range_.start < log.first:
        return f"{range_.topic}-{range_.partition}: offset {range_.start} is gone, the log begins at {log.first}"
    if max(range_.start, range_.end) > log.end:
        return f"{range_.topic}-{range_.partition}: offset {max(range_[2:])} is beyond the log's end {log.end}"
    return None


def within(range_: OffsetRange, log: LogSpan) -> OffsetRange:
    """Return the part of a range that the log has."""
    start = min(max(range_.start, log.first), log.end)
    return range_._replace(start=start, end=max(start, min(range_.end, log.end)))


# ---- in which pieces ----


def pieces(
    ranges: Iterable[OffsetRange], least: int | None = None, most: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task.

    A range has a task of its own; small neighbours share one. With ``most`` (``maxRecordsPerPartition``) a range of
    more offsets is split into equal parts first, and no task has more. With ``least`` (``minPartitions``) nothing is
    shared, and the largest ranges are split until there are so many tasks, or only single offsets.
    """
    wanted = sorted(range_ for range_ in ranges if range_.size > 0)
    if most is not None:
        wanted = [piece for range_ in wanted for piece in _cut(range_, -(-range_.size // most))]
    if least is not None:
        return [(piece,) for piece in _split(wanted, least)]
    tasks: list[tuple[OffsetRange, ...]] = []
    room = 0
    for range_ in wanted:
        if tasks and range_.size <= room:
            tasks[-1] = (*tasks[-1], range_)
        else:
            tasks.append((range_,))
            room = PACKED_OFFSETS if most is None else min(most, PACKED_OFFSETS)
        room -= range_.size
    return tasks


def _split(ranges: Sequence[OffsetRange], least: int) -> list[OffsetRange]:
    """Divide ranges into pieces. Each step divides the range that has the largest pieces."""
    cuts = dict.fromkeys(range(len(ranges)), 1)
    heap = [(-range_.size, number) for number, range_ in enumerate(ranges)]
    heapq.heapify(heap)
    for _ in range(least - len(ranges)):
        if not heap or heap[0][0] >= -1:
            break
        _, number = heapq.heappop(heap)
        cuts[number] += 1
        heapq.heappush(heap, (-ranges[number].size // cuts[number], number))
    return [piece for number, range_ in enumerate(ranges) for piece in _cut(range_, cuts[number])]


def _cut(range_: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [range_.start + range_.size * number // count for number in range(count + 1)]
    return [range_._replace(start=a, end=b) for a, b in pairwise(edges) if b > a]


class TriggerDelay:
    """Decides for one run of a query, trigger by trigger, whether a batch waits for more messages.

    The rule is that of Spark's Kafka source (``minOffsetsPerTrigger``, ``maxTriggerDelay``): a batch begins once enough
    offsets are there, or once the delay has passed since the last one. The first trigger of a run never waits. So
    nothing has to be stored, and a restart prolongs no wait.

    A member of a group needs one rule more: a batch does not wait if it reads a partition that this member has just
    won. The messages of such a partition may have waited with their former owner already. Otherwise a partition that
    moves from member to member could wait forever.

    Arguments: ``least`` is the number of offsets that are worth a batch. ``longest`` is the delay in seconds after
    which fewer are read as well.
    """

    def __init__(self, least: int, longest: float) -> None:
        self._least = least
        self._longest = longest
        self._since: float | None = None
        self._owned: frozenset[TopicPartition] = frozenset()

    def waits(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], done: Progress, now: float
    ) -> bool:
        """Return whether the batch from the positions to the ends waits for a later trigger.

        It does not wait if a position is another one than that of the checkpoint, ``done``: the checkpoint must learn
        of it, because messages that come before the next batch would be missed otherwise. ``now`` is a monotonic time
        in seconds.
        """
        won = not self._owned.issuperset(positions)
        self._owned = frozenset(positions)
        moved = any(tp not in done or done[tp].end != position for tp, position in positions.items())
        there = sum(max(0, ends.get(tp, position) - position) for tp, position in positions.items())
        late = self._since is None or now - self._since >= self._longest
        if not (won or moved or late or there >= self._least):
            return True
        self._since = now
        return False
