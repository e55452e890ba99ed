"""Decompression keeps to its limit, whatever the data say."""

from __future__ import annotations

import struct
from collections.abc import Callable

import cramjam  # type: ignore[import-untyped,unused-ignore]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kafka.record_writer import GZIP, LZ4, SNAPPY, ZSTD, gzip_encode, lz4_encode, snappy_encode, zstd_encode
from zkconsumer.kafka import compression
from zkconsumer.kafka.compression import decompress

LIMIT = 1 << 20


def streamed(module: object, data: bytes, piece: int = 100_000) -> bytes:
    """A frame that does not say how large its content is, as Java's streams write it."""
    compressor = module.Compressor()  # type: ignore[attr-defined]
    for at in range(0, len(data), piece):
        compressor.compress(data[at : at + piece])
    return bytes(compressor.finish())


WRITERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, gzip_encode),
    "gzip of two members": (GZIP, lambda data: gzip_encode(data[:9]) + gzip_encode(data[9:])),
    "snappy, framed": (SNAPPY, snappy_encode),
    "snappy, raw": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4": (LZ4, lz4_encode),
    "lz4 of unknown size": (LZ4, lambda data: streamed(cramjam.lz4, data)),
    "zstd": (ZSTD, zstd_encode),
    "zstd of unknown size": (ZSTD, lambda data: streamed(cramjam.zstd, data)),
}
CONTENTS = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 30_000)).map(lambda part: part[0] * part[1]),
).filter(lambda content: len(content) <= LIMIT)


@pytest.mark.parametrize("writer", WRITERS)
@given(CONTENTS, st.sampled_from([b"", b"h" * 61]), st.sampled_from([0, 1, 300_000]))
def test_content_up_to_the_limit_comes_behind_the_head(writer: str, content: bytes, head: bytes, room: int) -> None:
    codec, write = WRITERS[writer]
    found = decompress(codec, memoryview(write(content)), 2, len(content) + room, head)
    assert bytes(found) == head + content
    assert not found.readonly


@pytest.mark.parametrize("writer", WRITERS)
@given(CONTENTS, st.integers(1, 2**20))
def test_content_beyond_the_limit_is_refused(writer: str, content: bytes, less: int) -> None:
    codec, write = WRITERS[writer]
    limit = max(0, len(content) - less)
    with pytest.raises(ValueError, match=rf"into the {limit} bytes that batch\.expanded\.max\.bytes allows"):
        decompress(codec, write(content), 2, limit)


@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD, 5]), st.sampled_from([0, 1, 2]), st.binary(max_size=100))
def test_any_bytes_at_all_are_no_other_error(codec: int, magic: int, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"decompress|codec"):
        raise ValueError(f"decompressed {len(decompress(codec, data, magic, LIMIT))} bytes")


@pytest.mark.parametrize("writer", WRITERS)
@given(st.data())
def test_spoiled_data_are_no_other_error_and_no_more(writer: str, data: st.DataObject) -> None:
    codec, write = WRITERS[writer]
    spoiled = bytearray(write(b"some content, and some more of it " * 20))
    for _ in range(data.draw(st.integers(1, 3))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, spoiled, 2, LIMIT)) <= LIMIT
    except ValueError:
        pass


@pytest.mark.parametrize("size", [0, -1, 1000, 2**31 - 1, -(2**31)])
def test_a_snappy_block_of_a_wrong_size_is_refused(size: int) -> None:
    data = bytearray(snappy_encode(b"content"))
    struct.pack_into(">i", data, 16, size)
    with pytest.raises(ValueError, match="cannot be decompressed"):
        decompress(SNAPPY, data, 2, LIMIT)


@pytest.mark.parametrize("writer", WRITERS)
def test_usual_data_are_decompressed_once(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess that is too small would have the content decompressed twice."""
    codec, write = WRITERS[writer]
    if codec == SNAPPY or "members" in writer:
        return
    module = compression.CODECS[codec]
    calls = []

    class Counting:
        @staticmethod
        def decompress_into(*arguments: object) -> int:
            calls.append(arguments)
            return int(module.decompress_into(*arguments))

    monkeypatch.setitem(compression.CODECS, codec, Counting)
    content = b"".join(b"customer-%d bought %d of article %d; " % (n, n % 7, n * n % 1009) for n in range(20_000))
    for size in (200, 5000, 100_000, len(content)):
        calls.clear()
        assert bytes(decompress(codec, write(content[:size]), 2, compression.DEFAULT_LIMIT)) == content[:size]
        assert len(calls) == 1


@pytest.mark.parametrize("writer", WRITERS)
def test_a_signal_handler_may_decompress_as_well(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: it used the same memory of the thread, and the interrupted batch had its content."""
    codec, write = WRITERS[writer]
    module, name = (
        (cramjam.snappy, "decompress_raw_into") if codec == SNAPPY else (compression.CODECS[codec], "decompress_into")
    )
    real = getattr(module, name)

    def interrupted(data: memoryview, room: memoryview) -> int:
        size = int(real(data, room))
        monkeypatch.undo()
        assert bytes(decompress(codec, write(b"other" * 100), 2, LIMIT)) == b"other" * 100
        return size

    monkeypatch.setattr(module, name, interrupted)
    assert bytes(decompress(codec, write(b"own" * 100), 2, LIMIT)) == b"own" * 100
