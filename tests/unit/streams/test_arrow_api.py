"""A stream's messages as columns: the content of batches, finished batches, ends and interrupts."""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Thread, get_native_id
from typing import Any
from unittest.mock import Mock

import pytest

from tests.streams import new_stream
from tests.timing import eventually, scaled
from tests.unit.kafka.sets import Batch, Written
from tests.unit.streams.bench import Bench, position, record_batch
from zkconsumer import KafkaStream
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, MissingExtraError, ZkConsumerError
from zkconsumer.kafka.arrow_columns import HEADERS, NAMES
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams import arrow_api, chunk_batches, column_reader
from zkconsumer.streams.chunk_reader import ChunkReader
from zkconsumer.streams.message import message_class
from zkconsumer.streams.stream_queue import StreamQueue


def offsets(rows: Any) -> list[int]:
    """The column of offsets, of a batch or a table."""
    found: list[int] = rows.column("offset").to_pylist()
    return found


def nothing_comes(bench: Bench) -> bool:
    with pytest.raises(ConsumerTimeoutException):
        next(bench.stream.batches())
    return True


def test_a_batch_has_the_columns_of_sparks_source(bench: Bench) -> None:
    bench.put(position(3, 7), 7, 2)
    batch = next(bench.stream.batches())
    assert batch.schema.names == list(NAMES)
    first = batch.to_pylist()[0]
    assert [first[name] for name in ("topic", "partition", "offset", "key", "value")] == ["t", 3, 7, b"k7", b"v7"]
    bench.put(position(4), 0, 1)
    batch = next(bench.stream.batches(headers=True))
    assert batch.schema.names == [*NAMES, HEADERS]
    assert batch.to_pylist()[0]["headers"] == [{"key": "h", "value": b"1"}]


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


# ---- limits


