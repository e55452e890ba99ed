"""Faults of topics: rows 20 to 22 of the matrix."""

from __future__ import annotations

import os
import signal
from collections import Counter
from time import monotonic_ns

from tests.faults.checker import all_leaves, never_hangs
from tests.faults.events import Event, read_all
from tests.faults.group import RecordedGroup, sleep
from tests.faults.history import SECOND, history
from tests.faults.lab import Lab, Report, row
from tests.faults.verdict import Verdict
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


@row("20", "a topic is deleted while it is consumed")
def deleted(lab: Lab, report: Report) -> None:
    with lab.group("20") as group:
        doomed = f"{group.name}-doomed"
        lab.cluster.create_topic(doomed, 4)
        group.topics[doomed] = 4
        load = group.produce({doomed: 4}, rate=50)
        group.start(3)
        lines = {m.name: len(m.errors_text(100_000).splitlines()) for m in group.members.values()}
        fault = group.fault("topic deleted", loses=False)
        load.signal(signal.SIGTERM)
        lab.cluster.delete_topic(doomed)
        del group.topics[doomed]
        kept = {f"{group.name}-{number}" for number in range(8)}
        begin = monotonic_ns()
        eventually(lambda: group.owners().keys() == kept, 20, f"no owners of the deleted topic: {group.describe}")
        report.tell(f"its owner nodes are gone after {(monotonic_ns() - begin) / SECOND:.2f} s")
        group.flow(among=kept)
        sleep(2 * lab.timing.session)
        fault.settled()
        for member in group.members.values():
            report.require(doomed in member.state, f"I9: {member.name} says nothing of the topic: {member.state}")
            more = len(member.errors_text(100_000).splitlines()) - lines[member.name]
            report.require(more < 100, f"I8: {member.name} wrote {more} log lines about a deleted topic")
        group.finish()
        report.judged(group, lab.rules(drop=frozenset({doomed}), bounds={"topic deleted": 2.0}))


@row("21", "a topic is deleted and made again, smaller")
def made_again(lab: Lab, report: Report) -> None:
    with lab.group("21", load=False) as group:
        load = group.produce(epoch="old-")
        group.start(3)
        sleep(2 * lab.timing.commit)
        load.signal(signal.SIGTERM)
        load.wait_end(70)
        offsets = max(int(e["o"]) for m in group.members.values() for e in m.hand_outs())
        lab.cluster.delete_topic(group.name)
        lab.cluster.create_topic(group.name, 4)
        group.topics[group.name] = 4
        left = {f"{group.name}-{number}" for number in range(4)}
        new = group.produce(epoch="new-", rate=40)
        eventually(lambda: group.owners().keys() == left, 30, f"owners of the partitions there are: {group.describe}")
        sleep(2.0)
        new.signal(signal.SIGTERM)
        new.wait_end(70)
        wanted = {e["v"] for e in new.events if e["e"] == "acked"}

        def came() -> bool:
            return {e["v"] for m in group.members.values() for e in m.hand_outs()} >= wanted

        eventually(came, 40, f"all of the new topic: {group.describe}")
        report.tell(f"offsets were at {offsets}; all {len(wanted)} messages of the new topic came")
        _count_new(report.verdict, wanted, [e for m in group.members.values() for e in m.hand_outs()])
        group.finish(drain=1)
        _judge_the_end(group, lab, report)


def _count_new(verdict: Verdict, wanted: set[str], hand_outs: list[Event]) -> None:
    """Check a recreated topic by its values. Its offsets repeat the old ones, so I1 to I5 would mix the two logs up."""
    times = Counter(e["v"] for e in hand_outs if e["v"] in wanted)
    verdict.acked += len(wanted)
    verdict.handed_out += times.total()
    verdict.lost += sorted(wanted - times.keys())
    verdict.duplicates["topic made again"] += times.total() - len(times)


def _judge_the_end(group: RecordedGroup, lab: Lab, report: Report) -> None:
    """Check only the end of each member, not the topics."""
    found = history(read_all(group.directory))
    never_hangs(found, lab.rules(), report.verdict)
    report.verdict.violations += all_leaves(found)
