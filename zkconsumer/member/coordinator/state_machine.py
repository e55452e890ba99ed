"""What a member of a group that the brokers coordinate does about whatever happens, as a table: (state, trigger) ->
(state, effects). Pure.

The group thread (``member.coordinator.rebalancer``) turns answers, timeouts and changes into triggers, looks the table
up, and performs the effects in their order. The diagram in DESIGN.md is drawn from this table (:func:`diagram`).

Mirrors the Java consumer's ``AbstractCoordinator`` and ``ConsumerCoordinator``, whose state is spread over a dozen
fields that two threads change under one lock (KAFKA-8104, KAFKA-9752 and others are what that cost), and KIP-429 for
what stays. Differs on purpose: losing the coordinator is a state of its own, in which what is owned is kept as long as
the lease says; who leaves because a reader does not come back says so and comes back by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """Where a member stands."""

    UNJOINED = "unjoined"
    """No member, on purpose: not begun, nothing is subscribed, or a reader does not come back."""
    BACKING_OFF = "backing off"
    """Something failed; the coordinator is looked for again after a pause."""
    FINDING = "finding"
    """The coordinator is looked for, in order to join."""
    JOINING = "joining"
    """JoinGroup is asked: the answer comes when all members have joined, or the slow ones were given up."""
    LEADING = "leading"
    """We lead the group: the partitions of the topics that anybody subscribes to are asked for."""
    SYNCING = "syncing"
    """SyncGroup is asked: the answer is what is ours."""
    STABLE = "stable"
    """A member, with heartbeats."""
    SEARCHING = "searching"
    """A member whose coordinator does not answer: it is looked for again, and what is owned is kept as the lease says.
    """
    FENCED = "fenced"
    """Another process has taken our ``group.instance.id``. There is no way on."""
    LEAVING = "leaving"
    """LeaveGroup is asked, not for long."""
    CLOSED = "closed"
    """Left for good."""


class Trigger(Enum):
    """What can happen, as far as it matters here."""

    COORDINATOR_FOUND = "the coordinator is known"
    MEMBER_NAMED = "the coordinator gave us a name"
    JOINED = "joined"
    CHOSEN = "joined, as the leader"
    TOPICS_KNOWN = "the topics are known"
    SYNCED = "synced"
    LEFT = "left, or nobody listened"

    NOT_NOW = "to be asked again later"
    COORDINATOR_LOST = "no coordinator, or not there"
    OUTDATED = "our generation is over"
    FORGOTTEN = "the coordinator does not know us"
    REFUSED = "refused"
    TAKEN_OVER = "another process has our name"

    RETRY_DUE = "the pause is over"
    LEASE_ENDED = "no heartbeat for a session timeout"
    READER_GONE = "a reader does not come back"
    READER_BACK = "the reader is back"

    GROUP_CHANGED = "a member joined, left, timed out or subscribed otherwise"
    SUBSCRIPTION_CHANGED = "we subscribe otherwise"
    PARTITIONS_CHANGED = "a topic has other partitions"
    TOPICS_MATCHED = "topics came to match the pattern"
    TOPICS_VANISHED = "topics vanished"
    GAVE_UP = "what is another's was given up"
    UNSUBSCRIBED = "nothing is subscribed any more"
    STOPPED = "shutdown"


class Effect(Enum):
    """What is to be done, in the order given. A new question takes the place of one that is under way."""

    FIND = "find the coordinator"
    GIVE_UP = "give up what must not be held while joining"
    """Everything under the eager protocol; under the cooperative one what we no longer subscribe to."""
    JOIN = "join"
    ASK_TOPICS = "ask for the group's topics"
    SYNC = "sync"
    """With everybody's share, where we lead."""
    ADOPT = "take what is ours, give up what is another's"
    BEAT = "beat at the coordinator's new place"
    BACK_OFF = "back off"
    REMEMBER = "remember to join again"
    LOSE_ALL = "drop everything owned"
    """Hand out and commit nothing of it: it may be others' by now."""
    FORGET_GENERATION = "forget the generation"
    FORGET_MEMBER = "forget our name"
    SURFACE = "tell the user"
    ABANDON = "commit what is finished and hand out nothing more"
    """Without waiting for a message in hand: its reader is who does not come back."""
    GIVE_UP_ALL = "give up everything"
    LET_GO = "let go of everything and end the streams"
    LEAVE = "leave"


Transition = tuple[State, tuple[Effect, ...]]

