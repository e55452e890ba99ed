"""The requests that the fake brokers know: the fields of request and response, and the versions that are answered.

Pure. Names of fields are Kafka's own in snake case. Versions end before topics are named by ids, which the fake lacks.
The client does not share these definitions (see ``wire_types``).
"""

from __future__ import annotations

import re
from collections import deque

from zkconsumer.testing.wire_types import (
    BOOLEAN,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Api,
    Array,
    Body,
    Struct,
    WireField,
    WireType,
)

_DEFINITIONS = """
Produce 0, flexible 9+, Kafka 1.1: 0-5, Kafka 3.9: 0-8
    request:
        transactional_id string? 3+, acks int16, timeout_ms int32
        topics:
            name string
            partitions:
                index int32, records bytes?
    response:
        responses:
            name string
            partitions:
                index int32, error_code int16, base_offset int64=-1, log_append_time_ms int64=-1 2+
                log_start_offset int64=-1 5+
                record_errors 8+:
                    batch_index int32, message string?
                error_message string? 8+
        throttle_time_ms int32 1+

Fetch 1, flexible 12+, Kafka 1.1: 4-7, Kafka 3.9: 4-11
    request:
        replica_id int32=-1, max_wait_ms int32, min_bytes int32, max_bytes int32=2147483647 3+
        isolation_level int8 4+, session_id int32 7+, session_epoch int32=-1 7+
        topics:
            topic string
            partitions:
                partition int32, current_leader_epoch int32=-1 9+, fetch_offset int64
                log_start_offset int64=-1 5+, partition_max_bytes int32
        forgotten_topics 7+:
            topic string, partitions [int32]
        rack_id string 11+
    response:
        throttle_time_ms int32 1+, error_code int16 7+, session_id int32 7+
        responses:
            topic string
            partitions:
                partition_index int32, error_code int16, high_watermark int64=-1
                last_stable_offset int64=-1 4+, log_start_offset int64=-1 5+
                aborted_transactions? 4+:
                    producer_id int64, first_offset int64
                preferred_read_replica int32=-1 11+, records bytes

ListOffsets 2, flexible 6+, Kafka 1.1: 1-2, Kafka 3.9: 1-6
    request:
        replica_id int32=-1, isolation_level int8 2+
        topics:
            name string
            partitions:
                partition_index int32, current_leader_epoch int32=-1 4+, timestamp int64
    response:
        throttle_time_ms int32 2+
        topics:
            name string
            partitions:
                partition_index int32, error_code int16, timestamp int64=-1, offset int64=-1
                leader_epoch int32=-1 4+

Metadata 3, flexible 9+, Kafka 1.1: 0-5, Kafka 3.9: 0-9
    request:
        topics?:
            name string
        allow_auto_topic_creation bool 4+, include_cluster_authorized_operations bool 8+
        include_topic_authorized_operations bool 8+
    response:
        throttle_time_ms int32 3+
        brokers:
            node_id int32, host string, port int32, rack string? 1+
        cluster_id string? 2+, controller_id int32=-1 1+
        topics:
            error_code int16, name string, is_internal bool 1+
            partitions:
                error_code int16, partition_index int32, leader_id int32=-1
                leader_epoch int32=-1 7+, replica_nodes [int32], isr_nodes [int32]
                offline_replicas [int32] 5+
            topic_authorized_operations int32=-2147483648 8+
        cluster_authorized_operations int32=-2147483648 8+

ApiVersions 18, flexible 3+, Kafka 1.1: 0-1, Kafka 3.9: 0-3
    request:
        client_software_name string 3+, client_software_version string 3+
    response:
        error_code int16
        api_keys:
            api_key int16, min_version int16, max_version int16
        throttle_time_ms int32 1+

InitProducerId 22, flexible 2+, Kafka 1.1: 0-0, Kafka 3.9: 0-2
    request:
        transactional_id string?, transaction_timeout_ms int32
    response:
        throttle_time_ms int32, error_code int16, producer_id int64=-1, producer_epoch int16=-1

CreateTopics 19, flexible 5+, Kafka 1.1: 0-2, Kafka 3.9: 0-5
    request:
        topics:
            name string, num_partitions int32=1, replication_factor int16=1
            assignments:
                partition_index int32, broker_ids [int32]
            configs:
                name string, value string?
        timeout_ms int32, validate_only bool 1+
    response:
        throttle_time_ms int32 2+
        topics:
            name string, error_code int16, error_message string? 1+, num_partitions int32=-1 5+
            replication_factor int16=-1 5+, configs [int8] 5+

DeleteTopics 20, flexible 4+, Kafka 1.1: 0-1, Kafka 3.9: 0-4
    request:
        topic_names [string], timeout_ms int32
    response:
        throttle_time_ms int32 1+
        responses:
            name string, error_code int16

CreatePartitions 37, flexible 2+, Kafka 1.1: 0-0, Kafka 3.9: 0-2
    request:
        topics:
            name string, count int32
            assignments?:
                broker_ids [int32]
        timeout_ms int32, validate_only bool
    response:
        throttle_time_ms int32
        results:
            name string, error_code int16, error_message string?

OffsetForLeaderEpoch 23, flexible 4+, Kafka 1.1: 0-0, Kafka 3.9: 0-4
    request:
        replica_id int32=-2 3+
        topics:
            topic string
            partitions:
                partition int32, current_leader_epoch int32=-1 2+, leader_epoch int32=-1
    response:
        throttle_time_ms int32 2+
        topics:
            topic string
            partitions:
                error_code int16, partition int32, leader_epoch int32=-1 1+, end_offset int64=-1

FindCoordinator 10, flexible 3+, Kafka 1.1: 0-1, Kafka 3.9: 0-3
    request:
        key string, key_type int8 1+
    response:
        throttle_time_ms int32 1+, error_code int16, error_message string? 1+, node_id int32=-1
        host string, port int32=-1

JoinGroup 11, flexible 6+, Kafka 1.1: 0-2, Kafka 3.9: 0-9
    request:
        group_id string, session_timeout_ms int32, rebalance_timeout_ms int32=-1 1+
        member_id string, group_instance_id string? 5+, protocol_type string
        protocols:
            name string, metadata bytes
        reason string? 8+
    response:
        throttle_time_ms int32 2+, error_code int16, generation_id int32=-1
        protocol_type string? 7+, protocol_name string, leader string, skip_assignment bool 9+
        member_id string
        members:
            member_id string, group_instance_id string? 5+, metadata bytes

SyncGroup 14, flexible 4+, Kafka 1.1: 0-1, Kafka 3.9: 0-5
    request:
        group_id string, generation_id int32=-1, member_id string, group_instance_id string? 3+
        protocol_type string? 5+, protocol_name string? 5+
        assignments:
            member_id string, assignment bytes
    response:
        throttle_time_ms int32 1+, error_code int16, protocol_type string? 5+
        protocol_name string? 5+, assignment bytes

Heartbeat 12, flexible 4+, Kafka 1.1: 0-1, Kafka 3.9: 0-4
    request:
        group_id string, generation_id int32=-1, member_id string, group_instance_id string? 3+
    response:
        throttle_time_ms int32 1+, error_code int16

LeaveGroup 13, flexible 4+, Kafka 1.1: 0-1, Kafka 3.9: 0-5
    request:
        group_id string, member_id string 0-2
        members 3+:
            member_id string, group_instance_id string?, reason string? 5+
    response:
        throttle_time_ms int32 1+, error_code int16
        members 3+:
            member_id string, group_instance_id string?, error_code int16

DescribeGroups 15, flexible 5+, Kafka 1.1: 0-1, Kafka 3.9: 0-5
    request:
        groups [string], include_authorized_operations bool 3+
    response:
        throttle_time_ms int32 1+
        groups:
            error_code int16, group_id string, group_state string, protocol_type string
            protocol_data string
            members:
                member_id string, group_instance_id string? 4+, client_id string, client_host string
                member_metadata bytes, member_assignment bytes
            authorized_operations int32=-2147483648 3+

ListGroups 16, flexible 3+, Kafka 1.1: 0-1, Kafka 3.9: 0-4
    request:
        states_filter [string] 4+
    response:
        throttle_time_ms int32 1+, error_code int16
        groups:
            group_id string, protocol_type string, group_state string 4+

DeleteGroups 42, flexible 2+, Kafka 1.1: 0-0, Kafka 3.9: 0-2
    request:
        groups_names [string]
    response:
        throttle_time_ms int32
        results:
            group_id string, error_code int16

OffsetCommit 8, flexible 8+, Kafka 1.1: 1-3, Kafka 3.9: 1-8
    request:
        group_id string, generation_id int32=-1 1+, member_id string 1+
        group_instance_id string? 7+, retention_time_ms int64=-1 2-4
        topics:
            name string
            partitions:
                partition_index int32, committed_offset int64, commit_timestamp int64=-1 1-1
                committed_leader_epoch int32=-1 6+, committed_metadata string?
    response:
        throttle_time_ms int32 3+
        topics:
            name string
            partitions:
                partition_index int32, error_code int16

OffsetFetch 9, flexible 6+, Kafka 1.1: 1-3, Kafka 3.9: 1-7
    request:
        group_id string
        topics:
            name string, partition_indexes [int32]
        require_stable bool 7+
    response:
        throttle_time_ms int32 3+
        topics:
            name string
            partitions:
                partition_index int32, committed_offset int64=-1, committed_leader_epoch int32=-1 5+
                metadata string, error_code int16
        error_code int16 2+
"""
"""One block for each request: its name and key, its first flexible version, and the versions that each release answers.

A field is written ``name type``. ``[type]`` is a list, and a name with a colon is a list of the structures below it.
``?`` means that the default is null, ``=`` gives another default than zero or empty, and ``3+`` or ``2-4`` tells the
versions that carry the field.
"""

