"""The committer with a store outside ZooKeeper: starts, given offsets, what is written when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.offsets.fakes import T0, T1, T2, MemoryStore, failing
from tests.unit.offsets.group_in_zookeeper import Group, Stepped, soon, zookeeper_only
from tests.values import present
from zkconsumer.errors import (
    BrokerUnavailableError,
    CoordinatorUnavailableError,
    NotPermittedError,
    OffsetCommitError,
    RegistryUnavailableError,
    ZkConsumerError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.ownership.partition_position import NONE_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.ownership_transactions import KnownOffset


@pytest.fixture
def group() -> Group:
    return Group()


def test_starts_are_asked_for_all_together(group: Group) -> None:
    member = Stepped(group.owned(), group)
    group.store.offsets = {T0: 7}
    first, second = member.own(T0, 5), member.own(T1)
    assert member.start(first, second) == {first: 7, second: None}
    assert group.store.fetches == 1


def test_a_silent_store_is_asked_again_and_no_start_is_guessed(group: Group) -> None:
    member = Stepped(group.owned(), group)
    group.store.offsets = {T0: 7}
    group.store.trouble = failing(CoordinatorUnavailableError("loading"), KeyError("a bug of the user's store"))
    position = member.own(T0)
    member.committer.tracker.starts.retry = 60.0
    assert member.committer.find_starts([position], member.found.put) == ()
    member.committer.step()
    assert member.committer.trouble == "loading"
    member.committer.tracker.starts.retry = member.committer.tracker.starts.due = 0.0
    member.step()
    assert "a bug of the user's store" in member.committer.trouble
    assert member.found.empty()
    member.step()
    assert member.found.get_nowait() == {position: 7}
    assert member.committer.trouble == ""


def test_readers_hear_once_of_a_store_that_refuses_us(group: Group) -> None:
    """Else a member whose login is wrong would read nothing for ever, and nobody would know why."""
    member = Stepped(group.owned(), group)
    denied = error_codes.error(error_codes.GROUP_AUTHORIZATION_FAILED, "offsets")
    group.store.trouble = failing(denied, denied, denied)
    member.committer.tracker.starts.retry = 4.0
    position = member.own(T0)
    member.committer.find_starts([position], member.found.put)
    member.committer.step()
    pauses = []
    for _ in range(2):
        pauses.append(round(member.committer.tracker.starts.due - monotonic()))
        member.committer.run_timers(float("inf"))
    pauses.append(round(member.committer.tracker.starts.due - monotonic()))
    assert pauses == [8, 16, 30]
    assert member.barred == [denied]
    member.committer.run_timers(float("inf"))
    assert member.barred == [denied, None]
    assert member.found.get_nowait() == {position: None}


def test_what_is_lost_while_its_start_is_looked_for_is_forgotten(group: Group) -> None:
    member = Stepped(group.owned(), group)
    group.store.trouble = failing(*[BrokerUnavailableError("away")] * 3)
    position = member.own(T0)
    member.committer.find_starts([position], member.found.put)
    member.committer.forget([position])
    for _ in range(5):
        member.step()
    assert member.found.empty()
    assert member.committer.trouble == ""


def test_a_store_that_was_left_behind_is_told_at_the_next_commit(group: Group) -> None:
    """In the original a move from one store to the other loses the offsets of idle partitions."""
    member = Stepped(group.owned(dual=True), group)
    group.store.offsets = {T1: 9, T2: 6}
    positions = [member.own(T0, 5), member.own(T1, 4), member.own(T2, 6)]
    assert list(member.start(*positions).values()) == [5, 9, 6]
    member.commit()
    assert group.store.commits == [{T0: 5, T1: 9}]
    assert group.nodes == {0: 5, 1: 9, 2: 6}
    member.commit()
    assert len(group.store.commits) == 1


def test_a_reset_start_is_stored_in_both_before_any_hand_out(group: Group) -> None:
    member = Stepped(group.owned(dual=True), group)
    position = member.own(T0)
    assert member.start(position) == {position: None}
    told: list[Mapping[PartitionPosition, bool]] = []
    member.committer.store_starts({position: 42}, told.append)
    member.committer.step()
    assert told == [{position: True}]
    assert (group.store.offsets, group.nodes) == ({T0: 42}, {0: 42})


def test_starts_are_stored_together_and_each_is_told_once(group: Group) -> None:
    member = Stepped(group.owned(), group)
    committed, gone, *fresh = (member.own(TopicPartition("t", number)) for number in range(5))
    for position in (committed, gone, *fresh):
        member.start(position)
    member.commit_given({committed.tp: 17})
    member.committer.forget([gone])
    member.committer.step()
    told: dict[PartitionPosition, bool] = {}
    before = len(group.store.commits)
    member.committer.store_starts(dict.fromkeys((committed, gone, *fresh), 42), told.update)
    member.committer.step()
    assert told == {committed: False, gone: False, **dict.fromkeys(fresh, True)}
    assert len(group.store.commits) == before + 1
    assert group.store.offsets == {committed.tp: 17, **{position.tp: 42 for position in fresh}}


def test_given_offsets_are_written_as_they_are_even_backwards(group: Group) -> None:
    member = Stepped(zookeeper_only(group), group)
    position = member.own(T0, 5)
    member.commit_given({T0: 3})
    assert group.nodes == {0: 3}
    assert (position.consumed, position.stored.committed) == (5, 3)


def test_offset_zero_of_a_partition_never_seen_is_written(group: Group) -> None:
    """The original takes the remembered value of an unknown partition to be 0, and skips the write."""
    member = Stepped(zookeeper_only(group), group)
    member.commit_given({T0: 0})
    assert group.nodes == {0: 0}


def test_given_offsets_that_fail_are_named_and_others_written(group: Group) -> None:
    member = Stepped(zookeeper_only(group), group)
    member.own(T0, 5)
    group.server.put(paths.owner("g", T1), b"g_other-0", ephemeral_owner=99)
    with pytest.raises(OffsetCommitError, match=r"t-1 at 4 \(another member"):
        member.commit_given({T0: 6, T1: 4, T2: 9})
    assert group.nodes == {0: 6, 2: 9}


def test_a_commit_that_keeps_failing_is_logged_once_and_shown(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was logged at every interval, a line a second for as long as an operator needs, and shown nowhere."""
    member = Stepped(group.owned(dual=True), group, interval=0.0)
    position = member.own(T0, 5)
    member.start(position)
    refuse = Mock(side_effect=NotPermittedError("/consumers/g/offsets/t/0: refused"))
    with monkeypatch.context() as patch:
        patch.setattr(group.session, "transact", refuse)
        for _ in range(5):
            position.consumed = (position.consumed or 0) + 1
            member.step()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert member.committer.trouble == "the automatic commit failed: /consumers/g/offsets/t/0: refused"
    member.step()
    assert (member.committer.trouble, position.stored.committed) == ("", 10)


