"""Members of one group in memory that finish messages in any order: claims, commits, releases, without a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from tests.unit.offsets.fakes import MemoryStore
from tests.values import present
from zkconsumer.core.finished_note import FinishedNote, decode_note
from zkconsumer.core.message_pointers import Pointer, decode_pointers
from zkconsumer.member.zookeeper.owner_nodes import OwnerNodes
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.commit_tracker import CommitTracker
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.store import NO_NOTES, Notes, NotingStore, OffsetStore
from zkconsumer.offsets.zookeeper_store import ZooKeeperOffsets
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import NONE_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeSession
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import Node
from zkconsumer.zookeeper.ownership_transactions import KnownOffset, Outcome
from zkconsumer.zookeeper.session import Session

GROUP = "g"
TP = TopicPartition("t", 0)


def soon() -> Deadline:
    return Deadline(5.0)


class ZooKeeper(Protocol):
    """A ZooKeeper that a test changes past the members: the fake, or a real one."""

    def session(self) -> Session:
        """Return a session; one of the fake is not open yet."""

    def node(self, path: str) -> Node | None:
        """Return a node."""

    def put(self, path: str, data: bytes = b"") -> None:
        """Make or write a node."""


class Server:
    """The nodes of one group in a ZooKeeper."""

    def __init__(
        self, zookeeper: ZooKeeper, partitions: Sequence[TopicPartition] = (TP,), offset: int | None = 100
    ) -> None:
        self.zookeeper = zookeeper
        for tp in partitions:
            for path in (paths.owner(GROUP, tp), paths.offset(GROUP, tp)):
                self._make(path.rpartition("/")[0])
            if offset is not None:
                self.zookeeper.put(paths.offset(GROUP, tp), str(offset).encode())

    def _make(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            above = "/" + "/".join(parts[:depth])
            if self.zookeeper.node(above) is None:
                self.zookeeper.put(above)

    def offset(self, tp: TopicPartition = TP) -> int | None:
        node = self.zookeeper.node(paths.offset(GROUP, tp))
        return None if node is None else int(node.data)

    def note(self, tp: TopicPartition = TP) -> FinishedNote | None:
        """Return the note if it counts."""
        node, offset = self.zookeeper.node(paths.ack(GROUP, tp)), self.zookeeper.node(paths.offset(GROUP, tp))
        if node is None or offset is None or node.mzxid != offset.mzxid:
            return None
        return decode_note(node.data)

    def pointers(self, tp: TopicPartition = TP) -> dict[int, Pointer]:
        node = self.zookeeper.node(paths.pointers(GROUP, tp))
        return {} if node is None else decode_pointers(node.data)


class Member:
    """One member; ``balanced`` False: of a former release, or one that iterates its streams."""

    def __init__(
        self, server: Server, *, balanced: bool = True, store: OffsetStore | None = None, dual: bool = False
    ) -> None:
        self.server = server
        self.session = server.zookeeper.session()
        if isinstance(self.session, FakeSession):
            self.session.open(soon())
            self.session.lease.resume(self.session.lease.epoch)
        self.refused: dict[TopicPartition, Outcome] = {}
        self.cache = NodeCache(self.session, lambda _: None)
        self.owner_nodes = OwnerNodes(self.session, self.cache, GROUP, balanced=lambda: balanced)
        self.nodes = ZooKeeperOffsets(self.session, GROUP)
        in_zookeeper = self.nodes if dual or store is None else None
        self.store = MemberStore(self.nodes, in_zookeeper, store, backoff=0.001, max_retries=1)
        self.tracker = CommitTracker(
            self.store,
            self.session.lease,
            CommitSettings(None, timeout=5.0),
            refused=lambda outcomes: self.refused.update({p.tp: o for p, o in outcomes.items()}),
            moved=lambda _: None,
            barred=lambda _: None,
        )

    def claim(self, *partitions: TopicPartition) -> list[PartitionPosition]:
        wanted = {tp: ThreadId("g_c-0") for tp in partitions or (TP,)}
        self.owner_nodes.mine(wanted, soon())
        claimed = self.owner_nodes.claim(wanted, soon())
        assert not claimed.blocked
        return [self.own(tp, known) for tp, known in claimed.ours.items()]

    def own(self, tp: TopicPartition, known: KnownOffset) -> PartitionPosition:
        position = PartitionPosition(tp, ThreadId("g_c-0"), None if self.store.asks else known.offset)
        self.tracker.track([(position, known)])
        if known.acks is not None and position.consumed is not None:
            note = position.ledger_start.note = known.acks.note
            position.ledger = BalancedLedger(position, position.consumed, note, position.stored.pointers)
        return position

    def commit(self) -> None:
        self.tracker.commit(NONE_HELD, soon(), patient=True)

    def release(self, *positions: PartitionPosition) -> None:
        known = self.tracker.commit_last(positions, commit=True, held=NONE_HELD, deadline=soon(), release=True)
        self.owner_nodes.release(known, soon(), [p.tp for p in positions if p.tp not in known])


def ledger_of(position: PartitionPosition) -> BalancedLedger:
    assert position.ledger is not None
    return position.ledger


def read(position: PartitionPosition, offsets: Sequence[int]) -> list[int]:
    """Read messages as the reader does. Returns those that are to be handled."""
    ledger = ledger_of(position)
    wanted = [offset for offset in offsets if ledger.wants(offset, 0)]
    ledger.read(wanted, offsets[-1] + 1)
    return wanted


class NotesElsewhere(MemoryStore, NotingStore):
    """A store outside ZooKeeper that keeps notes beside offsets, as Kafka does."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[TopicPartition, FinishedNote] = {}

    def fetch_noted(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> tuple[Mapping[TopicPartition, int], Notes]:
        return self.fetch(partitions, timeout), dict(self.notes)

    def commit(
        self, offsets: Mapping[TopicPartition, int], timeout: float, notes: Notes = NO_NOTES
    ) -> Mapping[TopicPartition, Exception]:
        failures = super().commit(offsets, timeout) or {}
        for tp in offsets.keys() - failures.keys():
            self.notes.pop(tp, None)
            if tp in notes and not notes[tp].empty:
                self.notes[tp] = notes[tp]
        return failures


def start(member: Member, position: PartitionPosition) -> None:
    """Begin where the store outside ZooKeeper says, as the group thread does."""
    found: dict[PartitionPosition, int | None] = {}
    member.tracker.starts.find([position], found.update, 1)
    offset = present(found[position])
    position.begin(offset)
    position.ledger = BalancedLedger(position, offset, position.ledger_start.note, position.stored.pointers)
