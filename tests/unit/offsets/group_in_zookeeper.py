"""A group on a ZooKeeper in memory, and a committer whose thread is the test."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from time import monotonic

from tests.timing import scaled
from tests.unit.offsets.fakes import T0, T1, T2, MemoryStore
from tests.values import present
from zkconsumer.model import ConsumerId, TopicPartition, thread_id
from zkconsumer.offsets.commit_schedule import CommitSettings, GivenOffset
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.ownership.partition_position import NONE_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.testing.fake_zookeeper import FakeSession
from zkconsumer.zookeeper import ownership_transactions, paths
from zkconsumer.zookeeper.ownership_transactions import ABSENT, Claim, KnownOffset, Outcome

THREAD = thread_id(ConsumerId("g_me"), 0)


def soon() -> Deadline:
    return Deadline(scaled(5))


class Group:
    """A group on a ZooKeeper in memory, one session of it ours."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.session = self.open()
        for tp in (T0, T1, T2):
            self.session.ensure([paths.owner_topic("g", tp.topic), paths.offset_topic("g", tp.topic)], soon())
        self.zookeeper = ZooKeeperOffsets(self.session, "g")
        self.store = MemoryStore()

    def open(self) -> FakeSession:
        session = self.server.session()
        session.open(soon())
        return session

    def claim(self, tp: TopicPartition, offset: int | None = None, session: FakeSession | None = None) -> KnownOffset:
        """Own a partition, with this offset in its node. Returns the node as of the claim."""
        known = ABSENT
        if offset is not None:
            self.server.put(paths.offset("g", tp), str(offset).encode())
            node = present(self.server.node(paths.offset("g", tp)))
            known = KnownOffset(offset, node.version)
        done = ownership_transactions.claim(session or self.session, "g", [Claim(tp, THREAD, known)], soon())
        assert done == {tp: Outcome.DONE}
        claimed = ABSENT if offset is None else KnownOffset(offset, (known.version or 0) + 1)
        if session is None:
            self.track(tp, claimed)
        return claimed

    def track(self, tp: TopicPartition, known: KnownOffset) -> None:
        """Keep what is stored of a partition that is ours."""
        MemberStore(self.zookeeper).track(tp, PartitionPosition(tp, THREAD).stored, known)

    def lose(self, tp: TopicPartition) -> None:
        """Somebody else owns it, and we have not heard of it."""
        self.server.remove(paths.owner("g", tp))
        self.server.put(paths.owner("g", tp), b"g_other-0", ephemeral_owner=99)

    def owned(self, *, dual: bool = False, expires: bool = False, max_retries: int = 5) -> MemberStore:
        nodes = self.zookeeper if dual else None
        return MemberStore(self.zookeeper, nodes, self.store, expires=expires, backoff=0.001, max_retries=max_retries)

    @property
    def nodes(self) -> dict[int, int]:
        below = paths.offset_topic("g", "t")
        return {int(path[len(below) + 1 :]): int(data) for path, data in self.server.tree(below).items()}


def zookeeper_only(group: Group) -> MemberStore:
    return MemberStore(group.zookeeper, group.zookeeper)


Starts = Mapping[PartitionPosition, int | None]


class Stepped:
    """A committer whose thread is the test: ``do`` asks and serves."""

    def __init__(
        self, offsets: MemberStore, group: Group, *, interval: float | None = None, refresh: float | None = None
    ) -> None:
        self.group = group
        self.refused: dict[TopicPartition, Outcome] = {}
        self.barred: list[Exception | None] = []
        self.moved: dict[PartitionPosition, int] = {}
        self.positions: dict[TopicPartition, PartitionPosition] = {}
        self.found: SimpleQueue[Starts] = SimpleQueue()
        group.session.lease.resume(group.session.lease.epoch)
        self.committer = Committer(
            "c",
            offsets,
            group.session.lease,
            CommitSettings(interval, timeout=1.0, retry=0.0, refresh=refresh),
            refused=lambda outcomes: self.refused.update({p.tp: outcome for p, outcome in outcomes.items()}),
            barred=self.barred.append,
            moved=self.moved.update,
        )
        self.committer.schedule.start(monotonic())

    def step(self) -> None:
        """Serve the timers, whatever else there is to do."""
        self.committer.step(waiting=False)

    def own(self, tp: TopicPartition, offset: int | None = None) -> PartitionPosition:
        known = self.group.claim(tp, offset)
        position = PartitionPosition(tp, THREAD, None if self.committer.asks else known.offset)
        self.committer.track([(position, known)])
        self.committer.step()
        self.positions[tp] = position
        return position

    def begin(self, tp: TopicPartition, offset: int) -> PartitionPosition:
        """Own a partition that starts at an offset which the store outside ZooKeeper holds."""
        self.group.store.offsets[tp] = offset
        position = self.own(tp)
        self.start(position)
        return position

    def start(self, *positions: PartitionPosition) -> Starts:
        """Find starts and begin there, as the group's thread does."""
        ready = self.committer.find_starts(positions, self.found.put)
        if ready:
            return {position: position.consumed for position in ready}
        self.committer.step()
        starts = self.found.get_nowait()
        for position, offset in starts.items():
            if offset is not None:
                position.begin(offset)
        return starts

    def commit(self) -> None:
        asked = self.committer.submit(lambda: self.committer.tracker.commit(NONE_HELD, soon(), patient=True))
        self.committer.step()
        asked.result(0)

    def given(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, GivenOffset]:
        """Offsets as an application gives them now."""
        return {tp: GivenOffset.as_of_call(self.positions.get(tp), offset) for tp, offset in offsets.items()}

    def commit_given(self, offsets: Mapping[TopicPartition, int]) -> None:
        given = self.given(offsets)
        asked = self.committer.submit(lambda: self.committer.tracker.commit_given(given, soon()))
        self.committer.step()
        asked.result(0)
