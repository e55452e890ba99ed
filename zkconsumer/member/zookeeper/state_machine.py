"""The state machine of a member in ZooKeeper, as a table: (state, trigger) -> (state, effects). Pure.

``rebalancer`` turns events and timers into triggers, looks the table up, and performs the effects in their order. It
decides nothing else about when to rebalance, what to drop, or when to give a client up. The diagram in
member/STATES.md is drawn from this table (:func:`diagram`).

The original has no states: three listeners call one method under one lock, and a member that has used up its attempts
stays registered and does nothing (KAFKA-4228). Here every state but the last has a way on.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from zkconsumer.member.state_table import StateTable


class State(Enum):
    """The state of a member."""

    JOINING = "joining"
    """The first round is due, or under way to its first success."""
    SETTLED = "settled"
    """The member owns all partitions that the strategy assigns to it."""
    WAITING = "waiting"
    """Other members still own some partitions that the strategy assigns to this one. It watches their owner nodes."""
    CHANGED = "changed"
    """Something changed; a round begins after the quiet time."""
    FAILED = "failed"
    """The last round failed; the next begins after a pause."""
    REBALANCING = "rebalancing"
    """A round is being performed."""
    SUSPENDED = "suspended"
    """The connection is gone. Owned partitions are kept until the lease ends, and nothing of them is handed out."""
    CUT_OFF = "cut off"
    """The lease ended without contact. Nothing is owned any more, though the session may live on."""
    EXPIRED = "expired"
    """The session ended; the client makes a new one."""
    CLOSED = "closed"
    """Left for good."""


class Trigger(Enum):
    """An event or timer, by its meaning to the table."""

    MEMBERS_CHANGED = "members changed"
    CHANGED = "a watched node changed"
    OWNER_CHANGED = "an owner node changed"
    PLAN_CHANGED = "the plan changed"
    DEMANDED = "a round is demanded"
    ROUND_DUE = "the time of a round has come"
    ROUND_SETTLED = "all planned partitions are owned"
    ROUND_BLOCKED = "other members still own planned partitions"
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
    """A step to perform."""

    COMMIT = "commit"
    """Commit finished messages now: Scala members read offsets before they claim."""
    WAIT_QUIET = "wait for quiet"
    WAIT_BRIEFLY = "wait briefly"
    BEGIN_NOW = "begin now"
    PERFORM_ROUND = "perform a round"
    BACK_OFF = "back off"
    LOOK_AGAIN = "look again later"
    FORGET_VIEW = "drop the cached view"
    DOUBT_VIEW = "reread part of the cached view"
    """All nodes except the registrations of other members. Of those it rereads a few each time, in turn."""
    DROP_ALL = "drop all partitions"
    """Owner nodes that our session made stay ours to delete. A claim may have come into a new session."""
    RESUME_LEASE = "resume the lease"
    REPORT_UNOWNED = "look for unowned partitions"
    REPLACE_CLIENT = "try another client"
    ABANDON_SESSION = "give the session up"
    SHUT_DOWN = "release and leave"


BETWEEN_ROUNDS = (State.SETTLED, State.WAITING, State.CHANGED, State.FAILED)
CONNECTED = (State.JOINING, *BETWEEN_ROUNDS)
"""The states between rounds, with a connection."""
DISCONNECTED = (State.SUSPENDED, State.CUT_OFF, State.EXPIRED)
OPEN = (*CONNECTED, *DISCONNECTED)

TABLE: Final = StateTable[State, Trigger, Effect](State, Trigger)
TABLE.on([State.SETTLED, State.WAITING], [Trigger.MEMBERS_CHANGED], State.CHANGED, Effect.COMMIT, Effect.WAIT_QUIET)
TABLE.on([State.CHANGED, State.FAILED], [Trigger.MEMBERS_CHANGED], State.CHANGED, Effect.WAIT_QUIET)
TABLE.on(BETWEEN_ROUNDS, [Trigger.CHANGED], State.CHANGED, Effect.WAIT_QUIET)
TABLE.on(BETWEEN_ROUNDS, [Trigger.OWNER_CHANGED, Trigger.PLAN_CHANGED], State.CHANGED, Effect.WAIT_BRIEFLY)
# the round of a joining member is due already
_SEEN = [Trigger.MEMBERS_CHANGED, Trigger.CHANGED, Trigger.OWNER_CHANGED, Trigger.PLAN_CHANGED]
TABLE.on([State.JOINING], _SEEN, None)
TABLE.on([State.JOINING], [Trigger.DEMANDED], None, Effect.BEGIN_NOW)
TABLE.on(BETWEEN_ROUNDS, [Trigger.DEMANDED], State.CHANGED, Effect.BEGIN_NOW)
TABLE.on(CONNECTED, [Trigger.ROUND_DUE], State.REBALANCING, Effect.PERFORM_ROUND)
TABLE.on([State.REBALANCING], [Trigger.ROUND_SETTLED], State.SETTLED)
TABLE.on([State.REBALANCING], [Trigger.ROUND_BLOCKED], State.WAITING, Effect.LOOK_AGAIN)
TABLE.on([State.REBALANCING], [Trigger.ROUND_FAILED], State.FAILED, Effect.FORGET_VIEW, Effect.BACK_OFF)
TABLE.on([State.REBALANCING], [Trigger.ROUND_SUPERSEDED], State.CHANGED, Effect.BEGIN_NOW)
# if many members start together, each would claim partitions that the next takes away again
TABLE.on([State.REBALANCING], [Trigger.ROUND_REGISTERED], State.CHANGED, Effect.WAIT_QUIET)
# against a lost watch, and against changes of our nodes behind our back
TABLE.on([State.JOINING], [Trigger.RECONCILE_DUE], None, Effect.DOUBT_VIEW, Effect.BEGIN_NOW)
_RECONCILE = (Effect.DOUBT_VIEW, Effect.REPORT_UNOWNED, Effect.BEGIN_NOW)
TABLE.on(BETWEEN_ROUNDS, [Trigger.RECONCILE_DUE], State.CHANGED, *_RECONCILE)
TABLE.on(CONNECTED, [Trigger.CONNECTION_LOST], State.SUSPENDED)
TABLE.on([State.SUSPENDED], [Trigger.LEASE_ENDED], State.CUT_OFF, Effect.DROP_ALL)
TABLE.on(DISCONNECTED, [Trigger.STUCK], None, Effect.REPLACE_CLIENT)
_FORGET = (Effect.DROP_ALL, Effect.FORGET_VIEW)
TABLE.on(OPEN, [Trigger.CONTESTED, Trigger.SILENT], State.EXPIRED, *_FORGET, Effect.ABANDON_SESSION)
# watches do not survive a connection, so the cached view may be stale
_RESUME = (Effect.FORGET_VIEW, Effect.RESUME_LEASE, Effect.BEGIN_NOW)
TABLE.on([State.JOINING], [Trigger.RECONNECTED], None, Effect.FORGET_VIEW, Effect.RESUME_LEASE)
TABLE.on([*BETWEEN_ROUNDS, State.SUSPENDED, State.CUT_OFF], [Trigger.RECONNECTED], State.CHANGED, *_RESUME)
TABLE.on(OPEN, [Trigger.NEW_SESSION], State.CHANGED, Effect.DROP_ALL, *_RESUME)
TABLE.on(OPEN, [Trigger.SESSION_LOST], State.EXPIRED, *_FORGET)
TABLE.on(OPEN, [Trigger.STOPPED], State.CLOSED, Effect.SHUT_DOWN)
# a reconnection forgets everything that was read, so none of these is lost
TABLE.on(DISCONNECTED, [*_SEEN, Trigger.DEMANDED, Trigger.RECONCILE_DUE, Trigger.CONNECTION_LOST], None)
TABLE.on([State.CUT_OFF, State.EXPIRED], [Trigger.LEASE_ENDED], None)
TABLE.on([State.EXPIRED], [Trigger.RECONNECTED], State.CHANGED, Effect.DROP_ALL, *_RESUME)
TABLE.on([State.CLOSED], Trigger, None)

# All other pairs are impossible. The outcome of a round needs a round, within which other triggers wait on the queue.
# A due round needs a connection, and with one no lease ends.


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for member/STATES.md."""
    everywhere = [Trigger.CONTESTED, Trigger.NEW_SESSION, Trigger.SESSION_LOST, Trigger.SILENT, Trigger.STOPPED]
    return TABLE.diagram(State.JOINING, State.CLOSED, everywhere, State.SETTLED, grouped=True)
