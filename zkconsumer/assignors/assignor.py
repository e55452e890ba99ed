"""What every strategy is given, and what it answers. Pure; any thread.

A strategy is a function of the whole group, run by every member for itself; there is no leader. It must therefore
depend on nothing but its arguments: no clock, no randomness, no order of sets. Whatever it raises leaves the old
assignment in force and is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition, utf16_key

Partitions = Mapping[str, Sequence[int]]
"""The partition numbers of every topic that exists, ascending; gaps are legal."""

Racks = Mapping[TopicPartition, str]
"""The rack of the broker that leads a partition, where it has one."""

NO_RACKS: Racks = {}


class AssignmentError(ZkConsumerError):
    """A strategy cannot assign this group; the message says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the group, as its registration shows it.

    ``threads`` are its thread ids for each topic it takes part in, in the order of their numbers. The rest is what it
    advertises, None where it does not (Scala members advertise nothing): ``host`` name, IP ``address``, machine
    ``room``, the ``strategy`` it is configured for and the ``version`` of its software. ``extra`` holds all further
    keys of its registration.
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
    """A strategy; register a class of this shape under the entry point group ``zkconsumer.assignors``.

    It is constructed without arguments, or by a class method ``from_config(config)`` where it has one. The racks of
    the partitions' leaders are looked up only for a strategy with the attribute ``wants_racks = True``; others are
    given none, and no rebalance when a leader moves.
    """

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> Mapping[TopicPartition, ThreadId]:
        """Who shall own what. Partitions that are left out are owned by nobody.

        Each partition goes to one of the threads that some member brings to its topic. Raises whatever it likes, best
        AssignmentError: the old assignment stays in force then.
        """
        ...  # pragma: no cover


def threads_by_topic(members: Members) -> dict[str, list[ThreadId]]:
    """For each topic that anybody takes part in all threads of all members, in the order of Java's String.compareTo.

    Threads are ordered as text, so that thread 10 comes before thread 2.
    """
    found: dict[str, list[ThreadId]] = {}
    for member in members.values():
        for topic, threads in member.threads.items():
            found.setdefault(topic, []).extend(threads)
    for listed in found.values():
        listed.sort(key=utf16_key)
    return {topic: found[topic] for topic in sorted(found, key=utf16_key)}


def java_hash(text: str, start: int = 0) -> int:
    """Java's ``String.hashCode``: a signed 32-bit number over the UTF-16 units. ``start`` continues from a prefix's
    hash.
    """
    value = start
    units = map(ord, text) if text.isascii() else _units(text)
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _units(text: str) -> Iterable[int]:
    data = utf16_key(text)
    return (data[i] << 8 | data[i + 1] for i in range(0, len(data), 2))
