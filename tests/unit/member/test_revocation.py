"""Revocation: stop the hand-out, wait for messages in hand, call the listener, make the last commit."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest

from tests.unit.member.recorders import T0, T1, Recorder, owning
from zkconsumer.errors import OffsetCommitError
from zkconsumer.member.events import SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.listener import ListenerCalls
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.revocation import Revocation, RevocationSettings, UserRequests
from zkconsumer.model import ConsumerId
from zkconsumer.ownership.partition_position import NOTHING_HELD, Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request


class House:
    """A member that owns two partitions; its listener writes into the same log as its streams and committer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, drain: float = 60.0, auto_commit: bool = True) -> None:
        self.recorder = Recorder()
        self.log = self.recorder.log
        self.owned, self.events = owning(self.recorder, T0, T1)
        self.inbox = Inbox(self.events)
        requests = UserRequests(self.inbox, self.owned)
        calls = ListenerCalls(ConsumerId("g_me"), requests.serve)
        for method in ("releasing", "lost"):
            monkeypatch.setattr(calls, method, self._noting(method))
        self.revocation = Revocation(RevocationSettings(drain, auto_commit), self.inbox, self.owned, requests, calls)

    def _noting(self, method: str) -> Any:
        return lambda positions, **_: self.log.append((method, *(p.tp.partition for p in positions)))

    @property
    def first(self) -> PartitionPosition:
        return self.owned.positions[T0]

    def hold(self, waits: int) -> PartitionPosition:
        """A message of the first partition is in the user's hands for so many waits."""
        position = self.first
        position.held_until = 6

        def finish(_: Deadline) -> None:
            position.consumed, position.held_until = 6, NOTHING_HELD

        self.recorder.waits = [lambda _: None] * (waits - 1) + [finish]
        return position


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


def change(held: Held) -> SubscriptionChanged:
    return SubscriptionChanged(lambda before: before, Request(Deadline(None)), frozenset("t"), held)


def test_the_steps_follow_each_other(house: House) -> None:
    position = house.hold(waits=2)
    house.revocation.revoke([position])
    assert house.log == [("revoke", 0), ("wait", 0), ("wait", 0), ("releasing", 0)]
    assert list(house.owned.positions) == [T1]
    house.revocation.last_commit([position], Deadline(1))
    assert house.log[-1] == ("last commit", 0)


def test_a_wait_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, drain=0.0)
    house.first.held_until = 6
    house.revocation.revoke([house.first])
    assert [entry for entry in house.log if entry[0] == "wait"] == [("wait", 0)]


def test_an_abandoned_partition_is_not_waited_for(house: House) -> None:
    position = house.hold(waits=1)
    house.revocation.revoke([position], drain=False)
    assert house.log == [("revoke", 0), ("releasing", 0)]


def test_the_message_of_the_requester_counts_as_finished(house: House) -> None:
    """The requester unsubscribes and waits for the revocation. To wait for the requester's message would never end."""
    position = house.first
    position.held_until = 6
    house.inbox.changes.ask(change({position: range(5, 6)}))
    house.inbox.changes.begin()
    house.revocation.revoke([position])
    house.revocation.last_commit([position], Deadline(1))
    assert house.log == [("revoke", 0), ("wait",), ("releasing", 0), ("last commit", 0, "counting", 0)]


def test_requests_are_answered_while_a_message_is_waited_for(house: House) -> None:
    position = house.hold(waits=2)
    seek = SeekRequested(dict.fromkeys(house.owned.positions.values(), 1), Request(Deadline(None)))
    asked = change({position: range(5, 6)})
    done = asked.done

    def ask(_: Deadline) -> None:
        house.events.put(seek)
        house.events.put(asked)

    house.recorder.waits[0] = ask
    house.revocation.revoke([position])
    assert seek.done.result(0) == {position}, "a partition that leaves cannot be moved any more"
    assert done.result(0) is None, "its thread holds the message, so it must not wait for us"
    (later,) = house.inbox.gather(0)
    assert not later.done.done(), "it is in force later, for nobody's messages"
    assert later.held == {}


@pytest.mark.parametrize("hurried", [False, True])
def test_a_shutdown_ends_all_streams_and_brings_its_own_limit(house: House, hurried: bool) -> None:
    position = house.hold(waits=3)
    stop = StopRequested(deadline=Deadline(3600), hurried=hurried)
    house.recorder.waits[0] = lambda _: house.events.put(stop)
    house.revocation.revoke([position])
    ended = [("end",), ("revoke", 0, 1)]
    waits = [("wait", 0)] if not hurried else []
    assert house.log == [("revoke", 0), ("wait", 0), ("wait", 0), *ended, *waits, ("releasing", 0)]


def test_the_end_commits_finished_messages_before_it_waits(house: House) -> None:
    house.hold(waits=1)
    leaving = house.revocation.end(StopRequested(deadline=Deadline(3600)))
    assert house.log == [("end",), ("revoke", 0, 1), ("hurry",), ("wait", 0, 1), ("releasing", 0, 1)]
    assert [position.tp for position in leaving] == [T0, T1]
    assert (house.owned.left, house.owned.positions) == (leaving, {})


def test_the_end_of_a_member_without_partitions_calls_nobody() -> None:
    events: SimpleQueue[Any] = SimpleQueue()
    recorder = Recorder()
    owned = OwnedPartitions(recorder, recorder, recorder, events.put)
    requests = UserRequests(inbox := Inbox(events), owned)
    calls = ListenerCalls(ConsumerId("g_me"), requests.serve)
    Revocation(RevocationSettings(1.0, auto_commit=True), inbox, owned, requests, calls).end(StopRequested())
    assert recorder.log == [("end",), ("revoke",), ("wait",)]


def test_lost_partitions_are_told_apart(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.revocation.lose([house.first], "the session expired")
    assert house.log == [("revoke", 0), ("forget", 0), ("lost", 0)]
    assert "lost t-0: the session expired" in caplog.text
    house.log.clear()
    house.revocation.lose([], "nothing is ours")
    assert house.log == []


@pytest.mark.parametrize(("auto_commit", "commit"), [(False, True), (True, False)])
def test_there_is_no_last_commit_unless_all_agree(
    monkeypatch: pytest.MonkeyPatch, auto_commit: bool, commit: bool
) -> None:
    house = House(monkeypatch, auto_commit=auto_commit)
    house.revocation.last_commit([house.first], Deadline(1), commit=commit)
    assert house.log == [("no commit", 0)]


def test_a_failed_last_commit_is_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.recorder.refused = OffsetCommitError("no answer")
    assert house.revocation.try_last_commit([house.first], Deadline(1)) == {}
    assert "consumes uncommitted messages again: no answer" in caplog.text
