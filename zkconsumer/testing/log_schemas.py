"""The requests that are not about groups, by version: what is asked, what is answered.

Pure. Names are Kafka's own in our way of writing. Versions end where topics are named by ids, which the fake has not.
"""

from __future__ import annotations

from zkconsumer.testing.wire_types import BOOLEAN, BYTES, INT8, INT16, INT32, INT64, STRING, Api, Array, Struct
from zkconsumer.testing.wire_types import field as f

_ERROR = f("error_code", INT16, 0)
_THROTTLE = f("throttle_time_ms", INT32, 0, since=1)


API_VERSIONS = Api(
    18,
    "ApiVersions",
    Struct(f("client_software_name", STRING, "", since=3), f("client_software_version", STRING, "", since=3)),
    Struct(
        _ERROR,
        f(
            "api_keys",
            Array(Struct(f("api_key", INT16, 0), f("min_version", INT16, 0), f("max_version", INT16, 0))),
            (),
        ),
        _THROTTLE,
    ),
    flexible=3,
    old=(0, 1),
    new=(0, 3),
)

METADATA = Api(
    3,
    "Metadata",
    Struct(
        f("topics", Array(Struct(f("name", STRING, "")))),
        f("allow_auto_topic_creation", BOOLEAN, default=False, since=4),
        f("include_cluster_authorized_operations", BOOLEAN, default=False, since=8),
        f("include_topic_authorized_operations", BOOLEAN, default=False, since=8),
    ),
    Struct(
        f("throttle_time_ms", INT32, 0, since=3),
        f(
            "brokers",
            Array(
                Struct(
                    f("node_id", INT32, 0),
                    f("host", STRING, ""),
                    f("port", INT32, 0),
                    f("rack", STRING, since=1),
                )
            ),
            (),
        ),
        f("cluster_id", STRING, since=2),
        f("controller_id", INT32, -1, since=1),
        f(
            "topics",
            Array(
                Struct(
                    _ERROR,
                    f("name", STRING, ""),
                    f("is_internal", BOOLEAN, default=False, since=1),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                _ERROR,
                                f("partition_index", INT32, 0),
                                f("leader_id", INT32, -1),
                                f("leader_epoch", INT32, -1, since=7),
                                f("replica_nodes", Array(INT32), ()),
                                f("isr_nodes", Array(INT32), ()),
                                f("offline_replicas", Array(INT32), (), since=5),
                            )
                        ),
                        (),
                    ),
                    f("topic_authorized_operations", INT32, -(2**31), since=8),
                )
            ),
            (),
        ),
        f("cluster_authorized_operations", INT32, -(2**31), since=8),
    ),
    flexible=9,
    old=(0, 5),
    new=(0, 9),
)

PRODUCE = Api(
    0,
    "Produce",
    Struct(
        f("transactional_id", STRING, since=3),
        f("acks", INT16, 0),
        f("timeout_ms", INT32, 0),
        f(
            "topics",
            Array(
                Struct(
                    f("name", STRING, ""),
                    f("partitions", Array(Struct(f("index", INT32, 0), f("records", BYTES))), ()),
                )
            ),
            (),
        ),
    ),
    Struct(
        f(
            "responses",
            Array(
                Struct(
                    f("name", STRING, ""),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                f("index", INT32, 0),
                                _ERROR,
                                f("base_offset", INT64, -1),
                                f("log_append_time_ms", INT64, -1, since=2),
                                f("log_start_offset", INT64, -1, since=5),
                                f(
                                    "record_errors",
                                    Array(Struct(f("batch_index", INT32, 0), f("message", STRING))),
                                    (),
                                    8,
                                ),
                                f("error_message", STRING, since=8),
                            )
                        ),
                        (),
                    ),
                )
            ),
            (),
        ),
        _THROTTLE,
    ),
    flexible=9,
    old=(0, 5),
    new=(0, 8),
)

FETCH = Api(
    1,
    "Fetch",
    Struct(
        f("replica_id", INT32, -1),
        f("max_wait_ms", INT32, 0),
        f("min_bytes", INT32, 0),
        f("max_bytes", INT32, 2**31 - 1, since=3),
        f("isolation_level", INT8, 0, since=4),
        f("session_id", INT32, 0, since=7),
        f("session_epoch", INT32, -1, since=7),
        f(
            "topics",
            Array(
                Struct(
                    f("topic", STRING, ""),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                f("partition", INT32, 0),
                                f("current_leader_epoch", INT32, -1, since=9),
                                f("fetch_offset", INT64, 0),
                                f("log_start_offset", INT64, -1, since=5),
                                f("partition_max_bytes", INT32, 0),
                            )
                        ),
                        (),
                    ),
                )
            ),
            (),
        ),
        f(
            "forgotten_topics",
            Array(Struct(f("topic", STRING, ""), f("partitions", Array(INT32), ()))),
            (),
            since=7,
        ),
        f("rack_id", STRING, "", since=11),
    ),
    Struct(
        _THROTTLE,
        f("error_code", INT16, 0, since=7),
        f("session_id", INT32, 0, since=7),
        f(
            "responses",
            Array(
                Struct(
                    f("topic", STRING, ""),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                f("partition_index", INT32, 0),
                                _ERROR,
                                f("high_watermark", INT64, -1),
                                f("last_stable_offset", INT64, -1, since=4),
                                f("log_start_offset", INT64, -1, since=5),
                                f(
                                    "aborted_transactions",
                                    Array(Struct(f("producer_id", INT64, 0), f("first_offset", INT64, 0))),
                                    since=4,
                                ),
                                f("preferred_read_replica", INT32, -1, since=11),
                                f("records", BYTES, b""),
                            )
                        ),
                        (),
                    ),
                )
            ),
            (),
        ),
    ),
    flexible=12,
    old=(4, 7),
    new=(4, 11),
)

