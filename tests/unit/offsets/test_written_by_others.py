"""Offsets in Kafka that somebody else wrote: seen before a commit writes over them, left alone until it is decided.

Kafka keeps no version with an offset and refuses nobody's commit in a group that it does not coordinate. The timer once
wrote all unchanged offsets again, so that brokers do not forget them. With them it wrote an idle member's old offset
over an operator's reset, within seconds and without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest

from tests.unit.offsets.fakes import T0, T1, failing
from tests.unit.offsets.group_in_zookeeper import Group, Stepped, soon
from zkconsumer.errors import BrokerUnavailableError, CoordinatorUnavailableError, OffsetCommitError
from zkconsumer.kafka import error_codes
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import NONE_HELD
from zkconsumer.runtime.deadline import Deadline


@pytest.fixture
def group() -> Group:
    return Group()


def in_kafka(group: Group, *, dual: bool = False) -> Stepped:
    """A member whose timers are always due."""
    return Stepped(group.owned(dual=dual, expires=True), group, interval=0.0, refresh=0.0)


@pytest.mark.parametrize("reset", [2, 9])
def test_an_idle_member_leaves_a_reset_alone_and_tells_of_it(group: Group, reset: int) -> None:
    member = in_kafka(group)
    position = member.begin(T0, 5)
    group.store.offsets[T0] = reset
    for _ in range(3):
        member.step()
    assert (group.store.offsets, member.moved) == ({T0: reset}, {position: reset})
    assert position.stored.committed == reset


def test_a_busy_member_sees_a_reset_before_its_timers_commit(group: Group) -> None:
    member = in_kafka(group)
    position, other = member.begin(T0, 5), member.begin(T1, 5)
    group.store.offsets[T0] = 2
    position.consumed = other.consumed = 8
    member.step()
    assert (group.store.offsets, member.moved) == ({T0: 2, T1: 8}, {position: 2})


def test_a_commit_before_it_is_decided_names_the_reset(group: Group) -> None:
    member = in_kafka(group)
    position = member.begin(T0, 5)
    group.store.offsets[T0] = 2
    member.step()
    position.consumed = 8
    with pytest.raises(OffsetCommitError, match="t-0 at 8 .somebody else wrote offset 2"):
        member.commit()
    with pytest.raises(OffsetCommitError, match="t-0 at 7 .somebody else wrote offset 2"):
        member.commit_given({T0: 7})
    assert group.store.offsets == {T0: 2}


def test_nothing_changed_is_nobodys_reset(group: Group) -> None:
    member = in_kafka(group)
    position = member.begin(T0, 5)
    for offset in (5, 6, 6, 9):
        position.consumed = offset
        member.step()
        member.committer.check()
        member.step()
    assert (group.store.offsets, member.moved) == ({T0: 9}, {})


def test_a_check_sees_a_reset_although_nothing_is_due(group: Group) -> None:
    member = Stepped(group.owned(expires=True), group)
    position = member.begin(T0, 5)
    group.store.offsets[T0] = 2
    member.committer.check()
    member.committer.step()
    assert member.moved == {position: 2}


@pytest.mark.parametrize("dual", [False, True])
def test_what_kafka_forgot_is_written_again(group: Group, dual: bool) -> None:
    member = in_kafka(group, dual=dual)
    member.begin(T0, 5)
    member.commit()
    del group.store.offsets[T0]
    member.step()
    member.step()
    assert (group.store.offsets, member.moved) == ({T0: 5}, {})


@pytest.mark.parametrize(("dual", "nodes"), [(False, {}), (True, {0: 8})])
def test_a_commit_whose_answer_was_lost_is_nobodys_reset(group: Group, dual: bool, nodes: dict[int, int]) -> None:
    """The offset is found in the store, the older one is not written again, and the node gets the new one."""
    member = Stepped(group.owned(dual=dual, expires=True), group, interval=0.0)
    position = member.begin(T0, 5)

    def lost() -> None:
        group.store.offsets[T0] = 8
        raise BrokerUnavailableError("the answer never came")

    position.consumed = 8
    group.store.trouble = steps(lambda: None, lost)  # what is stored is looked at first
    member.step()
    member.step()
    assert (group.store.offsets, member.moved, position.stored.committed) == ({T0: 8}, {}, 8)
    assert group.nodes == nodes


def steps(*actions: Callable[[], None]) -> Callable[[], None]:
    """Return a function that does these actions in turn, then nothing."""
    left = list(actions)
    return lambda: left.pop(0)() if left else None


@pytest.mark.parametrize(
    "why",
    [
        CoordinatorUnavailableError("nobody knows it"),
        error_codes.error(error_codes.TOPIC_AUTHORIZATION_FAILED, "commit"),
    ],
    ids=["never sent", "refused"],
)
def test_what_was_not_written_explains_no_reset(group: Group, why: Exception) -> None:
    member = in_kafka(group)
    position = member.begin(T0, 5)
    position.consumed = 8
    group.store.trouble = failing(None, why)
    member.step()
    group.store.offsets[T0] = 8
    member.step()
    assert member.moved == {position: 8}


def test_a_topic_that_is_refused_does_not_hide_the_others(group: Group) -> None:
    other = TopicPartition("u", 0)
    group.session.ensure(["/consumers/g/owners/u", "/consumers/g/offsets/u"], soon())
    member = in_kafka(group)
    position = member.begin(T0, 5)
    member.begin(other, 5)
    fetch = group.store.fetch

    def refusing(partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        if other in partitions:
            raise error_codes.error(error_codes.TOPIC_AUTHORIZATION_FAILED, "the offset of u-0")
        return fetch(partitions, timeout)

    group.store.fetch = refusing  # type: ignore[method-assign]
    group.store.offsets |= {T0: 2, other: 2}
    member.step()
    assert (group.store.offsets, member.moved) == ({T0: 2, other: 2}, {position: 2})


def test_a_look_that_takes_all_the_time_is_no_commit(group: Group) -> None:
    """The look and the commit share the timer's time limit. Due offsets stay due for the next commit."""
    member = in_kafka(group)
    position = member.begin(T0, 5)
    position.consumed = 8
    tracker = member.committer.tracker
    with pytest.raises(OffsetCommitError, match="did not answer in time"):
        tracker.commit(NONE_HELD, Deadline(0.0), patient=False)
    assert group.store.commits == []
    tracker.commit(NONE_HELD, soon(), patient=False)
    assert group.store.commits == [{T0: 8}]


