"""Operators' commands on a real ZooKeeper and broker: all say the same, and each ends in time."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, produce_to
from tests.cluster.operator_commands import OperatorCommands
from tests.timing import scaled
from zkconsumer.cli import main
from zkconsumer.devcluster import DevCluster

NewGroup = Callable[[], str]


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


def test_a_closed_pipe_ends_the_follower(cluster: DevCluster, new_group: Callable[[], str]) -> None:
    """Nothing happens in the group, so the command writes nothing, and must notice all the same."""
    group = new_group()
    command = [sys.executable, "-m", "zkconsumer", "timeline", group, "--zookeeper", cluster.zookeeper_connect]
    reading, writing = os.pipe()
    process = subprocess.Popen([*command, "--follow"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    try:
        assert process.wait(scaled(30)) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
