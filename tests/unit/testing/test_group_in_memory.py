"""The group coordinator in memory, by itself: what only a clock in the test's hand, or a look inside, can show."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from zkconsumer.core.consumer_protocol import MemberSubscription, encode_subscription
from zkconsumer.model import TopicPartition
from zkconsumer.testing import ManualClock, committed_offsets
from zkconsumer.testing.committed_offsets import CommittedOffset, CommittedOffsets
from zkconsumer.testing.fake_coordinator import GroupCoordinator
from zkconsumer.testing.group_states import (
    MOVES,
    NEW,
    OLD,
    CoordinatorGroupState,
    CoordinatorRules,
    GroupAction,
    GroupRequest,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
    subscribed_topics,
)

REBALANCING, NOT_COORDINATOR, UNKNOWN = 27, 16, 25


class Answers:
    """Takes what is answered, by a name."""

    def __init__(self) -> None:
        self.of: dict[str, Any] = {}

    def __call__(self, name: str) -> Callable[[Any], None]:
        return lambda answer: self.of.__setitem__(name, answer)


class House:
    """A coordinator with a clock by hand."""

    def __init__(self, rules: CoordinatorRules | None = None) -> None:
        self.clock = ManualClock()
        self.journal = committed_offsets.OffsetsTopic()
        self.groups = GroupCoordinator(rules or CoordinatorRules(), self.clock, self.journal, lambda: None)
        self.answers = Answers()
        self.clock.listen(self.groups.tick)
        self._names = itertools.count(1)

    def join(
        self,
        name: str,
        member_id: str = "",
        session: float = 10.0,
        rebalance: float = 60.0,
        metadata: bytes = b"",
        needs_member_id: bool = False,
    ) -> None:
        offered = (("range", metadata),)
        request = JoinRequest(
            member_id, None, name, "/h", session, rebalance, "consumer", offered, needs_member_id=needs_member_id
        )
        self.groups.join("g", request, self.answers(name))

    def sync(self, name: str, **assignment: bytes) -> None:
        joined: JoinAnswer = self.answers.of[name]
        plan = {self.answers.of[other].member_id: data for other, data in assignment.items()}
        request = SyncRequest(joined.member_id, None, joined.generation, plan)
        self.groups.sync("g", request, self.answers(f"{name} synced"))

    def join_and_sync(self, name: str, **how: Any) -> None:
        self.join(name, **how)
        self.sync(name)

    def heartbeat(self, name: str) -> int:
        joined: JoinAnswer = self.answers.of[name]
        return self.groups.heartbeat("g", joined.member_id, None, joined.generation)

    @property
    def state(self) -> str:
        return self.groups.view("g").state

    def leave(self, name: str) -> None:
        assert self.groups.leave("g", self.answers.of[name].member_id, None) == 0

    def commit(
        self, offset: int, retention: float | None = None, *, name: str = "", topic: str = "t", age: float = 0.0
    ) -> None:
        """As the member of this name, or as nobody."""
        joined = self.answers.of.get(name)
        who = ("", None, -1) if joined is None else (joined.member_id, None, joined.generation)
        place = (topic, 0)
        assert self.groups.commit("g", who, {place: (offset, -1, "")}, retention, {place: age}) == {place: 0}

    def committed(self, topic: str = "t") -> int | None:
        found = self.groups.committed("g", [(topic, 0)])[topic, 0]
        return None if found is None else found.offset


@pytest.mark.parametrize("table", [NEW, OLD], ids=["3.9", "1.1"])
def test_every_request_is_decided_in_every_state(table: Any) -> None:
    assert set(table) == set(itertools.product(CoordinatorGroupState, GroupRequest))
    for (_, request), step in table.items():
        assert (step.action is GroupAction.REFUSE) <= bool(step.error)
        assert request is not GroupRequest.DELETE or step.action in (GroupAction.DELETE, GroupAction.REFUSE)


def test_every_state_can_be_reached_and_only_death_is_for_ever() -> None:
    assert set().union(*MOVES.values()) == set(CoordinatorGroupState)
    assert [state for state in CoordinatorGroupState if not MOVES[state]] == [CoordinatorGroupState.DEAD]


def test_the_first_join_waits_while_members_arrive() -> None:
    house = House(CoordinatorRules(initial_delay=3.0))
    house.join("a")
    house.clock.advance(2.9)
    assert not house.answers.of
    house.join("b")
    house.clock.advance(0.2)
    assert not house.answers.of
    house.clock.advance(3.0)
    assert {answer.generation for answer in house.answers.of.values()} == {1}
    assert len(house.answers.of["a"].members) == 2


def test_the_first_join_ends_with_the_longest_timeout() -> None:
    house = House(CoordinatorRules(initial_delay=3.0))
    for number in range(4):
        house.join(str(number), rebalance=7.0)
        house.clock.advance(2.0)
    assert set(house.answers.of) == {"0", "1", "2", "3"}


def test_timeouts_in_one_long_step_run_in_their_order() -> None:
    """Within ten minutes: the silent member goes, and the group is empty."""
    house = House()
    house.join("a", session=10.0)
    house.sync("a", a=b"x")
    assert house.state == "Stable"
    house.clock.advance(600.0)
    assert house.state == "Empty"
    assert house.groups.view("g").generation == 2
    assert house.heartbeat("a") == UNKNOWN


def test_the_rebalance_timeout_is_the_longest_of_all_members() -> None:
    house = House(CoordinatorRules(modern=False))
    house.join_and_sync("a", session=300.0, rebalance=60.0)
    house.join("b", session=300.0, rebalance=5.0)
    house.clock.advance(59.0)
    assert "b" not in house.answers.of
    house.clock.advance(1.0)
    assert house.answers.of["b"].generation == 2
    assert house.heartbeat("a") == UNKNOWN


def test_a_new_member_that_waits_too_long_is_given_up() -> None:
    house = House(CoordinatorRules(new_member_timeout=30.0))
    house.join_and_sync("a", session=1000.0, rebalance=1000.0)
    house.join("b", session=10.0)
    house.clock.advance(30.0)
    assert house.answers.of["b"].error == UNKNOWN
    assert house.state == "PreparingRebalance"


def test_an_empty_group_loses_all_offsets_at_once() -> None:
    """Seen on 3.9.1: a group was empty for nearly the whole retention, when a tool committed offsets for later use.

    A moment later they were gone.
    """
    house = House(CoordinatorRules(offsets_retention=100.0))
    house.join_and_sync("a", session=1000.0)
    house.leave("a")
    house.commit(4, topic="old")
    house.clock.advance(90.0)
    house.commit(6)
    house.clock.advance(9.0)
    assert (house.committed("old"), house.committed()) == (4, 6)
    house.clock.advance(1.0)
    assert (house.committed("old"), house.committed(), house.state) == (None, None, "Dead")
    house.commit(7)
    house.clock.advance(99.0)
    assert house.committed() == 7


def test_a_member_in_time_keeps_the_offsets_of_an_empty_group() -> None:
    house = House(CoordinatorRules(offsets_retention=100.0))
    house.join_and_sync("a", session=1000.0)
    house.leave("a")
    house.commit(6)
    house.clock.advance(99.0)
    house.join_and_sync("b", session=1000.0)
    house.clock.advance(500.0)
    assert house.committed() == 6
    house.leave("b")
    house.clock.advance(99.0)
    assert house.committed() == 6


def test_an_offset_that_expires_within_a_long_step_is_gone() -> None:
    """At its time the group was Stable and nobody subscribed to the topic; afterwards it is empty, and counts anew."""
    house = House(CoordinatorRules(offsets_retention=100.0))
    house.join_and_sync("a", session=105.0, metadata=encode_subscription(MemberSubscription(("t",))))
    house.commit(5, name="a")
    house.commit(7, name="a", topic="gone")
    house.clock.advance(110.0)
    assert (house.state, house.committed(), house.committed("gone")) == ("Empty", 5, None)


def test_a_group_is_forgotten_with_an_id_that_was_only_given_out() -> None:
    house = House(CoordinatorRules(offsets_retention_check=600.0))
    house.join("a", session=1000.0, needs_member_id=True)
    assert house.state == "Empty"
    house.clock.advance(600.0)
    assert house.groups.views() == []
    house.join("a", house.answers.of["a"].member_id)
    assert house.answers.of["a"].error == UNKNOWN


def test_a_new_coordinator_counts_since_the_group_was_empty() -> None:
    """It also knows what the members subscribe to."""
    house = House(CoordinatorRules(offsets_retention=100.0))
    house.join_and_sync("a", session=1000.0, metadata=encode_subscription(MemberSubscription(("t",))))
    house.commit(5, name="a")
    house.commit(7, name="a", topic="gone")
    house.groups.unload("g")
    house.groups.load("g")
    house.clock.advance(100.0)
    assert (house.committed(), house.committed("gone")) == (5, None)
    house.leave("a")
    house.clock.advance(60.0)
    house.groups.unload("g")
    house.groups.load("g")
    house.clock.advance(39.0)
    assert house.committed() == 5
    house.clock.advance(1.0)
    assert house.committed() is None


def test_what_is_forgotten_leaves_tombstones() -> None:
    house = House()
    house.commit(5)
    house.commit(6, retention=10.0)
    house.clock.advance(10.0)
    records = [(place, getattr(value, "offset", None)) for _, place, value in house.journal.records("g")]
    assert records == [(("t", 0), 5), (("t", 0), 6), (("t", 0), None), (None, None)]
    assert house.journal.last("g") == (None, {})


def test_another_coordinator_goes_on_with_what_was_written_down() -> None:
    house = House()
    house.join("a", session=10.0)
    house.sync("a", a=b"mine")
    other = House()
    other.clock.advance(1000.0)
    other.groups = GroupCoordinator(CoordinatorRules(), other.clock, house.journal, lambda: None)
    other.clock.listen(other.groups.tick)
    house.groups.unload("g")
    assert (house.state, house.heartbeat("a")) == ("Dead", UNKNOWN)
    other.groups.load("g")
    other.answers = house.answers
    assert (other.state, other.groups.view("g").generation) == ("Stable", 1)
    other.sync("a")
    assert other.answers.of["a synced"] == SyncAnswer(0, "consumer", "range", b"mine")
    other.clock.advance(10.0)
    assert other.state == "Empty"


def test_waiting_requests_learn_that_their_group_moved() -> None:
    house = House()
    house.join_and_sync("a")
    house.join("b")
    house.groups.unload("g")
    assert house.answers.of["b"].error == NOT_COORDINATOR


def test_a_full_group_takes_nobody() -> None:
    house = House(CoordinatorRules(max_members=1))
    house.join_and_sync("a")
    house.join("b")
    assert house.answers.of["b"].error == 81
    assert house.state == "Stable"


def test_an_expired_session_is_the_tests_to_decide() -> None:
    house = House()
    house.join_and_sync("a")
    house.groups.expire("g", house.answers.of["a"].member_id)
    assert house.state == "Empty"
    with pytest.raises(KeyError):
        house.groups.expire("g", "nobody")


def test_the_first_to_die_is_due_and_only_what_is_due_dies() -> None:
    offsets = CommittedOffsets(CoordinatorRules(offsets_retention=1000.0))
    alone = committed_offsets.ExpiryBasis(CoordinatorGroupState.EMPTY, 0.0)
    assert offsets.due(alone) is None
    offsets[("t", 0)] = CommittedOffset(5, -1, "", 50.0)
    offsets[("t", 1)] = CommittedOffset(6, -1, "", 40.0)
    offsets[("u", 0)] = CommittedOffset(7, -1, "", 40.0, expires=2000.0)
    assert offsets.due(alone) == 1040.0
    assert offsets.expire(1039.9, alone) == []
    assert offsets.expire(1040.0, alone) == [("t", 1)]
    assert (sorted(offsets), offsets.due(alone)) == ([("t", 0), ("u", 0)], 1050.0)


@pytest.mark.parametrize("version", range(4))
def test_a_subscription_of_any_version_is_understood(version: int) -> None:
    owned = (TopicPartition("gone", 1),)
    said = MemberSubscription(("t", "u"), user_data=b"x", owned=owned, generation=7, rack="r")
    assert subscribed_topics(encode_subscription(said, version)) == frozenset({"t", "u"})
    assert subscribed_topics(encode_subscription(MemberSubscription(()), version)) == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"no subscription",
        b"\0\0\0\0\0\1\0\1",
        b"\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff\xff\xff\xff\xff",
        b"\0\0\x7f\xff\xff\xff\0\1t",
    ],
    ids=["nothing", "half a version", "text", "cut off", "no list", "no name", "more than there is"],
)
def test_what_is_no_subscription_is_not_understood(data: bytes) -> None:
    assert subscribed_topics(data) is None
