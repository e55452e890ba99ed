"""Keys and values through decoders, and what a decoder that fails may not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.streams import new_stream
from tests.unit.kafka.sets import Batch, Written
from tests.unit.streams.bench import Bench, position
from zkconsumer import DecodeError, IntDecoder, KafkaStream, LongDecoder, MessageAndMetadata, StringDecoder
from zkconsumer.streams.message import message_class


class Decoded(Bench):
    """A stream with decoders."""

    def __init__(self, key: Callable[[bytes], Any] | None, value: Callable[[bytes], Any] | None) -> None:
        super().__init__()
        self.stream: KafkaStream[Any, Any] = new_stream(
            "t/g_c-0", self.queue, self.lease, timeout=0.0, message_class=message_class(key, value)
        )


@pytest.fixture
def decoded() -> Iterator[Callable[..., Decoded]]:
    made: list[Decoded] = []

    def make(key: Callable[[bytes], Any] | None = None, value: Callable[[bytes], Any] | None = None) -> Decoded:
        made.append(Decoded(key, value))
        return made[-1]

    yield make
    for one in made:
        one.queue.close()


def test_keys_and_values_are_decoded(decoded: Callable[..., Decoded]) -> None:
    bench = decoded(StringDecoder(), len)
    bench.put(position(), 0, 1)
    message = bench.stream.get(timeout=0)
    assert (message.key, message.value) == ("k0", 2)
    assert isinstance(message, MessageAndMetadata)
    assert "k0" in repr(message)


def test_decoding_waits_until_it_is_asked_for(decoded: Callable[..., Decoded]) -> None:
    """KAFKA-1140: decoding ahead raised out of the iterator for a message that nobody had asked for."""
    calls: list[bytes] = []
    bench = decoded(None, lambda data: calls.append(data) or data)
    bench.put(position(), 0, 2)
    first, second = bench.stream.get(timeout=0), bench.stream.get(timeout=0)
    assert calls == []
    assert second.value == b"v1"
    assert first.value == b"v0"
    assert calls == [b"v1", b"v0"]


class _Odd(Exception):
    pass


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), _Odd("odd")])
def test_a_failing_decoder_names_the_position(decoded: Callable[..., Decoded], error: Exception) -> None:
    """The stream goes on."""

    def fail(data: bytes) -> str:
        if data == b"v1":
            raise error
        return data.decode()

    bench, where = decoded(None, fail), position()
    bench.put(where, 0, 3)
    good, bad = [], []
    for message in [bench.stream.get(timeout=0) for _ in range(3)]:
        try:
            good.append(message.value)
        except DecodeError as e:
            bad.append(e)
            assert repr(message)
    assert good == ["v0", "v2"]
    (failure,) = bad
    assert (failure.where, failure.offset, failure.field) == (("t", 0), 1, "value")
    assert "t-0 at offset 1: the value cannot be decoded" in str(failure)
    assert failure.__cause__ is error
    assert where.finished(including_held=True) == 3, "finished like any other"


def test_a_missing_key_and_a_tombstone_stay_none(decoded: Callable[..., Decoded]) -> None:
    bench, where = decoded(StringDecoder(), IntDecoder()), position()
    data, _ = Batch([Written(key=None, value=None)]).encode(0)
    bench.queue.deliver(where, data, (0, 1), ())
    message = bench.stream.get(timeout=0)
    assert (message.key, message.value) == (None, None)


@pytest.mark.parametrize(
    ("decoder", "data", "value"),
    [
        (StringDecoder(), "grüß".encode(), "grüß"),
        (StringDecoder("latin-1"), b"\xfc", "ü"),
        (StringDecoder("utf-8", "replace"), b"\xff", "\ufffd"),
        (IntDecoder(), b"\xff\xff\xff\xfe", -2),
        (IntDecoder(), b"\x00\x00\x01\x00", 256),
        (LongDecoder(), b"\x7f" + b"\xff" * 7, 2**63 - 1),
        (LongDecoder(), b"\x80" + b"\x00" * 7, -(2**63)),
    ],
)
def test_the_original_s_decoders(decoder: Callable[[bytes], Any], data: bytes, value: Any) -> None:
    assert decoder(data) == value


@pytest.mark.parametrize(
    ("decoder", "data"), [(StringDecoder(), b"\xff"), (IntDecoder(), b"\x00" * 8), (LongDecoder(), b"")]
)
def test_what_they_cannot_decode_is_an_error(decoder: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoder(data)


def test_an_unknown_encoding_is_refused_at_once() -> None:
    with pytest.raises(LookupError):
        StringDecoder("utf-9")
