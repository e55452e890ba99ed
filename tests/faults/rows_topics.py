"""Growing topics and new topics: row 22 of the matrix."""

from __future__ import annotations

import os
from time import monotonic_ns

from tests.faults.group import sleep
from tests.faults.history import SECOND
from tests.faults.lab import Lab, Report, row
from tests.timing import eventually
from zkconsumer.zookeeper.cluster_admin import Admin


@row("22", "partitions and topics come under load", quick=True, mixed=True)
def growth(lab: Lab, report: Report) -> None:
    with lab.group("22") as group:
        lab.populate(group)
        slowest = 0.0
        for total in (12, 40):
            plan = group.fault("new partitions", loses=False, moves=True)
            before = group.owners()
            with Admin(lab.cluster.zookeeper_connect) as admin:
                admin.add_partitions(group.name, total)
            begin = monotonic_ns()
            group.topics[group.name] = total
            group.partitions_changed()
            group.settle()
            plan.settled()
            slowest = max(slowest, (monotonic_ns() - begin) / SECOND)
            kept = sum(group.owners()[tp] == owner for tp, owner in before.items())
            report.tell(f"{total} partitions: all flow after {(monotonic_ns() - begin) / SECOND:.2f} s, {kept} stayed")
        group.finish()
        report.judged(group, lab.rules(bounds={"new partitions": 1.0}, rounds=None))
    if not lab.mixed:
        _new_topics(lab, report)


def _new_topics(lab: Lab, report: Report) -> None:
    prefix = f"wild-{os.getpid()}-{lab.random.randrange(1 << 30)}"
    with lab.group("22", load=False) as group:
        group.topics = {}
        for name in "abc":
            group.join(name, whitelist=f"{prefix}.*", streams=1, ready=False)
        for member in group.members.values():
            member.wait_for("ready")
        rounds = {m.name: m.tail.last("state") for m in group.members.values()}
        names = [f"{prefix}-{number}" for number in range(20)]
        fault = group.fault("new topics", loses=False, moves=True)
        with Admin(lab.cluster.zookeeper_connect) as admin:
            for name in names:
                admin.create_topic(name, 2)
        begin = monotonic_ns()
        group.topics = dict.fromkeys(names, 2)
        eventually(lambda: len(group.owners()) == 40, 20, "owners of all new topics")
        report.tell(f"20 topics: all owned {(monotonic_ns() - begin) / SECOND:.2f} s after the last")
        group.produce()
        group.flow()
        fault.settled()
        for member in group.members.values():
            before, after = rounds[member.name], member.tail.last("state")
            more = after["rounds"] - (before["rounds"] if before else 0) if after else 0
            report.tell(f"{member.name}: {more} rebalances for 20 topics")
            # a topic appears in two steps, and others release in between
            report.require(more <= 60, f"I8: {member.name} rebalanced {more} times for 20 new topics")
        sleep(1.0)
        group.finish()
        report.judged(group, lab.rules(bounds={"new topics": float("inf")}))
