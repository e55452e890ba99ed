"""``run`` with worker processes and with coroutines, on a cluster in memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from tests.timing import eventually, scaled
from tests.unit.balance import handlers
from tests.unit.clusters import Join, cluster_with, connectors_with
from zkconsumer.testing import FakeCluster

cluster = cluster_with({"events": [[], []]})
join = connectors_with({"consumer.timeout.ms": int(scaled(0.6) * 1000)})


def test_a_handler_that_does_not_fit_joins_no_group(cluster: FakeCluster, join: Join) -> None:
    async def coroutine(message: Any) -> None: ...

    with pytest.raises(TypeError, match="cannot be pickled"):
        join().run(lambda message: None, "events", concurrency=2, executor="processes")
    with pytest.raises(TypeError, match="wants a coroutine function"):
        join().run(handlers.by_value, "events", concurrency=2, executor="asyncio")  # type: ignore[call-overload]
    executors: list[Literal["threads", "processes"]] = ["threads", "processes"]
    for executor in executors:
        with pytest.raises(TypeError, match=r'coroutine function: give executor="asyncio"'):
            join().run(coroutine, "events", concurrency=2, executor=executor)
    with pytest.raises(TypeError, match=r'concurrency= and executor="asyncio"'):
        join().run(coroutine, "events")
    with pytest.raises(ValueError, match="executor must be one of 'threads', 'processes', 'asyncio', not 'fibres'"):
        join().run(handlers.by_value, "events", concurrency=2, executor="fibres")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="a worker process has no tracer"):
        join().run(handlers.by_value, "events", concurrency=2, executor="processes", tracer=True)
    assert "/consumers/g/ids" not in cluster.zookeeper.tree("/")


@pytest.mark.tier("standard")
def test_a_shutdown_while_processes_start_is_no_error(cluster: FakeCluster, join: Join) -> None:
    connector = join(**{"consumer.timeout.ms": -1})
    with ThreadPoolExecutor(1, "run") as pool:
        run = pool.submit(connector.run, handlers.by_value, "events", concurrency=1, executor="processes")
        eventually(lambda: any("-process-0" in other.name for other in threading.enumerate()), 20, "a worker's thread")
        connector.shutdown(scaled(2))
        run.result(scaled(20))
