"""The cluster as a query asks it with ``group.coordination=kafka``: the brokers, also for the group's offsets.

ZooKeeper is asked only for the brokers' addresses, and only without ``bootstrap.servers``. Threads: as in
``query_cluster``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.names import first_of
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    OffsetCommitError,
    UnknownMemberIdError,
)
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.cluster_metadata import topics_of
from zkconsumer.kafka.coordinator_client import OffsetClient
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.options import ReadOptions, Selection
from zkconsumer.spark.query_cluster import LiveMembersError, QueryCluster
from zkconsumer.spark.zookeeper_cluster import ZooKeeperQueryCluster

T = TypeVar("T")


class CoordinatorQueryCluster(QueryCluster):
    """The brokers tell partitions, leaders, members and offsets."""

    def __init__(self, config: ConsumerConfig, isolation_level: int = 0) -> None:
        super().__init__(config, isolation_level)
        self._brokers: Sequence[Endpoint] = ()
        self._coordinator: OffsetClient | None = None

    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        """Do as :meth:`QueryCluster.partitions`. Raises BrokerError; RegistryError if ZooKeeper names the brokers."""
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

    def _find_leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        """Ask a broker. Raises BrokerError; RegistryError if ZooKeeper names the brokers."""
        topics = sorted({tp.topic for tp in partitions})
        told = self._ask_brokers(lambda channel, deadline: channel.metadata(topics, deadline))
        known = {endpoint.broker_id: endpoint for endpoint in self._brokers}
        found = {}
        for tp in partitions:
            leader = told.leaders.get(tp, -1)
            if leader in known:
                found[tp] = known[leader]
            elif leader in told.brokers:
                found[tp] = self._client.endpoint(leader, *told.brokers[leader])
        return found

    def close(self) -> None:
        """Close everything; within seconds. May be called again."""
        if self._coordinator is not None:
            self._coordinator.close()
        super().close()

    def live_members(self, group: str) -> tuple[str, ...]:
        """Return the members as the group's coordinator describes them. Raises BrokerError."""

        def ask(client: OffsetClient, deadline: Deadline) -> tuple[str, ...]:
            return tuple(client.ask(lambda channel: channel.describe([group], deadline), deadline)[group].who)

        return self._ask_coordinator(group, ask)

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets that its coordinator keeps. Raises BrokerError."""
        return self._ask_coordinator(group, partial(_committed, partitions))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, also_back: bool = False) -> None:
        """Do as :meth:`QueryCluster.commit`.

        We are no member, so the coordinator takes offsets only while the group has no members.
        Raises LiveMembersError, OffsetCommitError, BrokerError.
        """
        try:
            self._ask_coordinator(group, partial(_commit, offsets, also_back))
        except UnknownMemberIdError as error:
            raise LiveMembersError(
                f"group {group}: not committed: {first_of(offsets, 5)} (the group has live members: {error})"
            ) from error

    # ---- inside ----

    def _find_brokers(self, deadline: Deadline) -> Sequence[Endpoint]:
        if self._client.bootstrap:
            return self._client.brokers(deadline)
        return self.ask(lambda _, within: self._client.brokers(within))

    def _ask_brokers(self, question: Callable[[BrokerChannel, Deadline], T]) -> T:
        """Ask the brokers in turn, again and again, until a broker has answered."""
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
        if self._coordinator is None:
            self._coordinator = self._client.group_client(group, self._find_brokers)
        return self._again(partial(question, self._coordinator))

    def _again(self, once: Callable[[Deadline], T]) -> T:
        """Retry until success or the deadline. Raise an error at once if another try cannot help."""
        deadline, pause = Deadline(self._patience), self._config.refresh_leader_backoff_ms / 1000
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
        raise OffsetCommitError(f"group {client.group}: not committed: {first_of(refused, 5)} ({why})")


def cluster_of(options: ReadOptions) -> QueryCluster:
    """Return the cluster of these options, not open yet."""
    kind = CoordinatorQueryCluster if options.config.coordinated_by_brokers else ZooKeeperQueryCluster
    return kind(options.config, options.isolation_level)
