"""Commits of a member that the brokers coordinate: as whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from threading import Timer
from typing import cast

import pytest

from tests.timing import eventually, scaled
from tests.unit.offsets.group_in_zookeeper import Group
from zkconsumer.core.generation_fence import GenerationEpochs, OwnershipEpochs
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    IllegalGenerationError,
    OffsetCommitError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.offsets.kafka_store import TAKEN_BACK, BridgeOffsets, MemberOffsets
from zkconsumer.offsets.member_store import MemberStore, may_pass
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
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


NOBODY = Membership("g")


class Bridge:
    """The offsets of a bridge, of a partition that ZooKeeper gives to it."""

    def __init__(self) -> None:
        self.epochs, self.identity = OwnershipEpochs(), Identity(who=NOBODY, held=GenerationEpochs())
        self.coordinator, self.group = Coordinator(lambda: None), Group()
        self.brokers_side = BridgeOffsets(cast(CoordinatorSearch, self.coordinator), self.identity, lambda *_: None)
        nodes = self.group.zookeeper
        self.store = MemberStore(
            nodes, nodes, self.brokers_side, backoff=0.001, zookeeper_first=True, brokers_side=self.brokers_side
        )
        self.offset = 34

    def generation(self, number: int, *given: TopicPartition, kept: Collection[TopicPartition] = ()) -> None:
        self.epochs.begin_generation(number, kept)
        self.epochs.assigned(given)
        self.identity.held, self.identity.who = self.epochs.current, Membership("g", number, "me")

    def lost(self) -> None:
        self.epochs.lost()
        self.identity.held, self.identity.who = self.epochs.current, NOBODY

    def left(self) -> None:
        self.epochs.left()
        self.lost()

    def claim(self) -> None:
        if TP in self.store.tracked:
            self.store.untrack(TP)
            self.group.server.remove(paths.owner("g", TP))
        known = self.group.claim(TP, self.offset)
        self.store.track(TP, PartitionPosition(TP, ThreadId("g_me-0")).stored, known)

    def commits(self) -> bool:
        """Commit the next offset. Return whether Kafka has it; ZooKeeper has it in any case."""
        self.offset += 1
        sent = len(self.coordinator.commits)
        failures = self.store.commit({TP: self.offset}, {}, Deadline(scaled(5)), patient=True)
        assert self.group.nodes == {0: self.offset}
        assert len(self.coordinator.commits) - sent == (0 if failures else 1), "no try, or one"
        if failures:
            assert str(failures[TP]) == TAKEN_BACK
            assert self.store.only_in_zookeeper(TP, self.offset, failures[TP])
        return not failures


@pytest.mark.parametrize("claimed", ["of old", "by the generation"])
def test_a_bridge_that_was_removed_commits_in_zookeeper(claimed: str) -> None:
    """The bridge joins again at once, while its readers finish their messages. The generation is another member's."""
    bridge = Bridge()
    if claimed == "of old":
        bridge.claim()
        assert bridge.commits(), "as nobody, in an empty group"
    bridge.generation(5, TP)
    if claimed != "of old":
        bridge.claim()
    assert bridge.commits()
    bridge.lost()
    assert not bridge.commits(), "as nobody, where the group may be empty again"
    bridge.generation(7)
    assert not bridge.commits()
    bridge.generation(8, TP)
    assert not bridge.commits(), "another member may have owned it before generation 8"
    bridge.claim()
    assert bridge.commits()


def test_a_bridge_that_missed_a_generation_is_fenced_in_kafka() -> None:
    bridge = Bridge()
    bridge.generation(5, TP)
    bridge.claim()
    bridge.epochs.begin_generation(6, ())
    bridge.identity.held, bridge.identity.who = bridge.epochs.current, Membership("g", 6, "me")
    assert not bridge.commits(), "the leader has not decided"
    bridge.epochs.assigned([TP])
    bridge.identity.held = bridge.epochs.current
    assert bridge.commits(), "nobody else owned it"
    bridge.generation(8, TP)
    assert not bridge.commits()


def test_what_zookeeper_alone_gave_is_committed_on_both_sides() -> None:
    """Bridges that join own what the first generation gives to other members, which may know the brokers alone."""
    bridge = Bridge()
    bridge.claim()
    bridge.generation(1)
    assert bridge.commits()
    bridge.generation(2, TP)
    bridge.claim()
    bridge.left()
    assert bridge.commits(), "left by its own will, for a member that knows ZooKeeper alone"
    bridge.generation(4, KEPT)
    assert bridge.commits()


def test_what_a_bridge_keeps_is_committed_until_given_up() -> None:
    bridge = Bridge()
    bridge.generation(5, TP)
    bridge.claim()
    bridge.generation(6, TP, kept=[TP])
    assert bridge.commits()
    bridge.generation(7, kept=[TP])
    assert bridge.commits(), "revoked: its last commit comes before the next join"
    bridge.generation(8)
    assert not bridge.commits()


def test_a_bridge_outside_a_group_with_members_tries_again() -> None:
    def refuse() -> None:
        raise error_codes.error(error_codes.UNKNOWN_MEMBER_ID, "a commit")

    bridge = Bridge()
    bridge.claim()
    bridge.coordinator.first = refuse
    with pytest.raises(BrokerError, match="we are not in it") as raised:
        bridge.brokers_side.commit({TP: 63}, 5.0)
    assert may_pass(raised.value)
