"""From the view of a group to what a strategy is asked, and whether the whole group agrees on it. Pure; any thread.

Members advertise what strategies may want to know in extra keys of their registration, which Scala members ignore. Of
the strategies only ``range`` and ``roundrobin`` are known to Scala members, which do not say which one they use. Any
other takes effect only where every member advertises it; else all of ours fall back to ``range`` together, since they
see the same members, or refuse, as ``assignment.mixed.group`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from zkconsumer.assignors.assignor import AssignmentError, Assignor, Member, Racks
from zkconsumer.assignors.lookup import assignor
from zkconsumer.assignors.range import RangeAssignor
from zkconsumer.core.registration import Registration
from zkconsumer.model import Assignment, ConsumerId, ThreadId

ADVERTISED = ("host", "address", "room", "strategy", "zkconsumer")
"""The extra keys of a registration that become attributes of a Member, in the order of these; ``zkconsumer`` is its
version.
"""

RELEASE_KEY = "scala.compat.version"
"""The extra key in which a member with ``roundrobin`` says which release it agrees with."""

SCALA_STRATEGIES = ("range", "roundrobin")
"""The strategies that Scala members know."""

Threads = Mapping[ConsumerId, Mapping[str, tuple[ThreadId, ...]]]


class StrategyView(Protocol):
    """The part of a group's view that strategies need."""

    @property
    def members(self) -> Mapping[ConsumerId, Registration]:
        """The readable registrations."""
        ...  # pragma: no cover

    @property
    def partitions(self) -> Mapping[str, tuple[int, ...]]:
        """The partitions of the topics that exist."""
        ...  # pragma: no cover

    @property
    def racks(self) -> Racks:
        """The racks of their leaders, if they are wanted."""
        ...  # pragma: no cover


class StrategyConfig(Protocol):
    """The part of a configuration that chooses a strategy."""

    @property
    def partition_assignment_strategy(self) -> str:
        """The name of the strategy."""
        ...  # pragma: no cover


def advertised_member(registration: Registration, threads: Mapping[str, tuple[ThreadId, ...]]) -> Member:
    """A member as strategies see it."""
    host, address, room, strategy, version = (_text(registration.extra.get(key)) for key in ADVERTISED)
    return Member(threads, host, address, room, strategy, version, registration.extra)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def advertisement(
    config: StrategyConfig,
    *,
    host: str | None = None,
    address: str | None = None,
    room: str | None = None,
    version: str = "",
) -> dict[str, object]:
    """The extra keys that our own registration should carry; what is unknown is left out."""
    name = config.partition_assignment_strategy
    known = dict(zip(ADVERTISED, (host, address, room, name, version), strict=True))
    if name == "roundrobin":
        known[RELEASE_KEY] = getattr(config, "scala_compat_version", None)
    return {key: value for key, value in known.items() if value}


def concern(config: StrategyConfig, members: Mapping[ConsumerId, Registration]) -> str | None:
    """Why this group may not agree with our strategy, in words for a log, None where nothing speaks against it.

    For ``roundrobin``: members that do not say which text they hash, or hash another one. For strategies beyond the
    original's: members that do not advertise the same one; it is not in effect then. For ``range``: members that say
    otherwise.
    """
    name = config.partition_assignment_strategy
    other = sorted(c for c, registration in members.items() if registration.extra.get("strategy") not in (name, None))
    silent = sorted(c for c, registration in members.items() if registration.extra.get("strategy") is None)
    if name == "range":
        return f"{_abbreviated(other)} advertise another strategy than range" if other else None
    if name != "roundrobin":
        strangers = other + silent
        return (
            f"{_abbreviated(strangers)} do not advertise the strategy {name}, which needs all of us"
            if strangers
            else None
        )
    wanted = _hashed_text(getattr(config, "scala_compat_version", "1.1"))
    forms = {c: _hashed_text(_text(registration.extra.get(RELEASE_KEY))) for c, registration in members.items()}
    differing = other or sorted(c for c, form in forms.items() if form not in (wanted, None))
    if differing:
        return (
            f"{_abbreviated(differing)} advertise another strategy than ours, roundrobin hashing {wanted}: "
            "we will contend for partitions"
        )
    unknown = sorted(c for c, form in forms.items() if form is None)
    if unknown:
        return (
            f"{_abbreviated(unknown)} do not say their release: if it is not one that hashes {wanted} in roundrobin "
            "(KAFKA-5822), we will contend for partitions; see scala.compat.version"
        )
    return None


def _hashed_text(release: str | None) -> str | None:
    """What releases hash in round robin, as an example."""
    if release is None:
        return None
    return "'[topic,0]'" if release.startswith("0.") else "'topic-0'"


def _abbreviated(names: list[ConsumerId]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class GroupStrategy:
    """The strategy that ``partition.assignment.strategy`` names, as the planner calls it.

    Raises UnknownAssignorError, and ConfigException where the strategy misses a property.
    """

    def __init__(self, config: StrategyConfig) -> None:
        self._config = config
        self.name = config.partition_assignment_strategy
        self._chosen: Assignor = assignor(self.name, config)
        self._refuses = getattr(config, "assignment_mixed_group", "range") == "refuse"

    @property
    def wants_racks(self) -> bool:
        """Whether the view must tell the racks of the partitions' leaders."""
        return bool(getattr(self._chosen, "wants_racks", False))

    def __call__(self, view: StrategyView, threads: Threads) -> Assignment:
        """Who shall own what.

        Raises AssignmentError in a mixed group where ``assignment.mixed.group`` is ``refuse``, and whatever the
        strategy raises.
        """
        members = {consumer: advertised_member(view.members[consumer], wanted) for consumer, wanted in threads.items()}
        if self.name in SCALA_STRATEGIES or all(one.strategy == self.name for one in members.values()):
            return self._chosen.assign(members, view.partitions, view.racks)
        if self._refuses:
            raise AssignmentError(self.concern(view.members) or self.name)
        return RangeAssignor().assign(members, view.partitions)

    def concern(self, members: Mapping[ConsumerId, Registration]) -> str | None:
        """Why these members may not agree with our strategy, and what follows; None where nothing speaks against
        it.
        """
        found = concern(self._config, members)
        if found is None or self.name in SCALA_STRATEGIES:
            return found
        return found + ("; refused until they do" if self._refuses else "; range is in effect until they do")


def assignment_strategy(config: StrategyConfig) -> GroupStrategy:
    """The strategy that ``partition.assignment.strategy`` names. Raises as :class:`GroupStrategy`."""
    return GroupStrategy(config)
