"""``spark.read``: ranges fixed when the query is planned, read by tasks.

``partitions`` runs in a planner process that Spark reuses for others, ``read`` in the workers: neither keeps anything.
The group is only looked at (``startingOffsets=group``); a batch registers nothing and commits nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zkconsumer.core.names import first_of
from zkconsumer.errors import ConfigException, OffsetOutOfRangeError
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.offset_ranges import (
    EARLIEST,
    LATEST,
    LogSpan,
    OffsetChoice,
    named_position,
    out_of_log,
    pieces,
    within,
)
from zkconsumer.spark.options import ReadOptions, option_of, shown
from zkconsumer.spark.query_cluster import NoTimesError, QueryCluster
from zkconsumer.spark.range_reader import ADVICE, FROM_BEGINNING, RangePartition, read_partition, set_aside

log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads what the options name, once."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._options}>"

    def partitions(self) -> list[InputPartition]:
        """Return the tasks: a range for each partition, small ones packed together, or split for ``minPartitions`` and
        ``maxRecordsPerPartition``.

        Raises ConfigException, OffsetOutOfRangeError, RegistryError, BrokerError.
        """
        options = self._options
        with cluster_of(options) as cluster:
            partitions = selected(cluster, options)
            leaders = cluster.leaders(partitions)
            ranges = plan(cluster, options, partitions).ranges
        set_aside()
        tasks = pieces(ranges, options.min_partitions, options.max_records)
        return [RangePartition(piece, leaders) for piece in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the messages of one task as Arrow batches. Raises BrokerError, OffsetOutOfRangeError."""
        return read_partition(self._options, self._schema, partition)


def selected(cluster: QueryCluster, options: ReadOptions) -> tuple[TopicPartition, ...]:
    """Return the partitions to read. Raises ConfigException for a named one that does not exist."""
    partitions, missing = cluster.partitions(options.selection)
    check_existing(options, missing, sorted(set(options.selection.partitions) - set(partitions)))
    return partitions


def check_existing(options: ReadOptions, topics: Sequence[str], partitions: Sequence[TopicPartition]) -> None:
    """Refuse topics and partitions that were named and do not exist, unless ``allowMissingTopics`` says otherwise.

    Raises ConfigException.
    """
    if not topics and not partitions:
        return
    option = "assign" if options.selection.partitions else "subscribe"
    what, names = ("topic", ", ".join(topics)) if topics else ("partition", first_of(partitions, 5))
    problem = f"{names!r}: there is no such {what} in this cluster"
    if not options.allow_missing_topics:
        raise ConfigException(option, f"{problem}; allowMissingTopics=true reads nothing of it")
    log.warning("%s: %s; nothing is read of it", option, problem)


def check_given(edge: str, place: OffsetChoice, partitions: tuple[TopicPartition, ...]) -> None:
    """Refuse offsets or times in JSON that do not name every partition, as in Spark's source.

    Arguments: ``edge`` is "starting" or "ending". Raises ConfigException.
    """
    if place.named is None:
        return
    missing = [tp for tp in partitions if tp not in place.named]
    if missing:
        reason = f"its JSON must name every partition; {first_of(missing, 5)} is missing"
        raise ConfigException(option_of(edge, place), reason)
    strange = sorted(set(place.named) - set(partitions))
    if strange:
        raise ConfigException(option_of(edge, place), f"its JSON names {first_of(strange, 5)}, which is not read")


def at_time(
    cluster: QueryCluster, options: ReadOptions, partitions: Sequence[TopicPartition], *, begun: bool = False
) -> dict[TopicPartition, int]:
    """Return the offsets of ``startingTimestamp`` or ``startingOffsetsByTimestamp``, if one is given.

    The options say whether a partition without a message of its time is an error. It is none once the query has
    ``begun``. Raises ConfigException.
    """
    starting = options.starting or EARLIEST
    found = _looked_up(cluster, "starting", starting, partitions)
    later = sorted(set(starting.times_of(partitions)).difference(found))
    if later and not begun and not options.end_where_time_is_not_reached:
        raise ConfigException(
            option_of("starting", starting),
            f"{shown(starting)!r}: {first_of(later, 5)} has no message of that time or later; "
            "startingOffsetsByTimestampStrategy=latest starts there at the end",
        )
    return found