CAUSES = (
    Trigger.GROUP_CHANGED,
    Trigger.SUBSCRIPTION_CHANGED,
    Trigger.PARTITIONS_CHANGED,
    Trigger.TOPICS_MATCHED,
    Trigger.TOPICS_VANISHED,
)
"""The causes of a rebalance. The coordinator tells those of other members in one word."""
OUR_CAUSES = CAUSES[1:]
ASKING = (State.JOINING, State.LEADING, State.SYNCING)
"""On the way into a generation."""
HOLDING = (State.STABLE, State.SEARCHING)
"""In a generation."""
TRYING = (State.BACKING_OFF, State.FINDING, *ASKING, *HOLDING)
"""Whoever is a member, or wants to be one."""
OPEN = (State.UNJOINED, *TRYING, State.FENCED)
PURPOSES = (Trigger.READER_GONE, Trigger.UNSUBSCRIBED, Trigger.TAKEN_OVER, Trigger.STOPPED)
"""What every state deals with alike."""

Table = dict[tuple[State, Trigger], Transition]


def _on(table: Table, states: Iterable[State], triggers: Iterable[Trigger], to: State | None, *effects: Effect) -> None:
    for state in states:
        for trigger in triggers:
            table[state, trigger] = (state if to is None else to, effects)


def _joining(table: Table) -> None:
    """From nothing into a generation."""
    wanted = [Trigger.SUBSCRIPTION_CHANGED, Trigger.READER_BACK]
    failures = [Trigger.NOT_NOW, Trigger.COORDINATOR_LOST]
    _on(table, [State.UNJOINED], wanted, State.FINDING, Effect.FIND)
    _on(table, [State.BACKING_OFF], [Trigger.RETRY_DUE], State.FINDING, Effect.FIND)
    _on(table, [State.FINDING], [Trigger.COORDINATOR_FOUND], State.JOINING, Effect.GIVE_UP, Effect.JOIN)
    _on(table, [State.FINDING, *ASKING], failures, State.BACKING_OFF, Effect.BACK_OFF)
    _on(table, [State.JOINING], [Trigger.MEMBER_NAMED], None, Effect.JOIN)
    _on(table, [State.JOINING], [Trigger.JOINED], State.SYNCING, Effect.SYNC)
    _on(table, [State.JOINING], [Trigger.CHOSEN], State.LEADING, Effect.ASK_TOPICS)
    _on(table, [State.LEADING], [Trigger.TOPICS_KNOWN], State.SYNCING, Effect.SYNC)
    _on(table, [State.SYNCING], [Trigger.SYNCED], State.STABLE, Effect.ADOPT)
    # the next generation begins before this one did
    _on(table, ASKING, [Trigger.GROUP_CHANGED], State.JOINING, Effect.JOIN)
    # heartbeats go on while we wait for the others; where they stop, so will the answer
    _on(table, ASKING, [Trigger.LEASE_ENDED], State.BACKING_OFF, Effect.BACK_OFF)
    _on(table, ASKING, OUR_CAUSES, None, Effect.REMEMBER)


def _holding(table: Table) -> None:
    """In a generation."""
    _on(table, [State.STABLE], [*CAUSES, Trigger.GAVE_UP], State.JOINING, Effect.GIVE_UP, Effect.JOIN)
    _on(table, [State.STABLE], [Trigger.NOT_NOW], None)  # it loads the group: the next heartbeat asks again
    _on(table, [State.STABLE], [Trigger.COORDINATOR_LOST, Trigger.LEASE_ENDED], State.SEARCHING, Effect.FIND)
    _on(table, [State.SEARCHING], [Trigger.COORDINATOR_FOUND], State.STABLE, Effect.BEAT)
    _on(table, [State.SEARCHING], [Trigger.NOT_NOW, Trigger.COORDINATOR_LOST], None, Effect.BACK_OFF)
    _on(table, [State.SEARCHING], [Trigger.RETRY_DUE], None, Effect.FIND)
    _on(table, [State.SEARCHING], OUR_CAUSES, None, Effect.REMEMBER)
    # as long as the lease holds nobody else has it, and an operator may be at work
    _on(table, [State.SEARCHING], [Trigger.REFUSED], None, Effect.SURFACE, Effect.BACK_OFF)


