"""A group of members on one ZooKeeper in memory, each stepped by the test: no threads, every interleaving on
purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from zkconsumer.assignors.group_strategy import GroupStrategy
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import LogTruncatedError, OffsetConflictError
from zkconsumer.member.events import SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.member.zookeeper.model_registration import ModelRegistration
from zkconsumer.member.zookeeper.rebalancer import Rebalancer
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.ownership.partition_position import NONE_HELD, Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.testing.fake_zookeeper import FakeSession
from zkconsumer.wiring import MemberEnvironment, build_member
from zkconsumer.wiring.zookeeper_member import ZooKeeperCoordination
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.node_values import Node
from zkconsumer.zookeeper.ownership_transactions import KnownOffset

GROUP = "g"
TOPIC = "t"
PROPERTIES: dict[str, str | int] = {
    "zookeeper.connect": "fake:2181",
    "group.id": GROUP,
    "offsets.channel.backoff.ms": 0,
    "offsets.commit.max.retries": 0,
}
T = TypeVar("T")
LIMITS = {
    "quiet": 0.0,
    "backoff": 0.0,
    "backoff_max": 0.0,
    "drain": 0.0,
    "interval": 3600.0,
    "request_timeout": 5.0,
    "patience": 3600.0,
}


class InlineCommitter(Committer):
    """The committer without its thread: a commit happens in the call that asks, after the call of ``meanwhile``."""

    def __init__(self, name: str, store: MemberStore, lease: Lease, settings: CommitSettings, **options: Any) -> None:
        """Commits are asked for, and do not come by a timer."""
        super().__init__(name, store, lease, CommitSettings(interval=None, timeout=settings.timeout), **options)

    def commit_last(
        self, *arguments: Any, meanwhile: Callable[[], None] = lambda: None, **options: Any
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """Call ``meanwhile`` once, first."""
        meanwhile()
        return super().commit_last(*arguments, meanwhile=meanwhile, **options)

    def submit(self, work: Callable[[], T], request: Request[T] | None = None) -> Request[T]:
        request = Request(Deadline(None)) if request is None else request
        self._execute(work, request)
        return request


class RecordingDelivery:
    """Fetching and streams that only write down what they are told."""

    def __init__(self) -> None:
        self.flowing: dict[TopicPartition, PartitionPosition] = {}
        self.log: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.failed: dict[TopicPartition, OffsetConflictError | LogTruncatedError] = {}
        self.ended = False

    def accept(self, positions: Sequence[PartitionPosition]) -> Sequence[tuple[PartitionPosition, Any]]:
        self.log.append(("start", tuple(p.tp for p in positions)))
        for position in positions:
            assert position.tp not in self.flowing, "a partition is started once"
            self.flowing[position.tp] = position
        return ()

    def start(self, partitions: Iterable[tuple[PartitionPosition, Any]]) -> None:
        """Nothing is fetched."""

    def forget(self) -> None:
        """Nothing is fetched."""

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Nobody is waited for."""

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        self.log.append(("revoke", tuple(p.tp for p in positions)))
        for position in positions:
            position.revoked = True
            if self.flowing.get(position.tp) is position:
                del self.flowing[position.tp]

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        new.paused = new.halted = old.paused
        old.successor = new
        self.revoke([old])

    def wake(self) -> None:
        self.log.append(("wake", ()))

    def fail(self, position: PartitionPosition, error: OffsetConflictError | LogTruncatedError) -> None:
        self.failed[position.tp] = error

    def end(self) -> None:
        self.ended = True

    def refuse(self, error: Exception | None) -> None:
        """Nobody reads, so nobody is told."""


