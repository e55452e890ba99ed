"""The reader of offset ranges: from the brokers to Arrow batches, inside a task.

One thread, the task's; nothing is kept between tasks. The next fetch is under way while an answer is decoded. The
planner sends the leaders along. Only when a leader moves or a broker is away does the task look it up (in ZooKeeper, or
with the brokers if they coordinate the group); then reading goes on at the same offset.

A worker imports this module and the options, and no module that plans: each of Spark's processes pays for its imports.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from zkconsumer.cluster.cluster_client import BrokerChannels
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    ConfigException,
    MessageSizeTooLargeException,
    OffsetOutOfRangeError,
    RegistryError,
)
from zkconsumer.kafka import BrokerChannel, FetchPosition, FetchRequest, PartitionResponse, batches
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.arrow_columns import ColumnBuilder
from zkconsumer.kafka.compression import Expansion
from zkconsumer.kafka.fetched_batches import extent
from zkconsumer.model import Endpoint, OffsetRange, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.offset_ranges import LogSpan, decode_progress, in_words, out_of_log, ranges_of, within
from zkconsumer.spark.options import ReadOptions
from zkconsumer.spark.schema import arrow_schema

if TYPE_CHECKING:
    from zkconsumer.spark.query_cluster import QueryCluster

log = logging.getLogger(__name__)

BATCH_ROWS: Final = 16_384
BATCH_BYTES: Final = 32 * 1024 * 1024
_SMALLEST_FETCH: Final = 64 * 1024
_GUESSED_RECORD: Final = 512
"""Bytes that an offset is taken for until the first answer. More is received in vain, less costs another fetch."""
_RANGES_AHEAD: Final = 16
"""Ranges of which the first fetch is sent before their turn."""
_AHEAD_BYTES: Final = 1024 * 1024
"""Bytes that such a fetch asks for at most: its answer may come early, and is kept until then."""
ADVICE: Final = "set failOnDataLoss=false to go on without what is missing"
FROM_BEGINNING: Final = "its topic was made anew, or its log was cut: it is read from its beginning,"


def _cluster_of(options: ReadOptions) -> QueryCluster:
    """Return the cluster of these options. Few tasks need it and the client of ZooKeeper, so the import stands here."""
    from zkconsumer.spark.coordinator_cluster import cluster_of

    return cluster_of(options)


class _Moved(BrokerUnavailableError):
    """The partition must be read from elsewhere."""


class _Fetch(NamedTuple):
    """A fetch whose answer is outstanding: the channel that it was sent on, and its id there."""

    channel: BrokerChannel
    pending: int


class RangeReader:
    """Reads ranges one after the other.

    Arguments: ``leaders`` maps partitions to the brokers to ask first. Any other leader is looked up in the cluster
    that ``open_cluster`` returns, by default ZooKeeper's.
    """

    def __init__(
        self,
        options: ReadOptions,
        leaders: Mapping[TopicPartition, Endpoint],
        open_cluster: Callable[[], QueryCluster] | None = None,
    ) -> None:
        self._options = options
        self._open_cluster = open_cluster or (lambda: _cluster_of(options))
        self._config = options.config
        self._timeout = options.config.socket_timeout_ms / 1000
        self.leaders = dict(leaders)
        self._channels: dict[Endpoint, BrokerChannel] = {}
        self._used_at: dict[Endpoint, float] = {}
        self._sent_ahead: dict[tuple[TopicPartition, int], _Fetch] = {}
        self._pause = Event()

    def close_unused(self, seconds: float) -> None:
        """Close the connections that no range was read from for so long. The other end may have forgotten them."""
        for endpoint, used_at in self._used_at.items():
            if monotonic() - used_at > seconds and (channel := self._channels.pop(endpoint, None)) is not None:
                channel.close()

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def sets(
        self, range_: OffsetRange, following: Sequence[OffsetRange] = ()
    ) -> Iterator[tuple[PartitionResponse, int]]:
        """Yield the fetched sets of a range, each with the offset that was asked for, until its end is reached.

        Arguments: ``following`` are the ranges that are read next. Their first fetches are sent together with the
        fetch of this range, so that many small ranges do not wait for an answer each.
        Raises BrokerError if the range cannot be read in time, OffsetOutOfRangeError if it is gone.
        """
        where = TopicPartition(range_.topic, range_.partition)
        position = range_.start
        deadline = Deadline(self._timeout)
        while position < range_.end:
            try:
                for part, asked, reached in self._fetches(where, position, range_.end, following):
                    position = reached  # an error after this line does not fetch it again
                    yield part, asked
                    deadline = Deadline(self._timeout)  # from when Spark wants more, which may be much later
            except _OutOfRange:
                left = self._left(range_._replace(start=position))
                if left.start == position and left.size and deadline.expired:
                    raise BrokerUnavailableError(
                        f"{where}: its leader denies offset {position}, which is in its log"
                    ) from None
                if left.start == position and left.size:
                    self._pause.wait(deadline.bounded(self._config.refresh_leader_backoff_ms / 1000))
                position, range_ = left.start, left
            except (BrokerAuthenticationError, BrokerResponseError):
                raise  # asking again cures neither
            except BrokerError as error:
                if deadline.expired and self._is_gone(range_._replace(start=position)):
                    return
                if deadline.expired:
                    raise
                log.warning("%s at offset %d: %s; looking for its leader", where, position, error)
                self._forget(where)
                self._pause.wait(deadline.bounded(self._config.refresh_leader_backoff_ms / 1000))

    def _fetches(
        self, where: TopicPartition, position: int, end: int, following: Sequence[OffsetRange]
    ) -> Iterator[tuple[PartitionResponse, int, int]]:
        """Yield (fetched, offset asked for, next offset); each next fetch is sent before the last is handed out."""
        channel = self._channel(where)
        largest = self._guessed_size(end - position)
        pending = self._sent_before(channel, where, position) or self._send(channel, where, position, largest)
        self._send_ahead(channel, following)
        silent = Deadline(self._timeout)
        while True:
            part = self._answer(channel, pending, where)
            reach = extent(part.records, where, position)
            if reach.next_offset is None:
                if reach.wanted > largest:
                    largest = self._enough(where, position, reach.wanted)
                elif silent.expired and 0 <= part.high_watermark <= position:
                    raise _OutOfRange
                elif silent.expired:
                    raise _Moved(f"{where}: nothing came at offset {position} of a range that ends at {end}")
                pending = self._send(channel, where, position, largest)
                continue
            asked, position = position, reach.next_offset
            per_offset = len(part.records) // (position - asked) + 1
            largest = min(
                max(self._config.fetch_message_max_bytes, largest),
                max(_SMALLEST_FETCH, (end - position) * per_offset * 5 // 4),
            )
            failure: BrokerError | None = None
            if position < end:
                try:
                    pending = self._send(channel, where, position, largest)
                except BrokerError as error:
                    failure = error  # what has arrived is handed out first
            yield part, asked, position
            if failure is not None:
                raise failure
            if position >= end:
                return
            silent = Deadline(self._timeout)

    def _guessed_size(self, offsets: int) -> int:
        return min(self._config.fetch_message_max_bytes, max(_SMALLEST_FETCH, offsets * _GUESSED_RECORD))

    def _sent_before(self, channel: BrokerChannel, where: TopicPartition, position: int) -> int | None:
        """Return the id of the fetch that was sent ahead, or None. Answers on a channel that was closed are lost."""
        sent = self._sent_ahead.pop((where, position), None)
        return sent.pending if sent is not None and sent.channel is channel else None

    def _send_ahead(self, channel: BrokerChannel, following: Sequence[OffsetRange]) -> None:
        """Send the first fetches of the next ranges that the same broker leads, as far as they are known to be there.

        A broker that is not connected yet is left to its first range: two waits for it would take twice the time.
        """
        for range_ in following[:_RANGES_AHEAD]:
            where = TopicPartition(range_.topic, range_.partition)
            leader = self.leaders.get(where)
            known = self._sent_ahead.get((where, range_.start))
            if leader is None or self._channels.get(leader) is not channel or (known and known.channel is channel):
                continue
            size = min(self._guessed_size(range_.size), _AHEAD_BYTES)
            pending = self._send(channel, where, range_.start, size)
            self._sent_ahead[where, range_.start] = _Fetch(channel, pending)

    def _send(self, channel: BrokerChannel, where: TopicPartition, position: int, size: int) -> int:
        request = FetchRequest(
            [FetchPosition(where.topic, where.partition, position, size)],
            max_wait=self._config.fetch_wait_max_ms / 1000,
            min_bytes=1,
            max_bytes=max(size, self._config.fetch_max_bytes),
            isolation_level=self._options.isolation_level,
        )
        return channel.send_fetch(request, Deadline(self._timeout))

    def _answer(self, channel: BrokerChannel, pending: int, where: TopicPartition) -> PartitionResponse:
        answer = channel.receive_fetch(pending, Deadline(self._timeout))
        for part in answer.partitions:
            if (part.topic, part.partition) != where:
                continue
            if part.error == codes.OFFSET_OUT_OF_RANGE:
                raise _OutOfRange
            if part.error != codes.NONE and not codes.retriable(part.error):
                raise codes.error(part.error, f"fetching {where}")
            if part.error != codes.NONE:
                raise _Moved(f"{where}: the broker answered {codes.name(part.error)}")
            return part
        raise _Moved(f"{where}: the broker left it out of its answer")

    def _enough(self, where: TopicPartition, position: int, wanted: int) -> int:
        limit = max(self._config.fetch_max_bytes, self._config.fetch_message_max_bytes)
        if wanted > limit:
            raise MessageSizeTooLargeException(
                f"the message at {where} offset {position} takes {wanted} bytes, the largest fetch allowed is {limit}: "
                "raise fetch.max.bytes"
            )
        return wanted

    def _is_gone(self, range_: OffsetRange) -> bool:
        """Return whether the whole partition exists no more. Raises OffsetOutOfRangeError if that is an error."""
        where = TopicPartition(range_.topic, range_.partition)
        try:
            with self._open_cluster() as cluster:
                gone = where in cluster.gone([where])
        except (BrokerError, RegistryError):
            return False  # the error of the read is to be told, not this error
        if gone and self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{where}: its topic was deleted, and offset {range_.start} with it; {ADVICE}")
        if gone:
            log.warning("%s: its topic was deleted; passing over offsets %d to %d", where, range_.start, range_.end)
        return gone

    def _left(self, range_: OffsetRange) -> OffsetRange:
        """Return the rest of a range that exists. Raises OffsetOutOfRangeError if a lost part is an error."""
        where = TopicPartition(range_.topic, range_.partition)
        with self._open_cluster() as cluster:
            span: LogSpan = cluster.log_spans([where])[where]
            if max(range_.start, range_.end) > span.end:  # are they lost, or do consumers only not see them now?
                span = LogSpan(span.first, max(span.end, cluster.written_ends([where])[where]))
        problem = out_of_log(range_, span)
        if problem is None:
            return range_
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{problem}; {ADVICE}")
        left = within(range_, span)
        log.warning("%s; reading %d to %d instead of %d to %d", problem, *left[2:], *range_[2:])
        return left

    def _channel(self, where: TopicPartition) -> BrokerChannel:
        endpoint = self.leaders.get(where)
        if endpoint is None:
            with self._open_cluster() as cluster:
                self.leaders.update(cluster.leaders([where]))
            endpoint = self.leaders.get(where)
        if endpoint is None:
            raise BrokerUnavailableError(f"{where} has no leader")
        channel = self._channels.get(endpoint)
        if channel is None:
            channels = BrokerChannels(self._config, self._timeout)
            channel = self._channels[endpoint] = channels.connected(endpoint, Deadline(self._timeout))
        self._used_at[endpoint] = monotonic()
        return channel

    def _forget(self, where: TopicPartition) -> None:
        endpoint = self.leaders.pop(where, None)
        channel = None if endpoint is None else self._channels.pop(endpoint, None)
        if channel is not None:
            channel.close()


class _OutOfRange(Exception):
    """The log does not have the offset that was asked for."""


class RangePartition(InputPartition):
    """The part of a task: ranges to read in turn, and their leaders as the planner saw them."""

    def __init__(self, ranges: Sequence[OffsetRange], leaders: Mapping[TopicPartition, Endpoint]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        wanted = {TopicPartition(range_.topic, range_.partition) for range_ in self.ranges}
        self.leaders = {tp: endpoint for tp, endpoint in leaders.items() if tp in wanted}

    def __repr__(self) -> str:
        return f"<RangePartition {in_words(self.ranges)}>"


def whole_batch(end: object) -> RangePartition:
    """Return the part that reads all of a batch, which its end alone names. The task finds the leaders."""
    return RangePartition(ranges_of(decode_progress(end)), {})


class TaskReader:
    """Reads in the tasks of a query. The readers of batches and streams arrive in a worker as this class.

    Spark pickles the planner's reader for each task. A worker that unpickled that reader would import members, offset
    stores, and the client of ZooKeeper.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._options}>"

    def __reduce__(self) -> tuple[type[TaskReader], tuple[ReadOptions, StructType]]:
        return TaskReader, (self._options, self._schema)

    def read(self, partition: InputPartition, reader: RangeReader | None = None) -> Iterator[Any]:
        """Return the messages of one task as Arrow batches. Raises BrokerError, OffsetOutOfRangeError.

        Without anything to read, Spark makes an empty partition itself. Arguments: ``reader`` is a reader to use and to
        leave open, if given.
        """
        if not isinstance(partition, RangePartition):
            return iter(())
        return read(self._options, partition.ranges, partition.leaders, arrow_schema(self._schema), reader)

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802
        """Return the messages of a batch of the checkpoint, for ``readOnDriver``."""
        return self.read(whole_batch(end))


