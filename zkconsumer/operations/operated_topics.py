"""Reads topics and logs that a group's snapshot does not have, and offsets by time. One thread at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import replace

from zkconsumer.errors import BrokerError, BrokerUnavailableError, RegistryError
from zkconsumer.fetch.fetcher import EARLIEST, LATEST
from zkconsumer.fetch.message_times import message_times
from zkconsumer.fetch.offset_lookup import OffsetLookup
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.cluster_metadata import ClusterSeen, cluster_of
from zkconsumer.model import TopicPartition
from zkconsumer.operations.cluster_connection import ClusterConnection
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, TopicNode
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.wiring import fetch_settings

_NO_CREATION = 4  # the version of Metadata that creates no topic


def with_topics(connection: ClusterConnection, snapshot: GroupSnapshot, topics: Collection[str]) -> GroupSnapshot:
    """Return the snapshot with these topics and their logs too, if they exist. Raises RegistryError, BrokerError."""
    missing = set(topics) - snapshot.topics.keys()
    if not missing:
        return snapshot
    deadline = Deadline(connection.timeout)
    seen = _cluster(connection, missing, deadline)
    found: dict[str, list[int]] = {}
    for tp in seen.partitions:
        if tp.topic in missing:
            found.setdefault(tp.topic, []).append(tp.partition)
    known = {topic: TopicNode(tuple(sorted(numbers))) for topic, numbers in found.items()}
    for topic in missing - known.keys():
        code = seen.errors.get(topic, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        if code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            known[topic] = TopicNode((), problem=error_codes.name(code))
    wanted = [TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers]
    ends = offsets_by_time(connection, dict.fromkeys(wanted, LATEST))
    starts = offsets_by_time(connection, dict.fromkeys(wanted, EARLIEST))
    logs = {tp: LogState(starts[tp], ends[tp], seen.partitions[tp].leader) for tp in wanted}
    return replace(snapshot, topics={**snapshot.topics, **known}, logs={**snapshot.logs, **logs})


def _cluster(connection: ClusterConnection, topics: Collection[str], deadline: Deadline) -> ClusterSeen:
    trouble: BrokerError | None = None
    for endpoint in connection.brokers(deadline):
        try:
            with closing(connection.connected(endpoint, deadline)) as channel:
                # older brokers create a topic that is asked for by name
                safe = channel.versions.get("Metadata", 0) >= _NO_CREATION
                return cluster_of(channel, topics if safe else None, deadline)
        except BrokerError as error:
            trouble = trouble or error
    raise trouble or BrokerUnavailableError("no broker is known")


def offsets_by_time(
    connection: ClusterConnection, times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Return the offset of the first message that is not older than a time, None if there is none.

    A time is in milliseconds since 1970; -1 stands for the log's end, -2 for its beginning. Raises BrokerError.
    """
    settings = replace(fetch_settings(connection.config), security=connection.security)
    lookup = OffsetLookup(settings, connection.brokers)
    return lookup.find(times, Deadline(connection.timeout)) if times else {}


def times_of(
    connection: ClusterConnection, snapshot: GroupSnapshot, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the timestamps (ms since 1970) of the messages at these offsets, without unknown ones.

    They are for people only, so a broker that does not answer is no error.
    """
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, offset in offsets.items():
        log = snapshot.logs.get(tp)
        if log is not None and log.leader is not None and log.end is not None and offset < log.end:
            by_leader.setdefault(log.leader, {})[tp] = offset
    deadline = Deadline(connection.timeout)
    found: dict[TopicPartition, int] = {}
    with suppress(BrokerError, RegistryError):
        endpoints = {endpoint.broker_id: endpoint for endpoint in connection.brokers(deadline)}
        for leader in by_leader.keys() & endpoints.keys():
            with suppress(BrokerError), closing(connection.connected(endpoints[leader], deadline)) as channel:
                found.update(message_times(channel, by_leader[leader], deadline))
    return {tp: time for tp, time in found.items() if time >= 0}
