"""Reads a group from the brokers: offsets, members, and the logs of the partitions.

Only as many requests as there are leaders are needed for the logs. Several brokers are asked at the same time, by
threads that end with the call.

Reading creates no topic if ZooKeeper is known. Brokers before 0.11 create a topic that is asked for by name, so they
are asked for all. Brokers create the topic of offsets for the first search of a coordinator, so there is no search if
ZooKeeper does not have that topic. Without ZooKeeper there is a search, as in Kafka's own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from time import sleep
from typing import TypeVar

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.cluster.offset_lookup import log_spans
from zkconsumer.core.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from zkconsumer.errors import (
    BrokerError,
    BrokerResponseError,
    CoordinatorUnavailableError,
    MalformedMemberError,
    ZkConsumerError,
)
from zkconsumer.fetch.message_lookup import message_times
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.kafka.cluster_metadata import ClusterSeen
from zkconsumer.kafka.coordinator_client import OffsetClient
from zkconsumer.kafka.group_channel import GroupChannel, GroupDescription
from zkconsumer.kafka.group_schemas import DescribedMember, ListedGroup, OffsetAndMetadata
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.operations.balance_reader import note_in
from zkconsumer.operations.group_snapshot import (
    BrokerNode,
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    KafkaOffset,
    LogState,
    TopicNode,
    wanted_topics,
)
from zkconsumer.runtime.deadline import Deadline

AT_ONCE = 8
"""Brokers that are asked at the same time."""

COORDINATOR_WITHIN, COORDINATOR_SHARE = 60.0, 0.6
"""Seconds for the coordinator, and its part of the time that is left: the logs come after it."""
PATIENCE = 1.0
"""Seconds to wait for a coordinator that has just begun or moved."""

_PAUSE = 0.1
_COORDINATES = 2  # the node version of brokers of 0.9, the first that coordinate groups
_UNKNOWN_TOPIC = error_codes.UNKNOWN_TOPIC_OR_PARTITION
_ALL_OFFSETS = 2  # the version of OffsetFetch that can ask for all offsets

T = TypeVar("T")


class BrokersReader:
    """Fills the part of a snapshot that comes from the brokers.

    Arguments: ``endpoints`` are the live brokers' addresses. One thread calls.
    """

    def __init__(self, client: ClusterClient, endpoints: Sequence[Endpoint], deadline: Deadline) -> None:
        self._client = client
        self._endpoints = {endpoint.broker_id: endpoint for endpoint in endpoints}
        self._deadline = deadline
        self._coordinating = all(endpoint.generation >= _COORDINATES for endpoint in endpoints)

    def list_groups(self) -> tuple[list[ListedGroup], dict[str, str]]:
        """Return the groups of all brokers, and by broker why it did not tell. Raises BrokerError if none told."""

        def ask(endpoint: Endpoint) -> Sequence[ListedGroup]:
            with closing(GroupChannel(self._client.channels(endpoint))) as channel:
                channel.connect(self._deadline)
                return channel.list_groups(self._deadline)

        told, failed = self._each(self._endpoints.values(), ask)
        if not told and failed:
            raise next(iter(failed.values()))
        return (
            [group for groups in told.values() for group in groups],
            {f"broker {endpoint.broker_id}": str(error) for endpoint, error in failed.items()},
        )

    def read(self, draft: GroupSnapshot, *, offsets_topic: bool | None, times: bool) -> None:
        """Read everything, and note failed requests as problems. Raises BrokerError if no broker answers.

        Arguments: ``offsets_topic`` tells whether the topic of offsets exists, None if that is unknown; ``times`` also
        reads the timestamps of the messages at the committed offsets.
        """
        if offsets_topic is False:  # no group ever used it
            draft.kafka_offsets, draft.brokers_group = {}, BrokersGroup("Dead")
        else:
            self._read_group(draft)
        seen = self._cluster(wanted_topics(draft))
        for broker, (host, port) in seen.brokers.items():
            self._endpoints.setdefault(broker, self._client.endpoint(broker, host, port))
            draft.brokers.setdefault(broker, BrokerNode(host, port))
        self._take_topics(draft, seen)
        self._read_logs(draft, seen, times=times)

    # ---- the group

    def _read_group(self, draft: GroupSnapshot) -> None:
        group, deadline = draft.group, Deadline(self._deadline.bounded(COORDINATOR_WITHIN) * COORDINATOR_SHARE)
        endpoints = list(self._endpoints.values())
        coordinator = self._client.group_client(group, lambda _: endpoints, offsets_only=not self._coordinating)
        with closing(coordinator) as client:
            try:
                if self._coordinating:
                    draft.brokers_group = self._ask(
                        client, lambda channel: _described(channel, group, deadline), deadline
                    )
                else:
                    draft.brokers_group = BrokersGroup("Dead")
            except ZkConsumerError as error:
                draft.problem(f"brokers' group {group!a}", error)
            try:
                stored = self._ask(client, lambda channel: self._stored(channel, group, deadline), deadline)
                draft.kafka_offsets = {
                    tp: _offset_of(one) for tp, one in stored.items() if one.offset >= 0 or one.error
                }
            except ZkConsumerError as error:
                draft.problem(f"offsets of group {group!a} in Kafka", error)

    def _ask(self, client: OffsetClient, question: Callable[[GroupChannel], T], deadline: Deadline) -> T:
        """Ask the coordinator, again while it is just becoming one. Raises BrokerError."""
        patience = Deadline(deadline.bounded(PATIENCE))
        while True:
            try:
                return client.ask(question, deadline)
            except (CoordinatorUnavailableError, BrokerResponseError) as error:
                passing = not isinstance(error, BrokerResponseError) or error_codes.retriable(error.code)
                if not passing or patience.expired:
                    raise
                sleep(patience.bounded(_PAUSE))

    def _stored(
        self, channel: GroupChannel, group: str, deadline: Deadline
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        wanted = None
        if channel.versions["OffsetFetch"] < _ALL_OFFSETS:
            wanted = self._cluster(None).partitions.keys()
        return channel.offsets(group, wanted, deadline)

    # ---- topics and logs

    def _cluster(self, topics: Collection[str] | None) -> ClusterSeen:
        return self._client.describe(topics, self._deadline, self._endpoints.values())

    def _take_topics(self, draft: GroupSnapshot, seen: ClusterSeen) -> None:
        numbers: dict[str, list[int]] = {}
        for tp in seen.partitions:
            numbers.setdefault(tp.topic, []).append(tp.partition)
        for topic in wanted_topics(draft) - draft.topics.keys():
            if topic in numbers:
                draft.topics[topic] = TopicNode(tuple(sorted(numbers[topic])))
            elif seen.errors.get(topic, _UNKNOWN_TOPIC) != _UNKNOWN_TOPIC:
                draft.problem(f"topic {topic!a}", f"the brokers answer {error_codes.name(seen.errors[topic])}")

    def _read_logs(self, draft: GroupSnapshot, seen: ClusterSeen, *, times: bool) -> None:
        by_leader: dict[Endpoint, list[TopicPartition]] = {}
        for topic, node in draft.topics.items():
            for number in node.partitions:
                if (tp := TopicPartition(topic, number)) not in seen.partitions:
                    draft.logs[tp] = LogState(problem="the brokers do not know it (yet)")
        for tp, one in seen.partitions.items():
            if tp.topic not in draft.topics:
                continue
            problem = (
                "" if not one.error or one.error == error_codes.REPLICA_NOT_AVAILABLE else error_codes.name(one.error)
            )
            draft.logs[tp] = LogState(leader=one.leader, replicas=one.replicas, in_sync=one.in_sync, problem=problem)
            if one.leader is not None and one.leader in self._endpoints:
                by_leader.setdefault(self._endpoints[one.leader], []).append(tp)
        offsets = {tp: draft.committed(tp) for tp in draft.partitions()} if times else {}
        committed = {tp: offset for tp, offset in offsets.items() if offset is not None}

        def ask(endpoint: Endpoint) -> None:
            with closing(self._client.channels.connected(endpoint, self._deadline)) as channel:
                self._ask_leader(draft, channel, by_leader[endpoint], committed)

        _, failed = self._each(by_leader, ask)
        for endpoint, error in failed.items():
            draft.problem(f"broker {endpoint.broker_id}", error)
            for tp in by_leader[endpoint]:
                if draft.logs[tp].end is None:
                    draft.logs[tp] = replace(draft.logs[tp], problem=f"broker {endpoint.broker_id} did not answer")

    def _ask_leader(
        self,
        draft: GroupSnapshot,
        channel: BrokerChannel,
        partitions: Sequence[TopicPartition],
        committed: Mapping[TopicPartition, int],
    ) -> None:
        """Fill the logs of partitions with the same leader. Several threads do this at once, for other partitions."""
        for tp, span in log_spans(channel, partitions, self._deadline).items():
            draft.logs[tp] = replace(draft.logs[tp], start=span.start, end=span.end, problem=span.problem)
        wanted = {}
        for tp in partitions:
            offset, log = committed.get(tp), draft.logs[tp]
            if offset is not None and log.start is not None and log.end is not None and log.start <= offset < log.end:
                wanted[tp] = offset
        for tp, time in message_times(channel, wanted, self._deadline).items():
            draft.logs[tp] = replace(draft.logs[tp], message_time=time)

    def _each(
        self, endpoints: Collection[Endpoint], ask: Callable[[Endpoint], T]
    ) -> tuple[dict[Endpoint, T], dict[Endpoint, BrokerError]]:
        """Ask several brokers at the same time. Returns the answers and the errors."""
        told: dict[Endpoint, T] = {}
        failed: dict[Endpoint, BrokerError] = {}

        def one(endpoint: Endpoint) -> None:
            try:
                told[endpoint] = ask(endpoint)
            except BrokerError as error:
                failed[endpoint] = error

        if len(endpoints) <= 1:
            for endpoint in endpoints:
                one(endpoint)
            return told, failed
        with ThreadPoolExecutor(min(AT_ONCE, len(endpoints)), "zkconsumer-snapshot") as pool:
            for done in [pool.submit(one, endpoint) for endpoint in endpoints]:
                done.result()
        return told, failed


def _described(channel: GroupChannel, group: str, deadline: Deadline) -> BrokersGroup:
    found = _group_of(channel.describe([group], deadline)[group], channel.endpoint)
    if found.state != "Dead":
        return found
    # a broker answers that request for a group of another protocol as for an unknown one
    other = channel.describe_assigned(group, deadline)
    if other is None:
        return found
    where = channel.endpoint
    return BrokersGroup(
        other.state,
        other.assignor,
        coordinator=(where.broker_id, where.host, where.port),
        members=tuple(
            BrokersMember(one.member_id, one.client_id, one.host, one.instance_id, one.assignment, one.topics)
            for one in other.members
        ),
        group_type="Consumer",
    )


def _group_of(described: GroupDescription, where: Endpoint) -> BrokersGroup:
    return BrokersGroup(
        described.state,
        described.protocol,
        described.protocol_type,
        (where.broker_id, where.host, where.port),
        tuple(member_of(one, described.protocol_type) for one in described.members),
        "" if described.state == "Dead" else "Classic",
    )


def member_of(one: DescribedMember, protocol_type: str) -> BrokersMember:
    """Return a described member. The assignment is None if only members of its kind can decode it."""
    assigned: tuple[TopicPartition, ...] | None = None
    topics: tuple[str, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            assigned = decode_assignment(one.assignment, one.member_id).partitions
        except MalformedMemberError:
            assigned = None
        try:
            # a group that rebalances shows no subscriptions
            topics = decode_subscription(one.metadata, one.member_id).topics if one.metadata else ()
        except MalformedMemberError:
            topics = ()
    return BrokersMember(one.member_id, one.client_id, one.host, one.instance_id, assigned, topics)


def _offset_of(stored: OffsetAndMetadata) -> KafkaOffset:
    if stored.error:
        return KafkaOffset(None, problem=error_codes.name(stored.error))
    return KafkaOffset(stored.offset, stored.metadata, stored.leader_epoch, note=note_in(stored.metadata))
