"""What befalls servers: rows 12 to 15 and 17 to 19 of the matrix, and an ensemble that loses its leader."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from time import monotonic_ns

from tests.faults.checker import said
from tests.faults.events import read_all
from tests.faults.group import Group, Servers, sleep
from tests.faults.history import SECOND, History, history
from tests.faults.lab import PARTITIONS, Lab, Report, row
from tests.timing import eventually
from zkconsumer.devcluster import EmbeddedKafka, EmbeddedZooKeeper, ZooKeeperEnsemble
from zkconsumer.registry.admin import Admin

OUTAGE = {"zookeeper crash": 6.0, "outage": 12.0}
"""Seconds: a connection that broke is tried again after at most one, and a whole session after the rest."""


def so_far(group: Group) -> History:
    """The history up to now."""
    return history(read_all(group.directory))


@row("12", "ZooKeeper killed and back after a second", quick=True)
def zookeeper_crash(lab: Lab, report: Report) -> None:
    # the session must outlast the start of a JVM, which takes a second or two, or many on a busy machine
    with lab.group("12", properties={"zookeeper.session.timeout.ms": 20_000}) as group:
        group.start(3)
        for _ in range(lab.timing.times(1, 3)):
            before = group.owners()
            fault = group.fault("zookeeper crash", loses=False, heals=True)
            begin = monotonic_ns()
            lab.cluster.zookeeper.kill()
            sleep(1.0)
            lab.cluster.zookeeper.start()
            fault.healed()
            group.settle()
            fault.settled()
            report.require(group.owners() == before, "the return of ZooKeeper moved partitions")
            report.require(said(so_far(group), "suspended", begin), "I9: nothing told of the outage")
        group.finish()
        found = report.judged(group, lab.rules(bounds=OUTAGE))
        report.require(not found.of("lost"), "a blip shorter than the lease cost more than the pause")
        report.require(not report.verdict.duplicates, "a blip shorter than the lease made messages come again")


@row("13", "ZooKeeper away for three sessions, and a member dies meanwhile")
def zookeeper_away(lab: Lab, report: Report) -> None:
    session = lab.timing.session
    with lab.group("13") as group:
        group.start(3)
        for number in range(lab.timing.times(1, 3)):
            fault = group.fault("outage", heals=True, loses=False)
            begin = monotonic_ns()
            lab.cluster.zookeeper.stop()
            sleep(session * 1.5)
            dead = group.members["c"] if number % 2 == 0 else None
            if dead is not None:
                group.kill(dead, "kill")
            sleep(session * 1.5)
            quiet = [
                e for m in group.members.values() for e in m.hand_outs(begin) if e["t"] > begin + 1.2 * session * SECOND
            ]
            report.require(not quiet, f"I1: {len(quiet)} hand-outs after the lease's end, without ZooKeeper")
            lab.cluster.zookeeper.start()
            fault.healed()
            group.settle(60)
            fault.settled()
            if dead is not None:
                plan = group.plan("join")
                group.join("c", ready=False)
                group.settle()
                plan.settled()
        group.finish()
        report.judged(group, lab.rules(bounds={"outage": 2 * lab.timing.bound, "kill": 60.0}))


def _own_topic(lab: Lab, broker: int | None) -> dict[int, list[int]]:
    return {number: [number % 2 if broker is None else broker] for number in range(PARTITIONS)}


@contextlib.contextmanager
def on_brokers(lab: Lab, row_name: str, assignment: dict[int, list[int]], **options: object) -> Iterator[Group]:
    """A group on a topic whose partitions are on given brokers."""
    with lab.group(row_name, assignment=assignment, **options) as group:
        yield group


@row("17", "brokers bounce: SIGTERM and SIGKILL, one of one and one of two", quick=True)
def broker_bounce(lab: Lab, report: Report) -> None:
    for name, assignment in (("one of two", _own_topic(lab, None)), ("one of one", _own_topic(lab, 1))):
        with on_brokers(lab, "17", assignment) as group:
            group.start(3)
            before = group.owners()
            rounds = {m.name: _rounds(m) for m in group.members.values()}
            broker = lab.cluster.brokers[1]
            for number in range(lab.timing.times(1, 5)):
                fault = group.fault(f"broker {name}", loses=False, heals=True)
                (broker.kill if (number + (name == "one of one")) % 2 else broker.stop)()
                sleep(0.5)
                broker.start()
                with Admin(lab.cluster.zookeeper_connect) as admin:
                    eventually(lambda: admin.leader(group.name, 1) == 1, 30, "the leader")
                fault.healed()
                group.flow()
                fault.settled()
            report.require(group.owners() == before, "a broker's bounce moved partitions")
            more = {m.name: _rounds(m) - rounds[m.name] for m in group.members.values()}
            report.tell(f"{name}: rebalances {sum(more.values())}")
            group.finish()
            report.judged(group, lab.rules(bounds={f"broker {name}": 2.0}))


def _rounds(member: object) -> int:
    event = member.tail.last("state")  # type: ignore[attr-defined]
    return int(event["rounds"]) if event else 0


@contextlib.contextmanager
def ensemble_of_three(lab: Lab, *java_options: str) -> Iterator[tuple[ZooKeeperEnsemble, EmbeddedKafka]]:
    """Three ZooKeepers and a broker."""
    with ZooKeeperEnsemble(tick_ms=int(lab.timing.tick * 1000), java_options=java_options) as ensemble:
        broker = EmbeddedKafka(
            ensemble.connect, properties={"zookeeper.session.timeout.ms": int(lab.timing.tick * 20_000)}
        )
        with broker:
            yield ensemble, broker


@contextlib.contextmanager
def group_on(lab: Lab, name: str, connect: str, broker: EmbeddedKafka, **options: object) -> Iterator[Group]:
    """A group on servers of its own."""
    topic = f"{name}-{os.getpid()}"
    with Admin(connect) as admin:
        admin.create_topic(topic, PARTITIONS)
    with Group(Servers(connect, broker.address), topic, lab.timing, {topic: PARTITIONS}, **options) as group:  # type: ignore[arg-type]
        yield group


@row("ensemble", "the leader of three ZooKeepers killed", quick=True)
def leader_killed(lab: Lab, report: Report) -> None:
    session = {"zookeeper.session.timeout.ms": int(lab.timing.tick * 20_000)}
    with (
        ensemble_of_three(lab) as (ensemble, broker),
        group_on(lab, "ensemble", ensemble.connect, broker, properties=session) as group,
    ):
        group.start(3)
        for _ in range(lab.timing.times(1, 3)):
            before = group.owners()
            dead = ensemble.leader
            fault = group.fault("leader killed", loses=False)
            dead.kill()
            ensemble.wait_for_leader()
            group.settle()
            fault.settled()
            report.require(group.owners() == before, "the death of ZooKeeper's leader moved partitions")
            dead.start()
            eventually(lambda: dead.mode == "follower", 30, "the old leader as a follower")  # noqa: B023
        # and a member dies while there are only two
        dead = ensemble.leader
        dead.kill()
        fault = group.kill(group.members["b"])
        group.settle()
        fault.settled()
        group.finish()
        report.judged(
            group, lab.rules(bounds={"leader killed": lab.timing.tick * 20 + 4.0, "kill": 3 * lab.timing.bound})
        )


__all__ = ["EmbeddedZooKeeper", "shutil"]
