"""What fails again and again takes few lines of the log."""

from __future__ import annotations

import logging

import pytest

from tests.timing import eventually
from tests.unit.fetch.test_truncation_check import add, reading, take
from zkconsumer.fetch.failure_log import FIRST_PAUSE, KEPT, LONGEST_PAUSE, Outages
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
    outages = Outages(clock.now)
    outages.failed("it", "it failed: away")
    assert lines(caplog) == ["it failed: away"]
    for _ in range(2 * int(FIRST_PAUSE)):
        clock.advance(0.5)
        outages.failed("it", "it failed: away")
    assert lines(caplog) == ["it failed: away (61 times in 30 s)"]
    for _ in range(3600):
        clock.advance(1)
        outages.failed("it", "it failed: away")
    assert len(lines(caplog)) <= 4 + 3600 / LONGEST_PAUSE
    outages.over("it")
    outages.over("it")
    assert lines(caplog) == ["it works again, after 3661 failures in 3630 s"]


def test_a_failure_that_comes_and_goes_is_one(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    outages = Outages(clock.now)
    for _ in range(100):
        clock.advance(0.1)
        outages.failed("it", "it failed: away")
        outages.over("it")
    assert len(lines(caplog)) == 2
    clock.advance(FIRST_PAUSE)
    outages.failed("it", "it failed: away")
    assert lines(caplog) == ["it failed: away"], "a new one, after it worked for a while"


def test_what_works_is_not_told() -> None:
    outages = Outages()
    outages.over("it")
    for number in range(2 * KEPT):
        outages.failed(str(number), "failed")
    assert len(outages._known) == KEPT


def test_a_broker_that_cannot_be_reached_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its fetcher is made anew for each try, and each of them logged its first failure: 72 lines in 15 s."""
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
            assert "cannot be reached" in connector.state.detail
            assert [line for line in lines(caplog) if "broker 0" in line][1:] == []
            cluster.brokers[0].start()
            add(cluster, "c")
            assert take(stream, 1) == [(2, "c")]
            assert [line for line in lines(caplog) if "works again" in line] != []
