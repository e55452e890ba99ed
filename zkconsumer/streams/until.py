"""Where a run or streams end: ``until=`` of ``connector.run`` and ``create_message_streams``.

The ends are looked up once, when the run begins, for every partition of its topics, so that a partition that comes with
a later rebalance has its end as well. A partition that is created later has none of its messages handled.

A run has ended when the base of each owned partition has reached its end. Messages that were parked, and dead letters,
count as passed: their pointers are stored, and the next run of any member has them again when they are due. The run
waits for the outcome of those that handlers have, also if the outcome is told later (``PENDING``). The partitions of
other members are their own matter. A member that owns nothing ends when the committed offsets of the whole group have
reached the ends, since it may be given a partition, or work of another member, until then. Partitions of a deleted
topic do not count: nobody owns them, and their ends are never reached.

:class:`RunEnd` and :func:`requested_end` are pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.errors import BrokerError, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.streams.member_streams import ANY_TOPIC

if TYPE_CHECKING:
    from zkconsumer.cluster.offset_lookup import OffsetLookup
    from zkconsumer.streams.kafka_stream import KafkaStream
    from zkconsumer.wiring import GroupMember

log = logging.getLogger(__name__)

END = "end"
GROUP_LOOK = 1.0
"""Seconds between two looks at the group: at its committed offsets, and at the topics that are not read to the end."""
DELETED_AFTER = 10.0
"""A topic is deleted if brokers do not know it for so many seconds. A broker that has just started knows none yet."""
_LOOK_WITHIN = 2.0
_LOG_END = -1
_LARGEST = (1 << 63) - 1
_FORMS = (
    'until is "end" (the log ends as of now), a mapping from (topic, partition) to the offset to stop before, or a time'
    " (a datetime with a time zone, or milliseconds since 1970)"
)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of each partition: the offset of the first message that the run leaves alone."""

    ends: Mapping[TopicPartition, int]

    def limit(self, tp: TopicPartition) -> int:
        """Return the offset before which the partition is handled. A partition without an end is not handled at all."""
        return self.ends.get(tp, 0)

    def reached(self, positions: Mapping[TopicPartition, PartitionPosition]) -> bool:
        """Return whether everything before the ends of these partitions is finished, parked or dead.

        False without partitions: see :meth:`reached_by_group`.
        """
        return bool(positions) and all(_base_of(position) >= self.limit(tp) for tp, position in positions.items())

    def topics_left(self, stored: Mapping[TopicPartition, int]) -> frozenset[str]:
        """Return the topics in which the committed offsets of the group have not reached the ends.

        Arguments: ``stored`` has no entry, or a negative one, for a partition without a committed offset.
        """
        return frozenset(tp.topic for tp, end in self.ends.items() if stored.get(tp, -1) < end and end > 0)


class RunEndWatch:
    """Looks whether a run has reached its end. Used by the thread that waits for the run.

    Arguments: ``of_group`` asks for the committed offsets of the whole group, ``missing`` for those of some topics that
    do not exist. Both return at once.
    """

    def __init__(
        self,
        end: RunEnd,
        of_group: Callable[[Collection[TopicPartition]], Future[Mapping[TopicPartition, int]]],
        missing: Callable[[Collection[str]], Future[Collection[str]]],
    ) -> None:
        self._end = end
        self._of_group = of_group
        self._missing = missing
        self._asked = 0.0
        self._offsets: Future[Mapping[TopicPartition, int]] | None = None
        self._topics: Future[Collection[str]] | None = None
        self._missed: dict[str, tuple[float, float]] = {}
        """For each missing topic the times of the first and the last answer that said so."""

    def limit(self, tp: TopicPartition) -> int:
        """Return the offset before which a partition is handled. Any thread."""
        return self._end.limit(tp)

    def reached(self, positions: Sequence[PartitionPosition]) -> bool:
        """Return whether all of these have reached their end; without any, whether the group has. Returns at once."""
        if positions:
            self._offsets = self._topics = None
            self._missed.clear()
            return self._end.reached({position.tp: position for position in positions})
        now = monotonic()
        if self._topics is not None and self._topics.done():
            self._note_missing(self._topics, now)
            self._topics = None
        if self._offsets is not None and self._offsets.done():
            answer, self._offsets = self._offsets, None
            # what could not be read is asked again: the committer tells the user of a store that fails
            return answer.exception() is None and self._reached_by_group(answer.result())
        if self._offsets is None and self._topics is None and now - self._asked >= GROUP_LOOK:
            self._asked, self._offsets = now, self._of_group(self._end.ends.keys())
        return False

    def _reached_by_group(self, stored: Mapping[TopicPartition, int]) -> bool:
        left = self._end.topics_left(stored)
        missed = [self._missed.get(topic, (0.0, 0.0)) for topic in left]
        if all(last - first >= DELETED_AFTER for first, last in missed):
            if left:
                log.warning(
                    "until is not reached, but there is no more to read: deleted are %s", ", ".join(sorted(left))
                )
            return True
        self._topics = self._missing(left)
        return False

    def _note_missing(self, answer: Future[Collection[str]], now: float) -> None:
        missing = answer.result() if answer.exception() is None else ()
        self._missed = {topic: (self._missed.get(topic, (now,))[0], now) for topic in missing}