_TYPES: dict[str, tuple[WireType, object]] = {
    "bool": (BOOLEAN, False),
    "int8": (INT8, 0),
    "int16": (INT16, 0),
    "int32": (INT32, 0),
    "int64": (INT64, 0),
    "string": (STRING, ""),
    "bytes": (BYTES, b""),
}
_HEAD = re.compile(r"(\w+) (\d+), flexible (\d+)\+, Kafka 1\.1: (\d+)-(\d+), Kafka 3\.9: (\d+)-(\d+)")
_FIELD = re.compile(
    r"(?P<name>\w+)(?: (?P<list>\[)?(?P<type>[a-z]\w+)\]?)?(?P<null>\?)?(?:=(?P<default>-?\d+))?"
    r"(?: (?P<since>\d+)(?:\+|-(?P<until>\d+)))?(?P<structures>:)?"
)


def _struct(lines: deque[str], indent: str) -> Struct:
    """Parse the fields with this indentation, and the deeper fields below them."""
    fields = []
    while lines and lines[0].startswith(indent):
        for definition in lines.popleft().strip().split(", "):
            found = _FIELD.fullmatch(definition)
            assert found is not None, definition
            kind, default = (Array(_struct(lines, indent + "    ")), ()) if found["structures"] else _type(found)
            since, until = int(found["since"] or 0), int(found["until"] or 999)
            fields.append(WireField(found["name"], kind, since, until, None if found["null"] else default))
    return Struct(*fields)


def _type(field: re.Match[str]) -> tuple[WireType, object]:
    kind, default = _TYPES[field["type"]]
    if field["list"]:
        return Array(kind), ()
    return kind, int(field["default"]) if field["default"] else default


def _api(block: str) -> Api:
    head, *lines = block.strip().splitlines()
    found = _HEAD.fullmatch(head)
    assert found is not None, head
    name, (key, flexible, *versions) = found[1], map(int, found.groups()[1:])
    split = lines.index("    response:")
    request, response = (_struct(deque(part), " " * 8) for part in (lines[1:split], lines[split + 1 :]))
    return Api(key, name, request, response, flexible, (versions[0], versions[1]), (versions[2], versions[3]))


APIS: dict[str, Api] = {api.name: api for api in map(_api, _DEFINITIONS.strip().split("\n\n"))}
"""All requests by name."""


def supported(modern: bool) -> list[Body]:
    """Return the versions that Kafka 3.9 (``modern``) or 1.1 answers, as ApiVersions lists them."""
    found = []
    for api in sorted(APIS.values(), key=lambda api: api.key):
        lowest, highest = api.versions(modern)
        found.append({"api_key": api.key, "min_version": lowest, "max_version": highest})
    return found
