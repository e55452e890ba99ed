"""Start positions on their way into the store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest

from tests.unit.offsets.fakes import MemoryStore
from zkconsumer.errors import OffsetCommitError, RegistryUnavailableError
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.committer import Committer
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.start_lookup import MISSES, TOGETHER, StartWriter
from zkconsumer.offsets.store import CommitRefusedError
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.ownership.stored_offset import StoredOffset
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.ownership_transactions import KnownOffset, Outcome


class Store:
    """Takes everything, once it is ``up``."""

    asks = copies = False
    forgets = False
    keeps_refused = False
    in_zookeeper = True
    releases = True

    def __init__(self) -> None:
        self.up = True
        self.stored: dict[TopicPartition, int] = {}
        self.tracked: dict[TopicPartition, StoredOffset] = {}

    def track(self, partition: TopicPartition, stored: StoredOffset, known: KnownOffset) -> None:
        self.tracked[partition] = stored

    def untrack(self, partition: TopicPartition) -> KnownOffset:
        del self.tracked[partition]
        return KnownOffset(None, None)

    def commit(self, offsets: Mapping[TopicPartition, int], *_: Any, **__: Any) -> Mapping[TopicPartition, Exception]:
        if not self.up:
            raise RegistryUnavailableError("not now")
        self.stored.update(offsets)
        return {}

    def close(self) -> None:
        pass


def committer_of(store: Store, timeout: float = 1.0, retry: float = 0.0) -> Committer:
    return Committer(
        "c",
        store,  # type: ignore[arg-type]
        Lease(),
        CommitSettings(interval=None, timeout=timeout, retry=retry),
        refused=lambda _: None,
    )


def tracked(committer: Committer, count: int) -> list[PartitionPosition]:
    positions = [PartitionPosition(TopicPartition("t", p), ThreadId("g_c-0")) for p in range(count)]
    committer.track([(position, KnownOffset(None, None)) for position in positions])
    return positions


def test_several_starts_that_waited_are_all_told_at_once() -> None:
    """The second of them once was lost: a dictionary changed during the loop over it."""
    store = Store()
    committer = committer_of(store)
    told: dict[PartitionPosition, bool] = {}
    store.up = False
    positions = tracked(committer, 3)
    for position in positions:
        committer.store_starts({position: 7}, told.update)
    for _ in range(4):
        committer.step()
    assert told == {}
    store.up = True
    committer.step()
    assert told == dict.fromkeys(positions, True)
    assert store.stored == {position.tp: 7 for position in positions}
    assert all(position.stored.committed == 7 for position in positions)
    committer.close(Deadline(1.0))


class Failing(Store):
    """Cannot store the partitions of ``BAD``, and fails in the way of ``fail``."""

    def __init__(self, fail: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Exception]]) -> None:
        super().__init__()
        self.fail = fail
        self.calls: list[int] = []

    def commit(self, offsets: Mapping[TopicPartition, int], *_: Any, **__: Any) -> Mapping[TopicPartition, Exception]:
        self.calls.append(len(offsets))
        bad = [tp for tp in offsets if tp.partition in BAD]
        failures = self.fail(bad) if bad else {}
        self.stored.update((tp, offset) for tp, offset in offsets.items() if tp not in failures)
        return failures


BAD = range(100, 250)


def raising(_: Collection[TopicPartition]) -> Mapping[TopicPartition, Exception]:
    raise ValueError("no such row")


def slow(bad: Collection[TopicPartition]) -> Mapping[TopicPartition, Exception]:
    """Each takes its time, and there is not enough for many."""
    if len(bad) > 10:
        raise RegistryUnavailableError("no answer in time")
    return {tp: CommitRefusedError(Outcome.REFUSED) for tp in bad}


def none_of_them(bad: Collection[TopicPartition]) -> Mapping[TopicPartition, Exception]:
    return {tp: OffsetCommitError("not this one") for tp in bad}


@pytest.mark.parametrize("fail", [raising, slow, none_of_them])
def test_what_cannot_be_stored_holds_up_nothing_else_for_long(
    fail: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Exception]],
) -> None:
    store = Failing(fail)
    committer = committer_of(store)
    positions = tracked(committer, 600)
    told: dict[PartitionPosition, bool] = {}
    committer.store_starts(dict.fromkeys(positions, 7), told.update)
    for _ in range(30):
        committer.step()
    assert told == {position: True for position in positions if position.tp.partition not in BAD}
    assert max(store.calls) <= TOGETHER, "each call has the whole time limit"
    assert committer.trouble
    store.fail = lambda _: {}
    for _ in range(30):
        if committer.trouble:  # else it waits for something to do
            committer.step()
    assert told == dict.fromkeys(positions, True)
    assert committer.trouble == ""
    committer.close(Deadline(1.0))


def test_if_nothing_can_be_stored_few_calls_are_made_at_once() -> None:
    store = Failing(raising)
    committer = committer_of(store)
    positions = tracked(committer, 250)[100:]
    committer.store_starts(dict.fromkeys(positions, 7), lambda _: None)
    made = 0
    for _ in range(8):
        committer.step()
        assert len(store.calls) - made <= MISSES + 1, "and one at most while it was told of"
        made = len(store.calls)
    assert store.calls[0] == 150
    assert store.calls[-1] == 1, "so that one that cannot be stored is found"
    committer.close(Deadline(1.0))


def denied(bad: Collection[TopicPartition]) -> Mapping[TopicPartition, Exception]:
    return {tp: CommitRefusedError(Outcome.REFUSED) for tp in bad}


def test_denied_starts_delay_others_by_one_call_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BAD", range(2000))
    store = Failing(denied)
    committer = committer_of(store, timeout=0.0)
    committer.store_starts(dict.fromkeys(tracked(committer, 2000), 7), lambda _: None)
    for tries in range(1, 6):
        committer.step()
        assert len(store.calls) <= 2 * tries, "what it tries when it is told, and when that is due again"
    assert "t-0 cannot be stored" in committer.trouble
    assert "1999 more" in committer.trouble
    assert len(caplog.records) == 1, "the same trouble is not told again"
    committer.close(Deadline(1.0))


def test_what_is_denied_keeps_nothing_else_waiting() -> None:
    store = Failing(denied)
    committer = committer_of(store, retry=1000.0)
    *positions, first, second = tracked(committer, 102)
    told: dict[PartitionPosition, bool] = {}
    committer.step()
    committer.store_starts(dict.fromkeys([*positions, first, second], 7), told.update)
    committer.step()
    assert told == dict.fromkeys(positions, True)
    late = PartitionPosition(TopicPartition("late", 0), ThreadId("g_c-0"))
    committer.track([(late, KnownOffset(None, None))])
    committer.store_starts({late: 9}, told.update)
    made = len(store.calls)
    committer.step()
    committer.step()
    assert told[late]
    assert store.calls[made:] == [1], "alone"
    committer.forget([first, second])
    for number in (1, 2):  # and nothing of that pause is left when they are gone
        late = PartitionPosition(TopicPartition("late", number), ThreadId("g_c-0"))
        committer.track([(late, KnownOffset(None, None))])
        committer.store_starts({late: 9}, told.update)
        for _ in range(3 if number == 1 else 2):
            committer.step()
        assert told[late]
    assert committer.trouble == ""
    committer.close(Deadline(1.0))


class Denying:
    """A ZooKeeper that lets nobody write offset nodes."""

    def __init__(self) -> None:
        self.tracked: dict[TopicPartition, StoredOffset] = {}

    def claimed(self, partition: TopicPartition) -> None:
        pass

    def not_ours(self, *_: Any) -> Mapping[TopicPartition, Exception]:
        return {}

    def commit(self, offsets: Mapping[TopicPartition, int], *_: Any) -> Mapping[TopicPartition, Exception]:
        return {tp: CommitRefusedError(Outcome.REFUSED) for tp in offsets}


@pytest.mark.parametrize("zookeeper_first", [False, True])
def test_what_is_denied_waits_unless_another_store_has_it_now(zookeeper_first: bool) -> None:
    """In a bridge nobody has it: read again, it would be resolved and denied again and again without a pause."""
    elsewhere = MemoryStore()
    nodes: Any = Denying()
    store = MemberStore(nodes, nodes, elsewhere, zookeeper_first=zookeeper_first)
    storing = StartWriter(store, 1.0, lambda *_: None)
    position = PartitionPosition(TopicPartition("t", 0), ThreadId("g_c-0"))
    told: dict[PartitionPosition, bool] = {}
    storing.add({position: 7}, told.update)
    storing.try_all()
    if zookeeper_first:
        assert (told, elsewhere.offsets) == ({}, {})
        assert storing.denied
        assert "t-0 cannot be stored" in storing.trouble
    else:
        assert (told, elsewhere.offsets) == ({position: False}, {position.tp: 7})
        assert storing.trouble == ""
