"""The scenarios ``group`` and ``mixed``: members of one ZooKeeper group, whose applications read, commit and seek.

In ``mixed`` a part of the members are models of the Scala connector.
A step is a virtual second of faults. Afterwards the faults end, and the group must have consumed and committed all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import zkconsumer.connector
from tests.simulation import sockets
from tests.simulation.promises import BrokenPromise, Observer
from tests.simulation.scala_member import ScalaMember
from tests.simulation.scheduler import Process, World, enter
from tests.simulation.zookeeper import SimulatedSession, SimulatedZooKeeper
from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector
from zkconsumer.errors import ConsumerTimeoutException, ZkConsumerError
from zkconsumer.model import TopicPartition
from zkconsumer.testing.fake_cluster import FakeCluster
from zkconsumer.wiring import Outside, build_member

GROUP, TOPIC, PARTITIONS, BROKERS = "g", "t", 6, 2
MEMBERS = 4
SESSION = 6.0
CALL = 5.0
"""Seconds that an application gives a call."""
LATE = 1.5
"""Seconds by which a call may be late: the margin of its last request."""
SLOWEST = 15.0
"""Seconds that an application may have a message in hand."""
_PATIENCES = (0.0, 0.01, 0.3, 1.0, 3.0)
"""Time limits of reads, in seconds."""
SETTLES = 120.0
"""Seconds after the last fault in which all is consumed and committed."""


class Member:
    """A process with a connector and the threads of its application."""

    def __init__(self, scenario: GroupScenario, number: int) -> None:
        self.scenario = scenario
        self.name = f"m{number}"
        self.process = Process(self.name)
        self.left = False
        self.ended = False
        self.consumer = ""
        self.connector: Any = None

    @property
    def session(self) -> SimulatedSession | None:
        """The member's session with ZooKeeper."""
        return next((one for one in self.scenario.zookeeper.sessions if one.process is self.process), None)

    @property
    def usable(self) -> bool:
        """Whether the process lives and has not been asked to leave."""
        return self.process.alive and not self.left

    def start(self) -> None:
        """Begin the process."""
        self.scenario.world.spawn(f"{self.name}-main", self._main, self.process)

    def _main(self) -> None:
        scenario = self.scenario
        config = ConsumerConfig(
            {
                "zookeeper.connect": "simulated:2181",
                "group.id": GROUP,
                "consumer.id": f"{self.name}",
                "auto.offset.reset": "smallest",
                "auto.commit.interval.ms": 2000,
                "fetch.wait.max.ms": scenario.fetch_wait,
                "zookeeper.session.timeout.ms": int(SESSION * 1000),
                "consumer.timeout.ms": 1000,
                "rebalance.backoff.ms": 2000,
                "rebalance.interval.ms": scenario.interval,
                "partition.assignment.strategy": scenario.strategy,
            }
        )
        self.connector = connector = ZookeeperConsumerConnector(config)
        self.consumer = connector.consumer_id
        try:
            streams = connector.create_message_streams({TOPIC: 2})[TOPIC]
        except ZkConsumerError as e:
            scenario.world.note(f"cannot join: {type(e).__name__}")
            self.leave()
            return
        for number, stream in enumerate(streams):
            scenario.world.spawn(f"{self.name}-app-{number}", partial(self._apply, stream), self.process)

    def leave(self) -> None:
        """Shut the connector down, on the present task, within its time limit."""
        if self.left:
            return
        self.left = True
        while self.connector is None:
            self.scenario.world.sleep(0.05)
        world, began = self.scenario.world, self.scenario.world.now
        frozen = self.process.frozen_until
        try:
            self.connector.shutdown(CALL)
        except ZkConsumerError as e:
            world.note(f"shutdown: {type(e).__name__}")
        if world.now - began > CALL + LATE and frozen == self.process.frozen_until:
            self.scenario.broken(f"shutdown({CALL:g}) of {self.name} took {world.now - began:.1f} s")
        self.ended = True
        world.note("has left")

    # ---- the application

    def _apply(self, stream: Any) -> None:
        """Read messages in all ways until the stream ends. The next ask finishes what was read."""
        world, observer = self.scenario.world, self.scenario.observer
        held: list[Any] = []
        while True:
            asked = world.now
            for message in held:
                observer.finished(TopicPartition(message.topic, message.partition), message.offset)
            try:
                held = self._read(stream)
            except StopIteration:
                return
            except ZkConsumerError as e:
                held = []
                if isinstance(e, ConsumerTimeoutException):
                    continue
                world.note(f"reading: {type(e).__name__}: {e}")
                if self.left:
                    return
                world.sleep(1.0)
            if not held:
                if self.ended:
                    return
                continue
            for message in held:
                tp = TopicPartition(message.topic, message.partition)
                observer.handed(self.consumer, tp, message.offset, asked)
            slow = world.random.random() < 0.005  # longer than a rebalance waits for it, now and then
            world.sleep(world.random.random() * SLOWEST if slow else world.random.random() ** 4 * 0.3)
            self._sometimes(held, asked)

    def _read(self, stream: Any) -> list[Any]:
        """Return one message, some, or none, by one of the ways to read."""
        chance = self.scenario.world.random
        way = chance.random()
        if way < 0.5:
            return [next(iter(stream))]
        timeout = chance.choice(_PATIENCES)
        if way < 0.8:
            message = stream.get(timeout=timeout)
            return [] if message is None else [message]
        taken: list[Any] = stream.take(chance.randrange(1, 30), timeout=timeout)
        return taken

    def _sometimes(self, held: list[Any], asked: float) -> None:
        world, observer = self.scenario.world, self.scenario.observer
        chance, message = world.random.random(), held[-1]
        tp, patience = TopicPartition(message.topic, message.partition), world.random.choice([CALL, CALL, 0.05, 0.0])
        if chance < 0.04 or chance > 0.98:
            for one in held:  # what its own thread holds counts as finished in a commit
                observer.finished(TopicPartition(one.topic, one.partition), one.offset)
        if chance < 0.03:
            if self._call("commit", lambda: self.connector.commit_offsets(timeout=patience), patience):
                self._look_at_commit(tp, message.offset, asked)
        elif chance < 0.04:
            offset = max(0, message.offset - 3)
            observer.sought(self.consumer, tp, offset)
            self._call("seek", lambda: self.connector.seek(tp, offset, timeout=patience), patience)
        elif chance < 0.05:
            tp = world.random.choice(sorted(self.connector.assignment()) or [tp])
            self._call("pause", lambda: self.connector.pause([tp]), CALL)
            world.sleep(0.5)
            self._call("resume", lambda: self.connector.resume([tp]), CALL)
        elif chance > 0.98:  # what is read while it waits counts as before
            self._call("commit_async", lambda: self.connector.commit_offsets_async(timeout=patience), 0.0)

    def _look_at_commit(self, tp: TopicPartition, offset: int, asked: float) -> None:
        """A commit that returned is there, unless the partition was lost since it was read, or sought."""
        seen, session = self.scenario.observer.partitions[tp], self.session
        mine = seen.owner == self.consumer and seen.owned[self.consumer][0] < asked and seen.back_to is None
        if mine and session is not None and session.connected and (seen.committed or 0) <= offset:
            self.scenario.broken(
                f"commit_offsets returned, and {tp} is committed up to {seen.committed}, not {offset + 1}"
            )

    def _call(self, what: str, call: Callable[[], object], patience: float) -> bool:
        """Do a call of the application. Return whether it raised nothing."""
        world, began, frozen = self.scenario.world, self.scenario.world.now, self.process.frozen_until
        done = False
        try:
            call()
            done = True
        except (ZkConsumerError, ValueError, KeyError, TimeoutError) as e:
            world.note(f"{what}: {type(e).__name__}")
        if world.now - began > patience + LATE and frozen == self.process.frozen_until:
            self.scenario.broken(f"{what} with a time limit of {patience:g} s took {world.now - began:.1f} s")
        return done


