"""The application's listener: the order of its calls, and that a listener cannot stop or lock up a rebalance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from threading import Event, current_thread
from typing import Any

import pytest

from tests.concurrency.group import GROUP, TOPIC, SteppedMember, make_topic, offsets, owners, settle, settled, tp
from tests.timing import scaled
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths


class Recorder(ConsumerRebalanceListener):
    """Writes down what it is told; ``deed`` may be given something to do then."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.threads: set[str] = set()
        self.deeds: dict[str, Callable[..., Any]] = {}

    def _note(self, method: str, *arguments: Any) -> Any:
        self.told.append((method, *arguments))
        self.threads.add(current_thread().name)
        return self.deeds[method](*arguments) if method in self.deeds else None

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        self._note("releasing", partitions)

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[TopicPartition, ThreadId]
    ) -> Mapping[TopicPartition, int] | None:
        return self._note("starting", consumer_id, assignment)  # type: ignore[no-any-return]

    def on_partitions_lost(self, partitions: Mapping[str, frozenset[int]]) -> None:
        self._note("lost", partitions)


@pytest.fixture
def listener() -> Recorder:
    return Recorder()


@pytest.fixture
def member(server: FakeZooKeeper, listener: Recorder) -> Iterator[SteppedMember]:
    made = SteppedMember(server, "a", listener=listener, listener_limit=scaled(5))
    yield made
    if made.listener is not None and not made.delivery.ended:
        made.stop()


def test_it_is_told_assignment_and_releases_in_plain_types(
    server: FakeZooKeeper, member: SteppedMember, listener: Recorder
) -> None:
    settle([member])
    assert listener.told == [("starting", "g_a", {tp(n): "g_a-0" for n in range(4)})]
    settled(server, "b", beside=[member])
    assert listener.told[1:] == [
        ("releasing", {TOPIC: frozenset({2, 3})}),
        ("starting", "g_a", {tp(0): "g_a-0", tp(1): "g_a-0", tp(2): "g_b-0", tp(3): "g_b-0"}),
    ], "what stays is not released"
    assert type(listener.told[1][1]) is dict
    assert listener.threads == {"g_a-listener"}, "on a thread of its own"


def test_the_listener_can_commit_partitions_being_released(server: FakeZooKeeper) -> None:
    """KAFKA-4735: committing inside the listener locked up with the rebalance."""
    server.put(paths.offset(GROUP, tp(3)), b"10")
    listener = Recorder()
    member = settled(server, "a", listener=listener, auto_commit=False)
    member.finish(tp(3), 5)
    listener.deeds["releasing"] = lambda _: member.commit()
    second = settled(server, "b", beside=[member])
    assert offsets(server)[3] == 15
    assert second.owned[tp(3)].cursor.fetched == 15
    listener.deeds.clear()
    member.stop()


def test_nothing_is_handed_out_or_fetched_while_it_is_told(
    server: FakeZooKeeper, member: SteppedMember, listener: Recorder
) -> None:
    seen: list[Any] = []
    listener.deeds["starting"] = lambda *_: seen.append(dict(member.delivery.flowing))
    settle([member])
    assert seen == [{}], "ours, and not yet fetched"
    listener.deeds["releasing"] = lambda partitions: seen.append(sorted(member.delivery.flowing))
    settled(server, "b", beside=[member])
    assert seen[1] == [tp(0), tp(1)]


@pytest.mark.parametrize("error", [ValueError("full"), SystemExit()])
def test_one_that_raises_is_reported_and_stops_nothing(
    server: FakeZooKeeper,
    member: SteppedMember,
    listener: Recorder,
    error: BaseException,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    settle([member])
    listener.deeds.update(releasing=fail)
    second = settled(server, "b", beside=[member])
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}
    assert f"before_releasing_partitions raised {type(error).__name__}" in caplog.text
    listener.deeds.update(starting=fail)
    second.stop()
    settle([member])
    assert len(member.owned) == 4
    assert "before_starting_fetchers raised" in str(member.rebalancer.state)
    listener.deeds.clear()
    make_topic(server, 5)
    settle([member])
    assert member.rebalancer.state.detail == "", "a call that worked takes it back"


