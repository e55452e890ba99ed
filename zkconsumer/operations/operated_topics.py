"""Reads topics and logs that a group's snapshot does not have, and offsets by time. One thread at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import replace

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.errors import BrokerError, RegistryError
from zkconsumer.fetch.message_times import message_times
from zkconsumer.kafka import EARLIEST, LATEST, error_codes
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, TopicNode
from zkconsumer.runtime.deadline import Deadline


def with_topics(connection: ClusterClient, snapshot: GroupSnapshot, topics: Collection[str]) -> GroupSnapshot:
    """Return the snapshot with these topics and their logs too, if they exist. Raises RegistryError, BrokerError."""
    missing = set(topics) - snapshot.topics.keys()
    if not missing:
        return snapshot
    deadline = Deadline(connection.timeout)
    seen = connection.describe(missing, deadline)
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


def offsets_by_time(connection: ClusterClient, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """Return the offset of the first message that is not older than a time, None if there is none.

    A time is in milliseconds since 1970; -1 stands for the log's end, -2 for its beginning. Raises BrokerError.
    """
    return connection.lookup.find(times, Deadline(connection.timeout)) if times else {}


def times_of(
    connection: ClusterClient, snapshot: GroupSnapshot, offsets: Mapping[TopicPartition, int]
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
            with suppress(BrokerError), closing(connection.channels.connected(endpoints[leader], deadline)) as channel:
                found.update(message_times(channel, by_leader[leader], deadline))
    return {tp: time for tp, time in found.items() if time >= 0}
