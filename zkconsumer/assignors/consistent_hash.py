"""RocketMQ's consistent hash: when a member comes or goes, only its own partitions move. Pure; any thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from hashlib import md5

from zkconsumer.assignors.assignor import NO_RACKS, Members, Partitions, Racks
from zkconsumer.assignors.rocketmq import MessageQueue, assign_by_topic
from zkconsumer.model import ThreadId, TopicPartition


def md5_hash(text: str) -> int:
    """RocketMQ's default: the first four bytes of MD5, as a number from 0 to 2^32 - 1."""
    return int.from_bytes(md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4], "big")


class ConsistentHashAssignor:
    """Each client stands at several points of a ring; a queue belongs to the first point at or after its own hash.

    Arguments: ``virtual_nodes`` points for each client (0: nobody owns anything); ``hash_function`` from text to any
    integer, compared as such. Nothing bounds the balance: with ten points and few queues some members have none. Raises
    ValueError for a negative number of points.
    """

    def __init__(self, virtual_nodes: int = 10, hash_function: Callable[[str], int] = md5_hash) -> None:
        if virtual_nodes < 0:
            raise ValueError(f"virtual_nodes: {virtual_nodes} is negative")
        self._virtual_nodes = virtual_nodes
        self._hash = hash_function

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """The queues of the client at each position; one that is listed twice has its queues at both."""
        ring = self.ring(clients)
        return self.placed(queues, clients, ring, sorted(ring))

    def placed(
        self, queues: Sequence[MessageQueue], clients: Sequence[str], ring: dict[int, str], points: list[int]
    ) -> list[list[MessageQueue]]:
        """The queues of the client at each position, on a given ring with its sorted points."""
        owned: dict[str, list[MessageQueue]] = {client: [] for client in clients}
        for queue in queues if points else ():
            after = bisect_left(points, self._hash(str(queue)))
            owned[ring[points[after % len(points)]]].append(queue)
        return [owned[client] for client in clients]

    def ring(self, clients: Sequence[str]) -> dict[int, str]:
        """Who stands where. Of two at one point the later one stays; who comes again adds points, from its count of
        them on.
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
        """Who shall own what."""
        return assign_by_topic(_Remembering(self), members, partitions)


class _Remembering:
    """Makes one ring for all topics that have the same clients; a ring of thousands takes a while."""

    def __init__(self, strategy: ConsistentHashAssignor) -> None:
        self._strategy = strategy
        self._rings: dict[tuple[str, ...], tuple[dict[int, str], list[int]]] = {}

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        key = tuple(clients)
        if key not in self._rings:
            ring = self._strategy.ring(clients)
            self._rings[key] = ring, sorted(ring)
        return self._strategy.placed(queues, clients, *self._rings[key])
