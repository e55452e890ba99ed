"""Readers beside a group that the brokers coordinate, which move its offsets, on the cluster in memory.

They are a query with ``membership=none``, and a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from tests.timing import eventually
from tests.unit.clusters import cluster_with
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import ConfigException, OffsetCommitError
from zkconsumer.spark.batch_reader import make_snapshot
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.options import parse
from zkconsumer.spark.streaming_query import QueryRun
from zkconsumer.testing import FakeCluster

PLACES = [("t", 0), ("t", 1)]
cluster = cluster_with({"t": [[b"x"] * 10] * 2}, brokers=2, zookeeper=False)


def common(cluster: FakeCluster) -> dict[str, str]:
    return {"group.coordination": "kafka", "bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}


@pytest.fixture
def member(cluster: FakeCluster) -> Iterator[ZookeeperConsumerConnector]:
    """One that has read 3 messages of each partition, and then stops."""
    connector = ZookeeperConsumerConnector({**common(cluster), "client.id": "a-member", "auto.commit.enable": "false"})
    connector.create_message_streams({"t": 1})
    connector.commit_offsets(dict.fromkeys(connector.assignment(), 3))
    yield connector
    connector.shutdown()


@pytest.fixture
def run(cluster: FakeCluster) -> Iterator[Any]:
    made: list[QueryRun] = []

    def make_run(**options: str) -> QueryRun:
        given = {"subscribe": "t", "membership": "none", "startingOffsets": "group", **options}
        parsed = parse({**common(cluster), **given})
        made.append(QueryRun(parsed, cluster_of(parsed)))
        made[-1].open()
        return made[-1]

    yield make_run
    for one in made:
        one.close()


def committed(cluster: FakeCluster) -> list[int]:
    found = cluster.committed("g")
    return [found.get(place, -1) for place in PLACES]


def test_a_query_beside_the_group_moves_its_offsets(
    cluster: FakeCluster, member: ZookeeperConsumerConnector, run: Any
) -> None:
    """It goes on where the group stands."""
    member.shutdown()
    query = run()
    batch = query.latest({}, 8)
    assert sorted((piece.topic, piece.partition, piece.start, piece.end) for piece in _ranges(query.plan(batch))) == [
        ("t", 0, 3, 7),
        ("t", 1, 3, 7),
    ]
    assert committed(cluster) == [3, 3]
    query.settle(batch)
    assert committed(cluster) == [7, 7]
    asked = len(cluster.requests_of("FindCoordinator"))
    query.settle(query.latest(batch, None))
    assert committed(cluster) == [10, 10]
    assert len(cluster.requests_of("FindCoordinator")) == asked  # it is known


def _ranges(tasks: Any) -> list[Any]:
    return [piece for task in tasks for piece in task.ranges]


def test_a_query_beside_the_group_never_sets_it_back(
    cluster: FakeCluster, member: ZookeeperConsumerConnector, run: Any
) -> None:
    query = run(allowLiveMembers="true", startingOffsets="earliest")
    batch = query.latest({}, None)
    member.commit_offsets({tp: 9 - tp.partition for tp in member.assignment()})
    member.shutdown()
    cluster.append("t", 0, [b"x"])
    query.settle({"v": 1, "topics": {"t": {"0": {"from": 0, "to": 5}, "1": {"from": 0, "to": 10}}}})
    assert committed(cluster) == [9, 10]
    query.settle(batch)
    assert committed(cluster) == [10, 10]


def test_a_group_with_members_is_refused_by_their_names(member: ZookeeperConsumerConnector, run: Any) -> None:
    with pytest.raises(ConfigException, match=r"membership: 'none': group 'g' has live members \(a-member at 127"):
        run()


def test_offsets_of_members_count_while_there_are_any(
    cluster: FakeCluster, member: ZookeeperConsumerConnector, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Afterwards the offsets of the query count."""
    query = run(allowLiveMembers="true")
    batch = query.latest({}, None)
    query.settle(batch)
    assert committed(cluster) == [3, 3]
    assert "the group's offsets are its members' for now" in caplog.text
    member.shutdown()
    eventually(lambda: query.latest(batch, None) == batch and committed(cluster) == [10, 10], 10, "the next try")


def test_an_idle_query_beside_members_asks_once_a_second(
    cluster: FakeCluster, member: ZookeeperConsumerConnector, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each trigger asked for the members, tried to commit and logged that it could not: hundreds of times a second."""
    query = run(allowLiveMembers="true")
    batch = query.latest({}, None)
    query.settle(batch)
    asked, began = len(cluster.requests), monotonic()
    for _ in range(50):
        assert query.latest(batch, None) == batch
    new = [request.api for request in cluster.requests[asked:] if request.client_id != "a-member"]
    tries = 2 + int(monotonic() - began)
    for api in ("DescribeGroups", "OffsetFetch", "OffsetCommit"):
        assert new.count(api) <= tries, api
    assert caplog.text.count("the group's offsets are its members' for now") == 1


def test_a_coordinator_that_moves_is_found_again(cluster: FakeCluster, run: Any) -> None:
    query = run(startingOffsets="earliest")
    batch = query.latest({}, None)
    cluster.move_coordinator("g", to=1 - (cluster.coordinator("g") or 0))
    query.settle(batch)
    assert committed(cluster) == [10, 10]


def test_a_snapshot_moves_the_offsets_of_a_group_without_members(
    cluster: FakeCluster, member: ZookeeperConsumerConnector
) -> None:
    part = make_snapshot({**common(cluster), "subscribe": "t", "startingOffsets": "group"})
    assert [(start, end) for _, _, start, end in part.ranges] == [(3, 10), (3, 10)]
    with pytest.raises(OffsetCommitError, match=r"not committed: t-0, t-1 \(the group has live members"):
        part.commit()
    assert committed(cluster) == [3, 3]
    member.shutdown()
    eventually(lambda: cluster.group("g").state == "Empty", 10, "the end of the member")
    part.commit()
    assert committed(cluster) == [10, 10]


def test_what_the_coordinator_refuses_is_named(cluster: FakeCluster) -> None:
    part = make_snapshot({**common(cluster), "subscribe": "t"})
    cluster.fail("OffsetCommit", 12)
    with pytest.raises(OffsetCommitError, match=r"group g: not committed: t-0, t-1 \(OFFSET_METADATA_TOO_LARGE\)"):
        part.commit()
