"""An offset in Kafka that somebody else wrote, told to a member while something else happens to the partition.

The committer has found the offset. The tests vary the events that the group thread hears before it decides.
"""

from __future__ import annotations

import pytest

from tests.concurrency.group import TOPIC, SteppedMember, new_server, offsets, settle, settled
from tests.unit.offsets.fakes import MemoryStore
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeZooKeeper

HERE, OTHER = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
START, OURS, THEIRS = 50, 60, 20


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(2)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    made.offsets = {HERE: START, OTHER: START}
    return made


def reset(server: FakeZooKeeper, store: MemoryStore, conflict: str = "adopt", *, dual: bool = False) -> SteppedMember:
    """A member that was at ``OURS`` when somebody wrote ``THEIRS``; its group's thread has not heard of it yet."""
    member = settled(server, "a", store=store, expires=True, conflict=conflict, dual=dual)
    member.finish(HERE, OURS - START)
    member.commit()
    assert store.offsets[HERE] == OURS
    store.offsets[HERE] = THEIRS
    member.committer.check()
    return member


def test_dual_nodes_follow_a_reset(server: FakeZooKeeper, store: MemoryStore) -> None:
    """Else the larger of both, which is ours, would be the next owner's start."""
    member = reset(server, store, dual=True)
    assert offsets(server)[0] == OURS
    settle([member])
    assert (offsets(server)[0], store.offsets[HERE]) == (THEIRS, THEIRS)
    member.stop()
    other = settled(server, "b", store=store, expires=True, dual=True)
    assert other.owned[HERE].consumed == THEIRS


@pytest.mark.parametrize("conflict", ["adopt", "overwrite", "raise"])
def test_a_seek_of_the_user_counts_more(server: FakeZooKeeper, store: MemoryStore, conflict: str) -> None:
    """It comes after the reset was found, and before it is dealt with."""
    member = reset(server, store, conflict)
    event = member.events.get_nowait()
    member.seek({HERE: 33})
    member.events.put(event)
    settle([member])
    assert member.owned[HERE].consumed == 33
    assert member.delivery.failed == {}
    member.commit()
    assert store.offsets[HERE] == 33


@pytest.mark.parametrize("conflict", ["adopt", "overwrite", "raise"])
def test_whoever_leaves_before_it_is_decided_leaves_it_alone(
    server: FakeZooKeeper, store: MemoryStore, conflict: str
) -> None:
    member = reset(server, store, conflict)
    member.events.get_nowait()
    member.finish(OTHER)
    member.stop()
    assert store.offsets == {HERE: THEIRS, OTHER: START + 1}


def test_a_second_reset_is_a_second_conflict(server: FakeZooKeeper, store: MemoryStore) -> None:
    """It comes while the first one waits to be dealt with."""
    member = reset(server, store)
    store.offsets[HERE] = THEIRS + 5
    member.committer.check()
    settle([member])
    assert member.owned[HERE].consumed == THEIRS
    member.committer.check()
    settle([member])
    assert (member.owned[HERE].consumed, store.offsets[HERE]) == (THEIRS + 5, THEIRS + 5)
