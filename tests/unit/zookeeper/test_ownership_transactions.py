"""In which session a partition was claimed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper.ownership_transactions import ClaimSessions

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_claim_ends_with_its_session() -> None:
    session: Any = SimpleNamespace(session_id=1)
    claims = ClaimSessions(session)
    claims.claiming([A])
    claims.claimed(B)
    assert not claims.ended(A)
    session.session_id = 2
    assert claims.ended(A)
    assert claims.ended(B)
    claims.claimed(B)
    assert claims.ended(B), "an earlier claim is known"
    claims.claiming([A])
    assert not claims.ended(A), "claimed anew"
    claims.forget(B)
    claims.claimed(B)
    assert not claims.ended(B)


def test_nothing_is_said_of_what_is_not_known() -> None:
    session: Any = SimpleNamespace(session_id=0)
    claims = ClaimSessions(session)
    claims.claiming([A])
    session.session_id = 1
    assert not claims.ended(A), "it was claimed while no session was known"
    assert not claims.ended(B), "it was never claimed"
    claims.claiming([B])
    session.session_id = 0
    assert not claims.ended(B), "no session is known now"
