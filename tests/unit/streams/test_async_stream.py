"""Streams on an event loop: waiting, waking, cancelling, sharing the loop, and what is in hand meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.unit.streams.bench import AsyncBench, elsewhere, on_a_loop, position, run
from tests.values import present
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException
from zkconsumer.streams import async_stream
from zkconsumer.streams.async_stream import AsyncMessages
from zkconsumer.streams.rate_limit import RateLimitedLease


@pytest.fixture
def bench() -> Iterator[AsyncBench]:
    made = AsyncBench()
    yield made
    made.queue.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def offsets(reader: AsyncMessages[Any, Any], count: int) -> list[int]:
    found = []
    async for message in reader:
        found.append(message.offset)
        if len(found) == count:
            break
    return found


@on_a_loop
async def test_loops_and_calls_are_one_pass(bench: AsyncBench) -> None:
    where = position()
    bench.put(where, 0, 6)
    assert await offsets(bench.reader, 2) == [0, 1]
    assert (await bench.reader.getone()).offset == 2
    assert where.finished(including_held=False) == 2
    many = await bench.reader.getmany(max_records=2)
    assert [message.offset for message in many[where.tp]] == [3, 4]
    assert (where.finished(including_held=False), where.finished(including_held=True)) == (3, 5)
    assert await offsets(bench.reader, 1) == [5]


@on_a_loop
async def test_a_waiting_reader_is_woken_by_a_fetcher(bench: AsyncBench) -> None:
    where = position()
    for way in (lambda: offsets(bench.reader, 1), bench.reader.getone, lambda: bench.reader.getmany(60_000)):
        task = asyncio.ensure_future(way())
        await until(lambda: bench.queue.reader_waits)
        start = present(where.consumed if not where.held else where.finished(including_held=True))
        elsewhere(partial(bench.put, where, start, 1))
        await task
    assert where.finished(including_held=True) == 3


@on_a_loop
async def test_a_chunk_wakes_once_and_not_for_each_message(bench: AsyncBench) -> None:
    where = position()
    wakes = []
    loop: Any = asyncio.get_running_loop()
    original = loop.call_soon_threadsafe

    def counted(*arguments: Any) -> Any:
        wakes.append(arguments)
        return original(*arguments)

    loop.call_soon_threadsafe = counted
    task = asyncio.ensure_future(offsets(bench.reader, 1000))
    await until(lambda: bench.queue.reader_waits)
    elsewhere(lambda: [bench.put(where, first, 100) for first in range(0, 1000, 100)])
    assert await task == list(range(1000))
    assert len(wakes) <= 10


@on_a_loop
async def test_a_timeout_raises_or_ends(bench: AsyncBench) -> None:
    ending = AsyncBench(0.01, ends=True)
    raising = AsyncBench(0.01)
    assert [message async for message in ending.reader] == []
    for _ in range(2):
        with pytest.raises(ConsumerTimeoutException):
            await offsets(raising.reader, 1)
    with pytest.raises(ConsumerTimeoutException):
        await bench.reader.getone(timeout=0)
    assert await bench.reader.getmany(timeout_ms=1) == {}
    raising.put(position(), 0, 1)
    assert await offsets(raising.reader, 1) == [0]


@on_a_loop
async def test_the_end_ends_loops_and_is_an_error_elsewhere(bench: AsyncBench) -> None:
    task = asyncio.ensure_future(offsets(bench.reader, 5))
    await until(lambda: bench.queue.reader_waits)
    elsewhere(bench.queue.close)
    assert await task == []
    with pytest.raises(ConnectorClosedException):
        await bench.reader.getone()
    with pytest.raises(ConnectorClosedException):
        await bench.reader.getmany()


@on_a_loop
async def test_an_error_of_the_connector_reaches_the_reader(bench: AsyncBench) -> None:
    task = asyncio.ensure_future(bench.reader.getone())
    await until(lambda: bench.queue.reader_waits)
    elsewhere(lambda: bench.queue.fail_readers(ValueError("refused")))
    with pytest.raises(ValueError, match="refused"):
        await task


@on_a_loop
async def test_a_second_task_is_refused_while_one_waits(bench: AsyncBench) -> None:
    task = asyncio.ensure_future(bench.reader.getone())
    await until(lambda: bench.queue.reader_waits)
    for way in (bench.reader.getone, bench.reader.getmany, lambda: offsets(bench.reader, 1)):
        with pytest.raises(RuntimeError, match="another task"):
            await way()
    bench.put(position(), 0, 1)
    assert (await task).offset == 0


@on_a_loop
async def test_an_interrupt_before_the_hand_out_repeats_it(bench: AsyncBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that raises may do so between the read and the task."""
    bench.put(position(), 0, 3)

    class Interrupted:
        def __init__(self, messages: Iterator[Any], _: int) -> None:
            self._messages = messages

        def __iter__(self) -> Iterator[Any]:
            next(self._messages)
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(async_stream, "islice", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            await offsets(bench.reader, 1)
    assert await offsets(bench.reader, 2) == [0, 1]


@on_a_loop
async def test_other_coroutines_run_while_messages_are_ready(
    bench: AsyncBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that never waits would keep the loop for itself."""
    monkeypatch.setattr(async_stream, "TURN", 0.0)
    where = position()
    for first in range(0, 3000, 100):
        bench.put(where, first, 100)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(beat())
    assert len(await offsets(bench.reader, 1500)) == 1500
    before = beats
    for _ in range(100):
        await bench.reader.getone()
    assert beats - before >= 100
    while (await bench.reader.getone()).offset < 2999:
        pass
    task.cancel()
    assert beats > 5


@on_a_loop
async def test_nothing_comes_without_a_lease(bench: AsyncBench) -> None:
    where = position()
    bench.put(where, 0, 2)
    assert (await bench.reader.getone()).offset == 0
    bench.lease.suspend()
    task = asyncio.ensure_future(bench.reader.getone())
    await until(lambda: where.finished(including_held=False) == 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()
    assert not where.held
    bench.lease.resume(bench.lease.epoch)
    assert (await task).offset == 1


def test_a_rate_limit_holds_messages_back() -> None:
    bench = AsyncBench(gate=lambda lease: RateLimitedLease(lease, 1000.0))
    bench.put(position(), 0, 300)

    assert run(offsets(bench.reader, 300)) == list(range(300))
    bench.queue.close()


@on_a_loop
async def test_a_revocation_takes_what_was_not_handed_out(bench: AsyncBench) -> None:
    where = position()
    bench.put(where, 0, 5)
    async for message in bench.reader:
        if message.offset == 1:
            bench.queue.revoke([where])
            assert where.held  # the rebalance waits for it
            break
    with pytest.raises(ConsumerTimeoutException):
        await bench.reader.getone(timeout=0)
    assert (where.held, where.finished(including_held=False)) == (False, 2)
