"""The messages for the peers: topics filled beforehand, and a process that produces at a steady rate.

``python -m scripts.measurements.bench.producing '<task as JSON>'`` is that process. It stamps each message with the
machine's monotonic clock: CLOCK_MONOTONIC in nanoseconds, eight bytes, big-endian. That is ``time.monotonic_ns`` here,
and ``System.nanoTime`` in a JVM on Linux. So a consumer on the same machine knows the age of a message.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, monotonic_ns, sleep

SMALLEST, LARGEST = 20, 300
STAMP = 8
PACED_BYTES = 100


class Failures(list[str]):
    """Delivery reports that tell of failures."""

    def __call__(self, error: object, _: object) -> None:
        """The producer's callback."""
        if error is not None:
            self.append(str(error))


def fill(
    bootstrap: str,
    topic: str,
    messages: int,
    *,
    partitions: int,
    sizes: tuple[int, int] = (SMALLEST, LARGEST),
    batch_bytes: int = 65536,
) -> int:
    """Writes messages of random lengths within ``sizes``, the same ones each time, evenly over the partitions.

    Returns: how many bytes of values. Raises RuntimeError where not all arrive.
    """
    from confluent_kafka import Producer

    failures = Failures()
    settings = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "batch.size": batch_bytes,
        "acks": 1,
    }
    producer = Producer({**settings, "queue.buffering.max.messages": 500_000})
    chance = random.Random(13)
    filler = chance.randbytes(sizes[1] * 64)
    lengths = chance.choices(range(sizes[0], sizes[1] + 1), k=messages)
    starts = chance.choices(range(sizes[1] * 63), k=messages)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        value = filler[start : start + length]
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions, on_delivery=failures)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(60.0) or failures:
        raise RuntimeError(f"not everything was produced: {failures[:3]}")
    return sum(lengths)


@contextmanager
def paced(
    bootstrap: str,
    topic: str,
    messages: int,
    *,
    partitions: int,
    per_second: int,
    keys: int = 0,
) -> Iterator[None]:
    """A process that produces stamped messages at a steady pace while the block runs; it is ended with the block.

    Arguments: ``keys`` is the number of different keys, 0 for messages without one.
    """
    task = {"bootstrap": bootstrap, "topic": topic, "messages": messages, "keys": keys}
    arguments = json.dumps({**task, "partitions": partitions, "per_second": per_second})
    process = subprocess.Popen([sys.executable, "-m", "scripts.measurements.bench.producing", arguments])
    try:
        yield
    finally:
        process.terminate()
        process.wait(10.0)


def main() -> None:
    """The process: a message is stamped right before it is given to the producer, which sends it at once."""
    from confluent_kafka import Producer

    task = json.loads(sys.argv[1])
    failures = Failures()
    settings = {
        "bootstrap.servers": task["bootstrap"],
        "linger.ms": 0,
        "acks": 1,
        "socket.nagle.disable": True,
    }
    producer = Producer(settings)
    rest = bytes(PACED_BYTES - STAMP)
    began, step = monotonic(), 1 / task["per_second"]
    for number in range(task["messages"]):
        wait = began + number * step - monotonic()
        if wait > 0:
            sleep(wait)
        key = b"%d" % (number % task["keys"]) if task["keys"] else None
        while True:
            value = monotonic_ns().to_bytes(STAMP, "big") + rest
            try:
                producer.produce(task["topic"], value, key, partition=number % task["partitions"], on_delivery=failures)
                break
            except BufferError:  # the machine is busy with something else
                producer.poll(0.05)
        producer.poll(0)
    if producer.flush(30.0) or failures:
        raise SystemExit(f"not everything was produced: {failures[:3]}")


if __name__ == "__main__":
    main()
