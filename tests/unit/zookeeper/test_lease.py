"""How long a session may be believed in."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.protocol.states import KeeperState

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import lease as lease_module
from zkconsumer.zookeeper import session as session_module
from zkconsumer.zookeeper.lease import CLOSED, Lease
from zkconsumer.zookeeper.session import Session

REQUESTED, NEGOTIATED = 6.0, 4.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "monotonic", clock)
    monkeypatch.setattr(session_module, "monotonic", clock)
    return clock


class Answering:
    """A client that answers when the test says so."""

    def __init__(self) -> None:
        self.client_id = (7, b"")
        self.client_state = KeeperState.CONNECTED
        self.asked: list[Callable[[Any], None]] = []

    def exists_async(self, _: str) -> Any:
        return SimpleNamespace(rawlink=self.asked.append)

    def answer(self, *, successful: bool = True) -> None:
        self.asked.pop(0)(SimpleNamespace(successful=lambda: successful))


class ConnectedSession(Session):
    """A session whose client has connected."""

    def __init__(self, client: Answering) -> None:
        super().__init__("h:2181", timeout=REQUESTED, on_change=lambda _: None)
        self._client = client
        self._connection = SimpleNamespace(ready=True, negotiated=NEGOTIATED)  # type: ignore[assignment]
        self.lease.resume(self.lease.epoch)


@pytest.fixture
def connected() -> tuple[Session, Answering]:
    client = Answering()
    return ConnectedSession(client), client


def test_the_stamp_is_the_send_time_plus_the_negotiated_timeout(
    clock: Clock, connected: tuple[Session, Answering]
) -> None:
    """After a pause of the process an answer that has waited in the socket is read long after the session ended."""
    session, client = connected
    session.touch()
    clock.now += 9.0
    client.answer()
    assert session.lease.ends_at == 100.0 + NEGOTIATED
    assert not session.lease.valid


def test_an_answer_to_a_former_session_renews_nothing(clock: Clock, connected: tuple[Session, Answering]) -> None:
    session, client = connected
    session.touch()
    client.client_id = (8, b"")
    client.answer()
    session.touch()
    client.answer(successful=False)
    assert session.lease.ends_at == CLOSED


def test_it_is_valid_until_it_ends_and_answers_move_it_on_only(clock: Clock) -> None:
    lease = Lease()
    lease.resume(lease.epoch)
    lease.renew(100.0, 4.0)
    clock.now = 103.9
    assert lease.valid
    lease.renew(98.0, 4.0)  # an earlier request, answered later
    assert lease.valid
    clock.now = 104.0
    assert not lease.valid
    assert not lease.wait(Deadline(0.0))


def test_a_connection_that_is_back_counts_once_it_was_dealt_with(clock: Clock) -> None:
    lease = Lease()
    lease.resume(lease.epoch)
    lease.renew(100.0, 4.0)
    lease.suspend()
    assert not lease.valid
    lease.renew(101.0, 4.0)
    assert not lease.valid, "an answer is no consent of whoever owns the group's state"
    lease.suspend()
    lease.resume(lease.epoch - 1)
    assert not lease.valid, "it was lost again since"
    lease.resume(lease.epoch)
    assert lease.valid
    assert lease.until == 105.0
    lease.void()
    lease.resume(lease.epoch)
    assert not lease.valid, "what the ended session proved counts no more"
