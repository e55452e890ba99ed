"""Stored acks beyond an offset in ZooKeeper: on the fake, on the fake over the protocol, and on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from tests.timing import scaled
from tests.unit.offsets.acks import GROUP, TP, Member, Server, ledger_of, read, soon
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.message_pointers import Pointer
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.errors import OffsetCommitError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper, FakeZooKeeperServer
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import Node
from zkconsumer.zookeeper.note_nodes import NOTE_BYTES
from zkconsumer.zookeeper.session import Session

OFFSET, NOTE = paths.offset(GROUP, TP), paths.ack(GROUP, TP)


class Served:
    """A ZooKeeper at an address, as the old tools and operators see it."""

    def __init__(self, connect: str, stack: ExitStack) -> None:
        self._connect = connect
        self._stack = stack
        self._own = self.session()
        self.remove_all("/consumers")
        self.remove_all("/brokers")

    def session(self) -> Session:
        session = Session(self._connect, timeout=4.0, on_change=lambda _: None)
        session.open(Deadline(scaled(10)))
        self._stack.callback(lambda: session.close(Deadline(scaled(5))))
        return session

    def node(self, path: str) -> Node | None:
        return self._own.read([path], soon())[0]

    def put(self, path: str, data: bytes = b"") -> None:
        if not self._own.create(path, data, soon()):
            assert self._own.write(path, data, soon())

    def remove_all(self, path: str) -> None:
        """Delete a node after its children, each by a request, as ``--delete --group`` of the old tools does."""
        for name in self._own.children(path, soon()) or ():
            self.remove_all(f"{path}/{name}")
        self._own.delete(path, soon())


@pytest.fixture(params=["served", pytest.param("real", marks=[pytest.mark.cluster, pytest.mark.java])])
def zookeeper(request: pytest.FixtureRequest) -> Iterator[Served]:
    with ExitStack() as stack:
        if request.param == "served":
            connect = stack.enter_context(FakeZooKeeperServer(FakeZooKeeper())).connect
        else:
            connect = request.getfixturevalue("zookeeper_server")
        yield Served(connect, stack)


def noted(server: Server) -> None:
    """A member notes that 101 and 105 are finished, parks 102, and is gone."""
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish([101, 105])
    ledger_of(position).point_at([Pointer(102)])
    one.commit()
    one.session.close(Deadline(scaled(5)))


def test_offset_note_and_owner_are_of_one_transaction(zookeeper: Served) -> None:
    server = Server(zookeeper)
    noted(server)
    two = Member(server)
    (position,) = two.claim()
    offset, note, owner = (zookeeper.node(path) for path in (OFFSET, NOTE, paths.owner(GROUP, TP)))
    assert offset is not None
    assert note is not None
    assert owner is not None
    assert offset.mzxid == note.mzxid == owner.mzxid
    assert read(position, range(100, 110)) == [100, 103, 104, 106, 107, 108, 109]
    assert dict(position.stored.pointers) == {102: Pointer(102)}
    ledger_of(position).finish([100])
    two.release(position)
    assert server.offset() == 103
    assert server.note() == FinishedNote(103, (Finished(103, 106, (103, 104)),))


def test_a_write_under_a_live_owner_is_seen_and_not_overwritten(zookeeper: Served) -> None:
    server = Server(zookeeper)
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish([101, 105])
    one.commit()
    server.zookeeper.put(OFFSET, b"95")
    ledger_of(position).finish([100])
    ledger_of(position).point_at([Pointer(102)])
    with pytest.raises(OffsetCommitError, match="somebody else wrote the offset"):
        one.commit()
    assert (server.offset(), server.note(), server.pointers()) == (95, None, {})
    assert position.consumed == 102


def test_delete_group_of_the_old_tools_takes_all_and_begins_anew(zookeeper: Served) -> None:
    server = Server(zookeeper)
    noted(server)
    zookeeper.remove_all(paths.consumers_group(GROUP))
    assert zookeeper.node(paths.acks(GROUP)) is None
    server = Server(zookeeper, offset=None)
    one = Member(server)
    (position,) = one.claim()
    assert (position.consumed, position.ledger_start.note, dict(position.stored.pointers)) == (None, None, {})
    position.begin(0)
    position.ledger = BalancedLedger(position, 0)
    assert read(position, range(10)) == list(range(10))
    position.ledger.finish([5])
    one.commit()
    assert server.note() == FinishedNote(0, (Finished(0, 6, (0, 1, 2, 3, 4)),))


def test_two_hundred_partitions_and_a_large_note_are_written(zookeeper: Served) -> None:
    partitions = [TopicPartition("t", number) for number in range(200)]
    server = Server(zookeeper, partitions)
    one = Member(server)
    positions = one.claim(*partitions)
    for position in positions:
        read(position, range(100, 140))
        ledger_of(position).finish(range(101, 140, 2))
    large = tuple(sorted(Random(1).sample(range(100, 1_000_100), 50_000)))
    positions[0].ledger = BalancedLedger(positions[0], 100, FinishedNote(100, (Finished(100, 1_000_100, large),)))
    positions[0].ledger.touch()
    one.commit()
    assert all(server.note(tp) is not None for tp in partitions)
    node = zookeeper.node(paths.ack(GROUP, partitions[0]))
    assert node is not None
    assert 30_000 < node.length < NOTE_BYTES
    one.session.close(Deadline(scaled(5)))
    again = Member(server).claim(*partitions)
    known = {position.tp: position.ledger_start.note for position in again}
    assert known[partitions[0]] == FinishedNote(100, (Finished(100, 1_000_100, large),))
    assert all(known.values())
