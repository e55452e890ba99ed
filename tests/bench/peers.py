"""Peers as seen by who measures them: started, sampled from outside, ended.

One thread calls; each peer has a thread that reads what it prints. Every process ends with this one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.bench import machine
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import MemberProcess

_READY_S = 60.0
_TURN_S = 300.0
_SAMPLE_S = 0.02


class Task(NamedTuple):
    """What a peer consumes: ``total`` messages of ``topic`` as a new ``group``."""

    zookeeper: str
    bootstrap: str
    group: str
    topic: str
    total: int


class Cost(NamedTuple):
    """What it took, from "ready" to the end: ``cpu`` and ``broker_cpu`` in seconds, ``peak_mib`` resident."""

    messages: int
    bytes: int
    seconds: float
    cpu: float
    broker_cpu: float
    peak_mib: float


class PythonPeer(MemberProcess):
    """A process of ``tests.bench.peer``."""

    who = "bench"

    def __init__(self, kind: str, task: Task, properties: dict[str, Any]) -> None:
        super().__init__(task.zookeeper, task.group, {task.topic: 1})
        self.arguments = {}
        self._task = json.dumps({"kind": kind, "properties": properties, **task._asdict()})

    def command(self) -> list[str]:
        """The whole task is one argument."""
        return [sys.executable, "-m", "tests.bench.peer", self._task]


@contextlib.contextmanager
def python_peer(kind: str, task: Task, properties: dict[str, Any]) -> Iterator[PythonPeer]:
    """A process of ours or with confluent-kafka, for the duration of the block."""
    peer = PythonPeer(kind, task, properties)
    try:
        yield peer.start()
    finally:
        peer.close()


@contextlib.contextmanager
def scala_peer(version: str, task: Task, properties: dict[str, Any], heap_mb: int) -> Iterator[LegacyMember]:
    """The original connector, for the duration of the block; it ends by itself after the last message."""
    member = LegacyMember(
        version,
        task.zookeeper,
        task.group,
        {task.topic: 1},
        mode="count",
        stop_after=task.total,
        properties=properties,
        heap_mb=heap_mb,
    )
    try:
        yield member.start()
    finally:
        member.close()


def measure(peer: MemberProcess, broker_pid: int) -> Cost:
    """Follows a peer from "ready" to its end."""
    peer.wait_ready(_READY_S)
    pid = peer.pid
    assert pid is not None
    cpu_before = cpu = machine.cpu_seconds(pid) or 0.0
    broker_before = broker = machine.cpu_seconds(broker_pid) or 0.0
    peak = 0.0
    pause = threading.Event()
    while peer.running:
        cpu = max(cpu, machine.cpu_seconds(pid) or 0.0)
        peak = max(peak, machine.resident_mib(pid, peak=True) or 0.0)
        broker = machine.cpu_seconds(broker_pid) or broker
        pause.wait(_SAMPLE_S)
    totals = peer.wait_end(_TURN_S)
    if totals is None:
        raise RuntimeError(f"the peer failed:\n{peer.log_text()}")
    return Cost(*totals, round(cpu - cpu_before, 3), round(broker - broker_before, 3), peak)
