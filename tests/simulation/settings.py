"""The scenarios: by name, what a simulated group is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What one scenario is made of.

    ``scala`` is the part of members that are models of the Scala connector. ``storage`` says where offsets are kept:
    ``zookeeper``, ``kafka``, ``dual`` or ``database``. ``application`` is a name in ``applications.APPLICATIONS``.
    """

    scala: float = 0.0
    storage: str = "zookeeper"
    application: str = "streams"
    second: int = 0
    """The partitions of a second topic, ``u``."""
    interrupts: float = 0.0
    """The part of the application's calls that an exception may leave."""


SCENARIOS = {
    "group": Setting(),
    "mixed": Setting(scala=0.5),
    "kafka-offsets": Setting(storage="kafka"),
    "dual-offsets": Setting(storage="dual"),
    "database": Setting(storage="database", application="database", interrupts=0.05),
    "asyncio": Setting(application="asyncio"),
    "streams": Setting(application="every-call", second=2, interrupts=0.1),
}
"""The settings by the scenario's name."""

STORES = {
    "zookeeper": ("zookeeper",),
    "kafka": ("kafka",),
    "dual": ("kafka", "zookeeper"),
    "database": ("database",),
}
"""The places that each ``storage`` writes offsets to."""
