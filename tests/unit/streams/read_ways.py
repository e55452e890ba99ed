"""The ways to read a stream to its end, each with the rows, the reason of the end, and the consumed offset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.streams import new_stream, valid_lease
from tests.unit.kafka.reference import Plain
from tests.unit.kafka.sets import WHERE
from zkconsumer import KafkaStream
from zkconsumer.errors import ConsumerTimeoutException, InvalidMessageException
from zkconsumer.model import ThreadId
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.stream_queue import StreamQueue

Stream = KafkaStream[bytes | None, bytes | None]


Found = tuple[list[Plain], str, int | None]
"""The records, why there are no more (empty: there are none), and what counts as consumed then."""


class Sent(NamedTuple):
    """A set as a broker sends it, with the requested offset and the aborted transactions."""

    data: bytes
    fetch_offset: int
    next_offset: int
    aborted: tuple[tuple[int, int], ...] = ()


def stream_of(sent: Sent, *, check_crc: bool = True) -> tuple[Stream, PartitionPosition]:
    lease = valid_lease()
    queue = StreamQueue(2, lambda: None)
    stream: Stream = new_stream("s", queue, lease, timeout=0, check_crc=check_crc, read_committed=True)
    position = PartitionPosition(WHERE, ThreadId("g_c-0"), sent.fetch_offset)
    queue.deliver(position, sent.data, (sent.fetch_offset, sent.next_offset), sent.aborted)
    return stream, position


def of_message(message: Any) -> Plain:
    # what no number of microseconds expresses is null in columns
    stamp = message.timestamp if abs(message.timestamp) <= (2**63 - 1) // 1000 else -1
    return Plain(message.offset, stamp, message.timestamp_type, message.key, message.value, tuple(message.headers))


def of_rows(rows: Any) -> list[Plain]:
    """Arrow's rows; without a column of headers they count as having none."""
    found = []
    at = rows.schema.get_field_index("timestamp")
    for row in rows.set_column(at, "timestamp", rows.column(at).cast("int64")).to_pylist():
        assert (row["topic"], row["partition"]) == WHERE
        stamp = -1 if row["timestamp"] is None else row["timestamp"] // 1000
        headers = tuple((header["key"], header["value"]) for header in row.get("headers") or ())
        found.append(Plain(row["offset"], stamp, row["timestampType"], row["key"], row["value"], headers))
    return found


def all_of(ask: Callable[[], list[Plain]]) -> tuple[list[Plain], str]:
    """Return all messages or rows up to the end or an error."""
    found: list[Plain] = []
    while True:
        try:
            found += ask()
        except ConsumerTimeoutException:
            return found, ""
        except InvalidMessageException as e:
            return found, f"{e.where} {e.offset} {e.next_offset}"


def by_messages(sent: Sent, check_crc: bool = True) -> Found:
    stream, position = stream_of(sent, check_crc=check_crc)
    found = all_of(lambda: [of_message(stream.get(timeout=0))])
    assert not position.held
    return (*found, position.consumed)


def by_batches(sent: Sent, limits: dict[str, Any], check_crc: bool = True) -> Found:
    stream, position = stream_of(sent, check_crc=check_crc)
    batches = stream.batches(timeout=0, **limits)
    found = all_of(lambda: of_rows(next(batches)))
    assert not position.held
    return (*found, position.consumed)


def by_both(sent: Sent, turns: Sequence[int], check_crc: bool = True) -> Found:
    """Messages, batches and tables by turns; a turn is so many rows, 0 stands for one message."""
    stream, position = stream_of(sent, check_crc=check_crc)
    coming = iter([*turns, *([3] * 1000)])

    def ask() -> list[Plain]:
        rows = next(coming)
        if not rows:
            return [of_message(stream.get(timeout=0))]
        if rows > 5:
            table = of_rows(stream.to_arrow(max_messages=rows, timeout=0, headers=True))
            return table if table else [of_message(stream.get(timeout=0))]
        return of_rows(next(stream.batches(max_rows=rows, headers=True, timeout=0)))

    found = all_of(ask)
    assert not position.held
    return (*found, position.consumed)


def bare(records: Sequence[Plain]) -> list[Plain]:
    return [record._replace(headers=()) for record in records]
