"""A cluster and a membership of dictionaries, and runs of a query on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.spark.offset_ranges import LogSpan
from zkconsumer.spark.options import Selection, parse
from zkconsumer.spark.query_cluster import QueryCluster
from zkconsumer.spark.streaming_query import QueryRun

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


HERE = Endpoint(1, "h", 9092)


class FakeCluster(QueryCluster):
    """Logs, offsets and members as dictionaries."""

    def __init__(self, logs: Mapping[TopicPartition, tuple[int, int]], members: tuple[str, ...] = ()) -> None:
        self.logs = dict(logs)
        self.offsets: dict[TopicPartition, int] = {}
        self.members = members
        self.writes = 0
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        missing = set(selection.topics) - {tp.topic for tp in self.logs}
        return tuple(sorted(self.logs)), tuple(sorted(missing))

    def live_members(self, group: str) -> tuple[str, ...]:
        return self.members

    def _find_leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        return dict.fromkeys(partitions, HERE)

    def seen_leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        return dict.fromkeys(partitions, HERE)

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.offsets[tp] for tp in partitions if tp in self.offsets}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, also_back: bool = False) -> None:
        self.writes += 1
        for tp, offset in offsets.items():
            self.offsets[tp] = offset if also_back else max(offset, self.offsets.get(tp, 0))

    def log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][1] for tp in partitions}

    def written_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.logs[tp][1] for tp in partitions}

    def log_spans(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogSpan]:
        return {tp: LogSpan(*self.logs[tp]) for tp in partitions}


def run_on(cluster: FakeCluster, **options: str) -> QueryRun:
    base = {"zookeeper.connect": "zk", "group.id": "g", "subscribe": "t", "membership": "none"}
    run = QueryRun(parse({**base, **options}), cluster)
    run.open()
    return run


def offset(**spans: tuple[int, int]) -> dict[str, Any]:
    """``offset(p0=(1, 2))`` -> the end offset of topic t."""
    return {"v": 1, "topics": {"t": {name[1:]: {"from": a, "to": b} for name, (a, b) in spans.items()}}}


class Share:
    """A membership that owns a part of the topic, as told."""

    def __init__(self, *owned: TopicPartition) -> None:
        self.owned = set(owned)
        self.offsets: dict[TopicPartition, int] = {}
        self.not_stored: set[TopicPartition] = set()
        self.planned: list[Any] = []
        self.patient: list[bool] = []

    def join(self) -> None: ...

    def leave(self) -> None: ...

    def settle(self, done: Any) -> None:
        for tp, span in done.items():
            if tp in self.owned and tp in self.offsets:
                self.offsets[tp] = max(self.offsets[tp], span.end)

    def claim(self, partitions: Any, *, patient: bool) -> set[TopicPartition]:
        self.patient.append(patient)
        return self.owned.intersection(partitions)

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.offsets[tp] for tp in partitions if tp in self.offsets and tp in self.owned}

    def begin(self, starts: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        stored = {tp: offset for tp, offset in starts.items() if tp not in self.not_stored}
        self.offsets |= stored
        return set(stored)

    def set_back(self, starts: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        return self.begin(starts)

    def made_anew(self, partitions: Any) -> tuple[TopicPartition, ...]:
        return ()

    def reserve(self, progress: Any) -> None:
        self.planned.append(dict(progress))

    def repeat(self, progress: Any) -> None:
        self.planned.append(("again", dict(progress)))


def member_run(cluster: FakeCluster, share: Share, **options: str) -> QueryRun:
    run = QueryRun(parse({"zookeeper.connect": "zk", "group.id": "g", "subscribe": "t", **options}), cluster, share)
    run.open()
    return run


class Query:
    """A query as Spark drives it: the batch before is committed when the next one is planned."""

    def __init__(self, run: QueryRun, done: dict[str, Any] | None = None) -> None:
        self.run = run
        self.done: dict[str, Any] = done or {}
        self.read: list[tuple[int, int]] = []

    def trigger(self) -> list[tuple[int, int]]:
        """One trigger. Returns the (first offset, end) that its batch reads of partition 0."""
        end = self.run.latest(self.done, None)
        if end == self.done:
            return []
        self.run.settle(self.done)
        ranges = [(r.start, r.end) for task in self.run.plan(end) for r in task.ranges if r.partition == 0]
        self.done = end
        self.read += ranges
        return ranges
