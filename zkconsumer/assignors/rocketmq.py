"""RocketMQ's strategies: their interface and the strategies ``average`` and ``average-by-circle``. Pure; any thread.

RocketMQ calls a strategy for one topic: (group, own client id, all queues, all client ids) -> own queues. The caller
sorts queues and ids. Here a thread id is the client id, and a partition is the queue (topic, "", number). The broker's
name is empty, or made of the leader's rack for strategies that need it: leaders move, and names would move with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from zkconsumer.assignors.assignor import NO_RACKS, AssignmentError, Members, Partitions, Racks, threads_by_topic
from zkconsumer.assignors.range import blocks
from zkconsumer.model import ThreadId, TopicPartition, utf16_key


class MessageQueue(NamedTuple):
    """A queue of RocketMQ. Consistent hashing hashes its text."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.number}]"


class QueueAllocator(ABC):
    """A strategy of RocketMQ, for all clients of one topic at once."""

    @abstractmethod
    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """Return the queues of each client, in the order of the clients. Both arguments are sorted and not empty."""

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment. Raises the errors of :meth:`allocate_all`."""
        return assign_by_topic(self, members, partitions)


def allocate(
    strategy: QueueAllocator, current: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """Return the queues of client ``current``, as RocketMQ does.

    An unlisted client gets no queues. A client that is listed twice gets those of its first position. Raises
    AssignmentError, in RocketMQ's words, for an empty argument.
    """
    if not current:
        raise AssignmentError("currentCID is empty")
    if not queues:
        raise AssignmentError("mqAll is null or mqAll empty")
    if not clients:
        raise AssignmentError("cidAll is null or cidAll empty")
    return strategy.allocate_all(queues, clients)[clients.index(current)] if current in clients else []


def assign_by_topic(
    strategy: QueueAllocator,
    members: Members,
    partitions: Partitions,
    broker: Callable[[TopicPartition], str] = lambda _: "",
) -> dict[TopicPartition, ThreadId]:
    """Return the assignment of a whole group by a strategy of RocketMQ.

    ``broker`` returns the name of a partition's broker.
    """
    assignment: dict[TopicPartition, ThreadId] = {}
    for topic, threads in threads_by_topic(members).items():
        queues = [MessageQueue(topic, broker(TopicPartition(topic, n)), n) for n in partitions.get(topic, ())]
        if not queues or not threads:
            continue
        queues.sort(key=lambda queue: (utf16_key(queue.broker), queue.number))
        for thread, share in zip(threads, strategy.allocate_all(queues, threads), strict=True):
            assignment.update({TopicPartition(topic, queue.number): thread for queue in share})
    return assignment


class AverageAssignor(QueueAllocator):
    """RocketMQ's default (AVG): contiguous blocks, the first ones larger by one, as in ``range``."""

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """Return the queues of each client, in the order of the clients."""
        return [list(block) for block in blocks(queues, len(clients))]


class AverageByCircleAssignor(QueueAllocator):
    """RocketMQ's AVG_BY_CIRCLE: queues in turn, like cards."""

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """Return the queues of each client, in the order of the clients."""
        return [list(queues[position :: len(clients)]) for position in range(len(clients))]
