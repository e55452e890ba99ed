"""Faults of links: rows 8 to 11 of the matrix."""

from __future__ import annotations

from time import monotonic, monotonic_ns

from tests.faults.group import Open, RecordedGroup, sleep
from tests.faults.history import SECOND
from tests.faults.lab import Lab, Report, row
from tests.faults.processes import MemberProcess
from tests.timing import eventually


@row("8", "a black hole to ZooKeeper, brokers fine", quick=True)
def black_hole(lab: Lab, report: Report) -> None:
    _cut_off(lab, report, "8", ("up", "down"))


@row("11", "a half-open link: one direction swallowed")
def half_open(lab: Lab, report: Report) -> None:
    _cut_off(lab, report, "11", ("down",), ("up",), bound=hopeless(lab))


def _cut_off(lab: Lab, report: Report, name: str, *holes: tuple[str, ...], bound: float | None = None) -> None:
    session = lab.timing.session
    with lab.group(name) as group:
        lab.populate(group, linked=("b",))
        last = []
        for number in range(max(len(holes), lab.timing.times(1, 4))):
            victim = group.members["b"]
            victim.tell("commit", times=4, timeout=session)
            fault = group.fault("black hole", victim)
            begin = monotonic_ns()
            group.links["b"].zookeeper.swallow(*holes[number % len(holes)])
            group.abandoned(victim)
            sleep(session)
            after = [event["t"] - begin for event in victim.hand_outs(begin)]
            last.append(max(after, default=0) / SECOND)
            group.links["b"].zookeeper.carry()
            fault.healed()
            healed = group.fault("healing", victim, loses=False, moves=True)
            group.settle()
            healed.settled()
        group.finish()
        bounds = {"healing": 4.0, "black hole": bound or lab.rules().bound}
        report.judged(group, lab.rules(bounds=bounds))
        report.tell(f"last hand-out {max(last):.2f} s after the cut ({max(last) / session:.2f} T)")
        report.require(max(last) < session, "I1: hand-outs went on for a whole session after the cut")


@row("9", "a flapping link: away and back every 0.3 s")
def flapping(lab: Lab, report: Report) -> None:
    seconds = lab.timing.times(6, 20)
    with lab.group("9") as group:
        group.start(3, linked=("b",))
        before, victim = group.owners(), group.members["b"]
        link = group.links["b"].zookeeper
        fault = group.fault("flapping", victim, loses=False, heals=True)
        requests, connections = link.requests, link.connections
        end = monotonic() + seconds
        while monotonic() < end:
            link.drop()
            sleep(0.3)
            link.carry()
            sleep(0.3)
        fault.healed()
        group.settle()
        fault.settled()
        report.tell(
            f"{(link.requests - requests) / seconds:.0f} requests and {(link.connections - connections) / seconds:.1f}"
            f" connections a second"
        )
        report.require(group.owners() == before, "a flapping link moved partitions")
        report.require((link.requests - requests) / seconds < 200, "I8: a storm of requests")
        group.finish()
        # each return is a look at the group
        report.judged(group, lab.rules(bounds={"flapping": 3.0}, rounds=4 * seconds + 6))


@row("10", "a slow ZooKeeper")
def slow(lab: Lab, report: Report) -> None:
    session = lab.timing.session
    with lab.group("10") as group:
        group.start(3, linked=("b",))
        # an answer that takes more than two thirds of the session is given up by the client
        for delay in (session / 40, session / 10):
            report.verdict.slow += _works(report, group, delay)
        _works_or_gives_up(lab, report, group, 0.45 * session)
        _gives_up(lab, report, group, 0.75 * session)
        group.finish()
        unbounded = {"slow link": float("inf"), "join": float("inf"), "leave": float("inf")}
        report.judged(group, lab.rules(bounds={**unbounded, "dead link": hopeless(lab)}, rounds=None))


def hopeless(lab: Lab) -> float:
    """Return the bound for a member that reaches ZooKeeper but gets no answer, until another owns its partitions.

    The member's lease ends after one session timeout. The member abandons the session after half a timeout. The session
    ends after one more timeout if no request comes through.
    """
    return 3 * lab.timing.session + lab.timing.tick + 2.0


def _works(report: Report, group: RecordedGroup, delay: float) -> list[tuple[str, float, float]]:
    """Return the recovery if it was slow."""
    fault = group.fault("slow link", group.members["b"], loses=False, heals=True)
    group.links["b"].zookeeper.carry(delay, jitter=delay / 4)
    sleep(1.0)
    group.plan("leave")
    begin = monotonic_ns()
    group.leave(group.members["c"])
    group.settle()
    seconds = (monotonic_ns() - begin) / SECOND
    report.tell(f"{delay:.2f} s each way: a leave takes {seconds:.1f} s")
    _heal(group, fault)
    bound = 10 * delay + 1.0
    return [("a leave over a slow link", seconds, bound)] if seconds > bound else []


def _works_or_gives_up(lab: Lab, report: Report, group: RecordedGroup, delay: float) -> None:
    """Delay answers by nearly a session timeout. The member serves if they are in time, and reports it if not."""
    victim = group.members["b"]
    fault = group.fault("slow link", victim, heals=True)
    group.links["b"].zookeeper.carry(delay, jitter=delay / 8)
    sleep(2 * lab.timing.session)
    group.flow(hopeless(lab))
    owns = any(thread == f"{victim.consumer}-0" for thread, _ in group.owners().values())
    report.tell(f"{delay:.2f} s each way: all flows, {'with' if owns else 'without'} it")
    _heal(group, fault)


def _gives_up(lab: Lab, report: Report, group: RecordedGroup, delay: float) -> None:
    victim = group.members["b"]
    fault = group.fault("dead link", victim)
    begin = monotonic_ns()
    group.links["b"].zookeeper.carry(delay, jitter=delay / 4)
    eventually(lambda: "suspended" in victim.state or "rejoining" in victim.state, 20, "a suspended member")
    victim.tell("commit", times=2, timeout=1.0)
    group.abandoned(victim)
    report.tell(f"{delay:.2f} s each way: given up after {(monotonic_ns() - begin) / SECOND:.1f} s")
    _heal(group, fault)


def _heal(group: RecordedGroup, fault: Open) -> None:
    group.links["b"].zookeeper.carry()
    fault.healed()
    _whole(group)
    fault.settled()


def _whole(group: RecordedGroup) -> None:
    if "c" not in group.members:
        group.plan("join")
        _ = group.join("c", ready=False)
    for member in group.members.values():
        assert isinstance(member, MemberProcess)
        member.wait_for("ready")
    group.settle()
