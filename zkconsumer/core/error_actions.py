"""What to do about each failure of an exchange with a group's coordinator: one table. Pure; any thread.

Mirrors the branches spread over the Java consumer's ``AbstractCoordinator`` and ``ConsumerCoordinator`` of 3.9. What
the table does not name surfaces: an unknown code is never retried in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from zkconsumer.errors import BrokerResponseError, BrokerUnavailableError


class Remedy(Enum):
    """What helps."""

    RETRY = "wait, and ask the same coordinator again"
    FIND = "wait, and find the coordinator again"
    REJOIN = "join again as who we are; what we own is still ours"
    JOIN_AS = "join again at once, under the id that came with the answer"
    LOST = "what we own is lost; join again under our member id"
    RESET = "what we own is lost; join again as nobody"
    SURFACE = "nothing that we could do; tell the user"


REMEDIES: Final[Mapping[int, Remedy]] = {
    14: Remedy.RETRY,  # COORDINATOR_LOAD_IN_PROGRESS
    88: Remedy.RETRY,  # UNSTABLE_OFFSET_COMMIT: a transaction on the offsets has not ended
    7: Remedy.RETRY,  # REQUEST_TIMED_OUT: an offset was not replicated in time
    3: Remedy.RETRY,  # UNKNOWN_TOPIC_OR_PARTITION: a topic that was just made
    89: Remedy.RETRY,  # THROTTLING_QUOTA_EXCEEDED
    15: Remedy.FIND,  # COORDINATOR_NOT_AVAILABLE
    16: Remedy.FIND,  # NOT_COORDINATOR
    5: Remedy.FIND,  # LEADER_NOT_AVAILABLE: of the topic of offsets, as the next ones
    6: Remedy.FIND,  # NOT_LEADER_OR_FOLLOWER
    13: Remedy.FIND,  # NETWORK_EXCEPTION
    56: Remedy.FIND,  # KAFKA_STORAGE_ERROR
    27: Remedy.REJOIN,  # REBALANCE_IN_PROGRESS
    79: Remedy.JOIN_AS,  # MEMBER_ID_REQUIRED
    22: Remedy.LOST,  # ILLEGAL_GENERATION
    25: Remedy.RESET,  # UNKNOWN_MEMBER_ID
    82: Remedy.SURFACE,  # FENCED_INSTANCE_ID
    23: Remedy.SURFACE,  # INCONSISTENT_GROUP_PROTOCOL
    24: Remedy.SURFACE,  # INVALID_GROUP_ID
    26: Remedy.SURFACE,  # INVALID_SESSION_TIMEOUT
    29: Remedy.SURFACE,  # TOPIC_AUTHORIZATION_FAILED
    30: Remedy.SURFACE,  # GROUP_AUTHORIZATION_FAILED
    81: Remedy.SURFACE,  # GROUP_MAX_SIZE_REACHED
}
"""By the code of the whole answer, or of a single partition of a commit. What is not here surfaces."""


def remedy_of_code(code: int) -> Remedy | None:
    """What to do about an error code; None for 0, where nothing is to be done."""
    return REMEDIES.get(code, Remedy.SURFACE) if code else None


def remedy(error: Exception) -> Remedy:
    """What to do about a failure. A connection that fails means that the coordinator may be another broker now."""
    if isinstance(error, BrokerResponseError):
        return REMEDIES.get(error.code, Remedy.SURFACE)
    return Remedy.FIND if isinstance(error, BrokerUnavailableError) else Remedy.SURFACE
