"""Streams: handed-out and finished messages, and the effects of a revocation, a timeout and an error."""

from __future__ import annotations

import os
from threading import Thread
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.kafka.sets import Batch, MessageSet, Written
from tests.unit.streams.bench import Bench, nothing_comes, position, record_batch, take
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, InvalidMessageException
from zkconsumer.kafka.record_batch import DECODED_BYTES
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.stream_queue import StreamQueue


def test_messages_come_in_order_with_all_their_fields(bench: Bench) -> None:
    bench.put(position(), 0, 3)
    messages = [bench.stream.get(timeout=0) for _ in range(3)]
    assert [m.offset for m in messages] == [0, 1, 2]
    first = messages[0]
    assert (first.topic, first.partition, first.key, first.value) == ("t", 0, b"k0", b"v0")
    assert (first.timestamp, first.timestamp_type, list(first.headers)) == (1_700_000_000_000, 0, [("h", b"1")])


def test_a_message_is_finished_when_the_next_one_is_asked_for(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 3)
    assert (where.finished(including_held=False), where.finished(including_held=True)) == (0, 0)
    take(bench.stream, 1)
    assert (where.held, where.finished(including_held=False), where.finished(including_held=True)) == (True, 0, 1)
    take(bench.stream, 1)
    assert (where.finished(including_held=False), where.finished(including_held=True)) == (1, 2)
    take(bench.stream, 1)
    assert nothing_comes(bench.stream)
    assert (where.held, where.finished(including_held=False), where.finished(including_held=True)) == (False, 3, 3)


def test_the_same_iterator_goes_on_after_a_timeout(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 1)
    iterator = iter(bench.stream)
    assert next(iterator).offset == 0
    for _ in range(3):
        with pytest.raises(ConsumerTimeoutException):
            next(iterator)
    bench.put(where, 1, 1)
    assert next(iterator).offset == 1


def test_messages_before_the_position_are_skipped(bench: Bench) -> None:
    """KAFKA-546: a set that begins before the asked offset gave its start again."""
    where = position(start=5)
    bench.queue.deliver(where, record_batch(0, 10), (5, 10), ())
    assert take(bench.stream, 5) == [5, 6, 7, 8, 9]


def test_what_is_revoked_takes_no_room_from_then_on(bench: Bench) -> None:
    gone, paused, stays = position(0), position(1), position(2)
    for where in (gone, gone, stays, paused):
        bench.put(where, 0, 3)
    bench.queue.pause(paused)
    left = len(record_batch(0, 3))
    assert bench.queue.held_bytes == 4 * left
    bench.queue.revoke([gone, paused])
    assert (len(bench.queue), bench.queue.held_bytes) == (1, left)
    bench.put(gone, 3, 3)
    assert (len(bench.queue), bench.queue.held_bytes) == (1, left), "nor does what was under way"
    assert take(bench.stream, 3) == [0, 1, 2]


def test_closing_wakes_a_reader_and_ends_the_iteration(bench: Bench) -> None:
    stream = Bench(timeout=None)
    seen: list[int] = []
    reader = Thread(target=lambda: seen.extend(m.offset for m in stream.stream), name="reader")
    reader.start()
    stream.put(position(), 0, 2)
    eventually(lambda: len(seen) == 2, 5, "both messages")
    stream.queue.close()
    reader.join(scaled(5))
    assert not reader.is_alive()
    assert list(stream.stream) == []
    with pytest.raises(ConnectorClosedException):
        stream.stream.get(timeout=0)


def test_a_corrupt_chunk_raises_at_each_ask_and_skips_nothing(bench: Bench) -> None:
    where = position()
    data = bytearray(record_batch(0, 3))
    data[-1] ^= 0xFF
    bench.queue.deliver(where, bytes(data), (0, 3), ())
    for _ in range(2):
        with pytest.raises(InvalidMessageException, match="t-0"):
            bench.stream.get(timeout=0)
    assert where.finished(including_held=True) == 0


