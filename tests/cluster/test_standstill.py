"""A fresh process without any logging set up prints why its member reads nothing, and when it reads again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic, unique
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

NewGroup = Callable[[], str]
PROGRAM = """
import json, sys
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector
with ZookeeperConsumerConnector(json.loads(sys.argv[1])) as connector:
    stream = connector.create_message_streams({sys.argv[2]: int(sys.argv[3])})[sys.argv[2]][0]
    while True:
        try:
            stream.get(timeout=1.0)
        except ConsumerTimeoutException as error:
            print(error, flush=True)
"""


@contextmanager
def member(folder: Path, properties: Mapping[str, Any], topic: str, streams: int = 1) -> Iterator[tuple[Path, Path]]:
    """Run the program. Returns the files of its output and of its errors."""
    out, err = folder / "out", folder / "err"
    with out.open("wb") as to, err.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(dict(properties)), topic, str(streams)], stdout=to, stderr=errors
        )
    try:
        yield out, err
    finally:
        process.kill()
        process.wait(scaled(10))


def coordinated_by(cluster: DevCluster, coordination: str) -> dict[str, str]:
    if coordination == "zookeeper":
        return {"zookeeper.connect": cluster.zookeeper_connect}
    return {"bootstrap.servers": cluster.bootstrap_servers, "group.coordination": "kafka"}


def standstills(err: Path) -> list[str]:
    return [line for line in err.read_text().splitlines() if "has not read all that it should" in line]


@pytest.mark.parametrize(("protocol", "coordination"), [("SSL", "zookeeper"), ("SASL_PLAINTEXT", "kafka")])
def test_a_wrong_security_protocol_is_printed(
    tmp_path: Path, cluster: DevCluster, new_topic: NewTopic, new_group: NewGroup, protocol: str, coordination: str
) -> None:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"} if protocol != "SSL" else {}
    where = coordinated_by(cluster, coordination)
    properties = {**where, **login, "group.id": new_group(), "security.protocol": protocol}
    with member(tmp_path, properties, new_topic()) as (_, err):
        if coordination == "kafka":  # a refused login is raised by the join itself
            eventually(lambda: "ILLEGAL_SASL_STATE" in err.read_text(), 25, lambda: f"a line in {err.read_text()!r}")
            return
        eventually(lambda: standstills(err), 25, lambda: f"a line in {err.read_text()!r}")
        assert ["security.protocol" in line for line in standstills(err)] == [True]


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_a_missing_topic_is_printed_and_when_it_is_there(
    tmp_path: Path, cluster: DevCluster, new_group: NewGroup, coordination: str
) -> None:
    topic = unique("evnets")
    with member(tmp_path, {**coordinated_by(cluster, coordination), "group.id": new_group()}, topic) as (out, err):
        eventually(lambda: standstills(err), 25, lambda: f"a line in {err.read_text()!r}")
        assert [f"waiting for topic {topic} to exist" in line for line in standstills(err)] == [True]
        assert f"waiting for topic {topic} to exist" in out.read_text(), "ConsumerTimeoutException has the state"
        cluster.create_topic(topic, 1, None)
        eventually(lambda: "flows again" in err.read_text(), 60, lambda: f"a line in {err.read_text()!r}")
        assert len(standstills(err)) == 1


@pytest.mark.parametrize("patience", [{}, {"zookeeper.connection.timeout.ms": "600000"}], ids=["raises", "waits"])
def test_kafkas_port_as_zookeepers_is_named(
    tmp_path: Path, cluster: DevCluster, new_group: NewGroup, patience: dict[str, str]
) -> None:
    """With a long time limit no error is raised for a long time, so the waiting member logs the wrong port."""
    properties = {"zookeeper.connect": cluster.bootstrap_servers, "group.id": new_group(), **patience}
    with member(tmp_path, properties, "events") as (_, err):
        eventually(
            lambda: "answers like a Kafka broker, not like ZooKeeper" in err.read_text(),
            20,
            lambda: f"a line in {err.read_text()!r}",
        )


def test_zookeepers_port_as_a_brokers_is_named(tmp_path: Path, cluster: DevCluster, new_group: NewGroup) -> None:
    properties = {
        "bootstrap.servers": cluster.zookeeper_connect.partition("/")[0],
        "group.coordination": "kafka",
        "group.id": new_group(),
    }
    with member(tmp_path, properties, "events") as (_, err):
        eventually(lambda: standstills(err), 25, lambda: f"a line in {err.read_text()!r}")
        assert ["answers like ZooKeeper, not like a Kafka broker" in line for line in standstills(err)] == [True]


QUIET = """
import json, sys, time
from zkconsumer import ZookeeperConsumerConnector
properties, topic = json.loads(sys.argv[1]), sys.argv[2]
def made(kind):
    return ZookeeperConsumerConnector({**properties, "group.id": properties["group.id"] + kind})
with made("empty") as empty, made("paused") as paused, made("until") as until:
    empty.create_message_streams({})
    paused.create_message_streams({topic: 1})
    paused.pause(list(paused.assignment()))
    list(until.create_message_streams({topic: 1}, until="end")[topic][0])
    time.sleep(float(sys.argv[3]))
print("done", flush=True)
"""


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_nothing_to_read_and_a_paused_stream_are_silent(
    cluster: DevCluster, new_topic: NewTopic, new_group: NewGroup, coordination: str
) -> None:
    """An empty subscription, a paused stream, and streams whose end is reached."""
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            QUIET,
            json.dumps({**coordinated_by(cluster, coordination), "group.id": new_group()}),
            new_topic(),
            "14",
        ],
        capture_output=True,
        text=True,
        timeout=scaled(90),
        check=False,
    )
    # the first group of a new cluster may be told that its coordinator is not there yet
    assert (run.stdout, "has not read" in run.stderr) == ("done\n", False), run.stderr
