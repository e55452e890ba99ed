"""The requests that a group coordinator answers, by version: what is asked, what is answered.

Pure. Names are Kafka's own in our way of writing.
"""

from __future__ import annotations

from zkconsumer.testing.wire_types import BOOLEAN, BYTES, INT8, INT16, INT32, INT64, STRING, Api, Array, Struct
from zkconsumer.testing.wire_types import field as f

_THROTTLE = f("throttle_time_ms", INT32, 0, since=1)
_ERROR = f("error_code", INT16, 0)

FIND_COORDINATOR = Api(
    10,
    "FindCoordinator",
    Struct(f("key", STRING, ""), f("key_type", INT8, 0, since=1)),
    Struct(
        _THROTTLE,
        _ERROR,
        f("error_message", STRING, since=1),
        f("node_id", INT32, -1),
        f("host", STRING, ""),
        f("port", INT32, -1),
    ),
    flexible=3,
    old=(0, 1),
    new=(0, 3),
)

JOIN_GROUP = Api(
    11,
    "JoinGroup",
    Struct(
        f("group_id", STRING, ""),
        f("session_timeout_ms", INT32, 0),
        f("rebalance_timeout_ms", INT32, -1, since=1),
        f("member_id", STRING, ""),
        f("group_instance_id", STRING, since=5),
        f("protocol_type", STRING, ""),
        f("protocols", Array(Struct(f("name", STRING, ""), f("metadata", BYTES, b""))), ()),
        f("reason", STRING, since=8),
    ),
    Struct(
        f("throttle_time_ms", INT32, 0, since=2),
        _ERROR,
        f("generation_id", INT32, -1),
        f("protocol_type", STRING, since=7),
        f("protocol_name", STRING, ""),
        f("leader", STRING, ""),
        f("skip_assignment", BOOLEAN, default=False, since=9),
        f("member_id", STRING, ""),
        f(
            "members",
            Array(
                Struct(
                    f("member_id", STRING, ""),
                    f("group_instance_id", STRING, since=5),
                    f("metadata", BYTES, b""),
                )
            ),
            (),
        ),
    ),
    flexible=6,
    old=(0, 2),
    new=(0, 9),
)

SYNC_GROUP = Api(
    14,
    "SyncGroup",
    Struct(
        f("group_id", STRING, ""),
        f("generation_id", INT32, -1),
        f("member_id", STRING, ""),
        f("group_instance_id", STRING, since=3),
        f("protocol_type", STRING, since=5),
        f("protocol_name", STRING, since=5),
        f("assignments", Array(Struct(f("member_id", STRING, ""), f("assignment", BYTES, b""))), ()),
    ),
    Struct(
        _THROTTLE,
        _ERROR,
        f("protocol_type", STRING, since=5),
        f("protocol_name", STRING, since=5),
        f("assignment", BYTES, b""),
    ),
    flexible=4,
    old=(0, 1),
    new=(0, 5),
)

HEARTBEAT = Api(
    12,
    "Heartbeat",
    Struct(
        f("group_id", STRING, ""),
        f("generation_id", INT32, -1),
        f("member_id", STRING, ""),
        f("group_instance_id", STRING, since=3),
    ),
    Struct(_THROTTLE, _ERROR),
    flexible=4,
    old=(0, 1),
    new=(0, 4),
)

LEAVE_GROUP = Api(
    13,
    "LeaveGroup",
    Struct(
        f("group_id", STRING, ""),
        f("member_id", STRING, "", until=2),
        f(
            "members",
            Array(
                Struct(
                    f("member_id", STRING, ""),
                    f("group_instance_id", STRING),
                    f("reason", STRING, since=5),
                )
            ),
            (),
            since=3,
        ),
    ),
    Struct(
        _THROTTLE,
        _ERROR,
        f(
            "members",
            Array(Struct(f("member_id", STRING, ""), f("group_instance_id", STRING), _ERROR)),
            (),
            since=3,
        ),
    ),
    flexible=4,
    old=(0, 1),
    new=(0, 5),
)

