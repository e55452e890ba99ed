"""Offset conflicts: what follows when somebody else wrote an offset of ours, by ``offset.conflict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.unit.member.recorders import T0, T1, Recorder, owning
from tests.values import present
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.member.events import CommitsRefused, OffsetsMoved, StartsStored
from zkconsumer.member.offset_conflicts import OffsetConflicts, RoundNeeded
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import KnownOffset, Outcome

ADOPTED = [("replace", 0), ("forget", 0), ("track", 0), ("level", 0), ("fetch", 0)]
STOPPED = [("replace", 0), ("forget", 0), ("track", 0), ("fail", 0)]
OVERWRITTEN = [("overwrite", 0), ("hurry",)]


class House:
    """A member that owns two partitions, each at 5, and the offset nodes."""

    def __init__(self, policy: str, *, nodes: bool = True, offset: int | None = 5) -> None:
        self.recorder = Recorder()
        self.log = self.recorder.log
        self.owned, _ = owning(self.recorder, T0, T1, offset=offset)
        self.nodes: dict[TopicPartition, KnownOffset] = {}
        self.away = False
        self.conflicts = OffsetConflicts(policy, self.owned, self if nodes else None, 1.0)

    def reread(self, partitions: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, KnownOffset]:
        if self.away:
            raise RegistryUnavailableError("ZooKeeper is away")
        return {tp: self.nodes[tp] for tp in partitions if tp in self.nodes}

    @property
    def first(self) -> PartitionPosition:
        return self.owned.positions[T0]

    def refuse(self, outcome: Outcome = Outcome.OFFSET_MOVED) -> RoundNeeded | None:
        return self.conflicts.handle(CommitsRefused({self.first: outcome}))


@pytest.mark.parametrize(
    ("policy", "node", "consumed", "log"),
    [
        ("adopt", KnownOffset(9, 4), 9, ADOPTED),
        ("adopt", KnownOffset(None, None), 5, [("overwrite", 0), ("hurry",)]),
        ("overwrite", KnownOffset(9, 4), 5, OVERWRITTEN),
        ("raise", KnownOffset(9, 4), None, STOPPED),
    ],
)
def test_a_moved_offset_is_dealt_with_by_policy(
    policy: str, node: KnownOffset, consumed: int | None, log: list[Any]
) -> None:
    """If the node was deleted, ``auto.offset.reset`` could skip messages, so our offset is written again."""
    house = House(policy)
    house.nodes[T0] = node
    assert house.refuse() is None
    assert (house.first.consumed, house.log) == (consumed, log)


@pytest.mark.parametrize("policy", ["overwrite", "raise"])
def test_nothing_is_insisted_on_before_the_start(policy: str) -> None:
    """No message was read, so the partition starts at the offset that somebody wrote."""
    house = House(policy, offset=None)
    house.nodes[T0] = KnownOffset(9, 4)
    assert house.refuse() is None
    assert house.first.consumed == 9


def test_a_stopped_partition_stays_where_it_was() -> None:
    """Somebody who writes again decides nothing: the reader is told the place at which it stopped."""
    house = House("raise")
    house.nodes[T0] = KnownOffset(9, 4)
    house.refuse()
    house.nodes[T0] = KnownOffset(11, 5)
    house.refuse()
    assert "t-0" in house.conflicts.trouble
    assert (" 5" in house.conflicts.trouble, "11" in house.conflicts.trouble) == (True, True)
    house.owned.seek(T0, 3)
    assert house.conflicts.trouble == ""


@pytest.mark.parametrize("policy", ["adopt", "overwrite", "raise"])
@pytest.mark.parametrize("cause", ["its owner node is gone", "its offset node is unreadable"])
def test_a_partition_that_cannot_stay_ours_needs_a_round(policy: str, cause: str) -> None:
    house = House(policy)
    needed = present(house.refuse(Outcome.NOT_OURS if "owner" in cause else Outcome.OFFSET_MOVED))
    assert needed.gone == [house.first]
    assert house.log == []


def test_refused_commits_of_an_earlier_position_are_nobodys() -> None:
    house = House("adopt")
    old = house.first
    house.owned.seek(T0, 1)
    house.log.clear()
    assert house.conflicts.handle(CommitsRefused({old: Outcome.OFFSET_MOVED})) is None
    assert house.log == []


def test_an_unreadable_offset_is_read_after_the_next_round() -> None:
    """A start that was refused is not reported a second time, so it must not be forgotten."""
    house = House("adopt", offset=None)
    house.away = True
    needed = house.conflicts.handle(StartsStored({house.first: 3}, frozenset({house.first})))
    assert needed == RoundNeeded("ZooKeeper is away")
    assert house.conflicts.retry() == RoundNeeded("ZooKeeper is away")
    house.away, house.nodes[T0] = False, KnownOffset(9, 4)
    assert house.conflicts.retry() is None
    assert house.first.consumed == 9
    assert house.conflicts.retry() is None


def test_without_nodes_a_refused_start_is_the_users_commit() -> None:
    """In a brokers' group there is no node to read; the user committed meanwhile, so that is where to start."""
    house = House("adopt", nodes=False, offset=None)
    house.first.stored.committed = 8
    assert house.conflicts.handle(StartsStored({house.first: 3}, frozenset({house.first}))) is None
    assert house.first.consumed == 8


@pytest.mark.parametrize(
    ("policy", "consumed", "log"),
    [
        ("adopt", 9, [("replace", 0), ("succeed", 0), ("fetch", 0), ("level", 0)]),
        ("overwrite", 5, OVERWRITTEN),
        ("raise", None, [("replace", 0), ("succeed", 0), ("fail", 0)]),
    ],
)
def test_an_offset_moved_outside_zookeeper_follows_the_policy(
    policy: str, consumed: int | None, log: list[Any]
) -> None:
    house = House(policy)
    assert house.conflicts.handle(OffsetsMoved({house.first: 9})) is None
    assert (house.first.consumed, house.log) == (consumed, log)
