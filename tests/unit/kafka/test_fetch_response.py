"""The answer to a fetch is read as its schema writes it, and never trusted."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.scripted import response
from zkconsumer.data_plane.fetch_response import FetchResponse, PartitionResponse, ResponseReader, read
from zkconsumer.errors import BrokerError
from zkconsumer.kafka.broker_schemas import FETCH

INT64 = st.integers(-1, 2**62)
PARTITION = st.builds(
    PartitionResponse,
    topic=st.just(""),
    partition=st.integers(0, 2**31 - 1),
    error=st.integers(-1, 100),
    high_watermark=INT64,
    last_stable=INT64,
    read_replica=st.integers(-1, 2**31 - 1),
    log_start=INT64,
    aborted=st.lists(st.tuples(INT64, INT64), max_size=3).map(tuple),
    records=st.binary(max_size=50),
)
TOPICS = st.lists(st.tuples(st.text(max_size=8), st.lists(PARTITION, max_size=3)), max_size=3)
VERSIONS = range(FETCH.lowest, FETCH.highest + 1)


def parse(view: memoryview, version: int, who: str) -> FetchResponse:
    """Read a response that is in memory as a whole."""
    return read(ResponseReader.over(view), version, who)


def encoded(version: int, topics: list[tuple[str, list[PartitionResponse]]], *, null: bool = False) -> bytes:
    """As a broker of that version would write it; ``null`` for empty lists and records."""

    def partition(p: PartitionResponse) -> tuple[Any, ...]:
        aborted = (None if null and not p.aborted else list(p.aborted),)
        parts: list[Any] = [p.partition, p.error, p.high_watermark]
        parts += [p.last_stable] if version >= 4 else []
        parts += [p.log_start] if version >= 5 else []
        parts += aborted if version >= 4 else ()
        parts += [p.read_replica] if version >= 11 else []
        return (*parts, None if null and not p.records else p.records)

    head = [] if version < 1 else [250] if version < 7 else [250, 0, 99]
    return response(FETCH, version, *head, [(topic, [partition(p) for p in parts]) for topic, parts in topics])


def expected(version: int, topics: list[tuple[str, list[PartitionResponse]]]) -> FetchResponse:
    partitions = [
        p._replace(
            topic=topic,
            log_start=p.log_start if version >= 5 else -1,
            last_stable=p.last_stable if version >= 4 else -1,
            aborted=p.aborted if version >= 4 else (),
            read_replica=p.read_replica if version >= 11 else -1,
        )
        for topic, parts in topics
        for p in parts
    ]
    return FetchResponse(0.25 if version >= 1 else 0, partitions, 99 if version >= 7 else 0, 0)


@given(st.sampled_from(VERSIONS), TOPICS, st.booleans())
@settings(deadline=None)
def test_what_the_schema_writes_is_read_back(version: int, topics: list[Any], null: bool) -> None:
    assert parse(memoryview(encoded(version, topics, null=null)), version, "broker") == expected(version, topics)


SOME = [
    ("t", [PartitionResponse("", 1, 0, 9, 0, ((1, 2), (3, 4)), b"abc"), PartitionResponse("", 2, 3, -1, -1, (), b"")])
]


def arriving(data: bytes, buffer: int, size: int | None = None) -> ResponseReader:
    """``data`` as it comes from a connection, into a buffer of so many bytes; ``size`` is what its head says."""
    at = 0

    def receive(view: memoryview) -> None:
        nonlocal at
        if at + len(view) > len(data):
            raise ConnectionError
        view[:] = data[at : at + len(view)]
        at += len(view)

    return ResponseReader(bytearray(buffer), len(data) if size is None else size, receive)


@given(st.sampled_from(VERSIONS), TOPICS, st.integers(0, 300))
@settings(deadline=None)
def test_an_answer_is_read_the_same_through_a_buffer_of_any_size(version: int, topics: list[Any], buffer: int) -> None:
    assert read(arriving(encoded(version, topics), buffer), version, "broker") == expected(version, topics)


@given(st.sampled_from(VERSIONS), st.binary(max_size=200), st.integers(0, 100))
def test_any_bytes_through_a_small_buffer_are_no_other_error(version: int, data: bytes, buffer: int) -> None:
    try:
        whole: FetchResponse | None = parse(memoryview(data), version, "broker")
    except BrokerError:
        whole = None
    try:
        assert read(arriving(data, buffer), version, "broker") == whole
    except BrokerError:
        assert whole is None


def test_a_small_receive_buffer_is_enough_for_large_records() -> None:
    """Bug: an answer of 50 MB took 100, for it was received as a whole and then copied."""
    topics = [("t", [PartitionResponse("", n, 0, 9, 0, (), bytes(100_000)) for n in range(50)])]
    reader = arriving(encoded(11, topics), 1000)
    assert len(read(reader, 11, "broker").partitions) == 50
    assert len(reader.buffer) == 1000


def test_a_connection_that_ends_in_the_middle_says_so_itself() -> None:
    data = encoded(11, SOME)
    with pytest.raises(ConnectionError):
        read(arriving(data[:-1], 10, len(data)), 11, "broker")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_cut_off_anywhere_is_an_error(version: int) -> None:
    data = encoded(version, SOME)
    for cut in range(len(data)):
        with pytest.raises(BrokerError, match=f"broker 1: its answer to Fetch version {version} cannot be read"):
            parse(memoryview(data[:cut]), version, "broker 1")
    with pytest.raises(BrokerError, match="1 bytes too many"):
        parse(memoryview(data + b"x"), version, "broker 1")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("value", [b"\x80\0\0\0", b"\xff\xff\xff\xfe", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"])
def test_absurd_lengths_anywhere_are_no_other_error(version: int, value: bytes) -> None:
    data = encoded(version, SOME)
    for at in range(len(data) - 3):
        try:
            parse(memoryview(data[:at] + value + data[at + 4 :]), version, "broker 1")
        except BrokerError:
            pass


def test_records_are_copied_out_of_the_receive_buffer() -> None:
    """The next answer overwrites the buffer while the records wait in a queue."""
    buffer = bytearray(encoded(0, [("t", [PartitionResponse("", 1, 0, 9, 0, (), b"abc")])]))
    answer = parse(memoryview(buffer), 0, "broker")
    buffer[:] = bytes(len(buffer))
    assert answer.partitions[0].records == b"abc"
    assert type(answer.partitions[0].records) is bytes


def test_a_topic_name_that_is_no_text_is_an_error() -> None:
    data = struct.pack(">ih1si", 1, 1, b"\xff", 0)
    with pytest.raises(BrokerError, match="cannot be read"):
        parse(memoryview(data), 0, "broker")
