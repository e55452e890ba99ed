"""A balanced member whose committer has not served the claim yet: messages are parked, and no commit is too many."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.unit.offsets.acks import GROUP, TP, Member, Server, soon
from tests.values import present
from zkconsumer.errors import OffsetConflictError
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.model import ThreadId
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.committer import Committer
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import NONE_HELD
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.zookeeper import paths

MINE = ThreadId("g_c-0")


class LateCommitter:
    """A member that has claimed a partition; its committer does nothing before :meth:`serve`."""

    def __init__(self) -> None:
        self.server = Server(FakeZooKeeper(), (TP,), 100)
        self.member = Member(self.server)
        lease, settings = self.member.session.lease, CommitSettings(None, timeout=5.0)
        self.committer = Committer("c", self.member.store, lease, settings, refused=lambda _: None)
        self.owned = OwnedPartitions(Mock(), Mock(), self.committer, lambda _: None)
        self.member.owner_nodes.mine({TP: MINE}, soon())
        self.known = self.member.owner_nodes.claim({TP: MINE}, soon()).ours[TP]
        self.owned.add({TP: (MINE, self.known)})
        self.owned.starts.start([TP])

    def serve(self) -> None:
        """Have the committer do what it was asked for."""
        done = self.committer.submit(lambda: None)
        while not done.done():
            self.committer.step(waiting=False)

    def open(self) -> None:
        """Have the reader open the partition, as it does with the first chunk."""
        position = self.owned.positions[TP]
        note, pointers = position.ledger_start.note, position.stored.pointers
        position.ledger = BalancedLedger(position, position.consumed or 0, note, pointers)

    def writes_of_a_commit(self) -> int:
        before = self._version()
        self.committer.tracker.commit(NONE_HELD, soon(), patient=False)
        return self._version() - before

    def _version(self) -> int:
        return present(self.server.zookeeper.node(paths.offset(GROUP, TP))).version


@pytest.mark.parametrize("how", ["claimed", "read again", "another log"])
def test_messages_may_be_parked_before_the_committer(how: str) -> None:
    """A message that failed at that moment was held for its whole delay, and the committed offset with it."""
    this = LateCommitter()
    if how != "claimed":
        this.serve()
        old = this.owned.positions[TP]
        if how == "read again":
            this.owned.begin_anew({old: this.member.owner_nodes.reread([TP], soon())[TP]})
        else:
            this.owned.begin_other_log(old, this.known, 0)
    stored = this.owned.positions[TP].stored
    assert (stored.may_park, stored.parking_trouble) == (True, "")


def test_opened_before_it_is_tracked_it_writes_nothing() -> None:
    this = LateCommitter()
    this.open()
    this.serve()
    assert this.writes_of_a_commit() == 0


def test_a_stopped_partition_writes_nothing() -> None:
    """``offset.conflict=raise``: nothing overwrites the node of the other client until a seek."""
    this = LateCommitter()
    this.serve()
    this.server.zookeeper.put(paths.offset(GROUP, TP), b"70")
    known = this.member.owner_nodes.reread([TP], soon())[TP]
    this.owned.stop_at(this.owned.positions[TP], known, OffsetConflictError(TP, 100, 70))
    this.owned.positions[TP].consumed = 70  # as the reader sets it with the chunk of the error
    this.open()
    this.serve()
    assert this.writes_of_a_commit() == 0
