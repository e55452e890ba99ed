"""A connector that is dropped without shutdown: a warning says how to end it, since nobody can do so any more."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest

from tests.internals import member_of
from tests.timing import scaled
from tests.unit.clusters import cluster_with
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster

cluster = cluster_with({"t": [[b"x"] * 5]})


def new(cluster: FakeCluster, coordination: str = "zookeeper") -> ZookeeperConsumerConnector:
    return ZookeeperConsumerConnector(
        zookeeper_connect=cluster.zookeeper_connect,
        group_coordination=coordination,
        group_id="g",
        consumer_id="m",
        auto_offset_reset="smallest",
    )


def drop(held: list[ZookeeperConsumerConnector]) -> None:
    held.clear()
    gc.collect()


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
@pytest.mark.parametrize("read", ["stream", "merged", "not at all"])
def test_a_dropped_connector_is_told_of(cluster: FakeCluster, coordination: str, read: str) -> None:
    """Bug: streams and threads referred to the connector, which was never collected, and nobody was warned."""
    held = [new(cluster, coordination)]
    stream = held[0].create_message_streams({"t": 1})["t"][0]
    if read == "stream":
        assert stream.get(timeout=scaled(30)).offset == 0
    elif read == "merged":
        assert held[0].messages().get(timeout=scaled(30)).offset == 0
    member, gone = member_of(held[0]), weakref.ref(held[0])
    del stream
    try:
        with pytest.warns(ResourceWarning, match=r"g_m was dropped without shutdown\(\).*use `with`, or call shutdown"):
            drop(held)
        assert gone() is None
    finally:
        member.close(Deadline(5.0), finished=False)


def test_streams_are_read_on_without_their_connector(cluster: FakeCluster) -> None:
    held = [new(cluster)]
    stream = held[0].create_message_streams({"t": 1})["t"][0]
    member = member_of(held[0])
    try:
        with pytest.warns(ResourceWarning, match="dropped"):
            drop(held)
        assert [stream.get(timeout=scaled(30)).offset for _ in range(5)] == list(range(5))
    finally:
        member.close(Deadline(5.0), finished=False)


@pytest.mark.parametrize("case", ["never created", "shut down", "failed", "bad configuration"])
def test_a_connector_with_nothing_to_end_is_dropped_in_silence(cluster: FakeCluster, case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if case == "bad configuration":
            with pytest.raises(ValueError, match="group"):
                ZookeeperConsumerConnector(zookeeper_connect="z")
        else:
            connector = new(cluster)
            if case == "shut down":
                with connector:
                    connector.create_message_streams({"t": 1})
            elif case == "failed":
                with pytest.raises(ValueError, match="topic"):
                    connector.create_message_streams({"": 1})
            del connector
        gc.collect()
