"""What a balanced member leaves in a real ZooKeeper, as snapshots, the doctor and the commands see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic
from tests.timing import eventually, scaled
from zkconsumer import Reject, Retry, ZookeeperConsumerConnector
from zkconsumer.cli import main
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import TopicPartition
from zkconsumer.operations.cluster_connection import ClusterConnection, command_config
from zkconsumer.operations.doctor import Finding, examine
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_reader import LiveSource

SLOW, POISON, FAILING, COUNT = 3, 10, 11, 40


def look(cluster: DevCluster, group: str) -> GroupSnapshot:
    config = command_config(cluster.zookeeper_connect, None)[0]
    with closing(LiveSource(ClusterConnection(config, scaled(10.0)))) as source:
        return source.snapshot(group)


def found(snapshot: GroupSnapshot, check: str) -> list[Finding]:
    return [one for one in examine([snapshot]) if one.check == check and str(one.level) != "ok"]


def test_notes_and_pointers_of_a_member_are_seen(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    connector: Callable[..., ZookeeperConsumerConnector],
    zookeeper: KazooClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One message is in hand, one is given up and one is parked. Then somebody else writes the offset."""
    topic, group, go = new_topic(1), new_group(), Event()
    produce(topic, [b"%d" % number for number in range(COUNT)])
    tp, made = TopicPartition(topic, 0), connector(group, auto_offset_reset="smallest")

    def handler(message: Any) -> Reject | None:
        if message.offset == SLOW:
            go.wait(scaled(60))
        if message.offset == FAILING:
            raise TimeoutError("the warehouse is away")
        return Reject("no such field") if message.offset == POISON else None

    options: dict[str, Any] = {"concurrency": 4, "order": "none", "retry": Retry(delays=(3600.0,), park_after=1)}
    thread = Thread(target=made.run, args=(handler, topic), kwargs=options, name="the run")
    thread.start()
    try:

        def all_noted() -> bool:
            made.commit_offsets()
            now = look(cluster, group)
            return now.committed(tp) == SLOW and now.lag(tp) == 1

        eventually(all_noted, 30, lambda: f"a note of all but one: {made.state}, {look(cluster, group)}")
        seen = look(cluster, group)
        assert seen.note(tp) is not None
        node = seen.pointers[tp]
        assert (node.parked, node.dead) == (1, 1)
        assert [one.offset for one in node.listed] == [FAILING, POISON]
        assert node.listed[0].reason == "TimeoutError: the warehouse is away"
        assert [one.text for one in found(seen, "dead-letters")] == ["1 dead letter wait: messages that were given up"]
        assert not found(seen, "void-note")
        assert not found(seen, "parked-without-member")
        describe = ["groups", "describe", group, "--verbose", "--format", "json", "--zookeeper"]
        assert main([*describe, cluster.zookeeper_connect]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["current_offset"], row["lag"], row["finished_beyond"]) == (SLOW, 1, COUNT - SLOW - 1)
        assert (row["parked"], row["dead"]) == (1, 1)
    finally:
        go.set()
        made.shutdown(scaled(20))
        thread.join(scaled(30))
    assert not thread.is_alive()
    left = look(cluster, group)
    assert left.committed(tp) == COUNT
    assert [str(one.level) for one in found(left, "parked-without-member")] == ["warn"]
