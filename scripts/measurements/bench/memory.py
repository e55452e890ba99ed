"""Resident memory of a member that fetches faster than its application reads: large messages, many partitions.

The whole process must stay within ``queued.max.bytes`` and 80 MB more. The consuming process is this module itself
(``python -m scripts.measurements.bench.memory '<task as JSON>'``). The bench reads its memory in
/proc, while its streams are full most of the time.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from scripts.measurements.bench import machine
from tests.cluster.member_process import MemberProcess
from zkconsumer.devcluster import DevCluster

NAME = "memory"
HELP = "resident memory of a slow reader: 200 partitions of messages of 1 MB, and of small ones"

MARGIN_MB = 80
_BUDGET = 64 * 1024 * 1024
_SAMPLE_S = 0.02
_READY_S = 60.0


@dataclass(frozen=True)
class Load:
    """A slow consumer: ``streams`` threads pause ``pause`` seconds after each message. It runs for ``seconds``."""

    name: str
    partitions: int
    messages: int
    value_bytes: int
    streams: int
    pause: float
    seconds: float
    properties: tuple[tuple[str, str], ...] = ()


LOADS = (
    Load("200 partitions of 1 MB, one stream", 200, 400, 1_000_000, 1, 0.02, 12.0),
    Load("200 partitions of 1 MB, 8 streams", 200, 400, 1_000_000, 8, 0.1, 12.0),
    Load("8 partitions of 100 B, 8 streams", 8, 2_000_000, 100, 8, 0.0001, 8.0),
)


class SlowReader(MemberProcess):
    """A process that reads as a :class:`Load` says until it is told to end."""

    who = "slow"

    def __init__(self, zookeeper: str, group: str, topic: str, load: Load) -> None:
        super().__init__(zookeeper, group, {topic: load.streams})
        self.arguments = {}
        self._task = json.dumps(
            {
                "zookeeper": zookeeper,
                "group": group,
                "topic": topic,
                "load": asdict(load),
            }
        )

    def command(self) -> list[str]:
        """The whole task is one argument."""
        return [sys.executable, "-m", "scripts.measurements.bench.memory", self._task]


def run(plan: Any) -> dict[str, Any]:
    """Measures and prints; with a ``plan`` of one turn (``--quick``) the first load only. Returns: everything, for the
    JSON file; MB are 1,000,000 bytes.
    """
    loads = LOADS[:1] if getattr(plan, "turns", 3) == 1 else LOADS
    found = []
    with DevCluster() as cluster:
        for number, load in enumerate(loads):
            topic = f"memory-{number}"
            cluster.create_topic(topic, load.partitions)
            produce(cluster.bootstrap_servers, topic, load)
            found.append(watch(cluster.zookeeper_connect, f"slow-{number}", topic, load))
            print_row(found[-1])
    return {"scenario": NAME, "margin_mb": MARGIN_MB, "loads": found}


def print_row(row: dict[str, Any]) -> None:
    """One load's figures as a line."""
    print(
        f"{row['name']:<36} budget {row['budget_mb']:>5.0f} MB, peak {row['peak_mb']:>5.0f} MB"
        f" = budget + {row['over_budget_mb']:.0f}, median {row['median_mb']:.0f} MB, {row['read']} messages read"
    )


def watch(zookeeper: str, group: str, topic: str, load: Load) -> dict[str, Any]:
    """Starts a slow reader of the topic and follows its memory. Returns: the figures; ``over_budget_mb`` is the peak
    less ``queued.max.bytes``, ``series_mb`` the memory four times a second.
    """
    budget = int(dict(load.properties).get("queued.max.bytes", _BUDGET))
    with _started(SlowReader(zookeeper, group, topic, load)) as reader:
        pid = reader.pid
        assert pid is not None
        series = []
        until, pause = monotonic() + load.seconds, threading.Event()
        while monotonic() < until and reader.running:
            series.append((machine.resident_mib(pid) or 0.0) * 1.048576)
            pause.wait(_SAMPLE_S)
        peak = (machine.resident_mib(pid, peak=True) or 0.0) * 1.048576
        cpu = machine.cpu_seconds(pid)
        totals = reader.stop(30.0)
    if totals is None:
        raise RuntimeError(f"the reader failed:\n{reader.log_text()}")
    return {
        **asdict(load),
        "budget_mb": round(budget / 1e6, 1),
        "peak_mb": round(peak, 1),
        "over_budget_mb": round(peak - budget / 1e6, 1),
        "median_mb": round(sorted(series)[len(series) // 2], 1),
        "read": totals.messages,
        "cpu_seconds": cpu,
        "series_mb": [round(value, 1) for value in series[:: round(0.25 / _SAMPLE_S)]],
    }


@contextmanager
def _started(reader: SlowReader) -> Iterator[SlowReader]:
    try:
        yield reader.start().wait_ready(_READY_S)
    finally:
        reader.close()


def produce(bootstrap: str, topic: str, load: Load) -> None:
    """Fills the topic evenly."""
    from confluent_kafka import Producer

    limits = {
        "message.max.bytes": 1_040_000,
        "queue.buffering.max.kbytes": 262_144,
    }  # of the client's, too small else
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **limits})
    failures: list[object] = []
    value = bytes(range(256)) * (load.value_bytes // 256 + 1)
    value = value[: load.value_bytes]

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    for number in range(load.messages):
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    partition=number % load.partitions,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120.0) or failures:
        raise RuntimeError(f"not everything was produced: {failures[:3]}")


def main() -> None:
    """The consuming process."""
    from zkconsumer import KafkaStream, ZookeeperConsumerConnector

    task = json.loads(sys.argv[1])
    load = task["load"]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    read = []

    def work(stream: KafkaStream[bytes, bytes]) -> None:
        for message in stream:
            read.append(len(message.value))
            stop.wait(load["pause"])

    base = {
        "zookeeper.connect": task["zookeeper"],
        "group.id": task["group"],
        "auto.offset.reset": "smallest",
    }
    with ZookeeperConsumerConnector({**base, **dict(load["properties"])}) as connector:
        streams = connector.create_message_streams({task["topic"]: load["streams"]})[task["topic"]]
        threads = [threading.Thread(target=work, args=(stream,), name=f"slow-{n}") for n, stream in enumerate(streams)]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        stop.wait()
    for thread in threads:
        thread.join()
    print(f"end {len(read)} {sum(read)} 0", flush=True)


if __name__ == "__main__":
    main()
