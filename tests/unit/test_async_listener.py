"""Listeners with coroutines: those that hang, raise, end the connector, or outlive their event loop."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.async_members import WITHIN, Make, committed, on_loop, stream_of, threads_of
from tests.unit.async_members import cluster as cluster
from tests.unit.async_members import make as make
from tests.unit.streams.bench import run
from tests.values import present
from zkconsumer import AsyncConsumerRebalanceListener, AsyncZookeeperConsumerConnector
from zkconsumer.balance import loop_bridge
from zkconsumer.connector import async_connector
from zkconsumer.errors import ConnectorClosedException
from zkconsumer.member.connector_state import Phase
from zkconsumer.testing import FakeCluster

Act = Callable[[], Awaitable[object]]
_connectors: list[AsyncZookeeperConsumerConnector] = []


class Listener(AsyncConsumerRebalanceListener):
    """A listener that acts when partitions come, or when they leave."""

    def __init__(self, *, comes: Act | None = None, leaves: Act | None = None) -> None:
        self._comes = comes
        self._leaves = leaves

    async def before_starting_fetchers(self, consumer_id: str, assignment: Mapping[Any, Any]) -> None:
        if self._comes is not None:
            await self._comes()

    async def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        if self._leaves is not None:
            await self._leaves()


async def _hang() -> None:
    connector = _connectors[-1]
    while "does not return" not in str(connector.state) and connector.state.phase is not Phase.CLOSED:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _cancel_itself() -> None:
    task = present(asyncio.current_task())
    task.cancel()
    await asyncio.sleep(0)


async def _fail() -> None:
    raise ValueError("mine")


@pytest.mark.parametrize(
    ("act", "told"),
    [(_hang, "does not return"), (_fail, "raised ValueError: mine"), (_cancel_itself, "raised CancelledError")],
    ids=["hangs", "raises", "cancelled"],
)
@on_loop
async def test_a_listener_that_goes_wrong_is_told(make: Make, act: Act, told: str) -> None:
    """The rebalance goes on without it, and messages come."""
    connector = make(**{"rebalance.listener.timeout.ms": 50 if act is _hang else 600_000})
    _connectors[:] = [connector]
    connector.set_consumer_rebalance_listener(Listener(comes=act))
    async with connector:
        assert (await (await stream_of(connector)).getone()).offset == 0
        assert told in str(connector.state)


@on_loop
async def test_a_listener_may_end_its_connector(cluster: FakeCluster, make: Make) -> None:
    """It cannot wait for the end, which waits for it. Both waited until all deadlines had passed."""
    connector = make(**{"rebalance.listener.timeout.ms": 600_000})
    connector.set_consumer_rebalance_listener(Listener(comes=lambda: connector.shutdown(timeout=600)))
    async with connector:
        with pytest.raises(ConnectorClosedException):
            await stream_of(connector)
    # the thread on which the connector closed may still be on its last lines
    eventually(lambda: not threads_of("g_"), WITHIN, "the end of all threads")


def test_a_listener_outlives_its_loop_and_is_told(cluster: FakeCluster, make: Make) -> None:
    """The application ended its loop and shuts down on another one: the listener has nowhere to run."""
    connector = make()
    connector.set_consumer_rebalance_listener(Listener(leaves=_fail))

    async def read() -> None:
        await (await stream_of(connector)).getone()

    run(read())
    asyncio.run(connector.shutdown(timeout=scaled(5)))
    assert committed(cluster) == [0, 0]  # the task that read has ended, with the message in its hands


@on_loop
async def test_a_listener_returns_as_its_thread_looks_for_the_loop(
    cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look was due, and its timeout was taken for an error of the listener. Offsets that it returned were lost."""
    late: list[object] = []

    class Late(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            try:
                return super().result(timeout)
            except TimeoutError:
                late.append(super().result(scaled(WITHIN)))
                raise

    class Starts(AsyncConsumerRebalanceListener):
        async def before_starting_fetchers(self, consumer_id: str, assignment: Any) -> Any:
            await asyncio.sleep(0.05)
            return dict.fromkeys(assignment, 15)

    monkeypatch.setattr(loop_bridge, "Future", Late)
    monkeypatch.setattr(async_connector, "LOOK_FOR_LOOP", 0.01)
    connector = make(**{"rebalance.listener.timeout.ms": 600_000})
    connector.set_consumer_rebalance_listener(Starts())
    async with connector:
        assert (await (await stream_of(connector)).getone()).offset == 15
    assert late


@pytest.mark.parametrize("begun", [False, True])
def test_a_listener_is_called_amid_the_end_of_its_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """No loop ran its coroutine any more, and Python said so on standard error at some later time."""
    loop, called = asyncio.new_event_loop(), threading.Event()
    # else it logs the task that never ran once Python finds it, amid another test that may look at the log
    loop.set_exception_handler(lambda *_: None)
    connector = make()
    connector.set_consumer_rebalance_listener(Listener(leaves=_fail))
    loop.run_until_complete(stream_of(connector))
    call_soon = loop.call_soon_threadsafe

    def noted(*arguments: Any, **options: Any) -> Any:
        handle = call_soon(*arguments, **options)
        called.set()
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", noted)
    connector.begin_shutdown()
    assert called.wait(scaled(WITHIN))
    if begun:  # the loop makes a task of it, and ends before the task begins
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    asyncio.run(connector.shutdown(timeout=scaled(5)))
    eventually(lambda: not threads_of("g_"), WITHIN, "the end of all threads")
    coroutines = [one for one in gc.get_objects() if inspect.iscoroutine(one)]
    assert [one for one in coroutines if inspect.getcoroutinestate(one) == inspect.CORO_CREATED] == []
