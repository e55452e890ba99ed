"""One member process of ``scripts/bench balance``.

The command is ``python -m scripts.measurements.bench.balance_peer '<task as JSON>'``.
Says "ready" once it is a member, and "counted SECONDS NUMBER" (CLOCK_MONOTONIC) a hundred times a second if its handler
counts. It ends cleanly on SIGTERM. The loop for confluent-kafka is what a careful user writes: no partition's offset is
committed past an unfinished message, messages of a key stay in order, what is in hand is bounded.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from types import FrameType
from typing import Any

from scripts.measurements.bench import balance_handlers
from scripts.measurements.bench.balance_handlers import HANDLERS

_LOOK_S = 0.05
_TELL_S = 0.01
_COMMIT_S = 1.0
_MOST_IN_HAND = 2_000
_END_S = 10.0


def main() -> None:
    """Does the task given as the one argument: ``kind`` and what its function takes."""
    task = json.loads(sys.argv[1])
    kind = task.pop("kind")
    if HANDLERS[task["handler"]] in (balance_handlers.count, balance_handlers.fail_twice):
        threading.Thread(target=_tell_counted, name="teller", daemon=True).start()
    kinds: dict[str, Callable[..., None]] = {"balanced": balanced, "plain": plain, "confluent": confluent}
    kinds[kind](**task)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _tell_counted() -> None:
    pause = threading.Event()
    while not pause.wait(_TELL_S):
        _say(f"counted {monotonic():.6f} {balance_handlers.number_counted()}")


def balanced(
    zookeeper: str, group: str, topic: str, properties: dict[str, Any], handler: str, run: dict[str, Any], **_: Any
) -> None:
    """Our connector with ``concurrency``; ``run`` are arguments of ``run``, and "delays" those of its retries."""
    from zkconsumer.balance.retry_policy import DELAYS, Retry

    retry = Retry(delays=tuple(run.pop("delays", DELAYS)))
    _run(zookeeper, group, topic, properties, handler, {**run, "retry": retry})


def plain(
    zookeeper: str, group: str, topic: str, properties: dict[str, Any], handler: str, workers: int, **_: Any
) -> None:
    """Our connector with ``workers``, of which each partition keeps one busy at most."""
    _run(zookeeper, group, topic, properties, handler, {"workers": workers})


def _run(zookeeper: str, group: str, topic: str, properties: dict[str, Any], handler: str, run: dict[str, Any]) -> None:
    from zkconsumer import ZookeeperConsumerConnector

    connector = ZookeeperConsumerConnector({"zookeeper.connect": zookeeper, "group.id": group, **properties})
    threading.Thread(target=_tell_ready, args=(connector,), name="ready", daemon=True).start()
    connector.run(HANDLERS[handler], topic, stop_on=(signal.SIGTERM,), **run)


def _tell_ready(connector: Any) -> None:
    pause = threading.Event()
    while not connector.health().ready:
        pause.wait(_LOOK_S)
    _say("ready")


class _Pool:
    """The pool written by hand: a queue for each key, offsets tracked for each partition."""

    def __init__(self, consumer: Any, topic: str, handle: Any, workers: int) -> None:
        self._consumer, self._topic, self._handle = consumer, topic, handle
        self._threads = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()
        self._lanes: dict[tuple[int, bytes], deque[Any]] = {}
        self._unfinished: dict[int, set[int]] = {}
        self._next: dict[int, int] = {}
        self._busy: Counter[int] = Counter()

    @property
    def in_hand(self) -> int:
        """Number of messages that were read and are not finished."""
        with self._lock:
            return sum(map(len, self._unfinished.values()))

    def add(self, message: Any) -> None:
        """Queue a message behind those of its key."""
        partition, offset = message.partition(), message.offset()
        lane = (partition, message.key())
        with self._lock:
            self._unfinished.setdefault(partition, set()).add(offset)
            self._next[partition] = offset + 1
            waiting = self._lanes.get(lane)
            if waiting is not None:
                waiting.append(message)
                return
            self._lanes[lane] = deque([message])
        self._threads.submit(self._work, lane)

    def _work(self, lane: tuple[int, bytes]) -> None:
        """Handle the head of one lane, then go to the end of the pool's queue: no key may keep a thread."""
        partition = lane[0]
        with self._lock:
            waiting = self._lanes.get(lane)
            if waiting is None:
                return  # the partition has left
            offset = waiting[0].offset()
            self._busy[partition] += 1
        self._handle(_Message(partition, offset))
        with self._lock:
            self._busy[partition] -= 1
            self._unfinished.get(partition, set()).discard(offset)
            waiting.popleft()
            if not waiting:
                self._lanes.pop(lane, None)
                return
        self._threads.submit(self._work, lane)

    def offsets(self) -> dict[int, int]:
        """Return the offset to commit of each partition."""
        with self._lock:
            return {p: min(self._unfinished.get(p) or {following}) for p, following in self._next.items()}

    def revoke(self, partitions: list[int]) -> None:
        """Drop messages that have not begun, wait for the others, commit, and forget the partitions."""
        from confluent_kafka import TopicPartition

        with self._lock:
            for lane in [lane for lane in self._lanes if lane[0] in partitions]:
                del self._lanes[lane]
        end, pause = monotonic() + _END_S, threading.Event()
        while any(self._busy[p] for p in partitions) and monotonic() < end:
            pause.wait(_LOOK_S)
        offsets = self.offsets()
        kept = [TopicPartition(self._topic, p, offsets[p]) for p in partitions if p in offsets]
        if kept:
            self._consumer.commit(offsets=kept, asynchronous=False)
        with self._lock:
            for p in partitions:
                self._next.pop(p, None)
                self._unfinished.pop(p, None)


class _Message:
    """The fields of a message that handlers read."""

    __slots__ = ("offset", "partition")

    def __init__(self, partition: int, offset: int) -> None:
        self.partition, self.offset = partition, offset


def confluent(bootstrap: str, group: str, topic: str, handler: str, workers: int, **_: Any) -> None:
    """confluent-kafka with a pool of threads written by hand."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.queue.backoff.ms": 2})
    pool = _Pool(consumer, topic, HANDLERS[handler], workers)
    stop = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)

    def on_revoke(_: Any, gone: Any) -> None:
        pool.revoke([one.partition for one in gone])

    # called for a member without partitions as well
    consumer.subscribe([topic], on_assign=lambda *_: _say("ready"), on_revoke=on_revoke)
    committed: dict[int, int] = {}
    due = monotonic() + _COMMIT_S
    while not stop.is_set():
        if pool.in_hand >= _MOST_IN_HAND:
            stop.wait(0.001)
        else:
            for message in consumer.consume(100, _LOOK_S):
                if message.error() is None:
                    pool.add(message)
        if monotonic() >= due:
            due = monotonic() + _COMMIT_S
            changed = {p: offset for p, offset in pool.offsets().items() if committed.get(p) != offset}
            if changed:
                consumer.commit(offsets=[TopicPartition(topic, *one) for one in changed.items()], asynchronous=True)
                committed |= changed
    consumer.close()


if __name__ == "__main__":
    main()
