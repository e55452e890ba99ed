"""Parts of aiokafka beyond its public API on which zkconsumer.kafka relies.

Fails when the pinned version is raised and something of it is gone or means something else.
"""

from __future__ import annotations

from importlib.metadata import version
from itertools import chain, islice

import pytest
from aiokafka import codec
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch, DefaultRecordBatchBuilder


def _batch(count: int = 3, control: bool = False) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 1, 7, 1, 0, 1 << 20)
    for n in range(count):
        builder.append(n, 1000 + n, b"k%d" % n, None if n == 1 else b"v%d" % n, [("h", b"x"), ("n", None)])
    data = bytearray(builder.build())
    data[22] |= 0x20 * control
    return bytes(data)


def test_the_library_is_the_pinned_one() -> None:
    assert version("aiokafka") == "0.14.0"


def test_a_batch_is_read_from_a_slice_without_copying() -> None:
    data = _batch()
    batch = DefaultRecordBatch(memoryview(b"before" + data + b"after")[6:-5])
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers) for r in batch] == [
        (n, 1000 + n, 0, b"k%d" % n, None if n == 1 else b"v%d" % n, [("h", b"x"), ("n", None)]) for n in range(3)
    ]
    broken = bytearray(data)
    broken[-1] ^= 1
    assert not DefaultRecordBatch(memoryview(broken)).validate_crc()


def test_a_batch_can_be_read_in_slabs() -> None:
    """The batch is its own iterator but refuses a second iter(), which islice would do each time."""
    records = chain(DefaultRecordBatch(memoryview(_batch(5))))
    slabs = []
    while slab := list(islice(records, 2)):
        slabs.append([record.offset for record in slab])
    assert slabs == [[0, 1], [2, 3], [4]]


def test_extending_a_list_keeps_what_came_before_an_error() -> None:
    """Python does not promise it; the reader hands out the good records before a corrupt one thanks to it."""
    data = bytearray(_batch(5))
    data[data.index(b"k3") - 1] = 0x7E
    found: list[DefaultRecord] = []
    with pytest.raises(Exception, match=r"\S"):
        found.extend(islice(chain(DefaultRecordBatch(memoryview(data))), 256))
    assert [record.offset for record in found] == [0, 1, 2]


def test_a_record_can_be_made() -> None:
    record = DefaultRecord(5, -1, -1, None, b"v", [])
    assert (record.offset, record.timestamp, record.timestamp_type) == (5, -1, -1)
    assert (record.key, record.value, record.headers) == (None, b"v", [])


def test_the_codecs_are_there() -> None:
    assert codec.has_gzip()
    assert codec.has_snappy()
    assert codec.has_lz4()
    assert codec.has_zstd()
    for name in ("gzip", "snappy", "lz4"):
        packed = getattr(codec, f"{name}_encode")(b"content" * 10)
        assert getattr(codec, f"{name}_decode")(packed) == b"content" * 10
