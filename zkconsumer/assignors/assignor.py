"""Assignment strategies: their interface, and their lookup by name. Pure, except for the lookup; any thread.

Every member computes the assignment of the whole group by itself; there is no leader. So a strategy must depend on its
arguments alone: no clock, no randomness, no order of sets. If it raises an error, the old assignment stays in force,
and the error is reported.

The lookup reads the entry points of the installed packages. The strategies of this package are entry points too. A
table has them too, so that the lookup works without the package's metadata, for example in a zip file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, runtime_checkable

from zkconsumer.errors import UnknownAssignorError, ZkConsumerError
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

    The member calls the class method ``from_config(config)``, if there is such a method, or else the constructor
    without arguments. Only a strategy with ``wants_racks = True`` gets the racks of the partitions' leaders, and a
    rebalance when a leader moves to another rack.
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


ENTRY_POINT_GROUP = "zkconsumer.assignors"
"""The entry point group in which packages declare strategies: ``name = package.module:Class``."""

OURS = {
    "range": "zkconsumer.assignors.scala_assignors:RangeAssignor",
    "roundrobin": "zkconsumer.assignors.scala_assignors:RoundRobinAssignor",
    "average": "zkconsumer.assignors.rocketmq:AverageAssignor",
    "average-by-circle": "zkconsumer.assignors.rocketmq:AverageByCircleAssignor",
    "consistent-hash": "zkconsumer.assignors.rocketmq:ConsistentHashAssignor",
    "machine-room": "zkconsumer.assignors.rocketmq:MachineRoomAssignor",
    "machine-room-nearby": "zkconsumer.assignors.rocketmq:MachineRoomNearbyAssignor",
    "configured": "zkconsumer.assignors.fixed_table:ConfiguredAssignor",
    "sticky": "zkconsumer.assignors.sticky_placement:StickyAssignor",
    "lag-aware": "zkconsumer.assignors.lag_aware_placement:LagAwareAssignor",
}


def known_assignors() -> dict[str, str]:
    """Return all installed strategies: their names and places. This package's win over others of the same name."""
    from importlib.metadata import entry_points  # here: few members need it, and it loads much

    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)} | OURS


def assignor(name: str, config: object = None) -> Assignor:
    """Return the strategy ``name``, made by ``from_config(config)`` if its class has this method.

    Raises UnknownAssignorError for an unknown name, and for a plug-in that cannot be loaded or is no strategy.
    """
    known = OURS if name in OURS else known_assignors()  # reading the entry points of all packages takes a while
    if name not in known:
        raise UnknownAssignorError(f"no strategy is called {name!r}; known are {', '.join(sorted(known))}")
    made = _made(_loaded(name, known[name]), config)
    if not isinstance(made, Assignor):
        raise UnknownAssignorError(
            f"{known[name]}, the strategy {name!r}, has no method assign(members, partitions, racks)"
        )
    return made


def _loaded(name: str, place: str) -> Callable[..., object]:
    try:
        if name in OURS:
            module, _, attribute = place.partition(":")
            factory = getattr(import_module(module), attribute)
        else:
            from importlib.metadata import EntryPoint

            factory = EntryPoint(name, place, ENTRY_POINT_GROUP).load()
    except (ImportError, AttributeError) as error:
        raise UnknownAssignorError(f"the strategy {name!r} cannot be loaded from {place}: {error}") from error
    if not callable(factory):
        raise UnknownAssignorError(f"{place}, the strategy {name!r}, is neither a class nor a function")
    return factory  # type: ignore[no-any-return]


def _made(factory: Callable[..., object], config: object) -> object:
    from_config = getattr(factory, "from_config", None)
    return from_config(config) if from_config is not None else factory()
