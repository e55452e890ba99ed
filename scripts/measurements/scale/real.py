"""Times of real members that share a topic of many partitions, beside Scala 1.1.1 on the same servers.

Four members join in turn, a member leaves cleanly, a member is killed. The time of a join begins with the member's
registration, that of a leave with the signal, that of a kill with the end of its session in ZooKeeper. It ends when
every partition is with its thread and stays there.

Meanwhile messages flow on some partitions. "flowing" is the time until the last of these flows again. The largest gap
is that of partitions that keep their owner. Beside it stands the largest gap before the change, which shows how quiet
the machine is.

Both sides take turns, with their defaults except for the session timeout.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median
from time import time
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType

from scripts.measurements.bench import machine
from scripts.measurements.scale.flow import Flow, largest_gap
from scripts.measurements.scale.owners import Owner, OwnerNodes, range_owners
from tests.cluster.in_process import client_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import MemberProcess
from tests.cluster.our_member import OurMember
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

SCALA = "1.1.1"
OURS, ORIGINAL = "zkconsumer", f"Scala {SCALA}"
MEMBERS = 4
SESSION_S = 6.0
BEAT_S = 0.025
SAMPLES = 20
STEADY_S = 1.5
LIMIT_S = 60.0
# the original's own defaults, over those with which the tests hurry it
DEFAULTS = {
    "zookeeper.sync.time.ms": 2000,
    "rebalance.backoff.ms": 2000,
    "rebalance.max.retries": 4,
    "refresh.leader.backoff.ms": 200,
    "auto.offset.reset": "largest",
    "auto.commit.interval.ms": 60000,
}
_groups = itertools.count(1)


def measure(
    turns: int = 1,
    partitions: int = 500,
    *,
    sides: tuple[str, ...] = (OURS, ORIGINAL),
    session_s: float = SESSION_S,
) -> dict[str, Any]:
    """Both sides in turns. Returns: ``steps``, for each step and side the median, least and greatest seconds until it
    was over ("seconds") and all flowed again ("flowing"), and of the largest gap on partitions that kept their owner;
    ``turns`` holds every single figure.
    """
    found: list[dict[str, Any]] = []
    load = [machine.load()]
    with DevCluster(tick_ms=500) as cluster:
        topic = f"scale-{partitions}"
        cluster.create_topic(topic, partitions)
        samples = range(partitions // SAMPLES // 2, partitions, max(1, partitions // SAMPLES))
        with (
            Flow(cluster.bootstrap_servers, topic, samples, BEAT_S) as flow,
            client_of(cluster.zookeeper_connect) as client,
        ):
            for turn in range(turns):
                for side in sides if turn % 2 == 0 else sides[::-1]:
                    group = f"scale-{os.getpid()}-{next(_groups)}"
                    nodes = OwnerNodes(client, group, topic, partitions)
                    with ExitStack() as ends:
                        steps = _Turn(
                            side, cluster, client, group, topic, partitions, nodes, flow, ends, session_s
                        ).run()
                    found.append({"turn": turn, "side": side, "load_average": machine.load(), "steps": steps})
    load.append(machine.load())
    return {
        "partitions": partitions,
        "members": MEMBERS,
        "session_timeout_s": session_s,
        "fetch_wait_s": 0.1,
        "beat_s": BEAT_S,
        "load_average": load,
        "steps": {step: _summary(found, step) for step in found[0]["steps"]} if found else {},
        "turns": found,
    }


def _summary(found: list[dict[str, Any]], step: str) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for side in dict.fromkeys(one["side"] for one in found):
        figures = [one["steps"][step] for one in found if one["side"] == side]
        for name in ("seconds", "flowing", "gap", "gap_before"):
            known = [figure[name] for figure in figures if figure[name] is not None]
            if known:
                summary.setdefault(side, {})[name] = [round(f(known), 3) for f in (median, min, max)]
        kept = [figure["kept_nodes"] for figure in figures]
        summary[side]["kept_nodes"] = kept[0] if len(set(kept)) == 1 else kept
    return summary


class _Turn:
    """One side's group, from the first join to the kill."""

    def __init__(
        self,
        side: str,
        cluster: DevCluster,
        client: KazooClient,
        group: str,
        topic: str,
        partitions: int,
        nodes: OwnerNodes,
        flow: Flow,
        ends: ExitStack,
        session_s: float,
    ) -> None:
        self._session_s = session_s
        self._side = side
        self._cluster = cluster
        self._client = client
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._nodes = nodes
        self._flow = flow
        self._ends = ends
        self._members: dict[str, MemberProcess] = {}
        self._gone: list[MemberProcess] = []
        self._owners: dict[int, Owner] = {}
        self._pause = threading.Event()

    def run(self) -> dict[str, Any]:
        """Returns: for each step its figures."""
        steps = {}
        for name in (f"c{number}" for number in range(1, MEMBERS + 1)):
            steps[f"join {name[1:]}"] = self._step(partial(self._join, name))
        steps["leave"] = self._step(lambda: self._leave("c3"))
        steps["kill"] = self._step(lambda: self._kill("c2"))
        return steps

    def _step(self, act: Callable[[], tuple[float, float]]) -> dict[str, Any]:
        before, steady_from = self._owners, time()
        if before:
            self._pause.wait(STEADY_S)
        acted, counts_from = act()
        wanted = range_owners([self._thread(name) for name in self._members], self._partitions)
        self._owners = self._nodes.settled(wanted, scaled(LIMIT_S))
        over = max(owner.at for owner in self._owners.values())
        flowing = self._flows(over)
        stayed = [n for n, owner in self._owners.items() if n in before and before[n].thread == owner.thread]
        watched = sorted(set(stayed) & set(self._flow.partitions))
        messages = [message for member in (*self._members.values(), *self._gone) for message in member.messages]
        return {
            "seconds": round(over - counts_from, 3),
            "flowing": round(flowing - counts_from, 3),
            "gap": _rounded(largest_gap(messages, watched, acted, flowing)),
            "gap_before": _rounded(largest_gap(messages, watched, steady_from + 0.2, acted)) if before else None,
            "stayed": len(stayed),
            "kept_nodes": sum(before[n].czxid == self._owners[n].czxid for n in stayed),
        }

    def _flows(self, over: float) -> float:
        """Wait for a message of each partition from its owner after that moment; returns when the last one came."""
        came: dict[int, float] = {}

        def all_came() -> bool:
            for name, member in self._members.items():
                mine = {n for n in self._flow.partitions if self._owners[n].thread == self._thread(name)} - came.keys()
                for message in reversed(member.messages) if mine else ():
                    if message.at < over:
                        break
                    if message.partition in mine:
                        came[message.partition] = message.at
            return len(came) == len(self._flow.partitions)

        eventually(all_came, LIMIT_S, "a message of each partition from its new owner")
        return max(came.values())

    def _thread(self, name: str) -> str:
        return f"{self._group}_{name}-0"

    def _join(self, name: str) -> tuple[float, float]:
        session = {"zookeeper.session.timeout.ms": int(self._session_s * 1000)}
        properties = {**DEFAULTS, **session, "consumer.id": name}
        wanted = {self._topic: 1}
        connect = self._cluster.zookeeper_connect
        member: MemberProcess
        if self._side == OURS:
            member = OurMember(connect, self._group, wanted, properties=properties)
        else:
            member = LegacyMember(SCALA, connect, self._group, wanted, properties=properties, heap_mb=256)
        self._ends.callback(member.close)
        acted = time()
        member.start()
        self._members[name] = member
        member.wait_ready(60)
        return acted, self._nodes.registered_at(f"{self._group}_{name}")

    def _leave(self, name: str) -> tuple[float, float]:
        member = self._members.pop(name)
        self._gone.append(member)
        acted = time()
        member.stop()
        return acted, acted

    def _kill(self, name: str) -> tuple[float, float]:
        expired = threading.Event()
        at: list[float] = []

        def changed(event: Any) -> None:
            if event.type == EventType.DELETED:
                at.append(time())
                expired.set()

        self._client.exists(f"/consumers/{self._group}/ids/{self._group}_{name}", watch=changed)
        member = self._members.pop(name)
        self._gone.append(member)
        acted = time()
        member.kill()
        if not expired.wait(scaled(self._session_s * 3)):
            raise AssertionError(f"the session of {name} does not end")
        return acted, at[0]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def table(measured: dict[str, Any]) -> str:
    """Medians in seconds, in Markdown, with the least and the greatest; each cell ours / the original's."""
    lines = [
        "| step | owned | ratio | flowing | largest gap, staying | largest gap before |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for step, found in measured["steps"].items():
        sides = [found[side] for side in (OURS, ORIGINAL) if side in found]
        ratio = f"{sides[0]['seconds'][0] / sides[1]['seconds'][0]:.2f}" if len(sides) == 2 else "-"
        owned, flowing, gap, before = (
            " / ".join(_range(side.get(name)) for side in sides) for name in ("seconds", "flowing", "gap", "gap_before")
        )
        lines.append(f"| {step} | {owned} | {ratio} | {flowing} | {gap} | {before} |")
    return "\n".join(lines)


def _range(figures: list[float] | None) -> str:
    return "-" if figures is None else f"{figures[0]:.2f} ({figures[1]:.2f}-{figures[2]:.2f})"
