"""Reads groups from the brokers: offsets, members, and the logs of the partitions.

All groups of a call are read together: a leader is asked once for the logs of its partitions, a coordinator once for a
hundred of its groups. Several brokers are asked at the same time, by threads that end with the call.

Reading creates no topic if ZooKeeper is known. Brokers before 0.11 create a topic that is asked for by name, so they
are asked for all. Brokers create the topic of offsets for the first search of a coordinator, so there is no search if
ZooKeeper does not have that topic. Without ZooKeeper there is a search, as in Kafka's own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from threading import Thread
from time import sleep
from typing import TypeVar

from zkconsumer.assignors.assignor import java_hash
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
from zkconsumer.fetch.message_lookup import NO_MESSAGE, message_times
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
GROUPS_AT_ONCE = 100
"""Groups in one request to their coordinator."""
TIMES_WITHIN, TIMES_SHARE = 60.0, 0.7
"""Seconds for the times of messages, and their part of the time that is left."""
OFFSETS_TOPIC = "__consumer_offsets"

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

    Arguments: ``endpoints`` are the live brokers' addresses; ``times`` are the known times of messages. One thread
    calls.
    """

    def __init__(
        self,
        client: ClusterClient,
        endpoints: Sequence[Endpoint],
        deadline: Deadline,
        times: MessageTimes | None = None,
    ) -> None:
        self._client = client
        self._endpoints = {endpoint.broker_id: endpoint for endpoint in endpoints}
        self._deadline = deadline
        self._times = MessageTimes() if times is None else times
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

    def read(self, drafts: Sequence[GroupSnapshot], *, offsets_topic: bool | None, times: bool) -> None:
        """Read all of these groups, and note failed requests as problems. Raises BrokerError if no broker answers.

        Arguments: ``offsets_topic`` tells whether the topic of offsets exists, None if that is unknown; ``times`` also
        reads the timestamps of the messages at the committed offsets.
        """
        if offsets_topic is False:  # no group ever used it
            for draft in drafts:
                draft.kafka_offsets, draft.brokers_group = {}, BrokersGroup("Dead")
        elif len(drafts) == 1:
            self._read_group(drafts[0])
        elif not self._coordinating:
            self._read_alone(drafts)
        else:
            self._read_groups({draft.group: draft for draft in drafts})
        seen = self._cluster(set().union(*map(wanted_topics, drafts)))
        for broker, (host, port) in seen.brokers.items():
            self._endpoints.setdefault(broker, self._client.endpoint(broker, host, port))
        numbers: dict[str, list[int]] = {}
        for tp in seen.partitions:
            numbers.setdefault(tp.topic, []).append(tp.partition)
        for draft in drafts:
            for broker, (host, port) in seen.brokers.items():
                draft.brokers.setdefault(broker, BrokerNode(host, port))
            self._take_topics(draft, seen, numbers)
        self._read_logs(drafts, seen, times=times)

    # ---- many groups

    def _read_groups(self, drafts: Mapping[str, GroupSnapshot]) -> None:
        """Read what the brokers keep of these groups: each broker lists the groups that it coordinates.

        A group that no broker lists has nothing there. While a broker does not answer, this is known only of a group
        whose coordinator answers. Brokers before 0.10.2 do not list all groups with offsets, so each group is searched.
        """
        alone: set[str] = set()
        seconds, deadline = self._deadline.bounded(COORDINATOR_WITHIN), self._for_coordinators()

        def ask(endpoint: Endpoint) -> None:
            with closing(GroupChannel(self._client.channels(endpoint))) as channel:
                channel.connect(deadline)
                if channel.versions["OffsetFetch"] < _ALL_OFFSETS:
                    alone.update(drafts)
                    return
                ours = sorted({one.group for one in channel.list_groups(deadline)} & drafts.keys())
                for begin in range(0, len(ours), GROUPS_AT_ONCE):
                    part = ours[begin : begin + GROUPS_AT_ONCE]
                    try:
                        _take_groups(channel, {name: drafts[name] for name in part}, deadline)
                    except BrokerResponseError:  # of one of them: which one, their own readings tell
                        alone.update(part)

        _, failed = self._each(self._endpoints.values(), ask)
        unlisted = {
            name for name, draft in drafts.items() if draft.kafka_offsets is None and draft.brokers_group is None
        }
        away = self._without_coordinator(unlisted - alone, failed)
        for name in unlisted - alone:
            if name in away:
                drafts[name].problem(f"brokers' group {name!a}", away[name])
            else:
                drafts[name].kafka_offsets, drafts[name].brokers_group = {}, BrokersGroup("Dead")
        self._read_alone([drafts[name] for name in sorted(alone)])
        if not failed:
            self._deadline = Deadline(seconds)  # the logs of a hundred groups have as much as those of one

    def _read_alone(self, drafts: Iterable[GroupSnapshot]) -> None:
        """Search the coordinator of each group. The time counts anew after each, until a coordinator is silent."""
        seconds, silent = self._deadline.bounded(COORDINATOR_WITHIN), False
        for draft in drafts:
            self._read_group(draft)
            silent = silent or self._deadline.bounded(seconds) < seconds / 2
            self._deadline = self._deadline if silent else Deadline(seconds)
        self._deadline = Deadline(seconds)  # for the logs

    def _without_coordinator(self, groups: Collection[str], failed: Mapping[Endpoint, BrokerError]) -> dict[str, str]:
        """Return the groups whose coordinator did not answer, was not asked, or is unknown, with the reasons."""
        if not groups:
            return {}
        failures = {endpoint.broker_id: str(error) for endpoint, error in failed.items()}
        seen = self._cluster([OFFSETS_TOPIC]).partitions
        leaders = [one.leader for tp, one in sorted(seen.items()) if tp.topic == OFFSETS_TOPIC]
        found = {}
        for group in groups if leaders or failed else ():
            leader = leaders[coordinating_partition(group, len(leaders))] if leaders else None
            if leader is None or leader in failures or leader not in self._endpoints:
                found[group] = failures.get(-1 if leader is None else leader, "its coordinator is not available")
        return found

    # ---- the group

    def _read_group(self, draft: GroupSnapshot) -> None:
        group, deadline = draft.group, self._for_coordinators()
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
                draft.kafka_offsets = _known_offsets(stored)
            except ZkConsumerError as error:
                draft.problem(f"offsets of group {group!a} in Kafka", error)

    def _for_coordinators(self) -> Deadline:
        return Deadline(self._deadline.bounded(COORDINATOR_WITHIN) * COORDINATOR_SHARE)

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

    def _take_topics(self, draft: GroupSnapshot, seen: ClusterSeen, numbers: Mapping[str, Sequence[int]]) -> None:
        for topic in wanted_topics(draft) - draft.topics.keys():
            if topic in numbers:
                draft.topics[topic] = TopicNode(tuple(sorted(numbers[topic])))
            elif seen.errors.get(topic, _UNKNOWN_TOPIC) != _UNKNOWN_TOPIC:
                draft.problem(f"topic {topic!a}", f"the brokers answer {error_codes.name(seen.errors[topic])}")

    def _read_logs(self, drafts: Sequence[GroupSnapshot], seen: ClusterSeen, *, times: bool) -> None:
        """Fill the logs of all groups: a leader is asked once, for all partitions."""
        topics: set[str] = set().union(*(draft.topics for draft in drafts))
        logs: dict[TopicPartition, LogState] = {}
        by_leader: dict[Endpoint, list[TopicPartition]] = {}
        for tp, one in seen.partitions.items():
            if tp.topic not in topics:
                continue
            passing = not one.error or one.error == error_codes.REPLICA_NOT_AVAILABLE
            problem = "" if passing else error_codes.name(one.error)
            logs[tp] = LogState(leader=one.leader, replicas=one.replicas, in_sync=one.in_sync, problem=problem)
            if one.leader is not None and one.leader in self._endpoints:
                by_leader.setdefault(self._endpoints[one.leader], []).append(tp)
        places = _places(drafts) if times else {}

        def ask(endpoint: Endpoint) -> None:
            with closing(self._client.channels.connected(endpoint, self._deadline)) as channel:
                self._ask_leader(channel, by_leader[endpoint], logs, places)

        _, failed = self._each(by_leader, ask)
        for endpoint in failed:
            for tp in by_leader[endpoint]:
                if logs[tp].end is None:
                    logs[tp] = replace(logs[tp], problem=f"broker {endpoint.broker_id} did not answer")
        of_topics: dict[str, dict[TopicPartition, LogState]] = {topic: {} for topic in topics}
        for tp, log in logs.items():
            of_topics[tp.topic][tp] = log
        for draft in drafts:
            self._take_logs(draft, of_topics, times=times)
            for endpoint, error in failed.items():
                if any(tp in draft.logs for tp in by_leader[endpoint]):
                    draft.problem(f"broker {endpoint.broker_id}", error)

    def _take_logs(
        self, draft: GroupSnapshot, logs: Mapping[str, Mapping[TopicPartition, LogState]], *, times: bool
    ) -> None:
        for topic, node in draft.topics.items():
            draft.logs.update(logs[topic])
            for number in node.partitions:
                if (tp := TopicPartition(topic, number)) not in draft.logs:
                    draft.logs[tp] = LogState(problem="the brokers do not know it (yet)")
        for tp in draft.partitions() if times else ():
            offset, log = draft.committed(tp), draft.logs.get(tp)
            time = None if offset is None or log is None else self._times.of(tp, offset)
            if time is not None and log is not None:
                draft.logs[tp] = log.at(time)

    def _ask_leader(
        self,
        channel: BrokerChannel,
        partitions: Sequence[TopicPartition],
        logs: dict[TopicPartition, LogState],
        places: Mapping[TopicPartition, Collection[int]],
    ) -> None:
        """Fill the logs of partitions with the same leader. Several threads do this at once, for other partitions.

        Places for which no time is left have no time in this reading.
        """
        for tp, span in log_spans(channel, partitions, self._deadline).items():
            logs[tp] = replace(logs[tp], start=span.start, end=span.end, problem=span.problem)
        left: dict[TopicPartition, list[int]] = {}
        for tp in partitions:
            log = logs[tp]
            if log.start is not None and log.end is not None:
                inside = (o for o in places.get(tp, ()) if log.start <= o < log.end)
                left[tp] = [offset for offset in inside if not self._times.knows(tp, offset)]
        until = Deadline(self._deadline.bounded(TIMES_WITHIN) * TIMES_SHARE)
        for tp, offset, time in message_times(channel, left, self._deadline, until):
            self._times.take(tp, offset, time)

    def _each(
        self, endpoints: Collection[Endpoint], ask: Callable[[Endpoint], T]
    ) -> tuple[dict[Endpoint, T], dict[Endpoint, BrokerError]]:
        """Ask several brokers at the same time. Returns the answers and the errors.

        A pool would keep a process that ends until its threads have their answers, or a silent broker's timeout.
        """
        told: dict[Endpoint, T] = {}
        failed: dict[Endpoint, BrokerError] = {}
        broken: list[Exception] = []
        waiting = iter(list(endpoints))

        def work() -> None:
            for endpoint in waiting:
                try:
                    told[endpoint] = ask(endpoint)
                except BrokerError as error:
                    failed[endpoint] = error
                except Exception as error:  # noqa: BLE001 (raised in the calling thread)
                    broken.append(error)

        more = min(AT_ONCE, len(endpoints)) - 1  # the calling thread asks as well
        threads = [Thread(target=work, name="zkconsumer-snapshot", daemon=True) for _ in range(more)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if broken:
            raise broken[0]
        return told, failed


class MessageTimes:
    """The timestamps of the messages at offsets, asked once. Several threads use it, each for other partitions."""

    def __init__(self) -> None:
        self._known: dict[tuple[TopicPartition, int], int] = {}
        self._used: dict[tuple[TopicPartition, int], int] = {}

    def of(self, tp: TopicPartition, offset: int) -> int | None:
        """Return the time at an offset, None if it is unknown."""
        time = self._known.get((tp, offset))
        if time is not None:
            self._used[tp, offset] = time
        return time

    def knows(self, tp: TopicPartition, offset: int) -> bool:
        """Return whether the time need not be asked for: where no message is yet, one may come."""
        return self._known.get((tp, offset), NO_MESSAGE) != NO_MESSAGE

    def take(self, tp: TopicPartition, offset: int, time: int) -> None:
        """Take in a time."""
        self._known[tp, offset] = time

    def sweep(self) -> None:
        """Forget the times that nobody has used since the last call."""
        self._known, self._used = self._used, {}


def _places(drafts: Iterable[GroupSnapshot]) -> dict[TopicPartition, set[int]]:
    """Return the committed offsets of all groups by partition."""
    found: dict[TopicPartition, set[int]] = {}
    for draft in drafts:
        for tp in draft.partitions():
            offset = draft.committed(tp)
            if offset is not None:
                found.setdefault(tp, set()).add(offset)
    return found


def coordinating_partition(group: str, partitions: int) -> int:
    """Return the number of the partition of the topic of offsets whose leader coordinates a group."""
    return (java_hash(group) & 0x7FFFFFFF) % partitions


def _take_groups(channel: GroupChannel, drafts: Mapping[str, GroupSnapshot], deadline: Deadline) -> None:
    described = channel.describe(drafts, deadline)
    stored = channel.offsets_of(drafts, deadline)
    for name, draft in drafts.items():
        draft.brokers_group = _with_assigned(channel, name, described[name], deadline)
        draft.kafka_offsets = _known_offsets(stored[name])


def _known_offsets(stored: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, KafkaOffset]:
    return {tp: _offset_of(one) for tp, one in stored.items() if one.offset >= 0 or one.error}


def _described(channel: GroupChannel, group: str, deadline: Deadline) -> BrokersGroup:
    return _with_assigned(channel, group, channel.describe([group], deadline)[group], deadline)


def _with_assigned(channel: GroupChannel, group: str, described: GroupDescription, deadline: Deadline) -> BrokersGroup:
    found = _group_of(described, channel.endpoint)
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
