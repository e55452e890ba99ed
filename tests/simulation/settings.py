"""The scenarios: by name, what a simulated group is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What one scenario is made of.

    ``scala`` is the part of members that are models of the Scala connector. ``storage`` says where offsets are kept:
    ``zookeeper``, ``kafka``, ``dual`` or ``database``. ``application`` is a name in ``applications.APPLICATIONS``.
    ``module`` of this package has the class ``SCENARIO`` that runs it.
    """

    scala: float = 0.0
    storage: str = "zookeeper"
    application: str = "streams"
    module: str = "scenario"


SCENARIOS = {
    "group": Setting(),
    "mixed": Setting(scala=0.5),
    "kafka-offsets": Setting(storage="kafka"),
    "dual-offsets": Setting(storage="dual"),
    "operators": Setting(module="operators", application="operated"),
    "logs": Setting(module="logs", application="logs"),
    "spark": Setting(module="queries"),
}
"""The settings by the scenario's name."""

STORES = {
    "zookeeper": ("zookeeper",),
    "kafka": ("kafka",),
    "dual": ("kafka", "zookeeper"),
    "database": ("database",),
}
"""The places that each ``storage`` writes offsets to."""
