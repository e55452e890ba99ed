"""What a member does about whatever happens, as a table: (state, trigger) -> (state, effects). Pure.

The group thread (``member.zookeeper.rebalancer``) turns events and timers into triggers, looks the table up, and
performs the effects in their order; it decides nothing else about when to rebalance, what to drop, or when to give a
client up. The diagram in DESIGN.md is drawn from this table (:func:`diagram`).

The original has no states: three listeners call one method under one lock, and a member whose attempts are used up
stays registered and does nothing (KAFKA-4228). Here no state but the last is without a way on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType


class State(Enum):
    """Where a member stands."""

    JOINING = "joining"
    """The first round is due, or under way to its first success."""
    SETTLED = "settled"
    """What is ours by the strategy is owned."""
    WAITING = "waiting"
    """Some of what is ours is still held by others; their owner nodes are watched."""
    CHANGED = "changed"
    """Something changed; a round begins after the quiet time."""
    FAILED = "failed"
    """The last round failed; the next begins after a pause."""
    REBALANCING = "rebalancing"
    """A round is being performed."""
    SUSPENDED = "suspended"
    """The connection is gone. What is owned is kept, and nothing of it handed out, until the lease ends."""
    CUT_OFF = "cut off"
    """The lease ended without contact: nothing is owned any more, though the session may live on."""
    EXPIRED = "expired"
    """The session ended; the client makes a new one."""
    CLOSED = "closed"
    """Left for good."""


class Trigger(Enum):
    """What can happen, as far as it matters here."""

    MEMBERS_CHANGED = "members changed"
    CHANGED = "a watched node changed"
    OWNER_CHANGED = "an owner node changed"
    DEMANDED = "a round is demanded"
    ROUND_DUE = "the time of a round has come"
    ROUND_SETTLED = "all of ours is owned"
    ROUND_BLOCKED = "others hold some of ours"
    ROUND_FAILED = "the round failed"
    ROUND_SUPERSEDED = "newer events"
    ROUND_REGISTERED = "we are registered"
    RECONCILE_DUE = "reconciliation is due"
    CONNECTION_LOST = "connection lost"
    LEASE_ENDED = "lease ended"
    STUCK = "no connection for three timeouts"
    CONTESTED = "another client uses our session"
    SILENT = "connections without answers"
    RECONNECTED = "connected again"
    NEW_SESSION = "connected with a new session"
    SESSION_LOST = "session lost"
    STOPPED = "shutdown"


class Effect(Enum):
    """What is to be done, in the order given."""

    COMMIT = "commit"
    """Have what is finished committed now. Scala members read offsets before they claim: this is what they then see."""
    WAIT_QUIET = "wait for quiet"
    WAIT_BRIEFLY = "wait briefly"
    BEGIN_NOW = "begin now"
    PERFORM_ROUND = "perform a round"
    BACK_OFF = "back off"
    LOOK_AGAIN = "look again later"
    FORGET_VIEW = "believe nothing read"
    DOUBT_VIEW = "look again at what is believed"
    """All of it but what the other members registered, of which a part is looked at again each time."""
    DROP_ALL = "drop everything owned"
    """Those of its owner nodes that our session made stay ours to delete: where it is a new one, a claim may have come
    into that.
    """
    RESUME_LEASE = "resume the lease"
    REPORT_UNOWNED = "look for unowned partitions"
    REPLACE_CLIENT = "try another client"
    ABANDON_SESSION = "give the session up"
    SHUT_DOWN = "release and leave"


Transition = tuple[State, tuple[Effect, ...]]

CONNECTED = (State.JOINING, State.SETTLED, State.WAITING, State.CHANGED, State.FAILED)
"""Between rounds, with a connection."""
DISCONNECTED = (State.SUSPENDED, State.CUT_OFF, State.EXPIRED)


def _table() -> dict[tuple[State, Trigger], Transition]:
    table: dict[tuple[State, Trigger], Transition] = {}

    def on(states: Iterable[State], triggers: Iterable[Trigger], to: State | None, *effects: Effect) -> None:
        for state in states:
            for trigger in triggers:
                table[state, trigger] = (state if to is None else to, effects)

    on([State.SETTLED, State.WAITING], [Trigger.MEMBERS_CHANGED], State.CHANGED, Effect.COMMIT, Effect.WAIT_QUIET)
    on([State.CHANGED, State.FAILED], [Trigger.MEMBERS_CHANGED], State.CHANGED, Effect.WAIT_QUIET)
    on([State.SETTLED, State.WAITING, State.CHANGED, State.FAILED], [Trigger.CHANGED], State.CHANGED, Effect.WAIT_QUIET)
    on(
        [State.SETTLED, State.WAITING, State.CHANGED, State.FAILED],
        [Trigger.OWNER_CHANGED],
        State.CHANGED,
        Effect.WAIT_BRIEFLY,
    )
    on(
        [State.JOINING], [Trigger.MEMBERS_CHANGED, Trigger.CHANGED, Trigger.OWNER_CHANGED], None
    )  # its round is due already
    on([State.JOINING], [Trigger.DEMANDED], None, Effect.BEGIN_NOW)
    on([State.SETTLED, State.WAITING, State.CHANGED, State.FAILED], [Trigger.DEMANDED], State.CHANGED, Effect.BEGIN_NOW)
    on(CONNECTED, [Trigger.ROUND_DUE], State.REBALANCING, Effect.PERFORM_ROUND)
    on([State.REBALANCING], [Trigger.ROUND_SETTLED], State.SETTLED)
    on([State.REBALANCING], [Trigger.ROUND_BLOCKED], State.WAITING, Effect.LOOK_AGAIN)
    on([State.REBALANCING], [Trigger.ROUND_FAILED], State.FAILED, Effect.FORGET_VIEW, Effect.BACK_OFF)
    on([State.REBALANCING], [Trigger.ROUND_SUPERSEDED], State.CHANGED, Effect.BEGIN_NOW)
    # of many that start together each would claim what the next takes away again; the others wait for quiet as well
    on([State.REBALANCING], [Trigger.ROUND_REGISTERED], State.CHANGED, Effect.WAIT_QUIET)
    # against a watch that was lost, and against whatever was done to our nodes behind our back
    on([State.JOINING], [Trigger.RECONCILE_DUE], None, Effect.DOUBT_VIEW, Effect.BEGIN_NOW)
    on(
        [State.SETTLED, State.WAITING, State.CHANGED, State.FAILED],
        [Trigger.RECONCILE_DUE],
        State.CHANGED,
        Effect.DOUBT_VIEW,
        Effect.REPORT_UNOWNED,
        Effect.BEGIN_NOW,
    )
    on(CONNECTED, [Trigger.CONNECTION_LOST], State.SUSPENDED)
    on([State.SUSPENDED], [Trigger.LEASE_ENDED], State.CUT_OFF, Effect.DROP_ALL)
    on(DISCONNECTED, [Trigger.STUCK], None, Effect.REPLACE_CLIENT)
    on(
        (*CONNECTED, *DISCONNECTED),
        [Trigger.CONTESTED, Trigger.SILENT],
        State.EXPIRED,
        Effect.DROP_ALL,
        Effect.FORGET_VIEW,
        Effect.ABANDON_SESSION,
    )
    # watches do not survive a connection: believe nothing that was read before
    on([State.JOINING], [Trigger.RECONNECTED], None, Effect.FORGET_VIEW, Effect.RESUME_LEASE)
    on(
        [State.SETTLED, State.WAITING, State.CHANGED, State.FAILED, State.SUSPENDED, State.CUT_OFF],
        [Trigger.RECONNECTED],
        State.CHANGED,
        Effect.FORGET_VIEW,
        Effect.RESUME_LEASE,
        Effect.BEGIN_NOW,
    )
    on(
        (*CONNECTED, *DISCONNECTED),
        [Trigger.NEW_SESSION],
        State.CHANGED,
        Effect.DROP_ALL,
        Effect.FORGET_VIEW,
        Effect.RESUME_LEASE,
        Effect.BEGIN_NOW,
    )
    on(
        (*CONNECTED, *DISCONNECTED),
        [Trigger.SESSION_LOST],
        State.EXPIRED,
        Effect.DROP_ALL,
        Effect.FORGET_VIEW,
    )
    on((*CONNECTED, *DISCONNECTED), [Trigger.STOPPED], State.CLOSED, Effect.SHUT_DOWN)
    # what was read is forgotten at the reconnection, so nothing of this is lost
    on(
        DISCONNECTED,
        [
            Trigger.MEMBERS_CHANGED,
            Trigger.CHANGED,
            Trigger.OWNER_CHANGED,
            Trigger.DEMANDED,
            Trigger.RECONCILE_DUE,
            Trigger.CONNECTION_LOST,
        ],
        None,
    )
    on([State.CUT_OFF, State.EXPIRED], [Trigger.LEASE_ENDED], None)
    on(
        [State.EXPIRED],
        [Trigger.RECONNECTED],
        State.CHANGED,
        Effect.DROP_ALL,
        Effect.FORGET_VIEW,
        Effect.RESUME_LEASE,
        Effect.BEGIN_NOW,
    )
    on([State.CLOSED], Trigger, None)
    return table


TABLE: Mapping[tuple[State, Trigger], Transition] = MappingProxyType(_table())

IMPOSSIBLE: frozenset[tuple[State, Trigger]] = frozenset(
    (state, trigger) for state in State for trigger in Trigger if (state, trigger) not in TABLE
)
"""What cannot come together: the outcome of a round without a round, anything else within one (it waits on the queue),
a round or a lease's end of the other kind of state.
"""


def transition(state: State, trigger: Trigger) -> Transition:
    """The next state, and what to do. Raises LookupError for what is :data:`IMPOSSIBLE`."""
    try:
        return TABLE[state, trigger]
    except KeyError:
        raise LookupError(f"{trigger.name} cannot happen while {state.name}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram: one arrow for each pair of states, its triggers with their effects.

    Left out are the triggers that change nothing, and what every state does alike, which one note says.
    """
    everywhere = {Trigger.STOPPED, Trigger.SESSION_LOST, Trigger.NEW_SESSION, Trigger.CONTESTED, Trigger.SILENT}
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, trigger), (to, effects) in TABLE.items():
        if trigger in everywhere or (state is to and not effects):
            continue
        label = trigger.value + (" / " + ", ".join(effect.value for effect in effects) if effects else "")
        arrows.setdefault((state, to), []).append(label)
    lines = ["stateDiagram-v2", f"    [*] --> {State.JOINING.name}"]
    for (state, to), labels in arrows.items():
        lines += [f"    {state.name} --> {to.name}: {label}" for label in labels]
    for trigger in sorted(everywhere, key=lambda one: one.name):
        to, effects = TABLE[State.SETTLED, trigger]
        done = ", ".join(effect.value for effect in effects)
        lines.append(f"    note right of {to.name}: from anywhere: {trigger.value} / {done}")
    return "\n".join([*lines, f"    {State.CLOSED.name} --> [*]"])