def _losing(table: Table) -> None:
    """Out of a generation that went on without us."""
    for trigger, forget in ((Trigger.OUTDATED, Effect.FORGET_GENERATION), (Trigger.FORGOTTEN, Effect.FORGET_MEMBER)):
        _on(table, [*ASKING, State.STABLE], [trigger], State.JOINING, Effect.LOSE_ALL, forget, Effect.JOIN)
        # a commit was refused meanwhile
        _on(table, [State.FINDING, State.SEARCHING], [trigger], State.FINDING, Effect.LOSE_ALL, forget, Effect.FIND)
        _on(table, [State.BACKING_OFF], [trigger], None, Effect.LOSE_ALL, forget)
    refused = (Effect.LOSE_ALL, Effect.SURFACE, Effect.BACK_OFF)
    _on(table, [State.FINDING, *ASKING, State.STABLE], [Trigger.REFUSED], State.BACKING_OFF, *refused)
    _on(table, [State.UNJOINED, *TRYING], [Trigger.TAKEN_OVER], State.FENCED, Effect.LOSE_ALL, Effect.SURFACE)


def _leaving(table: Table) -> None:
    """Out of the group, because we want to."""
    left = (Effect.LEAVE, Effect.FORGET_MEMBER)
    _on(table, TRYING, [Trigger.READER_GONE], State.UNJOINED, Effect.ABANDON, *left)
    _on(table, TRYING, [Trigger.UNSUBSCRIBED], State.UNJOINED, Effect.GIVE_UP_ALL, *left)
    _on(table, OPEN, [Trigger.STOPPED], State.LEAVING, Effect.LET_GO, Effect.LEAVE)
    _on(table, [State.LEAVING], [Trigger.LEFT], State.CLOSED)


def _ignored(table: Table) -> None:
    """What changes nothing, since it is dealt with by what is under way, or comes too late."""
    _on(table, [State.BACKING_OFF, State.FINDING], CAUSES, None)  # the join is still to come
    _on(table, [State.SEARCHING], [Trigger.GROUP_CHANGED], None)  # the next heartbeat tells again
    _on(table, [State.BACKING_OFF], [Trigger.NOT_NOW, Trigger.COORDINATOR_LOST, Trigger.REFUSED], None)
    _on(table, [State.BACKING_OFF, State.FINDING, State.SEARCHING], [Trigger.LEASE_ENDED], None)
    _on(table, TRYING, [Trigger.LEFT, Trigger.READER_BACK], None)
    late = [trigger for trigger in Trigger if trigger not in ANSWERS and trigger is not Trigger.RETRY_DUE]
    for state in (State.UNJOINED, State.FENCED, State.LEAVING, State.CLOSED):
        _on(table, [state], [trigger for trigger in late if (state, trigger) not in table], None)
    _on(table, [State.UNJOINED, State.FENCED, State.CLOSED], [Trigger.LEFT], None)


ANSWERS = frozenset(
    {
        Trigger.COORDINATOR_FOUND,
        Trigger.MEMBER_NAMED,
        Trigger.JOINED,
        Trigger.CHOSEN,
        Trigger.TOPICS_KNOWN,
        Trigger.SYNCED,
        Trigger.LEFT,
        Trigger.GAVE_UP,
    }
)
"""What comes only where it was asked for: the answer to a question that another one has replaced is dropped."""


def _table() -> Table:
    table: Table = {}
    for part in (_joining, _holding, _losing, _leaving, _ignored):
        part(table)
    return table


TABLE: Mapping[tuple[State, Trigger], Transition] = MappingProxyType(_table())

IMPOSSIBLE: frozenset[tuple[State, Trigger]] = frozenset(
    (state, trigger) for state in State for trigger in Trigger if (state, trigger) not in TABLE
)
"""What cannot come together: an answer without its question, the end of a pause without a pause."""


def transition(state: State, trigger: Trigger) -> Transition:
    """The next state, and what to do. Raises LookupError for what is :data:`IMPOSSIBLE`."""
    try:
        return TABLE[state, trigger]
    except KeyError:
        raise LookupError(f"{trigger.name} cannot happen while {state.name}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram: an arrow for each trigger that changes something.

    What every state does alike is one note each.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {State.UNJOINED.name}"]
    for (state, trigger), (to, effects) in TABLE.items():
        if trigger in PURPOSES or (state is to and not effects):
            continue
        lines.append(f"    {state.name} --> {to.name}: {_label(trigger, effects)}")
    for trigger in PURPOSES:
        to, effects = TABLE[State.STABLE, trigger]
        lines.append(f"    note right of {to.name}: from anywhere: {_label(trigger, effects)}")
    return "\n".join([*lines, f"    {State.CLOSED.name} --> [*]"])


def _label(trigger: Trigger, effects: tuple[Effect, ...]) -> str:
    return trigger.value + (" / " + ", ".join(effect.value for effect in effects) if effects else "")