class SteppedMember:
    """One member; ``step`` makes it deal with its events."""

    def __init__(
        self,
        server: FakeZooKeeper,
        name: str,
        *,
        streams: int = 1,
        topic: str = TOPIC,
        strategy: GroupStrategy | None = None,
        extra: Mapping[str, object] | None = None,
        store: OffsetStore | None = None,
        expires: bool = False,
        listener: ConsumerRebalanceListener | None = None,
        listener_limit: float = 5.0,
        auto_commit: bool = True,
        dual: bool = False,
        broadcasting: bool = False,
        conflict: str = "adopt",
        **limits: float,
    ) -> None:
        """``limits`` are seconds of :class:`RebalanceSettings`; ``expires``: the store forgets offsets."""
        timing: dict[str, Any] = {**LIMITS, **limits}
        self.consumer = ConsumerId(f"{GROUP}_{name}")
        self.delivery = RecordingDelivery()
        self.retired: list[str] = []
        member = build_member(
            ConsumerConfig(
                PROPERTIES,
                consumer_id=name,
                auto_commit_enable=auto_commit,
                dual_commit_enabled=dual,
                message_model="broadcasting" if broadcasting else "clustering",
                offset_conflict=conflict,
                rebalance_listener_timeout_ms=int(listener_limit * 1000),
            ),
            self.consumer,
            offset_store=store,
            listener=listener,
            environment=MemberEnvironment(
                session=lambda _, told: server.session(told),
                stamp=lambda _config, _session, made: replace(made, timestamp="1", extra=extra or {}),
                timing=lambda settings: replace(settings, **timing),
                committer=InlineCommitter,
                delivery=self.delivery,
                source=self.delivery,
                strategy=strategy,
            ),
        )
        coordination = cast(ZooKeeperCoordination, member.coordination)
        coordination.store_expires = expires
        self.events, self.session = member.events, cast(FakeSession, coordination.session)
        self.rebalancer, self.committer = member.prepare(Registration(STATIC, {topic: streams}))
        self.membership = cast(ModelRegistration, coordination.membership)
        self.cache, self.strategy = coordination.cache, coordination.strategy
        self.coordinator = cast(Rebalancer, self.rebalancer.coordinator)
        self.schedule = self.coordinator.schedule
        self.listener = member.parts.listener
        if self.listener is not None:
            self.listener.thread.start()
        self.rebalancer.coordinator.begin()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.rebalancer.step(0.0)

    def stop(self) -> None:
        self.events.put(StopRequested())
        self.step()
        self.session.close(Deadline(1))
        if self.listener is not None:
            self.listener.close(Deadline(1))

    def subscribe(
        self,
        topics: Mapping[str, int],
        *,
        leaving: Collection[str] = (),
        held: Held = NONE_HELD,
        deadline: Deadline | None = None,
    ) -> Request[None]:
        """Ask for other topics; ``retired`` then lists those whose streams ended."""
        change = SubscriptionChanged(
            lambda _: topics,
            Request(deadline or Deadline(None)),
            frozenset(leaving),
            held,
            applied=lambda: self.retired.extend(leaving),
        )
        self.events.put(change)
        return change.done

    def seek(
        self, offsets: Mapping[TopicPartition, int], owned: Mapping[TopicPartition, PartitionPosition] | None = None
    ) -> Request[frozenset[PartitionPosition]]:
        """Ask for a seek of ``owned`` partitions, by default those of this moment."""
        ours = self.owned if owned is None else owned
        wanted = {ours.get(tp) or PartitionPosition(tp, ThreadId("another")): offset for tp, offset in offsets.items()}
        request = SeekRequested(wanted, Request(Deadline(None)))
        self.events.put(request)
        return request.done

    @property
    def owned(self) -> Mapping[TopicPartition, PartitionPosition]:
        return self.rebalancer.positions()

    def finish(self, tp: TopicPartition, count: int = 1) -> None:
        """The application finishes messages."""
        position = self.owned[tp]
        position.consumed = (position.consumed or 0) + count

    def commit(self) -> None:
        self.committer.commit(NONE_HELD, Deadline(1))


def tp(partition: int, topic: str = TOPIC) -> TopicPartition:
    """Return a partition of the group's topic."""
    return TopicPartition(topic, partition)


def new_server(partitions: int, *topics: str, offset: int | None = None) -> FakeZooKeeper:
    """Return a ZooKeeper with these topics, by default the group's. ``offset`` is stored for each partition."""
    server = FakeZooKeeper()
    for topic in topics or (TOPIC,):
        make_topic(server, partitions, topic)
        for partition in range(partitions if offset is not None else 0):
            server.put(paths.offset(GROUP, tp(partition, topic)), b"%d" % (offset or 0))
    return server


def make_topic(server: FakeZooKeeper, partitions: int, topic: str = TOPIC) -> None:
    listed = ",".join(f'"{n}":[0]' for n in range(partitions))
    server.put(paths.topic(topic), f'{{"version":1,"partitions":{{{listed}}}}}'.encode())


def settle(members: Collection[SteppedMember], rounds: int = 12) -> None:
    """Let everybody deal with everything until nothing can happen any more."""
    for _ in range(rounds):
        for member in members:
            member.step()


def settled(server: FakeZooKeeper, name: str, *, beside: Sequence[SteppedMember] = (), **options: Any) -> SteppedMember:
    """Return a new member, after it and the members ``beside`` it have dealt with everything."""
    member = SteppedMember(server, name, **options)
    settle([*beside, member])
    return member


def settled_group(server: FakeZooKeeper, names: str) -> list[SteppedMember]:
    """Return new members, one for each letter of ``names``, after they have handled all events."""
    members = [SteppedMember(server, name) for name in names]
    settle(members)
    return members


def try_again(member: SteppedMember) -> None:
    """The committer's timer for starts that could not be read or stored."""
    member.committer.run_timers(float("inf"))


def node_at(server: FakeZooKeeper, path: str) -> Node:
    """Return a node, which must exist."""
    node = server.node(path)
    assert node is not None, path
    return node


def owners(server: FakeZooKeeper, topic: str = TOPIC) -> dict[int, str]:
    below = paths.owner_topic(GROUP, topic)
    return {int(path[len(below) + 1 :]): data.decode() for path, data in server.tree(below).items()}


def offsets(server: FakeZooKeeper, topic: str = TOPIC) -> dict[int, int]:
    below = paths.offset_topic(GROUP, topic)
    return {int(path[len(below) + 1 :]): int(data) for path, data in server.tree(below).items()}
