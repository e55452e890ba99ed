"""The scenarios: by name, what a simulated group is made of."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """What one scenario is made of.

    ``scala`` is the part of members that are models of the Scala connector. ``storage`` says where offsets are kept:
    ``zookeeper``, ``kafka``, ``dual`` or ``database``. In each step fewer than ``messages`` are produced, and with the
    probability ``faults`` a fault happens. ``members`` are there at the start. ``application`` and ``run_by`` name the
    class of the members' application and the one that runs the scenario, each with its module.
    """

    scala: float = 0.0
    storage: str = "zookeeper"
    application: str = "members.StreamsApplication"
    messages: int = 40
    faults: float = 0.1
    members: int = 2
    run_by: str = "scenario.Scenario"
    pauses: bool = True
    """Whether the faults pause now and then. All must be consumed and committed then, too."""
    second: int = 0  # the partitions of a second topic, `u`
    interrupts: float = 0.0  # the part of the application's calls that an exception may leave
    kinds: tuple[str, ...] = ()
    """The kinds of faults, by their names in ``faults``. Empty: all."""


SCENARIOS = {
    "group": Setting(),
    "mixed": Setting(scala=0.5),
    "steady": Setting(scala=0.25, messages=160, faults=1 / 36, members=4),
    "churn": Setting(messages=20, faults=0.4, kinds=("join", "leave", "kill", "slow zookeeper")),
    "kafka-offsets": Setting(storage="kafka"),
    "dual-offsets": Setting(storage="dual"),
    "database": Setting(
        storage="database",
        application="database.DatabaseApplication",
        run_by="database.DatabaseScenario",
        interrupts=0.05,
        pauses=False,
    ),
    "asyncio": Setting(application="event_loop.AsyncApplication", pauses=False),
    "streams": Setting(application="every_call.EveryCall", second=2, interrupts=0.1, pauses=False),
    "brokers-group": Setting(storage="kafka", run_by="brokers_scenario.BrokersScenario"),
    "operators": Setting(
        application="operators.OperatedApplication", run_by="operators.OperatorScenario", pauses=False
    ),
    "logs": Setting(application="logs.LogApplication", run_by="logs.LogScenario", pauses=False),
    "followers": Setting(faults=0.3, run_by="followers.FollowersScenario", pauses=False),
    "spark": Setting(run_by="queries.QueryScenario", pauses=False),
    "balanced": Setting(
        application="balanced_group.BalancedApplication", run_by="balanced_group.BalancedGroup", pauses=False
    ),
    "sharing": Setting(
        application="balanced_group.BalancedApplication", run_by="balanced_group.SharingGroup", pauses=False
    ),
    "migrating": Setting(scala=0.3, storage="dual", run_by="migrating_scenario.MigratingScenario", pauses=False),
}
"""The settings by the scenario's name."""

STORES = {"zookeeper": ("zookeeper",), "kafka": ("kafka",), "dual": ("kafka", "zookeeper"), "database": ("database",)}
"""The places that each ``storage`` writes offsets to."""


def load(place: str) -> Any:
    """Return a class by its module and name, as a setting has them."""
    module, _, name = place.partition(".")
    return getattr(importlib.import_module(f"tests.simulation.{module}"), name)
