"""A group of members on one ZooKeeper in memory, each stepped by the test: no threads, every interleaving on
purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from zkconsumer.assignors.assignor import Member
from zkconsumer.assignors.group_strategy import GroupStrategy
from zkconsumer.assignors.range import RangeAssignor
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.deadline import Deadline
from zkconsumer.errors import LogTruncatedError, OffsetConflictError
from zkconsumer.member.events import (
    CommitsRefused,
    Event,
    ListenerReturned,
    NodeChanged,
    OffsetsMoved,
    SeekRequested,
    StopRequested,
    SubscriptionChanged,
)
from zkconsumer.member.listener import ConsumerRebalanceListener, ListenerThread
from zkconsumer.member.zookeeper.message_model import ModelRegistration
from zkconsumer.member.zookeeper.planner import GroupView, Threads
from zkconsumer.member.zookeeper.rebalancer import Rebalancer
from zkconsumer.member.zookeeper.round_schedule import RebalanceSettings
from zkconsumer.member.zookeeper.strategy import AppliedStrategy
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.dual_store import DualStore
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.wiring.zookeeper_member import zookeeper_engine
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.fenced_writes import KnownOffset
from zkconsumer.zookeeper.node_cache import NodeCache

GROUP = "g"
TOPIC = "t"
T = TypeVar("T")


def range_assignment(view: GroupView, threads: Threads) -> Assignment:
    members = {consumer: Member(by_topic) for consumer, by_topic in threads.items()}
    return RangeAssignor().assign(members, view.partitions)


class InlineCommitter(Committer):
    """The committer without its thread: what is asked is done at once, and what the asker does meanwhile before it."""

    def surrender(
        self, *arguments: Any, meanwhile: Callable[[], None] = lambda: None, **options: Any
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """What is done meanwhile is done first, once."""
        meanwhile()
        return super().surrender(*arguments, meanwhile=meanwhile, **options)

    def submit(self, request: Callable[[], T], answer: Future[T] | None = None) -> Future[T]:
        future = Future[T]() if answer is None else answer
        try:
            future.set_result(request())
        except Exception as e:
            future.set_exception(e)
        return future


class RecordingDelivery:
    """Fetching and streams that only write down what they are told."""

    def __init__(self) -> None:
        self.flowing: dict[TopicPartition, PartitionPosition] = {}
        self.log: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.failed: dict[TopicPartition, OffsetConflictError] = {}
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
        self.revoke([old])

    def wake(self) -> None:
        self.log.append(("wake", ()))

    def fail(self, position: PartitionPosition, error: OffsetConflictError | LogTruncatedError) -> None:
        self.failed[position.tp] = error

    def end(self) -> None:
        self.ended = True

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        return position.held and thread == 1


class SteppedMember:
    """One member; ``step`` makes it deal with what has happened."""

    def __init__(
        self,
        server: FakeZooKeeper,
        name: str,
        *,
        streams: int = 1,
        auto_commit: bool = True,
        topic: str = TOPIC,
        strategy: GroupStrategy | None = None,
        extra: Mapping[str, object] | None = None,
        store: OffsetStore | None = None,
        dual: bool = False,
        expires: bool = False,
        listener: ConsumerRebalanceListener | None = None,
        listener_limit: float = 5.0,
        broadcasting: bool = False,
        patience: float = 3600.0,
        conflict: str = "adopt",
        **settings: float,
    ) -> None:
        """``settings`` are seconds of :class:`RebalanceSettings`."""
        group = paths.broadcast_group(GROUP, name) if broadcasting else GROUP
        self.consumer = ConsumerId(f"{GROUP}_{name}")
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.session = server.session(self.events.put)
        self.session.open(Deadline(1))
        self.delivery = RecordingDelivery()
        self.retired: list[str] = []
        nodes = ZooKeeperOffsets(self.session, group)
        self.committer = InlineCommitter(
            name,
            DualStore(
                nodes, nodes if store is None or dual else None, store, expires=expires, backoff=0.0, max_retries=0
            ),
            self.session.lease,
            CommitSettings(interval=None, timeout=1.0),
            refused=lambda outcomes: self.events.put(CommitsRefused(outcomes)),
            moved=lambda offsets: self.events.put(OffsetsMoved(offsets)),
        )
        self.listener = None
        if listener is not None:
            self.listener = ListenerThread(listener, name, lambda: self.events.put(ListenerReturned()))
            self.listener.open()
        self.cache = cache = NodeCache(self.session, lambda path: self.events.put(NodeChanged(path)))
        self.membership = ModelRegistration(
            self.session,
            cache,
            group,
            self.consumer,
            lambda: Registration(STATIC, {topic: streams}, timestamp="1", extra=extra or {}),
            shared=GROUP,
            exclude_internal_topics=True,
            wants_racks=strategy is not None and strategy.wants_racks,
        )
        chosen: dict[str, Any] = dict.fromkeys(("quiet", "backoff", "backoff_max", "drain"), 0.0)
        named: dict[str, Any] = {} if strategy is None else {"name": strategy.name, "concern": strategy.concern}
        assign = strategy or range_assignment
        self.strategy = AppliedStrategy(self.consumer, assign, exclude_internal_topics=True, **named)
        self.rebalancer = zookeeper_engine(
            RebalanceSettings(
                request_timeout=5.0,
                auto_commit=auto_commit,
                exclude_internal_topics=True,
                patience=patience,
                conflict=conflict,
                **{**chosen, "interval": 3600.0, **settings},
            ),
            events=self.events,
            session=self.session,
            cache=cache,
            membership=self.membership,
            source=self.delivery,
            hold=self.delivery,
            commits=self.committer,
            strategy=self.strategy,
            listener=self.listener,
            listener_limit=listener_limit,
        )
        self.coordinator = cast(Rebalancer, self.rebalancer.coordinator)
        self.schedule = self.coordinator.schedule
        self.rebalancer.begin()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.rebalancer.step(0.0)

    def stop(self) -> None:
        self.events.put(StopRequested())
        self.step()
        self.session.close(Deadline(1))
        if self.listener is not None:
            self.listener.close(Deadline(1))

    def subscribe(self, topics: Mapping[str, int], *, leaving: Collection[str] = (), holder: int = 0) -> Future[None]:
        """Ask for other topics; ``retired`` then lists those whose streams ended."""
        change = SubscriptionChanged(
            lambda: Registration(STATIC, topics, timestamp="2"),
            frozenset(leaving),
            holder,
            lambda: self.retired.extend(leaving),
            Future(),
        )
        self.events.put(change)
        return change.done

    def seek(self, offsets: Mapping[TopicPartition, int]) -> Future[frozenset[TopicPartition]]:
        request = SeekRequested(offsets, Future())
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
        self.committer.commit(lambda _: False, Deadline(1))


def make_topic(server: FakeZooKeeper, partitions: int, topic: str = TOPIC) -> None:
    listed = ",".join(f'"{n}":[0]' for n in range(partitions))
    server.put(paths.topic(topic), f'{{"version":1,"partitions":{{{listed}}}}}'.encode())


def settle(members: Collection[SteppedMember], rounds: int = 12) -> None:
    """Let everybody deal with everything until nothing can happen any more."""
    for _ in range(rounds):
        for member in members:
            member.step()


def try_again(member: SteppedMember) -> None:
    """The committer's timer for what could not be read or stored."""
    member.committer.run_timers(float("inf"))


def owners(server: FakeZooKeeper, topic: str = TOPIC) -> dict[int, str]:
    below = paths.owner_topic(GROUP, topic)
    return {int(path[len(below) + 1 :]): data.decode() for path, data in server.tree(below).items()}


def offsets(server: FakeZooKeeper, topic: str = TOPIC) -> dict[int, int]:
    below = paths.offset_topic(GROUP, topic)
    return {int(path[len(below) + 1 :]): int(data) for path, data in server.tree(below).items()}