LIST_OFFSETS = Api(
    2,
    "ListOffsets",
    Struct(
        f("replica_id", INT32, -1),
        f("isolation_level", INT8, 0, since=2),
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
                                f("current_leader_epoch", INT32, -1, since=4),
                                f("timestamp", INT64, 0),
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
        f("throttle_time_ms", INT32, 0, since=2),
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
                                _ERROR,
                                f("timestamp", INT64, -1),
                                f("offset", INT64, -1),
                                f("leader_epoch", INT32, -1, since=4),
                            )
                        ),
                        (),
                    ),
                )
            ),
            (),
        ),
    ),
    flexible=6,
    old=(1, 2),
    new=(1, 6),
)

INIT_PRODUCER_ID = Api(
    22,
    "InitProducerId",
    Struct(f("transactional_id", STRING), f("transaction_timeout_ms", INT32, 0)),
    Struct(
        f("throttle_time_ms", INT32, 0),
        _ERROR,
        f("producer_id", INT64, -1),
        f("producer_epoch", INT16, -1),
    ),
    flexible=2,
    old=(0, 0),
    new=(0, 2),
)

_CREATED = Struct(
    f("name", STRING, ""),
    _ERROR,
    f("error_message", STRING, since=1),
    f("num_partitions", INT32, -1, since=5),
    f("replication_factor", INT16, -1, since=5),
    f("configs", Array(INT8), (), since=5),
)

CREATE_TOPICS = Api(
    19,
    "CreateTopics",
    Struct(
        f(
            "topics",
            Array(
                Struct(
                    f("name", STRING, ""),
                    f("num_partitions", INT32, 1),
                    f("replication_factor", INT16, 1),
                    f(
                        "assignments",
                        Array(Struct(f("partition_index", INT32, 0), f("broker_ids", Array(INT32), ()))),
                        (),
                    ),
                    f("configs", Array(Struct(f("name", STRING, ""), f("value", STRING))), ()),
                )
            ),
            (),
        ),
        f("timeout_ms", INT32, 0),
        f("validate_only", BOOLEAN, default=False, since=1),
    ),
    Struct(f("throttle_time_ms", INT32, 0, since=2), f("topics", Array(_CREATED), ())),
    flexible=5,
    old=(0, 2),
    new=(0, 5),
)

DELETE_TOPICS = Api(
    20,
    "DeleteTopics",
    Struct(f("topic_names", Array(STRING), ()), f("timeout_ms", INT32, 0)),
    Struct(_THROTTLE, f("responses", Array(Struct(f("name", STRING, ""), _ERROR)), ())),
    flexible=4,
    old=(0, 1),
    new=(0, 4),
)

CREATE_PARTITIONS = Api(
    37,
    "CreatePartitions",
    Struct(
        f(
            "topics",
            Array(
                Struct(
                    f("name", STRING, ""),
                    f("count", INT32, 0),
                    f("assignments", Array(Struct(f("broker_ids", Array(INT32), ())))),
                )
            ),
            (),
        ),
        f("timeout_ms", INT32, 0),
        f("validate_only", BOOLEAN, default=False),
    ),
    Struct(
        f("throttle_time_ms", INT32, 0),
        f("results", Array(Struct(f("name", STRING, ""), _ERROR, f("error_message", STRING))), ()),
    ),
    flexible=2,
    old=(0, 0),
    new=(0, 2),
)

OFFSET_FOR_LEADER_EPOCH = Api(
    23,
    "OffsetForLeaderEpoch",
    Struct(
        f("replica_id", INT32, -2, since=3),
        f(
            "topics",
            Array(
                Struct(
                    f("topic", STRING, ""),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                f("partition", INT32, 0),
                                f("current_leader_epoch", INT32, -1, since=2),
                                f("leader_epoch", INT32, -1),
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
        f("throttle_time_ms", INT32, 0, since=2),
        f(
            "topics",
            Array(
                Struct(
                    f("topic", STRING, ""),
                    f(
                        "partitions",
                        Array(
                            Struct(
                                _ERROR,
                                f("partition", INT32, 0),
                                f("leader_epoch", INT32, -1, since=1),
                                f("end_offset", INT64, -1),
                            )
                        ),
                        (),
                    ),
                )
            ),
            (),
        ),
    ),
    flexible=4,
    old=(0, 0),
    new=(0, 4),
)

LOG_APIS = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    API_VERSIONS,
    INIT_PRODUCER_ID,
    CREATE_TOPICS,
    DELETE_TOPICS,
    CREATE_PARTITIONS,
    OFFSET_FOR_LEADER_EPOCH,
)
