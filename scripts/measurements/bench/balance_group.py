"""A group of member processes for ``scripts/bench balance``, the group's messages, and the records of handlers.

One thread calls; each member has a thread that reads its output. Every process ends with this one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, NamedTuple

from scripts.measurements.bench import machine
from scripts.measurements.bench.balance_handlers import RECORD_FILE, Handled, recorded
from scripts.measurements.bench.peers import READY_S
from scripts.measurements.bench.producing import Failures
from tests.cluster.member_process import MemberProcess
from zkconsumer.devcluster import DevCluster
from zkconsumer.runtime.deadline import Deadline

PARTITIONS = 3
PROCESSES = 4
WORKERS = 10
_SETTLED_S = 2.0
_LOOK_S = 0.1
_VALUE = bytes(100)


@dataclass(frozen=True)
class Way:
    """A way to consume: a ``kind`` of ``scripts.measurements.bench.balance_peer`` with its
    arguments, in this number of processes.
    """

    kind: str
    handler: str
    told: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    processes: int = PROCESSES


class BalanceMember(MemberProcess):
    """One process of ``scripts.measurements.bench.balance_peer``."""

    who = "balance"

    def __init__(self, cluster: DevCluster, group: str, topic: str, way: Way) -> None:
        super().__init__(cluster.zookeeper_connect, group, {topic: 1})
        self.arguments = {}
        self.counted: list[tuple[float, int]] = []
        """What the process said of its handler's calls: (CLOCK_MONOTONIC in seconds, number so far)."""
        properties = {"auto.offset.reset": "smallest", "auto.commit.interval.ms": "1000", **way.properties}
        self._task = json.dumps(
            {
                "kind": way.kind,
                "handler": way.handler,
                "zookeeper": cluster.zookeeper_connect,
                "bootstrap": cluster.bootstrap_servers,
                "group": group,
                "topic": topic,
                "properties": properties,
                **way.told,
            }
        )

    def command(self) -> list[str]:
        """The whole task is one argument."""
        return [sys.executable, "-m", "scripts.measurements.bench.balance_peer", self._task]

    def heard(self, word: str, rest: list[str]) -> None:
        """Keep how much was counted."""
        if word == "counted":
            self.counted.append((float(rest[0]), int(rest[1])))


class BenchedGroup(NamedTuple):
    """The running members of one group, and the file that their handlers record into."""

    topic: str
    members: Sequence[BalanceMember]
    record: Path

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the members, and the processes that they started, have used so far."""
        return sum(machine.tree(member.pid).cpu_seconds for member in self.members if member.pid is not None)

    def handled(self) -> list[Handled]:
        """Return what handlers recorded so far."""
        return recorded(self.record)

    def wait_handled(self, many: int, seconds: float) -> list[Handled]:
        """Wait until so many messages were recorded, or until the time is over. Returns all of them."""
        self.wait(lambda: len({(one.partition, one.offset) for one in self.handled()}) >= many, seconds)
        return self.handled()

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``done``, or until the time is over. Raises RuntimeError if a member ends by itself.

        Returns: whether it is done.
        """
        deadline, pause = Deadline(seconds), Event()
        while not done():
            if deadline.expired:
                return False
            self.check()
            pause.wait(_LOOK_S)
        return True

    def check(self) -> None:
        """Raise RuntimeError if a member has ended by itself."""
        for member in self.members:
            if not member.running:
                raise RuntimeError(f"a member ended by itself:\n{member.log_text()}")


@contextmanager
def group_of(
    cluster: DevCluster, name: str, way: Way, before: Callable[[str], object] = lambda _: None
) -> Iterator[BenchedGroup]:
    """A new topic and a group whose members are ready and have settled. They are ended with the block.

    Arguments: ``before`` gets the topic before a member starts.
    """
    cluster.create_topic(name, PARTITIONS)
    before(name)
    with tempfile.TemporaryDirectory(prefix="zkconsumer-bench-") as folder, ExitStack() as ending:
        record = Path(folder) / "handled"
        os.environ[RECORD_FILE] = str(record)  # the members' processes and their workers inherit the variable
        members = [BalanceMember(cluster, name, name, way) for _ in range(way.processes)]
        for member in members:
            ending.callback(member.close)
            member.start()
        for member in members:
            member.wait_ready(READY_S)
        Event().wait(_SETTLED_S)
        yield BenchedGroup(name, members, record)
        for member in members:
            if member.pid is not None:
                os.kill(member.pid, signal.SIGTERM)  # all at the same time


def even_keys(messages: int, keys: int) -> list[bytes]:
    """Return the keys of messages, each key as likely as the others; the same ones each time."""
    return [b"%d" % key for key in Random(16).choices(range(keys), k=messages)]


def zipf_keys(messages: int, keys: int, exponent: float) -> list[bytes]:
    """Return the keys of messages, where the n-th key has 1/n**exponent of the messages of the first."""
    weights = list(accumulate(1 / rank**exponent for rank in range(1, keys + 1)))
    return [b"%d" % key for key in Random(16).choices(range(keys), cum_weights=weights, k=messages)]


def ideal_seconds(keys: Sequence[bytes], workers: int, each: float) -> float:
    """Return the time in which so many workers can handle these messages at best.

    A message takes ``each`` seconds, and messages of one key are handled in turn.
    """
    return max(len(keys) * each / workers, max(Counter(keys).values()) * each)


def produce(bootstrap: str, topic: str, keys: Sequence[bytes]) -> None:
    """Write a message for each of the keys. Raises RuntimeError where not all arrive."""
    from confluent_kafka import Producer

    failures = Failures()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": 1, "queue.buffering.max.messages": 500_000}
    )
    for key in keys:
        while True:
            try:
                producer.produce(topic, _VALUE, key, on_delivery=failures)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(60.0) or failures:
        raise RuntimeError(f"not everything was produced: {failures[:3]}")
