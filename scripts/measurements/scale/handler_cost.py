"""CPU time of a message whose handler waits 20 ms, 200 at a time: ``run`` with threads and with coroutines.

The command is ``python -m scripts.measurements.scale.handler_cost --turns 3``. Kafka and ZooKeeper are in memory, in
the same process, which adds about a microsecond. A plain ThreadPoolExecutor and plain tasks of asyncio do the same
waiting beside them. Each way runs in a process of its own, in turns. The rate tells whether the machine was busy: 200
handlers of 20 ms do not finish more than 10,000 messages a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from resource import RUSAGE_SELF, getrusage
from statistics import median
from time import monotonic, sleep
from typing import Any

from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster

WAYS = ("threads", "pool", "coroutines", "tasks")
WAIT_S = 0.02
AT_ONCE = 200
PARTITIONS = 4
BATCH = 500
UNCOUNTED = 3_000
"""Messages before the clock begins: threads start, and workers find their number of messages."""


class Clock:
    """Counts finished handlers, and takes the times of the first and of the last counted one."""

    def __init__(self, total: int, ended: Callable[[], object] = lambda: None) -> None:
        self._total = total
        self._ended = ended
        self._count = 0
        self._marks: list[tuple[float, float]] = []

    def note(self) -> None:
        """One handler has finished. Any thread; a count that is lost between two threads changes nothing."""
        self._count += 1
        if self._count in (UNCOUNTED, self._total) and len(self._marks) < 2:
            used = getrusage(RUSAGE_SELF)
            self._marks.append((used.ru_utime + used.ru_stime, monotonic()))
            if len(self._marks) == 2:
                self._ended()

    def result(self) -> dict[str, float]:
        """Return microseconds of CPU a message, and messages a second."""
        (cpu, began), (cpu_end, end) = self._marks
        messages = self._total - UNCOUNTED
        return {"us": (cpu_end - cpu) / messages * 1e6, "rate": messages / (end - began)}


def run(total: int, *, coroutines: bool) -> dict[str, float]:
    """Measure ``connector.run``."""
    with FakeCluster(brokers=1, zookeeper=True) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            for _ in range(2 * total // PARTITIONS // BATCH):
                cluster.append("t", partition, [b"x" * 100] * BATCH)
        properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
        connector = ZookeeperConsumerConnector(properties)
        clock = Clock(total, lambda: threading.Thread(target=connector.shutdown, daemon=True).start())

        def handle(_: Any) -> None:
            sleep(WAIT_S)
            clock.note()

        async def wait(_: Any) -> None:
            await asyncio.sleep(WAIT_S)
            clock.note()

        if coroutines:
            connector.run(wait, "t", concurrency=AT_ONCE, order="none", executor="asyncio")
        else:
            connector.run(handle, "t", concurrency=AT_ONCE, order="none")
        return clock.result()


def pool(total: int) -> dict[str, float]:
    """Measure a plain pool of threads."""
    clock, room = Clock(total), threading.Semaphore(2 * AT_ONCE)

    def handle() -> None:
        sleep(WAIT_S)
        clock.note()
        room.release()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in range(total):
            room.acquire()
            threads.submit(handle)
    return clock.result()


async def tasks(total: int) -> dict[str, float]:
    """Measure plain tasks."""
    clock, room, begun = Clock(total), asyncio.Semaphore(AT_ONCE), set()

    async def handle() -> None:
        await asyncio.sleep(WAIT_S)
        clock.note()
        room.release()

    for _ in range(total):
        await room.acquire()
        task = asyncio.create_task(handle())
        begun.add(task)
        task.add_done_callback(begun.discard)
    await asyncio.gather(*begun)
    return clock.result()


def measure(way: str, total: int) -> dict[str, float]:
    """Measure one way in this process."""
    if way == "pool":
        return pool(total)
    return asyncio.run(tasks(total)) if way == "tasks" else run(total, coroutines=way == "coroutines")


def main() -> None:
    """Measure all ways in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--messages", type=int, default=15_000)
    parser.add_argument("--way", choices=WAYS, help="measure one way in this process")
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.messages)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.turns):
        for way in WAYS:
            command = [sys.executable, "-m", __spec__.name, "--way", way, "--messages", str(options.messages)]
            found[way].append(json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout))
    for way, results in found.items():
        us, rate = (median(one[name] for one in results) for name in ("us", "rate"))
        print(f"{way:<12}{us:8.1f} us of CPU a message{rate:10.0f} messages a second")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
