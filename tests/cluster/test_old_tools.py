"""The tools that came with the original connector, run from its own jars on a group of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of, produce_to
from tests.cluster.in_process import offsets_of
from tests.cluster.kafka_tools import table, tool
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

PARTITIONS = 4
COMMITTED, END = 10, 11
"""Offsets of each partition while the tools look at it."""

Connect = Callable[..., ZookeeperConsumerConnector]


class ToolGroup:
    """A group of ours: two members that share a topic, and a third without a partition.

    All messages but the last one in each partition are committed.
    """

    def __init__(self, cluster: DevCluster, group: str, topic: str, connect: Connect) -> None:
        self.name, self.topic, self.zookeeper = group, topic, cluster.zookeeper_connect
        values = [str(n) for n in range(COMMITTED * PARTITIONS)]
        produce_to(cluster.bootstrap_servers, topic, values, partitions=PARTITIONS)
        self.members = {name: connect(group, consumer_id=name, auto_commit_enable=False) for name in ("a", "b", "idle")}
        streams = {name: one.create_message_streams({topic: 2})[topic] for name, one in self.members.items()}
        eventually(lambda: [len(m.assignment()) for m in self.members.values()] == [2, 2, 0], 20, "an even share")
        for name in "ab":
            for stream in streams[name]:
                assert [stream.get(timeout=scaled(20)).offset for _ in range(COMMITTED)] == list(range(COMMITTED))
            self.members[name].commit_offsets()
        produce_to(cluster.bootstrap_servers, topic, ["more"] * PARTITIONS, partitions=PARTITIONS)

    def owner(self, partition: int) -> str:
        return f"{self.name}_{'ab'[partition // 2]}"

    def leave(self) -> None:
        for member in self.members.values():
            member.shutdown()


@pytest.fixture
def group(cluster: DevCluster, new_group: Callable[[], str], new_topic: NewTopic, connector: Connect) -> ToolGroup:
    return ToolGroup(cluster, new_group(), new_topic(PARTITIONS), connector)


def test_consumer_group_command(group: ToolGroup, zookeeper: KazooClient) -> None:
    def run(*arguments: str) -> list[str]:
        return tool("1.1.1", "kafka.admin.ConsumerGroupCommand", "--zookeeper", group.zookeeper, *arguments)

    assert group.name in run("--list")
    *rows, idle = table(run("--describe", "--group", group.name), "TOPIC")
    assert sorted(rows, key=lambda row: row["PARTITION"]) == [
        {
            "TOPIC": group.topic,
            "PARTITION": str(partition),
            "CURRENT-OFFSET": str(COMMITTED),
            "LOG-END-OFFSET": str(END),
            "LAG": str(END - COMMITTED),
            "CONSUMER-ID": group.owner(partition),
        }
        for partition in range(PARTITIONS)
    ]
    assert (idle["TOPIC"], idle["CONSUMER-ID"]) == ("-", f"{group.name}_idle")
    assert any("still active" in line for line in run("--delete", "--group", group.name))
    assert len(owners_of(zookeeper, group.name, group.topic)) == PARTITIONS
    group.leave()
    run("--delete", "--group", group.name)
    assert zookeeper.exists(f"/consumers/{group.name}") is None


def test_consumer_offset_checker(group: ToolGroup) -> None:
    arguments = ("--zookeeper", group.zookeeper, "--group", group.name, "--broker-info")
    lines = tool("0.8.2.2", "kafka.tools.ConsumerOffsetChecker", *arguments)
    end = lines.index("BROKER INFO")
    assert table(lines[:end], "Group") == [
        {
            "Group": group.name,
            "Topic": group.topic,
            "Pid": str(partition),
            "Offset": str(COMMITTED),
            "logSize": str(END),
            "Lag": str(END - COMMITTED),
            "Owner": f"{group.owner(partition)}-{partition % 2}",
        }
        for partition in range(PARTITIONS)
    ]
    assert lines[end + 1].startswith("0 -> 127.0.0.1:")


def test_offsets_are_exported_and_imported(
    group: ToolGroup, connector: Connect, zookeeper: KazooClient, tmp_path: Path
) -> None:
    file = tmp_path / "offsets"

    def line(partition: int, offset: int) -> str:
        return f"/consumers/{group.name}/offsets/{group.topic}/{partition}:{offset}"

    where = ("--zkconnect", group.zookeeper)
    tool("1.1.1", "kafka.tools.ExportZkOffsets", *where, "--group", group.name, "--output-file", str(file))
    assert sorted(file.read_text().split()) == [line(partition, COMMITTED) for partition in range(PARTITIONS)]
    group.leave()
    wanted = {partition: partition + 3 for partition in range(PARTITIONS)}
    file.write_text("".join(line(*entry) + "\n" for entry in wanted.items()))
    tool("1.1.1", "kafka.tools.ImportZkOffsets", *where, "--input-file", str(file))
    assert offsets_of(zookeeper, group.name, group.topic) == wanted
    stream = connector(group.name).create_message_streams({group.topic: 1})[group.topic][0]
    messages = [stream.get(timeout=scaled(20)) for _ in range(sum(END - offset for offset in wanted.values()))]
    firsts: dict[int, int] = {}
    for message in messages:
        firsts.setdefault(message.partition, message.offset)
    assert firsts == wanted


def test_verify_consumer_rebalance(group: ToolGroup, new_group: Callable[[], str], zookeeper: KazooClient) -> None:
    def verify(name: str) -> str:
        arguments = ("--zookeeper.connect", group.zookeeper, "--group", name)
        return "\n".join(tool("1.1.1", "kafka.tools.VerifyConsumerRebalance", *arguments))

    assert "Rebalance operation successful !" in verify(group.name)
    other = new_group()  # registered, but owns nothing
    registration = f'{{"version":1,"subscription":{{"{group.topic}":1}},"pattern":"static","timestamp":"1"}}'
    zookeeper.create(f"/consumers/{other}/ids/{other}_x", registration.encode(), makepath=True)
    assert "Rebalance operation failed !" in verify(other)
