"""When the next round is due: bursts are one round, failures are repeated for ever and ever less often."""

from __future__ import annotations

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.member.zookeeper import rebalancer
from zkconsumer.member.zookeeper.rebalance_round import RebalanceSettings
from zkconsumer.member.zookeeper.rebalancer import NEVER, OWNER_QUIET, RoundSchedule

QUIET, BACKOFF, BACKOFF_MAX = 0.05, 0.2, 10.0
SETTINGS = RebalanceSettings(QUIET, BACKOFF, BACKOFF_MAX, 1.0, 20.0, 6.0, True, True)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rebalancer, "monotonic", clock)
    return clock


def test_the_quiet_time_is_50_ms_at_most_and_can_be_set() -> None:
    needed = {"zookeeper.connect": "z:2181", "group.id": "g"}
    assert 0 < ConsumerConfig(needed).rebalance_quiet_ms <= 50
    assert ConsumerConfig({**needed, "rebalance.quiet.ms": 7}).rebalance_quiet_ms == 7


def test_members_that_see_one_event_begin_at_different_moments(clock: Clock) -> None:
    dues = []
    for _ in range(200):
        planned = RoundSchedule(SETTINGS)
        planned.after_quiet("x")
        dues.append(planned.due - clock.now)
    assert len(set(dues)) > 150
    assert QUIET / 2 <= min(dues) < max(dues) <= QUIET


def test_events_of_a_burst_put_the_round_off_but_not_for_ever(clock: Clock) -> None:
    planned = RoundSchedule(SETTINGS)
    begun, events = clock.now, 0
    while True:
        planned.after_quiet(f"event {events}")
        events += 1
        assert planned.due > clock.now
        if planned.due <= clock.now + 0.01:
            break
        clock.now += 0.01  # before it is due comes the next
    assert 2 * QUIET < planned.due - begun <= 4 * QUIET + 1e-9
    assert events > 5
    assert planned.begin() == "event 0, event 1, event 2 and more"
    assert planned.due == NEVER


def test_an_owner_node_waits_only_for_its_transaction(clock: Clock) -> None:
    planned = RoundSchedule(SETTINGS)
    planned.briefly("x")
    assert planned.due == clock.now + OWNER_QUIET < clock.now + QUIET


def test_failed_rounds_are_repeated_with_growing_pauses(clock: Clock) -> None:
    """Failures are repeated for ever with growing pauses up to a limit."""
    planned = RoundSchedule(SETTINGS)
    pauses = [planned.back_off() for _ in range(2000)]
    assert planned.due == clock.now + pauses[-1]
    assert pauses[0] <= BACKOFF
    assert pauses[6] > 4 * BACKOFF
    assert max(pauses) <= BACKOFF_MAX
    assert min(pauses[10:]) >= BACKOFF_MAX / 2
    assert len(set(pauses[10:])) > 1000, "with jitter"


def test_what_no_watch_tells_is_looked_at_before_long(clock: Clock) -> None:
    planned = RoundSchedule(SETTINGS)
    planned.later("x")
    assert clock.now < planned.due <= clock.now + BACKOFF_MAX


def test_nothing_begins_before_it_may_but_what_is_repeated(clock: Clock) -> None:
    planned = RoundSchedule(SETTINGS)
    planned.not_before = clock.now + 3.0
    planned.now("x")
    assert planned.due == clock.now + 3.0
    planned.back_off()
    assert planned.due < clock.now + 3.0