class StreamEnd:
    """The end of one stream: the :class:`~zkconsumer.streams.stream_queue.ReadEnd` of its queue.

    It is that of the stream's own partitions. Without any it is that of the member's partitions, or of the group's, as
    for a run: a rebalance may bring partitions until then. Threads: any; ``lock`` guards the watch.
    """

    def __init__(
        self, watch: RunEndWatch, lock: InterruptibleLock, member: GroupMember, stream: KafkaStream[Any, Any]
    ) -> None:
        self._watch = watch
        self._lock = lock
        self._member = member
        self._stream = stream

    def limit(self, tp: TopicPartition) -> int:
        """Return the offset before which a partition is read."""
        return self._watch.limit(tp)

    def reached(self, ahead: Mapping[PartitionPosition, int]) -> bool:
        """Return whether everything before the end is finished, or before the offsets of ``ahead``."""
        if self._own():
            return not self.left(ahead)
        with self._lock:
            return self._watch.reached(list(self._member.positions().values()))

    def left(self, ahead: Mapping[PartitionPosition, int]) -> int:
        """Return the number of offsets that are left of the stream's own partitions."""
        return sum(max(0, self.limit(one.tp) - max(_base_of(one), ahead.get(one, -1))) for one in self._own())

    def _own(self) -> list[PartitionPosition]:
        return [position for position in self._member.positions().values() if self._is_own(position)]

    def _is_own(self, position: PartitionPosition) -> bool:
        try:
            return self._member.delivery.stream_of(position) is self._stream
        except KeyError:
            return False  # its stream has just been retired


@dataclass(frozen=True, slots=True)
class RunEndRequest:
    """The checked argument ``until``: either ``offsets``, or a ``time`` in ms since 1970 (-1: the log ends)."""

    offsets: Mapping[TopicPartition, int] | None
    time: int


def checked_end(until: Any, concurrency: int | None, topics: object, now_ms: int) -> RunEndRequest | None:
    """Return what ``until`` of ``run`` asks for, None if it is None. Raises: as :func:`requested_end`."""
    if until is None:
        return None
    if concurrency is None or isinstance(topics, TopicFilter):
        raise ValueError("until needs concurrency, and topics by name")
    return requested_end(until, now_ms)


def requested_end(until: Any, now_ms: int) -> RunEndRequest:
    """Check ``until`` and return what it asks for. ``now_ms`` is the present time in ms since 1970.

    Raises: TypeError and ValueError for a value that makes no sense, such as a time that is not over yet: the messages
    before it are not known.
    """
    if isinstance(until, Mapping):
        return RunEndRequest(dict(_offset_of(*one) for one in until.items()), _LOG_END)
    if isinstance(until, str):
        if until != END:
            raise ValueError(f"{_FORMS}; not {until!r}")
        return RunEndRequest(None, _LOG_END)
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise ValueError(f"until is a time without a time zone, {until.isoformat()}: give it one")
        time = int(until.timestamp() * 1000)
    elif isinstance(until, int) and not isinstance(until, bool):
        time = until
    else:
        raise TypeError(f"{_FORMS}; not {until!r}")
    if not 0 <= time <= now_ms:
        reason = "not over yet, so that the messages before it are not known" if time > now_ms else "before 1970"
        raise ValueError(f"until is a time that is {reason}: {until!r}")
    return RunEndRequest(None, time)