def _looked_up(
    cluster: QueryCluster, edge: str, place: OffsetChoice, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets at the times of an option, if it names any. Raises ConfigException if brokers cannot tell."""
    times = place.times_of(partitions)
    if not times:
        return {}
    try:
        return cluster.offsets_at(times)
    except NoTimesError as error:
        raise ConfigException(option_of(edge, place), f"{shown(place)!r}: {error}; name offsets") from error


def _up_to(spans: Mapping[TopicPartition, LogSpan], offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {tp: min(offset, spans[tp].end) for tp, offset in offsets.items()}


class BatchPlan(NamedTuple):
    """The ranges of a batch.

    Contents: ``ranges``, also empty ones; ``beyond`` are the group's offsets that lie beyond the ends of their logs,
    which are read from their beginning.
    """

    ranges: list[OffsetRange]
    beyond: Mapping[TopicPartition, int]


def plan(cluster: QueryCluster, options: ReadOptions, partitions: tuple[TopicPartition, ...]) -> BatchPlan:
    """Return the ranges that the options name, as the logs are now.

    Raises ConfigException, OffsetOutOfRangeError, RegistryError, BrokerError.
    """
    starting, ending = options.starting or EARLIEST, options.ending or LATEST
    check_given("starting", starting, partitions)
    check_given("ending", ending, partitions)
    spans = cluster.log_spans(partitions)
    asks_group = "group" in (starting.word, ending.word)
    committed = cluster.committed(options.group, partitions) if asks_group else {}
    # messages that came since the ends were asked for may have times that no message had before
    start_times = _up_to(spans, at_time(cluster, options, partitions))
    end_times = _up_to(spans, _looked_up(cluster, "ending", ending, partitions))
    lost, hidden = _beyond_their_logs(cluster, options, committed if starting.word == "group" else {}, spans)
    ranges = []
    for tp in partitions:
        span = spans[tp]
        if tp in hidden:
            ranges.append(OffsetRange(*tp, hidden[tp], hidden[tp]))
            continue
        by_time = starting.by_time
        first = (start_times if by_time else committed).get(tp)
        start = named_position(starting, tp, span, None if tp in lost else first, span.end if by_time else span.first)
        by_time = ending.by_time
        last = (end_times if by_time else committed).get(tp)
        end = named_position(ending, tp, span, last, span.end if by_time else start)
        if end < start and ending.given is not None:
            raise ConfigException("endingOffsets", f"{end!r} of {tp} is before its start {start}")
        ranges.append(existing(OffsetRange(*tp, start, max(start, end)), span, fail=options.fail_on_data_loss))
    return BatchPlan(ranges, lost)


def _beyond_their_logs(
    cluster: QueryCluster,
    options: ReadOptions,
    committed: Mapping[TopicPartition, int],
    spans: Mapping[TopicPartition, LogSpan],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the group's offsets that their logs have not reached, and those that only consumers do not see yet.

    Raises OffsetOutOfRangeError for the former if that is an error.
    """
    beyond = {tp: offset for tp, offset in committed.items() if offset > spans[tp].end}
    written = cluster.written_ends(list(beyond)) if beyond else {}
    lost = {tp: offset for tp, offset in beyond.items() if offset > written[tp]}
    for tp, offset in lost.items():
        problem = f"{tp}: group {options.group!r} has come to offset {offset}, but its log ends at {written[tp]}"
        if options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{problem}; {ADVICE}")
        log.warning("%s; %s offset %d", problem, FROM_BEGINNING, spans[tp].first)
    return lost, {tp: offset for tp, offset in beyond.items() if tp not in lost}


def existing(range_: OffsetRange, span: LogSpan, *, fail: bool) -> OffsetRange:
    """Return the part of a range that the log has. Raises OffsetOutOfRangeError if a part is missing and ``fail`` is
    set.
    """
    problem = out_of_log(range_, span)
    if problem is None:
        return range_
    if fail:
        raise OffsetOutOfRangeError(f"{problem}; {ADVICE}")
    log.warning("%s; reading what is there", problem)
    return within(range_, span)
