"""Reads single messages at known offsets from the partitions' leaders, for parked messages and dead letters.

One thread asks at a time; any thread may call :meth:`MessageLookup.close`. The lookup has connections of its own and
disturbs no fetcher. They are kept until an error.

:func:`message_times` reads only timestamps, by few small fetches, on the channel of its caller. Kafka's own
tools have nothing like it; exporters guess the time by interpolation between two looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import Any, NamedTuple

from zkconsumer.cluster.offset_lookup import OffsetLookup, log_spans
from zkconsumer.data_plane.fetch_response import PartitionResponse
from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError, RegistryError
from zkconsumer.fetch.broker_fetch import FetchSettings
from zkconsumer.kafka import BrokerChannel, CorruptRecordsError, FetchPosition, FetchRequest, batches
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.compression import DEFAULT_LIMIT, Expansion
from zkconsumer.kafka.fetched_batches import extent
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

GONE = "compaction removed it, or its transaction was aborted"
"""The problem of an offset at which the log has no message and never will."""
SLICE = 10_000
"""Offsets that are asked for at once, so that a large gap takes little memory."""
BYTES = 64 * 1024
"""Bytes of one partition in a first fetch. A larger batch comes whole from brokers since 0.10.1 if it is the first one,
and with a second fetch from others.
"""


@dataclass(frozen=True, slots=True)
class MessageAt:
    """The message at one offset, or the reason why there is none.

    ``record`` is None if there is no message; then ``problem`` says why. ``certain`` is false if the message may still
    come: a new leader may know less of its log for some time. ``gone``: the log does not have it, as opposed to one
    that cannot be read.
    """

    offset: int
    record: Any = None
    problem: str = ""
    certain: bool = True
    gone: bool = False


class Retention(NamedTuple):
    """The limits after which a broker deletes messages of a partition.

    ``log_start`` is the first offset of the log; ``milliseconds`` is the topic's ``retention.ms``. An unknown value
    is None. ``milliseconds`` is None as well if messages are kept for ever.
    """

    log_start: int | None
    milliseconds: int | None


class MessageLookup:
    """Reads single messages.

    Arguments: ``settings`` of the connections; ``directory`` reads the registered brokers; ``check_crc`` is
    ``check.crcs``; ``expanded`` limits the bytes of a decompressed batch.
    """

    def __init__(
        self,
        settings: FetchSettings,
        directory: Callable[[Deadline], Sequence[Endpoint]],
        *,
        check_crc: bool = True,
        expanded: int = DEFAULT_LIMIT,
    ) -> None:
        self._settings = settings
        self._check_crc = check_crc
        self._expanded = expanded
        self._lookup = OffsetLookup(directory, settings.channel, settings.backoff)
        self._leaders: dict[TopicPartition, Endpoint] = {}
        self._channels: dict[int, BrokerChannel] = {}
        self._closing = Event()
        self._lock = InterruptibleLock()

    def close(self) -> None:
        """Close for good: a read that waits raises BrokerUnavailableError."""
        self._closing.set()
        self._lookup.close()
        self._forget()

    def read(
        self, tp: TopicPartition, offsets: Iterable[int], deadline: Deadline, most_bytes: int = 1 << 62
    ) -> dict[int, MessageAt]:
        """Return what stands at some offsets of one partition, in ascending order.

        It ends early once the records take ``most_bytes``; at least one offset has a result. A failed request is
        repeated until the deadline. Raises: BrokerUnavailableError, BrokerAuthenticationError.
        """
        left = sorted(set(offsets))
        found: dict[int, MessageAt] = {}
        size, need = 0, BYTES
        while left and size < most_bytes:
            try:
                channel = self._channel(tp, deadline)
                seen, need = self._fetch(channel, tp, left, need, deadline)
            except BrokerAuthenticationError:
                self._forget()
                raise
            except (BrokerError, RegistryError) as error:
                self._forget()
                if found:
                    break  # the rest is asked for again
                self._pause(tp, left[0], error, deadline)
                continue
            found.update((one.offset, one) for one in seen)
            size += sum(_size(one.record) for one in seen)
            left = [offset for offset in left if offset not in found]
        return found

    def first_between(self, tp: TopicPartition, start: int, end: int, deadline: Deadline) -> MessageAt | None:
        """Return the first message from offset ``start`` on and before ``end``, None if the log has none there.

        An offset about which the log tells nothing, for it was deleted by retention or is damaged, counts as a message.
        Raises: as :meth:`read`.
        """
        while start < end:
            found = self.read(tp, range(start, min(start + SLICE, end)), deadline)
            for offset in sorted(found):
                if found[offset].problem != GONE:
                    return found[offset]
            start = max(found) + 1  # it may have ended early
        return None

    def retention(self, tp: TopicPartition, deadline: Deadline) -> Retention:
        """Return what may delete messages of a partition. It is asked once. Raises: BrokerError, RegistryError."""
        try:
            channel = self._channel(tp, deadline)
            span = log_spans(channel, [tp], deadline)[tp]
            settings = channel.topic_configs([tp.topic], ["retention.ms", "cleanup.policy"], deadline)
        except (BrokerError, RegistryError):
            self._forget()
            raise
        known = settings.get(tp.topic, {})
        text = known.get("retention.ms", "")
        limited = "delete" in known.get("cleanup.policy", "delete") and text.isascii() and text.isdecimal()
        return Retention(span.start, int(text) if limited else None)

    def _pause(self, tp: TopicPartition, offset: int, error: Exception, deadline: Deadline) -> None:
        pause = deadline.bounded(max(0.05, self._settings.backoff))
        if deadline.expired or self._closing.wait(pause):
            raise BrokerUnavailableError(f"{tp}: the message at offset {offset} could not be read: {error}") from error

    # ---- connections

    def _channel(self, tp: TopicPartition, deadline: Deadline) -> BrokerChannel:
        endpoint = self._leaders.get(tp)
        if endpoint is None:
            brokers, leaders = self._lookup.leaders([tp.topic], deadline)
            endpoint = brokers.get(leaders.get(tp, -1))
            if endpoint is None:
                raise BrokerUnavailableError(f"{tp} has no leader")
            self._leaders[tp] = endpoint
        channel = self._channels.get(endpoint.broker_id)
        if channel is None:
            channel = self._settings.channel(endpoint)
            with self._lock:
                if self._closing.is_set():
                    raise BrokerUnavailableError("the connector is being closed")
                self._channels[endpoint.broker_id] = channel
            channel.connect(deadline)
        return channel

    def _forget(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, {}
            self._leaders = {}
        for channel in channels.values():
            with suppress(BrokerError):
                channel.close()

    # ---- one fetch

    def _fetch(
        self, channel: BrokerChannel, tp: TopicPartition, wanted: Sequence[int], size: int, deadline: Deadline
    ) -> tuple[list[MessageAt], int]:
        """Fetch from the first offset on. Return what it tells, and the bytes of the next fetch."""
        first = wanted[0]
        level = self._settings.isolation_level
        request = FetchRequest([FetchPosition(*tp, first, size)], 0.0, 0, size, level)
        within = Deadline(deadline.bounded(self._settings.socket_timeout))
        response = channel.receive_fetch(channel.send_fetch(request, within), within)
        answer = next((one for one in response.partitions if (one.topic, one.partition) == tp), None)
        if answer is None:
            raise BrokerError(f"{channel.name}: its answer to Fetch leaves {tp} out")
        if answer.error == codes.OFFSET_OUT_OF_RANGE:
            return [_outside(channel, tp, first, deadline)], BYTES
        if answer.error == codes.CORRUPT_MESSAGE:
            return [MessageAt(first, problem="the broker says that it is corrupt")], BYTES
        if answer.error != codes.NONE:
            raise codes.error(answer.error, f"{channel.name}, Fetch of {tp}")
        end = answer.end(level)
        if not answer.records and 0 <= end <= first:
            return [MessageAt(first, problem=f"the log ends at offset {end}", certain=False, gone=True)], BYTES
        return self._scan(answer, tp, wanted, size)

    def _scan(
        self, answer: PartitionResponse, tp: TopicPartition, wanted: Sequence[int], size: int
    ) -> tuple[list[MessageAt], int]:
        first, last, asked = wanted[0], wanted[-1], set(wanted)
        found: dict[int, MessageAt] = {}
        reached = first
        try:
            for batch in batches(
                answer.records,
                check_crc=self._check_crc,
                where=tp,
                fetch_offset=first,
                aborted=answer.aborted,
                read_committed=self._settings.isolation_level == 1,
                expansion=Expansion(self._expanded),
            ):
                if batch.wanted:
                    return self._larger(tp, first, size, batch.wanted)
                for record in batch:
                    if record.offset in asked:
                        found[record.offset] = MessageAt(record.offset, record)
                reached = batch.next_offset
                if reached > last:
                    break
        except CorruptRecordsError as error:
            if reached == first:
                return [MessageAt(first, problem=f"it cannot be read: {error.reason}")], BYTES
        if reached <= first:
            raise BrokerError(f"{tp}: no message came from offset {first} on")
        passed = (offset for offset in wanted if first <= offset < reached)
        return [found.get(offset) or MessageAt(offset, problem=GONE, gone=True) for offset in passed], BYTES

    def _larger(self, tp: TopicPartition, offset: int, size: int, wanted: int) -> tuple[list[MessageAt], int]:
        limit = max(self._settings.largest_batch, self._settings.partition_bytes, BYTES)
        if wanted > limit:
            problem = f"it takes {wanted} bytes, the largest fetch is {limit}: raise fetch.max.bytes"
            return [MessageAt(offset, problem=problem)], BYTES
        if wanted <= size:
            raise BrokerError(f"{tp}: the broker sent less than the {wanted} bytes of the message at offset {offset}")
        return [], wanted


def _outside(channel: BrokerChannel, tp: TopicPartition, offset: int, deadline: Deadline) -> MessageAt:
    """Return why an offset is out of range. Raises BrokerError if it is not, or if nobody can tell."""
    span = log_spans(channel, [tp], deadline)[tp]
    if span.start is not None and offset < span.start:
        return MessageAt(offset, problem=f"the log begins at offset {span.start}", gone=True)
    if span.end is not None and offset >= span.end:
        return MessageAt(offset, problem=f"the log ends at offset {span.end}", certain=False, gone=True)
    raise BrokerError(f"{tp}: offset {offset} is out of range, but not beyond the log: {span.problem or 'it moves'}")


def _size(record: Any) -> int:
    if record is None:
        return 0
    return len(record.key or b"") + len(record.value or b"")


AT_ONCE = 50
"""Partitions in one fetch."""
NO_TIME = -1
"""Stands for the time of a message without one, as brokers before 0.10 write them."""
NO_MESSAGE = -2
"""Stands for the time where no message is left up to the log's end, but transaction markers or deleted records."""
EXPANDED = 16 * 1024 * 1024
"""Bytes of one batch after decompression. The time of a message in a larger one is not read."""


