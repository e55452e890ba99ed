"""Hand-outs while the lease, or the stream, ends: nothing is skipped, and nothing is counted that nobody got."""

from __future__ import annotations

from time import monotonic

import pytest

from tests.timing import scaled
from tests.unit.kafka.sets import Batch, Written
from tests.unit.streams.bench import Bench, position
from zkconsumer import KafkaStream
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.chunk_reader import ChunkReader
from zkconsumer.zookeeper.lease import Lease


@pytest.fixture
def lease(bench: Bench) -> Lease:
    return bench.lease


@pytest.fixture
def stream(bench: Bench) -> KafkaStream[bytes, bytes]:
    return bench.stream


def put(stream: KafkaStream[bytes, bytes], position: PartitionPosition, *batches: int) -> None:
    """Queue a chunk of batches with so many messages each; compaction took the end of the last."""
    records, offset = b"", 0
    for number, count in enumerate(batches, 1):
        last = number == len(batches)
        data, offset = Batch([Written()] * count, trailing=2 * last).encode(offset)
        records += data
    stream.queue.deliver(position, records, (0, offset), ())


def test_a_closed_gate_and_an_ended_stream_skip_nothing(stream: KafkaStream[bytes, bytes], lease: Lease) -> None:
    """Bug: with the lease lapsed, an ending stream went on to the next batch and counted the rest as read."""
    where = position()
    put(stream, where, 2, 2, 2)
    messages = iter(stream)
    next(messages)
    lease.suspend()
    stream.queue.close()
    assert next(messages, None) is None
    assert where.finished(including_held=True) == 1


@pytest.mark.parametrize("seconds", [0, 0.05])
def test_a_closed_gate_keeps_nobody_longer_than_his_patience(
    stream: KafkaStream[bytes, bytes], lease: Lease, seconds: float
) -> None:
    """Bug: with ZooKeeper away and messages fetched, ``get`` waited for ZooKeeper whatever its timeout."""
    where = position()
    put(stream, where, 2, 1)
    assert stream.get(timeout=0).offset == 0
    lease.suspend()
    for _ in range(2):
        begin = monotonic()
        with pytest.raises(ConsumerTimeoutException, match="ZooKeeper"):
            stream.get(timeout=seconds)
        assert seconds <= monotonic() - begin < seconds + scaled(2)
        assert where.finished(including_held=True) == 1
    lease.resume(lease.epoch)
    assert [stream.get(timeout=0).offset for _ in range(2)] == [1, 2]


def test_a_lease_that_ends_after_the_look_counts_nothing(
    stream: KafkaStream[bytes, bytes], lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the message would stay announced, and the next read or a shutdown would count it."""
    where = position()
    put(stream, where, 3)
    assert stream.get(timeout=0).offset == 0
    lease.suspend()
    with monkeypatch.context() as patched:
        looks = iter([True])  # it was valid a moment ago
        patched.setattr(ChunkReader, "may_hand_out", lambda _: next(looks, False))
        with pytest.raises(ConsumerTimeoutException, match="ZooKeeper"):
            stream.get(timeout=0)
    assert not where.held
    assert where.finished(including_held=True) == 1
    lease.resume(lease.epoch)
    assert [stream.get(timeout=0).offset for _ in range(2)] == [1, 2]


def test_the_end_of_a_lease_is_told_by_the_exact_clock(stream: KafkaStream[bytes, bytes], lease: Lease) -> None:
    """The compiled loop reads a clock that is milliseconds late while the end is far away."""
    put(stream, position(), 3)
    assert stream.get(timeout=0).offset == 0
    for _ in range(20):
        lease.lapse()
        with pytest.raises(ConsumerTimeoutException, match="ZooKeeper"):
            stream.get(timeout=0)
        lease.renew(monotonic(), 3600.0)
    assert stream.get(timeout=0).offset == 1
