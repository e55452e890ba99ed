"""The processes of the peers: their start, their samples from outside, their end.

One thread calls; each peer has a thread that reads its output. Every process ends with this one.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scripts.measurements.bench import machine
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import MemberProcess
from tests.cluster.peer_members import JavaMember
from zkconsumer.devcluster import DevCluster

READY_S = 60.0
_TURN_S = 300.0
_SAMPLE_S = 0.02

OURS = "zkconsumer"
SCALA = "1.1.1"
JAVA = "3.9.1"
HEAP_MB = 512
# each peer commits every 5 s; all other settings are its defaults
GROUP = {"auto.offset.reset": "smallest", "auto.commit.interval.ms": "5000"}
TUNED = {
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 5000,
    "fetch.queue.backoff.ms": 2,  # 1000 by default, which stalls it whenever its queue is full
    "queued.min.messages": 100000,
}
POLLED = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": "5000"}
MANY_POLLED = {**POLLED, "max.poll.records": "10000"}  # 500 by default: a poll then costs as much as its records
WARM_UP = 2
"""Passes over all messages before Java's consumer counts. A third pass of two million messages took a third less CPU
time than the first one, and later ones took no less than the third.
"""


class Task(NamedTuple):
    """A peer's task: consume ``total`` messages of ``topic`` as a new ``group``, with this number of ``streams``."""

    zookeeper: str
    bootstrap: str
    group: str
    topic: str
    total: int
    streams: int = 1


class Cost(NamedTuple):
    """The cost of a task, from "ready" to the end.

    ``cpu`` and ``broker_cpu`` are in seconds, ``peak_mib`` is resident memory. ``seconds`` is the time from the first
    message to the last. ``later_rate`` is the rate from the middle message on, when a JVM is warm, in messages a second
    (0: unknown). ``ages`` has the (stamp, age) of each message in ns, if the task wants them.
    """

    messages: int
    bytes: int
    seconds: float
    cpu: float
    broker_cpu: float
    peak_mib: float
    later_rate: float = 0.0
    ages: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Peer:
    """A way to consume: a ``kind`` of ``scripts.measurements.bench.peer``, the original, or Java's consumer.

    The latter two have the ``kind`` "scala" and "java", and a ``mode``. Each peer has ``properties`` of its own.
    ``warm_up``: Java's consumer reads all messages so many times before it is ready. A JVM compiles its code for some
    seconds, and a member that lives for days does not.
    """

    kind: str
    properties: Mapping[str, Any]
    mode: str = "count"
    extra: Mapping[str, Any] = field(default_factory=dict)
    warm_up: int = 0

    @contextmanager
    def open(self, task: Task, report: Path | None = None) -> Iterator[MemberProcess]:
        """The process, started, for the duration of the block."""
        member = {"scala": self._scala, "java": self._java}.get(self.kind, self._python)(task, report)
        try:
            yield member.start()
        finally:
            member.close()

    def _python(self, task: Task, report: Path | None) -> MemberProcess:
        told = {
            "kind": self.kind,
            "properties": dict(self.properties),
            **task._asdict(),
            **self.extra,
        }
        return PythonPeer(task, {**told, "report": str(report) if report else None})

    def _scala(self, task: Task, report: Path | None) -> MemberProcess:
        return LegacyMember(
            SCALA,
            task.zookeeper,
            task.group,
            {task.topic: task.streams},
            mode=self.mode,
            stop_after=task.total,
            properties={
                **self.properties,
                **({"member.report": report} if report else {}),
            },
            heap_mb=HEAP_MB,
        )

    def _java(self, task: Task, report: Path | None) -> MemberProcess:
        own = {"member.mode": self.mode, "member.stop.after": str(task.total), "member.warm.up": str(self.warm_up)}
        given = {**self.properties, **own, **({"member.report": str(report)} if report else {})}
        return JavaMember(
            task.bootstrap, task.group, task.topic, "range", JAVA, java_options=[f"-Xmx{HEAP_MB}m"], **given
        )


class PythonPeer(MemberProcess):
    """A process of ``scripts.measurements.bench.peer``."""

    who = "bench"

    def __init__(self, task: Task, told: Mapping[str, Any]) -> None:
        super().__init__(task.zookeeper, task.group, {task.topic: task.streams})
        self.arguments = {}
        self._task = json.dumps(told)

    def command(self) -> list[str]:
        """The whole task is one argument."""
        return [sys.executable, "-m", "scripts.measurements.bench.peer", self._task]


def measure(
    peer: Peer,
    task: Task,
    cluster: DevCluster,
    beside: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Cost:
    """Runs a peer from its start to its end. Arguments: ``beside`` is entered once the peer is ready."""
    with tempfile.TemporaryDirectory(prefix="zkconsumer-bench-") as folder:
        report = Path(folder) / "report"
        with peer.open(task, report) as process:
            process.wait_ready(READY_S)
            with beside():
                cost = follow(process, cluster)
        if cost.messages != task.total:
            raise RuntimeError(f"{peer.kind} consumed {cost.messages} messages of {task.total}")
        return _with_report(cost, report)


def follow(process: MemberProcess, cluster: DevCluster) -> Cost:
    """Follows a process from "ready" to its end."""
    process.wait_ready(READY_S)
    pid, broker_pid = process.pid, cluster.kafka.pid
    assert pid is not None
    assert broker_pid is not None
    cpu_before = cpu = machine.cpu_seconds(pid) or 0.0
    broker_before = broker = machine.cpu_seconds(broker_pid) or 0.0
    peak = 0.0
    pause = threading.Event()
    while process.running:
        cpu = max(cpu, machine.cpu_seconds(pid) or 0.0)
        peak = max(peak, machine.resident_mib(pid, peak=True) or 0.0)
        broker = machine.cpu_seconds(broker_pid) or broker
        pause.wait(_SAMPLE_S)
    totals = process.wait_end(_TURN_S)
    if totals is None:
        raise RuntimeError(f"the peer failed:\n{process.log_text()}")
    return Cost(*totals, round(cpu - cpu_before, 3), round(broker - broker_before, 3), peak)


def _with_report(cost: Cost, report: Path) -> Cost:
    lines = [line.split() for line in report.read_text().splitlines()] if report.exists() else []
    marks = sorted((int(count), float(seconds)) for word, count, seconds in lines if word == "mark")
    ages = tuple((int(stamp), int(age)) for word, stamp, age in lines if word == "late")
    middle = next(
        ((count, seconds) for count, seconds in marks if count * 2 >= cost.messages),
        None,
    )
    rate = 0.0
    if middle is not None and middle[0] < cost.messages:
        rate = (cost.messages - middle[0]) / (cost.seconds - middle[1])
    return cost._replace(later_rate=round(rate), ages=ages)


def percentile(values: list[int], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
