"""A rolling restart of real members on a real ZooKeeper and broker: the partitions that change their owner.

All members run in this process. A member leaves, starts again when the owner nodes have come to rest, and the next one
follows when they rest again. A partition has moved if another member owns it than the last time it had an owner.
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from threading import Event
from time import monotonic
from typing import Any

from kazoo.client import KazooClient

from scripts.measurements.scale.owners import OwnerNodes
from tests.timing import scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

REST_S = 1.5
LIMIT_S = 60.0
POLL_S = 0.05
TOPIC = "rolling"
_groups = itertools.count(1)


def measure(ways: tuple[tuple[str, bool], ...], partitions: int = 500, members: int = 10) -> list[dict[str, Any]]:
    """Restart every member once, for each strategy and whether names last. Returns the moves and seconds of each."""
    with ExitStack() as ends:
        cluster = ends.enter_context(DevCluster(tick_ms=500))
        cluster.create_topic(TOPIC, partitions)
        client = KazooClient(cluster.zookeeper_connect, timeout=10.0)
        client.start(timeout=scaled(10.0))
        ends.callback(client.close)
        ends.callback(client.stop)
        return [_Rolling(cluster, client, strategy, lasting, partitions, members).run() for strategy, lasting in ways]


class _Rolling:
    """One group, restarted member by member."""

    def __init__(
        self, cluster: DevCluster, client: KazooClient, strategy: str, lasting: bool, partitions: int, members: int
    ) -> None:
        self._cluster = cluster
        self._group = f"rolling-{os.getpid()}-{next(_groups)}"
        self._strategy, self._lasting = strategy, lasting
        self._partitions, self._members = partitions, members
        self._nodes = OwnerNodes(client, self._group, TOPIC, partitions)
        self._last: dict[int, str] = {}
        self._moves = 0

    def run(self) -> dict[str, Any]:
        with ExitStack() as ends:
            running = {number: self._start(number, 0, ends) for number in range(self._members)}
            self._rest(self._partitions)
            self._moves = 0
            began = monotonic()
            for number in range(self._members):
                running.pop(number).shutdown()
                self._rest(None if self._lasting else self._partitions)
                running[number] = self._start(number, 1, ends)
                self._rest(self._partitions)
            seconds = monotonic() - began
        return {
            "strategy": self._strategy,
            "lasting": self._lasting,
            "partitions": self._partitions,
            "members": self._members,
            "moves": self._moves,
            "seconds": round(seconds, 1),
        }

    def _start(self, number: int, life: int, ends: ExitStack) -> ZookeeperConsumerConnector:
        name = f"host{number:02}"
        own = {"group.instance.id": name} if self._lasting else {"consumer.id": f"{name}-{life}"}
        made = ZookeeperConsumerConnector(
            {
                "zookeeper.connect": self._cluster.zookeeper_connect,
                "group.id": self._group,
                "partition.assignment.strategy": self._strategy,
                "auto.offset.reset": "smallest",
                **own,
            }
        )
        ends.callback(made.shutdown)
        made.create_message_streams({TOPIC: 1})
        return made

    def _rest(self, wanted: int | None) -> None:
        """Wait until nothing changes, and all are owned if a number is ``wanted``. Count the moves until then."""
        pause, end = Event(), monotonic() + scaled(LIMIT_S)
        before: dict[int, int] = {}
        since = monotonic()
        while monotonic() < end:
            owners = self._nodes.read()
            made = {number: owner.czxid for number, owner in owners.items()}
            if made != before:
                before, since = made, monotonic()
                for number, owner in owners.items():
                    member = owner.thread[len(self._group) + 1 :].partition("-")[0]
                    self._moves += self._last.get(number, member) != member
                    self._last[number] = member
            elif monotonic() - since >= REST_S and wanted in (None, len(owners)):
                return
            pause.wait(POLL_S)
        raise AssertionError(f"{self._group} does not come to rest: {len(before)} of {wanted} partitions are owned")
