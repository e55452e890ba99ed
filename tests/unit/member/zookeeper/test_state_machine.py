"""The table of the rebalancer: complete, without a dead end, and drawn in member/STATES.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.member.state_tables import reachable
from zkconsumer.member.zookeeper.state_machine import CONNECTED, DISCONNECTED, TABLE, Effect, State, Trigger

OUTCOMES = {
    Trigger.ROUND_SETTLED,
    Trigger.ROUND_BLOCKED,
    Trigger.ROUND_FAILED,
    Trigger.ROUND_SUPERSEDED,
    Trigger.ROUND_REGISTERED,
}
REJOINED = {Trigger.RECONNECTED, Trigger.NEW_SESSION}


def test_every_pair_is_decided_or_cannot_come_together() -> None:
    assert set(TABLE.rows) | TABLE.impossible == {(state, trigger) for state in State for trigger in Trigger}
    assert {pair for pair in TABLE.impossible if pair[1] not in OUTCOMES and pair[0] is not State.REBALANCING} == {
        *((state, Trigger.LEASE_ENDED) for state in CONNECTED),
        *((state, Trigger.STUCK) for state in CONNECTED),
        *((state, Trigger.ROUND_DUE) for state in DISCONNECTED),
    }


def test_a_round_is_performed_in_one_state_and_ends_it() -> None:
    for (state, _), (to, effects) in TABLE.rows.items():
        assert (Effect.PERFORM_ROUND in effects) == (to is State.REBALANCING)
        if state is State.REBALANCING:
            assert to is not State.REBALANCING


def test_who_has_no_session_owns_nothing() -> None:
    for (state, _), (to, effects) in TABLE.rows.items():
        if to in (State.CUT_OFF, State.EXPIRED) and state is not to:
            assert Effect.DROP_ALL in effects
    for state in (*CONNECTED, *DISCONNECTED):
        assert Effect.DROP_ALL in TABLE.next(state, Trigger.NEW_SESSION)[1]


def test_the_lease_is_resumed_after_everything_is_dropped() -> None:
    for (_, trigger), (_, effects) in TABLE.rows.items():
        if Effect.RESUME_LEASE in effects:
            assert trigger in REJOINED
            before = effects[: effects.index(Effect.RESUME_LEASE)]
            assert Effect.FORGET_VIEW in before
            assert trigger is not Trigger.NEW_SESSION or Effect.DROP_ALL in before


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
def test_no_state_is_a_dead_end(state: State) -> None:
    """KAFKA-4228: the original stays registered and stops trying."""
    ways = {Trigger.ROUND_DUE, Trigger.ROUND_SETTLED, Trigger.RECONCILE_DUE, Trigger.NEW_SESSION}
    assert State.SETTLED in reachable(TABLE.rows, state, ways)


def steps(triggers: list[Trigger]) -> Iterator[tuple[State, tuple[Effect, ...], State]]:
    state = State.JOINING
    for trigger in triggers:
        if (state, trigger) in TABLE.impossible:
            continue
        to, effects = TABLE.next(state, trigger)
        yield state, effects, to
        state = to


@given(st.lists(st.sampled_from(Trigger)))
def test_a_round_is_always_on_its_way_where_one_is_needed(triggers: list[Trigger]) -> None:
    """A member that may begin a round and does not rest always has a next round due."""
    set_by = {Effect.WAIT_QUIET, Effect.WAIT_BRIEFLY, Effect.BEGIN_NOW, Effect.BACK_OFF, Effect.LOOK_AGAIN}
    due = True  # the first round
    for _, effects, to in steps(triggers):
        if Effect.PERFORM_ROUND in effects:
            due = False
        due = due or bool(set_by & set(effects))
        if to in CONNECTED and to is not State.SETTLED:
            assert due
