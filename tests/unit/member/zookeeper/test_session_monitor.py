"""When a session is of no use any more, and that its successor gets a chance."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.member.zookeeper import session_monitor as contacts
from zkconsumer.member.zookeeper.session_monitor import BARREN, SILENCE, SessionMonitor
from zkconsumer.member.zookeeper.state_machine import Trigger
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.session import SessionChanged, SessionState


def contact_of(session_id: int) -> tuple[SessionMonitor, Any]:
    lease = SimpleNamespace(ends_at=float("-inf"), safe_until=float("-inf"), epoch=1)
    session = SimpleNamespace(
        session_id=session_id, lease=lease, timeout=4.0, contested=False, connected=True, unanswered=False
    )
    contact = SessionMonitor(session)  # type: ignore[arg-type]
    contact.begin()
    return contact, session


def connected(contact: SessionMonitor, session: Any) -> Trigger | None:
    told = contact.changed(SessionChanged(SessionState.CONNECTED, session.session_id, session.lease.epoch))
    return None if told is None else told[0]


def test_a_session_without_answers_is_given_up() -> None:
    contact, session = contact_of(7)
    triggers = [connected(contact, session) for _ in range(BARREN)]
    assert triggers == [Trigger.RECONNECTED] * (BARREN - 1) + [Trigger.SILENT]


def test_its_successor_is_not_judged_by_the_connections_before() -> None:
    contact, session = contact_of(7)
    for _ in range(BARREN):
        connected(contact, session)
    session.session_id = 8
    assert connected(contact, session) is Trigger.NEW_SESSION, "given up at once, it could never be used again"
    assert contact.register_from > 0, "it is registered once the connection has held for a while"
    contact.answered()
    assert connected(contact, session) is Trigger.RECONNECTED
    assert contact.register_from == 0


class Clock:
    """The contact's clock, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(contacts, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_session_with_a_silent_connection_is_given_up(clock: Clock) -> None:
    """Half-open links and slow ones: what we send keeps the session alive at the server, and kazoo notices nothing."""
    contact, session = contact_of(7)
    session.lease.safe_until = 104.0
    assert not contact.gives_up()
    clock.now = 104.0
    assert not contact.gives_up()
    clock.now += SILENCE * session.timeout - 0.01
    assert not contact.gives_up(), "the answer may still be on its way"
    clock.now += 0.01
    assert contact.gives_up()
    assert not contact.gives_up(), "once: the next session has its own time"
    session.session_id = 8
    assert connected(contact, session) is Trigger.NEW_SESSION
    assert contact.register_from == 0
    assert not contact.gives_up()
    clock.now += SILENCE * session.timeout
    assert contact.gives_up()
    session.session_id = 9
    assert connected(contact, session) is Trigger.NEW_SESSION
    assert contact.register_from > clock.now, "twice without a round between: connections alone prove nothing"


def test_answers_in_time_keep_a_session_however_slow_the_link(clock: Clock) -> None:
    contact, session = contact_of(7)
    for _ in range(20):
        session.lease.safe_until = clock.now + 0.5
        clock.now += 0.5 + SILENCE * session.timeout - 0.1
        assert not contact.gives_up()


def test_a_pause_of_this_process_is_no_silence(clock: Clock) -> None:
    contact, session = contact_of(7)
    session.lease.safe_until = 104.0
    clock.now = 1000.0
    assert not contact.gives_up(), "nobody looked whether anything was answered"
    session.lease.safe_until = 1003.9
    clock.now = 1003.0
    assert not contact.gives_up()


def test_without_a_connection_only_an_accepting_server_counts(clock: Clock) -> None:
    contact, session = contact_of(7)
    session.connected = False
    for _ in range(4):
        clock.now += session.timeout
        assert not contact.gives_up(), "nothing reaches a server, so the session ends by itself, or lives on"
    session.unanswered = True
    assert not contact.gives_up()
    clock.now += SILENCE * session.timeout
    assert contact.gives_up(), "each connection that is taken renews the session at the server"


def test_an_answer_later_than_the_session_is_of_no_use() -> None:
    lease = Lease()
    lease.resume(lease.epoch)
    lease.renew(monotonic() - 5.0, 4.0)
    assert lease.safe_until == float("-inf")
    lease.renew(monotonic(), 4.0)
    assert lease.safe_until == lease.until


@pytest.mark.parametrize("state", [SessionState.SUSPENDED, SessionState.LOST])
def test_a_client_is_stuck_after_three_session_timeouts(clock: Clock, state: SessionState) -> None:
    contact, session = contact_of(7)
    assert contact.next_look == float("inf")
    contact.changed(SessionChanged(state, 7, 1))
    assert contact.next_look == clock.now + 12.0
    clock.now += 5.0
    contact.changed(SessionChanged(state, 7, 1))
    assert contact.next_look == 112.0, "counted from when the connection went"
    clock.now = 112.0
    contact.looked()
    assert 112.0 < contact.next_look <= 113.0, "and looked at every now and then from then on"
    connected(contact, session)
    assert contact.next_look == float("inf")
