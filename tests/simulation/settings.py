"""The scenarios: by name, what a simulated group is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What one scenario is made of.

    ``scala`` is the part of members that are models of the Scala connector. ``storage`` says where offsets are kept:
    ``zookeeper``, ``kafka``, ``dual`` or ``database``. ``application`` is a name in ``applications.APPLICATIONS``.
    In each step fewer than ``messages`` are produced, and with the probability ``faults`` a fault happens.
    ``members`` are there at the start. ``run_by`` names the module, and the class in it, that runs it.
    """

    scala: float = 0.0
    storage: str = "zookeeper"
    application: str = "streams"
    messages: int = 40
    faults: float = 0.1
    members: int = 2
    run_by: str = "scenario.Scenario"
    pauses: bool = True
    """Whether the faults pause now and then. All must be consumed and committed then, too."""
    second: int = 0
    """The partitions of a second topic, ``u``."""
    interrupts: float = 0.0
    """The part of the application's calls that an exception may leave."""
    kinds: tuple[str, ...] = ()
    """The kinds of faults, by their names in ``faults``. Empty: all."""


SCENARIOS = {
    "group": Setting(),
    "mixed": Setting(scala=0.5),
    "steady": Setting(scala=0.25, messages=160, faults=1 / 36, members=4),
    "churn": Setting(messages=20, faults=0.4, kinds=("join", "leave", "kill", "slow zookeeper")),
    "kafka-offsets": Setting(storage="kafka"),
    "dual-offsets": Setting(storage="dual"),
    "database": Setting(storage="database", application="database", interrupts=0.05, pauses=False),
    "asyncio": Setting(application="asyncio", pauses=False),
    "streams": Setting(application="every-call", second=2, interrupts=0.1, pauses=False),
    "brokers-group": Setting(storage="kafka", run_by="brokers_scenario.BrokersScenario"),
    "operators": Setting(application="operated", run_by="operators.OperatorScenario", pauses=False),
    "logs": Setting(application="logs", run_by="logs.LogScenario", pauses=False),
    "spark": Setting(run_by="queries.QueryScenario", pauses=False),
    "balanced": Setting(application="balanced", run_by="balanced_group.BalancedGroup", pauses=False),
    "sharing": Setting(application="balanced", run_by="balanced_group.SharingGroup", pauses=False),
    "migrating": Setting(scala=0.3, storage="dual", run_by="migrating_scenario.MigratingScenario", pauses=False),
}
"""The settings by the scenario's name."""

STORES = {
    "zookeeper": ("zookeeper",),
    "kafka": ("kafka",),
    "dual": ("kafka", "zookeeper"),
    "database": ("database",),
}
"""The places that each ``storage`` writes offsets to."""
