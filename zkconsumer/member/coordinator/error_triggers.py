"""The triggers of errors in exchanges with the coordinator. Pure."""

from __future__ import annotations

from zkconsumer.core.coordinator_error_actions import ErrorAction, action_for
from zkconsumer.errors import FencedInstanceIdError
from zkconsumer.member.coordinator.state_machine import Trigger


def trigger_of(error: Exception) -> Trigger:
    """Return the trigger of a failure."""
    if isinstance(error, FencedInstanceIdError):
        return Trigger.TAKEN_OVER
    return _TRIGGERS[action_for(error)]


_TRIGGERS = {
    ErrorAction.RETRY: Trigger.NOT_NOW,
    ErrorAction.FIND_COORDINATOR: Trigger.COORDINATOR_LOST,
    ErrorAction.REJOIN: Trigger.GROUP_CHANGED,
    ErrorAction.REJOIN_WITH_GIVEN_ID: Trigger.MEMBER_NAMED,
    ErrorAction.REJOIN_WITHOUT_PARTITIONS: Trigger.OUTDATED,
    ErrorAction.REJOIN_AS_NEW_MEMBER: Trigger.FORGOTTEN,
    ErrorAction.RAISE: Trigger.REFUSED,
}