def test_one_that_blocks_is_left_behind_after_its_limit(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    listener, release = Recorder(), Event()
    member = settled(server, "a", listener=listener, listener_limit=0.1)
    listener.deeds["releasing"] = lambda _: release.wait(scaled(20))
    second = settled(server, "b", beside=[member])
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}
    assert "does not return" in str(member.rebalancer.state)
    assert "release.wait" in caplog.text, "the report says where it stands"
    release.set()
    settle([member, second])
    member.stop()
    assert [entry[0] for entry in listener.told] == ["starting", "releasing", "starting", "releasing"]


def test_a_failure_that_comes_after_the_limit_is_still_reported(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    listener, release = Recorder(), Event()

    def late(*_: Any) -> None:
        release.wait(scaled(20))
        raise ValueError("too late")

    listener.deeds["starting"] = late
    member = SteppedMember(server, "a", listener=listener, listener_limit=0.05)
    settle([member], 2)
    release.set()
    listener.deeds.clear()
    member.stop()
    assert "too late" in caplog.text
    assert len(offsets(server)) == 0


def test_what_is_lost_is_told_apart_from_what_is_released(member: SteppedMember, listener: Recorder) -> None:
    settle([member])
    member.session.expire()
    settle([member])
    assert [entry[0] for entry in listener.told] == ["starting", "lost", "starting"]
    assert listener.told[1] == ("lost", {TOPIC: frozenset(range(4))})


def test_a_listener_that_blocks_does_not_hold_up_the_end(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    listener, release = Recorder(), Event()
    member = settled(server, "a", listener=listener, listener_limit=3600.0)
    listener.deeds["releasing"] = lambda _: release.wait(scaled(30))
    member.stop()
    assert owners(server) == {}
    assert "left behind" in caplog.text
    release.set()


def test_it_says_where_to_start(server: FakeZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    for n in (0, 1):
        server.put(paths.offset(GROUP, tp(n)), b"10")
    listener = Recorder()
    listener.deeds["starting"] = lambda *_: {tp(0): 7, tp(2): 30, tp(3): -1, TopicPartition("x", 0): 1}
    member = settled(server, "a", listener=listener)
    assert {n: member.owned[tp(n)].cursor.fetched for n in range(4)} == {0: 7, 1: 10, 2: 30, 3: None}
    assert offsets(server) == {0: 10, 1: 10, 2: 30}, "the one without a node has one before anything is handed out"
    assert member.delivery.flowing == dict(member.owned)
    assert "x-0 is not used" in caplog.text
    assert "-1 is no offset" in caplog.text
    member.commit()
    assert offsets(server) == {0: 7, 1: 10, 2: 30}
    listener.deeds.clear()
    member.stop()


def test_it_may_seek_what_is_about_to_start(server: FakeZooKeeper, member: SteppedMember, listener: Recorder) -> None:
    server.put(paths.offset(GROUP, tp(0)), b"10")
    answers: list[Any] = []

    def seek(*_: Any) -> None:
        answers.extend(member.seek({tp(0): 4, tp(1): 5, tp(9): 6}).result(scaled(5)))

    listener.deeds["starting"] = seek
    settle([member])
    assert [position.tp for position in answers] == [tp(9)]
    assert (member.owned[tp(0)].cursor.fetched, member.owned[tp(1)].cursor.fetched) == (4, 5)
    assert member.delivery.flowing == dict(member.owned)
    assert [names for kind, names in member.delivery.log if kind == "start"].count((tp(0),)) <= 1


def test_what_happens_while_it_is_told_is_dealt_with_afterwards(
    server: FakeZooKeeper, member: SteppedMember, listener: Recorder
) -> None:
    def more(*_: Any) -> None:
        listener.deeds.clear()
        make_topic(server, 6)
        member.session.expire()

    listener.deeds["starting"] = more
    settle([member])
    assert len(member.owned) == 6
    assert len(owners(server)) == 6


def test_a_listener_without_methods_of_its_own_is_harmless(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    member = settled(server, "a", listener=ConsumerRebalanceListener())
    member.stop()
    assert caplog.text == ""
