"""The racks of partition leaders, for strategies that want them.

Called by the group thread only. They are read through the node cache, so that a leader's move makes a rebalance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from zkconsumer.errors import MalformedNodeError
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_cache import NodeCache

log = logging.getLogger(__name__)


K = TypeVar("K")
T = TypeVar("T")


class LeaderRacks:
    """The racks of partitions' leaders as ZooKeeper shows them."""

    def __init__(self, cache: NodeCache) -> None:
        self._cache = cache

    def of(self, partitions: Mapping[str, tuple[int, ...]], deadline: Deadline) -> Mapping[TopicPartition, str]:
        """Return the rack of each partition's leader. Partitions without a leader or rack are left out.

        Raises: RegistryError.
        """
        states = {
            TopicPartition(t, n): paths.partition_state(TopicPartition(t, n)) for t in partitions for n in partitions[t]
        }
        leaders = self._read(states, lambda data, path: node_codecs.decode_partition_state(data, path).leader, deadline)
        brokers = {leader: paths.broker(leader) for leader in sorted(set(leaders.values())) if leader >= 0}
        racks = self._read(brokers, lambda data, path: node_codecs.decode_broker(data, path).rack, deadline)
        return {tp: rack for tp, leader in leaders.items() if (rack := racks.get(leader))}

    def _read(self, by_key: Mapping[K, str], decode: Callable[[bytes, str], T], deadline: Deadline) -> dict[K, T]:
        """Return what the node of each key says; keys of missing or unreadable nodes are left out."""
        nodes = self._cache.nodes(list(by_key.values()), deadline)
        found: dict[K, T] = {}
        for key, path in by_key.items():
            node = nodes[path]
            try:
                if node is not None:
                    found[key] = decode(node.data, path)
            except MalformedNodeError as e:
                log.warning("%s; its partitions count as ones without a rack", e)
        return found
