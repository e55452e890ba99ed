"""Connectors for asyncio on a cluster in memory, and helpers of their tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import pytest

from tests.unit import clusters
from tests.unit.clusters import cluster_with
from tests.unit.streams.bench import run
from zkconsumer import AsyncZookeeperConsumerConnector
from zkconsumer.model import TopicPartition
from zkconsumer.streams.async_stream import AsyncStream
from zkconsumer.testing import FakeCluster

P = ParamSpec("P")
WITHIN = 30.0
PARTITIONS, EACH = 2, 20
FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)
Make = Callable[..., AsyncZookeeperConsumerConnector]

cluster = cluster_with({"events": [[b"v%d" % n for n in range(EACH)]] * PARTITIONS})


@pytest.fixture
def make(cluster: FakeCluster) -> Make:
    def made(**properties: Any) -> AsyncZookeeperConsumerConnector:
        base = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": "g",
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 60_000,
        }
        return AsyncZookeeperConsumerConnector(base | properties)

    return made


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorate a test that is a coroutine: it runs on an event loop of its own."""

    @wraps(test)
    def on_its_loop(*arguments: P.args, **options: P.kwargs) -> None:
        run(test(*arguments, **options))

    return on_its_loop


def committed(cluster: FakeCluster) -> list[int]:
    """Return the offset of each partition; 0 where there is none."""
    return [max(offset, 0) for offset in clusters.committed(cluster)]


def threads_of(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def stream_of(connector: AsyncZookeeperConsumerConnector, **arguments: Any) -> AsyncStream[Any, Any]:
    return (await connector.create_message_streams({"events": 1}, **arguments))["events"][0]


async def holding(reader: Any) -> asyncio.Task[None]:
    """Return a task that has taken a message and keeps it in hand."""
    taken = asyncio.Event()

    async def hold() -> None:
        await reader.getone()
        taken.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(hold())
    await taken.wait()
    return task
