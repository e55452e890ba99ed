"""RocketMQ's consistent hash: a member that joins or leaves moves only its own partitions. Pure; any thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from hashlib import md5

from zkconsumer.assignors.assignor import NO_RACKS, Members, Partitions, Racks
from zkconsumer.assignors.rocketmq import MessageQueue, QueueAllocator, assign_by_topic
from zkconsumer.model import ThreadId, TopicPartition


def md5_hash(text: str) -> int:
    """Return RocketMQ's default hash: the first four bytes of MD5, as a number from 0 to 2^32 - 1."""
    return int.from_bytes(md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4], "big")


class ConsistentHashAssignor(QueueAllocator):
    """Places each client at several points of a ring. A queue goes to the first point at or after its own hash.

    Nothing bounds the balance: with ten points and few queues some members own nothing.

    Arguments: ``virtual_nodes`` is the number of points for each client (0: no client owns anything), ``hash_function``
    maps a text to any integer. Raises ValueError for a negative number of points.
    """

    def __init__(self, virtual_nodes: int = 10, hash_function: Callable[[str], int] = md5_hash) -> None:
        if virtual_nodes < 0:
            raise ValueError(f"virtual_nodes: {virtual_nodes} is negative")
        self._virtual_nodes = virtual_nodes
        self._hash = hash_function

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """Return the queues of the client at each position. A client that is listed twice has its queues at both."""
        ring = self.ring(clients)
        return self.placed(queues, clients, ring, sorted(ring))

    def placed(
        self, queues: Sequence[MessageQueue], clients: Sequence[str], ring: dict[int, str], points: list[int]
    ) -> list[list[MessageQueue]]:
        """Return the queues of the client at each position, for a ring and its sorted points."""
        owned: dict[str, list[MessageQueue]] = {client: [] for client in clients}
        for queue in queues if points else ():
            after = bisect_left(points, self._hash(str(queue)))
            owned[ring[points[after % len(points)]]].append(queue)
        return [owned[client] for client in clients]

    def ring(self, clients: Sequence[str]) -> dict[int, str]:
        """Return the client at each point.

        Of two clients at one point the later one stays. A repeated client gets further points, numbered from its
        present number of points on.
        """
        ring: dict[int, str] = {}
        seen: set[str] = set()
        for client in clients:
            first = sum(owner == client for owner in ring.values()) if client in seen else 0
            seen.add(client)
            for replica in range(first, first + self._virtual_nodes):
                ring[self._hash(f"{client}-{replica}")] = client
        return ring

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment."""
        return assign_by_topic(_CachedRings(self), members, partitions)


class _CachedRings(QueueAllocator):
    """Makes one ring for all topics with the same clients, because a ring of thousands takes a while."""

    def __init__(self, strategy: ConsistentHashAssignor) -> None:
        self._strategy = strategy
        self._rings: dict[tuple[str, ...], tuple[dict[int, str], list[int]]] = {}

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        key = tuple(clients)
        if key not in self._rings:
            ring = self._strategy.ring(clients)
            self._rings[key] = ring, sorted(ring)
        return self._strategy.placed(queues, clients, *self._rings[key])
