"""Strategies with configured members: a fixed table of owners, and a choice of machines. Pure; any thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Literal

from zkconsumer.assignors.assignor import NO_RACKS, AssignmentError, Assignor, Member, Members, Partitions, Racks
from zkconsumer.assignors.scala_assignors import RangeAssignor
from zkconsumer.config.extension_properties import parse_assignment_table
from zkconsumer.errors import ConfigException
from zkconsumer.model import ThreadId, TopicPartition

Predicate = Callable[[Member], bool]


class ConfiguredAssignor:
    """RocketMQ's CONFIG: a table assigns the partitions.

    No member owns a partition that the table lacks, or gives to an absent member. A partition that does not exist is
    ignored. RocketMQ does not check the table; here two owners of one partition are an error.

    Argument: ``table`` maps a thread id, or a consumer id (its first thread of the topic), to partitions. It must be
    the same in all members.
    """

    def __init__(self, table: Mapping[str, Collection[TopicPartition]]) -> None:
        self._table = dict(table)

    @classmethod
    def from_config(cls, config: object) -> ConfiguredAssignor:
        """Make the strategy for ``assignment.table``, the property's text or a mapping.

        Raises ConfigException if there is none.
        """
        table = getattr(config, "assignment_table", None)
        if not table:
            raise ConfigException(
                "assignment.table", "the strategy configured needs a table of members and their partitions"
            )
        return cls(parse_assignment_table(table) if isinstance(table, str) else table)

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment. Raises AssignmentError if the table gives a partition to two threads."""
        assignment: dict[TopicPartition, ThreadId] = {}
        for consumer, member in members.items():
            for topic, threads in member.threads.items():
                existing = set(partitions.get(topic, ()))
                for position, thread in enumerate(threads):
                    wanted = [*self._table.get(thread, ()), *(self._table.get(consumer, ()) if position == 0 else ())]
                    for partition in wanted:
                        if partition.topic == topic and partition.partition in existing:
                            _give(assignment, TopicPartition(*partition), thread)
        return assignment


def _give(assignment: dict[TopicPartition, ThreadId], partition: TopicPartition, thread: ThreadId) -> None:
    other = assignment.setdefault(partition, thread)
    if other != thread:
        raise AssignmentError(f"{partition} is configured for both {other} and {thread}")


def machines(*patterns: str) -> Predicate:
    """Return a predicate: whether a member's advertised host or address fits a pattern.

    A pattern is a network (``10.1.0.0/16``), an address, or a host name with ``*`` and ``?``. A member that advertises
    neither host nor address, such as a Scala member, fits no pattern.
    """

    def matches(member: Member) -> bool:
        return any(_is_at(member, pattern) for pattern in patterns)

    return matches


def _is_at(member: Member, pattern: str) -> bool:
    try:
        network = ip_network(pattern, strict=False)
    except ValueError:
        return member.host is not None and fnmatchcase(member.host.lower(), pattern.lower())
    try:
        return member.address is not None and ip_address(member.address) in network
    except ValueError:
        return False


class OnlyAssignor:
    """Lets only some members consume; the others stand by.

    Arguments: ``allowed`` returns whether a member may consume. ``inner`` is the strategy among those (default: range).
    ``fallback`` decides if none of them is left: ``"all"`` members consume, or ``"nobody"``.
    """

    def __init__(
        self, allowed: Predicate, inner: Assignor | None = None, fallback: Literal["all", "nobody"] = "all"
    ) -> None:
        if fallback not in ("all", "nobody"):
            raise ValueError(f"fallback: {fallback!r} is neither 'all' nor 'nobody'")
        self._allowed = allowed
        self._inner = inner or RangeAssignor()
        self._fallback = fallback

    @property
    def wants_racks(self) -> bool:
        """Whether the inner strategy wants racks."""
        return bool(getattr(self._inner, "wants_racks", False))

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> Mapping[TopicPartition, ThreadId]:
        """Return the assignment. Raises what ``allowed`` and ``inner`` raise.

        ``fallback`` decides for each topic. Otherwise no member would consume a topic that only other members have.
        """
        chosen = {consumer: member for consumer, member in members.items() if self._allowed(member)}
        if self._fallback == "nobody":
            return self._inner.assign(chosen, partitions, racks)
        served = {topic for member in chosen.values() for topic, threads in member.threads.items() if threads}
        taking_part = {
            consumer: member
            if consumer in chosen
            else replace(member, threads={t: ids for t, ids in member.threads.items() if t not in served})
            for consumer, member in members.items()
        }
        return self._inner.assign(taking_part, partitions, racks)