def test_a_commit_waits_once_for_a_look_that_failed(group: Group) -> None:
    """A connection that breaks at the look is made anew for the commit, which wrote over a reset unseen."""
    member = in_kafka(group)
    position = member.begin(T0, 5)
    position.consumed = 8
    group.store.offsets[T0] = 2
    group.store.trouble = failing(BrokerUnavailableError("away"))
    member.step()
    assert (group.store.offsets, "could not be seen" in member.committer.trouble) == ({T0: 2}, True)
    member.step()
    assert (group.store.offsets, member.moved) == ({T0: 2}, {position: 2})


def test_a_store_that_tells_nothing_stops_no_commit(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    member = in_kafka(group)
    member.begin(T0, 5).consumed = 8

    def refuse(*_: object) -> Mapping[TopicPartition, int]:
        raise BrokerUnavailableError("away")

    monkeypatch.setattr(group.store, "fetch", refuse)
    member.step()
    member.step()
    assert group.store.offsets == {T0: 8}


def test_a_store_of_the_users_own_is_not_watched(group: Group) -> None:
    """A user's store may hold offsets that the application writes with its results."""
    member = Stepped(group.owned(), group, interval=0.0)
    member.begin(T0, 5)
    fetches = group.store.fetches
    group.store.offsets[T0] = 2
    member.committer.check()
    member.committer.step()
    member.step()
    assert (member.moved, group.store.fetches) == ({}, fetches)
