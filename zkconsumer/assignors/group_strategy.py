"""Calls a group's strategy with the members' registrations, and decides when members advertise different strategies.

Pure; any thread.

A member advertises its strategy, host, address and room in extra keys of its registration. Scala members ignore these
keys. They know only ``range`` and ``roundrobin``, and do not advertise which of the two they use.

Any other strategy takes effect only if every member advertises it. If one member does not,
``assignment.mixed.group`` decides: the members of this package all fall back to ``range``, or all refuse to assign.
They decide alike because they see the same registrations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from zkconsumer.assignors.assignor import AssignmentError, Assignor, Member, Racks, assignor
from zkconsumer.assignors.scala_assignors import RangeAssignor
from zkconsumer.core.names import first_of
from zkconsumer.core.registration import INSTANCE_KEY, PLAN_KEY, PLAN_VERSION, Registration
from zkconsumer.model import PLACEMENTS, Assignment, ConsumerId, ThreadId

ADVERTISED = ("host", "address", "room", "strategy", "zkconsumer")
"""The extra keys of a registration that become fields of a Member, in their order. ``zkconsumer`` is the version."""

RELEASE_KEY = "scala.compat.version"
"""The extra key with ``scala.compat.version``, which members with ``roundrobin`` advertise."""

SCALA_STRATEGIES = ("range", "roundrobin")
"""The strategies of Scala members."""

Threads = Mapping[ConsumerId, Mapping[str, tuple[ThreadId, ...]]]


class StrategyView(Protocol):
    """The part of a group's view that strategies need."""

    @property
    def members(self) -> Mapping[ConsumerId, Registration]:
        """The readable registrations."""
        ...  # pragma: no cover

    @property
    def partitions(self) -> Mapping[str, tuple[int, ...]]:
        """The partitions of all existing topics."""
        ...  # pragma: no cover

    @property
    def racks(self) -> Racks:
        """The racks of the partitions' leaders, if the strategy wants them."""
        ...  # pragma: no cover

    @property
    def placement(self) -> Assignment | None:
        """The assignment of the group's plan, for a strategy that needs one. None: no plan is in effect."""
        ...  # pragma: no cover


class StrategyConfig(Protocol):
    """The part of a configuration that chooses a strategy."""

    @property
    def partition_assignment_strategy(self) -> str:
        """The name of the strategy."""
        ...  # pragma: no cover


def advertised_member(registration: Registration, threads: Mapping[str, tuple[ThreadId, ...]]) -> Member:
    """Return the argument of a strategy for one member."""
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
    """Return the extra keys of this member's registration, without unknown ones."""
    name = config.partition_assignment_strategy
    known = dict(zip(ADVERTISED, (host, address, room, name, version), strict=True))
    if name == "roundrobin":
        known[RELEASE_KEY] = getattr(config, "scala_compat_version", None)
    if name in PLACEMENTS:
        known[PLAN_KEY] = str(PLAN_VERSION)
        known[INSTANCE_KEY] = getattr(config, "group_instance_id", None)
    return {key: value for key, value in known.items() if value}


def strategy_conflict(config: StrategyConfig, members: Mapping[ConsumerId, Registration]) -> str | None:
    """Return why these members may not agree with our strategy, as text for a log, or None.

    * ``roundrobin``: members that do not advertise their release, or hash another text
    * ``range``: members that advertise another strategy
    * any other strategy: members that do not advertise this strategy, which is then not in effect
    """
    name = config.partition_assignment_strategy
    advertised = {c: advertised_strategy(registration) for c, registration in members.items()}
    other = [c for c, strategy in advertised.items() if strategy not in (name, None)]
    silent = [c for c, strategy in advertised.items() if strategy is None]
    if name == "range":
        return f"{first_of(other, 3)} advertise another strategy than range" if other else None
    if name != "roundrobin":
        without = other + silent
        return (
            f"{first_of(without, 3)} do not advertise the strategy {name}, which needs all of us" if without else None
        )
    wanted = _hashed_text(getattr(config, "scala_compat_version", "1.1"))
    texts = {c: _hashed_text(_text(registration.extra.get(RELEASE_KEY))) for c, registration in members.items()}
    differing = other or [c for c, text in texts.items() if text not in (wanted, None)]
    if differing:
        return (
            f"{first_of(differing, 3)} advertise another strategy than ours, roundrobin hashing {wanted}: "
            "we will contend for partitions"
        )
    unknown = [c for c, text in texts.items() if text is None]
    if unknown:
        return (
            f"{first_of(unknown, 3)} do not advertise their release: if it does not hash {wanted} in roundrobin "
            "(KAFKA-5822), we will contend for partitions; see scala.compat.version"
        )
    return None


def advertised_strategy(registration: Registration) -> str | None:
    """Return the strategy that a member advertises. One that cannot read our plans advertises none of these."""
    name = _text(registration.extra.get("strategy"))
    return None if name in PLACEMENTS and registration.extra.get(PLAN_KEY) != str(PLAN_VERSION) else name


def _hashed_text(release: str | None) -> str | None:
    """Return an example of the text that a release hashes in ``roundrobin``, None for an unknown release."""
    if release is None:
        return None
    return "'[topic,0]'" if release.startswith("0.") else "'topic-0'"


class GroupStrategy:
    """The strategy of ``partition.assignment.strategy``, as the planner calls it.

    Raises UnknownAssignorError, and ConfigException for a missing property of the strategy.
    """

    def __init__(self, config: StrategyConfig) -> None:
        self._config = config
        self.name = config.partition_assignment_strategy
        self._chosen: Assignor = assignor(self.name, config)
        self._refuses = getattr(config, "assignment_mixed_group", "range") == "refuse"

    @property
    def wants_racks(self) -> bool:
        """Whether the strategy wants the racks of the partitions' leaders."""
        return bool(getattr(self._chosen, "wants_racks", False))

    @property
    def places(self) -> bool:
        """Whether the assignment is a plan that one member writes."""
        return self.name in PLACEMENTS

    def is_of_all(self, members: Mapping[ConsumerId, Registration]) -> bool:
        """Return whether all these members advertise the strategy."""
        return all(advertised_strategy(registration) == self.name for registration in members.values())

    def __call__(self, view: StrategyView, threads: Threads) -> Assignment:
        """Return the assignment.

        Raises AssignmentError in a mixed group if ``assignment.mixed.group`` is ``refuse``, and the strategy's errors.
        """
        members = {consumer: advertised_member(view.members[consumer], wanted) for consumer, wanted in threads.items()}
        if self.places and self.is_of_all(view.members):
            planned = view.placement
            return RangeAssignor().assign(members, view.partitions) if planned is None else planned
        if self.name in SCALA_STRATEGIES or (not self.places and self.is_of_all(view.members)):
            return self._chosen.assign(members, view.partitions, view.racks)
        if self._refuses:
            raise AssignmentError(self.concern(view.members) or self.name)
        return RangeAssignor().assign(members, view.partitions)

    def concern(self, members: Mapping[ConsumerId, Registration]) -> str | None:
        """Return why these members may not agree with our strategy, and the consequence, or None."""
        found = strategy_conflict(self._config, members)
        if found is None or self.name in SCALA_STRATEGIES:
            return found
        return found + ("; refused until they do" if self._refuses else "; range is in effect until they do")


def assignment_strategy(config: StrategyConfig) -> GroupStrategy:
    """Return the strategy of ``partition.assignment.strategy``. Raises as :class:`GroupStrategy`."""
    return GroupStrategy(config)
