"""The original's algorithm on the simulated ZooKeeper: a member's reads, writes and waits, in their order.

A model of ``ZookeeperConsumerConnector.syncedRebalance`` of Kafka 1.1.1 with its defaults, with offsets in ZooKeeper
and a static subscription to one topic. Each change of the members wakes every member. Each member reads every
registration anew, stops, commits and releases all its partitions. Then it claims its new partitions node by node. If
one is not free, it takes the claims back and sleeps. After four attempts it gives up until the next change.

In the original's favour, computing and the stop and start of fetchers take no time. ZkClient's own reads of watched
nodes are left out, except for the listing that sets a watch again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from scripts.measurements.scale.owners import range_owners
from scripts.measurements.scale.wire import LATENESS_S, Costs, CountedServer
from tests.simulated_clock import Mailbox
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.node_values import NodeEvent

COSTS = Costs()
ATTEMPTS = 4
BACKOFF_S = 2.0
WAKES_S = 1.0
_REGISTRATION = {"version": 1, "pattern": "static", "timestamp": "1795230310008"}


class OriginalMember:
    """One member, from its start. ``gave_up`` counts how often it did."""

    def __init__(self, server: CountedServer, group: str, name: str, topic: str) -> None:
        self.consumer = f"{group}_{name}"
        self.gave_up = 0
        self._simulation = server.simulation
        self._topic = topic
        self._ids = f"/consumers/{group}/ids"
        self._owners = f"/consumers/{group}/owners/{topic}"
        self._offsets = f"/consumers/{group}/offsets/{topic}"
        self._wanted: Mailbox[str] = Mailbox(server.simulation)
        self._noticed: Mailbox[str] = Mailbox(server.simulation)
        self._owned: list[int] = []
        self._consumed: set[int] = set()
        self._stopping = False
        self._late = server.simulation.chance.uniform(0.0, LATENESS_S)
        self.session = server.connect(lambda _: None, COSTS)
        self.task = server.simulation.start(self.consumer, self._run)
        self._listener = server.simulation.start(f"{self.consumer}-events", self._listen)

    # ---- its threads ----

    def _run(self) -> None:
        deadline = Deadline(3600)
        self.session.open(deadline)
        content = {**_REGISTRATION, "subscription": {self._topic: 1}}
        data = json.dumps(content, separators=(",", ":")).encode()
        self.session.create(f"{self._ids}/{self.consumer}", data, deadline, ephemeral=True)
        self.session.children(self._ids, deadline, self._fired)
        self.session.stat([f"/brokers/topics/{self._topic}"], deadline, self._fired)
        self._rebalance(deadline)
        while True:
            if self._wanted.get() == "stop":
                break
            while not self._wanted.empty():  # events during a rebalance are one more
                self._stopping |= self._wanted.get_nowait() == "stop"
            if self._stopping:
                break
            self._rebalance(Deadline(3600))
        self._commit(Deadline(3600))
        self.session.close(deadline)

    def _listen(self) -> None:
        while True:
            path = self._noticed.get()
            self._simulation.sleep_until(self._simulation.now + self._late)
            if path == self._ids and self.session.connected:
                self.session.children(path, Deadline(3600), self._fired)
            self._wanted.put("change")

    def _fired(self, event: NodeEvent) -> None:
        self._noticed.put(event.path)

    # ---- the algorithm ----

    def _rebalance(self, deadline: Deadline) -> None:
        for _ in range(ATTEMPTS):
            if self._stopping:
                return
            self._brokers(deadline)
            if self._attempt(deadline):
                return
            self._simulation.sleep_until(self._simulation.settle_cpu() + BACKOFF_S)
        self.gave_up += 1

    def _brokers(self, deadline: Deadline) -> None:
        for broker in self.session.children("/brokers/ids", deadline) or ():
            self._read(f"/brokers/ids/{broker}", deadline)

    def _attempt(self, deadline: Deadline) -> bool:
        me = f"{self._ids}/{self.consumer}"
        if not self._read(me, deadline):
            return False
        self._brokers(deadline)
        self._commit(deadline)
        for number in self._owned:
            self.session.delete(f"{self._owners}/{number}", deadline)
        self._owned = []
        self._read(me, deadline)
        members = self.session.children(self._ids, deadline, self._fired) or ()
        if not all(self._read(f"{self._ids}/{member}", deadline) for member in members):
            return False  # one left meanwhile
        topic = json.loads(self._read(f"/brokers/topics/{self._topic}", deadline))
        members = self.session.children(self._ids, deadline, self._fired) or ()
        threads = [f"{member}-0" for member in members]
        assigned = range_owners(threads, len(topic["partitions"]))
        mine = [number for number, thread in assigned.items() if thread == f"{self.consumer}-0"]
        for number in mine:
            self._read(f"{self._offsets}/{number}", deadline)
        return self._claim(mine, deadline)

    def _claim(self, mine: Sequence[int], deadline: Deadline) -> bool:
        thread = f"{self.consumer}-0".encode()
        made, free = [], True
        for number in mine:
            path = f"{self._owners}/{number}"
            if self.session.create(path, thread, deadline, ephemeral=True):
                made.append(number)
            elif self._read(path, deadline) != thread:
                free = False
        if free:
            self._owned = list(mine)
            return True
        for number in made:
            self.session.delete(f"{self._owners}/{number}", deadline)
        return False

    def _commit(self, deadline: Deadline) -> None:
        for number in self._owned:
            if number in self._consumed:
                self.session.write(f"{self._offsets}/{number}", b"12346", deadline)
        self._consumed.clear()

    def _read(self, path: str, deadline: Deadline) -> bytes:
        (node,) = self.session.read([path], deadline)
        return b"" if node is None else node.data

    # ---- what is done to it ----

    def progress(self) -> None:
        """Something was consumed of every partition it owns."""
        self._consumed.update(self._owned)

    def stop(self) -> None:
        """Ask it to leave cleanly."""
        self._stopping = True
        self._wanted.put("stop")

    def crash(self) -> None:
        """Its process is gone; its session lives until :meth:`expire`."""
        self._simulation.end(self.task)
        self._simulation.end(self._listener)

    def expire(self) -> None:
        """ZooKeeper ends its session."""
        self.session.expire_unnoticed()
