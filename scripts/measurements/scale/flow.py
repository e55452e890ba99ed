"""A steady flow of messages on some partitions, and the gaps in their hand-out.

A thread named "flow" writes at a steady rate until the flow ends. No other thread uses the producer.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from time import monotonic
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from tests.cluster.member_process import Consumed
from tests.timing import eventually

READY_S = 60.0


class Flow:
    """Writes one message to each of ``partitions`` every ``beat`` seconds during a ``with`` block.

    The block begins when each partition has taken a message, because a new topic takes a moment to appear.
    """

    def __init__(self, bootstrap_servers: str, topic: str, partitions: Sequence[int], beat: float) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "log_level": 0})
        self._topic = topic
        self.partitions = tuple(partitions)
        self._beat = beat
        self._taken: set[int] = set()  # added to by the producer's callbacks, which the flow's thread runs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self._taken >= set(self.partitions), READY_S, "a message in each partition")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        due = monotonic()
        while not self._stop.is_set():
            for partition in self.partitions:
                self._producer.produce(self._topic, b"x", partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            due = max(due + self._beat, monotonic() - 1.0)
            self._stop.wait(max(0.0, due - monotonic()))
        self._producer.flush(10)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._taken.add(message.partition())


def largest_gap(messages: Iterable[Consumed], partitions: Iterable[int], start: float, end: float) -> float | None:
    """The longest time in which nothing of one of ``partitions`` was handed out between two moments (seconds of the
    clock). None: there is none of those partitions.
    """
    times: dict[int, list[float]] = defaultdict(list)
    for message in messages:
        if start <= message.at <= end:
            times[message.partition].append(message.at)
    gaps = []
    for partition in partitions:
        moments = [start, *sorted(times[partition]), end]
        gaps.append(max(later - earlier for earlier, later in pairwise(moments)))
    return max(gaps, default=None)
