"""Cancellation of a task that reads a stream on an event loop, at each of its suspensions in turn.

A message that the task asked to go on from is finished then, whatever becomes of the next one: it is not consumed again
after the task has left. Nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.unit.streams.bench import AsyncBench, awaited, cancelled_at, elsewhere, position, run
from zkconsumer import MergedStreams
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams import async_stream
from zkconsumer.streams.async_stream import AsyncMessages

CHUNKS, EACH = 4, 3
LAST = CHUNKS * EACH

Way = Callable[[Any, list[int]], Coroutine[Any, Any, None]]


async def by_loop(reader: Any, seen: list[int]) -> None:
    async for message in reader:
        seen.append(message.offset)
        if message.offset == LAST - 1:
            break


async def by_getone(reader: Any, seen: list[int]) -> None:
    while LAST - 1 not in seen:
        seen.append((await reader.getone()).offset)


async def by_getmany(reader: Any, seen: list[int]) -> None:
    while LAST - 1 not in seen:
        for messages in (await reader.getmany(60_000, max_records=2)).values():
            seen.extend(message.offset for message in messages)


class Fed:
    """A stream of which a part is there, and the rest comes while the reader waits."""

    def __init__(self, *, merged: bool = False) -> None:
        self.where: PartitionPosition = position()
        self.bench = AsyncBench()
        self.reader: AsyncMessages[Any, Any] = self.bench.reader
        if merged:
            streams = MergedStreams(lambda: [self.bench.stream], timeout=0, ends_on_timeout=True)
            self.reader = AsyncMessages(streams, timeout=None, ends_on_timeout=False)
        self.fed = 0
        self.feed()

    def feed(self) -> None:
        self.bench.put(self.where, self.fed, EACH)
        self.fed += EACH

    async def feed_on(self) -> None:
        while self.fed < LAST:
            await asyncio.sleep(0)
            if self.bench.queue.reader_waits:
                elsewhere(self.feed)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_stream, "TURN", 0.0)
    monkeypatch.setattr(async_stream, "SLICE", 2)


@pytest.mark.parametrize("merged", [False, True], ids=["stream", "messages"])
@pytest.mark.parametrize("way", [by_loop, by_getone, by_getmany])
def test_each_suspension_may_be_cancelled(way: Way, merged: bool) -> None:
    """A message is finished once the reader was asked to go on, and the next read goes on behind the message."""
    if merged and way is by_getmany:
        pytest.skip("lists come from single streams")

    async def once(suspension: int) -> bool:
        made, seen = Fed(merged=merged), list[int]()
        feeding = asyncio.ensure_future(made.feed_on())
        reached: bool = await asyncio.ensure_future(awaited(cancelled_at(way(made.reader, seen), suspension)))
        if reached:
            finished = made.where.finished(including_held=False)
            assert (finished, made.where.held) == (len(seen), False), f"cancelled in suspension {suspension}"
            await way(made.reader, seen)
        assert seen == list(range(LAST))
        feeding.cancel()
        made.bench.queue.close()
        return reached

    async def sweep() -> int:
        suspension = 1
        while await once(suspension):
            suspension += 1
        return suspension - 1

    assert run(sweep()) >= CHUNKS
