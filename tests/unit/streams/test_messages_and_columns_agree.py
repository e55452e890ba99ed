"""Messages and columns agree with a slow and plain reader of the same bytes, which shares no code with ours.

``tests/unit/kafka/reference.py`` is that reader. The bytes are generated here: all formats and codecs, compaction gaps,
markers and aborted transactions, nulls, headers, both kinds of timestamp. Fetches begin inside a compressed set, and
sets are cut off or corrupt.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka import reference
from tests.unit.kafka.column_ways import WAYS, choose
from tests.unit.kafka.sets import BATCHES, CODECS, WHERE, WRITTEN, Batch, MessageSet, Written, resealed
from tests.unit.streams.read_ways import (
    Sent,
    bare,
    by_batches,
    by_both,
    by_messages,
    stream_of,
)
from zkconsumer.kafka.fetched_batches import extent

ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


@st.composite
def transactional(draw: st.DrawFn) -> tuple[list[Batch], tuple[tuple[int, int], ...]]:
    """Batches of two producers in transactions, and of others, and which transactions were aborted."""
    batches: list[Batch] = []
    aborted: list[tuple[int, int]] = []
    began: dict[int, int] = {}
    offset = 0
    for _ in range(draw(st.integers(1, 8))):
        producer = draw(st.sampled_from([1, 2, 3]))
        if producer in began and draw(st.booleans()):
            kind = draw(st.sampled_from([ABORT, COMMIT]))
            made = Batch([Written(key=kind, value=b"\0" * 6)], control=True, transactional=True, producer_id=producer)
            if kind == ABORT:
                aborted.append((producer, began[producer]))
            del began[producer]
        else:
            made = Batch(
                draw(st.lists(WRITTEN, min_size=1, max_size=3)),
                codec=draw(st.sampled_from(CODECS[2])),
                transactional=producer < 3,
                producer_id=producer,
                trailing=draw(st.sampled_from([0, 0, 2])),
            )
            if producer < 3:
                began.setdefault(producer, offset)
        batches.append(made)
        offset = made.encode(offset)[1]
    return batches, tuple(draw(st.permutations(aborted)))


@st.composite
def sent_sets(draw: st.DrawFn) -> Sent:
    if draw(st.booleans()):
        batches, aborted = draw(transactional())
        what = MessageSet(batches)
    else:
        batches, aborted = draw(st.lists(BATCHES, min_size=1, max_size=4)), ()
        what = MessageSet(batches, base=draw(st.integers(0, 2**40)))
    fetch_offset = draw(st.integers(what.base, what.next_offset - 1))
    cut = draw(st.sampled_from([0, 0, 1, 30, 100]))
    data = what.data[: len(what.data) - cut]
    reached = extent(data, WHERE, fetch_offset).next_offset
    if reached is None:  # not even one batch is whole: a fetcher asks for more before anybody sees it
        return Sent(what.data, fetch_offset, what.next_offset, aborted)
    return Sent(data, fetch_offset, reached, aborted)


LIMITS = st.fixed_dictionaries(
    {}, optional={"max_rows": st.integers(1, 7), "max_bytes": st.sampled_from([1, 20, 100, 400, 10_000])}
)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    choose(request.param, monkeypatch)
    return str(request.param)


@given(sent_sets(), LIMITS, st.lists(st.sampled_from([0, 0, 1, 2, 5, 6, 50]), max_size=20))
@settings(max_examples=100)
def test_messages_and_columns_equal_the_slow_reader(sent: Sent, limits: dict[str, Any], turns: list[int]) -> None:
    right = reference.without_aborted(sent.data, sent.aborted, sent.fetch_offset)
    assert by_messages(sent) == (right, "", sent.next_offset)
    assert by_batches(sent, {**limits, "headers": True}) == (right, "", sent.next_offset)
    assert by_batches(sent, limits) == (bare(right), "", sent.next_offset)
    assert by_both(sent, turns) == (right, "", sent.next_offset)


@pytest.mark.parametrize("check_crc", [True, False], ids=["check.crcs", "no check"])
@given(sent=sent_sets(), limits=LIMITS, data=st.data())
@settings(max_examples=60)
def test_corrupt_bytes_are_told_alike(check_crc: bool, sent: Sent, limits: dict[str, Any], data: st.DataObject) -> None:
    """With checksums messages and columns are the same, the error with its place too. Without checksums corrupt bytes
    may give any messages, but messages and columns agree, or a way reports the corruption. Offsets have no checksum.
    If offsets do not ascend, a reader that changes between the ways may see messages twice, or again and again.
    """
    spoiled = bytearray(sent.data)
    at = data.draw(st.integers(0, len(spoiled) - 1))
    spoiled[at] ^= data.draw(st.integers(1, 255))
    what = sent._replace(data=bytes(spoiled))
    messages = by_messages(what, check_crc)
    rows = by_batches(what, {**limits, "headers": True}, check_crc)
    without = by_batches(what, limits, check_crc)
    offsets = [record.offset for record in messages[0]]
    orderly = offsets == sorted(set(offsets)) and all(offset < sent.next_offset for offset in offsets)
    turns = data.draw(st.lists(st.sampled_from([0, 2, 6]), max_size=9))
    both = by_both(what, turns, check_crc) if orderly else messages
    if check_crc or not (messages[1] or rows[1] or both[1] or without[1]):
        assert rows == messages
        assert both == messages
        assert without == (bare(messages[0]), *messages[1:])


@pytest.mark.parametrize(
    ("at", "byte"),
    [(-1, 0x40), (-1, 1), (-2, 0x10), (-2, 1), (-2, 2), (4, 0x40), (4, 0), (4, 3)],
    ids=[
        "a long name",
        "a name below none",
        "more",
        "fewer than none",
        "one less",
        "a long value",
        "none",
        "below null",
    ],
)
def test_overlong_headers_are_corrupt_without_their_column_too(at: int, byte: int, way: str) -> None:
    """Bug: with a right checksum such a record came as a row without headers, and as an error with headers or as a
    message.
    """
    headed = Written(value=b"b", headers=[("name", b"x"), ("another", b"y")])
    what = MessageSet([Batch([Written(value=b"a"), headed, Written(value=b"c")])])
    data = bytearray(what.data)
    data[data.index(b"name", 61) + at] = byte
    sent = Sent(resealed(bytes(data)), 0, what.next_offset)
    messages = by_messages(sent)
    assert [record.value for record in messages[0]] == [b"a"]
    assert by_batches(sent, {"headers": True}) == messages
    assert by_batches(sent, {}) == (bare(messages[0]), *messages[1:])


@pytest.mark.parametrize("count", [0, 1, 2, 70, 99, 100, 300])
def test_any_number_of_headers_is_passed(count: int, way: str) -> None:
    headers = [("name" * (n % 40), None if n % 3 else b"v" * n) for n in range(count)]
    what = MessageSet([Batch([Written(), Written(headers=headers), Written(headers=headers[:1]), Written()])])
    sent = Sent(what.data, 0, what.next_offset)
    assert by_batches(sent, {}) == (bare(reference.read(what.data, 0)), "", what.next_offset)
    assert by_batches(sent, {"headers": True}) == (reference.read(what.data, 0), "", what.next_offset)


@pytest.mark.parametrize("codec", [0, 1])
def test_a_message_of_format_0_has_neither_timestamp_nor_kind(codec: int) -> None:
    what = MessageSet([Batch(magic=0, codec=codec)])
    message = stream_of(Sent(what.data, 0, what.next_offset))[0].get(timeout=0)
    assert (message.timestamp, message.timestamp_type) == (-1, -1)


LOOKALIKES = [b"", b"\0" * 40, b"\0\x0c\0" * 9, b"\0\x8a\x01\0" * 7, bytes(range(256))[::-3] * 3, b"text " * 30]


@pytest.mark.parametrize("headers", [0, 3])
@pytest.mark.parametrize("value", LOOKALIKES)
def test_values_that_look_like_beginnings_of_records(value: bytes, headers: int, way: str) -> None:
    """Where records begin is guessed from the bytes; values that look like it must not lead astray."""
    records = [
        Written(key=value[: n % 5], value=value[n % 7 :], headers=[("h", value)] * (headers if n % 3 else 0))
        for n in range(70)
    ]
    long = [Written(value=value), Written(value=b"text" * 5000), Written(value=value)]
    what = MessageSet([Batch(records), Batch([*long, *records[:20]], codec=4), Batch(records)])
    sent = Sent(what.data, 17, what.next_offset)
    assert by_batches(sent, {}) == (bare(reference.read(what.data, 17)), "", what.next_offset)
