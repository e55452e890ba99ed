"""The scenarios: by name, what a simulated group is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What one scenario is made of.

    ``scala`` is the part of members that are models of the Scala connector. ``storage`` says where offsets are kept:
    ``zookeeper``, ``kafka``, ``dual`` or ``database``. ``application`` is a name in ``applications.APPLICATIONS``.
    ``group`` names the module, and the class in it, that makes the group.
    """

    scala: float = 0.0
    storage: str = "zookeeper"
    application: str = "streams"
    group: str = "scenario.Scenario"


SCENARIOS = {
    "group": Setting(),
    "mixed": Setting(scala=0.5),
    "kafka-offsets": Setting(storage="kafka"),
    "dual-offsets": Setting(storage="dual"),
    "balanced": Setting(application="balanced", group="balanced_group.BalancedGroup"),
    "sharing": Setting(application="balanced", group="balanced_group.SharingGroup"),
}
"""The settings by the scenario's name."""

STORES = {
    "zookeeper": ("zookeeper",),
    "kafka": ("kafka",),
    "dual": ("kafka", "zookeeper"),
    "database": ("database",),
}
"""The places that each ``storage`` writes offsets to."""
