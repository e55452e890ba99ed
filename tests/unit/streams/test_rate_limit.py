"""``consumed.max.per.second``: no more than that, whoever reads, and nothing lost by it."""

from __future__ import annotations

from threading import Thread
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timing import eventually, scaled
from tests.unit.streams.bench import Bench, Several, position
from zkconsumer import KafkaStream
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams import merged_streams, rate_limit
from zkconsumer.streams.chunk_reader import ChunkReader
from zkconsumer.streams.rate_limit import BURST_S, RateLimitedLease, TokenBucket
from zkconsumer.zookeeper.lease import Lease


@given(st.floats(0.1, 1e6), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_never_more_than_the_rate_and_one_burst(rate: float, pauses: list[float]) -> None:
    now = 100.0
    bucket = TokenBucket(rate, now)
    taken = 0
    for pause in pauses:
        now += pause
        while taken < 1000 and bucket.take(now):
            taken += 1
    assert taken <= (now - 100.0) * rate * 1.000001 + max(1.0, rate * BURST_S) + 1e-6


@given(st.floats(0.1, 1e6), st.integers(1, 1000))
def test_the_wait_that_it_tells_is_enough_and_not_too_long(rate: float, spent: int) -> None:
    bucket = TokenBucket(rate, 0.0)
    bucket.spend(spent, 0.0)
    wait = bucket.wait(0.0)
    if wait:
        assert not bucket.take(wait * 0.9 - 1e-9)
    assert bucket.take(wait * 1.000001 + 1e-9)


def reading(rate: float, messages: int) -> tuple[Lease, KafkaStream[Any, Any], PartitionPosition]:
    bench = Bench(timeout=None, gate=lambda lease: RateLimitedLease(lease, rate))
    where = position()
    bench.put(where, 0, messages)
    return bench.lease, bench.stream, where


def test_columns_pay_for_all_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    now = [1000.0]
    monkeypatch.setattr(rate_limit, "monotonic", lambda: now[0])
    _, stream, _ = reading(100.0, 60)  # a burst is ten tokens
    batches = stream.batches(max_rows=20, timeout=0)
    for first, missing in ((0, 0), (20, 10), (40, 19)):
        if first:  # the rows before, and one token for the next
            now[0] += (missing + 1) / 100.0 - 0.001
            with pytest.raises(ConsumerTimeoutException, match=r"consumed\.max\.per\.second"):
                next(batches)
            now[0] += 0.002
        assert next(batches).column("offset").to_pylist() == list(range(first, first + 20))


def test_a_wait_for_a_token_holds_nothing_and_says_why() -> None:
    _, stream, position = reading(0.01, 3)
    assert stream.get().offset == 0
    with pytest.raises(ConsumerTimeoutException, match=r"consumed\.max\.per\.second"):
        stream.get(timeout=0.02)
    assert not position.held
    assert position.finished(including_held=True) == 1, "the one before is finished, and no other"


def test_few_rows_at_a_time_pay_no_more_than_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a batch took two tokens beside the tokens of its rows. Batches of one row came at a third of the rate.
    With a burst of one token, a table that was asked for without waiting never came.
    """
    pytest.importorskip("pyarrow")
    now = [1000.0]
    monkeypatch.setattr(rate_limit, "monotonic", lambda: now[0])
    _, stream, _ = reading(10.0, 60)  # a burst is one token
    batches = stream.batches(max_rows=1, timeout=0)
    for number in range(5):
        rows = next(batches) if number % 2 else stream.to_arrow(max_messages=1, timeout=0)
        assert rows.column("offset").to_pylist() == [number]
        with pytest.raises(ConsumerTimeoutException, match=r"consumed\.max\.per\.second"):
            next(batches)
        now[0] += 0.101


def test_without_a_lease_no_token_is_spent() -> None:
    lease, stream, _ = reading(0.01, 3)
    lease.suspend()
    with pytest.raises(ConsumerTimeoutException, match="ZooKeeper"):
        stream.get(timeout=0)
    lease.resume(lease.epoch)
    assert stream.get(timeout=0).offset == 0


class Merged(Several):
    """Two streams with a batch each, at a pace, and read as one; ``decoded`` counts how often a batch was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rate: float, messages: int) -> None:
        super().__init__(2, timeout=None, gate=lambda lease: RateLimitedLease(lease, rate))
        for number in range(2):
            self.put(number, messages)
        self.decoded = 0
        made = ChunkReader.batches

        def batches(reader: ChunkReader, chunk: Any, start: int) -> Any:
            self.decoded += 1
            return made(reader, chunk, start)

        monkeypatch.setattr(ChunkReader, "batches", batches)

    def asking(self) -> tuple[Thread, list[BaseException | int]]:
        """Somebody who waits for the next token."""
        got: list[BaseException | int] = []

        def ask() -> None:
            try:
                got.append(self.merged.get(timeout=scaled(60)).offset)
            except ConnectorClosedException as e:
                got.append(e)

        asked = Thread(target=ask, name="asked", daemon=True)
        asked.start()
        eventually(lambda: any(stream.being_read for stream in self.streams), 10, "somebody who waits")
        return asked, got