def message_times(
    channel: BrokerChannel, offsets: Mapping[TopicPartition, Collection[int]], deadline: Deadline, until: Deadline
) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield the partition, the offset and the time (ms since 1970) of the first message from each offset on.

    The time is :data:`NO_TIME` if the message has none, and :data:`NO_MESSAGE` if no message is left up to the log's
    end. Messages that do not fit and corrupt ones are left out, and so are partitions that the broker does not lead.
    One fetch answers all offsets of a partition that lie in the fetched batches. The partitions are asked in turns. No
    fetch is sent after ``until``. Raises BrokerError, also if no answer comes by ``deadline``.
    """
    left = {tp: _Places(sorted(set(wanted))) for tp, wanted in offsets.items() if wanted}
    turns = deque(left)
    while left and not until.expired:
        while turns[0] not in left:
            turns.popleft()
        first = turns[0]  # only the first gets a batch whole that is larger than the fetch, so each comes first in turn
        turns.rotate(-1)
        asked = [first, *(tp for tp in islice(left, AT_ONCE) if tp != first)][:AT_ONCE]
        positions = [FetchPosition(*tp, left[tp].position, BYTES) for tp in asked]
        request = FetchRequest(positions, 0.0, 0, BYTES * AT_ONCE)
        answer = channel.receive_fetch(channel.send_fetch(request, deadline), deadline)
        told = {TopicPartition(one.topic, one.partition): one for one in answer.partitions}
        for tp in asked:
            one, places = told.get(tp), left.pop(tp)
            if one is None or one.error not in (codes.NONE, codes.OFFSET_OUT_OF_RANGE):
                continue
            for offset, time in places.take(one, whole=tp == first):
                yield tp, offset, time
            if places.wanted:
                left[tp] = places


class _Places:
    """The offsets of one partition whose times are wanted, and the next position to fetch."""

    def __init__(self, wanted: Sequence[int]) -> None:
        self.wanted = deque(wanted)
        self.position = wanted[0]

    def take(self, answer: PartitionResponse, *, whole: bool) -> Iterator[tuple[int, int]]:
        """Take a fetch of :attr:`position` in. Yield the offsets whose times it tells, with these.

        ``whole``: a batch larger than :data:`BYTES` would have come whole, as from brokers since 0.10.1.
        """
        where, reached = TopicPartition(answer.topic, answer.partition), self.position
        # without any progress, what is wanted here cannot be had; an empty answer may only lack the room for a batch
        wanted, lost = self.wanted, whole or answer.error != codes.NONE or bool(answer.records)
        try:
            for record in _records(answer, where, self.position) if answer.error == codes.NONE else ():
                if 0 <= answer.high_watermark <= record.offset:  # or it would stand for all places that are left
                    raise CorruptRecordsError(where, self.position, self.position + 1, "an offset beyond the log")
                while wanted and record.offset >= wanted[0]:
                    yield wanted.popleft(), int(record.timestamp) if record.timestamp >= 0 else NO_TIME
                if not wanted:
                    return
            if answer.records:
                found = extent(answer.records, where, self.position, answer.high_watermark).next_offset
                reached = max(reached, found or 0)
            if answer.records and 0 <= answer.high_watermark <= reached:
                while wanted:
                    yield wanted.popleft(), NO_MESSAGE
        except CorruptRecordsError as error:
            reached = max(reached, error.next_offset)
            while wanted and wanted[0] < reached:
                wanted.popleft()
        while reached == self.position and lost and wanted and wanted[0] <= reached:
            wanted.popleft()
        self.position = max(reached, wanted[0]) if wanted else reached


def _records(answer: PartitionResponse, where: TopicPartition, offset: int) -> Iterator[Any]:
    for batch in batches(
        answer.records, check_crc=False, where=where, fetch_offset=offset, expansion=Expansion(EXPANDED)
    ):
        yield from batch
