"""Five illnesses that operators' commands named wrongly or not at all, each staged on a real ZooKeeper and broker.

All of ``doctor``, ``explain``, ``groups --describe`` and ``offsets reset`` say the same. A remedy's command is run, and
the group is looked at again.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from tests.cluster.conftest import NewTopic, owners_of, produce_to
from tests.cluster.in_process import Reader, offsets_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.operator_commands import OperatorCommands
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.cli import main
from zkconsumer.cli.offsets.write_report import WriteReport
from zkconsumer.devcluster import DevCluster

Connect = Callable[..., ZookeeperConsumerConnector]
NewGroup = Callable[[], str]


def test_a_member_that_subscribes_to_nothing_is_named(
    commands: OperatorCommands, connector: Connect, new_topic: NewTopic, new_group: NewGroup
) -> None:
    topic, group = new_topic(2), new_group()
    working = connector(group, consumer_id="working")
    working.create_message_streams({topic: 1})
    idle = connector(group, consumer_id="idle")
    idle.create_message_streams({})
    found = eventually(
        lambda: (now := commands.findings(group))["idle-member"]["level"] == "warn" and now, 30, "both members"
    )
    assert f"{group}_idle subscribes to nothing" in found["idle-member"]["text"]
    commands("explain", group)
    assert f"{group}_idle subscribes to nothing" in commands.out.partition("Judged warn: 1 warning")[2], commands.out
    commands("groups", "describe", group)
    assert f"Warning: Consumer group '{group}': {group}_idle subscribes to nothing" in commands.err, commands.err
    idle.shutdown()
    misspelt = connector(group, consumer_id="misspelt")
    misspelt.create_message_streams({"evnets": 1})
    eventually(lambda: "evnets" in commands.findings(group)["idle-member"]["evidence"], 30, "the misspelt topic")
    misspelt.shutdown()
    eventually(lambda: commands.findings(group)["idle-member"]["level"] == "ok", 30, "the end of both")


def test_two_strategies_in_one_group_are_told_as_the_cause(
    commands: OperatorCommands,
    legacy_member: Callable[..., LegacyMember],
    new_topic: NewTopic,
    new_group: NewGroup,
    zookeeper: KazooClient,
) -> None:
    """It was told as an unowned partition, with a command that wakes the members and mends nothing."""
    topic, group = new_topic(4), new_group()
    quick = {"rebalance.max.retries": 2, "rebalance.backoff.ms": 200}
    by_range = legacy_member("1.1.1", group, {topic: 1}, properties={"consumer.id": "a", **quick})
    by_range.wait_ready()
    eventually(lambda: len(owners_of(zookeeper, group, topic)) == 4, 30, "the first member's partitions")
    other = {"consumer.id": "b", "partition.assignment.strategy": "roundrobin", **quick}
    odd = legacy_member("1.1.1", group, {topic: 1}, properties=other)
    gave_up = "can't rebalance after 2 retries"
    eventually(lambda: gave_up in odd.log_text() or gave_up in by_range.log_text(), 40, odd.log_text)
    properties = Path("consumer.properties")
    properties.write_text("rebalance.max.retries=2\nrebalance.backoff.ms=200\n")

    def told() -> dict[str, dict[str, Any]]:
        found = commands.findings(group, "--twice", "2", "--member-config", str(properties))
        assert found["unowned-partition"]["level"] == "error", found["unowned-partition"]
        return found

    found = eventually(told, 60, "a group that stands still")
    assert found["mixed-strategies"]["level"] in ("warn", "error")
    assert "set one strategy" in found["mixed-strategies"]["text"]
    remedy = found["unowned-partition"]["remedy"]
    assert "partition.assignment.strategy" in remedy.partition("zookeeper-shell.sh")[0], remedy
    missing = min(set(range(4)) - set(owners_of(zookeeper, group, topic)))
    commands("explain", group, f"{topic}:{missing}")
    assert "set one strategy" in commands.out
    odd.kill()
    same = {**other, "consumer.id": "c", "partition.assignment.strategy": "range"}
    legacy_member("1.1.1", group, {topic: 1}, properties=same).wait_ready()
    # ZooKeeper frees the killed member's node some seconds later: its members then rebalance once more.
    eventually(lambda: commands.findings(group)["unowned-partition"]["level"] == "ok", 60, "all owned, by one strategy")


def test_deleted_messages_are_counted_alike_everywhere(
    commands: OperatorCommands, cluster: DevCluster, new_topic: NewTopic, new_group: NewGroup, zookeeper: KazooClient
) -> None:
    """Offset 10, log 50 to 100: ``describe`` said 50, a reset 90, and the doctor 40 deleted and 50."""
    from confluent_kafka import TopicPartition as Where
    from confluent_kafka.admin import AdminClient

    topic, group = new_topic(1), new_group()
    produce_to(cluster.bootstrap_servers, topic, [b"x"] * 100, partitions=1)
    zookeeper.create(f"/consumers/{group}/offsets/{topic}/0", b"10", makepath=True)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (deleted,) = admin.delete_records([Where(topic, 0, 50)]).values()
    assert deleted.result(timeout=scaled(20)).low_watermark == 50
    told = "40 gone, 50 to read"
    assert told in commands.findings(group)["offset-outside-log"]["text"]
    commands("explain", group, f"{topic}:0")
    assert told in commands.out
    assert commands("groups", "--describe", "--group", group) == 0
    assert told in commands.err
    assert re.search(rf"{topic}\s+0\s+10\s+100\s+50\s", commands.out)
    reset = ("offsets", "reset", group, "--topic", topic)
    assert commands(*reset, "--to-current", "--dry-run", "--verbose") == 0
    assert re.search(r"\s10\s+10\s+50\s", commands.out), commands.out
    assert commands(*reset, "--to-earliest", "--execute", "--verbose") == 0, commands.err
    assert re.search(r"\s10\s+50\s+50\s+40 gone", commands.out), commands.out
    assert commands.findings(group)["offset-outside-log"]["level"] == "ok"


def test_a_live_reset_starts_from_what_it_overwrites(
    commands: OperatorCommands, cluster: DevCluster, connector: Connect, new_topic: NewTopic, new_group: NewGroup,
    zookeeper: KazooClient, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By -30 it said 192 -> 162 and overwrote 202. The member commits between the plan and the write."""
    topic, group = new_topic(1), new_group()
    produce_to(cluster.bootstrap_servers, topic, [b"x"] * 192, partitions=1)
    patient = {"rebalance.interval.ms": 3_600_000, "auto.commit.interval.ms": 50}
    member = connector(group, **patient)
    reader = Reader(member.create_message_streams({topic: 1})[topic][0])
    eventually(lambda: offsets_of(zookeeper, group, topic) == {0: 192}, 30, "the first commits")
    perform = WriteReport.perform

    def later(*arguments: Any) -> Any:
        produce_to(cluster.bootstrap_servers, topic, [b"x"] * 10, partitions=1)
        eventually(lambda: offsets_of(zookeeper, group, topic) == {0: 202}, 30, "a commit after the plan")
        return perform(*arguments)

    monkeypatch.setattr(WriteReport, "perform", later)
    undo = Path("before.json")
    words = ("offsets", "reset", group, "--topic", topic, "--shift-by", "-30", "--execute", "--verbose")
    assert commands(*words, "--undo-file", str(undo), "--wait", str(scaled(20))) == 0, commands.err
    assert re.search(r"\s202\s+172\s", commands.out), commands.out
    assert "was at 192 when this began, and its owner committed 202 since" in commands.err
    saved = json.dumps(json.loads(undo.read_text()))
    assert "202" in saved
    assert "172" in saved
    assert "192" not in saved
    eventually(lambda: len(reader.places) == 232, 30, "the 30 messages again")
    assert reader.places[202:] == [(0, offset) for offset in range(172, 202)]


