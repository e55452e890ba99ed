"""The begins of records: the vectors agree with a reader of single records."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kafka.record_writer import NewRecord, batch_bytes
from zkconsumer.kafka.numpy_columns import Span, boundaries
from zkconsumer.kafka.record_batch import StrangeBytesError

CONTENT = 61
FILLERS = {
    "any bytes": random.Random(7).randbytes(100_000),
    "text": bytes(97 + n % 26 for n in range(100_000)),
    "zeros": bytes(100_000),
    "like heads": bytes([0, 40, 0, 0]) * 25_000,
}


def written(sizes: list[int], filler: str, seed: int, first: int, step: int) -> bytes:
    records = []
    chance = random.Random(seed)
    for n, size in enumerate(sizes):
        at = chance.randrange(100_000 - size)
        key = None if seed % 2 else bytes(n % 3)
        headers = [(str(n), b"h")] * (seed % 3 == 2)
        records.append(NewRecord(n, 10**12 + n * step, key, FILLERS[filler][at : at + size], headers))
    return batch_bytes(records, base=first)


def one_by_one(data: bytes, spans: list[Span]) -> list[tuple[int, int]]:
    found = []
    for at, _, count in spans:
        for _ in range(count):
            size = shift = 0
            while True:
                byte = data[at]
                at += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            found.append((at, at + (size >> 1)))
            at += size >> 1
    return found


SIZES = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 300), st.integers(1, 200)).map(lambda run: [run[0]] * run[1]),
        st.tuples(st.integers(0, 10**6), st.integers(1, 200)).map(
            lambda some: random.Random(some[0]).choices(range(20, 300), k=some[1])
        ),
        st.sampled_from([[0], [9000] * 3, [64, 20_000], [200] * 50 + [264] * 50]),
    ),
    min_size=1,
    max_size=4,
).map(lambda parts: [size for part in parts for size in part])


@settings(max_examples=100)
@given(st.lists(st.tuples(SIZES, st.sampled_from(sorted(FILLERS))), min_size=1, max_size=4), st.integers(0, 9))
def test_it_is_the_chain_of_lengths_and_nobody_need_look_again(batches: list[tuple[list[int], str]], seed: int) -> None:
    data, spans = b"", list[Span]()
    for number, (sizes, filler) in enumerate(batches):
        batch = written(sizes, filler, seed + number, 10**6 * number, 1 + 40 * (seed % 4))
        spans.append((len(data) + CONTENT, len(data) + len(batch), len(sizes)))
        data += batch
    starts, ends = boundaries(data, spans)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == one_by_one(data, spans)


@given(SIZES, st.sampled_from(sorted(FILLERS)), st.integers(0, 9), st.sampled_from([-40, -2, -1, 1, 2]))
def test_another_number_of_records_than_said_is_strange(sizes: list[int], filler: str, seed: int, more: int) -> None:
    data = written(sizes, filler, seed, 0, 1)
    with pytest.raises(StrangeBytesError):
        boundaries(data, [(CONTENT, len(data), len(sizes) + more)])


@given(SIZES, st.sampled_from(sorted(FILLERS)), st.integers(0, 9), st.data())
def test_spoiled_bytes_are_strange_or_the_chain_that_they_say(
    sizes: list[int], filler: str, seed: int, data: st.DataObject
) -> None:
    spoiled = bytearray(written(sizes, filler, seed, 0, 1))
    spoiled[data.draw(st.integers(CONTENT, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    spans = [(CONTENT, len(spoiled), len(sizes))]
    try:
        starts, ends = boundaries(bytes(spoiled), spans)
    except StrangeBytesError:
        return
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == one_by_one(bytes(spoiled), spans)


def test_bytes_that_lead_past_a_batch_hide_nothing_of_it() -> None:
    def record(value: bytes) -> bytes:
        content = bytes([0, 0, 0, 1, 2 * len(value)]) + value + b"\0"
        return bytes([2 * len(content)]) + content

    following = [record(b"a" * 10), record(b"b" * 11), record(b"c" * 12)]
    # in the value of the last record before them: a 0, what looks like a length, and a 0
    rest = b"x" * 5
    leads_over = 1 + len(rest) + 1 + len(following[0])
    before = record(b"y\0" + bytes([2 * leads_over]) + b"\0" + rest)
    data = before + b"".join(following)
    spans = [(0, len(before), 1), (len(before), len(data), 3)]
    assert data[data.index(b"y\0") + 2 :][1 + leads_over :].startswith(following[1])
    starts, ends = boundaries(data, spans)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == one_by_one(data, spans)
