"""``spark.read`` and snapshots: ranges fixed when the query is planned, read by tasks.

``partitions`` runs in a planner process that Spark reuses for others, ``read`` in the workers: neither keeps anything.
The group is only looked at (``startingOffsets=group``); a batch registers nothing and commits nothing.

A :class:`Snapshot` fixes the ranges in the caller's process, before anything is read, and can then move the group's
offsets to their end. A DataFrame has no moment at which it "was read", so ``spark.read`` never commits. The commit of a
snapshot covers exactly the messages that were read, however often and by how many actions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from zkconsumer.core.names import first_of
from zkconsumer.errors import ConfigException, OffsetCommitError, OffsetOutOfRangeError
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.offsets.store import CommitRefusedError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark import offset_ranges
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.offset_ranges import EARLIEST, LATEST, LogSpan, OffsetChoice, named_position
from zkconsumer.spark.options import ReadOptions, option_of, parse, shown
from zkconsumer.spark.query_cluster import NoTimesError, QueryCluster
from zkconsumer.spark.range_reader import ADVICE, FROM_BEGINNING, RangePartition, TaskReader, set_aside
from zkconsumer.spark.schema import source_schema
from zkconsumer.zookeeper import node_codecs, ownership_transactions, paths
from zkconsumer.zookeeper.ownership_transactions import Change, Outcome
from zkconsumer.zookeeper.session import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)


class BatchReader(TaskReader, DataSourceReader):
    """Reads what the options name, once."""

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
        tasks = offset_ranges.pieces(ranges, options.min_partitions, options.max_records)
        return [RangePartition(piece, leaders) for piece in tasks]


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
    problem = offset_ranges.out_of_log(range_, span)
    if problem is None:
        return range_
    if fail:
        raise OffsetOutOfRangeError(f"{problem}; {ADVICE}")
    log.warning("%s; reading what is there", problem)
    return offset_ranges.within(range_, span)


_ROUNDS = 5
_FIXED = (
    "subscribe",
    "subscribepattern",
    "assign",
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
    "endingoffsets",
    "endingtimestamp",
    "endingoffsetsbytimestamp",
)
"""The options that the ranges take the place of, in lower case."""


class Snapshot:
    """A batch with fixed ranges: made by ``zkconsumer.spark.snapshot``.

    ``ranges`` are the offsets [start, end) of every partition, also of those with nothing to read.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        options: ReadOptions,
        ranges: list[OffsetRange],
        beyond: Mapping[TopicPartition, int],
    ) -> None:
        self._beyond = beyond
        self._given = {name: value for name, value in given.items() if name.lower() not in _FIXED}
        self._options = options
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        size = sum(range_.size for range_ in self.ranges)
        return f"<Snapshot of {self._options}: {size} offsets, {offset_ranges.in_words(self.ranges) or 'no partition'}>"

    def load(self, spark: SparkSession, schema: str | None = None) -> DataFrame:
        """Return a DataFrame of just these ranges; ``schema`` names the columns to read, by default all."""
        if not self.ranges:  # a pattern that no topic matches yet; one that comes now is not of this snapshot
            return spark.createDataFrame([], schema or source_schema(self._options.include_headers))
        assigned: dict[str, list[int]] = {}
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for topic, partition, start, end in self.ranges:
            assigned.setdefault(topic, []).append(partition)
            starts.setdefault(topic, {})[str(partition)] = start
            ends.setdefault(topic, {})[str(partition)] = end
        reader = spark.read.format("zkconsumer").options(**self._given)
        for name, value in (("assign", assigned), ("startingOffsets", starts), ("endingOffsets", ends)):
            reader = reader.option(name, json.dumps(value))
        return (reader.schema(schema) if schema is not None else reader).load()

    def commit(self) -> None:
        """Move the group's offsets on to the ends.

        An offset that is further already stays, unless the log ended before it when the ranges were fixed. A partition
        that a live member owns is its own to commit: ZooKeeper itself refuses it. With ``group.coordination=kafka`` the
        coordinator refuses everything while the group has members.
        Raises: OffsetCommitError naming the partitions that were not written, and why; all others are written.
        RegistryError, BrokerError.
        """
        options = self._options
        todo = {TopicPartition(topic, number): end for topic, number, _, end in self.ranges}
        with cluster_of(options) as cluster:
            if options.config.coordinated_by_brokers:
                stored = cluster.committed(options.group, list(self._beyond)) if self._beyond else {}
                back = {tp: todo[tp] for tp, offset in stored.items() if offset == self._beyond[tp]}
                cluster.commit(options.group, back, also_back=True)
                cluster.commit(options.group, todo)
                return
            outcomes: dict[TopicPartition, Outcome] = {}
            for _ in range(_ROUNDS):
                outcomes |= cluster.ask(partial(_write, group=options.group, offsets=todo, beyond=self._beyond))
                todo = {tp: todo[tp] for tp in todo if outcomes[tp] in (Outcome.OFFSET_MOVED, Outcome.NO_PARENT)}
                if not todo:
                    break
        refused = {tp: CommitRefusedError(outcome) for tp, outcome in outcomes.items() if outcome is not Outcome.DONE}
        if refused:
            why = "; ".join(sorted({str(error) for error in refused.values()}))
            raise OffsetCommitError(f"group {options.group}: not committed: {first_of(refused, 5)} ({why})")


def make_snapshot(given: Mapping[str, object]) -> Snapshot:
    """Look at the logs, and fix the ranges. Raises as ``spark.read`` does, but here and now."""
    texts = {name: _text(value) for name, value in given.items() if value is not None}
    options = parse(texts)
    options.check_batch()
    with cluster_of(options) as cluster:
        ranges, beyond = plan(cluster, options, selected(cluster, options))
    return Snapshot(texts, options, ranges, beyond)


def _text(value: object) -> str:
    """Return an option's value as Spark hands it on."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write(
    session: Session,
    deadline: Deadline,
    group: str,
    offsets: Mapping[TopicPartition, int],
    beyond: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Outcome]:
    """Try once to write offsets.

    Each node is written with the version with which its offset was read, so that none is ever set back. The exceptions
    are offsets that were ``beyond`` the ends of their logs, and still are where they were.
    """
    offset_paths = [paths.offset(group, tp) for tp in offsets]
    nodes = session.read(offset_paths, deadline)
    outcomes, changes = {}, []
    for (tp, offset), path, node in zip(offsets.items(), offset_paths, nodes, strict=True):
        known = None if node is None else node_codecs.decode_offset(node.data, path)
        if known is not None and known >= offset and known != beyond.get(tp):
            outcomes[tp] = Outcome.DONE
        else:
            version = None if node is None else node.version
            changes.append(Change(tp, node_codecs.encode_offset(offset), version))
    return {**outcomes, **ownership_transactions.write_unowned(session, group, changes, deadline)}