def test_a_forbidden_node_is_one_warning_with_the_right(
    commands: OperatorCommands, new_topic: NewTopic, new_group: NewGroup, zookeeper: KazooClient, cluster: DevCluster
) -> None:
    """The same sentence came ten times, each as a note."""
    topic, group = new_topic(2), new_group()
    path = f"/consumers/{group}/offsets/{topic}/1"
    for partition in (0, 1):
        zookeeper.create(f"/consumers/{group}/offsets/{topic}/{partition}", b"0", makepath=True)
    zookeeper.add_auth("digest", "alice:secret")
    zookeeper.set_acls(path, [make_digest_acl("alice", "secret", all=True)])
    commands("doctor", group)
    assert commands.out.count("the right to read is missing") == 1
    found = commands.findings(group)["acl"]
    assert (found["level"], found["node"]) == ("warn", path)
    assert "undecided without these nodes" in found["evidence"]
    _, _, shell = found["remedy"].partition("zookeeper-shell.sh ")
    assert shell == f"{cluster.zookeeper_connect} setAcl {path} world:anyone:cdrwa"
    zookeeper.set_acls(path, OPEN_ACL_UNSAFE)  # what the remedy's command does, as the user with the right
    eventually(lambda: commands.findings(group)["acl"]["level"] == "ok", 30, "the right")


@pytest.mark.parametrize("option", ["--zookeeper", "--bootstrap-server"])
@pytest.mark.parametrize("command", [("groups", "--list"), ("groups", "--describe", "--state", "g"), ("doctor", "g")])
def test_a_refused_port_ends_within_the_timeout(
    command: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loaded machine once took 22 to 46 s with a limit of 5 s. The bound includes the start of the command."""
    with socket.socket() as taken:  # bound and not listening: it refuses, and nobody else gets it
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        began = time.monotonic()
        code = main([*command, option, f"127.0.0.1:{port},localhost:{port}", "--timeout", "2000"])
        took = time.monotonic() - began
    assert code != 0
    assert "127.0.0.1" in capsys.readouterr().err
    assert took < 2 + scaled(2), f"{took:.1f} s"