def read(
    options: ReadOptions,
    ranges: Sequence[OffsetRange],
    leaders: Mapping[TopicPartition, Endpoint],
    schema: Any,
    kept: RangeReader | None = None,
) -> Iterator[Any]:
    """Yield the messages of some ranges as ``pyarrow.RecordBatch`` of thousands of rows.

    Arguments: ``schema`` is the ``pyarrow.Schema`` of every batch; its names are those of ``kafka.arrow_columns``.
    ``kept`` is a reader whose connections stay open afterwards; by default there is one for this call.
    Raises: as ``RangeReader.sets``, and InvalidMessageException for corrupt data, naming its position.
    """
    import pyarrow as pa

    reader = kept or RangeReader(options, {})
    reader.leaders.update(leaders)
    builder = ColumnBuilder(schema.names)
    committed_only = options.isolation_level == 1
    expansion = Expansion(options.config.batch_expanded_max_bytes)
    with _without_gc():
        try:
            for number, range_ in enumerate(ranges):
                where = TopicPartition(range_.topic, range_.partition)
                for part, asked in reader.sets(range_, ranges[number + 1 :]):
                    for batch in batches(
                        part.records,
                        check_crc=options.config.check_crcs,
                        where=where,
                        fetch_offset=asked,
                        aborted=part.aborted,
                        read_committed=committed_only,
                        expansion=expansion,
                    ):
                        # A set reaches far beyond a short range. Decoding the rest costs more than the range itself.
                        if batch.base_offset >= range_.end:
                            break
                        builder.add_batch(batch, range_.end)
                        if builder.rows >= BATCH_ROWS or builder.size >= BATCH_BYTES:
                            yield from _record_batches(pa, builder, schema)
                        if batch.next_offset >= range_.end:
                            break  # the next batch is not even looked at: it may be corrupt, and is not ours
            yield from _record_batches(pa, builder, schema)
        finally:
            if kept is None:
                reader.close()


