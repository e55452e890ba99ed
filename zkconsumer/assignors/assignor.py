"""The interface of assignment strategies: their arguments and their result. Pure; any thread.

Every member computes the assignment of the whole group by itself; there is no leader. So a strategy must depend on its
arguments alone: no clock, no randomness, no order of sets. If it raises an error, the old assignment stays in force,
and the error is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition, utf16_key

Partitions = Mapping[str, Sequence[int]]
"""The partition numbers of every existing topic, ascending; gaps are legal."""

Racks = Mapping[TopicPartition, str]
"""The rack of each partition's leader. Partitions whose leader has no rack are missing."""

NO_RACKS: Racks = {}


class AssignmentError(ZkConsumerError):
    """A strategy cannot make an assignment; the message says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the group, from its registration.

    ``threads`` are its thread ids for each subscribed topic, in the order of their numbers. All other fields are
    advertised by the member, and None otherwise; Scala members advertise nothing. They are the ``host`` name, the IP
    ``address``, the machine ``room``, the configured ``strategy`` and the ``version`` of this package. ``extra`` holds
    all further keys of the registration.
    """

    threads: Mapping[str, Sequence[ThreadId]]
    host: str | None = None
    address: str | None = None
    room: str | None = None
    strategy: str | None = None
    version: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


Members = Mapping[ConsumerId, Member]


@runtime_checkable
class Assignor(Protocol):
    """An assignment strategy. Declare your class under the entry point group ``zkconsumer.assignors``.

    The member calls its class method ``from_config(config)``, if there is one, or else its constructor without
    arguments. Only a strategy with ``wants_racks = True`` gets the racks of the partitions' leaders, and a rebalance
    when a leader moves to another rack.
    """

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> Mapping[TopicPartition, ThreadId]:
        """Return the assignment: for each partition a thread that some member has for its topic.

        No thread owns a missing partition. After any error, best an AssignmentError, the old assignment stays in force.
        """
        ...  # pragma: no cover


def threads_by_topic(members: Members) -> dict[str, list[ThreadId]]:
    """Return all members' threads for each subscribed topic, topics and threads in the order of Java's text.

    So thread 10 comes before thread 2.
    """
    found: dict[str, list[ThreadId]] = {}
    for member in members.values():
        for topic, threads in member.threads.items():
            found.setdefault(topic, []).extend(threads)
    for listed in found.values():
        listed.sort(key=utf16_key)
    return {topic: found[topic] for topic in sorted(found, key=utf16_key)}


def java_hash(text: str, start: int = 0) -> int:
    """Return Java's ``String.hashCode``, a signed 32-bit number. ``start`` is the hash of a prefix."""
    value = start
    units = map(ord, text) if text.isascii() else _units(text)
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _units(text: str) -> Iterable[int]:
    data = utf16_key(text)
    return (data[i] << 8 | data[i + 1] for i in range(0, len(data), 2))
