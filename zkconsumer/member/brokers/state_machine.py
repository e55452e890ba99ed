"""The state machine of a coordinated member, as a table: (state, trigger) -> (state, effects). Pure.

``rebalancer`` turns answers, timeouts and changes into triggers, looks the table up, and has the effects performed in
their order. The diagram in member/STATES.md is drawn from this table (:func:`diagram`).

Mirrors the Java consumer's ``AbstractCoordinator`` and ``ConsumerCoordinator``, and KIP-429 for partitions that stay.
Their state is spread over a dozen fields that two threads change under one lock; KAFKA-8104 and KAFKA-9752 came from
that. Differs on purpose: losing the coordinator is a state of its own, in which owned partitions are kept as long as
the lease holds. A member that leaves because a reader does not come back says so and comes back by itself.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from zkconsumer.member.state_table import StateTable


class State(Enum):
    """The state of a member."""

    UNJOINED = "unjoined"
    """No member, on purpose: not begun, nothing is subscribed, or a reader does not come back."""
    BACKING_OFF = "backing off"
    """Something failed; the coordinator is looked for again after a pause."""
    FINDING = "finding"
    """The coordinator is looked for, in order to join."""
    JOINING = "joining"
    """JoinGroup is asked. The answer comes when all members have joined, or the slow ones were given up."""
    LEADING = "leading"
    """We lead the group, and ask for the partitions of all topics that its members subscribe to."""
    SYNCING = "syncing"
    """SyncGroup is asked; the answer is our assignment."""
    STABLE = "stable"
    """A member, with heartbeats."""
    SEARCHING = "searching"
    """A member whose coordinator does not answer. Owned partitions are kept as long as the lease holds."""
    FENCED = "fenced"
    """Another process has taken our ``group.instance.id``. There is no way on."""
    LEAVING = "leaving"
    """LeaveGroup is asked, not for long."""
    CLOSED = "closed"
    """Left for good."""


class Trigger(Enum):
    """An event or timer, by its meaning to the table."""

    COORDINATOR_FOUND = "the coordinator is known"
    MEMBER_NAMED = "the coordinator gave us a member id"
    JOINED = "joined"
    CHOSEN = "joined, as the leader"
    TOPICS_KNOWN = "the topics are known"
    SYNCED = "synced"
    LEFT = "left, or nobody listened"

    NOT_NOW = "retriable error"
    COORDINATOR_LOST = "no coordinator, or not there"
    OUTDATED = "our generation is over"
    FORGOTTEN = "the coordinator does not know us"
    REFUSED = "refused"
    TAKEN_OVER = "another process has our group.instance.id"

    RETRY_DUE = "the pause is over"
    LEASE_ENDED = "no heartbeat for a session timeout"
    READER_GONE = "a reader does not come back"
    READER_BACK = "the reader is back"

    GROUP_CHANGED = "a member joined, left, timed out or subscribed otherwise"
    SUBSCRIPTION_CHANGED = "we subscribe otherwise"
    PARTITIONS_CHANGED = "a topic has other partitions"
    TOPICS_MATCHED = "topics came to match the pattern"
    TOPICS_VANISHED = "topics vanished"
    GAVE_UP = "partitions for other members were revoked"
    UNSUBSCRIBED = "nothing is subscribed any more"
    STOPPED = "shutdown"


class Effect(Enum):
    """A step to perform. A new question replaces the one that is under way."""

    FIND = "find the coordinator"
    GIVE_UP = "revoke partitions that may not be kept during a join"
    """All partitions in the eager protocol; in the cooperative one those of topics that we no longer subscribe to."""
    JOIN = "join"
    ASK_TOPICS = "ask for the group's topics"
    SYNC = "sync"
    """With the assignment of every member, if we lead."""
    ADOPT = "take assigned partitions, revoke all others"
    BEAT = "send a heartbeat to the new coordinator"
    BACK_OFF = "back off"
    REMEMBER = "remember to join again"
    LOSE_ALL = "drop all partitions"
    """Hand out and commit nothing of them: other members may own them by now."""
    FORGET_GENERATION = "forget the generation"
    FORGET_MEMBER = "forget the member id"
    SURFACE = "tell the user"
    ABANDON = "stop the hand-out and commit finished messages"
    """Without waiting for messages in hand: their reader does not come back."""
    GIVE_UP_ALL = "revoke all partitions"
    LET_GO = "revoke all partitions and end the streams"
    LEAVE = "leave"


CAUSES = (
    Trigger.GROUP_CHANGED,
    Trigger.SUBSCRIPTION_CHANGED,
    Trigger.PARTITIONS_CHANGED,
    Trigger.TOPICS_MATCHED,
    Trigger.TOPICS_VANISHED,
)
"""The causes of a rebalance. The coordinator tells the causes of other members as the first."""
OUR_CAUSES = CAUSES[1:]
ASKING = (State.JOINING, State.LEADING, State.SYNCING)
"""States on the way into a generation."""
HOLDING = (State.STABLE, State.SEARCHING)
"""States in a generation."""
TRYING = (State.BACKING_OFF, State.FINDING, *ASKING, *HOLDING)
"""States of a member, or of one that wants to join."""
OPEN = (State.UNJOINED, *TRYING, State.FENCED)
PURPOSES = (Trigger.READER_GONE, Trigger.UNSUBSCRIBED, Trigger.TAKEN_OVER, Trigger.STOPPED)
"""Triggers that every state deals with alike."""

TABLE: Final = StateTable[State, Trigger, Effect](State, Trigger)

# from nothing into a generation
_WANTED = [Trigger.SUBSCRIPTION_CHANGED, Trigger.READER_BACK]
_FAILURES = [Trigger.NOT_NOW, Trigger.COORDINATOR_LOST]
TABLE.on([State.UNJOINED], _WANTED, State.FINDING, Effect.FIND)
TABLE.on([State.BACKING_OFF], [Trigger.RETRY_DUE], State.FINDING, Effect.FIND)
TABLE.on([State.FINDING], [Trigger.COORDINATOR_FOUND], State.JOINING, Effect.GIVE_UP, Effect.JOIN)
TABLE.on([State.FINDING, *ASKING], _FAILURES, State.BACKING_OFF, Effect.BACK_OFF)
TABLE.on([State.JOINING], [Trigger.MEMBER_NAMED], None, Effect.JOIN)
TABLE.on([State.JOINING], [Trigger.JOINED], State.SYNCING, Effect.SYNC)
TABLE.on([State.JOINING], [Trigger.CHOSEN], State.LEADING, Effect.ASK_TOPICS)
TABLE.on([State.LEADING], [Trigger.TOPICS_KNOWN], State.SYNCING, Effect.SYNC)
TABLE.on([State.SYNCING], [Trigger.SYNCED], State.STABLE, Effect.ADOPT)
# the next generation begins before this one did
TABLE.on(ASKING, [Trigger.GROUP_CHANGED], State.JOINING, Effect.JOIN)
# heartbeats go on while we wait for the others; without heartbeats no answer comes
TABLE.on(ASKING, [Trigger.LEASE_ENDED], State.BACKING_OFF, Effect.BACK_OFF)
TABLE.on(ASKING, OUR_CAUSES, None, Effect.REMEMBER)

# in a generation
TABLE.on([State.STABLE], [*CAUSES, Trigger.GAVE_UP], State.JOINING, Effect.GIVE_UP, Effect.JOIN)
TABLE.on([State.STABLE], [Trigger.NOT_NOW], None)  # it loads the group: the next heartbeat asks again
TABLE.on([State.STABLE], [Trigger.COORDINATOR_LOST, Trigger.LEASE_ENDED], State.SEARCHING, Effect.FIND)
TABLE.on([State.SEARCHING], [Trigger.COORDINATOR_FOUND], State.STABLE, Effect.BEAT)
TABLE.on([State.SEARCHING], [Trigger.NOT_NOW, Trigger.COORDINATOR_LOST], None, Effect.BACK_OFF)
TABLE.on([State.SEARCHING], [Trigger.RETRY_DUE], None, Effect.FIND)
TABLE.on([State.SEARCHING], OUR_CAUSES, None, Effect.REMEMBER)
# as long as the lease holds nobody else owns them, and an operator may be at work
TABLE.on([State.SEARCHING], [Trigger.REFUSED], None, Effect.SURFACE, Effect.BACK_OFF)

# out of a generation that went on without us
for trigger, forget in ((Trigger.OUTDATED, Effect.FORGET_GENERATION), (Trigger.FORGOTTEN, Effect.FORGET_MEMBER)):
    TABLE.on([*ASKING, State.STABLE], [trigger], State.JOINING, Effect.LOSE_ALL, forget, Effect.JOIN)
    # a commit was refused meanwhile
    TABLE.on([State.FINDING, State.SEARCHING], [trigger], State.FINDING, Effect.LOSE_ALL, forget, Effect.FIND)
    TABLE.on([State.BACKING_OFF], [trigger], None, Effect.LOSE_ALL, forget)
_REFUSED = (Effect.LOSE_ALL, Effect.SURFACE, Effect.BACK_OFF)
TABLE.on([State.FINDING, *ASKING, State.STABLE], [Trigger.REFUSED], State.BACKING_OFF, *_REFUSED)
TABLE.on([State.UNJOINED, *TRYING], [Trigger.TAKEN_OVER], State.FENCED, Effect.LOSE_ALL, Effect.SURFACE)

# out of the group, because we want to
_LEAVE = (Effect.LEAVE, Effect.FORGET_MEMBER)
TABLE.on(TRYING, [Trigger.READER_GONE], State.UNJOINED, Effect.ABANDON, *_LEAVE)
TABLE.on(TRYING, [Trigger.UNSUBSCRIBED], State.UNJOINED, Effect.GIVE_UP_ALL, *_LEAVE)
TABLE.on(OPEN, [Trigger.STOPPED], State.LEAVING, Effect.LET_GO, Effect.LEAVE)
TABLE.on([State.LEAVING], [Trigger.LEFT], State.CLOSED)

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
"""Triggers that come only after a question; the answer to a replaced question is dropped."""

# triggers that change nothing, since an effect under way deals with them, or they come too late
TABLE.on([State.BACKING_OFF, State.FINDING], CAUSES, None)  # the join is still to come
TABLE.on([State.SEARCHING], [Trigger.GROUP_CHANGED], None)  # the next heartbeat tells again
TABLE.on([State.BACKING_OFF], [Trigger.NOT_NOW, Trigger.COORDINATOR_LOST, Trigger.REFUSED], None)
TABLE.on([State.BACKING_OFF, State.FINDING, State.SEARCHING], [Trigger.LEASE_ENDED], None)
TABLE.on(TRYING, [Trigger.LEFT, Trigger.READER_BACK], None)
_LATE = [trigger for trigger in Trigger if trigger not in ANSWERS and trigger is not Trigger.RETRY_DUE]
for state in (State.UNJOINED, State.FENCED, State.LEAVING, State.CLOSED):
    TABLE.on([state], [trigger for trigger in _LATE if (state, trigger) not in TABLE.rows], None)
TABLE.on([State.UNJOINED, State.FENCED, State.CLOSED], [Trigger.LEFT], None)

# All other pairs are impossible: an answer without its question, the end of a pause without a pause.


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for member/STATES.md."""
    return TABLE.diagram(State.UNJOINED, State.CLOSED, PURPOSES, State.STABLE)
