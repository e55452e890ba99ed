"""Brokers that refuse us are asked ever more seldom, and the readers hear of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from tests.timing import eventually, scaled
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError
from zkconsumer.fetch import fetcher_manager as manager_module
from zkconsumer.fetch import refused_logins as module
from zkconsumer.fetch.fetcher import EARLIEST, FetchSettings
from zkconsumer.fetch.fetcher_manager import FetchManager
from zkconsumer.fetch.refused_logins import LONGEST_PAUSE, Logins
from zkconsumer.kafka import ClusterMetadata
from zkconsumer.model import Endpoint, ThreadId, TopicPartition

REFUSAL = BrokerAuthenticationError("broker 1 at h:1: the login failed")


def test_pauses_grow_to_half_a_minute_and_begin_anew_after_a_success() -> None:
    logins = Logins()
    pauses = [logins.refused("a", REFUSAL) for _ in range(40)]
    assert 0.3 < pauses[0] <= 0.5
    assert all(later > 1.2 * earlier for earlier, later in pairwise(pauses[:6]))
    assert LONGEST_PAUSE * 0.7 < pauses[-1] <= LONGEST_PAUSE
    logins.accepted("a")
    assert logins.refused("a", REFUSAL) <= 0.5


def test_the_first_refusal_is_loud_and_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logins = Logins()
    for who in ("a", "b", "a"):
        logins.refused(who, REFUSAL)
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.DEBUG, logging.DEBUG]
    assert logins.trouble == str(REFUSAL)
    logins.forget("a")
    assert logins.trouble
    logins.accepted("b")
    assert logins.trouble == ""
    assert "no broker refuses us" in caplog.text


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
def manage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[FetchManager, list[Any]]]]:
    monkeypatch.setattr(manager_module, "BrokerChannel", Door)
    monkeypatch.setattr(Door, "knocks", 0)
    made: list[FetchManager] = []

    def make(*answers: BrokerError | None) -> tuple[FetchManager, list[Any]]:
        monkeypatch.setattr(Door, "answers", list(answers))
        told: list[Any] = []
        settings = FetchSettings("c", 0.1, 1, 1000, 1000, EARLIEST, scaled(5), 0, 0.01)
        manager = FetchManager(
            "m", settings, lambda _: [Endpoint(1, "h", 1)], resolved=lambda *_: None, refused=told.append
        )
        made.append(manager)
        manager.open()
        position = PartitionPosition(TopicPartition("t", 0), ThreadId("m-0"), 0)
        manager.start([(position, None)])  # type: ignore[list-item]
        return manager, told

    yield make
    for manager in made:
        manager.close(Deadline(scaled(5)))


def test_readers_hear_of_it_once_and_again_when_it_is_over(
    manage: Callable[..., tuple[FetchManager, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.01)
    manager, told = manage(REFUSAL, REFUSAL, BrokerUnavailableError("away"), REFUSAL, None)
    eventually(lambda: len(told) == 2, 10, "the end of it")
    assert told == [REFUSAL, None]
    eventually(lambda: "no leader" in manager.trouble, 10, "the next trouble")


def test_a_refusal_is_no_storm(manage: Callable[..., tuple[FetchManager, list[Any]]]) -> None:
    manager, told = manage(REFUSAL)
    eventually(lambda: told == [REFUSAL], 10, "the refusal")
    assert "the login failed" in manager.trouble
    eventually(lambda: Door.knocks == 2, 5, "the second try, half a second later")
    assert Door.knocks == 2


def test_a_broker_that_is_away_does_not_hide_that_another_refuses(
    manage: Callable[..., tuple[FetchManager, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, told = manage(REFUSAL)
    monkeypatch.setattr(manager, "_directory", lambda _: [Endpoint(1, "h", 1), Endpoint(2, "h", 2)])
    del told[:]
    monkeypatch.setattr(Door, "answers", [REFUSAL, BrokerUnavailableError("away")])
    with pytest.raises(BrokerAuthenticationError):
        manager._leaders(["t"], [Endpoint(1, "h", 1), Endpoint(2, "h", 2)])
