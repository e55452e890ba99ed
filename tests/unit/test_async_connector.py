"""The connector for asyncio on a cluster in memory: commits, rebalances, listeners, cancellation and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

import pytest

from tests.internals import member_of
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
    stream_of,
    threads_of,
    until,
)
from tests.unit.async_members import cluster as cluster
from tests.unit.async_members import make as make
from tests.unit.streams.bench import run
from zkconsumer import (
    AsyncConsumerRebalanceListener,
    AsyncStream,
    AsyncZookeeperConsumerConnector,
    ConsumerRebalanceListener,
    StringDecoder,
    TopicPartition,
    Whitelist,
    shutdown,
)
from zkconsumer import connector as connector_module
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerTimeoutException,
    MessageStreamsExistException,
    OffsetCommitError,
)
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


def test_a_stop_iteration_of_a_store_reaches_the_caller(cluster: FakeCluster) -> None:
    """Python 3.11 sets no StopIteration on a future of asyncio, so that ``await committed()`` waited for ever."""
    config = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g"}

    async def ask() -> None:
        async with AsyncZookeeperConsumerConnector(config, offset_store=StoppingStore()) as connector:
            await stream_of(connector)
            with pytest.raises(RuntimeError, match="StopIteration") as raised:
                await connector.committed(("other", 0))
            assert isinstance(raised.value.__cause__, StopIteration)

    run(ask())


def test_timeouts_are_those_of_the_configuration(make: Make) -> None:
    async def read() -> None:
        async with make(**{"consumer.timeout.ms": 1, "auto.offset.reset": "largest"}) as connector:
            stream = await stream_of(connector)
            with pytest.raises(ConsumerTimeoutException):
                async for _ in stream:
                    pass
            with pytest.raises(ConsumerTimeoutException):
                async for _ in connector.messages():
                    pass
        ends = {"consumer.timeout.ms": 1, "consumer.timeout.action": "end", "auto.offset.reset": "largest"}
        async with make(**ends) as connector:
            assert [message async for message in await stream_of(connector)] == []

    run(read())


def test_a_commit_counts_what_its_own_task_holds(cluster: FakeCluster, make: Make) -> None:
    async def read() -> None:
        async with make() as connector:
            streams = (await connector.create_message_streams({"events": 2}))["events"]
            first, second = [await one.getone() for one in streams]
            task = await holding(streams[1])
            await connector.commit()
            found = {tp.partition: await connector.committed(tp) for tp in (FIRST, SECOND)}
            # the first message of the second stream is finished, and the other task has the next one
            assert found == {first.partition: 1, second.partition: 1}
            task.cancel()
            await asyncio.sleep(0)

    run(read())
    assert sorted(committed(cluster)) == [1, 1]


def test_a_list_is_committed_as_a_whole(cluster: FakeCluster, make: Make) -> None:
    async def read() -> None:
        async with make() as connector:
            stream = await stream_of(connector)
            found: dict[TopicPartition, int] = {}
            while sum(found.values()) < PARTITIONS * EACH:
                many = await stream.getmany(timeout_ms=10_000, max_records=7)
                for tp, messages in many.items():
                    found[tp] = found.get(tp, 0) + len(messages)
                await connector.commit()
                assert {tp: await connector.committed(tp) for tp in many} == {tp: found[tp] for tp in many}

    run(read())
    assert committed(cluster) == [EACH, EACH]


def test_an_exception_leaves_the_message_to_the_next(cluster: FakeCluster, make: Make) -> None:
    async def read() -> None:
        async with make() as connector:
            async for message in await stream_of(connector):
                if message.offset == 5:
                    raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(read())
    assert 5 in committed(cluster)


def test_the_message_in_hand_is_finished_at_the_end(cluster: FakeCluster, make: Make) -> None:
    async def read() -> None:
        async with make() as connector:
            async for message in await stream_of(connector):
                if message.offset == 5:
                    break

    run(read())
    assert 6 in committed(cluster)


@pytest.mark.parametrize("at", ["create", "getone", "commit", "seek", "shutdown"])
def test_a_cancellation_anywhere_loses_nothing(cluster: FakeCluster, make: Make, at: str) -> None:
    seen: list[tuple[int, int]] = []

    async def cancelled(work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def read() -> None:
        async with make() as connector:
            if at == "create":
                await cancelled(stream_of(connector))
                return
            stream = await stream_of(connector)
            for _ in range(5):
                message = await stream.getone()
                seen.append((message.partition, message.offset))
            if at == "getone":
                connector.pause([FIRST, SECOND])
                await cancelled(stream.getone())
            elif at == "commit":
                await cancelled(connector.commit())
            elif at == "seek":
                await cancelled(connector.seek((message.topic, message.partition), message.offset + 1))
            else:
                await cancelled(connector.shutdown())

    async def read_rest() -> None:
        async with make() as connector:
            async for message in await stream_of(connector, until="end"):
                seen.append((message.partition, message.offset))  # noqa: PERF401

    run(read())
    run(read_rest())
    assert sorted(seen) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]


def test_a_cancelled_join_leaves_no_member(cluster: FakeCluster, make: Make) -> None:
    async def join() -> None:
        connector = make()
        task = asyncio.ensure_future(stream_of(connector))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await connector.shutdown()
        assert cluster.zookeeper.tree("/").get("/consumers/g/ids/" + connector.consumer_id) is None
        with pytest.raises((ConnectorClosedException, MessageStreamsExistException)):
            await stream_of(connector)

    run(join())


@pytest.mark.parametrize("late", [False, True], ids=["", "whose thread is late"])
def test_a_shutdown_that_is_begun_ends_loops(
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

    async def read() -> None:
        async with make() as connector:
            async for message in await stream_of(connector):
                seen.append(message)
                if len(seen) == 7:
                    if late:
                        monkeypatch.setattr(connector_module, "Thread", LateThread)
                    connector.begin_shutdown()
                    await asyncio.sleep(0)
            may_close.set()

    run(read())
    assert len(seen) == 7
    assert sum(committed(cluster)) == 7


def test_other_tasks_may_finish_and_commit_at_the_end(cluster: FakeCluster, make: Make) -> None:
    async def read() -> None:
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

    run(read())
    assert committed(cluster) == [1, 1]


def test_a_shutdown_without_a_thread_is_done_by_the_next(
    cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gave no thread. The connector counted as being shut down, and kept its partitions for ever."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    async def read() -> None:
        connector = make()
        await (await stream_of(connector)).getone()
        with monkeypatch.context() as patched:
            patched.setattr(connector_module, "Thread", NoThread)
            with pytest.raises(RuntimeError, match="can't start"):
                connector.begin_shutdown()
        await connector.shutdown()
        assert connector.state.phase is Phase.CLOSED

    run(read())
    assert sorted(committed(cluster)) == [0, 1]


def test_a_message_nobody_finishes_is_told(cluster: FakeCluster, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read() -> None:
        connector = make()
        streams = (await connector.create_message_streams({"events": 2}))["events"]
        task = await holding(streams[1])
        monkeypatch.setattr(shutdown, "LATE", scaled(WITHIN))  # a close on a busy machine ends later
        with pytest.raises(OffsetCommitError, match="still in hand"):
            await connector.shutdown(timeout=2.0)
        task.cancel()

    run(read())


def test_a_rebalance_waits_for_the_message_in_hand(make: Make) -> None:
    """The next owner has nothing that this member still works on, and nothing is lost or repeated."""
    seen: list[tuple[int, int]] = []

    async def read() -> None:
        patient = {"rebalance.drain.timeout.ms": 20_000}
        async with make(**patient) as first, make(**patient) as second:
            one = await stream_of(first)
            message = await one.getone()
            joining = asyncio.ensure_future(stream_of(second))
            held = TopicPartition(message.topic, message.partition)
            position = member_of(first).positions()[held]
            await until(lambda: position.revoked or second.assignment())
            seen.append((message.partition, message.offset))

            async def collect(stream: AsyncStream[Any, Any]) -> None:
                async for message in stream:
                    seen.append((message.partition, message.offset))  # noqa: PERF401

            tasks = [asyncio.ensure_future(collect(one))]
            tasks.append(asyncio.ensure_future(collect(await joining)))
            await until(lambda: len(set(seen)) == PARTITIONS * EACH)
            for task in tasks:
                task.cancel()

    run(read())
    assert sorted(seen) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]


def test_a_listener_runs_on_the_loop_and_may_commit(cluster: FakeCluster, make: Make) -> None:
    calls: list[tuple[str, int]] = []

    async def read() -> None:
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

    run(read())
    assert calls == [("starting", threading.get_ident()), ("releasing", threading.get_ident())]
    assert 17 in committed(cluster)


def test_a_listener_without_coroutines_runs_on_the_loop(make: Make) -> None:
    threads = []

    class Listener(ConsumerRebalanceListener):
        def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
            threads.append(threading.get_ident())
            raise ValueError("reported, and harms nothing")

    async def read() -> None:
        connector = make()
        connector.set_consumer_rebalance_listener(Listener())
        async with connector:
            await (await stream_of(connector)).getone()

    run(read())
    assert threads == [threading.get_ident()]


def test_calls_of_the_connector_have_coroutines(cluster: FakeCluster, make: Make) -> None:
    cluster.create_topic("others")
    cluster.append("others", 0, [b"o"])

    async def use() -> None:
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

    run(use())


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
