"""``take``: lists of messages, in hand until the stream is asked again."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from tests.streams import new_stream
from tests.unit.streams.bench import Bench, position, record_batch
from zkconsumer.errors import InvalidMessageException
from zkconsumer.streams import arrow_api
from zkconsumer.streams.message import message_class


def offsets(messages: list[Any]) -> list[int]:
    return [message.offset for message in messages]


def test_a_list_crosses_chunks_and_partitions(bench: Bench) -> None:
    first, second = position(0), position(1)
    bench.put(first, 0, 3)
    bench.put(second, 0, 3)
    taken = bench.stream.take(5, timeout=0)

    assert [(message.partition, message.offset) for message in taken] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert (taken[0].key, taken[0].value, taken[0].headers) == (b"k0", b"v0", [("h", b"1")])
    assert offsets(bench.stream.take(5, timeout=0)) == [2]


def test_all_of_a_list_are_in_hand_until_the_next_read(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 5)
    bench.stream.take(3, timeout=0)

    assert (where.held, where.finished(including_held=False), where.finished(including_held=True)) == (True, 0, 3)
    assert bench.stream.get(timeout=0).offset == 3
    assert where.finished(including_held=False) == 3


def test_messages_of_a_list_have_decoders(bench: Bench) -> None:
    kind = message_class(bytes.decode, lambda data: int(data[1:]))
    stream = new_stream("t/g_c-0", bench.queue, bench.lease, message_class=kind)
    bench.put(position(), 0, 2)

    assert [(message.key, message.value) for message in stream.take(2)] == [("k0", 0), ("k1", 1)]


def test_a_list_ends_before_an_unreadable_place(bench: Bench) -> None:
    where = position()
    good, bad = record_batch(0, 2), bytearray(record_batch(2, 2))
    bad[-3] ^= 255
    bench.queue.deliver(where, good + bytes(bad), (0, 4), ())
    stream = bench.stream

    assert offsets(stream.take(10, timeout=0)) == [0, 1]
    with pytest.raises(InvalidMessageException):
        stream.take(10, timeout=0)
    assert where.finished(including_held=False) == 2
    assert stream.skip() == 4


def test_a_revocation_leaves_a_list_in_hand(bench: Bench) -> None:
    """The rows of a partition that leaves are finished by the next read, or left to the next owner."""
    where = position()
    bench.put(where, 0, 4)
    bench.stream.take(2, timeout=0)
    bench.queue.revoke([where])

    assert where.held
    assert bench.stream.take(2, timeout=0) == []
    assert (where.held, where.finished(including_held=False)) == (False, 2)


def test_a_list_that_was_not_returned_comes_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    where = position()
    bench.put(where, 0, 4)
    with monkeypatch.context() as patched:
        patched.setattr(arrow_api, "one_list", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bench.stream.take(2, timeout=0)

    assert not where.held
    assert offsets(bench.stream.take(2, timeout=0)) == [0, 1]
