"""The error codes of broker answers: their names, and whether asking again later may help.

Pure. Codes and names are those of the Kafka protocol guide; newer brokers renamed a few (6 was
NOT_LEADER_FOR_PARTITION), the numbers never change. Only codes that an answer to a consumer can carry are listed.
"""

from __future__ import annotations

from typing import Final

from zkconsumer.errors import BrokerResponseError

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
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
LISTENER_NOT_FOUND: Final = 72
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
OFFSET_NOT_AVAILABLE: Final = 78

_NAMES: Final[dict[int, str]] = {code: key for key, code in list(globals().items()) if isinstance(code, int)} | {
    13: "NETWORK_EXCEPTION",
    22: "ILLEGAL_GENERATION",
    24: "INVALID_GROUP_ID",
    25: "UNKNOWN_MEMBER_ID",
    26: "INVALID_SESSION_TIMEOUT",
    27: "REBALANCE_IN_PROGRESS",
    28: "INVALID_COMMIT_OFFSET_SIZE",
    32: "INVALID_TIMESTAMP",
    41: "NOT_CONTROLLER",
    54: "SECURITY_DISABLED",
    57: "LOG_DIR_NOT_FOUND",
    69: "GROUP_ID_NOT_FOUND",
    73: "TOPIC_DELETION_DISABLED",
    77: "STALE_BROKER_EPOCH",
    82: "FENCED_INSTANCE_ID",
    89: "THROTTLING_QUOTA_EXCEEDED",
    100: "UNKNOWN_TOPIC_ID",
}

_RETRIABLE: Final = frozenset(
    {
        CORRUPT_MESSAGE,
        UNKNOWN_TOPIC_OR_PARTITION,
        LEADER_NOT_AVAILABLE,
        NOT_LEADER_OR_FOLLOWER,
        REQUEST_TIMED_OUT,
        BROKER_NOT_AVAILABLE,
        REPLICA_NOT_AVAILABLE,
        13,
        COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE,
        NOT_COORDINATOR,
        27,
        41,
        KAFKA_STORAGE_ERROR,
        FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH,
        LISTENER_NOT_FOUND,
        FENCED_LEADER_EPOCH,
        UNKNOWN_LEADER_EPOCH,
        77,
        OFFSET_NOT_AVAILABLE,
        89,
        100,
    }
)


def name(code: int) -> str:
    """The protocol's name of an error code; ``ERROR_<code>`` for one that this table does not know."""
    return _NAMES.get(code, f"ERROR_{code}")


def retriable(code: int) -> bool:
    """Whether the same question may be answered later, or by another broker, without anything changing on our side.

    True where a leader moved, a topic is not known *yet*, or a broker is still loading; False for NONE, for what only
    a new offset or a new configuration can cure, and for unknown codes.
    """
    return code in _RETRIABLE


def error(code: int, asked: str) -> BrokerResponseError:
    """The exception that carries a code. Arguments: ``asked`` names the broker and the question."""
    return BrokerResponseError(code, name(code), asked)
