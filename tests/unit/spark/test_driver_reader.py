"""``readOnDriver=true``: batches that are read with their planning, as Spark's simple readers do it."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from typing import Any

import pytest
from pyspark.errors import PySparkNotImplementedError

from tests.unit.kafka.scripted import Peer, ScriptedBroker, fetched
from tests.unit.kafka.sets import WHERE, Batch, MessageSet, Written
from tests.unit.spark.dictionary_cluster import FakeCluster, run_on
from zkconsumer.errors import ConfigException
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.spark import coordinator_cluster, range_reader, stream_reader
from zkconsumer.spark.data_source import ZkConsumerDataSource
from zkconsumer.spark.options import ReadOptions, parse
from zkconsumer.spark.schema import source_schema
from zkconsumer.spark.stream_reader import DriverReader, StreamReader
from zkconsumer.spark.streaming_query import QueryRun

OPTIONS = {
    "zookeeper.connect": "zk",
    "group.id": "g",
    "subscribe": "t",
    "membership": "none",
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "2",
    "readOnDriver": "true",
}
OTHER = WHERE._replace(partition=4)
THREE = MessageSet([Batch([Written(value=value) for value in (b"a", b"b", b"c")])], base=0).data
END = {"v": 1, "topics": {"t": {"3": {"from": 0, "to": 2}}}}


class OneBroker(FakeCluster):
    """A cluster whose partitions one broker leads."""

    def __init__(self, leader: Endpoint) -> None:
        super().__init__({WHERE: (0, 3)})
        self.leader = leader

    def leaders(self, partitions: Any) -> dict[TopicPartition, Endpoint]:
        return dict.fromkeys(partitions, self.leader)

    def seen_leaders(self, partitions: Any) -> dict[TopicPartition, Endpoint]:
        return dict.fromkeys(partitions, self.leader)


class Stream(StreamReader):
    """A stream of a run that is there already."""

    def __init__(self, options: ReadOptions, run: QueryRun) -> None:
        super().__init__(options, source_schema(include_headers=False), "frame")
        self.run = run

    def _running(self) -> QueryRun:
        return self.run


def reader_of(cluster: FakeCluster) -> DriverReader:
    given = {name: OPTIONS[name] for name in ("startingOffsets", "maxOffsetsPerTrigger")}
    return DriverReader(Stream(parse(OPTIONS), run_on(cluster, **given)))


def three_messages(peer: Peer) -> None:
    """The log of a partition, which is sent whole for each fetch."""
    peer.versions()
    with suppress(ConnectionError):
        for asked in peer.requests():
            (partition,) = asked.values["topics"][0]["partitions"]
            peer.answer(asked.correlation_id, fetched(THREE, partition=partition["partition"]))


def values(batches: Any) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_batch_is_read_with_its_planning() -> None:
    """Spark copies the iterator for each use of the batch. Batches that follow soon share a connection."""
    with ScriptedBroker(three_messages) as broker:
        cluster = OneBroker(broker.endpoint())
        reader = reader_of(cluster)
        rows, end = reader.read(reader.initialOffset())
        assert end == END
        assert values(copy.copy(rows)) == values(rows) == [b"a", b"b"]
        rows, end = reader.read(end)
        assert values(rows) == [b"c"]
        assert cluster.offsets == {WHERE: 2}  # of the finished batch only
        reader.commit(end)
        assert cluster.offsets == {WHERE: 3}
        reader.close()


def test_a_connection_without_use_is_not_believed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker closes it after a while. The next batch would be late then, and a warning logged for nothing."""
    monkeypatch.setattr(stream_reader, "KEPT_FOR", -1.0)
    with ScriptedBroker(three_messages, three_messages) as broker:
        reader = reader_of(OneBroker(broker.endpoint()))
        _, end = reader.read({})
        assert values(reader.read(end)[0]) == [b"c"]
        reader.close()


class OfTwoBrokers(OneBroker):
    """A cluster with another partition, which another broker leads."""

    def __init__(self, leader: Endpoint, other: Endpoint) -> None:
        super().__init__(leader)
        self.logs = {WHERE: (0, 1), OTHER: (0, 1)}
        self.led = {WHERE: leader, OTHER: other}

    def leaders(self, partitions: Any) -> dict[TopicPartition, Endpoint]:
        return {tp: self.led[tp] for tp in partitions}

    seen_leaders = leaders


def test_a_connection_is_not_believed_for_anothers_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a busy broker kept the connections to all others. A firewall that had forgotten one ended the query: nothing
    came on it for ``socket.timeout.ms``.
    """
    clock = 100.0
    monkeypatch.setattr(range_reader, "monotonic", lambda: clock)

    def one_answer(peer: Peer) -> None:
        peer.versions()
        peer.answer(peer.request().correlation_id, fetched(THREE))
        peer.until_closed()

    with ScriptedBroker(three_messages) as busy, ScriptedBroker(one_answer, one_answer) as idle:
        other = Endpoint(8, "127.0.0.1", idle.port, 5)
        cluster = OfTwoBrokers(other, busy.endpoint())
        reader = reader_of(cluster)
        end = reader.read({})[1]
        clock += 20
        cluster.logs[OTHER] = (0, 2)
        end = reader.read(end)[1]
        clock += 20
        cluster.logs[WHERE] = (0, 3)
        assert values(reader.read(end)[0]) == [b"b", b"c"]
        reader.close()


def test_without_news_there_is_no_batch() -> None:
    """Spark refuses messages whose end is their start."""
    cluster = FakeCluster({WHERE: (0, 2)})
    reader = reader_of(cluster)
    rows, end = reader.read(END)
    assert (list(rows), end) == ([], END)


def test_available_now_is_prepared_for() -> None:
    cluster = FakeCluster({WHERE: (2, 2)})
    reader = reader_of(cluster)
    reader.prepareForTriggerAvailableNow()
    cluster.logs[WHERE] = (2, 9)
    assert reader.read(END)[1] == END


def test_a_repeated_batch_is_read_by_its_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task reads it, and knows neither the query's run nor the leaders."""
    with ScriptedBroker(three_messages) as broker:
        monkeypatch.setattr(coordinator_cluster, "cluster_of", lambda _: OneBroker(broker.endpoint()))
        reader = pickle.loads(pickle.dumps(DriverReader(StreamReader(parse(OPTIONS), source_schema(False), "frame"))))
        assert values(reader.readBetweenOffsets({}, END)) == [b"a", b"b"]


def test_a_batch_too_large_for_the_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the query's process and Spark's driver hold all of a batch."""
    monkeypatch.setattr(stream_reader, "DRIVER_BYTES", 1)
    with (
        ScriptedBroker(three_messages) as broker,
        pytest.raises(ConfigException, match="readOnDriver.*maxOffsetsPerTrigger"),
    ):
        reader_of(OneBroker(broker.endpoint())).read({})


def test_spark_is_told_to_use_the_simple_reader() -> None:
    """Spark asks for the reader of tasks first, and takes this error for the absence of such a reader."""
    source = ZkConsumerDataSource(dict(OPTIONS))
    with pytest.raises(PySparkNotImplementedError):
        source.streamReader(source.schema())
    assert isinstance(source.simpleStreamReader(source.schema()), DriverReader)
