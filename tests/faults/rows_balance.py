"""Faults of balanced members: random ones with one seed. ``--times`` says how many."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from tests.cluster.balanced_group import BalancedGroup
from tests.faults.balance_campaign import EVERYTHING, MEMBERS, NODES, SCALA, WORKERS, Campaign, Flow
from tests.faults.lab import Lab, Report, new_name, row

PARTITIONS = 3
RATE = 150
"""Messages a second."""
THREADS = {"a": "threads", "b": "threads", "c": "threads"}
MIXED = {"a": "threads", "b": "processes", "c": "asyncio", "d": "threads"}
SHARING = {"share.partitions": "true"}


def campaign(
    lab: Lab,
    report: Report,
    kinds: Collection[str],
    executors: dict[str, str],
    *,
    order: str = "key",
    properties: Mapping[str, object] | None = None,
) -> None:
    """Let faults of these kinds happen to a group, and add what was wrong to the report."""
    topic = new_name("balance")
    lab.cluster.create_topic(topic, PARTITIONS)
    chance = random.Random(lab.random.random())
    with BalancedGroup(
        lab.cluster.zookeeper_connect, lab.cluster.bootstrap_servers, topic, {topic: PARTITIONS}
    ) as group:
        lethal = "processes" in executors.values() and len(set(executors.values())) == 1
        flow = Flow(group, random.Random(chance.random()), RATE, lethal=lethal)
        with Campaign(
            group, chance, executors, order=order, session_s=lab.timing.session, properties=properties
        ) as under_way:
            with flow:
                for _ in range(lab.timing.times(6, 20)):
                    under_way.break_something(kinds)
            for text in under_way.verdict(flow):
                report.require(False, text)
            for name, figure in under_way.figures().items():
                report.tell(f"{name} {figure}")
            if not report.sound:
                group.keep = True
                report.tell(f"records: {group.directory}")
                report.tell("; ".join(under_way.log))


@row("balance", "balanced members: any fault")
def everything(lab: Lab, report: Report) -> None:
    campaign(lab, report, EVERYTHING, MIXED)


@row("balance-members", "balanced members: killed, frozen, expired, cut off, leaving")
def members(lab: Lab, report: Report) -> None:
    campaign(lab, report, MEMBERS, THREADS)


@row("balance-workers", "balanced members: process workers killed and frozen, and lethal messages")
def workers(lab: Lab, report: Report) -> None:
    campaign(lab, report, WORKERS, dict.fromkeys("ab", "processes"))


@row("balance-nodes", "balanced members: rewinds, and spoiled and deleted nodes")
def nodes(lab: Lab, report: Report) -> None:
    campaign(lab, report, NODES, THREADS)


@row("balance-scala", "balanced members: a Scala member comes and goes")
def scala(lab: Lab, report: Report) -> None:
    campaign(lab, report, (*SCALA, "kill", "leave"), THREADS)


@row("balance-partition", "balanced members with order=partition: any fault of members")
def by_partition(lab: Lab, report: Report) -> None:
    campaign(lab, report, MEMBERS, MIXED, order="partition")


@row("balance-none", "balanced members with order=none: any fault of members")
def unordered(lab: Lab, report: Report) -> None:
    campaign(lab, report, MEMBERS, MIXED, order="none")


@row("balance-sharing", "members that share partitions: any fault")
def sharing(lab: Lab, report: Report) -> None:
    campaign(lab, report, EVERYTHING, {**MIXED, "e": "threads"}, properties=SHARING)


@row("balance-sharing-members", "members that share partitions: killed, frozen, expired, cut off, leaving")
def sharing_members(lab: Lab, report: Report) -> None:
    campaign(lab, report, MEMBERS, {**THREADS, "d": "threads", "e": "threads"}, properties=SHARING)
