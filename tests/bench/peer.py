"""One consuming process of a measurement, written in Python: ``python -m tests.bench.peer '<task as JSON>'``.

Says what tests/cluster/legacy/GroupMember.java says: "ready" once it consumes, "end MESSAGES BYTES SECONDS" after the
last message, with the time from the first message to the last. The loops are what a user would write, and all of them
read the value and add up its length.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from threading import Event
from time import perf_counter
from typing import Any

Result = tuple[int, int, float]
_PATIENCE_S = 60.0


def main() -> None:
    """Does the task given as the one argument: ``kind`` and what its function takes."""
    task = json.loads(sys.argv[1])
    messages, size, seconds = _KINDS[task.pop("kind")](**task)
    _say(f"end {messages} {size} {seconds:.6f}")


def _say(line: str) -> None:
    print(line, flush=True)


def zkconsumer(zookeeper: str, group: str, topic: str, total: int, properties: dict[str, Any], **_: Any) -> Result:
    """Our connector, one stream, iterated."""
    from zkconsumer import ZookeeperConsumerConnector

    connector = ZookeeperConsumerConnector({"zookeeper.connect": zookeeper, "group.id": group, **properties})
    with connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        _say("ready")
        size = count = 0
        began = 0.0
        for message in stream:
            if not count:
                began = perf_counter()
            size += len(message.value or b"")
            count += 1
            if count == total:
                break
        return count, size, perf_counter() - began


def confluent_poll(total: int, **task: Any) -> Result:
    """confluent-kafka, one message a call."""
    return _add_up(_polled(_confluent(**task)), total)


def confluent_consume(total: int, many: int = 500, **task: Any) -> Result:
    """confluent-kafka, up to ``many`` messages a call."""
    consumer = _confluent(**task)
    size = count = 0
    began = 0.0
    while count < total:
        messages = consumer.consume(min(many, total - count), 1.0)
        if messages and not count:
            began = perf_counter()
        for message in messages:
            size += len(message.value() or b"")
        count += len(messages)
    seconds = perf_counter() - began
    consumer.close()
    return count, size, seconds


def _confluent(bootstrap: str, group: str, topic: str, properties: dict[str, Any], **_: Any) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **properties})
    consumer.subscribe([topic])
    _say("ready")
    return consumer


def _polled(consumer: Any) -> Iterator[Any]:
    while True:
        message = consumer.poll(_PATIENCE_S)
        if message is None:
            return
        yield message


def _add_up(messages: Iterator[Any], total: int) -> Result:
    size = count = 0
    began = 0.0
    for message in messages:
        if not count:
            began = perf_counter()
        size += len(message.value() or b"")
        count += 1
        if count == total:
            break
    return count, size, perf_counter() - began


def idle(zookeeper: str, group: str, topic: str, total: int, properties: dict[str, Any], **_: Any) -> Result:
    """Our connector, which has read ``total`` messages and then waits for more until SIGTERM."""
    from zkconsumer import ConnectorClosedException, ZookeeperConsumerConnector

    stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with ZookeeperConsumerConnector({"zookeeper.connect": zookeeper, "group.id": group, **properties}) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        count = 0
        try:
            while count < total:
                stream.get(_PATIENCE_S)
                count += 1
            _say("ready")
            stop.wait()
        except ConnectorClosedException:
            pass
    return total, 0, 0.0


_KINDS: dict[str, Callable[..., Result]] = {
    "zkconsumer": zkconsumer,
    "confluent poll()": confluent_poll,
    "confluent consume(500)": confluent_consume,
    "idle": idle,
}

if __name__ == "__main__":
    main()
