"""Broker failures: repeated ones take few log lines, and refused logins are tried at growing intervals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from tests.timing import eventually, scaled
from tests.unit.fetch.member_stream import add, reading, take
from tests.unit.fetch.one_partition import manager_of
from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError
from zkconsumer.fetch import broker_failures as module
from zkconsumer.fetch.broker_failures import (
    FIRST_LOG_PAUSE,
    KNOWN_FAILURES,
    LONGEST_LOG_PAUSE,
    LONGEST_LOGIN_PAUSE,
    FailureLog,
    RefusedLogins,
)
from zkconsumer.fetch.broker_fetch import FetchSettings
from zkconsumer.fetch.fetcher_manager import FetcherManager
from zkconsumer.kafka import ClusterMetadata
from zkconsumer.model import EARLIEST, Endpoint, ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    caplog.clear()
    return found


def test_a_failure_is_told_at_once_and_then_seldom(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    failures = FailureLog(clock.now)
    failures.failed("it", "it failed: away")
    assert lines(caplog) == ["it failed: away"]
    for _ in range(2 * int(FIRST_LOG_PAUSE)):
        clock.advance(0.5)
        failures.failed("it", "it failed: away")
    assert lines(caplog) == ["it failed: away (61 times in 30 s)"]
    for _ in range(3600):
        clock.advance(1)
        failures.failed("it", "it failed: away")
    assert len(lines(caplog)) <= 4 + 3600 / LONGEST_LOG_PAUSE
    failures.over("it")
    failures.over("it")
    assert lines(caplog) == ["it works again, after 3661 failures in 3630 s"]


def test_a_failure_that_comes_and_goes_is_one(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    failures = FailureLog(clock.now)
    for _ in range(100):
        clock.advance(0.1)
        failures.failed("it", "it failed: away")
        failures.over("it")
    assert len(lines(caplog)) == 2
    clock.advance(FIRST_LOG_PAUSE)
    failures.failed("it", "it failed: away")
    assert lines(caplog) == ["it failed: away"], "a new one, after it worked for a while"


def test_what_works_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    failures = FailureLog()
    failures.over("it")
    assert lines(caplog) == []
    for number in range(KNOWN_FAILURES + 1):
        failures.failed(str(number), "failed")
    caplog.clear()
    failures.failed(str(1), "failed")
    assert lines(caplog) == [], "a known failure"
    failures.failed(str(0), "failed")
    assert lines(caplog) == ["failed"], "the oldest one was forgotten"


def test_a_broker_that_cannot_be_reached_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Bug: each try makes a new fetcher, and each fetcher logged its first failure: 72 lines in 15 s."""
    caplog.set_level(logging.INFO)
    with FakeCluster(2, zookeeper=True) as cluster:
        cluster.create_topic("t")
        add(cluster, "ab")
        cluster.zookeeper.put("/consumers/g/offsets/t/0", b"0")
        with reading(cluster) as (connector, stream):
            take(stream, 2)
            caplog.clear()
            cluster.brokers[0].stop()  # as if it were frozen: it stays registered, and leads
            before = len(cluster.requests_of("Metadata"))
            eventually(lambda: len(cluster.requests_of("Metadata")) > before + 20, 20, "twenty tries")
            eventually(lambda: "cannot be reached" in connector.state.detail, 20, "the trouble of a try")
            assert [line for line in lines(caplog) if "broker 0" in line][1:] == []
            cluster.brokers[0].start()
            add(cluster, "c")
            assert take(stream, 1) == [(2, "c")]
            assert [line for line in lines(caplog) if "works again" in line] != []


REFUSAL = BrokerAuthenticationError("broker 1 at h:1: the login failed")


def test_login_pauses_grow_and_a_success_resets_them() -> None:
    logins = RefusedLogins()
    pauses = [logins.refused("a", REFUSAL) for _ in range(40)]
    assert 0.3 < pauses[0] <= 0.5
    assert all(later > 1.2 * earlier for earlier, later in pairwise(pauses[:6]))
    assert LONGEST_LOGIN_PAUSE * 0.7 < pauses[-1] <= LONGEST_LOGIN_PAUSE
    logins.accepted("a")
    assert logins.refused("a", REFUSAL) <= 0.5


def test_the_first_refusal_is_loud_and_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logins = RefusedLogins()
    for who in ("a", "b", "a"):
        logins.refused(who, REFUSAL)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.DEBUG, logging.DEBUG]
    assert logins.trouble == str(REFUSAL)
    logins.forget("a")
    assert logins.trouble
    logins.accepted("b")
    assert logins.trouble == ""
    assert "all brokers accept our login" in caplog.text


class Door:
    """In place of a channel: each connect takes the next of ``answers``; the last one stays."""

    answers: ClassVar[list[BrokerError | None]] = []
    knocks = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def connect(self, _: Deadline) -> None:
        Door.knocks += 1
        answer = Door.answers.pop(0) if len(Door.answers) > 1 else Door.answers[0]
        if answer is not None:
            raise answer

    def metadata(self, *_: object) -> ClusterMetadata:
        return ClusterMetadata({}, {}, {})

    def close(self) -> None:
        pass


@pytest.fixture
def manage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[FetcherManager, list[Any]]]]:
    monkeypatch.setattr(FetchSettings, "channel", lambda *_: Door())
    monkeypatch.setattr(Door, "knocks", 0)
    made: list[FetcherManager] = []

    def make(*answers: BrokerError | None) -> tuple[FetcherManager, list[Any]]:
        monkeypatch.setattr(Door, "answers", list(answers))
        told: list[Any] = []
        settings = FetchSettings("c", 0.1, 1, 1000, 1000, EARLIEST, scaled(5), 0, 0.01)
        manager = manager_of(settings, lambda _: [Endpoint(1, "h", 1)], refused=told.append)
        made.append(manager)
        manager.open()
        position = PartitionPosition(TopicPartition("t", 0), ThreadId("m-0"), 0)
        manager.start([(position, None)])  # type: ignore[list-item]
        return manager, told

    yield make
    for manager in made:
        manager.close(Deadline(scaled(5)))


def test_readers_hear_of_it_once_and_again_when_it_is_over(
    manage: Callable[..., tuple[FetcherManager, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_LOGIN_PAUSE", 0.01)
    manager, told = manage(REFUSAL, REFUSAL, BrokerUnavailableError("away"), REFUSAL, None)
    eventually(lambda: len(told) == 2, 10, "the end of it")
    assert told == [REFUSAL, None]
    eventually(lambda: "no leader" in manager.trouble, 10, "the next trouble")


def test_a_refusal_is_no_storm(manage: Callable[..., tuple[FetcherManager, list[Any]]]) -> None:
    manager, told = manage(REFUSAL)
    eventually(lambda: told == [REFUSAL], 10, "the refusal")
    assert "the login failed" in manager.trouble
    eventually(lambda: Door.knocks == 2, 5, "the second try, half a second later")
    assert Door.knocks == 2


def test_a_broker_that_is_away_does_not_hide_a_refusal(
    manage: Callable[..., tuple[FetcherManager, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, told = manage(REFUSAL)
    monkeypatch.setattr(manager.leaders, "_directory", lambda _: [Endpoint(1, "h", 1), Endpoint(2, "h", 2)])
    del told[:]
    monkeypatch.setattr(Door, "answers", [REFUSAL, BrokerUnavailableError("away")])
    with pytest.raises(BrokerAuthenticationError):
        manager.leaders.find(["t"], [Endpoint(1, "h", 1), Endpoint(2, "h", 2)])
