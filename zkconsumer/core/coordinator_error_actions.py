"""The table of coordinator errors: which action follows each error code. Pure; any thread.

Mirrors the branches of ``AbstractCoordinator`` and ``ConsumerCoordinator`` in the Java consumer 3.9. A code that is not
in the table is raised: an unknown error is never retried in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from zkconsumer.errors import BrokerResponseError, BrokerUnavailableError


class ErrorAction(Enum):
    """The member's answer to an error of its group coordinator."""

    RETRY = "wait, and send the request to the same coordinator again"
    FIND_COORDINATOR = "wait, and find the coordinator again"
    REJOIN = "join again under the same member id; owned partitions stay ours"
    REJOIN_WITH_GIVEN_ID = "join again at once, under the member id in the answer"
    REJOIN_WITHOUT_PARTITIONS = "owned partitions are lost; join again under the same member id"
    REJOIN_AS_NEW_MEMBER = "owned partitions are lost; join again without a member id"
    RAISE = "tell the user; no retry can help"


ACTIONS_BY_CODE: Final[Mapping[int, ErrorAction]] = {
    14: ErrorAction.RETRY,  # COORDINATOR_LOAD_IN_PROGRESS
    88: ErrorAction.RETRY,  # UNSTABLE_OFFSET_COMMIT: a transaction on the offsets has not ended
    7: ErrorAction.RETRY,  # REQUEST_TIMED_OUT: an offset was not replicated in time
    3: ErrorAction.RETRY,  # UNKNOWN_TOPIC_OR_PARTITION: a topic was just created
    89: ErrorAction.RETRY,  # THROTTLING_QUOTA_EXCEEDED
    15: ErrorAction.FIND_COORDINATOR,  # COORDINATOR_NOT_AVAILABLE
    16: ErrorAction.FIND_COORDINATOR,  # NOT_COORDINATOR
    5: ErrorAction.FIND_COORDINATOR,  # LEADER_NOT_AVAILABLE, of the offsets topic, as the next two
    6: ErrorAction.FIND_COORDINATOR,  # NOT_LEADER_OR_FOLLOWER
    13: ErrorAction.FIND_COORDINATOR,  # NETWORK_EXCEPTION
    56: ErrorAction.FIND_COORDINATOR,  # KAFKA_STORAGE_ERROR
    27: ErrorAction.REJOIN,  # REBALANCE_IN_PROGRESS
    79: ErrorAction.REJOIN_WITH_GIVEN_ID,  # MEMBER_ID_REQUIRED
    22: ErrorAction.REJOIN_WITHOUT_PARTITIONS,  # ILLEGAL_GENERATION
    25: ErrorAction.REJOIN_AS_NEW_MEMBER,  # UNKNOWN_MEMBER_ID
    82: ErrorAction.RAISE,  # FENCED_INSTANCE_ID
    23: ErrorAction.RAISE,  # INCONSISTENT_GROUP_PROTOCOL
    24: ErrorAction.RAISE,  # INVALID_GROUP_ID
    26: ErrorAction.RAISE,  # INVALID_SESSION_TIMEOUT
    29: ErrorAction.RAISE,  # TOPIC_AUTHORIZATION_FAILED
    30: ErrorAction.RAISE,  # GROUP_AUTHORIZATION_FAILED
    81: ErrorAction.RAISE,  # GROUP_MAX_SIZE_REACHED
}
"""Actions by the code of a whole response, or of one partition of a commit."""


def action_for(error: Exception) -> ErrorAction:
    """Return the action for an error. A failed connection means that another broker may be the coordinator now."""
    if isinstance(error, BrokerResponseError):
        return ACTIONS_BY_CODE.get(error.code, ErrorAction.RAISE)
    return ErrorAction.FIND_COORDINATOR if isinstance(error, BrokerUnavailableError) else ErrorAction.RAISE