def _base_of(position: PartitionPosition) -> int:
    """Return the base as it will be once all pointers are stored, -1 if it is unknown."""
    ledger = position.ledger
    if position.consumed is None or ledger is None or not ledger.pointers:
        return -1 if position.consumed is None else position.consumed
    return max(position.consumed, ledger.point(pointers=position.stored.may_park).offset)


def _offset_of(partition: Any, offset: Any) -> tuple[TopicPartition, int]:
    if not (isinstance(partition, tuple) and len(partition) == 2 and isinstance(partition[0], str)):
        raise TypeError(f"until: a partition is a (topic, number), not {partition!r}")
    topic, number = partition
    for value, what in ((number, "the number of a partition"), (offset, "an offset")):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"until: {what} is a whole number, not {value!r}")
        if not 0 <= value <= _LARGEST:
            raise ValueError(f"until: {what} is a whole number from 0 on of 64 bits, not {value!r}")
    return TopicPartition(topic, number), offset


def find_ends(request: RunEndRequest, topics: Collection[str], lookup: OffsetLookup, deadline: Deadline) -> RunEnd:
    """Return the ends of all partitions of these topics. Raises: as :func:`ends_of`."""
    return ends_of(request, lookup.partitions(topics, deadline), lookup, deadline)


def ends_of(
    request: RunEndRequest, partitions: Collection[TopicPartition], lookup: OffsetLookup, deadline: Deadline
) -> RunEnd:
    """Return the ends of these partitions.

    A time stands for the first message that is not older, or for the log's end if there is none. Raises:
    BrokerUnavailableError if a partition has no answer in time, BrokerAuthenticationError; ValueError if the request
    names a partition that is not there, or does not name one that is.
    """
    if request.offsets is not None:
        missing, strange = set(partitions) - request.offsets.keys(), request.offsets.keys() - set(partitions)
        if missing or strange:
            names = ", ".join(map(str, sorted(missing or strange)))
            raise ValueError(
                f"until {'has no offset for' if missing else 'names partitions that are not there:'} {names}"
            )
        return RunEnd(dict(request.offsets))
    # first: a message that is written between the two lookups lies behind the end
    ends = lookup.find(dict.fromkeys(partitions, _LOG_END), deadline)
    if request.time == _LOG_END:
        return RunEnd({tp: end or 0 for tp, end in ends.items()})
    begun = lookup.find(dict.fromkeys(partitions, request.time), deadline)
    return RunEnd({tp: _earlier(begun[tp], end or 0) for tp, end in ends.items()})


def watch_end(request: RunEndRequest, member: GroupMember) -> RunEndWatch:
    """Look up where a run of this member ends. Raises: as :func:`find_ends`; ValueError for a filter."""
    committer, lookup = member.committer, member.lookup
    assert committer is not None
    topics = {topic for topic, _, _ in member.delivery.streams()}
    if ANY_TOPIC in topics:
        raise ValueError("until needs topics by name: those that a filter finds later have no end")
    end = find_ends(request, topics, lookup, Deadline(member.request_timeout))

    def look(topics: Collection[str]) -> Collection[str]:
        try:
            return lookup.missing(topics, Deadline(_LOOK_WITHIN))
        except (BrokerError, RegistryError):
            return ()  # the next look may do better

    def missing(topics: Collection[str]) -> Future[Collection[str]]:
        return committer.submit(lambda: look(topics))  # which has time: the member owns nothing

    return RunEndWatch(end, committer.of_group, missing)


def _earlier(found: int | None, end: int) -> int:
    return end if found is None else min(found, end)


def stop_streams_at(request: RunEndRequest, member: GroupMember) -> None:
    """Have all streams of this member stop at an end. Raises: as :func:`watch_end`."""
    watch, lock = watch_end(request, member), InterruptibleLock()
    for _, _, stream in member.delivery.streams():
        stream.queue.stop_at(StreamEnd(watch, lock, member, stream))
