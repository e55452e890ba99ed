"""What errors mean to the table of states, and what its states mean to the user. Pure."""

from __future__ import annotations

from zkconsumer.core.error_actions import ErrorAction, action_for
from zkconsumer.errors import FencedInstanceIdError
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.coordinator.state_machine import State, Trigger


def trigger_of(error: Exception) -> Trigger:
    """What a failure is to the table."""
    if isinstance(error, FencedInstanceIdError):
        return Trigger.TAKEN_OVER
    return _MEANING[action_for(error)]


_MEANING = {
    ErrorAction.RETRY: Trigger.NOT_NOW,
    ErrorAction.FIND_COORDINATOR: Trigger.COORDINATOR_LOST,
    ErrorAction.REJOIN: Trigger.GROUP_CHANGED,
    ErrorAction.REJOIN_WITH_GIVEN_ID: Trigger.MEMBER_NAMED,
    ErrorAction.REJOIN_WITHOUT_PARTITIONS: Trigger.OUTDATED,
    ErrorAction.REJOIN_AS_NEW_MEMBER: Trigger.FORGOTTEN,
    ErrorAction.RAISE: Trigger.REFUSED,
}
SHOWN = {
    State.UNJOINED: Phase.AWAY,
    State.BACKING_OFF: Phase.REJOINING,
    State.FINDING: Phase.REJOINING,
    State.JOINING: Phase.REJOINING,
    State.LEADING: Phase.REJOINING,
    State.SYNCING: Phase.REJOINING,
    State.STABLE: Phase.OWNING,
    State.SEARCHING: Phase.OWNING,
    State.FENCED: Phase.FAILED,
    State.LEAVING: Phase.CLOSED,
    State.CLOSED: Phase.CLOSED,
}
"""How a state is shown, if nothing else is known."""
