"""The error codes of broker responses: names, whether asking again may help, and what a group member does. Pure.

Codes and names are those of the Kafka protocol guide. Newer brokers renamed a few (6 was NOT_LEADER_FOR_PARTITION), but
the numbers never change. The table lists only codes in responses to a consumer.

The actions mirror the branches of ``AbstractCoordinator`` and ``ConsumerCoordinator`` in the Java consumer 3.9. A code
without an action is raised: an unknown error is never retried in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from zkconsumer import errors as classes
from zkconsumer.errors import BrokerResponseError, BrokerUnavailableError

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
INVALID_FETCH_SIZE: Final = 4
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
BROKER_NOT_AVAILABLE: Final = 8
REPLICA_NOT_AVAILABLE: Final = 9
MESSAGE_TOO_LARGE: Final = 10
OFFSET_METADATA_TOO_LARGE: Final = 12
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
INVALID_TOPIC_EXCEPTION: Final = 17
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
KAFKA_STORAGE_ERROR: Final = 56
SASL_AUTHENTICATION_FAILED: Final = 58
GROUP_ID_NOT_FOUND: Final = 69
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
LISTENER_NOT_FOUND: Final = 72
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
OFFSET_NOT_AVAILABLE: Final = 78
MEMBER_ID_REQUIRED: Final = 79
GROUP_MAX_SIZE_REACHED: Final = 81
FENCED_INSTANCE_ID: Final = 82
UNSTABLE_OFFSET_COMMIT: Final = 88

_NAMES: Final[dict[int, str]] = {code: key for key, code in list(globals().items()) if isinstance(code, int)} | {
    13: "NETWORK_EXCEPTION",
    28: "INVALID_COMMIT_OFFSET_SIZE",
    32: "INVALID_TIMESTAMP",
    41: "NOT_CONTROLLER",
    54: "SECURITY_DISABLED",
    57: "LOG_DIR_NOT_FOUND",
    73: "TOPIC_DELETION_DISABLED",
    77: "STALE_BROKER_EPOCH",
    68: "NON_EMPTY_GROUP",
    80: "PREFERRED_LEADER_NOT_AVAILABLE",
    86: "GROUP_SUBSCRIBED_TO_TOPIC",
    89: "THROTTLING_QUOTA_EXCEEDED",
    100: "UNKNOWN_TOPIC_ID",
}

_RETRIABLE: Final = frozenset(
    {
        *(CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER),
        *(REQUEST_TIMED_OUT, BROKER_NOT_AVAILABLE, REPLICA_NOT_AVAILABLE, 13, 41, 77, 89, 100),
        *(COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, REBALANCE_IN_PROGRESS),
        *(KAFKA_STORAGE_ERROR, FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, LISTENER_NOT_FOUND),
        *(FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE, UNSTABLE_OFFSET_COMMIT),
    }
)

_CLASSES: Final[dict[int, type[BrokerResponseError]]] = {
    COORDINATOR_LOAD_IN_PROGRESS: classes.CoordinatorLoadInProgressError,
    COORDINATOR_NOT_AVAILABLE: classes.CoordinatorNotAvailableError,
    NOT_COORDINATOR: classes.NotCoordinatorError,
    ILLEGAL_GENERATION: classes.IllegalGenerationError,
    INCONSISTENT_GROUP_PROTOCOL: classes.InconsistentGroupProtocolError,
    INVALID_GROUP_ID: classes.InvalidGroupIdError,
    UNKNOWN_MEMBER_ID: classes.UnknownMemberIdError,
    INVALID_SESSION_TIMEOUT: classes.InvalidSessionTimeoutError,
    REBALANCE_IN_PROGRESS: classes.RebalanceInProgressError,
    GROUP_AUTHORIZATION_FAILED: classes.GroupAuthorizationError,
    MEMBER_ID_REQUIRED: classes.MemberIdRequiredError,
    GROUP_MAX_SIZE_REACHED: classes.GroupMaxSizeReachedError,
    FENCED_INSTANCE_ID: classes.FencedInstanceIdError,
    UNSTABLE_OFFSET_COMMIT: classes.UnstableOffsetCommitError,
}


def name(code: int) -> str:
    """Return the protocol's name of an error code; ``ERROR_<code>`` for an unknown one."""
    return _NAMES.get(code, f"ERROR_{code}")


def retriable(code: int) -> bool:
    """Return whether the same request may succeed later, or at another broker, without a change on our side.

    True if a leader moved, a topic is not known *yet*, or a broker is still loading. False for NONE, for errors that
    only a new offset or a new configuration cures, and for unknown codes.
    """
    return code in _RETRIABLE


def error(code: int, asked: str) -> BrokerResponseError:
    """Return the exception for a code, of the code's own class if it has one.

    Arguments: ``asked`` names the broker and the request.
    """
    return _CLASSES.get(code, BrokerResponseError)(code, name(code), asked)


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
    COORDINATOR_LOAD_IN_PROGRESS: ErrorAction.RETRY,
    UNSTABLE_OFFSET_COMMIT: ErrorAction.RETRY,  # a transaction on the offsets has not ended
    REQUEST_TIMED_OUT: ErrorAction.RETRY,  # an offset was not replicated in time
    UNKNOWN_TOPIC_OR_PARTITION: ErrorAction.RETRY,  # a topic was just created
    89: ErrorAction.RETRY,  # THROTTLING_QUOTA_EXCEEDED
    COORDINATOR_NOT_AVAILABLE: ErrorAction.FIND_COORDINATOR,
    NOT_COORDINATOR: ErrorAction.FIND_COORDINATOR,
    LEADER_NOT_AVAILABLE: ErrorAction.FIND_COORDINATOR,  # of the offsets topic, as the next two
    NOT_LEADER_OR_FOLLOWER: ErrorAction.FIND_COORDINATOR,
    13: ErrorAction.FIND_COORDINATOR,  # NETWORK_EXCEPTION
    KAFKA_STORAGE_ERROR: ErrorAction.FIND_COORDINATOR,
    REBALANCE_IN_PROGRESS: ErrorAction.REJOIN,
    MEMBER_ID_REQUIRED: ErrorAction.REJOIN_WITH_GIVEN_ID,
    ILLEGAL_GENERATION: ErrorAction.REJOIN_WITHOUT_PARTITIONS,
    UNKNOWN_MEMBER_ID: ErrorAction.REJOIN_AS_NEW_MEMBER,
    FENCED_INSTANCE_ID: ErrorAction.RAISE,
    INCONSISTENT_GROUP_PROTOCOL: ErrorAction.RAISE,
    INVALID_GROUP_ID: ErrorAction.RAISE,
    INVALID_SESSION_TIMEOUT: ErrorAction.RAISE,
    TOPIC_AUTHORIZATION_FAILED: ErrorAction.RAISE,
    GROUP_AUTHORIZATION_FAILED: ErrorAction.RAISE,
    GROUP_MAX_SIZE_REACHED: ErrorAction.RAISE,
}
"""Actions by the code of a whole response, or of one partition of a commit."""


def action_for(error: Exception) -> ErrorAction:
    """Return the action for an error. A failed connection means that another broker may be the coordinator now."""
    if isinstance(error, BrokerResponseError):
        return ACTIONS_BY_CODE.get(error.code, ErrorAction.RAISE)
    return ErrorAction.FIND_COORDINATOR if isinstance(error, BrokerUnavailableError) else ErrorAction.RAISE