def _record_batches(pa: Any, builder: ColumnBuilder, schema: Any) -> Iterator[Any]:
    """Yield the added rows as one Arrow batch; nothing if no row is wanted, which ``builder.rows`` cannot tell."""
    arrays = builder.take()
    if not len(arrays[0]):
        return
    for field, array in zip(schema, arrays, strict=True):
        if not field.nullable and array.null_count:
            raise ConfigException("schema", f"{field.name!r} is declared not null, but there are messages without one")
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def _without_gc() -> Iterator[None]:
    """Collect no garbage inside: decoding makes millions of small objects and no cycles, and a search takes as long.

    The worker process is used by others afterwards, so the former setting is restored.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        set_aside()


REUSED: Final = "SPARK_REUSE_WORKER"
"""Set by Spark in the processes that it uses again. These look for garbage after each task."""

_set_aside_done = False


def set_aside() -> None:
    """Leave all present objects out of later looks for cyclic garbage: at the first call in a reused worker process.

    Spark's daemon has each worker look for cyclic garbage after every task, and every planner after every call. With
    pyspark, pyarrow and numpy imported that is a look at some 70,000 objects that never go. It takes 33 to 60 ms of CPU
    time, as much as reading 150,000 messages. In any other process this does nothing, because that process is not ours.
    Any thread may call it; two calls at the same time do no harm.
    """
    global _set_aside_done
    if _set_aside_done or not os.environ.get(REUSED):
        return
    _set_aside_done = True
    gc.collect()
    gc.freeze()