def test_what_is_in_hand_hides_no_offset_of_somebody_else(group: Group) -> None:
    """Somebody wrote an offset within the rows in hand, and ``offset.conflict`` is ``overwrite``: ours is written."""
    member = Stepped(zookeeper_only(group), group)
    position = member.own(T0, 5)
    position.batch_until = position.held_until = 10
    group.server.put(paths.offset("g", T0), b"7")
    node = present(group.server.node(paths.offset("g", T0)))
    member.committer.overwrite(position, KnownOffset(7, node.version))
    member.committer.step()
    member.commit()
    assert group.nodes == {0: 5}


def test_a_jump_back_by_one_message_is_committed(group: Group) -> None:
    """The message in hand was committed, then finished; then the log was truncated to that message. The new one there
    is in hand, and a crash would have skipped it.
    """
    member = Stepped(zookeeper_only(group), group)
    position = member.own(T0, 5)
    position.held_until = 10
    member.commit_given({T0: 6})
    position.consumed = 6
    member.commit()
    position.consumed = 5
    member.commit()
    assert group.nodes == {0: 5}


@pytest.mark.parametrize("rows", [1, 5])
def test_a_seek_back_is_committed_while_it_is_in_hand(group: Group, rows: int) -> None:
    """Explicitly committed offsets are left out. Bug: the offset from before a seek looked the same."""
    member = Stepped(zookeeper_only(group), group)
    old = member.own(T0, 5)
    old.held_until = 10
    member.commit_given({T0: 6})
    new = PartitionPosition(T0, old.thread, 6 - rows)
    member.committer.succeed(old, new)
    member.committer.step()
    new.held_until = new.batch_until = 6
    member.commit()
    assert group.nodes == {0: 6 - rows}


def test_unchanged_offsets_are_written_again_only_if_wanted(group: Group) -> None:
    quiet = Stepped(zookeeper_only(group), group)
    quiet.own(T0, 5)
    quiet.commit()
    assert present(group.server.node(paths.offset("g", T0))).version == 1  # the claim's

    other = Group()
    member = Stepped(zookeeper_only(other), other, refresh=0.0)
    position = member.own(T0, 5)
    position.consumed = 6
    member.commit()
    position.consumed = 7
    member.step()
    node = present(other.server.node(paths.offset("g", T0)))
    assert node.data == b"6"  # what is committed, not what was consumed since
    assert node.version >= 3


