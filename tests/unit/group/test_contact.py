"""When a session is of no use any more, and that its successor gets a chance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from zkconsumer.core.rebalance import Trigger
from zkconsumer.group.contact import BARREN, Contact
from zkconsumer.registry.session import SessionChanged, SessionState


def contact_of(session_id: int) -> tuple[Contact, Any]:
    lease = SimpleNamespace(ends_at=float("-inf"), epoch=1)
    session = SimpleNamespace(session_id=session_id, lease=lease, timeout=4.0, contested=False)
    contact = Contact(session)  # type: ignore[arg-type]
    contact.begin()
    return contact, session


def connected(contact: Contact, session: Any) -> Trigger | None:
    told = contact.changed(SessionChanged(SessionState.CONNECTED, session.session_id, session.lease.epoch))
    return None if told is None else told[0]


def test_a_session_on_whose_connections_nothing_is_answered_is_given_up() -> None:
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
