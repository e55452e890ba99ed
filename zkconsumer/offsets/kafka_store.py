"""Offsets in Kafka (``offsets.storage=kafka``) of a group that ZooKeeper coordinates.

The commits are simple ones: in no member's name, so that nothing fences them. A coordinator takes them from anybody
while its own group has no members. Called by one thread (the committer's); any may ``close``, and a waiting call
raises. One call is one try.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zkconsumer.deadline import Deadline
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.kafka.offset_client import OffsetClient
from zkconsumer.model import TopicPartition


class KafkaOffsets:
    """The offsets of one group as its coordinator keeps them (an ``OffsetStore``).

    Arguments: ``search`` belongs to this store alone; ``sent`` is told the number of offsets of each answered commit.
    """

    def __init__(self, search: CoordinatorSearch, sent: Callable[[int], None] = lambda _: None) -> None:
        self._client = OffsetClient(search)
        self._nobody = Membership(search.group)
        self._sent = sent

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Read offsets. Raises BrokerError if that of any partition is unknown, whatever the reason."""
        return {tp: stored.offset for tp, stored in self._client.fetch(partitions, Deadline(timeout)).items()}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """Write offsets in one request. Returns what the coordinator refused. Raises BrokerError."""
        refused = self._client.commit(self._nobody, offsets, Deadline(timeout))
        self._sent(len(offsets))
        return refused

    def close(self) -> None:
        """Close all connections, for good."""
        self._client.close()
