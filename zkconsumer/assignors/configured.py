"""Strategies that are told who may consume: a fixed table, and a choice of machines. Pure; any thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Literal

from zkconsumer.assignors.assignor import NO_RACKS, AssignmentError, Assignor, Member, Members, Partitions, Racks
from zkconsumer.assignors.range import RangeAssignor
from zkconsumer.config.assignment_properties import parse_assignment_table
from zkconsumer.errors import ConfigException
from zkconsumer.model import ThreadId, TopicPartition

Predicate = Callable[[Member], bool]


class ConfiguredAssignor:
    """RocketMQ's CONFIG: every member is told what to own.

    Argument: ``table``, which must be the same everywhere: from a thread id, or a consumer id (its first thread of the
    topic), to partitions. What the table leaves out, or gives to somebody who is not there, is owned by nobody; a
    partition that does not exist is passed over. RocketMQ hands out the list unchecked, here two owners of a partition
    are an error.
    """

    def __init__(self, table: Mapping[str, Collection[TopicPartition]]) -> None:
        self._table = dict(table)

    @classmethod
    def from_config(cls, config: object) -> ConfiguredAssignor:
        """The table of ``assignment.table``, as the property's text or as the mapping itself.

        Raises ConfigException where there is none.
        """
        table = getattr(config, "assignment_table", None)
        if not table:
            raise ConfigException("assignment.table", "the strategy configured needs a table of who owns what")
        return cls(parse_assignment_table(table) if isinstance(table, str) else table)

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Who shall own what. Raises AssignmentError where a partition is given to two threads."""
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
    """A predicate: whether a member runs on one of these machines, by what it advertises.

    A pattern is a network (``10.1.0.0/16``), an address, or a host name with ``*`` and ``?``. A member that advertises
    neither host nor address, such as a Scala one, is on none of them.
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
    """Only some members consume; the others stand by.

    Arguments: ``allowed`` says of a member whether it may consume; ``inner`` shares out among those (default: range);
    ``fallback`` says what happens when none of them is left: ``"all"``, everybody consumes, or ``"nobody"``.
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
        """Whether the inner strategy wants them."""
        return bool(getattr(self._inner, "wants_racks", False))

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> Mapping[TopicPartition, ThreadId]:
        """Who shall own what. Raises what ``allowed`` and ``inner`` raise.

        Whether anybody is left is asked for each topic, so that a topic which only others take part in is not
        forgotten.
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