def test_a_batch_is_at_most_as_large_as_asked_for(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 10)
    batches = bench.stream.batches(max_rows=4)
    assert [offsets(next(batches)) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    data, end = Batch([Written(value=b"x" * size) for size in (10, 10, 90, 10, 10, 10, 10)]).encode(10)
    bench.queue.deliver(where, data, (10, end), ())
    batches = bench.stream.batches(max_bytes=30)
    assert [offsets(next(batches)) for _ in range(4)] == [[10, 11], [12], [13, 14, 15], [16]]
    assert nothing_comes(bench)
    assert where.finished(including_held=False) == end


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3"])
@pytest.mark.parametrize(("ask", "name"), [("batches", "max_rows"), ("batches", "max_bytes"), ("take", "max_messages")])
def test_a_limit_that_is_none_is_refused(bench: Bench, ask: str, name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 on"):
        getattr(bench.stream, ask)(**{name: wrong})


@pytest.mark.parametrize("timeout", ["never", True, b"1"])
def test_a_timeout_that_is_no_number_is_refused_at_once(bench: Bench, timeout: Any) -> None:
    for ask in (bench.stream.batches, bench.stream.to_arrow):
        with pytest.raises(ValueError, match=f"timeout must be a number of seconds, or None, not {timeout!r}"):
            ask(timeout=timeout)


def test_decoders_and_columns_exclude_each_other(bench: Bench) -> None:
    lease = bench.lease
    stream: KafkaStream[str, str] = new_stream(
        "s", StreamQueue(1, lambda: None), lease, timeout=0, message_class=message_class(str, None)
    )
    for ask in (stream.batches, lambda: stream.to_arrow(timeout=0)):
        with pytest.raises(ValueError, match="created with decoders"):
            ask()


def test_without_pyarrow_the_extra_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'zkconsumer\[arrow\]'"):
        bench.stream.batches()


# ---- tables


def test_a_table_ends_at_the_number_and_the_rest_comes_later(bench: Bench) -> None:
    one, other = position(0), position(1)
    bench.put(one, 0, 3)
    bench.put(other, 0, 3)
    bench.put(one, 3, 3)
    table = bench.stream.to_arrow(max_messages=7)
    assert list(zip(table.column("partition").to_pylist(), offsets(table), strict=True)) == [
        *((0, n) for n in range(3)),
        *((1, n) for n in range(3)),
        (0, 3),
    ]
    assert (one.finished(including_held=False), one.finished(including_held=True)) == (0, 4)
    assert (other.finished(including_held=False), other.finished(including_held=True)) == (0, 3)
    assert bench.stream.get(timeout=0).offset == 4
    assert (one.finished(including_held=False), other.finished(including_held=False)) == (4, 3)
    assert not other.held


def test_a_table_without_rows_has_a_chunk_a_column_for_spark(bench: Bench) -> None:
    table = bench.stream.to_arrow(timeout=0, headers=True)
    assert (table.num_rows, table.schema.names) == (0, [*NAMES, HEADERS])
    assert {column.num_chunks for column in table.columns} == {1}


def test_a_table_ends_although_messages_never_do(bench: Bench) -> None:
    """Otherwise messages that come faster than they are read would let the timeout never pass."""
    where, next_offset = position(), 0

    def more() -> None:
        nonlocal next_offset
        bench.put(where, next_offset, 2)
        next_offset += 2

    bench.on_room = more
    bench.put(where, 0, 2)
    next_offset = 2
    bench.put(where, 2, 2)
    next_offset = 4
    table = bench.stream.to_arrow(timeout=0)
    assert offsets(table) == list(range(table.num_rows))
    assert 4 <= table.num_rows < 20


def test_a_table_ends_before_a_jump(bench: Bench) -> None:
    where = position(start=100)
    bench.put(where, 100, 2)
    bench.queue.jump(where, 7)
    bench.put(where, 7, 1)
    assert offsets(bench.stream.to_arrow(timeout=0)) == [100, 101]
    assert where.finished(including_held=True) == 102
    assert offsets(bench.stream.to_arrow(timeout=0)) == [7]
    assert (where.finished(including_held=False), where.finished(including_held=True)) == (7, 8)


# ---- revocation, pause, lease


def test_nothing_is_waited_for_while_a_table_is_collected() -> None:
    """A revocation does not wait for rows that are not handed out yet. The rows leave with their partition."""
    bench = Bench(timeout=None)
    gone, stays = position(0), position(1)
    bench.put(gone, 0, 3)
    bench.put(stays, 0, 2)
    made: list[Any] = []
    reader = Thread(
        target=lambda: made.append(bench.stream.to_arrow(max_messages=7, timeout=scaled(20))), name="reader"
    )
    reader.start()
    eventually(lambda: len(bench.queue) == 0 and bench.queue.taken is None, 5, "both are read")
    bench.queue.revoke([gone])
    assert bench.queue.wait_not_held([gone], Deadline(0.0)), "nothing of it is held"
    bench.put(stays, 2, 2)
    reader.join(scaled(5))
    (table,) = made
    assert table.column("partition").to_pylist() == [1] * 4
    assert offsets(table) == [0, 1, 2, 3]
    assert gone.finished(including_held=True) == 0
    assert stays.finished(including_held=True) == 4


def test_rows_of_a_paused_partition_come_later_in_order() -> None:
    bench = Bench(timeout=None)
    where, other = position(0), position(1)
    bench.put(where, 0, 2)
    bench.put(where, 2, 2)
    made: list[Any] = []
    reader = Thread(
        target=lambda: made.append(bench.stream.to_arrow(max_messages=5, timeout=scaled(20))), name="reader"
    )
    reader.start()
    eventually(lambda: len(bench.queue) == 0 and bench.queue.taken is None, 5, "both are read")
    bench.queue.pause(where)
    bench.put(where, 4, 1)
    bench.put(other, 0, 1)
    reader.join(scaled(5))
    assert [(row["partition"], row["offset"]) for row in made[0].to_pylist()] == [(1, 0)]
    bench.queue.resume(where)
    assert offsets(bench.stream.to_arrow(timeout=0)) == [0, 1, 2, 3, 4]


def test_no_batch_is_handed_out_without_a_lease(bench: Bench) -> None:
    where = position()
    bench.put(where, 0, 4)
    batches = bench.stream.batches(max_rows=2)
    next(batches)
    bench.lease.suspend()
    for _ in range(2):
        with pytest.raises(ConsumerTimeoutException, match="ZooKeeper or the group's coordinator is away"):
            next(batches)
        assert bench.stream.to_arrow(timeout=0).num_rows == 0
        assert (where.held, where.finished(including_held=True)) == (False, 2)
    got: list[Any] = []
    reader = Thread(target=lambda: got.append(next(bench.stream.batches(timeout=scaled(10)))), name="reader")
    reader.start()
    bench.lease.resume(bench.lease.epoch)
    reader.join(scaled(5))
    assert offsets(got[0]) == [2, 3]


@pytest.mark.parametrize("ask", ["batch", "table"])
@pytest.mark.parametrize("event", ["the lease ends", "revoked", "paused", "closed"])
def test_changes_while_rows_are_made_count_before_the_hand_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ask: str, event: str
) -> None:
    where = position()
    bench.put(where, 0, 4)
    happens = {
        "the lease ends": bench.lease.suspend,
        "revoked": lambda: bench.queue.revoke([where]),
        "paused": lambda: bench.queue.pause(where),
        "closed": bench.queue.close,
    }[event]
    made = chunk_batches.ChunkDecoder.next_part

    def part(self: Any, limits: Any) -> Any:
        found = made(self, limits)
        happens()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(chunk_batches.ChunkDecoder, "next_part", part)
        if ask == "batch":
            with pytest.raises(StopIteration if event == "closed" else ConsumerTimeoutException):
                next(bench.stream.batches())
        elif event == "closed":
            with pytest.raises(ConnectorClosedException):
                bench.stream.to_arrow(timeout=0)
        else:
            assert bench.stream.to_arrow(timeout=0).num_rows == 0
    assert (where.held, where.finished(including_held=True)) == (False, 0)
    if event in ("the lease ends", "paused"):
        bench.lease.resume(bench.lease.epoch)
        bench.queue.resume(where)
        assert bench.stream.get(timeout=0).offset == 0
        assert where.finished(including_held=True) == 1, "only the message counts, not the rows before it"
        assert [bench.stream.get(timeout=0).offset for _ in range(3)] == [1, 2, 3]


# ---- interrupts and errors


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("finished", [0, 2])
@pytest.mark.parametrize("ask", ["batch", "table"])
def test_an_interrupted_ask_counts_nothing_that_nobody_saw(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], finished: int, ask: str
) -> None:
    where = position()
    bench.put(where, 0, 3)
    bench.put(where, 3, 3)
    if finished:
        next(bench.stream.batches(max_rows=finished))
    for place in ("hand_over", "gather" if ask == "table" else "_next_part"):
        with monkeypatch.context() as patched:
            patched.setattr(column_reader.ColumnReader, place, Mock(side_effect=kind))
            with pytest.raises(kind):
                next(bench.stream.batches()) if ask == "batch" else bench.stream.to_arrow(timeout=0)
        assert where.finished(including_held=bench.stream.held_by(get_native_id())) == finished
    assert offsets(bench.stream.to_arrow(timeout=0)) == list(range(finished, 6))


