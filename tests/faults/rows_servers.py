"""Faults of servers: rows 12, 14, 15 and 17 to 19 of the matrix, and an ensemble that loses its leader."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from itertools import pairwise
from time import monotonic_ns
from typing import Any

from tests.faults.checker import said
from tests.faults.events import Event
from tests.faults.group import RecordedGroup, Servers, sleep
from tests.faults.history import SECOND
from tests.faults.lab import PARTITIONS, Lab, Report, row
from tests.timing import eventually, scaled
from zkconsumer.devcluster import EmbeddedKafka, ZooKeeperEnsemble
from zkconsumer.zookeeper.cluster_admin import Admin

OUTAGE = {"zookeeper crash": 6.0, "outage": 12.0}
"""Seconds: a connection that broke is tried again after at most one, and a whole session after the rest."""


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
            report.require(said(group.history_so_far(), "suspended", begin), "I9: nothing told of the outage")
        group.finish()
        found = report.judged(group, lab.rules(bounds=OUTAGE))
        report.require(not found.of("lost"), "a blip shorter than the lease cost more than the pause")
        report.require(not report.verdict.duplicates, "a blip shorter than the lease made messages come again")


def _late(group: RecordedGroup, begin: int, session: float) -> list[Event]:
    """Return the hand-outs after the end of a lease that could not be renewed since ``begin``."""
    end = begin + int((session + 0.2) * SECOND)
    return [event for member in group.members.values() for event in member.hand_outs(end)]


def _own_topic(lab: Lab, broker: int | None) -> dict[int, list[int]]:
    return {number: [number % 2 if broker is None else broker] for number in range(PARTITIONS)}


@contextlib.contextmanager
def on_brokers(lab: Lab, row_name: str, assignment: dict[int, list[int]], **options: Any) -> Iterator[RecordedGroup]:
    """Return a group on a topic whose partitions are on given brokers."""
    with lab.group(row_name, len(assignment), assignment=assignment, **options) as group:
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
def group_on(lab: Lab, name: str, connect: str, broker: EmbeddedKafka, **options: object) -> Iterator[RecordedGroup]:
    """A group on servers of its own."""
    topic = f"{name}-{os.getpid()}"
    with Admin(connect) as admin:
        admin.create_topic(topic, PARTITIONS)
    with RecordedGroup(Servers(connect, broker.address), topic, lab.timing, {topic: PARTITIONS}, **options) as group:  # type: ignore[arg-type]
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


@row("14", "ZooKeeper set back to an older state, then wiped", harsh=True)
def set_back(lab: Lab, report: Report) -> None:
    session, cluster = lab.timing.session, lab.cluster
    server = cluster.zookeeper
    with lab.group("14") as group:
        group.start(3)
        old = server.directory / "older"
        fault = group.fault("zookeeper stopped", loses=False, heals=True)
        server.stop()
        shutil.copytree(server.directory / "data", old)
        server.start()
        fault.healed()
        group.settle()
        sleep(4 * lab.timing.commit)
        fault = group.fault("set back", loses=False, heals=True)
        server.stop()
        shutil.rmtree(server.directory / "data")
        shutil.copytree(old, server.directory / "data")
        server.start()
        for broker in cluster.brokers:  # they are refused as well, and for good: an operator's work
            broker.kill()
        for broker in cluster.brokers:
            broker.start()
        with Admin(cluster.zookeeper_connect) as admin:
            eventually(lambda: all(admin.leader(group.name, n) is not None for n in range(8)), 60, "leaders")
        fault.healed()
        group.settle(90)
        fault.settled()
        group.drain()
        report.require(group.drained, "I2: not everything came after ZooKeeper was set back")
        _wipe(lab, report, group)
        verdict, _ = group.judge(
            lab.rules(ordered=False, anew=frozenset({"set back"}), bounds={"set back": 5 * session})
        )
        report.verdict = verdict


def _wipe(lab: Lab, report: Report, group: RecordedGroup) -> None:
    """Delete all nodes, even the topics. Members must come back, report it, and end on request."""
    server, begin = lab.cluster.zookeeper, monotonic_ns()
    server.stop()
    shutil.rmtree(server.directory / "data")
    server.start()
    told = lambda: all(group.name in m.state and "exist" in m.state for m in group.members.values())  # noqa: E731
    eventually(told, 20 * lab.timing.session, f"word of the missing topic: {group.describe}")
    report.tell(f"all say that the topic is gone {(monotonic_ns() - begin) / SECOND:.1f} s after the wipe")
    for member in list(group.members.values()):
        group.leave(member)
    group.watcher.kill()


@row("15", "no quorum, one read-only server left")
def no_quorum(lab: Lab, report: Report) -> None:
    with (
        ensemble_of_three(lab, "-Dreadonlymode.enabled=true") as (ensemble, broker),
        group_on(lab, "quorum", ensemble.connect, broker) as group,
    ):
        group.start(3)
        fault = group.fault("no quorum", loses=False, heals=True)
        begin = monotonic_ns()
        for server in (ensemble.leader, ensemble.followers[0]):
            server.kill()
        eventually(lambda: all("suspended" in m.state for m in group.members.values()), 20, "suspended members")
        lines = {m.name: len(m.errors_text(100_000).splitlines()) for m in group.members.values()}
        sleep(3 * lab.timing.session)
        late = _late(group, begin, lab.timing.session)
        report.require(not late, f"I1: {len(late)} hand-outs after the lease's end, without a quorum")
        for member in group.members.values():
            more = len(member.errors_text(100_000).splitlines()) - lines[member.name]
            report.require(more < 60 * lab.timing.session, f"I8: {member.name} wrote {more} log lines without a quorum")
            claims = [e for e in member.events if e["e"] == "claim" and e["t"] > begin + SECOND and "error" not in e]
            report.require(not claims, f"{member.name} believes that it claimed something")
        ensemble.start()
        ensemble.wait_for_leader()
        broker.kill()  # its own session is not this row's matter
        broker.start()
        fault.healed()
        group.settle(60)
        fault.settled()
        group.finish()
        report.judged(group, lab.rules(bounds={"no quorum": 2 * lab.timing.bound}))


@row("18", "a broker that hangs")
def broker_hangs(lab: Lab, report: Report) -> None:
    seconds = lab.timing.times(5, 15)
    with on_brokers(lab, "18", _own_topic(lab, None)) as group:
        group.start(3, linked=("b",))
        before = group.owners()
        healthy = {f"{group.name}-{number}" for number in range(0, PARTITIONS, 2)}
        # the load stands still for the broker's partitions, and only for those
        load = group.produce(rate=lab.timing.rate // 2, epoch="x")
        del load
        broker = lab.cluster.brokers[1]
        fault = group.fault("broker hangs", loses=False, heals=True)
        begin = monotonic_ns()
        broker.suspend()
        sleep(seconds)
        gap = _largest_gap(group, healthy, begin, monotonic_ns())
        report.tell(f"largest gap of the other broker's partitions {gap:.2f} s of {seconds} s")
        report.require(gap < scaled(2.5), f"partitions of the healthy broker stood still for {gap:.2f} s")
        broker.resume()
        fault.healed()
        group.flow()
        fault.settled()
        link = group.links["b"].brokers[broker.address]
        fault = group.fault("broker link", loses=False, heals=True)
        link.swallow()
        sleep(seconds)
        link.carry()
        fault.healed()
        group.flow()
        fault.settled()
        report.require(group.owners() == before, "a hanging broker moved partitions")
        group.finish()
        report.judged(group, lab.rules(bounds={"broker hangs": 6.0, "broker link": 32.0}))


def _largest_gap(group: RecordedGroup, tps: set[str], begin: int, end: int) -> float:
    times: dict[str, list[int]] = {tp: [begin] for tp in tps}
    for member in group.members.values():
        for event in member.hand_outs(begin):
            if event["tp"] in tps and event["t"] <= end:
                times[event["tp"]].append(event["t"])
    gaps = [after - before for all_of_it in times.values() for before, after in pairwise([*sorted(all_of_it), end])]
    return max(gaps) / SECOND


@row("19", "leaders move; a broker comes back with a shorter log")
def leaders(lab: Lab, report: Report) -> None:
    both = {number: [number % 2, 1 - number % 2] for number in range(PARTITIONS)}
    with on_brokers(lab, "19", both) as group:
        group.start(3)
        before, broker = group.owners(), lab.cluster.brokers[1]
        fault = group.fault("leader moves", loses=False)
        broker.stop()
        group.flow()
        fault.settled()
        broker.start()
        sleep(2.0)
        report.require(group.owners() == before, "a leader's move moved partitions")
        group.finish()
        report.judged(group, lab.rules(bounds={"leader moves": 8.0}))
    _shorter_log(lab, report)


def _shorter_log(lab: Lab, report: Report) -> None:
    """Truncate the log before the member's position. The member goes back loudly, and new messages arrive.

    A broker that leads at once has the offset out of its log, and the reset policy applies. Otherwise the next leader
    epoch shows where the logs part.
    """
    broker = lab.cluster.brokers[1]
    with on_brokers(lab, "19", {0: [1]}) as group:
        group.start(1)
        sleep(2.0)
        group.drain()
        member = group.members["a"]
        most = max(event["o"] for event in member.hand_outs())
        broker.kill()
        segment = next((broker.directory / "data" / f"{group.name}-0").glob("*.log"))
        os.truncate(segment, segment.stat().st_size // 2)
        broker.start()
        since = monotonic_ns()
        group.produce({group.name: 1}, epoch="new-")
        sleep(2.0)
        new = _acked_values(group)
        eventually(lambda: {e["v"] for e in member.hand_outs(since)} >= new, 60, "what was written after")
        told = ("is not in the log; continuing at", "its log was truncated")
        loud = [line for line in member.errors_text(100_000).splitlines() if any(one in line for one in told)]
        report.require(bool(loud), "I9: the log does not tell that it was cut")
        report.require(len(loud) < 20, f"I8: the cut is told {len(loud)} times")
        report.tell(
            f"{most + 1} consumed, log cut to a half, read again from there or its start; told {len(loud)} times"
        )


def _acked_values(group: RecordedGroup) -> set[str]:
    producer = group.producers[-1]
    producer.signal(signal.SIGTERM)
    assert producer.wait_end(30)
    return {event["v"] for event in producer.events if event["e"] == "acked"}
