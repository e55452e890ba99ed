"""Commits of a member that the brokers coordinate: as whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Timer
from typing import cast

import pytest

from tests.timing import eventually, scaled
from zkconsumer.core.generation_fence import GenerationEpochs
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    IllegalGenerationError,
    OffsetCommitError,
    RebalanceInProgressError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.offsets.kafka_store import BridgeOffsets, MemberOffsets
from zkconsumer.offsets.member_store import MemberStore, may_pass
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import ABSENT

TP, KEPT = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class Identity:
    settled: bool = True
    who: Membership = field(default_factory=lambda: Membership("g", 5, "first"))
    held: GenerationEpochs = field(default_factory=lambda: GenerationEpochs(5, True, {TP: 1, KEPT: 1}))


@dataclass
class Coordinator:
    """Is its own search and channel; ``first`` happens to the first commit."""

    first: Callable[[], None]
    group: str = "g"
    commits: list[Membership] = field(default_factory=list)
    offsets: list[Mapping[TopicPartition, int]] = field(default_factory=list)

    def find(self, _: Deadline) -> Coordinator:
        return self

    def discard(self, _: Coordinator) -> None:
        pass

    @property
    def endpoint(self) -> Membership:
        return Membership("g")

    def commit(self, who: Membership, offsets: Mapping[TopicPartition, int], *_: object) -> dict[TopicPartition, int]:
        self.commits.append(who)
        self.offsets.append(offsets)
        if len(self.commits) == 1:
            self.first()
        return dict.fromkeys(offsets, 0)


def owned(identity: Identity, coordinator: Coordinator) -> MemberStore:
    store = MemberOffsets(cast(CoordinatorSearch, coordinator), identity, lambda *_: None)
    made = MemberStore(store, elsewhere=store, backoff=0.001)
    made.track(TP, PartitionPosition(TP, ThreadId("g_c-0")).stored, ABSENT)
    made.track(KEPT, PartitionPosition(KEPT, ThreadId("g_c-0")).stored, ABSENT)
    return made


@pytest.mark.parametrize("code", [None, error_codes.ILLEGAL_GENERATION])
def test_what_was_lost_is_not_committed_in_the_next_life(code: int | None) -> None:
    """By then somebody else may own it, and the coordinator takes it from any member of the generation."""
    identity = Identity()

    def lose() -> None:
        identity.held, identity.who = GenerationEpochs(7, True, {TP: 2}), Membership("g", 7, "second")
        raise BrokerUnavailableError("gone") if code is None else error_codes.error(code, "a commit")

    coordinator = Coordinator(lose)
    store = owned(identity, coordinator)
    failures = store.commit({TP: 42}, {}, Deadline(10.0), patient=True)
    assert coordinator.commits == [Membership("g", 5, "first")]
    assert isinstance(failures[TP], OffsetCommitError | IllegalGenerationError)
    store.untrack(TP)
    store.track(TP, PartitionPosition(TP, ThreadId("g_c-0")).stored, ABSENT)
    assert not store.commit({TP: 50}, {}, Deadline(10.0), patient=True)


@pytest.mark.parametrize("code", [error_codes.ILLEGAL_GENERATION, error_codes.REBALANCE_IN_PROGRESS])
def test_between_two_generations_a_commit_waits_for_the_next_one(code: int) -> None:
    identity = Identity(settled=False)

    def go_on() -> None:
        identity.held, identity.settled = GenerationEpochs(6, True, {TP: 1}), True
        identity.who = Membership("g", 6, "first")
        raise error_codes.error(code, "a commit")

    coordinator = Coordinator(go_on)
    assert not owned(identity, coordinator).commit({TP: 42}, {}, Deadline(10.0), patient=False)
    assert [who.generation for who in coordinator.commits] == [5, 6]


HANDED_OVER = GenerationEpochs(6, True, {KEPT: 1})


@pytest.mark.parametrize("code", [None, error_codes.ILLEGAL_GENERATION, error_codes.REBALANCE_IN_PROGRESS])
def test_after_a_hand_over_only_kept_partitions_are_tried_again(code: int | None) -> None:
    """The coordinator takes a commit of any partition from any member of its generation: the next try, as a member of
    the next one, set the new owner's offset back.
    """
    identity = Identity()

    def hand_over() -> None:
        identity.held, identity.who = HANDED_OVER, Membership("g", 6, "first")
        raise BrokerUnavailableError("gone") if code is None else error_codes.error(code, "a commit")

    coordinator = Coordinator(hand_over)
    failures = owned(identity, coordinator).commit({TP: 42, KEPT: 43}, {}, Deadline(10.0), patient=True)
    assert [who.generation for who in coordinator.commits] == [5, 6]
    assert coordinator.offsets == [{TP: 42, KEPT: 43}, {KEPT: 43}]
    assert list(failures) == [TP]
    assert "given to another member" in str(failures[TP])


@pytest.mark.parametrize("tracked", ["before", "after"])
def test_a_queued_commit_is_not_sent_after_the_hand_over(tracked: str) -> None:
    identity = Identity()
    coordinator = Coordinator(lambda: None)
    if tracked == "after":
        identity.held, identity.who = HANDED_OVER, Membership("g", 6, "first")
    store = owned(identity, coordinator)
    identity.held, identity.who = HANDED_OVER, Membership("g", 6, "first")
    failures = store.commit({TP: 42, KEPT: 43}, {}, Deadline(10.0), patient=True)
    assert coordinator.offsets == [{KEPT: 43}]
    assert list(failures) == [TP]


@pytest.mark.parametrize("given_back", [True, False])
def test_whether_the_next_generation_gives_it_back_is_waited_for(given_back: bool) -> None:
    """An eager rebalance takes everything first."""
    identity = Identity()

    def decide() -> None:
        identity.held = GenerationEpochs(6, True, {TP: 1} if given_back else {})

    def begin() -> None:
        identity.held, identity.who = GenerationEpochs(6, False), Membership("g", 6, "first")
        Timer(0.1, decide).start()
        raise error_codes.error(error_codes.ILLEGAL_GENERATION, "a commit")

    coordinator = Coordinator(begin)
    failures = owned(identity, coordinator).commit({TP: 42}, {}, Deadline(10.0), patient=True)
    assert [who.generation for who in coordinator.commits] == ([5, 6] if given_back else [5])
    assert bool(failures) is not given_back


def test_an_undecided_generation_is_awaited_until_the_deadline() -> None:
    identity = Identity(held=GenerationEpochs(6, False), who=Membership("g", 6, "first"))
    coordinator = Coordinator(lambda: None)
    failures = owned(identity, coordinator).commit({TP: 42}, {}, Deadline(0.2), patient=True)
    assert not coordinator.commits
    assert list(failures) == [TP]


def test_a_late_refusal_between_generations_is_tried_again() -> None:
    identity, clock = Identity(), Deadline(0.2)

    def go_on_late() -> None:
        eventually(lambda: clock.expired, 5, "the end of the try")
        identity.held, identity.who = HANDED_OVER, Membership("g", 6, "first")
        raise error_codes.error(error_codes.ILLEGAL_GENERATION, "a commit")

    coordinator = Coordinator(go_on_late)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("zkconsumer.offsets.member_store.ONE_TRY", 0.1)
        assert not owned(identity, coordinator).commit({KEPT: 43}, {}, Deadline(scaled(10)), patient=True)
    assert [who.generation for who in coordinator.commits] == [5, 6]


# ---- a bridge, whose partitions ZooKeeper decides


NOBODY, AGAIN = Membership("g"), Membership("g", 6, "again")


def bridge(identity: Identity, coordinator: Coordinator, tp: TopicPartition = TP) -> BridgeOffsets:
    store = BridgeOffsets(cast(CoordinatorSearch, coordinator), identity, lambda *_: None)
    store.tracked[tp] = PartitionPosition(tp, ThreadId("g_c-0")).stored
    store.claimed(tp)
    return store


@pytest.mark.parametrize("name", ["taken", "given again", "given by ZooKeeper", "outside the group"])
def test_a_bridge_commits_nothing_that_a_generation_took(name: str) -> None:
    """A member that the coordinator removed joins again at once, while its readers still finish their messages."""
    identity, coordinator = Identity(), Coordinator(lambda: None)
    if name == "given by ZooKeeper":
        identity.held = GenerationEpochs(5, True, {KEPT: 1})  # the brokers did not give TP then
    store = bridge(identity, coordinator)
    identity.held = GenerationEpochs(6, True, {TP: 2} if name == "given again" else {})
    identity.who = NOBODY if name == "outside the group" else AGAIN
    refused = store.not_ours([TP], Deadline(1.0))
    assert store.commit({TP: 63}, 5.0).keys() == refused.keys() == ({TP} if name == "taken" else set())
    assert coordinator.commits == ([identity.who] if name != "taken" else [])


def test_a_bridge_waits_for_a_generation_to_decide_about_its_partitions() -> None:
    identity, coordinator = Identity(), Coordinator(lambda: None)
    store = bridge(identity, coordinator)
    identity.held, identity.who, identity.settled = GenerationEpochs(6, False), AGAIN, False
    assert not store.not_ours([TP], Deadline(1.0))
    assert isinstance(store.commit({TP: 63}, 0.0)[TP], RebalanceInProgressError)  # the caller tries again
    assert coordinator.commits == []
    identity.held = GenerationEpochs(6, True)
    assert isinstance(store.commit({TP: 63}, 5.0)[TP], OffsetCommitError)
    assert coordinator.commits == []


def test_a_bridge_outside_a_group_with_members_tries_again() -> None:
    def refuse() -> None:
        raise error_codes.error(error_codes.UNKNOWN_MEMBER_ID, "a commit")

    identity = Identity(who=NOBODY)
    with pytest.raises(BrokerError, match="we are not in it") as raised:
        bridge(identity, Coordinator(refuse)).commit({TP: 63}, 5.0)
    assert may_pass(raised.value)
