"""Pausing partitions of a stream: the partitions that wait or flow on, and that no message is lost or repeated."""

from __future__ import annotations

import pytest

from tests.unit.streams.bench import Bench, position, take
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.chunk_reader import ChunkReader
from zkconsumer.streams.stream_queue import Chunk


def rest(bench: Bench) -> list[tuple[int, int]]:
    """All that can be had now."""
    got: list[tuple[int, int]] = []
    while True:
        try:
            message = bench.stream.get(timeout=0)
        except ConsumerTimeoutException:
            return got
        got.append((message.partition, message.offset))


def test_a_paused_partition_waits_and_the_others_flow_on(bench: Bench) -> None:
    one, other = position(0), position(1)
    bench.put(one, 0, 3)
    bench.put(other, 0, 2)
    assert take(bench.stream, 1) == [0]
    bench.queue.pause(one)
    assert (one.held, one.finished(including_held=False)) == (True, 0), "the message in hand stays in hand"
    assert rest(bench) == [(1, 0), (1, 1)]
    assert one.finished(including_held=True) == 1, "the message that was in hand is finished, the next not handed out"
    assert not one.held
    bench.queue.resume(one)
    assert rest(bench) == [(0, 1), (0, 2)]


def test_what_is_fetched_meanwhile_comes_after_what_waited(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 2)
    bench.put(where, 2, 1)
    take(bench.stream, 1)
    bench.queue.pause(where)
    bench.put(where, 3, 1)
    assert rest(bench) == []
    bench.queue.resume(where)
    assert [offset for _, offset in rest(bench)] == [1, 2, 3]
    assert where.finished(including_held=False) == 4


def test_what_waits_aside_takes_no_room(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 1)
    bench.put(where, 1, 1)
    assert not bench.queue.has_room()
    bench.queue.pause(where)
    assert bench.queue.has_room()
    assert bench.room >= 1, "the fetchers are told"
    size = bench.queue.bytes
    assert size > 0, "but it still takes memory"
    bench.queue.resume(where)
    assert bench.queue.bytes == size


@pytest.mark.parametrize(("before", "after"), [("messages", "messages"), ("rows", "messages"), ("rows", "rows")])
def test_a_pause_that_is_taken_back_at_once_drops_nothing(
    bench: Bench, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader saw the pause, and put the rest of its chunk nowhere since the partition was resumed before it looked
    again. The next ask went on behind the rest, which was then committed.
    """
    where = position()
    bench.put(where, 0, 5)
    if before == "rows":
        assert next(bench.stream.batches(max_rows=2))["offset"].to_pylist() == [0, 1]
    else:
        take(bench.stream, 2)
    bench.queue.pause(where)

    def resumed_before(reader: ChunkReader, chunk: Chunk) -> None:
        bench.queue.resume(where)
        finish(reader, chunk)

    finish = ChunkReader.finish
    monkeypatch.setattr(ChunkReader, "finish", resumed_before)
    got = bench.stream.to_arrow(timeout=0)["offset"].to_pylist() if after == "rows" else [o for _, o in rest(bench)]
    assert got == [2, 3, 4]


def test_a_pause_of_a_place_that_was_left_means_the_new_one(bench: Bench) -> None:
    """A partition went on at a new position whose flags were copied without the lock: a pause in between was undone."""
    old, new, last = position(), position(), position()
    bench.queue.pause(old)
    bench.queue.replace(old, new)
    assert (new.paused, new.halted, old.revoked) == (True, True, True)
    bench.queue.resume(old)
    assert (new.paused, new.halted) == (False, False)
    bench.queue.replace(new, last)
    bench.queue.pause(old)
    bench.put(last, 0, 1)
    assert (last.paused, rest(bench)) == (True, [])
    bench.queue.resume(new)
    assert rest(bench) == [(0, 0)]


def test_a_revocation_ends_a_pause_for_good(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 3)
    take(bench.stream, 1)
    bench.queue.pause(where)
    bench.queue.revoke([where])
    bench.queue.resume(where)
    assert where.halted
    assert rest(bench) == []
    assert bench.queue.bytes == 0
    assert bench.queue.wait_not_held([where], Deadline(0))


def test_pausing_twice_and_resuming_what_flows_does_nothing(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 3)
    bench.queue.resume(where)
    bench.queue.pause(where)
    bench.queue.pause(where)
    bench.queue.resume(where)
    bench.queue.resume(where)
    assert [offset for _, offset in rest(bench)] == [0, 1, 2]


def test_a_jump_that_waits_aside_still_counts(bench: Bench) -> None:
    where = position(start=100)
    bench.put(where, 100, 2)
    bench.queue.pause(where)
    bench.queue.jump(where, 7)
    bench.put(where, 7, 1)
    bench.queue.resume(where)
    assert [offset for _, offset in rest(bench)] == [100, 101, 7]
