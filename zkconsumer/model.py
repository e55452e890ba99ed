"""The values that everything else speaks about. Pure: no threads, no clock, no I/O.

Every offset is "next to ...". The fetched offset is the next one to ask for. The consumed offset is the next one to
hand out or, while a message is in the user's hands, that message's own. The committed offset is the next one after a
restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple, NewType, TypeGuard

new_tuple: Any = tuple.__new__
"""Makes a named tuple of its class and a tuple of its fields, for code that runs once a fetch. The class itself is
called by a function in Python, of which each class has its own. Seven of them took a tenth of the time of a fetch.
"""

ConsumerId = NewType("ConsumerId", str)
"""``<group>_<host>-<ms>-<uuid8>`` or ``<group>_<consumer.id>``: the name of a member's node under ``ids``."""

ThreadId = NewType("ThreadId", str)
"""``<consumer id>-<n>``: one stream of one member; the content of an owner node."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@lru_cache(maxsize=1 << 16)
def shared_partition(topic: str, partition: int) -> TopicPartition:
    """Return the partition, one object for all who ask: a thousand groups may have the same partitions."""
    return TopicPartition(topic, partition)


PartitionLike = TopicPartition | tuple[str, int]
"""What callers may give for a partition: a plain pair (topic, number) will do."""


def partition_of(value: object) -> TopicPartition:
    """Return the partition that a caller means. Raises TypeError."""
    if isinstance(value, tuple) and len(value) == 2:
        topic, number = value
        if isinstance(topic, str) and not isinstance(number, bool):
            with suppress(TypeError):
                return TopicPartition(topic, index(number))
    raise TypeError(f"a partition is wanted, as in TopicPartition('events', 0) or ('events', 0), not {value!r}")


def partitions_of(values: object) -> list[TopicPartition]:
    """Return the partitions that a caller means by a collection of them. Raises TypeError."""
    if isinstance(values, str):
        raise TypeError(
            f"partitions are wanted, not the topic {values!r}: a list such as [({values!r}, 0)], or for all of ours"
            f" [tp for tp in connector.assignment() if tp.topic == {values!r}]"
        )
    if not isinstance(values, Iterable):
        raise TypeError(f"a list of partitions is wanted, as in [('events', 0)], not {values!r}")
    if isinstance(values, tuple) and values and isinstance(values[0], str):
        raise TypeError(f"a list of partitions is wanted: write [{partition_of(values)!r}]")
    return [partition_of(value) for value in values]


def is_offset(value: object) -> TypeGuard[int]:
    """Return whether a value of a caller is an offset: a whole number from 0 on that fits 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


class OffsetRange(NamedTuple):
    """The offsets ``[start, end)`` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets lie in the range; compaction may have left fewer messages."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a broker.

    ``generation`` is the version of the JSON it registered with in ZooKeeper (1: 0.8, 2: 0.9, 3: 0.10.0, 4: 0.10.2 to
    2.6, 5: 2.7 and later). From 3 on the broker can be asked which requests it understands.
    """

    broker_id: int
    host: str
    port: int
    generation: int = 5
    protocol: str = "PLAINTEXT"
    rack: str | None = None


def thread_id(consumer: ConsumerId, number: int) -> ThreadId:
    """Return the id of a member's ``number``-th stream, counted from 0."""
    return ThreadId(f"{consumer}-{number}")


def utf16_key(text: str) -> bytes:
    """Return the sort key of Java's ``String.compareTo``: UTF-16 code units, not code points."""
    return text.encode("utf-16-be", "surrogatepass")


Assignment = Mapping[TopicPartition, ThreadId]
"""Who shall own what, for the whole group."""

EARLIEST, LATEST = -2, -1
"""In place of a time, these ask brokers for a log's beginning and its end."""

STICKY = "sticky"
LAG_AWARE = "lag-aware"
PLACEMENTS = (STICKY, LAG_AWARE)
"""The strategies of groups in ZooKeeper whose assignment is a plan that one member writes."""
