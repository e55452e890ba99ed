"""Asks the brokers for the cluster's brokers, and for topics with their numbers of partitions.

Called with a connected channel, by the thread that owns it; any thread may call :class:`BootstrapBrokers`, which opens
a connection of its own. The original reads both from ZooKeeper. Mirrors the Java consumer's ``Metadata``, without a
shared copy that a background thread refreshes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka.api_schema import Values
from zkconsumer.kafka.broker_channel import BrokerChannel
from zkconsumer.kafka.broker_schemas import METADATA
from zkconsumer.kafka.connection import choose_endpoint
from zkconsumer.model import Endpoint, TopicPartition, shared_partition
from zkconsumer.runtime.deadline import Deadline

log = logging.getLogger(__name__)

CONNECT_WITHIN = 3.0
"""Seconds for one broker of several."""
_NOBODY = -1
"""The id of a broker of which only the address is known."""


class TopicsSeen(NamedTuple):
    """The number of partitions of each topic that exists; ``unsure`` are topics whose number was not told."""

    partitions: Mapping[str, int]
    unsure: frozenset[str] = frozenset()


def topics_of(channel: BrokerChannel, topics: Collection[str] | None, deadline: Deadline) -> TopicsSeen:
    """Return the partitions of these topics, None: of all topics. From 0.11 on the request creates no topic.

    Raises: BrokerUnavailableError, BrokerError.
    """
    if topics is not None and not topics:
        return TopicsSeen({})
    answer = _ask(channel, None if topics is None else sorted(topics), deadline)
    partitions: dict[str, int] = {}
    unsure = set()
    for topic in answer["topics"] or ():
        if topic["error_code"] == error_codes.NONE:
            partitions[topic["name"]] = len(topic["partitions"] or ())
        elif topic["error_code"] != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            unsure.add(topic["name"])
    return TopicsSeen(partitions, frozenset(unsure))


class PartitionSeen(NamedTuple):
    """A partition as one broker sees it: ids of brokers (``leader`` None: there is none), and the error code."""

    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    error: int


class ClusterSeen(NamedTuple):
    """The live brokers' (host, port), the partitions, and the error codes of topics, as one broker sees them."""

    brokers: Mapping[int, tuple[str, int]]
    partitions: Mapping[TopicPartition, PartitionSeen]
    errors: Mapping[str, int]


def cluster_of(channel: BrokerChannel, topics: Collection[str] | None, deadline: Deadline) -> ClusterSeen:
    """Return the brokers, and the partitions of these topics, None: of all topics. Raises as :func:`topics_of`."""
    answer = _ask(channel, None if topics is None else sorted(topics), deadline)
    if topics is not None and not topics:
        return ClusterSeen(requests.cluster_metadata(answer).brokers, {}, {})
    partitions: dict[TopicPartition, PartitionSeen] = {}
    failed: dict[str, int] = {}
    for topic in answer["topics"] or ():
        if topic["error_code"]:
            failed[topic["name"]] = topic["error_code"]
        for one in topic["partitions"] or ():
            partitions[shared_partition(topic["name"], one["partition_index"])] = PartitionSeen(
                one["leader_id"] if one["leader_id"] >= 0 else None,
                tuple(one["replica_nodes"] or ()),
                tuple(one["isr_nodes"] or ()),
                one["error_code"],
            )
    return ClusterSeen(requests.cluster_metadata(answer).brokers, partitions, failed)


def brokers_of(channel: BrokerChannel, deadline: Deadline) -> Mapping[int, tuple[str, int]]:
    """Return the (host, port) of each live broker, at the listener that was asked. Raises as :func:`topics_of`."""
    return requests.cluster_metadata(_ask(channel, [], deadline)).brokers


def _ask(channel: BrokerChannel, topics: Sequence[str] | None, deadline: Deadline) -> Values:
    version = channel.versions.get(METADATA.name, 0)
    return channel.exchange(requests.metadata_request(version, topics), deadline)


class BootstrapBrokers:
    """The brokers of a cluster of which some addresses are known (``bootstrap.servers``).

    Arguments: ``servers`` as (host, port); ``channel`` makes a channel, not yet connected; ``security_protocol`` and
    ``addresses`` as for :func:`choose_endpoint`.
    """

    def __init__(
        self,
        servers: Sequence[tuple[str, int]],
        channel: Callable[[Endpoint], BrokerChannel],
        security_protocol: str,
        addresses: Mapping[str, str],
    ) -> None:
        self._servers = tuple(Endpoint(_NOBODY, host, port, protocol=security_protocol) for host, port in servers)
        self._channel = channel
        self._protocol = security_protocol
        self._addresses = addresses
        self._known: Sequence[Endpoint] = ()

    def __call__(self, deadline: Deadline) -> Sequence[Endpoint]:
        """Return the present brokers, asked of a known broker or of one of the servers. Raises:
        BrokerAuthenticationError if one refuses our login; BrokerUnavailableError if none answers.
        """
        trouble: BrokerError | None = None
        for endpoint in (*self._known, *self._servers):
            if deadline.expired:
                break
            channel = self._channel(endpoint)
            try:
                channel.connect(Deadline(deadline.bounded(CONNECT_WITHIN)))
                found = brokers_of(channel, Deadline(deadline.bounded(CONNECT_WITHIN)))
            except BrokerAuthenticationError:
                raise
            except BrokerError as e:
                trouble = e
                continue
            finally:
                channel.close()
            self._known = [self._reachable(broker, host, port) for broker, (host, port) in sorted(found.items())]
            return self._known
        servers = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in self._servers)
        raise BrokerUnavailableError(f"no broker of bootstrap.servers={servers} answered: {trouble or 'no time left'}")

    def _reachable(self, broker: int, host: str, port: int) -> Endpoint:
        return choose_endpoint([Endpoint(broker, host, port, protocol=self._protocol)], self._protocol, self._addresses)
