"""Schemas of the requests that every broker answers, whether it coordinates a group or not. Pure.

Versions later than ``highest`` give a consumer of registered brokers (0.8 to 3.9) nothing that it uses.
``requests.py`` and ``data_plane/fetch_response.py`` write and read a fetch without its schema, because it is the
hot path.
"""

from __future__ import annotations

from zkconsumer.kafka.api_schema import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    ApiSchema,
    Field,
    by_topic,
    many,
    throttle_time,
)

_ERROR = Field("error_code", INT16)
_PARTITION = Field("partition_index", INT32)
_TOPIC = Field("topic", STRING)
_NAME = Field("name", STRING)
_REPLICA = Field("replica_id", INT32)


FETCH = ApiSchema(
    *(1, "Fetch", 0, 11, 12),
    request=(
        *(_REPLICA, Field("max_wait_ms", INT32), Field("min_bytes", INT32), Field("max_bytes", INT32, 3)),
        *(Field("isolation_level", INT8, 4), Field("session_id", INT32, 7), Field("session_epoch", INT32, 7)),
        by_topic(
            _TOPIC,
            *(Field("partition", INT32), Field("current_leader_epoch", INT32, 9, default=-1)),
            *(Field("fetch_offset", INT64), Field("log_start_offset", INT64, 5, default=-1)),
            Field("partition_max_bytes", INT32),
        ),
        Field("forgotten_topics_data", (_TOPIC, Field("partitions", INT32, many=True)), 7, default=(), many=True),
        Field("rack_id", STRING, 11, default=""),
    ),
    response=(
        *(throttle_time(1), Field("error_code", INT16, 7, default=0), Field("session_id", INT32, 7, default=0)),
        many(
            "responses",
            _TOPIC,
            many(
                "partitions",
                *(_PARTITION, _ERROR, Field("high_watermark", INT64)),
                *(Field("last_stable_offset", INT64, 4, default=-1), Field("log_start_offset", INT64, 5)),
                Field(
                    "aborted_transactions",
                    (Field("producer_id", INT64), Field("first_offset", INT64)),
                    4,
                    default=None,
                    many=True,
                ),
                Field("preferred_read_replica", INT32, 11, default=-1),
                Field("records", BYTES),
            ),
        ),
    ),
)

LIST_OFFSETS = ApiSchema(
    *(2, "ListOffsets", 0, 3, 6),
    request=(
        *(_REPLICA, Field("isolation_level", INT8, 2, default=0)),
        # version 0 answers with a list, of which one entry is enough
        by_topic(_NAME, _PARTITION, Field("timestamp", INT64), Field("max_num_offsets", INT32, 0, 0, default=1)),
    ),
    response=(
        throttle_time(2),
        by_topic(
            _NAME,
            *(_PARTITION, _ERROR, Field("old_style_offsets", INT64, 0, 0, many=True)),
            *(Field("timestamp", INT64, 1), Field("offset", INT64, 1)),
        ),
    ),
)

METADATA = ApiSchema(
    *(3, "Metadata", 0, 5, 9),
    request=(many("topics", _NAME), Field("allow_auto_topic_creation", BOOL, 4, default=False)),
    response=(
        throttle_time(3),
        many(
            "brokers",
            *(Field("node_id", INT32), Field("host", STRING), Field("port", INT32)),
            Field("rack", STRING, 1, default=None),
        ),
        *(Field("cluster_id", STRING, 2, default=None), Field("controller_id", INT32, 1, default=-1)),
        many(
            "topics",
            *(_ERROR, _NAME, Field("is_internal", BOOL, 1, default=False)),
            many(
                "partitions",
                *(_ERROR, _PARTITION, Field("leader_id", INT32)),
                *(Field("replica_nodes", INT32, many=True), Field("isr_nodes", INT32, many=True)),
                Field("offline_replicas", INT32, 5, default=(), many=True),
            ),
        ),
    ),
)

API_VERSIONS = ApiSchema(
    *(18, "ApiVersions", 0, 0, 3),
    request=(),
    response=(
        _ERROR,
        many("api_keys", Field("api_key", INT16), Field("min_version", INT16), Field("max_version", INT16)),
    ),
)

SASL_HANDSHAKE = ApiSchema(
    *(17, "SaslHandshake", 0, 1, 2),
    request=(Field("mechanism", STRING),),
    response=(_ERROR, Field("mechanisms", STRING, many=True)),
)

SASL_AUTHENTICATE = ApiSchema(
    *(36, "SaslAuthenticate", 0, 1, 2),
    request=(Field("auth_bytes", BYTES),),
    response=(
        *(_ERROR, Field("error_message", STRING, default=None), Field("auth_bytes", BYTES)),
        Field("session_lifetime_ms", INT64, 1, default=0),
    ),
)

OFFSET_FOR_LEADER_EPOCH = ApiSchema(
    *(23, "OffsetForLeaderEpoch", 0, 3, 4),
    request=(
        Field("replica_id", INT32, 3),
        by_topic(
            _TOPIC, Field("partition", INT32), Field("current_leader_epoch", INT32, 2), Field("leader_epoch", INT32)
        ),
    ),
    response=(
        throttle_time(2),
        by_topic(
            _TOPIC,
            *(_ERROR, Field("partition", INT32), Field("leader_epoch", INT32, 1, default=-1)),
            Field("end_offset", INT64),
        ),
    ),
)

DESCRIBE_CONFIGS = ApiSchema(
    *(32, "DescribeConfigs", 0, 1, 4),
    request=(
        many(
            "resources",
            *(Field("resource_type", INT8), Field("resource_name", STRING)),
            Field("configuration_keys", STRING, many=True),
        ),
        Field("include_synonyms", BOOL, 1, default=False),
    ),
    response=(
        throttle_time(0),
        many(
            "results",
            *(_ERROR, Field("error_message", STRING, default=None)),
            *(Field("resource_type", INT8), Field("resource_name", STRING)),
            many(
                "configs",
                *(_NAME, Field("value", STRING, default=None), Field("read_only", BOOL)),
                *(Field("is_default", BOOL, 0, 0), Field("config_source", INT8, 1, default=-1)),
                Field("is_sensitive", BOOL),
                Field(
                    "synonyms",
                    (_NAME, Field("value", STRING, default=None), Field("source", INT8)),
                    1,
                    default=(),
                    many=True,
                ),
            ),
        ),
    ),
)

BROKER_MESSAGES = (
    *(FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE),
    *(OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS),
)
"""All requests of this module."""