def test_a_connector_failure_reaches_the_reader_and_can_end(bench: Bench) -> None:
    bench.queue.fail_readers(RuntimeError("the group failed"))
    with pytest.raises(RuntimeError, match="the group failed"):
        next(bench.stream)
    bench.queue.fail_readers(None)
    bench.put(position(), 0, 1)
    assert next(bench.stream).offset == 0


def test_a_jump_moves_the_position_after_what_is_queued(bench: Bench) -> None:
    """In the original an out-of-range reset moved the consumed offset while older chunks were still queued."""
    where = position(start=100)
    bench.put(where, 100, 2)
    bench.queue.jump(where, 7)
    bench.put(where, 7, 1)
    assert take(bench.stream, 3) == [100, 101, 7]
    assert nothing_comes(bench.stream)
    assert where.finished(including_held=False) == 8


def test_a_jump_counts_although_no_message_follows(bench: Bench) -> None:
    where = position(start=100)
    bench.queue.jump(where, 7)
    assert nothing_comes(bench.stream)
    assert where.finished(including_held=False) == 7


def test_a_full_queue_says_so_and_tells_when_it_has_room(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 1)
    assert bench.queue.has_room()
    bench.put(where, 1, 1)
    assert not bench.queue.has_room()
    bench.put(where, 2, 1)
    assert len(bench.queue) == 3, "an answer that is there is kept"
    assert take(bench.stream, 2) == [0, 1]
    assert bench.room == 2
    assert bench.queue.has_room()


def test_small_chunks_may_pass_the_capacity_to_a_bound() -> None:
    budget, woken = QueueBudget(80_000), list[int]()
    queue = StreamQueue(2, lambda: woken.append(1), budget)
    count = 0
    while queue.has_room():
        queue.deliver(position(0), b"x" * 1000, (count, count + 1), ())
        count += 1
    assert 2 < count <= 10, "an eighth of the budget"
    queue.take(Deadline(0))
    assert woken == [1]
    assert queue.has_room()
    large = StreamQueue(2, lambda: None, QueueBudget(1 << 30))
    for number in range(2):
        assert large.has_room()
        large.deliver(position(0), bytes(5_000_000), (number, number + 1), ())
    assert not large.has_room()


def budgeted(limit: int, count: int) -> tuple[QueueBudget, list[StreamQueue], list[int]]:
    """Return queues that share a budget, and a list that gets an entry when they have room again."""
    budget, woken = QueueBudget(limit), list[int]()
    return budget, [StreamQueue(9999, lambda: woken.append(1), budget) for _ in range(count)], woken


def test_one_budget_counts_all_streams_and_the_chunk_in_hand() -> None:
    budget, (first, second), woken = budgeted(160, 2)
    first.deliver(position(0), b"x" * 151, (0, 1), ())
    assert not first.has_room()
    assert not second.has_room(), "nobody reads it"
    first.take(Deadline(0))
    assert (budget.used, woken, second.has_room()) == (151, [], False), "it is still in memory"
    first.finish_taken()
    assert woken == [1], "they who were refused may look again"
    assert first.has_room()
    assert second.has_room()
    first.close()
    second.close()
    assert budget.used == 0


def test_what_is_decoded_of_a_chunk_counts_as_well() -> None:
    """Seen: 32 readers of messages of 1 MB held as much again as was counted."""
    budget, (large, medium, small), _ = budgeted(10_000_000, 3)
    large.deliver(position(0), bytes(1_000_000), (0, 1), (), 1)
    medium.deliver(position(1), bytes(1_000_000), (0, 100), (), 100)
    small.deliver(position(2), bytes(1_000_000), (0, 10_000), (), 10_000)
    assert budget.used == 3_000_000
    large.take(Deadline(0))
    assert budget.used == 4_000_000
    medium.take(Deadline(0))
    assert budget.used == 4_262_144, "256 KiB are decoded at a time, or one message"
    small.take(Deadline(0))
    assert budget.used == 4_300_544, "or 384 messages"
    for queue in (large, medium, small):
        queue.finish_taken()
    assert budget.used == 0