DESCRIBE_GROUPS = Api(
    15,
    "DescribeGroups",
    Struct(f("groups", Array(STRING), ()), f("include_authorized_operations", BOOLEAN, default=False, since=3)),
    Struct(
        _THROTTLE,
        f(
            "groups",
            Array(
                Struct(
                    _ERROR,
                    f("group_id", STRING, ""),
                    f("group_state", STRING, ""),
                    f("protocol_type", STRING, ""),
                    f("protocol_data", STRING, ""),
                    f(
                        "members",
                        Array(
                            Struct(
                                f("member_id", STRING, ""),
                                f("group_instance_id", STRING, since=4),
                                f("client_id", STRING, ""),
                                f("client_host", STRING, ""),
                                f("member_metadata", BYTES, b""),
                                f("member_assignment", BYTES, b""),
                            )
                        ),
                        (),
                    ),
                    f("authorized_operations", INT32, -(2**31), since=3),
                )
            ),
            (),
        ),
    ),
    flexible=5,
    old=(0, 1),
    new=(0, 5),
)

LIST_GROUPS = Api(
    16,
    "ListGroups",
    Struct(f("states_filter", Array(STRING), (), since=4)),
    Struct(
        _THROTTLE,
        _ERROR,
        f(
            "groups",
            Array(
                Struct(
                    f("group_id", STRING, ""),
                    f("protocol_type", STRING, ""),
                    f("group_state", STRING, "", since=4),
                )
            ),
            (),
        ),
    ),
    flexible=3,
    old=(0, 1),
    new=(0, 4),
)

DELETE_GROUPS = Api(
    42,
    "DeleteGroups",
    Struct(f("groups_names", Array(STRING), ())),
    Struct(
        f("throttle_time_ms", INT32, 0),
        f("results", Array(Struct(f("group_id", STRING, ""), _ERROR)), ()),
    ),
    flexible=2,
    old=(0, 0),
    new=(0, 2),
)

OFFSET_COMMIT = Api(
    8,
    "OffsetCommit",
    Struct(
        f("group_id", STRING, ""),
        f("generation_id", INT32, -1, since=1),
        f("member_id", STRING, "", since=1),
        f("group_instance_id", STRING, since=7),
        f("retention_time_ms", INT64, -1, since=2, until=4),
        f(
            "topics",
            Array(
                Struct(
                    f("name", STRING, ""),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                f("partition_index", INT32, 0),
                                f("committed_offset", INT64, 0),
                                f("commit_timestamp", INT64, -1, since=1, until=1),
                                f("committed_leader_epoch", INT32, -1, since=6),
                                f("committed_metadata", STRING),
                            )
                        ),
                        (),
                    ),
                )
            ),
            (),
        ),
    ),
    Struct(
        f("throttle_time_ms", INT32, 0, since=3),
        f(
            "topics",
            Array(
                Struct(
                    f("name", STRING, ""),
                    f("partitions", Array(Struct(f("partition_index", INT32, 0), _ERROR)), ()),
                )
            ),
            (),
        ),
    ),
    flexible=8,
    old=(1, 3),
    new=(1, 8),
)

OFFSET_FETCH = Api(
    9,
    "OffsetFetch",
    Struct(
        f("group_id", STRING, ""),
        f("topics", Array(Struct(f("name", STRING, ""), f("partition_indexes", Array(INT32), ()))), ()),
        f("require_stable", BOOLEAN, default=False, since=7),
    ),
    Struct(
        f("throttle_time_ms", INT32, 0, since=3),
        f(
            "topics",
            Array(
                Struct(
                    f("name", STRING, ""),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                f("partition_index", INT32, 0),
                                f("committed_offset", INT64, -1),
                                f("committed_leader_epoch", INT32, -1, since=5),
                                f("metadata", STRING, ""),
                                _ERROR,
                            )
                        ),
                        (),
                    ),
                )
            ),
            (),
        ),
        f("error_code", INT16, 0, since=2),
    ),
    flexible=6,
    old=(1, 3),
    new=(1, 7),
)

GROUP_APIS = (
    FIND_COORDINATOR,
    JOIN_GROUP,
    SYNC_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    DELETE_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
