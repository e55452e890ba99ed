"""A stream's messages as columns: what a batch holds, when it is finished, and what ends or interrupts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.test_streams import Bench, position
from zkconsumer.brokers.columns import HEADERS, NAMES
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.queue.close()


def offsets(rows: Any) -> list[int]:
    """The column of offsets, of a batch or a table."""
    found: list[int] = rows.column("offset").to_pylist()
    return found


def nothing_comes(bench: Bench) -> bool:
    with pytest.raises(ConsumerTimeoutException):
        next(bench.stream.batches())
    return True


def test_a_batch_has_the_columns_of_sparks_source(bench: Bench) -> None:
    bench.put(position(3), 7, 2)
    batch = next(bench.stream.batches())
    assert batch.schema.names == list(NAMES)
    first = batch.to_pylist()[0]
    assert (first["topic"], first["partition"], first["offset"], first["key"], first["value"]) == (
        "t",
        3,
        7,
        b"k7",
        b"v7",
    )
    bench.put(position(4), 0, 1)
    batch = next(bench.stream.batches(headers=True))
    assert batch.schema.names == [*NAMES, HEADERS]
    assert batch.to_pylist()[0]["headers"] == [{"key": "h", "value": b"1"}]


def test_a_batch_is_finished_when_the_next_one_is_asked_for(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 3)
    bench.put(where, 3, 3)
    batches = bench.stream.batches()
    assert offsets(next(batches)) == [0, 1, 2]
    assert (where.held, where.finished(including_held=False), where.finished(including_held=True)) == (True, 0, 3)
    assert offsets(next(batches)) == [3, 4, 5]
    assert (where.held, where.finished(including_held=False), where.finished(including_held=True)) == (True, 3, 6)
    assert nothing_comes(bench)
    assert (where.held, where.finished(including_held=False)) == (False, 6)


def test_messages_and_batches_may_alternate(bench: Bench) -> None:
    where = position()
    for first in (0, 10, 20):
        bench.put(where, first, 10)
    batches, messages = bench.stream.batches(max_rows=4), iter(bench.stream)
    assert offsets(next(batches)) == [0, 1, 2, 3]
    assert [next(messages).offset for _ in range(2)] == [4, 5]
    assert where.finished(including_held=True) == 6
    assert offsets(next(batches)) == [6, 7, 8, 9]
    assert next(messages).offset == 10
    assert offsets(bench.stream.to_arrow(timeout=0)) == list(range(11, 30))
    assert (where.finished(including_held=False), where.finished(including_held=True)) == (11, 30)
    with pytest.raises(ConsumerTimeoutException):
        next(messages)
    assert (where.held, where.finished(including_held=False)) == (False, 30)


def test_closing_ends_the_batches(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 3)
    batches = bench.stream.batches()
    next(batches)
    bench.queue.close()
    assert list(batches) == []
    assert where.finished(including_held=False) == 3
    with pytest.raises(ConnectorClosedException):
        bench.stream.to_arrow(timeout=0)
