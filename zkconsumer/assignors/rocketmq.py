"""RocketMQ's strategies: their interface, averages, consistent hash and machine rooms. Pure; any thread.

RocketMQ calls a strategy for one topic: (group, own client id, all queues, all client ids) -> own queues. The caller
sorts queues and ids. Here a thread id is the client id, and a partition is the queue (topic, "", number). The broker's
name is empty, or made of the leader's rack for strategies that need it: leaders move, and names would move with them.
The room of a partition is the rack of its leader. The room of a member is the advertised one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from hashlib import md5
from typing import NamedTuple

from zkconsumer.assignors.assignor import NO_RACKS, AssignmentError, Members, Partitions, Racks, threads_by_topic
from zkconsumer.assignors.scala_assignors import blocks
from zkconsumer.config.extension_properties import parse_rooms
from zkconsumer.errors import ConfigException
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


def md5_hash(text: str) -> int:
    """Return RocketMQ's default hash: the first four bytes of MD5, as a number from 0 to 2^32 - 1."""
    return int.from_bytes(md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[:4], "big")


class ConsistentHashAssignor(QueueAllocator):
    """Places each client at several points of a ring. A queue goes to the first point at or after its own hash.

    A member that joins or leaves moves only its own partitions. Nothing bounds the balance: with ten points and few
    queues some members own nothing.

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


def _room_in(broker: str) -> str | None:
    """Return the room in a name like ``room@broker``, or None. As in Java's split, empty ends do not count."""
    parts = broker.split("@")
    while parts and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 2 else None


class MachineRoomAssignor(QueueAllocator):
    """MACHINE_ROOM: all clients consume the queues in the given rooms; no client consumes the others.

    Clients get contiguous blocks of equal size. The remaining queues go to the first clients, one each.
    """

    wants_racks = True

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    @classmethod
    def from_config(cls, config: object) -> MachineRoomAssignor:
        """Make the strategy for ``assignment.rooms``, the property's text or a collection of rooms.

        Raises ConfigException if there are none.
        """
        rooms = getattr(config, "assignment_rooms", None)
        if not rooms:
            raise ConfigException("assignment.rooms", "the strategy machine-room needs the rooms to consume from")
        return cls(parse_rooms(rooms) if isinstance(rooms, str) else rooms)

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """Return the queues of the client at each position."""
        kept = [queue for queue in queues if _room_in(queue.broker) in self._rooms]
        size, rest = divmod(len(kept), len(clients))
        dealt = len(clients) * size
        return [
            kept[size * position : size * (position + 1)] + (kept[dealt + position :][:1] if position < rest else [])
            for position in range(len(clients))
        ]

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment; raises nothing."""
        return assign_by_topic(self, members, partitions, lambda partition: f"{racks.get(partition, '')}@kafka")


class MachineRoomNearbyAssignor(QueueAllocator):
    """MACHINE_ROOM_NEARBY: queues go to clients in their own room, and queues of rooms without clients to all clients.

    Arguments: ``inner`` is the strategy inside a room. ``room_of_queue`` and ``room_of_client`` return None for an
    unknown room; :meth:`assign` takes them from racks and members.
    """

    wants_racks = True

    def __init__(
        self,
        inner: QueueAllocator | None = None,
        room_of_queue: Callable[[MessageQueue], str | None] = lambda _: None,
        room_of_client: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._inner = inner or AverageAssignor()
        self._room_of_queue = room_of_queue
        self._room_of_client = room_of_client

    def allocate_all(self, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[MessageQueue]]:
        """Return the queues of the client at each position. Raises AssignmentError for an unknown room."""
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(_known(self._room_of_queue(queue), f"mq {queue}"), []).append(queue)
        in_room: dict[str, list[int]] = {}
        for position, client in enumerate(clients):
            room = _known(self._room_of_client(client), f"consumer id {client}")
            in_room.setdefault(room, []).append(position)
        shares: list[list[MessageQueue]] = [[] for _ in clients]
        for room, positions in in_room.items():
            self._add(shares, by_room.get(room, []), positions, clients)
        for room in sorted(by_room.keys() - in_room.keys(), key=utf16_key):
            self._add(shares, by_room[room], range(len(clients)), clients)
        return shares

    def _add(
        self,
        shares: list[list[MessageQueue]],
        queues: Sequence[MessageQueue],
        positions: Sequence[int],
        clients: Sequence[str],
    ) -> None:
        if queues:
            inner = self._inner.allocate_all(queues, [clients[position] for position in positions])
            for position, share in zip(positions, inner, strict=True):
                shares[position] += share

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment. Raises AssignmentError for a leader without a rack, or a member without a room."""
        rooms: dict[str, str | None] = {
            thread: member.room
            for member in members.values()
            for threads in member.threads.values()
            for thread in threads
        }
        placed = MachineRoomNearbyAssignor(
            self._inner, lambda queue: racks.get(TopicPartition(queue.topic, queue.number)), rooms.get
        )
        return assign_by_topic(placed, members, partitions)


def _known(room: str | None, whose: str) -> str:
    if not room:
        raise AssignmentError(f"Machine room is null for {whose}")
    return room
