"""RocketMQ's strategies for several machine rooms. Pure; any thread.

The room of a partition is the rack of its leader. The room of a member is the advertised one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from zkconsumer.assignors.assignor import NO_RACKS, AssignmentError, Members, Partitions, Racks
from zkconsumer.assignors.rocketmq import AverageAssignor, MessageQueue, QueueAllocator, assign_by_topic
from zkconsumer.config.extension_properties import parse_rooms
from zkconsumer.errors import ConfigException
from zkconsumer.model import ThreadId, TopicPartition, utf16_key


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
