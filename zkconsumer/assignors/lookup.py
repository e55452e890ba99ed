"""Lookup of strategies by name. Any thread.

Reads the entry points of the installed packages. The strategies of this package are entry points too. They are also in
a table, so that they are found without the package's metadata, for example in a zip file.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from zkconsumer.assignors.assignor import Assignor
from zkconsumer.errors import UnknownAssignorError

ENTRY_POINT_GROUP = "zkconsumer.assignors"
"""The entry point group in which packages declare strategies: ``name = package.module:Class``."""

OURS = {
    "range": "zkconsumer.assignors.range:RangeAssignor",
    "roundrobin": "zkconsumer.assignors.roundrobin:RoundRobinAssignor",
    "average": "zkconsumer.assignors.rocketmq:AverageAssignor",
    "average-by-circle": "zkconsumer.assignors.rocketmq:AverageByCircleAssignor",
    "consistent-hash": "zkconsumer.assignors.consistent_hash:ConsistentHashAssignor",
    "machine-room": "zkconsumer.assignors.machine_room:MachineRoomAssignor",
    "machine-room-nearby": "zkconsumer.assignors.machine_room:MachineRoomNearbyAssignor",
    "configured": "zkconsumer.assignors.configured:ConfiguredAssignor",
}


def known_assignors() -> dict[str, str]:
    """Return all installed strategies: their names and places. This package's win over others of the same name."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)} | OURS


def assignor(name: str, config: object = None) -> Assignor:
    """Return the strategy ``name``, made by its ``from_config(config)`` if it has one.

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
            factory = EntryPoint(name, place, ENTRY_POINT_GROUP).load()
    except (ImportError, AttributeError) as error:
        raise UnknownAssignorError(f"the strategy {name!r} cannot be loaded from {place}: {error}") from error
    if not callable(factory):
        raise UnknownAssignorError(f"{place}, the strategy {name!r}, is neither a class nor a function")
    return factory  # type: ignore[no-any-return]


def _made(factory: Callable[..., object], config: object) -> object:
    from_config = getattr(factory, "from_config", None)
    return from_config(config) if from_config is not None else factory()
