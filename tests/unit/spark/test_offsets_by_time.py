"""Batches and streams between times, for each partition or for all, on a cluster of dictionaries."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.spark.dictionary_cluster import A, B, FakeCluster, offset, run_on
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.spark.batch_reader import plan
from zkconsumer.spark.options import parse
from zkconsumer.spark.query_cluster import NoTimesError

BASE = {"zookeeper.connect": "zk", "group.id": "g", "subscribe": "t"}


class TimedCluster(FakeCluster):
    """The message with offset n has the time 1000 + n."""

    grows = 0
    """Messages that come between the questions for the ends and for the times."""

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.logs = {tp: (first, end + self.grows) for tp, (first, end) in self.logs.items()}
        found = {tp: max(self.logs[tp][0], time - 1000) for tp, time in times.items()}
        return {tp: at for tp, at in found.items() if at < self.logs[tp][1]}


def ranges(cluster: FakeCluster, **options: str) -> list[tuple[int, int]]:
    """Return start and end of each partition in a batch."""
    parsed = parse({**BASE, **options})
    parsed.check_batch()
    return [range_[2:] for range_ in plan(cluster, parsed, tuple(sorted(cluster.logs))).ranges]


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({"startingOffsetsByTimestamp": '{"t":{"0":1004,"1":1010}}'}, [(4, 10), (10, 20)]),
        ({"startingOffsetsByTimestamp": '{"t":{"0":0,"1":1019}}'}, [(0, 10), (19, 20)]),
        ({"endingOffsetsByTimestamp": '{"t":{"0":1004,"1":9999}}'}, [(0, 4), (0, 20)]),
        ({"startingTimestamp": "1003", "endingOffsetsByTimestamp": '{"t":{"0":1003,"1":1005}}'}, [(3, 3), (3, 5)]),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1004,"1":1010}}', "endingTimestamp": "1012"}, [(4, 10), (10, 12)]),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1004,"1":1010}}', "startingOffsets": "latest"}, [(4, 10), (10, 20)]),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1,"1":1}}', "startingTimestamp": "1009"}, [(9, 10), (9, 20)]),
    ],
)
def test_a_batch_reads_between_times(options: dict[str, str], read: list[tuple[int, int]]) -> None:
    assert ranges(TimedCluster({A: (0, 10), B: (0, 20)}), **options) == read


@pytest.mark.parametrize("edge", ["starting", "ending"])
def test_times_must_name_every_partition(edge: str) -> None:
    cluster, name = TimedCluster({A: (0, 10), B: (0, 20)}), f"{edge}OffsetsByTimestamp"
    with pytest.raises(ConfigException, match=f"^{name}: its JSON must name every partition; t-1 is missing"):
        ranges(cluster, **{name: '{"t":{"0":1004}}'})
    with pytest.raises(ConfigException, match=f"^{name}: its JSON names t-2, which is not read"):
        ranges(cluster, **{name: '{"t":{"0":1004,"1":5,"2":5}}'})


def test_a_time_after_the_last_message_follows_the_strategy() -> None:
    """In a batch and in a stream; the end of a batch is then the end of the log."""
    logs, given = {A: (0, 10), B: (0, 20)}, {"startingOffsetsByTimestamp": '{"t":{"0":1015,"1":1015}}'}
    wanted = r"^startingOffsetsByTimestamp: '.*': t-0 has no message of that time or later; startingOffsetsByTimestampS"
    with pytest.raises(ConfigException, match=wanted):
        ranges(TimedCluster(logs), **given)
    with pytest.raises(ConfigException, match=wanted):
        run_on(TimedCluster(logs), **given).latest({}, None)
    given["startingOffsetsByTimestampStrategy"] = "latest"
    assert ranges(TimedCluster(logs), **given) == [(10, 10), (15, 20)]
    assert run_on(TimedCluster(logs), **given).latest({}, None) == offset(p0=(10, 10), p1=(15, 20))


def test_a_message_that_comes_meanwhile_is_not_beyond_the_log() -> None:
    """Its time was found after the end of the log, and the batch failed: offset 12 is beyond the log's end 10."""
    for edge in ("starting", "ending"):
        cluster = TimedCluster({A: (0, 10), B: (0, 20)})
        cluster.grows = 5
        read = ranges(cluster, **{f"{edge}Timestamp": "1012"})
        assert read == ([(10, 10), (12, 20)] if edge == "starting" else [(0, 10), (0, 12)])


def test_a_stream_starts_at_the_time_of_each_partition() -> None:
    cluster = TimedCluster({A: (0, 10), B: (0, 20)})
    run = run_on(cluster, startingOffsetsByTimestamp='{"t":{"0":1004,"1":1010}}')
    first = run.latest({}, None)
    assert first == offset(p0=(4, 10), p1=(10, 20))
    cluster.logs[TopicPartition("t", 2)] = (3, 9)  # a new one, which no time names: nothing of it is missed
    assert run.latest(first, None) == offset(p0=(10, 10), p1=(20, 20), p2=(3, 9))


def test_brokers_that_know_no_times_are_told_of() -> None:
    class Old(TimedCluster):
        def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
            raise NoTimesError("broker 1 is older than 0.10.1")

    for name, value in (
        ("startingOffsetsByTimestamp", '{"t":{"0":5}}'),
        ("endingOffsetsByTimestamp", '{"t":{"0":5}}'),
        ("startingTimestamp", "5"),
    ):
        with pytest.raises(ConfigException, match=f"^{name}: .*: broker 1 is older than 0.10.1; name offsets"):
            ranges(Old({A: (0, 10)}), **{name: value})
