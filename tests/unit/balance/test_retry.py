"""Tests of decisions on messages that were not finished: tables, and laws that hold for every policy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.balance.outcomes import DONE, NOT_STARTED, PENDING, Failed, Later, Outcome, Reject
from zkconsumer.balance.retry_policy import DELAYS, MOST_SECONDS, Kind, Retry, RetryDecision, decide, reason_of
from zkconsumer.core.message_pointers import MOST_REASON
from zkconsumer.errors import DecodeError
from zkconsumer.model import TopicPartition

NOW = 1_700_000_000_000
BOOM = Failed(TimeoutError("the server is away"))
STEADY = Retry(jitter=0.0)


def decided(
    outcome: Outcome, attempts: int = 0, first_ms: int = 0, retry: Retry = STEADY, **more: Any
) -> RetryDecision:
    options = {"may_park": True, "random": 0.5} | more
    return decide(retry, outcome, attempts, first_ms, NOW, **options)


def test_default_delays_are_those_of_rocketmq() -> None:
    assert len(DELAYS) == 16
    assert (DELAYS[0], DELAYS[1], DELAYS[-1]) == (10, 30, 7200)
    assert [STEADY.delay(failed) for failed in (1, 2, 16, 99)] == [10, 30, 7200, 7200]


@pytest.mark.parametrize(
    ("attempts", "waited_s", "kind", "seconds"),
    [
        (0, None, Kind.AGAIN, 10),
        (1, 10, Kind.AGAIN, 30),
        (1, 31, Kind.PARK, 30),
        (2, 40, Kind.PARK, 60),
        (14, 9000, Kind.PARK, 3600),
        (15, 9000, Kind.DEAD, 0),
    ],
)
def test_failed_message_comes_again_parks_and_ends(
    attempts: int, waited_s: int | None, kind: Kind, seconds: int
) -> None:
    first = 0 if waited_s is None else NOW - waited_s * 1000
    got = decided(BOOM, attempts, first)
    due = NOW + seconds * 1000 if kind is not Kind.DEAD else 0
    assert got == RetryDecision(kind, seconds, due, attempts + 1, first or NOW, "TimeoutError: the server is away")


@pytest.mark.parametrize(
    ("outcome", "retry"),
    [
        (Reject("no such account"), STEADY),
        (Failed(DecodeError(TopicPartition("t", 0), 3, "value", "json", ValueError("x"))), STEADY),
        (Failed(KeyError("x")), Retry(on=(OSError,))),
        (Failed(KeyError("x")), Retry(reject=(LookupError,))),
        (BOOM, Retry(attempts=1)),
    ],
)
def test_rejected_message_is_dead_at_once(outcome: Outcome, retry: Retry) -> None:
    got = decided(outcome, retry=retry)
    assert (got.kind, got.attempts) == (Kind.DEAD, 1)
    assert got.reason


def test_lost_worker_costs_an_attempt_whatever_it_raised() -> None:
    lost = Failed(KeyError("x"), worker_died=True)
    got = decided(lost, retry=Retry(on=(OSError,), reject=(KeyError,)))
    assert (got.kind, got.attempts) == (Kind.AGAIN, 1)


def test_last_attempt_is_not_lost_beside_another_message() -> None:
    together = Failed(RuntimeError("killed"), worker_died=True, together=True)
    alone = Failed(RuntimeError("killed"), worker_died=True)
    policy = Retry(attempts=3)
    assert [decided(together, n, retry=policy).attempts for n in (0, 1, 2)] == [1, 2, 2]
    assert decided(together, 2, retry=policy).kind is not Kind.DEAD
    assert decided(together, 0, retry=Retry(attempts=1)).attempts == 0
    assert decided(alone, 2, retry=policy).kind is Kind.DEAD


def test_message_that_did_not_begin_comes_at_once() -> None:
    assert decided(NOT_STARTED, 2, 5) == RetryDecision(Kind.AGAIN, 0.0, NOW, 2, 5)


def test_later_counts_no_attempt_and_parks_a_long_wait() -> None:
    assert decided(Later(5)) == RetryDecision(Kind.AGAIN, 5, NOW + 5000, 0, NOW)
    assert decided(Later(61)) == RetryDecision(Kind.PARK, 61, NOW + 61_000, 0, NOW)
    assert decided(Later(5), first_ms=NOW - 58_000).kind is Kind.PARK
    endless = decided(Later(math.inf))
    assert (endless.kind, endless.seconds) == (Kind.PARK, MOST_SECONDS)


def test_later_with_a_failure_is_an_attempt_with_its_own_delay() -> None:
    assert decided(Later(5, "busy")) == RetryDecision(Kind.AGAIN, 5, NOW + 5000, 1, NOW, "busy")
    assert decided(Later(5, "busy"), attempts=2, first_ms=NOW).kind is Kind.PARK
    last = decided(Later(5, "busy"), attempts=Retry().attempts - 1, first_ms=NOW - 1)
    assert last == RetryDecision(Kind.DEAD, 0, 0, Retry().attempts, NOW - 1, "busy")


def test_order_by_partition_never_parks() -> None:
    assert decided(BOOM, 14, 1, may_park=False).kind is Kind.AGAIN
    assert decided(Later(1e9), may_park=False).kind is Kind.AGAIN
    assert decided(BOOM, 15, 1, may_park=False).kind is Kind.DEAD


def test_message_of_a_pointer_is_parked_again() -> None:
    assert decided(BOOM, parked=True).kind is Kind.PARK


def test_delays_may_be_a_function() -> None:
    assert decided(BOOM, 1, NOW, retry=Retry(jitter=0, delays=lambda failed: 2.0**failed)).seconds == 4
    for wrong in (-1, None, math.nan, "5"):
        answers: Any = {1: wrong}.__getitem__
        with pytest.raises(ValueError, match="returned no seconds after 1"):
            decided(BOOM, retry=Retry(delays=answers))


@pytest.mark.parametrize("outcome", [DONE, PENDING, Failed(KeyboardInterrupt()), Failed(SystemExit(1))])
def test_what_needs_no_decision_is_refused(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match=r"needs no decision|ends the run"):
        decided(outcome)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"attempts": 0}, r"attempts=\) takes a number of at least 1, not 0"),
        ({"attempts": True}, "attempts"),
        ({"park_after": 1.5}, "park_after"),
        ({"park_seconds": -1}, "park_seconds"),
        ({"park_seconds": math.nan}, "park_seconds"),
        ({"jitter": 1.1}, "from 0 to 1"),
        ({"delays": ()}, "list of seconds or a function"),
        ({"delays": "10"}, "list of seconds or a function"),
        ({"delays": (1, -1)}, "seconds of at least 0, not -1"),
        ({"delays": (math.inf,)}, "seconds of at least 0"),
        ({"on": (3,)}, "exception classes, not 3"),
        ({"reject": (KeyboardInterrupt,)}, "always ends the run"),
        ({"on": (BaseException,)}, "may not name BaseException"),
    ],
)
def test_unusable_policy_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Retry(**options)


def test_single_exception_class_and_endless_hold_are_taken() -> None:
    one: Any = OSError
    assert Retry(on=one).on == (OSError,)
    assert decided(BOOM, 1, 1, retry=Retry(park_seconds=math.inf, park_after=99)).kind is Kind.AGAIN


def test_reason_is_short_and_can_be_written() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert reason_of(SilentError()) == "SilentError"
    assert reason_of(ValueError("one\ntwo")) == "ValueError: one"
    assert len(reason_of(ValueError("x" * 9999))) == MOST_REASON
    assert reason_of(ValueError("\ud800")).encode() == b"ValueError: ?"


@given(
    outcome=st.sampled_from([BOOM, Later(0), Later(3600), Reject("r"), NOT_STARTED, Failed(KeyError(), True)]),
    attempts=st.integers(0, 40),
    waited=st.integers(0, 10**8),
    jitter=st.floats(0, 1),
    random=st.floats(0, 1),
    may_park=st.booleans(),
    parked=st.booleans(),
)
def test_laws_of_every_decision(
    outcome: Outcome, attempts: int, waited: int, jitter: float, random: float, may_park: bool, parked: bool
) -> None:
    """Attempts never shrink, nothing is held longer than ``park_seconds``, and only failures end a message."""
    retry = Retry(jitter=jitter)
    first = NOW - waited if attempts else 0
    got = decide(retry, outcome, attempts, first, NOW, may_park=may_park, random=random, parked=parked)
    assert got.attempts >= attempts
    assert got.kind is not Kind.PARK or may_park
    if got.kind is Kind.DEAD:
        assert isinstance(outcome, Failed | Reject)
        assert isinstance(outcome, Reject) or got.attempts >= retry.attempts
        return
    assert not isinstance(outcome, Failed) or got.attempts < retry.attempts
    assert got.seconds >= 0
    assert got.due_ms == NOW + round(got.seconds * 1000)
    if got.kind is Kind.AGAIN and may_park and outcome is not NOT_STARTED:
        assert not parked
        assert got.due_ms - got.first_ms <= retry.park_seconds * 1000
        assert got.attempts < retry.park_after
