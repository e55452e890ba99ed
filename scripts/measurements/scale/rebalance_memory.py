"""Memory of a member over thousands of rebalances, on a real ZooKeeper and a real broker.

The command is ``python -m scripts.measurements.scale.rebalance_memory --rebalances 10000``. It takes about an hour.

Two members stay in a group, each in its own process. A third process joins the group and leaves it, again and again,
each time as a new member. Meanwhile messages flow. The first staying member runs without tracemalloc and shows its
resident memory. The second one shows the memory that Python traces, the number of objects, and at the end the places
that allocated more than after the warm-up.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic
from typing import Any

from scripts.measurements.bench import machine
from tests.cluster.conftest import TICK_MS, unique
from tests.cluster.member_process import QUICK
from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

PARTITIONS = 8
BEAT_S = 0.05
FRAMES = 12
PLACES = 12
WATCH_S = 0.05
STUCK_S = 60.0
"""The group must finish a rebalance within this time."""


def _figures(rebalances: int) -> dict[str, int]:
    for _ in range(3):
        gc.collect()
    traced = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
    resident = machine.resident_mib(os.getpid()) or 0.0
    return {
        "rebalances": rebalances,
        "resident_kib": round(resident * 1024),
        "traced_bytes": traced,
        "objects": len(gc.get_objects()),
    }


def _tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _connector(task: dict[str, Any]) -> ZookeeperConsumerConnector:
    return ZookeeperConsumerConnector(
        {
            **QUICK,
            "zookeeper.session.timeout.ms": 8_000,
            "zookeeper.connect": task["zookeeper"],
            "group.id": task["group"],
        }
    )


def _drain(stream: Any) -> threading.Thread:
    def read() -> None:
        for _ in stream:
            pass

    thread = threading.Thread(target=read, name="drain")
    thread.start()
    return thread


def stay(task: dict[str, Any]) -> None:
    """Stay in the group for so many rebalances, and tell figures now and then."""
    if task["trace"]:
        tracemalloc.start(FRAMES)
    snapshot, due, pause = None, task["every"], threading.Event()
    with _connector(task) as connector:
        reader = _drain(connector.create_message_streams({task["topic"]: 1})[task["topic"]][0])
        _tell(joined=True)
        while (done := connector.state.rebalances) < task["rebalances"]:
            if done >= due:
                _tell(**_figures(done))
                if task["trace"] and snapshot is None and done >= task["warm_up"]:
                    snapshot = tracemalloc.take_snapshot()
                due += task["every"]
            pause.wait(WATCH_S)
        _tell(**_figures(done))
        if snapshot is not None:
            later = tracemalloc.take_snapshot()
            ignored = (tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__))
            found = later.filter_traces(ignored).compare_to(snapshot.filter_traces(ignored), "traceback")
            for one in found[:PLACES]:
                _tell(more=one.size_diff, blocks=one.count_diff, place=one.traceback.format())
    reader.join()


def churn(task: dict[str, Any]) -> None:
    """Join the group as a new member, own partitions, and leave; for ever."""
    for life in range(1, sys.maxsize):
        with _connector(task) as connector:
            reader = _drain(connector.create_message_streams({task["topic"]: 1})[task["topic"]][0])
        reader.join()
        if life % task["every"] == 0:
            _tell(**_figures(life))


class _Member:
    """One of the processes. A thread keeps what it tells."""

    def __init__(self, role: str, task: dict[str, Any]) -> None:
        self.told: list[dict[str, Any]] = []
        command = [sys.executable, "-m", __spec__.name, "--member", role, json.dumps(task)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._listener = threading.Thread(target=self._listen, args=(task["name"],), daemon=True)
        self._listener.start()

    def _listen(self, name: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.told.append(told)
            place = told.pop("place", ())
            print(name, told, *place, sep="\n    " if place else " ", flush=True)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()


@contextmanager
def _flow(bootstrap_servers: str, topic: str) -> Iterator[None]:
    """A message every 50 ms meanwhile."""
    from confluent_kafka import Producer

    producer, stop = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0}), threading.Event()

    def flow() -> None:
        number = 0
        while not stop.wait(BEAT_S):
            producer.produce(topic, b"x" * 100, partition=number % PARTITIONS)
            producer.poll(0)
            number += 1

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        producer.flush(10)


def growth(told: list[dict[str, Any]], key: str, warm_up: int) -> float | None:
    """Return the growth of a figure for each rebalance, from the end of the warm-up to the last figure."""
    figures = [one for one in told if one.get("rebalances", 0) >= warm_up]
    if len(figures) < 2:
        return None
    first, last = figures[0], figures[-1]
    more: float = last[key] - first[key]
    return more / float(last["rebalances"] - first["rebalances"])


def run(rebalances: int, warm_up: int, every: int) -> None:
    """Run the three processes, and print their figures."""
    begun = monotonic()
    with ExitStack() as ends:
        cluster = ends.enter_context(DevCluster(tick_ms=TICK_MS))
        topic, group = unique("memory"), unique("memory")
        cluster.create_topic(topic, PARTITIONS)
        ends.enter_context(_flow(cluster.bootstrap_servers, topic))
        task = {
            "zookeeper": cluster.zookeeper_connect,
            "topic": topic,
            "group": group,
            "rebalances": rebalances,
            "warm_up": warm_up,
            "every": every,
        }
        members = {}
        for name, role, trace in (("plain", "stay", False), ("traced", "stay", True), ("joins", "churn", False)):
            member = members[name] = _Member(role, {**task, "name": name, "trace": trace})
            ends.callback(member.close)
            if role == "stay":
                eventually(partial(len, member.told), STUCK_S, f"{name} to join")
        for name in ("plain", "traced"):
            while members[name].process.poll() is None:
                assert members["joins"].process.poll() is None, "the joining process ended"
                threading.Event().wait(1.0)
            assert members[name].process.returncode == 0, f"{name} failed"
    print(f"{rebalances} rebalances in {monotonic() - begun:.0f} s; for each one after {warm_up}:")
    resident = growth(members["plain"].told, "resident_kib", warm_up)
    traced = [growth(members["traced"].told, key, warm_up) for key in ("traced_bytes", "objects")]
    print(
        f"resident memory {(resident or 0) * 1024:+.0f} bytes, traced {traced[0]:+.0f} bytes, {traced[1]:+.3f} objects"
    )


def main() -> None:
    """Run the measurement of the command line, or one of its processes."""
    parser = argparse.ArgumentParser(prog="python -m scripts.measurements.scale.rebalance_memory", description=__doc__)
    parser.add_argument("--rebalances", type=int, default=10_000, metavar="N")
    parser.add_argument("--warm-up", type=int, default=2_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--every", type=int, default=500, metavar="N", help="rebalances between two figures")
    parser.add_argument("--member", nargs=2, metavar=("ROLE", "TASK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        role, task = arguments.member
        {"stay": stay, "churn": churn}[role](json.loads(task))
    else:
        run(arguments.rebalances, arguments.warm_up, arguments.every)


if __name__ == "__main__":
    main()