@pytest.mark.parametrize(("magic", "codec"), [(2, 0), (2, 1), (1, 0), (1, 1)])
def test_what_is_compressed_is_in_memory_as_a_whole(magic: int, codec: int) -> None:
    values = [os.urandom(100_000) for _ in range(10)]
    records = MessageSet([Batch([Written(value=value) for value in values], magic, codec)]).data
    budget, (queue,), _ = budgeted(10_000_000, 1)
    queue.deliver(position(0), records, (0, 10), (), 10)
    queue.take(Deadline(0))
    assert budget.used == len(records) + (len(records) if codec else DECODED_BYTES)
    queue.finish_taken()


def test_a_waiting_reader_is_served_whatever_others_leave_unread() -> None:
    budget, (unread, read), woken = budgeted(160, 2)
    unread.deliver(position(0), b"x" * 500, (0, 1), ())
    assert not read.has_room()
    with pytest.raises(ConsumerTimeoutException):
        read.take(Deadline(0))
    assert woken == [1]
    assert read.has_room(), "its reader waits"
    assert not unread.has_room()
    read.deliver(position(1), b"x", (0, 1), ())
    assert not read.has_room(), "that is enough to go on with"
    assert budget.reserve(1000) == 1, "no more than a batch at a time then"


def test_a_reader_whose_chunk_is_revoked_still_waits() -> None:
    """The reader's chunk had come, so nobody fetched for the reader any more while another stream was unread."""
    _, (unread, read), _ = budgeted(160, 2)
    unread.deliver(position(0), b"x" * 500, (0, 1), ())
    revoked, kept = position(1), position(2)
    taken: list[Any] = []
    reader = Thread(target=lambda: taken.append(read.take(Deadline(scaled(20)))), name="reader", daemon=True)
    reader.start()
    eventually(lambda: read.reader_waits, 10, "a reader that waits")
    with read._lock:
        read.deliver(revoked, b"x", (0, 1), ())
        assert not read.has_room()
        read.revoke([revoked])
    eventually(read.has_room, 10, "room for a reader that waits again")
    read.deliver(kept, b"x", (0, 1), ())
    reader.join(scaled(20))
    assert [chunk.position for chunk in taken] == [kept]


@pytest.mark.parametrize("greedy", [1, 2, 5, 20])
def test_greedy_streams_share_alike_and_leave_some(greedy: int) -> None:
    budget, queues, _ = budgeted(1_000_000, greedy + 1)
    for number in range(100_000):
        queue = queues[number % greedy]
        if not any(one.has_room() for one in queues[:greedy]):
            break
        if queue.has_room():
            queue.deliver(position(0), b"x" * 500, (number, number + 1), ())
    shares = [queue.held_bytes for queue in queues[:greedy]]
    assert max(shares) - min(shares) <= 500
    assert sum(shares) >= 700_000
    assert budget.used <= 1_000_000
    assert queues[-1].has_room(), "one that comes late gets some too"


def test_what_is_under_way_counts_and_several_requests_share() -> None:
    budget, (queue,), _ = budgeted(1_000_000, 1)
    granted = [budget.reserve(10**9) for _ in range(30)]
    assert sum(granted) <= 1_000_000
    assert granted[0] <= 1_000_000 // 4
    assert min(granted) > 0
    assert budget.used == sum(granted)
    assert not queue.has_room() or budget.free() > 0
    for count in granted:
        budget.release(count)
    assert budget.used == 0
    assert budget.reserve(100) == 100, "never more than is wanted"


def test_printing_a_stream_does_not_read_it(bench: Bench) -> None:
    """KAFKA-1146: the text form of a stream iterated it and blocked for ever."""
    assert "g_c-0" in repr(bench.stream)
    assert "g_c-0" in f"{bench.stream}"