def test_streams_read_as_one_decode_nothing_anew_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a turn ended where a token was missing, and the next one went back into the batch: at a pace, a
    message cost five times as much as from a single stream.
    """
    several = Merged(monkeypatch, 400.0, 60)
    begin = monotonic()
    got = [several.merged.get() for _ in range(120)]
    took = monotonic() - begin
    assert took >= (120 - 400.0 * BURST_S - 1) / 400.0
    for number in range(2):
        assert [m.offset for m in got if m.partition == number] == list(range(60))
    assert several.decoded <= 6 + 2 * took / merged_streams.TURN
    assert several.decoded < 60


def test_at_a_low_rate_streams_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    several = Merged(monkeypatch, 1 / (2 * merged_streams.TURN), 60)
    assert [several.merged.get().partition for _ in range(6)] in ([0, 1] * 3, [0, 0, *[1, 0] * 2])
    before = several.decoded
    with pytest.raises(ConsumerTimeoutException, match=r"consumed\.max\.per\.second"):
        several.merged.get(timeout=0)
    assert several.decoded <= before + 1, "nobody has a token, so not all streams are asked"
    assert not several.held


def test_a_wait_for_a_token_counts_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a stream is asked is how the brokers' group sees that its reader is alive."""
    several = Merged(monkeypatch, 0.001, 3)
    assert several.merged.get().partition == 0
    asked, _ = several.asking()
    before = [stream.queue.asks for stream in several.streams]

    def seen_alive() -> bool:
        """Any stream may be the waiting one, because a slow machine may have begun the next turn."""
        grown = [stream.queue.asks - asks for stream, asks in zip(several.streams, before, strict=True)]
        return all(stream.being_read or more >= 2 for stream, more in zip(several.streams, grown, strict=True))

    eventually(seen_alive, 10, "another ask of the stream that is not read, and one more")
    several.merged.stop()
    asked.join(scaled(10))
    assert not asked.is_alive()


@pytest.mark.parametrize("event", ["stopped", "closed", "revoked", "the lease ends"])
def test_a_wait_for_a_token_in_a_turn_holds_nothing(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    several = Merged(monkeypatch, 0.001, 3)
    assert several.merged.get().partition == 0
    asked, got = several.asking()
    eventually(lambda: not several.held, 10, "the message before is finished")
    if event == "stopped":
        several.merged.stop()
    elif event == "closed":
        for stream in several.streams:
            stream.queue.close()
    elif event == "revoked":
        for stream, position in zip(several.streams, several.positions, strict=True):
            stream.queue.revoke([position])
            assert stream.queue.wait_not_held([position], Deadline(0.0)), "nobody waits for who waits"
        eventually(lambda: all(stream.queue.taken is None for stream in several.streams), 10, "they are let go")
        several.merged.stop()
    else:
        several.lease.suspend()
        eventually(lambda: several.merged._last is several.streams[1], 10, "the turn's end")
        several.merged.stop()
    asked.join(scaled(10))
    assert not asked.is_alive()
    assert isinstance(got[0], ConnectorClosedException)
    assert not several.held
