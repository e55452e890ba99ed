"""RocketMQ's strategies, first part: what they have in common, and the two averages. Pure; any thread.

There a strategy is asked topic by topic: (group, my client id, all queues, all client ids) -> my queues, queues and ids
being sorted by the caller. Here our thread id is the client id, and a partition is the queue (topic, "", number); the
broker's name is empty, or made of the rack where a strategy needs it, because leaders move and names with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from zkconsumer.assignors.assignor import NO_RACKS, AssignmentError, Members, Partitions, Racks, threads_by_topic
from zkconsumer.assignors.range import blocks
from zkconsumer.model import ThreadId, TopicPartition, utf16_key


class MessageQueue(NamedTuple):
    """A queue of RocketMQ; its text is what consistent hashing hashes."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker}, queueId={self.number}]"


class QueueAllocator(Protocol):
    """How queues are shared out among clients, position by position."""

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """The queues of the client at each position; both arguments are not empty, and in the caller's order."""
        ...  # pragma: no cover


def allocate(
    strategy: QueueAllocator, current: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """The queues of client ``current``, as RocketMQ's strategies answer.

    A client that is not listed gets nothing; one that is listed twice gets the share of its first position. Raises
    AssignmentError, with the original's words, where an argument is empty.
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
    """A whole group's assignment by a strategy that is asked topic by topic.

    ``broker`` gives the name that stands for a partition's broker.
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


class AverageAssignor:
    """RocketMQ's default (AVG): contiguous blocks, the first ones larger by one. The same blocks as ``range``."""

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """The queues of the client at each position."""
        return [list(block) for block in blocks(queues, len(clients))]

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Who shall own what; raises nothing."""
        return assign_by_topic(self, members, partitions)


class AverageByCircleAssignor:
    """RocketMQ's AVG_BY_CIRCLE: dealt out one by one, like cards."""

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """The queues of the client at each position."""
        return [list(queues[position :: len(clients)]) for position in range(len(clients))]

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Who shall own what; raises nothing."""
        return assign_by_topic(self, members, partitions)


def pop_queues(
    strategy: QueueAllocator, current: str, queues: Sequence[MessageQueue], clients: Sequence[str], extra: int
) -> list[MessageQueue]:
    """The queues that a client may pop from, as RocketMQ 5's broker answers; queues are shared, not owned.

    ``extra`` is ``popShareQueueNum``: with that many further clients a queue is shared. Not positive, or as many as
    there are others: every queue, by the number -1 ("any of this broker"). More clients than queues: one queue each,
    cyclically. ``strategy`` is one of the averages. Raises AssignmentError as :func:`allocate` does.
    """
    if extra <= 0 or extra >= len(clients) - 1:
        return [queue._replace(number=-1) for queue in queues]
    if len(clients) > len(queues):
        own = allocate(strategy, current, queues, clients)
        return [queues[clients.index(current) % len(queues)]] if current in clients else own
    if current not in clients:
        return allocate(strategy, current, queues, clients)
    first = clients.index(current)
    sharing = [clients[(first + step) % len(clients)] for step in range(extra + 1)]
    return [queue for client in sharing for queue in allocate(strategy, client, queues, clients)]
