"""The cluster as a query asks it with ``group.coordination=kafka``: the brokers, also for the group's offsets.

ZooKeeper is asked only for the brokers' addresses, and only without ``bootstrap.servers``. Threads: as in
``zookeeper_cluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    OffsetCommitError,
    UnknownMemberIdError,
)
from zkconsumer.kafka import BrokerChannel, channel_security, choose_endpoint
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.cluster_metadata import BootstrapBrokers, topics_of
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.kafka.offset_client import OffsetClient
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.options import ReadOptions, Selection
from zkconsumer.spark.zookeeper_cluster import LiveMembersError, QueryCluster, describe
from zkconsumer.wiring.member_parts import registered_endpoints

T = TypeVar("T")


class BrokersQueryCluster(QueryCluster):
    """Channels to the brokers, which tell partitions, leaders and offsets; a context manager."""

    def __init__(self, config: ConsumerConfig, isolation_level: int = 0) -> None:
        super().__init__(config, isolation_level)
        self._bootstrap = BootstrapBrokers(
            config.bootstrap_addresses, self._new_channel, config.security_protocol, config.broker_addresses
        )
        self._brokers: Sequence[Endpoint] = ()
        self._client: OffsetClient | None = None

    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        """Do as :meth:`QueryCluster.partitions`.

        Raises BrokerError; RegistryError if brokers are found by ZooKeeper.
        """
        allowed = selection.allowed
        named = selection.topics or sorted({tp.topic for tp in selection.partitions})

        def wanted(topic: str) -> bool:
            return allowed is None or allowed.allows(topic, self._config.exclude_internal_topics)

        def ask(channel: BrokerChannel, deadline: Deadline) -> dict[str, int]:
            seen = topics_of(channel, named if allowed is None else None, deadline)
            unsure = sorted(filter(wanted, seen.unsure))
            if unsure:
                raise BrokerUnavailableError(f"{channel.name} cannot tell the partitions of {', '.join(unsure[:5])}")
            return {topic: count for topic, count in seen.partitions.items() if wanted(topic)}

        counts = self._ask_brokers(ask)
        found = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        if selection.partitions:
            found = [tp for tp in found if tp in selection.partitions]
        missing = () if allowed is not None else tuple(topic for topic in named if topic not in counts)
        return tuple(sorted(found)), missing

    def leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        """Do as :meth:`QueryCluster.leaders`. Raises BrokerError; RegistryError if brokers are found by ZooKeeper."""
        topics = sorted({tp.topic for tp in partitions})
        told = self._ask_brokers(lambda channel, deadline: channel.metadata(topics, deadline))
        known = {endpoint.broker_id: endpoint for endpoint in self._brokers}
        found = {}
        for tp in partitions:
            leader = told.leaders.get(tp, -1)
            if leader in known:
                found[tp] = known[leader]
            elif leader in told.brokers:
                found[tp] = self._endpoint(leader, *told.brokers[leader])
        asked = set(partitions)
        self._leaders = {tp: where for tp, where in self._leaders.items() if tp not in asked} | found
        return found

    def close(self) -> None:
        """Close everything; within seconds. May be called again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        super().close()

    def live_members(self, group: str) -> tuple[str, ...]:
        """Return the group's members as its coordinator describes them. Raises BrokerError."""

        def ask(client: OffsetClient, deadline: Deadline) -> tuple[str, ...]:
            return tuple(client.ask(lambda channel: channel.describe([group], deadline), deadline)[group].who)

        return self._ask_coordinator(group, ask)

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets that its coordinator keeps. Raises BrokerError."""
        return self._ask_coordinator(group, partial(_committed, partitions))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Move the group's offsets on to these; one that is further already stays.

        We are no member, so the coordinator takes offsets only while the group has no members.
        Raises LiveMembersError, OffsetCommitError, BrokerError.
        """
        self._write(group, offsets, also_back=False)

    def _write(self, group: str, offsets: Mapping[TopicPartition, int], *, also_back: bool) -> None:
        try:
            self._ask_coordinator(group, partial(_commit, offsets, also_back))
        except UnknownMemberIdError as error:
            raise LiveMembersError(
                f"group {group}: not committed: {describe(sorted(offsets))} (the group has live members: {error})"
            ) from error

    # ---- inside ----

    def _new_channel(self, endpoint: Endpoint) -> BrokerChannel:
        config = self._config
        return BrokerChannel(
            endpoint,
            client_id=config.client_id,
            socket_timeout=config.socket_timeout_ms / 1000,
            security=channel_security(config),
        )

    def _endpoint(self, broker: int, host: str, port: int) -> Endpoint:
        config = self._config
        told = Endpoint(broker, host, port, protocol=config.security_protocol)
        return choose_endpoint([told], config.security_protocol, config.broker_addresses)

    def _find_brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        if self._config.bootstrap_servers:
            return self._bootstrap(deadline)
        return self.ask(lambda session, within: registered_endpoints(session, self._config, within))

    def _ask_brokers(self, question: Callable[[BrokerChannel, Deadline], T]) -> T:
        """Ask one broker after the other, and again, until one has answered."""
        return self._again(partial(self._ask_each, question))

    def _ask_each(self, question: Callable[[BrokerChannel, Deadline], T], deadline: Deadline) -> T:
        brokers = self._brokers = self._brokers or self._find_brokers(deadline)
        trouble = BrokerUnavailableError("no broker is known")
        for endpoint in brokers:
            try:
                return question(self._channel(endpoint), deadline)
            except (BrokerAuthenticationError, BrokerResponseError):
                raise
            except BrokerError as error:
                self._drop(endpoint)
                trouble = BrokerUnavailableError(str(error))
        self._brokers = ()  # others may be there by now
        raise trouble

    def _ask_coordinator(self, group: str, question: Callable[[OffsetClient, Deadline], T]) -> T:
        """Ask the group's coordinator, and again, until it has answered."""
        if self._client is None:
            self._client = OffsetClient(CoordinatorSearch(group, self._find_brokers, self._new_channel))
        return self._again(partial(question, self._client))

    def _again(self, once: Callable[[Deadline], T]) -> T:
        """Retry until success or the deadline. Raise an error at once if another try cannot help."""
        deadline, pause = Deadline(self._config.socket_timeout_ms / 1000), self._config.refresh_leader_backoff_ms / 1000
        while True:
            try:
                return once(deadline)
            except BrokerAuthenticationError:
                raise
            except BrokerError as error:
                hopeless = isinstance(error, BrokerResponseError) and not codes.retriable(error.code)
                # the reason is this one, and not that no time is left for another try
                if hopeless or self._pause.wait(deadline.bounded(pause)) or deadline.expired:
                    raise


def _committed(
    partitions: Sequence[TopicPartition], client: OffsetClient, deadline: Deadline
) -> dict[TopicPartition, int]:
    return {tp: stored.offset for tp, stored in client.fetch(partitions, deadline).items()}


def _commit(offsets: Mapping[TopicPartition, int], also_back: bool, client: OffsetClient, deadline: Deadline) -> None:
    reached = {} if also_back else _committed(list(offsets), client, deadline)
    todo = {tp: offset for tp, offset in offsets.items() if reached.get(tp, -1) < offset}
    refused = client.commit(Membership(client.group), todo, deadline) if todo else {}
    for error in refused.values():
        if codes.retriable(error.code):
            raise error
    if refused:
        why = "; ".join(sorted({codes.name(error.code) for error in refused.values()}))
        raise OffsetCommitError(f"group {client.group}: not committed: {describe(sorted(refused))} ({why})")


def cluster_of(options: ReadOptions) -> QueryCluster:
    """Return the cluster of these options, not open yet."""
    kind = BrokersQueryCluster if options.config.coordinated_by_brokers else QueryCluster
    return kind(options.config, options.isolation_level)
