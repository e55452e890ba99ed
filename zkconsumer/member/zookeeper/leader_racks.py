"""The racks of partition leaders, for strategies that want them.

Called by the group thread only. They are read through the node cache, so that a leader's move makes a rebalance.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from zkconsumer.deadline import Deadline
from zkconsumer.errors import MalformedNodeError
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_cache import NodeCache

log = logging.getLogger(__name__)


class LeaderRacks:
    """The racks of partitions' leaders as ZooKeeper shows them."""

    def __init__(self, cache: NodeCache) -> None:
        self._cache = cache

    def of(self, partitions: Mapping[str, tuple[int, ...]], deadline: Deadline) -> Mapping[TopicPartition, str]:
        """Return the rack of each partition's leader. Partitions without a leader or rack are left out.

        Raises: RegistryError.
        """
        leaders = self._leaders([TopicPartition(t, n) for t, numbers in partitions.items() for n in numbers], deadline)
        racks = self._racks(frozenset(leaders.values()), deadline)
        return {tp: racks[leader] for tp, leader in leaders.items() if leader in racks}

    def _leaders(self, partitions: list[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        nodes = self._cache.nodes([paths.partition_state(tp) for tp in partitions], deadline)
        leaders: dict[TopicPartition, int] = {}
        for tp in partitions:
            path = paths.partition_state(tp)
            node = nodes[path]
            if node is None:
                continue
            try:
                leader = node_codecs.decode_partition_state(node.data, path).leader
            except MalformedNodeError as e:
                log.warning("%s; this partition counts as one without a rack", e)
                continue
            if leader >= 0:
                leaders[tp] = leader
        return leaders

    def _racks(self, brokers: frozenset[int], deadline: Deadline) -> dict[int, str]:
        nodes = self._cache.nodes([paths.broker(broker) for broker in sorted(brokers)], deadline)
        racks: dict[int, str] = {}
        for broker in brokers:
            path = paths.broker(broker)
            node = nodes[path]
            if node is None:
                continue
            try:
                rack = node_codecs.decode_broker(node.data, path).rack
            except MalformedNodeError as e:
                log.warning("%s; its partitions count as ones without a rack", e)
                continue
            if rack:
                racks[broker] = rack
        return racks
