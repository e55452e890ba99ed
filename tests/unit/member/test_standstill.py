"""A member that reads nothing says so in the log, once for each reason, and says when its messages flow again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from threading import Event

import pytest

from tests.timing import scaled
from zkconsumer.member.connector_state import (
    LISTENERS,
    MOST_REASONS,
    UNOWNED,
    ConnectorState,
    Phase,
    StandstillLog,
    stands_still,
)
from zkconsumer.member.listener import ConsumerRebalanceListener, ListenerCalls, ListenerThread
from zkconsumer.model import ConsumerId
from zkconsumer.runtime.deadline import Deadline

FLOWS = ConnectorState(Phase.OWNING, 4, 4)
MISSING = ConnectorState(Phase.OWNING, 0, 0, detail="waiting for topic evnets to exist")
RAISED = f"{LISTENERS}before_starting_fetchers raised ValueError: no"
ORPHAN = f"{UNOWNED}events-3 for 30 s, which g_b-0 should"


@pytest.mark.parametrize(
    ("state", "obstacle", "still"),
    [
        (FLOWS, "", False),
        (FLOWS, "no leader for events-0", True),
        (MISSING, "", True),
        (ConnectorState(Phase.OWNING, 0, 0), "", False),  # a spare member, or an empty subscription
        (ConnectorState(Phase.WAITING, 0, 4), "", True),
        (ConnectorState(Phase.WAITING, 2, 4), "", False),  # the rest comes by itself
        (ConnectorState(Phase.STARTING), "", True),
        (ConnectorState(Phase.REJOINING, 4, 4), "", False),
        (ConnectorState(Phase.SUSPENDED, 4, 4), "", True),
        (ConnectorState(Phase.OWNING, 4, 4, detail="waiting for topic evnets to exist"), "", True),
        (ConnectorState(Phase.OWNING, 4, 4, detail=f"{RAISED}; {ORPHAN}"), "", False),
        (ConnectorState(Phase.OWNING, 0, 0, detail=RAISED), "", False),
        (ConnectorState(Phase.OWNING, 4, 4, detail=f"{RAISED}; waiting for topic evnets to exist"), "", True),
        (ConnectorState(Phase.OWNING, 4, 4, detail=RAISED), "no leader for events-0", True),
        (ConnectorState(Phase.FAILED, 0, 4, detail="it is not permitted"), "", True),
        (ConnectorState(Phase.AWAY), "", False),
        (ConnectorState(Phase.CLOSED), "no leader", False),
    ],
)
def test_what_stands_still(state: ConnectorState, obstacle: str, still: bool) -> None:
    assert stands_still(state, obstacle) is still


@pytest.mark.parametrize("error", [ValueError("no; not at all"), None], ids=["raises", "hangs"])
def test_a_listener_that_does_not_work_hinders_nothing(error: Exception | None) -> None:
    """The listener's error may hold any text, also the separator of troubles."""
    goes_on = Event()

    class Broken(ConsumerRebalanceListener):
        def before_starting_fetchers(self, *_: object) -> None:
            if error is not None:
                raise error
            goes_on.wait()

    thread = ListenerThread(Broken(), "g_c", lambda: None)
    calls = ListenerCalls(ConsumerId("g_c"), lambda seconds: goes_on.wait(min(seconds, 0.01)), thread, limit=0.05)
    thread.thread.start()
    try:
        calls.start_offsets({}, ())
        assert calls.trouble.startswith(LISTENERS)
        state = ConnectorState(Phase.OWNING, 4, 4).beside(calls.trouble)
        assert not stands_still(state, "")
        assert stands_still(state.beside("waiting for topic evnets to exist"), "")
    finally:
        goes_on.set()
        thread.close(Deadline(scaled(10)))


def lines(caplog: pytest.LogCaptureFixture, looks: Iterable[tuple[float, ConnectorState]]) -> list[str]:
    """Return the warnings of a member with these states at these seconds."""
    member = StandstillLog("g_c")
    with caplog.at_level(logging.DEBUG, "zkconsumer.member.connector_state"):
        for now, state in looks:
            member.look(state, now, still=stands_still(state, ""))
    assert all(record.levelno == logging.WARNING for record in caplog.records), "Python prints only these by itself"
    return caplog.messages


def test_a_standstill_is_logged_once_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    told = lines(caplog, [*((float(n), MISSING) for n in range(60)), *((float(n), FLOWS) for n in range(60, 80))])
    assert told == [
        "g_c has not read all that it should for 10 s: owning 0 of 0 partitions; waiting for topic evnets to exist",
        "g_c flows again, after 60 s: owning 4 of 4 partitions",
    ]


def test_a_short_standstill_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, [*((float(n), MISSING) for n in range(9)), *((float(n), FLOWS) for n in range(9, 30))]) == []


def test_a_moment_without_a_reason_ends_no_standstill(caplog: pytest.LogCaptureFixture) -> None:
    """Between two tries of a connection no trouble is known. That neither begins the 10 s anew nor is a flow."""
    assert len(lines(caplog, [(float(n), FLOWS if n % 4 == 3 else MISSING) for n in range(60)])) == 1


def test_another_reason_is_logged_when_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    other = ConnectorState(Phase.SUSPENDED, detail="refused (since 12:00:07)")
    later = ConnectorState(Phase.SUSPENDED, detail="refused (since 12:01:09)")
    states = [MISSING] * 20 + [other] * 2 + [MISSING] * 2 + [other] * 10 + [later] * 10 + [MISSING] * 10
    told = lines(caplog, enumerate(states))
    assert [line.rpartition("; ")[2] for line in told] == [
        "waiting for topic evnets to exist",
        "refused (since 12:00:07)",
    ]


def test_ever_new_reasons_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    states = [ConnectorState(Phase.SUSPENDED, detail=f"reason {n // 5}") for n in range(500)]
    assert len(lines(caplog, enumerate(states))) == MOST_REASONS