def test_a_partition_without_an_offset_is_not_written(group: Group) -> None:
    store = MemoryStore()
    offsets = MemberStore(group.zookeeper, group.zookeeper, store, expires=True)
    member = Stepped(offsets, group, interval=0.0, refresh=0.0)
    member.own(T0)
    for _ in range(3):
        member.step()
    member.commit()
    assert (store.offsets, group.nodes) == ({}, {})


def test_a_store_that_answers_nonsense_does_not_end_the_thread(group: Group) -> None:
    class Odd(MemoryStore):
        def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
            return {T2: ValueError("nobody asked")} if T0 in offsets else 5  # type: ignore[return-value]

    stepped = Stepped(MemberStore(group.zookeeper, None, Odd()), group, interval=0.0)
    position = stepped.own(T0, 5)
    stepped.start(position)
    position.begin(7)
    position.consumed = 8
    stepped.step()
    assert position.stored.committed == 8


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=["exit", "cancelled"])
def test_no_error_of_a_store_ends_the_thread(group: Group, error: BaseException) -> None:
    """A store with an event loop may raise CancelledError, which is no Exception.

    The committer's thread ended then without a word: no call was answered, and no offset was ever committed again.
    """
    group.store.offsets[T0] = 5
    stepped = Stepped(MemberStore(group.zookeeper, None, group.store), group, interval=0.0)
    position = stepped.own(T0)

    group.store.trouble, starts = failing(error), stepped.committer.tracker.starts
    starts.retry = 60.0
    assert stepped.committer.find_starts([position], stepped.found.put) == ()
    stepped.committer.step()
    assert repr(error) in stepped.committer.trouble
    starts.retry = starts.due = 0.0
    stepped.step()
    assert stepped.found.get_nowait() == {position: 5}
    position.begin(5)

    group.store.trouble = failing(error)
    asked = stepped.committer.of_group([T1])
    stepped.committer.step()
    with pytest.raises(ZkConsumerError, match=r"the store of offsets raised (SystemExit|CancelledError)"):
        asked.result(0)

    group.store.trouble, position.consumed = failing(error), 8
    stepped.step()
    assert position.stored.committed == 5
    stepped.step()
    assert position.stored.committed == 8


@pytest.mark.parametrize("offset", [-1, (1 << 63) - 1])
def test_an_offset_of_no_log_does_not_end_the_thread(group: Group, offset: int) -> None:
    stepped = Stepped(zookeeper_only(group), group, interval=0.0)
    stepped.own(T0, 5).consumed = offset
    stepped.step()


def test_our_commit_is_noted_if_zookeeper_fails_for_the_others(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = zookeeper_only(group)
    stepped = Stepped(offsets, group)
    position = stepped.own(T0, 5)
    monkeypatch.setattr(offsets, "commit_unowned", Mock(side_effect=RegistryUnavailableError("away")))
    with pytest.raises(OffsetCommitError, match=r"t-1 at 3 \(away\)"):
        stepped.committer.tracker.commit_given(stepped.given({T0: 9, T1: 3}), soon())
    assert position.stored.committed == 9


def test_a_bug_while_a_start_is_stored_ends_nothing(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried again by the timer it ended the thread: no offset of any partition was ever committed again."""
    member = Stepped(zookeeper_only(group), group)
    position = member.own(T0)
    stored: list[Mapping[PartitionPosition, bool]] = []
    with monkeypatch.context() as patch:
        patch.setattr(group.zookeeper, "commit", Mock(side_effect=KeyError("a mistake of ours")))
        member.committer.store_starts({position: 7}, stored.append)
        for _ in range(3):
            member.step()
        assert stored == []
        assert "a mistake of ours" in member.committer.trouble
    member.step()
    assert stored == [{position: True}]
    assert member.committer.trouble == ""


@pytest.mark.parametrize("answered", [True, False])
def test_a_commit_amid_the_change_of_the_log_is_our_own(
    group: Group, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Otherwise its offset would count as another client's, and messages of the new log before it would be left out."""
    stepped = Stepped(zookeeper_only(group), group)
    old = stepped.own(T0, 5)
    known = KnownOffset(5, present(group.server.node(paths.offset("g", T0))).version)
    old.consumed = 9
    transact = group.session.transact

    def lose_the_answer(build: Any, deadline: Deadline) -> Any:
        transact(build, deadline)
        raise RegistryUnavailableError("no answer")

    with monkeypatch.context() as patch, suppress(OffsetCommitError, RegistryUnavailableError):
        if not answered:
            patch.setattr(group.session, "transact", lose_the_answer)
        stepped.committer.tracker.commit(NONE_HELD, soon(), patient=False)
    assert group.nodes[0] == 9
    new = PartitionPosition(T0, old.thread, 0)
    stepped.committer.begin_other_log(old, new, known)
    stepped.committer.write_starts([new])
    for _ in range(2):
        stepped.step()
    assert (group.nodes[0], stepped.refused) == (0, {})
