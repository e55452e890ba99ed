"""The examples in the docstrings of the main classes: what ``help(zkconsumer.KafkaStream)`` shows runs as it stands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import signal
import sqlite3
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import zkconsumer
from zkconsumer.testing import FakeCluster

Example = dict[str, Any]


def code_of(thing: object) -> list[CodeType]:
    """Return the statements of the example in a docstring, which may await."""
    text = inspect.getdoc(thing) or ""
    (block,) = re.findall(r"::\n\n((?: {4}.*\n|\n)+)", text + "\n")
    parsed = ast.parse(textwrap.dedent(block))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return [compile(ast.Module([one], []), "docstring", "exec", flags) for one in parsed.body]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("events", partitions=2)
        yield cluster


@pytest.fixture
def names(cluster: FakeCluster) -> Example:
    """The names of an example, whose connectors end when half a second brought nothing."""
    properties = {
        "zookeeper_connect": cluster.zookeeper_connect,
        "auto_offset_reset": "smallest",
        "consumer_timeout_ms": 500,
        "consumer_timeout_action": "end",
    }

    class Connector(zkconsumer.ZookeeperConsumerConnector):
        def __init__(self, config: Any = None, offset_store: Any = None, **given: Any) -> None:
            super().__init__(config, offset_store=offset_store, **{**given, **properties})

    class AsyncConnector(zkconsumer.AsyncZookeeperConsumerConnector):
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, **properties})

    public = {name: getattr(zkconsumer, name) for name in zkconsumer.__all__}
    made = {"ZookeeperConsumerConnector": Connector, "AsyncZookeeperConsumerConnector": AsyncConnector}
    rest = {"signal": signal, "sqlite3": sqlite3, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "handle": print}
    return {**public, **made, **rest, "FakeCluster": FakeCluster, "config": {"group.id": "stored"}}


def run(cluster: FakeCluster, thing: object, names: Example) -> None:
    for statement in code_of(thing):
        cluster.append("events", 0, [b"message"])
        exec(statement, names)


def test_connector(cluster: FakeCluster, names: Example, capsys: pytest.CaptureFixture[str]) -> None:
    run(cluster, zkconsumer.ZookeeperConsumerConnector, names)
    assert capsys.readouterr().out == "0 0 b'message'\n"


def test_run(cluster: FakeCluster, names: Example, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line has a connector of its own, since a connector creates its streams once."""
    for number, statement in enumerate(code_of(zkconsumer.ZookeeperConsumerConnector.run)):
        cluster.append("events", 0, [b"message"])
        with names["ZookeeperConsumerConnector"](group_id=f"run-{number}") as connector:
            exec(statement, {**names, "connector": connector})
    assert capsys.readouterr().out.count("value=b'message'") == 3


@pytest.mark.parametrize("thing", [zkconsumer.KafkaStream, zkconsumer.PartitionStream, zkconsumer.MergedStreams])
def test_streams(thing: type, cluster: FakeCluster, names: Example, capsys: pytest.CaptureFixture[str]) -> None:
    with names["ZookeeperConsumerConnector"](group_id="streams") as connector:
        if thing is zkconsumer.KafkaStream:
            names["stream"] = connector.create_message_streams({"events": 1})["events"][0]
        run(cluster, thing, {**names, "connector": connector})
    assert "b'message'" in capsys.readouterr().out


def test_config(names: Example, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "consumer.properties").write_text("zookeeper.connect=zk:2181\ngroup.id=from-a-file\n")
    run(cluster, zkconsumer.ConsumerConfig, names)
    assert names["config"].group_id == "from-a-file"


def test_listener(cluster: FakeCluster, names: Example, capsys: pytest.CaptureFixture[str]) -> None:
    with names["ZookeeperConsumerConnector"](group_id="listened") as connector:
        run(cluster, zkconsumer.ConsumerRebalanceListener, {**names, "connector": connector})
        connector.create_message_streams({"events": 1})["events"][0].get(timeout=10)
    assert "write what is open of {'events'" in capsys.readouterr().out


def test_database(cluster: FakeCluster, names: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(cluster, zkconsumer.DatabaseOffsets, names)
    names["connector"].shutdown()


def test_event_loop(cluster: FakeCluster, names: Example, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        cluster.append("events", 0, [b"first", b"second"])
        for statement in code_of(zkconsumer.AsyncZookeeperConsumerConnector):
            await eval(statement, names)
        cluster.append("events", 0, [b"third", b"fourth"])
        async with names["AsyncZookeeperConsumerConnector"](group_id="loop") as connector:
            names["stream"] = (await connector.create_message_streams({"events": 1}))["events"][0]
            for statement in code_of(zkconsumer.AsyncStream):
                await eval(statement, names)

    asyncio.run(main())
    assert capsys.readouterr().out.startswith("0 0 b'first'\n0 1 b'second'\n")
    assert names["message"].value == b"third"


def test_cluster(names: Example, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(cluster, FakeCluster, names)
    assert "127.0.0.1:" in capsys.readouterr().out


def test_filters_and_policies_show_a_call() -> None:
    for thing in (zkconsumer.Whitelist, zkconsumer.Blacklist, zkconsumer.Retry, zkconsumer.DeadLetterTopic):
        assert f"{thing.__name__}(" in (inspect.getdoc(thing) or "")
