"""From the view of a group to what a strategy is asked. Pure; any thread.

Members advertise what strategies may want to know in extra keys of their registration, which Scala members ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from zkconsumer.core.assignors.base import NO_RACKS, Assignor, Member
from zkconsumer.core.assignors.lookup import assignor
from zkconsumer.core.registration import Registration
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition

ADVERTISED = ("host", "address", "room", "strategy", "version_of_zkconsumer")
"""The extra keys of a registration that become attributes of a Member; ``version`` is taken by the original."""

Threads = Mapping[ConsumerId, Mapping[str, tuple[ThreadId, ...]]]


class View(Protocol):
    """The part of a group's view that strategies need."""

    @property
    def members(self) -> Mapping[ConsumerId, Registration]:
        """The readable registrations."""
        ...  # pragma: no cover

    @property
    def partitions(self) -> Mapping[str, tuple[int, ...]]:
        """The partitions of the topics that exist."""
        ...  # pragma: no cover


class Configured(Protocol):
    """The part of a configuration that chooses a strategy."""

    @property
    def partition_assignment_strategy(self) -> str:
        """The name of the strategy."""
        ...  # pragma: no cover


def member(registration: Registration, threads: Mapping[str, tuple[ThreadId, ...]]) -> Member:
    """A member as strategies see it."""
    host, address, room, strategy, version = (_text(registration.extra.get(key)) for key in ADVERTISED)
    return Member(threads, host, address, room, strategy, version, registration.extra)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def assignment_strategy(config: Configured) -> Callable[[View, Threads], Mapping[TopicPartition, ThreadId]]:
    """The strategy that ``partition.assignment.strategy`` names, as the planner wants it.

    Raises UnknownAssignorError.
    """
    chosen: Assignor = assignor(config.partition_assignment_strategy, config)

    def assign(view: View, threads: Threads) -> Mapping[TopicPartition, ThreadId]:
        members = {consumer: member(view.members[consumer], wanted) for consumer, wanted in threads.items()}
        return chosen.assign(members, view.partitions, NO_RACKS)

    return assign
