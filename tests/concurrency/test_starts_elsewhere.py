"""Members whose offsets are outside ZooKeeper: a rebalance does not wait for the store, and nothing starts before it
has answered.
"""

from __future__ import annotations

import logging

import pytest

from tests.concurrency.group import GROUP, new_server, offsets, owners, settle, settled, tp, try_again
from tests.unit.offsets.fakes import MemoryStore, failing
from zkconsumer.errors import CoordinatorUnavailableError, OffsetCommitError
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(2)


def never() -> MemoryStore:
    """A store that does not answer, until its ``trouble`` is taken away."""
    store = MemoryStore()
    store.trouble = failing(*[CoordinatorUnavailableError("loading")] * 1000)
    return store


@pytest.mark.parametrize("found_by_a_commit", [True, False])
@pytest.mark.parametrize("written", [5, 500])
def test_what_somebody_wrote_into_the_node_counts_alone(
    server: FakeZooKeeper, written: int, found_by_a_commit: bool
) -> None:
    """The larger of both would undo what an operator set back, who finds the offsets in ZooKeeper."""
    store = MemoryStore()
    store.offsets = {tp(0): 50, tp(1): 50}
    member = settled(server, "a", store=store, dual=True)
    member.finish(tp(0), 40)
    member.commit()
    member.finish(tp(0), 10)
    member.owned[tp(0)].paused = True
    server.put(paths.offset(GROUP, tp(0)), b"%d" % written)
    if found_by_a_commit:
        with pytest.raises(OffsetCommitError, match="t-0 at 100 .somebody else wrote the offset"):
            member.commit()
    else:
        member.schedule.reconcile_at = 0.0
    settle([member])
    position = member.owned[tp(0)]
    assert (position.consumed, position.cursor.fetched, position.paused) == (written, written, True)
    assert member.delivery.flowing[tp(0)] is position
    # at once, or the next owner would start at the larger of both after all
    assert (store.offsets, offsets(server)[0]) == ({tp(0): written, tp(1): 50}, written)
    member.commit()
    assert offsets(server) == {0: written, 1: 50}
    member.finish(tp(0), 1)
    member.commit()
    assert (store.offsets[tp(0)], offsets(server)[0]) == (written + 1, written + 1)


def test_a_silent_store_holds_up_the_start_and_nothing_else(server: FakeZooKeeper) -> None:
    """In the original the search for the coordinator has no end, and a rebalance or a shutdown hangs in it."""
    store = never()
    first = settled(server, "a", store=store)
    assert set(first.owned) == {tp(0), tp(1)}
    assert first.rebalancer.first_round.done()
    assert first.delivery.flowing == {}
    second = settled(server, "b", store=store, beside=[first])
    assert owners(server) == {0: f"{first.consumer}-0", 1: f"{second.consumer}-0"}
    store.trouble = lambda: None
    store.offsets = {tp(0): 7, tp(1): 9}
    for member in (first, second):
        try_again(member)
    settle([first, second])
    assert {t.partition: p.cursor.fetched for t, p in first.delivery.flowing.items()} == {0: 7}
    assert {t.partition: p.cursor.fetched for t, p in second.delivery.flowing.items()} == {1: 9}


def test_an_unreadable_node_does_no_harm_if_it_is_not_used(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    server.put(paths.offset(GROUP, tp(0)), b"rubbish")
    with caplog.at_level(logging.ERROR):
        both = settled(server, "a", store=MemoryStore(), dual=True)
    assert set(both.owned) == {tp(1)}  # an offset is not guessed
    both.stop()
    alone = settled(server, "b", store=MemoryStore())
    assert set(alone.owned) == {tp(0), tp(1)}
