"""Reports of loads: what members measure, and that strange reports are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.core.placement_plan import MAX_REPORT_BYTES, PartitionLoad, decode_loads, encode_loads
from zkconsumer.member.zookeeper.placement_node import LoadMeter
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition

TP = TopicPartition("t", 3)


def position(log_end: int, consumed: int | None = 100) -> PartitionPosition:
    made = PartitionPosition(TP, ThreadId("g_a-0"), consumed)
    made.cursor.log_end = log_end
    return made


def test_a_rate_needs_two_looks_at_one_stay() -> None:
    meter, owned = LoadMeter(), position(150)
    assert meter.measure({TP: owned}, 10.0) == {}
    owned.cursor.log_end = 250
    assert meter.measure({TP: owned}, 30.0) == {TP: PartitionLoad(150, 5.0)}
    assert meter.measure({TP: position(400)}, 50.0) == {}, "another stay at the partition"


def test_a_log_that_was_cut_short_has_no_negative_rate() -> None:
    meter, owned = LoadMeter(), position(150)
    meter.measure({TP: owned}, 10.0)
    owned.cursor.log_end = 120
    assert meter.measure({TP: owned}, 20.0) == {TP: PartitionLoad(20, 0.0)}


def owned_of(number: int, *, log_end: int, fetched: int, consumed: int) -> PartitionPosition:
    made = PartitionPosition(TopicPartition("t", number), ThreadId("g_a-0"), consumed)
    made.cursor.log_end, made.cursor.fetched = log_end, fetched
    return made


def test_a_stuck_reader_does_not_look_idle() -> None:
    """Nothing is fetched while its stream is full. So the log ends stay, while the logs grow."""
    meter = LoadMeter()
    hot, other = owned_of(0, log_end=100, fetched=90, consumed=50), owned_of(1, log_end=10, fetched=10, consumed=10)
    owned = {one.tp: one for one in (hot, other)}
    meter.measure(owned, 0.0)
    hot.cursor.log_end, hot.cursor.fetched, other.cursor.log_end, other.cursor.fetched = 400, 300, 40, 40
    hot.consumed, other.consumed = 100, 40
    assert meter.measure(owned, 30.0) == {hot.tp: PartitionLoad(300, 10.0), other.tp: PartitionLoad(0, 1.0)}
    assert meter.measure(owned, 60.0) == {hot.tp: PartitionLoad(600, 10.0), other.tp: PartitionLoad(30, 1.0)}
    hot.consumed = 200
    assert meter.measure(owned, 90.0)[hot.tp] == PartitionLoad(800, 10.0), "slow is like stuck"
    hot.cursor.fetched, hot.cursor.log_end, hot.consumed, other.cursor.log_end = 600, 1300, 300, 40
    found = meter.measure(owned, 120.0)
    assert found == {hot.tp: PartitionLoad(1000, 10.0), other.tp: PartitionLoad(0, 0.0)}, "the mean of the whole time"


def test_a_reader_at_the_end_of_its_log_is_idle() -> None:
    meter = LoadMeter()
    idle = owned_of(0, log_end=100, fetched=100, consumed=100)
    meter.measure({idle.tp: idle}, 0.0)
    assert meter.measure({idle.tp: idle}, 30.0) == {idle.tp: PartitionLoad(0, 0.0)}


def test_a_paused_partition_keeps_its_load() -> None:
    """Another member would not consume it sooner: whoever paused it wants no messages."""
    meter = LoadMeter()
    paused = owned_of(0, log_end=100, fetched=100, consumed=100)
    meter.measure({paused.tp: paused}, 0.0)
    paused.cursor.log_end, paused.cursor.fetched = 400, 400
    meter.measure({paused.tp: paused}, 30.0)
    paused.paused = True
    assert meter.measure({paused.tp: paused}, 330.0) == {paused.tp: PartitionLoad(300, 10.0)}


def test_what_was_never_measured_counts_as_unknown() -> None:
    meter = LoadMeter()
    full = owned_of(0, log_end=100, fetched=90, consumed=50)
    meter.measure({full.tp: full}, 0.0)
    assert meter.measure({full.tp: full}, 30.0) == {}


@pytest.mark.parametrize("unknown", [position(-1), position(150, None)])
def test_what_was_not_fetched_is_not_reported(unknown: PartitionPosition) -> None:
    meter = LoadMeter()
    meter.measure({TP: unknown}, 10.0)
    assert meter.measure({TP: unknown}, 20.0) == {}


loads = st.dictionaries(
    st.builds(TopicPartition, st.text("abc.-ü", min_size=1, max_size=4), st.integers(0, 10**6)),
    st.builds(PartitionLoad, st.integers(0, 10**9), st.floats(0, 1e9).map(lambda rate: round(rate, 3))),
)


@given(loads)
def test_what_is_written_is_read(found: dict[TopicPartition, PartitionLoad]) -> None:
    assert decode_loads(encode_loads(found)) == found


def test_a_large_report_is_cut() -> None:
    many = {TopicPartition("topic", n): PartitionLoad(10**12, 1e9) for n in range(20_000)}
    data = encode_loads(many)
    assert len(data) <= MAX_REPORT_BYTES
    assert 1000 < len(decode_loads(data)) < len(many)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"version":2,"loads":{"t":{"3":[1,2]}}}',
        b'{"version":1}',
        b'{"version":1,"loads":[]}',
        b'{"version":1,"loads":{"t":[]}}',
        b'{"version":1,"loads":{"t":{"x":[1,2]}}}',
        '{"version":1,"loads":{"t":{"٣":[1,2]}}}'.encode(),
        b'{"version":1,"loads":{"t":{"3":[1]}}}',
        b'{"version":1,"loads":{"t":{"3":[1,-2]}}}',
        b'{"version":1,"loads":{"t":{"3":[true,2]}}}',
        b'{"version":1,"loads":{"t":{"3":[NaN,2]}}}',
        b'{"version":1,"loads":{"t":{"3":[1e999,2]}}}',
        b'{"version":1,"loads":{"t":{"3":[1e300,2]}}}',
        b'{"version":1,"loads":{"t":{"3":["1",2]}}}',
        b'{"version":1,"loads":{"t":{"3":[1' + b"0" * 400 + b",2]}}}",
        b" " * (MAX_REPORT_BYTES + 1),
    ],
)
def test_a_strange_report_is_none(data: bytes) -> None:
    assert decode_loads(data) == {}
