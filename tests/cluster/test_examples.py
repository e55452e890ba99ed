"""The Python examples of README and the docs run unchanged, except the address of the cluster and the topic."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import owners_of, produce_to, unique
from tests.cluster.in_process import offsets_of
from tests.cluster.kafka_tools import tool_command
from tests.cluster.operator_commands import OperatorCommands
from tests.cluster.run_example import run_example
from tests.documents import example
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster


@pytest.fixture(scope="module")
def events(cluster: DevCluster) -> str:
    name = unique("events")
    cluster.create_topic(name, 4)
    produce_to(cluster.bootstrap_servers, name, [b"%d" % n for n in range(100)], partitions=4)
    return name


def test_what_is_made_without_docker_is_there_to_be_read(cluster: DevCluster) -> None:
    topic = unique("events")
    run_example(example("produce"), cluster, topic)
    printed = run_example(example("first read"), cluster, topic).splitlines()
    assert {line.split()[-1] for line in printed[:-1]} == {repr(b"%d" % n) for n in range(1000)}
    assert {line.split()[1] for line in printed[:-1]} == {"0", "1", "2", "3"}
    assert printed[-1].startswith("nothing new for 5 s; owning 4 of 4 partitions")


def test_the_tutorial_beside_kafkas_console_consumer(cluster: DevCluster, events: str, zookeeper: KazooClient) -> None:
    """The command in the page is this class in Kafka's shell script."""
    code = example("tutorial's member").replace("127.0.0.1:2181", cluster.zookeeper_connect)
    code = code.replace('"events"', repr(events))

    def owners() -> dict[str, int]:
        return Counter(owners_of(zookeeper, "tutorial", events).values())

    console = tool_command("1.1.1", "kafka.tools.ConsoleConsumer", "--zookeeper", cluster.zookeeper_connect)
    console += ["--topic", events, "--consumer-property", "group.id=tutorial"]
    with ending([sys.executable, "-u", "-c", code]):
        eventually(lambda: list(owners().values()) == [4], 60, "all partitions")
        with ending(console):
            eventually(lambda: sorted(owners().values()) == [2, 2], 60, lambda: f"two members: {owners()}")
        eventually(lambda: list(owners().values()) == [4], 60, "the partitions of the Scala member")


def test_the_tutorials_worker(cluster: DevCluster, events: str, commands: OperatorCommands) -> None:
    printed = run_example(example("tutorial's worker"), cluster, events)
    assert "1 dead letters; ended by until" in printed
    assert commands("dead", "list", "tutorial-work") == 0
    assert "an unlucky number" in commands.out


@contextmanager
def ending(command: list[str]) -> Iterator[None]:
    """Run a program beside the test, and end it as Ctrl-C does."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
            process.send_signal(signal.SIGINT)
            process.wait(scaled(30))
        finally:
            process.kill()


def test_a_group_that_the_brokers_coordinate(cluster: DevCluster, events: str) -> None:
    printed = run_example(example("brokers"), cluster, events).splitlines()
    assert {line.split()[-1] for line in printed[:-1]} >= {repr(b"%d" % n) for n in range(100)}
    assert printed[-1].startswith("nothing new for 5 s; owning 4 of 4 partitions")


def test_columns(cluster: DevCluster, events: str) -> None:
    printed = run_example(example("columns"), cluster, events).splitlines()
    words = [line.split() for line in printed]
    assert sum(int(line[0]) for line in words) == 100, printed
    assert {line[4] for line in words} == {"0", "1", "2", "3"}


def test_a_topic_without_a_group(cluster: DevCluster, events: str, zookeeper: KazooClient) -> None:
    printed = run_example(example("topics"), cluster, events).splitlines()
    assert events in printed[0]
    assert {line.split()[-1] for line in printed[2:-1]} >= {repr(b"%d" % n) for n in range(100)}
    assert 0 < int(printed[-1]) <= 40
    assert zookeeper.exists("/consumers/notebook") is None


def test_an_event_loop(cluster: DevCluster, events: str) -> None:
    printed = run_example(example("asyncio"), cluster, events).splitlines()
    many = sum(int(line.split()[-1]) for line in printed if " has " in line)
    values = {line.split()[-1] for line in printed if " has " not in line}
    assert 0 < many <= 20
    assert len(values & {repr(b"%d" % n) for n in range(100)}) == 100 - many


def test_one_loop_over_many_streams(cluster: DevCluster, events: str, produce: Callable[..., int]) -> None:
    produce(events, [b"%d" % n for n in range(1000, 1100)])
    printed = run_example(example("many streams"), cluster, events).splitlines()
    assert {line.split()[-1] for line in printed} >= {repr(b"%d" % n) for n in range(1000, 1100)}


def test_ending_a_service(cluster: DevCluster, events: str, zookeeper: KazooClient) -> None:
    code = example("shutdown").replace("127.0.0.1:2181", cluster.zookeeper_connect)
    code = code.replace('"events"', repr(events))
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(scaled(60), process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            printed = [process.stdout.readline()]
            process.send_signal(signal.SIGTERM)
            printed += process.stdout.readlines()
            assert process.wait(scaled(30)) == 0
        finally:
            watchdog.cancel()
    assert sum(offsets_of(zookeeper, "service", events).values()) == len(printed) > 0, "each was finished and committed"


@pytest.mark.spark
def test_a_dataframe_in_ten_lines(cluster: DevCluster, events: str) -> None:
    printed = run_example(example("dataframe"), cluster, events)
    assert "partition" in printed
    assert printed.count("|") > 20


WAIT = """
query.processAllAvailable()
query.stop()
print("once", spark.read.parquet("events-once").count(), "live", spark.read.parquet("events-live").count())
"""


@pytest.mark.spark
def test_a_snapshot_and_a_query_that_is_a_member(cluster: DevCluster, events: str, tmp_path: Path) -> None:
    blocks = [example("dataframe"), example("snapshot"), example("query"), example("reports"), WAIT]
    printed = run_example("\n".join(blocks), cluster, events, tmp_path)
    assert re.search(r"^batch 0 read \d{3,} offsets: .*; 0 more are there$", printed, re.MULTILINE)
    assert "'maxOffsetsBehindLatest': '0'" in printed
    once, live = (int(word) for word in printed.splitlines()[-1].split() if word.isdigit())
    assert once == live >= 100
