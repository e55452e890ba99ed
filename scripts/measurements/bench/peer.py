"""One consuming process of a measurement, written in Python.

The command is ``python -m scripts.measurements.bench.peer '<task as JSON>'``.
Says what tests/cluster/legacy/GroupMember.java says: "ready" once it consumes, "end MESSAGES BYTES SECONDS" after the
last message, with the time from the first message to the last; and writes the same report. The loops are loops that a
user would write. Each loop reads the value and adds up its length.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from time import monotonic_ns, perf_counter
from typing import Any

from scripts.measurements.bench.producing import STAMP

Result = tuple[int, int, float]
_PATIENCE_S = 60.0
_REPORT: list[str] = []


def main() -> None:
    """Does the task given as the one argument: ``kind`` and what its function takes."""
    task = json.loads(sys.argv[1])
    report = task.pop("report", None)
    messages, size, seconds = _KINDS[task.pop("kind")](**task)
    if report:
        Path(report).write_text("\n".join(_REPORT))
    _say(f"end {messages} {size} {seconds:.6f}")


def _say(line: str) -> None:
    print(line, flush=True)


class _Clock:
    """The time from the first message to the last, with a mark at each tenth; asked only where a mark is due."""

    def __init__(self, total: int) -> None:
        self.tenth = max(total // 10, 1)
        self.began = 0.0
        self.ended = 0.0
        self.next = 1

    def mark(self, count: int) -> int:
        """``count`` messages were read, the first one or those of a mark. Returns: where the next mark is due."""
        self.ended = perf_counter()
        if not self.began:
            self.began = self.ended
        else:
            _REPORT.append(f"mark {count} {self.ended - self.began:.6f}")
        self.next = (count // self.tenth + 1) * self.tenth
        return self.next

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@contextmanager
def _connected(zookeeper: str, group: str, properties: dict[str, Any]) -> Iterator[Any]:
    from zkconsumer import OffsetCommitError, ZookeeperConsumerConnector

    connector = ZookeeperConsumerConnector({"zookeeper.connect": zookeeper, "group.id": group, **properties})
    try:
        yield connector
    finally:
        with suppress(OffsetCommitError):  # of messages that threads of the measurement stopped at
            connector.shutdown()


def iterated(
    zookeeper: str,
    group: str,
    topic: str,
    total: int,
    properties: dict[str, Any],
    **_: Any,
) -> Result:
    """Our connector, one stream, iterated."""
    with _connected(zookeeper, group, properties) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        _say("ready")
        clock = _Clock(total)
        size = count = 0
        due = 1
        for message in stream:
            size += len(message.value or b"")
            count += 1
            if count == due:
                due = clock.mark(count)
                if count == total:
                    break
        return count, size, clock.seconds


def threads(
    zookeeper: str,
    group: str,
    topic: str,
    total: int,
    properties: dict[str, Any],
    streams: int,
    **_: Any,
) -> Result:
    """Our connector, several streams of as many messages each, every one iterated by a thread of its own."""
    sizes: list[int] = []
    times: list[tuple[float, float]] = []

    def read(stream: Any) -> None:
        size, began = 0, 0.0
        for count, message in enumerate(stream, 1):
            if not began:
                began = perf_counter()
            size += len(message.value or b"")
            if count == total // streams:
                break
        times.append((began, perf_counter()))
        sizes.append(size)

    with _connected(zookeeper, group, properties) as connector:
        readers = [
            threading.Thread(target=read, args=(stream,))
            for stream in connector.create_message_streams({topic: streams})[topic]
        ]
        for reader in readers:
            reader.start()
        _say("ready")
        for reader in readers:
            reader.join()
    return (
        total,
        sum(sizes),
        max(end for _, end in times) - min(began for began, _ in times),
    )


def merged(
    zookeeper: str, group: str, topic: str, total: int, properties: dict[str, Any], streams: int, **_: Any
) -> Result:
    """Our connector, several streams read by one loop."""
    with _connected(zookeeper, group, properties) as connector:
        connector.create_message_streams({topic: streams})
        _say("ready")
        clock = _Clock(total)
        size = count = 0
        due = 1
        for message in connector.messages():
            size += len(message.value or b"")
            count += 1
            if count == due:
                due = clock.mark(count)
                if count == total:
                    break
        return count, size, clock.seconds


def run(
    zookeeper: str, group: str, topic: str, total: int, properties: dict[str, Any], streams: int, **_: Any
) -> Result:
    """Our connector, a handler called by as many workers as there are streams; each counts for itself."""
    counts: dict[int, int] = {}
    sizes: dict[int, int] = {}
    times: list[float] = []
    with _connected(zookeeper, group, properties) as connector:

        def handle(message: Any) -> None:
            me = get_ident()
            count = counts.get(me, 0) + 1
            if count == 1:
                times.append(perf_counter())
            counts[me] = count
            sizes[me] = sizes.get(me, 0) + len(message.value or b"")
            # the producer fills partitions evenly, so every worker has the same share
            if count == total // streams:
                times.append(perf_counter())
                if len(times) == 2 * streams:
                    connector.shutdown()

        _say("ready")
        connector.run(handle, {topic: streams}, workers=streams)
    return sum(counts.values()), sum(sizes.values()), max(times) - min(times)


def batches(
    zookeeper: str,
    group: str,
    topic: str,
    total: int,
    properties: dict[str, Any],
    **_: Any,
) -> Result:
    """Our connector, one stream, as columns; the lengths are added up by Arrow."""
    import pyarrow.compute as pc

    with _connected(zookeeper, group, properties) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        _say("ready")
        clock = _Clock(total)
        size = count = 0
        due = 1
        for batch in stream.batches():
            size += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
            count += batch.num_rows
            if count >= due:
                due = clock.mark(count)
                if count >= total:
                    break
        return count, size, clock.seconds


def async_for(**task: Any) -> Result:
    """Our connector on asyncio, one stream, ``async for``."""
    return asyncio.run(_on_a_loop(_iterate, **task))


def async_many(**task: Any) -> Result:
    """Our connector on asyncio, one stream, ``getmany``."""
    return asyncio.run(_on_a_loop(_get_many, **task))


async def _on_a_loop(
    read: Callable[..., Any], zookeeper: str, group: str, topic: str, total: int, properties: dict[str, Any], **_: Any
) -> Result:
    from zkconsumer import AsyncZookeeperConsumerConnector

    options = {"zookeeper.connect": zookeeper, "group.id": group, **properties}
    async with AsyncZookeeperConsumerConnector(options) as connector:
        stream = (await connector.create_message_streams({topic: 1}))[topic][0]
        _say("ready")
        clock = _Clock(total)
        count, size = await read(stream, clock, total)
        return count, size, clock.seconds


async def _iterate(consumer: Any, clock: _Clock, total: int) -> tuple[int, int]:
    size = count = 0
    due = 1
    async for message in consumer:
        size += len(message.value or b"")
        count += 1
        if count == due:
            due = clock.mark(count)
            if count == total:
                break
    return count, size


async def _get_many(consumer: Any, clock: _Clock, total: int) -> tuple[int, int]:
    size = count = 0
    due = 1
    while count < total:
        for messages in (await consumer.getmany(timeout_ms=1000)).values():
            for message in messages:
                size += len(message.value or b"")
            count += len(messages)
        if count >= due:
            due = clock.mark(count)
    return count, size


def aiokafka_for(**task: Any) -> Result:
    """aiokafka, ``async for``."""
    return asyncio.run(_aiokafka(_iterate, **task))


def aiokafka_many(**task: Any) -> Result:
    """aiokafka, ``getmany``."""
    return asyncio.run(_aiokafka(_get_many, **task))


async def _aiokafka(
    read: Callable[..., Any], bootstrap: str, group: str, topic: str, total: int, properties: dict[str, Any], **_: Any
) -> Result:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, **properties)
    await consumer.start()
    try:
        _say("ready")
        clock = _Clock(total)
        count, size = await read(consumer, clock, total)
        return count, size, clock.seconds
    finally:
        await consumer.stop()


def confluent_poll(total: int, **task: Any) -> Result:
    """confluent-kafka, one message a call."""
    consumer = _confluent(**task)
    clock = _Clock(total)
    size = count = 0
    due = 1
    while (message := consumer.poll(_PATIENCE_S)) is not None:
        size += len(message.value() or b"")
        count += 1
        if count == due:
            due = clock.mark(count)
            if count == total:
                break
    consumer.close()
    return count, size, clock.seconds


def confluent_consume(total: int, many: int = 500, **task: Any) -> Result:
    """confluent-kafka, up to ``many`` messages a call."""
    consumer = _confluent(**task)
    clock = _Clock(total)
    size = count = 0
    due = 1
    while count < total:
        messages = consumer.consume(min(many, total - count), 1.0)
        for message in messages:
            size += len(message.value() or b"")
        count += len(messages)
        if count >= due:
            due = clock.mark(count)
    consumer.close()
    return count, size, clock.seconds


def _confluent(bootstrap: str, group: str, topic: str, properties: dict[str, Any], **_: Any) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **properties})
    consumer.subscribe([topic])
    _say("ready")
    return consumer


def latency(
    zookeeper: str,
    group: str,
    topic: str,
    total: int,
    properties: dict[str, Any],
    **_: Any,
) -> Result:
    """Our connector, one stream, the age of each message as it is handed out."""
    size, ages = 0, []
    with _connected(zookeeper, group, properties) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        _say("ready")
        for message in stream:
            value = message.value
            stamp = int.from_bytes(value[:STAMP], "big")
            ages.append((stamp, monotonic_ns() - stamp))
            size += len(value)
            if len(ages) == total:
                break
    return _aged(ages, size)


def confluent_latency(total: int, **task: Any) -> Result:
    """confluent-kafka, one message a call, the age of each."""
    consumer = _confluent(**task)
    size = 0
    ages: list[tuple[int, int]] = []
    while len(ages) < total and (message := consumer.poll(_PATIENCE_S)) is not None:
        value = message.value()
        stamp = int.from_bytes(value[:STAMP], "big")
        ages.append((stamp, monotonic_ns() - stamp))
        size += len(value)
    consumer.close()
    return _aged(ages, size)


def _aged(ages: list[tuple[int, int]], size: int) -> Result:
    _REPORT.extend(f"late {stamp} {age}" for stamp, age in ages)
    return len(ages), size, sum(ages[-1]) / 1e9 - sum(ages[0]) / 1e9


def idle(
    zookeeper: str,
    group: str,
    topic: str,
    total: int,
    properties: dict[str, Any],
    **_: Any,
) -> Result:
    """Our connector, which reads ``total`` messages and then waits for more until SIGTERM."""
    from zkconsumer import ConnectorClosedException

    with _connected(zookeeper, group, properties) as connector:
        signal.signal(signal.SIGTERM, lambda *_: connector.shutdown())
        stream = connector.create_message_streams({topic: 1})[topic][0]
        count = 0
        try:
            while True:
                stream.get(None if count == total else _PATIENCE_S)
                count += 1
                if count == total:
                    _say("ready")
        except ConnectorClosedException:
            pass
    return count, 0, 0.0


def confluent_idle(
    total: int,
    bootstrap: str,
    group: str,
    topic: str,
    properties: dict[str, Any],
    **_: Any,
) -> Result:
    """confluent-kafka, which does the same, asking every second."""
    from confluent_kafka import Consumer

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **properties})
    consumer.subscribe([topic])
    count = 0
    while not stop.is_set():
        if consumer.poll(1.0) is not None:
            count += 1
            if count == total:
                _say("ready")
    consumer.close()
    return count, 0, 0.0


_KINDS: dict[str, Callable[..., Result]] = {
    "iterated": iterated,
    "threads": threads,
    "merged": merged,
    "run": run,
    "batches": batches,
    "async_for": async_for,
    "async_many": async_many,
    "aiokafka_for": aiokafka_for,
    "aiokafka_many": aiokafka_many,
    "latency": latency,
    "idle": idle,
    "confluent_poll": confluent_poll,
    "confluent_consume": confluent_consume,
    "confluent_latency": confluent_latency,
    "confluent_idle": confluent_idle,
}

if __name__ == "__main__":
    main()
