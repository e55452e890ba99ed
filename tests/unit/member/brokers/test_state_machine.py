"""The table of a member that the brokers coordinate: complete, without a dead end, and drawn in member/STATES.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.member.state_tables import reachable
from zkconsumer.member.brokers.state_machine import (
    ANSWERS,
    ASKING,
    CAUSES,
    HOLDING,
    OPEN,
    OUR_CAUSES,
    TABLE,
    TRYING,
    Effect,
    State,
    Trigger,
)

QUESTIONS = {Effect.FIND, Effect.JOIN, Effect.ASK_TOPICS, Effect.SYNC}
DROPPING = {Effect.LOSE_ALL, Effect.ABANDON, Effect.GIVE_UP_ALL, Effect.LET_GO}


def test_every_pair_is_decided_or_cannot_come_together() -> None:
    assert set(TABLE.rows) | TABLE.impossible == {(state, trigger) for state in State for trigger in Trigger}
    assert {trigger for _, trigger in TABLE.impossible} == ANSWERS - {Trigger.LEFT} | {Trigger.RETRY_DUE}


@pytest.mark.parametrize(
    ("answer", "states"),
    [
        (Trigger.COORDINATOR_FOUND, {State.FINDING, State.SEARCHING}),
        (Trigger.MEMBER_NAMED, {State.JOINING}),
        (Trigger.JOINED, {State.JOINING}),
        (Trigger.CHOSEN, {State.JOINING}),
        (Trigger.TOPICS_KNOWN, {State.LEADING}),
        (Trigger.SYNCED, {State.SYNCING}),
        (Trigger.RETRY_DUE, {State.BACKING_OFF, State.SEARCHING}),
        (Trigger.GAVE_UP, {State.STABLE}),
    ],
)
def test_an_answer_comes_only_where_it_was_asked_for(answer: Trigger, states: set[State]) -> None:
    assert {state for state in State if (state, answer) in TABLE.rows} == states


@pytest.mark.parametrize("pair", sorted(TABLE.impossible, key=str), ids=str)
def test_what_cannot_be_is_an_error(pair: tuple[State, Trigger]) -> None:
    with pytest.raises(LookupError, match=f"{pair[1].name} cannot happen while {pair[0].name}"):
        TABLE.next(*pair)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_makes_a_stable_member_join_again(cause: Trigger) -> None:
    assert TABLE.next(State.STABLE, cause) == (State.JOINING, (Effect.GIVE_UP, Effect.JOIN))


@pytest.mark.parametrize("cause", OUR_CAUSES)
@pytest.mark.parametrize("state", [*ASKING, State.SEARCHING])
def test_a_cause_that_comes_too_early_is_remembered(state: State, cause: Trigger) -> None:
    """KAFKA-6671 and others: what changed while a rebalance was under way was not seen again."""
    assert TABLE.next(state, cause) == (state, (Effect.REMEMBER,))


def test_who_is_no_member_owns_nothing_and_hands_out_nothing() -> None:
    for (state, _), (to, effects) in TABLE.rows.items():
        if to in (State.UNJOINED, State.FENCED, State.LEAVING) and state is not to:
            assert DROPPING & set(effects), (state, to)
        if {Effect.FORGET_MEMBER, Effect.FORGET_GENERATION} & set(effects):
            assert DROPPING & set(effects)


def test_partitions_are_dropped_before_the_group_is_left() -> None:
    for _, effects in TABLE.rows.values():
        if Effect.LEAVE in effects:
            assert DROPPING & set(effects[: effects.index(Effect.LEAVE)])
        if Effect.LOSE_ALL in effects:
            assert effects[0] is Effect.LOSE_ALL


@pytest.mark.parametrize("state", OPEN)
def test_a_shutdown_leaves_from_every_state_with_one_answer(state: State) -> None:
    assert TABLE.next(state, Trigger.STOPPED) == (State.LEAVING, (Effect.LET_GO, Effect.LEAVE))
    for trigger in Trigger:
        if (State.LEAVING, trigger) in TABLE.rows:
            to, effects = TABLE.next(State.LEAVING, trigger)
            assert to is (State.CLOSED if trigger is Trigger.LEFT else State.LEAVING)
            assert not effects


@pytest.mark.parametrize("state", TRYING)
def test_a_missing_reader_costs_the_membership_until_its_return(state: State) -> None:
    to, effects = TABLE.next(state, Trigger.READER_GONE)
    assert to is State.UNJOINED
    assert effects == (Effect.ABANDON, Effect.LEAVE, Effect.FORGET_MEMBER)
    assert TABLE.next(to, Trigger.READER_BACK) == (State.FINDING, (Effect.FIND,))


@pytest.mark.parametrize("state", HOLDING)
def test_losing_the_coordinator_costs_nothing_that_is_owned(state: State) -> None:
    to, effects = TABLE.next(state, Trigger.COORDINATOR_LOST)
    assert to is State.SEARCHING
    assert not DROPPING & set(effects)


def test_who_was_fenced_joins_never_again() -> None:
    assert {to for (state, _), (to, _) in TABLE.rows.items() if state is State.FENCED} == {State.FENCED, State.LEAVING}


@pytest.mark.parametrize("state", [State.UNJOINED, *TRYING])
def test_no_state_is_a_dead_end(state: State) -> None:
    ways = (ANSWERS - {Trigger.LEFT}) | {Trigger.RETRY_DUE, Trigger.READER_BACK, Trigger.SUBSCRIPTION_CHANGED}
    assert State.STABLE in reachable(TABLE.rows, state, set(ways))


def steps(triggers: list[Trigger]) -> Iterator[tuple[State, Trigger, tuple[Effect, ...], State]]:
    state = State.UNJOINED
    for trigger in triggers:
        if (state, trigger) in TABLE.impossible:
            continue
        to, effects = TABLE.next(state, trigger)
        yield state, trigger, effects, to
        state = to


@given(st.lists(st.sampled_from(Trigger), max_size=60))
def test_every_joining_state_has_a_question_or_a_pause(triggers: list[Trigger]) -> None:
    """A joining member always waits for an answer or for the end of a pause."""
    under_way = False
    for _, trigger, effects, to in steps(triggers):
        if trigger in ANSWERS - {Trigger.LEFT} or trigger is Trigger.RETRY_DUE:
            under_way = False
        under_way = under_way or bool({*QUESTIONS, Effect.BACK_OFF} & set(effects))
        if to not in (State.UNJOINED, State.STABLE, State.FENCED, State.LEAVING, State.CLOSED):
            assert under_way, to


@given(st.lists(st.sampled_from(Trigger), max_size=60))
def test_a_generation_is_entered_by_its_door_and_left_once(triggers: list[Trigger]) -> None:
    """Owned is only what was adopted, in one membership; and nobody leaves who has left."""
    owning = member = False
    for state, trigger, effects, to in steps(triggers):
        if to in HOLDING and state not in HOLDING:
            assert trigger is Trigger.SYNCED
        if Effect.ADOPT in effects:
            owning = True
        if DROPPING & set(effects):
            owning = False
        if Effect.JOIN in effects:
            member = True
        if Effect.LEAVE in effects:
            assert to in (State.UNJOINED, State.LEAVING)
            member = False
        if to in (State.UNJOINED, State.CLOSED):
            assert not owning
            assert not member
