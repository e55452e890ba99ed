"""The connector for asyncio on a cluster in memory: commits, rebalances, listeners, cancellation and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping

import pytest

from tests.timing import eventually, scaled
from tests.unit.async_members import (
    EACH,
    FIRST,
    PARTITIONS,
    SECOND,
    WITHIN,
    Make,
    committed,
    holding,
    on_loop,
    stream_of,
    threads_of,
    until,
)
from tests.unit.async_members import cluster as cluster
from tests.unit.async_members import make as make
from tests.unit.streams.bench import run
from zkconsumer import (
    AsyncConsumerRebalanceListener,
    AsyncZookeeperConsumerConnector,
    ConsumerRebalanceListener,
    StringDecoder,
    TopicPartition,
    Whitelist,
)
from zkconsumer.connector import lifecycle
from zkconsumer.errors import ConnectorClosedException, OffsetCommitError
from zkconsumer.member.connector_state import Phase
from zkconsumer.testing import FakeCluster


def test_a_topic_is_read_and_committed(cluster: FakeCluster, make: Make) -> None:
    async def read() -> list[tuple[int, str | None]]:
        async with make() as connector:
            stream = await stream_of(connector, value_decoder=StringDecoder(), until="end")
            return [(message.partition, message.value) async for message in stream]

    assert sorted(run(read())) == sorted((number, f"v{n}") for number in range(PARTITIONS) for n in range(EACH))
    assert committed(cluster) == [EACH, EACH]
    eventually(lambda: not threads_of("g_"), WITHIN, "the threads to end")


class StoppingStore:
    """A store of offsets whose ``fetch`` calls ``next`` on an empty iterator for one topic."""

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        if any(tp.topic == "other" for tp in partitions):
            raise StopIteration("nothing is left")
        return {}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


@on_loop
async def test_a_stop_iteration_of_a_store_reaches_the_caller(cluster: FakeCluster) -> None:
    """Python 3.11 sets no StopIteration on a future of asyncio, so that ``await committed()`` waited for ever."""
    config = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g"}
    async with AsyncZookeeperConsumerConnector(config, offset_store=StoppingStore()) as connector:
        await stream_of(connector)
        with pytest.raises(RuntimeError, match="StopIteration") as raised:
            await connector.committed(("other", 0))
        assert isinstance(raised.value.__cause__, StopIteration)


@pytest.mark.parametrize("late", [False, True], ids=["", "whose thread is late"])
@on_loop
async def test_a_shutdown_that_is_begun_ends_loops(
    cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """As from a signal: the message in hand is finished and committed, and nothing more comes.

    A thread that began to close only later let the loop read on, to the end of the topic.
    """
    seen = []
    may_close = threading.Event()

    class LateThread(threading.Thread):
        def run(self) -> None:
            may_close.wait(scaled(WITHIN))
            super().run()

    async with make() as connector:
        async for message in await stream_of(connector):
            seen.append(message)
            if len(seen) == 7:
                if late:
                    monkeypatch.setattr(lifecycle, "Thread", LateThread)
                connector.begin_shutdown()
                await asyncio.sleep(0)
        may_close.set()
    assert len(seen) == 7
    assert sum(committed(cluster)) == 7


@on_loop
async def test_other_tasks_may_finish_and_commit_at_the_end(cluster: FakeCluster, make: Make) -> None:
    connector = make()
    streams = (await connector.create_message_streams({"events": 2}))["events"]
    taken, go_on = asyncio.Event(), asyncio.Event()

    async def other() -> None:
        await streams[1].getone()
        taken.set()
        await go_on.wait()
        await connector.commit()

    async def go_on_later() -> None:
        await until(lambda: connector.health().reasons)
        go_on.set()

    await streams[0].getone()
    task = asyncio.ensure_future(other())
    await taken.wait()
    later = asyncio.ensure_future(go_on_later())
    await connector.shutdown(timeout=scaled(10))
    await asyncio.gather(task, later)
    assert committed(cluster) == [1, 1]


@on_loop
async def test_a_shutdown_without_a_thread_is_done_by_the_next(
    cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gave no thread. The connector counted as being shut down, and kept its partitions for ever."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    connector = make()
    await (await stream_of(connector)).getone()
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "Thread", NoThread)
        with pytest.raises(RuntimeError, match="can't start"):
            connector.begin_shutdown()
    await connector.shutdown()
    assert connector.state.phase is Phase.CLOSED
    assert sorted(committed(cluster)) == [0, 1]


@on_loop
async def test_a_message_nobody_finishes_is_told(
    cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = make()
    streams = (await connector.create_message_streams({"events": 2}))["events"]
    task = await holding(streams[1])
    monkeypatch.setattr(lifecycle, "LATE", scaled(WITHIN))  # a close on a busy machine ends later
    with pytest.raises(OffsetCommitError, match="still in hand"):
        await connector.shutdown(timeout=2.0)
    task.cancel()


@on_loop
async def test_a_listener_runs_on_the_loop_and_may_commit(cluster: FakeCluster, make: Make) -> None:
    calls: list[tuple[str, int]] = []
    connector = make(**{"auto.commit.enable": False, "rebalance.listener.timeout.ms": 600_000})

    class Listener(AsyncConsumerRebalanceListener):
        async def before_starting_fetchers(
            self, consumer_id: str, assignment: Mapping[TopicPartition, str]
        ) -> dict[TopicPartition, int]:
            calls.append(("starting", threading.get_ident()))
            await asyncio.sleep(0)
            return dict.fromkeys(assignment, 15)

        async def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
            calls.append(("releasing", threading.get_ident()))
            await connector.commit()

    connector.set_consumer_rebalance_listener(Listener())
    async with connector:
        stream = await stream_of(connector)
        assert (await stream.getone()).offset == 15
        assert (await stream.getone()).offset == 16
    assert calls == [("starting", threading.get_ident()), ("releasing", threading.get_ident())]
    assert 17 in committed(cluster)


@on_loop
async def test_a_listener_without_coroutines_runs_on_the_loop(make: Make) -> None:
    threads = []

    class Listener(ConsumerRebalanceListener):
        def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
            threads.append(threading.get_ident())
            raise ValueError("reported, and harms nothing")

    connector = make()
    connector.set_consumer_rebalance_listener(Listener())
    async with connector:
        await (await stream_of(connector)).getone()
    assert threads == [threading.get_ident()]


@on_loop
async def test_calls_of_the_connector_have_coroutines(cluster: FakeCluster, make: Make) -> None:
    cluster.create_topic("others")
    cluster.append("others", 0, [b"o"])
    async with make() as connector:
        stream = await stream_of(connector)
        assert await connector.topics() >= {"events", "others"}
        assert await connector.partitions_for("events") == [FIRST, SECOND]
        assert await connector.beginning_offsets([FIRST]) == {FIRST: 0}
        assert await connector.end_offsets([FIRST]) == {FIRST: EACH}
        assert await connector.offsets_for_times({FIRST: 0}) == {FIRST: 0}
        await connector.commit({FIRST: 3})
        assert await connector.committed(FIRST) == 3
        connector.pause([SECOND])
        assert connector.paused() == {SECOND}
        await connector.seek(FIRST, EACH - 1)
        message = await stream.getone()
        while message.partition != 0 or message.offset != EACH - 1:
            message = await stream.getone()
        assert connector.position(FIRST) == EACH
        connector.resume([SECOND])
        added = await connector.add_topics({"others": 1})
        assert (await added["others"][0].getone()).value == b"o"
        await connector.unsubscribe("others")
        with pytest.raises(ConnectorClosedException):
            await added["others"][0].getone()
        assert connector.assignment() == {FIRST, SECOND}
        assert (await connector.seek_to_timestamp(0, [FIRST])) == {FIRST: 0}


def test_a_filter_and_all_streams_as_one(make: Make) -> None:
    async def read() -> list[tuple[int, int]]:
        async with make() as connector:
            await connector.create_message_streams_by_filter(Whitelist("ev.*"), 2)
            found = []
            async for message in connector.messages():
                found.append((message.partition, message.offset))
                if len(found) == PARTITIONS * EACH:
                    break
            return found

    assert len(set(run(read()))) == PARTITIONS * EACH
