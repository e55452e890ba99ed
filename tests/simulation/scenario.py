"""A simulated group: its members, the faults that meet them, and the end in which all must be consumed and committed.

A step is a virtual second with faults. Afterwards the faults end. :mod:`tests.simulation.settings` lists the scenarios.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import zkconsumer.cluster.cluster_client
import zkconsumer.connector.subscribed_streams
from tests.simulation import sockets
from tests.simulation.faults import Faults
from tests.simulation.members import SLOWEST, WAITS, Member
from tests.simulation.promises import BrokenPromise, Observer
from tests.simulation.scala_member import ScalaMember
from tests.simulation.scheduler import Process, World, enter
from tests.simulation.settings import STORES, Setting
from tests.simulation.zookeeper import SimulatedZooKeeper
from zkconsumer.model import TopicPartition
from zkconsumer.testing.fake_cluster import FakeCluster
from zkconsumer.wiring import MemberEnvironment, build_member

BROKERS = 2
SESSION = 6.0  # seconds: the timeout of the sessions with ZooKeeper
STANDS = 60.0  # seconds without faults in which something must be done of what is left, mostly an offset committed
SETTLES = 900.0
"""Seconds after the last fault in which all is consumed and committed, also where each statement is slow."""
SLOW_FOR = 300.0
"""Seconds after the last fault for which slow places stay slow. With one in a loop over 1,000 parked messages, each of
them takes half a minute."""
PERIODS = (10, 20, 60)
"""Steps after which the faults pause until all is consumed and committed. The seed chooses one."""


class Scenario:
    """One run.

    Arguments: ``seed``; ``steps`` are virtual seconds with faults; ``setting`` says what there is; ``without`` are the
    numbers of faults that are left out, from 1 on.
    """

    group, topic, partitions, brokers, stands_slowly = "g", "t", 6, BROKERS, STANDS
    faults_class: type[Faults] = Faults
    observer_class: type[Observer] = Observer
    settled = 0.0  # the most seconds after the last fault of a period until all was consumed and committed
    calm = False  # whether there was no fault for long
    _over = False

    def __init__(self, seed: int, steps: int, setting: Setting, without: Sequence[int] = ()) -> None:
        self.world = World(seed)
        enter(self.world)
        self.network = self.world.network = sockets.Network()
        self.steps = steps
        self.setting = setting
        self.members: list[Member | ScalaMember] = []
        self.at_end = ExitStack()  # what is done after the run, whatever came of it
        self.topics = {self.topic: self.partitions} | ({"u": setting.second} if setting.second else {})
        self.properties = self.choose_properties()
        self.zookeeper = SimulatedZooKeeper(session_timeout=SESSION)
        self.zookeeper.renewed = self._renewed
        self.cluster = FakeCluster(BROKERS, zookeeper=self.zookeeper)
        self.faults = self.faults_class(self, without)
        self.observer = self.observer_class(self)
        self.produced = dict.fromkeys(self.observer.partitions, 0)
        self.environment = MemberEnvironment(session=lambda _, on_change: self.zookeeper.session(on_change))
        vars(zkconsumer.cluster.cluster_client)["zookeeper_session"] = self.new_session
        build = partial(build_member, environment=self.environment)
        vars(zkconsumer.connector.subscribed_streams)["build_member"] = build

    def new_session(self, config: Any, on_change: Any, connect: str | None = None) -> Any:
        """Return a session of a client that is no member."""
        del connect
        return self.environment.session(config, on_change)

    def choose_properties(self) -> dict[str, Any]:
        chance, scala, storage = self.world.random, self.setting.scala, self.setting.storage
        return {
            "zookeeper.connect": "simulated:2181",
            "group.id": self.group,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 2000,
            # most of the computing would go into the fetches of members that wait for messages
            "fetch.wait.max.ms": chance.choice([500, 1000, 1000]),
            "zookeeper.session.timeout.ms": int(SESSION * 1000),
            "consumer.timeout.ms": int(WAITS * 1000),
            "rebalance.backoff.ms": 2000,
            # the look every 20 s heals lost events, which would hide bugs, and what Scala members do to each other
            "rebalance.interval.ms": 20_000 if scala else chance.choice([20_000, 600_000]),
            "partition.assignment.strategy": "range" if scala else chance.choice(["range", "roundrobin", "sticky"]),
            "offsets.storage": "kafka" if storage in {"kafka", "dual"} else "zookeeper",
            "dual.commit.enabled": str(storage == "dual").lower(),
        }

    def tp(self, number: int) -> TopicPartition:
        """Return a partition of the topic."""
        return TopicPartition(self.topic, number)

    def run(self) -> None:
        """Run it. Raises BrokenPromise, Stuck, and whatever left a thread."""
        self.world.spawn("director", self._direct)
        with self.at_end:
            self.world.go(lambda: self._over or bool(self.observer.broken))
        if self.observer.broken:
            raise BrokenPromise(self.observer.broken)

    def _direct(self) -> None:
        self.cluster.start()
        for topic, count in self.topics.items():
            self.cluster.create_topic(topic, count)
        self._begin()
        self.world.spawn("server-clock", self._server_clock)
        for _ in range(self.setting.members):
            self.join()
        chance = self.world.random
        period = chance.choice(PERIODS) if self.setting.pauses else self.steps
        for step in range(1, self.steps + 1):
            self.produce(chance.randrange(1, self.setting.messages))
            if chance.random() < self.setting.faults:
                self.faults.burst()
            self._each_second()
            self.world.sleep(1.0)
            if step % period == 0 or step == self.steps:
                self.settle()
                if self.setting.pauses and chance.random() < 0.5:
                    self._stay_calm()
        self._end()
        self._over = True

    def _begin(self) -> None:
        """Prepare what needs brokers that run."""

    def _each_second(self) -> None:
        """Do what belongs to the scenario while there are faults."""

    def _stores(self) -> Sequence[str]:
        """Return the stores in which everything has to be committed in the end."""
        return STORES[self.setting.storage]

    def _renewed(self, process: Process) -> None:
        member = next(one for one in self.members if one.process is process)
        self.observer.session_noticed(member.consumer)

    def _server_clock(self) -> None:
        while True:
            self.world.sleep(0.5)
            self.zookeeper.expire_silent()

    def produce(self, count: int) -> None:
        tp = self.world.random.choice(list(self.produced))
        self.cluster.append(*tp, [b"v%d" % each for each in range(count)])
        self.produced[tp] += count
        self.observer.appended(tp, self.produced[tp])

    def join(self, *, ours: bool = False) -> None:
        self.members.append(self.new_member(len(self.members), ours))
        self.members[-1].start()

    def new_member(self, number: int, ours: bool) -> Any:
        """Return one more member. ``ours``: it must be one of the package."""
        scala = self.setting.scala
        if scala and not ours and self.world.random.random() < scala:
            return ScalaMember(self, number)
        return Member(self, number)

    def live(self) -> list[Member | ScalaMember]:
        return [member for member in self.members if member.usable]

    # ---- the end

    def _stay_calm(self) -> None:
        """Produce for a while without faults: what is written arrives at once then."""
        self.world.sleep(30.0)
        for member in self.live():
            if member.session is not None:
                member.session.lose_next = ""  # it waited for a claim, and would be a fault now
        self.calm = True
        for _ in range(60):
            self.produce(self.world.random.randrange(1, 4))
            self.world.sleep(0.25)
        self.calm = False
        self.settle()

    def settle(self) -> None:
        self.faults.end()
        self._join_if_needed()
        self.world.note("the faults pause")
        began = moved = self.world.now
        done, slow_place = 0, self.world.slow_place
        stands = STANDS if slow_place < 0 else self.stands_slowly
        while (left := self._not_done()) and self.world.now < min(moved + stands, began + SETTLES):
            self.world.sleep(1.0)
            self._join_if_needed()
            if (progress := self.progress()) != done:
                done, moved = progress, self.world.now
            if self.world.now > began + SLOW_FOR:
                self.world.slow_place = -1
        self.world.slow_place = slow_place
        self.settled = max(self.settled, self.world.now - began)
        if left:
            self.observer.broke(f"{self.world.now - began:.0f} s after the last fault: {left}")

    def progress(self) -> int:
        """Return a number that changes as long as what is left is being done."""
        return sum(offset or 0 for seen in self.observer.partitions.values() for offset in seen.committed.values())

    def _join_if_needed(self) -> None:
        """Have a member of ours at least: a group of Scala members that have given up stays as it is."""
        if not any(isinstance(member, Member) for member in self.live()):
            self.join(ours=True)

    def _not_done(self) -> str:
        for tp, seen in self.observer.partitions.items():
            if seen.owner is None:
                return f"{tp} has no owner"
            for store in self._stores():
                offset = seen.committed[store]
                if (offset or 0) < self.produced[tp]:
                    return f"{tp} is committed up to {offset} of {self.produced[tp]} in {store}"
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
                self.observer.broke(f"{task} is still there after the shutdown, and waits for {task.waits_for}")