class GroupScenario:
    """One run. Arguments: ``seed``; ``steps`` are virtual seconds with faults; ``scala``, the part of Scala members."""

    def __init__(self, seed: int, steps: int, scala: float = 0.0) -> None:
        self.world = World(seed)
        enter(self.world)
        self.network = sockets.Network()
        sockets.enter(self.network)
        self.steps = steps
        self.faults = 0
        self.members: list[Member | ScalaMember] = []
        self.scala = scala
        self.produced = dict.fromkeys(range(PARTITIONS), 0)
        self._violation = ""
        self._over = False
        chance = self.world.random
        self.strategy = "range" if scala else chance.choice(["range", "roundrobin", "sticky"])
        # the look every 20 s heals lost events, which would hide bugs, and what Scala members do to each other
        self.interval = 20_000 if scala else chance.choice([20_000, 600_000])
        self.fetch_wait = chance.choice([100, 500, 1000])
        self.zookeeper = SimulatedZooKeeper(session_timeout=SESSION)
        self.cluster = FakeCluster(BROKERS, zookeeper=self.zookeeper)
        self.observer: Observer
        outside = Outside(
            session=lambda config, on_change: self.zookeeper.session(on_change), events=lambda: SimpleQueue()
        )
        vars(zkconsumer.connector)["build_member"] = partial(build_member, outside=outside)

    def broken(self, promise: str) -> None:
        """A promise is broken that the scenario itself checks."""
        self.world.note(f"BROKEN {promise}")
        self._violation = self._violation or promise

    def run(self) -> World:
        """Run it. Raises BrokenPromise, Stuck, and whatever left a thread."""
        self.world.spawn("director", self._direct)
        self.world.go(
            lambda: self._over or bool(self._violation) or (hasattr(self, "observer") and self.observer.broken)
        )
        self.observer.check()
        if self._violation:
            raise BrokenPromise(self._violation)
        return self.world

    def _direct(self) -> None:
        self.cluster.start()
        self.cluster.create_topic(TOPIC, PARTITIONS)
        self.observer = Observer(self.zookeeper, GROUP, [TopicPartition(TOPIC, each) for each in range(PARTITIONS)])
        self.zookeeper.renewed = self._renewed
        self.world.spawn("server-clock", self._server_clock)
        for _ in range(2):
            self._join()
        chance = self.world.random
        for _ in range(self.steps):
            self._produce(chance.randrange(1, 40))
            if chance.random() < 0.1:
                self._fault()
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
        partition = self.world.random.randrange(PARTITIONS)
        self.cluster.append(TOPIC, partition, [b"v%d" % each for each in range(count)])
        self.produced[partition] += count

    # ---- faults

    def _join(self, *, ours: bool = False) -> None:
        number, member = len(self.members), None
        if self.scala and not ours and self.world.random.random() < self.scala:
            member = ScalaMember(self, number, GROUP, TOPIC, PARTITIONS)
        self.members.append(member or Member(self, number))
        self.members[-1].start()

    def _fault(self) -> None:
        chance, live = self.world.random, [member for member in self.members if member.usable]
        fault = chance.choice(_FAULTS)
        if fault == "join" or not live:
            if len(live) < MEMBERS:
                self.world.note("fault: join")
                self._join()
            return
        member = chance.choice(live)
        self.faults += 1
        self.world.note(f"fault: {fault} {member.name}")
        session = member.session
        if fault == "leave":
            self.world.spawn(f"{member.name}-leaver", member.leave, member.process)
        elif fault == "kill":
            member.process.alive = False
            self.network.cut(member.process)
            if session is not None:
                session.lose_watches()
        elif fault == "freeze":
            member.process.frozen_until = self.world.now + chance.choice([0.5, 3.0, 2 * SESSION, 20.0])
        elif session is not None and fault in _OF_A_SESSION:
            self._session_fault(fault, member, session)
        elif fault == "cut brokers":
            self.network.cut(member.process)
        elif fault == "slow network":
            self.network.slow = chance.choice([0.0, 0.05])
        elif fault == "move leader":
            self.cluster.move_leader(TOPIC, chance.randrange(PARTITIONS), chance.randrange(BROKERS))
        elif fault == "no quorum":
            self.zookeeper.reachable = False
            self.world.sleep(chance.choice([0.5, 3.0, 10.0]))
            self.zookeeper.reachable = True

    def _session_fault(self, fault: str, member: Member | ScalaMember, session: SimulatedSession) -> None:
        if fault == "expire" and session.session_id:
            self.observer.session_closed(member.consumer, session.lease.ends_at)
            session.expire_unnoticed()
        elif fault == "lose answer":
            session.lose_next = self.world.random.choice(["any", "claim"])
        elif fault == "cut zookeeper":
            session.cut(self.world.random.choice([0.2, 2.0, 2 * SESSION]))
        elif fault == "slow zookeeper":
            session.slow_until = self.world.now + 5.0

    # ---- the end

    def _settle(self) -> None:
        self.network.slow = 0.0
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
        if not any(isinstance(member, Member) and member.usable for member in self.members):
            self._join(ours=True)

    def _not_done(self) -> str:
        for tp, seen in self.observer.partitions.items():
            if seen.owner is None:
                return f"{tp} has no owner"
            if (seen.committed or 0) < self.produced[tp.partition]:
                return f"{tp} is committed up to {seen.committed} of {self.produced[tp.partition]}"
        owners = {seen.owner for seen in self.observer.partitions.values()}
        live = [member for member in self.members if member.usable and member.consumer]
        if len(live) <= PARTITIONS // 2:  # each has two threads
            return next((f"{member.name} owns nothing" for member in live if member.consumer not in owners), "")
        return ""

    def _end(self) -> None:
        # threads of a frozen member cannot end
        self.world.sleep(max(0.0, *(member.process.frozen_until - self.world.now for member in self.members)))
        for member in self.members:
            if member.usable:
                member.leave()
        self.world.sleep(5.0 + SLOWEST)
        for task in self.world.tasks:
            if task.process is not self.world.system and task.process.alive:
                self.broken(f"{task} is still there after the shutdown, and waits for {task.waits_for}")


_OF_A_SESSION = ("expire", "lose answer", "cut zookeeper", "slow zookeeper")
_FAULTS = [
    "join", "join", "join", "leave", "kill", "freeze", "expire", "lose answer", "lose answer", "cut zookeeper",
    "slow zookeeper", "cut brokers", "slow network", "move leader", "no quorum",
]  # fmt: skip
