"""A simulated group: its members, the faults that meet them, and the end in which all must be consumed and committed.

A step is a virtual second with faults. Afterwards the faults end. :mod:`tests.simulation.settings` lists the scenarios.
"""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue

import zkconsumer.connector
from tests.simulation import sockets
from tests.simulation.applications import SLOWEST
from tests.simulation.faults import Faults
from tests.simulation.members import Member
from tests.simulation.promises import BrokenPromise, Observer
from tests.simulation.scala_member import ScalaMember
from tests.simulation.scheduler import Process, World, enter
from tests.simulation.settings import STORES, Setting
from tests.simulation.zookeeper import SimulatedZooKeeper
from zkconsumer.model import TopicPartition
from zkconsumer.testing.fake_cluster import FakeCluster
from zkconsumer.wiring import Outside, build_member

BROKERS = 2
SESSION = 6.0
"""Seconds: the timeout of the sessions with ZooKeeper."""
SETTLES = 120.0
"""Seconds after the last fault in which all is consumed and committed."""


class Scenario:
    """One run. Arguments: ``seed``; ``steps`` are virtual seconds with faults; ``setting`` says what there is."""

    group, topic, partitions, brokers = "g", "t", 6, BROKERS
    observed_by: type[Observer] = Observer

    def __init__(self, seed: int, steps: int, setting: Setting) -> None:
        self.world = World(seed)
        enter(self.world)
        self.network = sockets.Network()
        sockets.enter(self.network)
        self.steps = steps
        self.setting = setting
        self.members: list[Member | ScalaMember] = []
        self.produced = dict.fromkeys(range(self.partitions), 0)
        self._violation = ""
        self._over = False
        self.properties = self._properties()
        self.zookeeper = SimulatedZooKeeper(session_timeout=SESSION)
        self.zookeeper.renewed = self._renewed
        self.cluster = FakeCluster(BROKERS, zookeeper=self.zookeeper)
        self.faults = Faults(self)
        partitions = [TopicPartition(self.topic, each) for each in range(self.partitions)]
        self.observer = self.observed_by(self.zookeeper, self.cluster, self.group, partitions, STORES[setting.storage])
        outside = Outside(
            session=lambda config, on_change: self.zookeeper.session(on_change), events=lambda: SimpleQueue()
        )
        vars(zkconsumer.connector)["build_member"] = partial(build_member, outside=outside)

    def _properties(self) -> dict[str, str | int]:
        chance, scala, storage = self.world.random, self.setting.scala, self.setting.storage
        return {
            "zookeeper.connect": "simulated:2181",
            "group.id": self.group,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 2000,
            "fetch.wait.max.ms": chance.choice([100, 500, 1000]),
            "zookeeper.session.timeout.ms": int(SESSION * 1000),
            "consumer.timeout.ms": 1000,
            "rebalance.backoff.ms": 2000,
            # the look every 20 s heals lost events, which would hide bugs, and what Scala members do to each other
            "rebalance.interval.ms": 20_000 if scala else chance.choice([20_000, 600_000]),
            "partition.assignment.strategy": "range" if scala else chance.choice(["range", "roundrobin", "sticky"]),
            "offsets.storage": "kafka" if storage in {"kafka", "dual"} else "zookeeper",
            "dual.commit.enabled": str(storage == "dual").lower(),
        }

    def broken(self, promise: str) -> None:
        """A promise is broken that a part of the scenario itself checks."""
        self.world.note(f"BROKEN {promise}")
        self._violation = self._violation or promise

    def run(self) -> World:
        """Run it. Raises BrokenPromise, Stuck, and whatever left a thread."""
        self.world.spawn("director", self._direct)
        self.world.go(lambda: self._over or bool(self._violation) or self.observer.broken)
        self.observer.check()
        if self._violation:
            raise BrokenPromise(self._violation)
        return self.world

    def _direct(self) -> None:
        self.cluster.start()
        self.cluster.create_topic(self.topic, self.partitions)
        self.world.spawn("server-clock", self._server_clock)
        for _ in range(2):
            self.join()
        chance = self.world.random
        for _ in range(self.steps):
            self._produce(chance.randrange(1, 40))
            if chance.random() < 0.1:
                self.faults.one()
            self.world.sleep(1.0)
        self._settle()
        self._end()
        self._over = True

    def _renewed(self, process: Process) -> None:
        member = next(one for one in self.members if one.process is process)
        self.observer.session_noticed(member.consumer)

    def _server_clock(self) -> None:
        while True:
            self.world.sleep(0.5)
            self.zookeeper.expire_silent()

    def _produce(self, count: int) -> None:
        partition = self.world.random.randrange(self.partitions)
        self.cluster.append(self.topic, partition, [b"v%d" % each for each in range(count)])
        self.produced[partition] += count

    def join(self, *, ours: bool = False) -> None:
        """Begin one more member."""
        number, scala = len(self.members), self.setting.scala
        member = None
        if scala and not ours and self.world.random.random() < scala:
            member = ScalaMember(self, number, self.group, self.topic, self.partitions)
        self.members.append(member or Member(self, number))
        self.members[-1].start()

    def live(self) -> list[Member | ScalaMember]:
        """Return the members that live and were not asked to leave."""
        return [member for member in self.members if member.usable]

    # ---- the end

    def _settle(self) -> None:
        self.faults.end()
        self._join_if_needed()
        self.world.note("the faults have ended")
        end = self.world.now + SETTLES
        while (left := self._not_done()) and self.world.now < end:
            self.world.sleep(1.0)
            self._join_if_needed()
        if left:
            self.broken(f"{SETTLES:g} s after the last fault: {left}")

    def _join_if_needed(self) -> None:
        """Have a member of ours at least: a group of Scala members that have given up stays as it is."""
        if not any(isinstance(member, Member) for member in self.live()):
            self.join(ours=True)

    def _not_done(self) -> str:
        for tp, seen in self.observer.partitions.items():
            if seen.owner is None:
                return f"{tp} has no owner"
            for store, offset in seen.committed.items():
                if (offset or 0) < self.produced[tp.partition]:
                    return f"{tp} is committed up to {offset} of {self.produced[tp.partition]} in {store}"
        owners = {seen.owner for seen in self.observer.partitions.values()}
        live = [member for member in self.live() if member.consumer]
        if len(live) <= self.partitions // 2:  # each has two threads
            return next((f"{member.name} owns nothing" for member in live if member.consumer not in owners), "")
        return ""

    def _end(self) -> None:
        # threads of a frozen member cannot end
        self.world.sleep(max(0.0, *(member.process.frozen_until - self.world.now for member in self.members)))
        for member in self.live():
            member.leave()
        self.world.sleep(5.0 + SLOWEST)
        for task in self.world.tasks:
            if task.process is not self.world.system and task.process.alive:
                self.broken(f"{task} is still there after the shutdown, and waits for {task.waits_for}")