def test_who_asks_is_known_as_with_messages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(position(), 0, 3)
    me = get_native_id()
    seen: list[tuple[bool, bool]] = []
    made = column_reader.ColumnReader.next_batch

    def asked(*arguments: Any) -> Any:
        seen.append((bench.stream.held_by(me), bench.stream.interrupted(me)))
        return made(*arguments)

    monkeypatch.setattr(column_reader.ColumnReader, "next_batch", asked)
    next(bench.stream.batches())
    assert seen == [(False, True)]
    assert (bench.stream.held_by(me), bench.stream.interrupted(me)) == (True, False)


def test_two_that_ask_at_once_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(position(), 0, 3)
    monkeypatch.setattr(column_reader.ColumnReader, "next_batch", lambda *_: next(bench.stream.batches()))
    with pytest.raises(RuntimeError, match="one thread at a time"):
        next(bench.stream.batches())


def test_a_refused_ask_leaves_rows_in_hand(bench: Bench) -> None:
    """A call with a wrong argument took back the rows of the call before it, which came again.

    Its error was a ConfigException, which is about properties.
    """
    where = position()
    bench.put(where, 0, 5)
    assert offsets(bench.stream.to_arrow(max_messages=3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="say max_messages or timeout") as told:
        bench.stream.to_arrow()
    assert not isinstance(told.value, ZkConsumerError)
    assert (where.held, where.finished(including_held=True)) == (True, 3)
    assert offsets(bench.stream.to_arrow(timeout=0)) == [3, 4]


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("back", [7, 100])
def test_an_interrupt_keeps_a_jump_back(bench: Bench, monkeypatch: pytest.MonkeyPatch, back: int, paused: bool) -> None:
    """Bug: rows that come again are fetched again, which dropped the jump queued behind them.

    The jump led to the first offset that differs in a truncated log, so the log from there on was never read.
    """
    where = position(start=100)
    bench.put(where, 100, 2)
    bench.put(where, 102, 2)
    bench.queue.jump(where, back)
    made = column_reader.ColumnReader.release

    def interrupted(reader: column_reader.ColumnReader) -> None:
        made(reader)
        if paused:
            bench.queue.pause(where)
        raise KeyboardInterrupt

    assert offsets(bench.stream.to_arrow(max_messages=2)) == [100, 101]
    with monkeypatch.context() as patched:
        patched.setattr(column_reader.ColumnReader, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.stream.to_arrow(timeout=0)
    assert where.cursor.fetch_from == back
    bench.queue.resume(where)
    bench.put(where, back, 3)
    assert offsets(bench.stream.to_arrow(timeout=0)) == [back, back + 1, back + 2]


def test_a_jump_forward_is_found_again(bench: Bench) -> None:
    """The messages before the jump are read first."""
    where = position(start=100)
    bench.queue.jump(where, 200)
    bench.queue.read_again(where)
    assert where.cursor.fetch_from == 100
    bench.put(where, 100, 2)
    assert offsets(bench.stream.to_arrow(timeout=0)) == [100, 101]


def test_what_spark_does_not_take_comes_again(bench: Bench) -> None:
    class Spark:
        """Fails once."""

        failing = True
        made: Any = None

        def createDataFrame(self, table: Any, schema: str) -> Any:  # noqa: N802 (Spark's name)
            if self.failing:
                raise OSError("no JVM")
            self.made = schema
            return table

    where = position()
    bench.put(where, 0, 3)
    bench.put(where, 3, 3)
    spark: Any = Spark()
    with pytest.raises(OSError, match="no JVM"):
        bench.stream.to_dataframe(spark, timeout=0)
    assert (where.held, where.finished(including_held=True)) == (False, 0)
    spark.failing = False
    assert offsets(bench.stream.to_dataframe(spark, timeout=0)) == list(range(6))
    assert spark.made.startswith("key binary, value binary, topic string")
    assert (where.finished(including_held=False), where.finished(including_held=True)) == (0, 6)


def test_with_action_end_a_timeout_ends_only_the_loop(bench: Bench) -> None:
    stream = new_stream("s", bench.queue, bench.lease, ends_on_timeout=True)
    where = position()
    bench.put(where, 0, 2)
    assert [offsets(batch) for batch in stream.batches()] == [[0, 1]]
    bench.put(where, 2, 2)
    assert [offsets(batch) for batch in stream.batches(timeout=0.01)] == [[2, 3]]


# ---- what is counted and committed


def test_what_is_passed_is_counted_once() -> None:
    counted: list[tuple[str, int, int]] = []
    bench = Bench(capacity=9, count=lambda *what: counted.append(what))
    queue, stream = bench.queue, bench.stream
    where, size = position(), 0
    for first in (0, 10, 20):
        data = record_batch(first, 10)
        size += len(data)
        queue.deliver(where, data, (first, first + 10), ())
    next(stream.batches(max_rows=3))
    for _ in range(3):
        stream.get(timeout=0)
    stream.to_arrow(max_messages=8)
    next(stream.batches())
    for _ in range(10):
        stream.get(timeout=0)
    with pytest.raises(ConsumerTimeoutException):
        next(stream.batches())
    assert sum(messages for _, messages, _ in counted) == 30
    assert sum(bytes_ for _, _, bytes_ in counted) == size


# ---- what has no rows


class Transactions(Bench):
    """A stream that reads committed data, of which most was aborted; ``kept`` is what each table held in the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counted: list[tuple[str, int, int]] = []
        super().__init__(read_committed=True, count=lambda *what: self.counted.append(what))
        self.where = position()
        self.end = self.sent = 0
        self.kept: list[list[chunk_batches.ChunkPart]] = []
        made = column_reader.ColumnReader.hand_over

        def hand_over(reader: Any, found: list[chunk_batches.ChunkPart], *arguments: Any) -> bool:
            self.kept.append(list(found))
            return made(reader, found, *arguments)

        monkeypatch.setattr(column_reader.ColumnReader, "hand_over", hand_over)

    def put_batches(self, *, aborted: int = 0, good: int = 0) -> None:
        """Queue ``aborted`` chunks of one aborted message, and a chunk of ``good`` messages."""
        for _ in range(aborted):
            self._put(Batch([Written(value=b"x" * 1000)], transactional=True, producer_id=1), 1, ((1, self.end),))
        if good:
            self._put(Batch([Written()] * good), good, ())

    def _put(self, batch: Batch, count: int, aborted: tuple[tuple[int, int], ...]) -> None:
        data, end = batch.encode(self.end)
        self.queue.deliver(self.where, data, (self.end, end), aborted, count)
        self.end, self.sent = end, self.sent + len(data)

    @property
    def held(self) -> int:
        """Bytes of chunks that the last table held."""
        return sum(len(part.chunk.records) for part in self.kept[-1])


def test_a_table_holds_no_chunk_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: what was fetched stayed with the table although it had no row in it, counted by nobody, so a table
    over much aborted data took memory without a limit.
    """
    some = Transactions(monkeypatch)
    some.put_batches(aborted=50)
    assert some.stream.to_arrow(timeout=0).num_rows == 0
    assert some.kept[-1] == []
    assert some.where.finished(including_held=False) == 50, "as with batches, it is finished at once"
    some.put_batches(good=2)
    some.put_batches(aborted=50)
    some.put_batches(good=2)
    some.put_batches(aborted=50)
    assert offsets(some.stream.to_arrow(timeout=0)) == [50, 51, 102, 103]
    assert some.held < 500
    assert len(some.kept[-1]) == 4
    assert some.where.finished(including_held=False) == 50
    with pytest.raises(ConsumerTimeoutException):
        next(some.stream.batches())
    assert some.where.finished(including_held=False) == some.end
    assert sum(messages for _, messages, _ in some.counted) == some.end
    assert sum(size for _, _, size in some.counted) == some.sent


@pytest.mark.parametrize("event", ["not made", "paused", "an interrupt"])
def test_what_had_no_rows_is_put_back_as_a_place_without_a_gap(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    some = Transactions(monkeypatch)
    for _ in range(2):
        some.put_batches(good=2)
        some.put_batches(aborted=3)

    def happens(*_: Any) -> bool:
        if event != "paused":
            raise KeyboardInterrupt
        some.queue.pause(some.where)
        return False

    where, name = (arrow_api, "one_table") if event == "not made" else (ChunkReader, "may_hand_out")
    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(where, name, happens)
        assert some.stream.to_arrow(timeout=0).num_rows == 0
    assert len(some.kept[-1]) == 4
    some.queue.resume(some.where)
    assert (some.where.held, some.where.finished(including_held=True)) == (False, 0)
    some.put_batches(good=1)
    assert [some.stream.get(timeout=0).offset for _ in range(3)] == [0, 1, 5]
    assert offsets(some.stream.to_arrow(timeout=0)) == [6, 10]
    with pytest.raises(ConsumerTimeoutException):
        some.stream.get(timeout=0)
    assert "expected offset" not in caplog.text
    assert some.where.finished(including_held=False) == some.end
    assert sum(messages for _, messages, _ in some.counted) == some.end
    assert sum(size for _, _, size in some.counted) == some.sent
