"""A snapshot: a batch whose ranges are fixed, to read it and then to move the group's offsets to its end.

A DataFrame has no moment at which it "was read", so ``spark.read`` never commits. Here the ranges are fixed first, in
the caller's process. The commit then covers exactly the messages that were read, however often and by how many actions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from zkconsumer.core.names import first_of
from zkconsumer.errors import OffsetCommitError
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.offsets.store import CommitRefusedError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.batch_reader import plan, selected
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.offset_ranges import in_words
from zkconsumer.spark.options import ReadOptions, parse
from zkconsumer.spark.schema import source_schema
from zkconsumer.zookeeper import fenced_writes, node_codecs, paths
from zkconsumer.zookeeper.fenced_writes import Change, Outcome
from zkconsumer.zookeeper.session import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        return f"<Snapshot of {self._options}: {size} offsets, {in_words(self.ranges) or 'no partition'}>"

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


def make(given: Mapping[str, object]) -> Snapshot:
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
    return {**outcomes, **fenced_writes.write_unowned(session, group, changes, deadline)}
