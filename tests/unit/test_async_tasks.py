"""The messages in the hands of asyncio tasks: whose each message is, and which messages a commit counts."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from threading import Event
from typing import Any
from weakref import ref

import pytest

from tests.internals import member_of
from tests.interrupts.sweep import bounded
from tests.timing import eventually, scaled
from tests.unit.async_members import (
    EACH,
    FIRST,
    PARTITIONS,
    WITHIN,
    Make,
    committed,
    holding,
    on_loop,
    stream_of,
    until,
)
from tests.unit.async_members import cluster as cluster
from tests.unit.async_members import make as make
from tests.unit.streams.bench import awaited, cancelled_at, run
from zkconsumer import AsyncStream, AsyncZookeeperConsumerConnector
from zkconsumer.errors import OffsetCommitError
from zkconsumer.testing import FakeCluster

Ask = Callable[[AsyncStream[Any, Any]], Awaitable[Any]]


@pytest.mark.parametrize(
    "ask",
    [
        lambda stream: asyncio.wait_for(stream.getone(), scaled(WITHIN)),
        lambda stream: asyncio.wait_for(stream.getmany(60_000, 1), scaled(WITHIN)),
        lambda stream: asyncio.wait_for(anext(aiter(stream)), scaled(WITHIN)),
        lambda stream: asyncio.ensure_future(stream.getone()),
    ],
    ids=["getone", "getmany", "loop", "task"],
)
@on_loop
async def test_another_tasks_commit_leaves_a_message_out(cluster: FakeCluster, make: Make, ask: Ask) -> None:
    """A message read in ``wait_for`` belongs to the caller, although ``wait_for`` may read in another task.

    A commit of any other task counted the message as finished, because the reading task had ended. A crash lost it.
    """
    async with make() as connector:
        await ask(await stream_of(connector))
        await asyncio.ensure_future(_commit(connector))
        assert committed(cluster) == [0, 0]
        await connector.commit()
        assert sorted(committed(cluster)) == [0, 1]


@on_loop
async def test_a_stream_that_is_dropped_has_its_message_in_hand(cluster: FakeCluster, make: Make) -> None:
    """No commit counted the message of a stream that nobody kept, unless its task had waited for it.

    The shutdown then waited for that message in vain, and another member got it again.
    """
    connector = make()
    stream = await stream_of(connector)
    while not await stream.getmany(0, 1):  # noqa: ASYNC110 - a read that has to wait keeps the stream
        await asyncio.sleep(0.01)
    del stream
    await connector.commit()
    assert sorted(committed(cluster)) == [0, 1]
    await connector.shutdown()


@on_loop
async def test_topics_that_were_left_keep_no_streams(cluster: FakeCluster, make: Make) -> None:
    cluster.create_topic("others", 1)
    async with make() as connector:
        kept = await stream_of(connector)
        gone = ref((await connector.add_topics({"others": 1}))["others"][0])
        await connector.unsubscribe(["others"])
        gc.collect()
        assert gone() is None
        assert (await kept.getone()).topic == "events"


@on_loop
async def test_all_topics_are_left_before_others_are_read(cluster: FakeCluster, make: Make) -> None:
    """No commit counted a message of ``messages()`` any more, once the member had had no topic for a while."""
    cluster.create_topic("others", 1)
    async with make() as connector:
        await connector.create_message_streams({"others": 1})
        connector.messages()
        await connector.unsubscribe(["others"])
        await connector.add_topics({"events": 1})
        await connector.messages().getone()
        await connector.commit()
        assert sorted(committed(cluster)) == [0, 1]


@on_loop
async def test_a_topic_is_left_before_its_commit_is_seen(cluster: FakeCluster, make: Make) -> None:
    """The loop was busy meanwhile. With a shutdown begun then, a commit that had ended well raised KeyError."""
    connector = make(**{"rebalance.drain.timeout.ms": 0})
    await (await stream_of(connector)).getone()
    held = [one for one in member_of(connector).positions().values() if one.held]
    commit = asyncio.ensure_future(connector.commit())
    await asyncio.sleep(0)
    leaving = asyncio.ensure_future(connector.unsubscribe("events"))
    await asyncio.sleep(0)
    eventually(lambda: not member_of(connector).delivery.streams(), WITHIN, "the streams to go")
    connector.begin_shutdown()
    await asyncio.gather(commit, leaving)
    member_of(connector).settle_positions(held, finished=True)  # as a shutdown that saw them a moment before
    await connector.shutdown()
    assert sorted(committed(cluster)) == [0, 1]


@on_loop
async def test_the_task_that_read_last_has_the_message(cluster: FakeCluster, make: Make) -> None:
    """One task reads a stream. Later another task reads all streams through ``messages()``."""
    async with make() as connector:
        await (await stream_of(connector)).getone()
        task = await holding(connector.messages())
        await connector.commit()  # the first message is finished, and the second one is not this task's
        assert sorted(committed(cluster)) == [0, 1]
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("way", ["wait_for", "later"])
def test_a_commit_counts_what_its_caller_holds(cluster: FakeCluster, make: Make, way: str) -> None:
    """The call counts the messages of the task that made the call, at that moment, whoever awaits the call."""

    async def read() -> None:
        async with make() as connector:
            stream = await stream_of(connector)
            await stream.getone()
            if way == "wait_for":
                await asyncio.wait_for(connector.commit(), scaled(WITHIN))
            else:
                commit = asyncio.ensure_future(connector.commit())
                await stream.getone()
                await commit
            assert sorted(committed(cluster)) == [0, 1]
            raise ValueError("the last message is not finished")

    with pytest.raises(ValueError, match="is not finished"):
        run(read())


@on_loop
async def test_a_commit_ends_in_time_while_the_store_hangs(make: Make) -> None:
    """The committer's thread may stand in a call of the user's store. The coroutine then waited for ever."""
    hold = Event()
    async with make() as connector:
        await (await stream_of(connector)).getone()
        member_of(connector).committer.submit(lambda: hold.wait(scaled(WITHIN)))
        try:
            with pytest.raises(OffsetCommitError, match="in time"):
                await connector.commit(timeout=0.05)
        finally:
            hold.set()


@pytest.mark.parametrize("way", ["getmany", "getone", "loop"])
@on_loop
async def test_a_waiting_read_goes_on_after_a_seek(cluster: FakeCluster, make: Make, way: str) -> None:
    """Another task seeks, pauses and resumes while one waits. It gets what is there then, from the new place on."""
    async with make() as connector:
        stream = await stream_of(connector)
        taken = 0
        while taken < PARTITIONS * EACH:
            taken += sum(map(len, (await stream.getmany(60_000)).values()))
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "getmany": lambda: stream.getmany(60_000, 1),
            "getone": stream.getone,
            "loop": lambda: _next(aiter(stream)),
        }
        waiting = asyncio.ensure_future(ways[way]())
        queue = member_of(connector).delivery.streams()[0][2].queue
        await until(lambda: queue.reader_waits)
        connector.pause([FIRST])
        await connector.seek(FIRST, EACH - 3)
        cluster.append("events", 0, [b"more"])
        assert not waiting.done()
        connector.resume([FIRST])
        found = await waiting
        message = found[FIRST][0] if way == "getmany" else found
        assert (message.partition, message.offset) == (0, EACH - 3)


def test_ctrl_c_leaves_the_group_and_the_message(cluster: FakeCluster, make: Make) -> None:
    """``asyncio.run`` cancels the application, which leaves the group while the exception goes through it."""

    async def read() -> None:
        async with AsyncExitStack() as entered:
            connector = await entered.enter_async_context(make())
            stream = await stream_of(connector)
            await stream.getone()
            await stream.getone()
            signal.raise_signal(signal.SIGINT)
            await stream.getmany(60_000)
            await asyncio.Event().wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(read())
    finally:
        signal.signal(signal.SIGINT, before)
    assert not cluster.zookeeper.tree("/consumers/g/ids").keys() - {"/consumers/g/ids"}
    assert sum(committed(cluster)) == 2


@on_loop
async def test_cancelled_topics_are_left_again(cluster: FakeCluster, make: Make) -> None:
    """A timeout around ``add_topics`` shut the whole member down, and its loops ended without a word."""
    cluster.create_topic("others")
    cluster.append("others", 0, [b"o"])
    async with make() as connector:
        stream = await stream_of(connector)
        assert await asyncio.ensure_future(awaited(cancelled_at(connector.add_topics({"others": 1}), 1)))
        assert (await stream.getone()).offset == 0
        added: dict[str, list[AsyncStream[Any, Any]]] = {}
        while not added:
            try:
                added = await connector.add_topics({"others": 1})
            except ValueError:  # it is still being left
                await asyncio.sleep(0.01)
        assert (await added["others"][0].getone()).value == b"o"


async def _commit(connector: AsyncZookeeperConsumerConnector) -> None:
    await connector.commit()


async def _next(loop: Any) -> Any:
    return await anext(loop)


@on_loop
async def test_a_signal_handler_may_begin_a_shutdown(cluster: FakeCluster, make: Make) -> None:
    """The call waited for ever: its own thread held the lock of the queue."""
    async with make() as connector:
        message = await (await stream_of(connector)).getone()
        ((_, _, stream),) = member_of(connector).delivery.streams()
        before = signal.signal(signal.SIGUSR1, lambda *_: connector.begin_shutdown())
        try:
            with bounded(WITHIN), stream.queue._lock:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert message.offset == 0
    assert sorted(committed(cluster)) == [0, 1]
