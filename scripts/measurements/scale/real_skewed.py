"""``lag-aware`` under a skewed load on a real ZooKeeper and broker: one hot partition, and one slow member.

All members run in this process. The times by which loads are measured and judged are shortened, by
:func:`shorter_times`. So a minute here is worth many.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from scripts.measurements.scale.flow import Flow
from tests.timing import scaled
from zkconsumer import KafkaStream, ZookeeperConsumerConnector
from zkconsumer.assignors import lag_aware_placement, placement_decision
from zkconsumer.core.placement_plan import PlacementPlan, decode_plan
from zkconsumer.devcluster import DevCluster
from zkconsumer.member.zookeeper import placement_node

PARTITIONS = 12
HOT_BEAT_S, BEAT_S = 0.0025, 0.025
SLOW_S = 0.02
POLL_S = 0.05
PROPERTIES: Mapping[str, str | int] = {
    "partition.assignment.strategy": "lag-aware",
    "auto.offset.reset": "smallest",
    "zookeeper.session.timeout.ms": 15_000,
    "rebalance.backoff.ms": 4_000,
    "rebalance.drain.timeout.ms": 10_000,
    "fetch.message.max.bytes": 4_096,  # so that the stream of a slow reader is full soon
}


@contextmanager
def shorter_times(factor: float) -> Iterator[None]:
    """Measure and judge loads so many times as often, while the block runs."""
    with ExitStack() as changed:
        for module, name in (
            (placement_decision, "LOOK_EVERY_S"),
            (placement_node, "PUBLISH_EVERY_S"),
            (lag_aware_placement, "CATCH_UP_S"),
            (lag_aware_placement, "BEHIND_S"),
        ):
            changed.enter_context(patch.object(module, name, getattr(module, name) / factor))
        yield


class Change(NamedTuple):
    """A new plan: the time at which it was seen, the version, and the number of moved partitions."""

    at: float
    version: int
    moved: int


class SkewedGroup:
    """Three members, the last of which is slow, and a flow of messages with one hot partition.

    A ``with`` block starts and ends them. The threads are named after the members.
    """

    def __init__(self, zookeeper_connect: str, bootstrap_servers: str, topic: str, group: str) -> None:
        self._zookeeper, self._bootstrap = zookeeper_connect, bootstrap_servers
        self._topic, self._group = topic, group
        self._client = KazooClient(zookeeper_connect, timeout=10.0)
        self._ends = ExitStack()
        self._stop = threading.Event()
        self._plan: PlacementPlan | None = None
        self._version = -1
        self.changes: list[Change] = []
        self._places: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self._client.start(timeout=scaled(10.0))
            ends.callback(self._client.close)
            ends.callback(self._client.stop)
            for name, pause in (("a", 0.0), ("b", 0.0), ("slow", SLOW_S)):
                ends.callback(self._member(name, pause).shutdown)
            ends.callback(self._stop.set)
            ends.enter_context(Flow(self._bootstrap, self._topic, [0], HOT_BEAT_S))
            ends.enter_context(Flow(self._bootstrap, self._topic, range(1, PARTITIONS), BEAT_S))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _member(self, name: str, pause: float) -> ZookeeperConsumerConnector:
        own = {"zookeeper.connect": self._zookeeper, "group.id": self._group, "consumer.id": name}
        made = ZookeeperConsumerConnector({**PROPERTIES, **own})
        (stream,) = made.create_message_streams({self._topic: 1})[self._topic]
        threading.Thread(target=self._read, args=(stream, pause), name=name, daemon=True).start()
        return made

    def _read(self, stream: KafkaStream[Any, Any], pause: float) -> None:
        for message in stream:
            with self._lock:
                self._places[message.partition, message.offset] += 1
            if pause:
                self._stop.wait(pause)

    def look(self) -> PlacementPlan | None:
        """Note what the plan has become since the last call. Returns the plan."""
        try:
            data, stat = self._client.get(f"/consumers/{self._group}/placement")
        except NoNodeError:
            return None
        if stat.version != self._version:
            self._version, before, self._plan = stat.version, self._plan, decode_plan(data)
            was = {} if before is None else before.assignment
            moved = sum(was.get(tp, thread) != thread for tp, thread in self._plan.assignment.items())
            self.changes.append(Change(monotonic(), stat.version, moved))
        return self._plan

    def shares(self) -> Mapping[str, list[int]]:
        """Return the partitions that the plan gives to each member."""
        plan = self.look()
        found: dict[str, list[int]] = {"a": [], "b": [], "slow": []}
        for tp, thread in () if plan is None else sorted(plan.assignment.items()):
            found[thread[len(self._group) + 1 :].rpartition("-")[0]].append(tp.partition)
        return found

    def consumed(self) -> Mapping[tuple[int, int], int]:
        """Return how many times each message was handed out so far."""
        with self._lock:
            return dict(self._places)

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Look at the plan for so long, or until the condition holds. Returns whether it did."""
        end = monotonic() + seconds
        while monotonic() < end:
            self.look()
            if until():
                return True
            self._stop.wait(POLL_S)
        return False


def measure(seconds: float = 600.0, factor: float = 15.0) -> dict[str, Any]:
    """Let the group read for so long with so many times shorter times. Returns the moves, and when they were."""
    topic = "skewed"
    with DevCluster(tick_ms=500) as cluster, shorter_times(factor):
        cluster.create_topic(topic, PARTITIONS)
        with SkewedGroup(cluster.zookeeper_connect, cluster.bootstrap_servers, topic, f"skewed-{os.getpid()}") as group:
            group.watch(scaled(60.0), lambda: all(group.shares().values()))
            began, first = monotonic(), len(group.changes)
            group.watch(seconds)
            consumed = group.consumed()
            moves = [(round(one.at - began, 1), one.moved) for one in group.changes[first:]]
            return {
                "seconds": seconds,
                "times as often": factor,
                "plans": len(moves),
                "moves": sum(moved for _, moved in moves),
                "moves in the second half": sum(moved for at, moved in moves if at > seconds / 2),
                "when": moves,
                "shares": {name: len(numbers) for name, numbers in group.shares().items()},
                "with the hot partition": next(name for name, numbers in group.shares().items() if 0 in numbers),
                "messages": len(consumed),
                "twice": sum(count > 1 for count in consumed.values()),
            }
