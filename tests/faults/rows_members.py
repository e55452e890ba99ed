"""Faults of members: rows 1, 2, 4, 5, 7, 29 and 30 of the matrix."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from tests.faults.checker import CLEAN, said
from tests.faults.group import RecordedGroup, sleep
from tests.faults.history import SECOND
from tests.faults.lab import Lab, Report, row
from tests.faults.processes import MemberProcess
from tests.timing import eventually


@row("1", "SIGKILL of one of three", quick=True, mixed=True)
def killed(lab: Lab, report: Report) -> None:
    with lab.group("1") as group:
        lab.populate(group)
        for number in range(lab.timing.times(2, 20)):
            victim = group.random.choice(sorted(group.members))
            sleep(group.random.uniform(0.0, 1.2))
            fault = group.kill(group.members[victim])
            group.settle()
            fault.settled()
            plan = group.plan("join")
            if number % 2:
                # another dies while the newcomer's arrival is being dealt with
                group.join(victim, ready=False)
                sleep(group.random.uniform(0.2, 0.9))
                other = group.random.choice(sorted(name for name in group.members if name != victim))
                fault = group.kill(group.members[other], "kill while joining")
                group.members[victim].wait_for("ready")
                group.settle()
                fault.settled()
                plan = group.plan("join")
                group.join(other, ready=False)
            else:
                group.join(victim, ready=False)
            group.settle()
            plan.settled()
        group.finish()
        report.judged(group, lab.rules(rounds=None))


@row("2", "clean stop, rolling bounce", quick=True, mixed=True)
def bounced(lab: Lab, report: Report) -> None:
    with lab.group("2") as group:
        lab.populate(group)
        for _ in range(lab.timing.times(1, 5)):
            for name in sorted(group.members):
                plan = group.plan("leave")
                group.leave(group.members[name])
                group.settle()
                plan.settled()
                plan = group.plan("join")
                group.join(name, ready=False)
                group.settle()
                plan.settled()
        group.finish()
        # a process needs its time to start before it can join
        report.judged(group, lab.rules(bounds={"leave": 1.0, "join": 3.0}))
    report.require(not report.verdict.duplicates[CLEAN], "I4: duplicates on clean moves")


@row("4", "zombie: SIGSTOP for two sessions under load", quick=True, mixed=True)
def zombie(lab: Lab, report: Report) -> None:
    with lab.group("4", work=0.002) as group:
        lab.populate(group)
        for _ in range(lab.timing.times(2, 5)):
            freeze_and_thaw(lab, group)
        group.finish()
        report.judged(group, lab.rules(bounds={"thaw": 4.0}))
    told_of_zombies(report)


def freeze_and_thaw(lab: Lab, group: RecordedGroup) -> None:
    """Make a zombie: resume a frozen member after the group has taken its partitions and handed messages out."""
    victim = group.members[group.random.choice(sorted(group.members))]
    sleep(group.random.uniform(0.0, 0.6))
    with group.frozen(victim):
        sleep(2 * lab.timing.session)
        group.abandoned(victim)
    again = group.fault("thaw", victim, loses=False, moves=True)
    group.settle()
    again.settled()


def told_of_zombies(report: Report) -> None:
    late, past = len(report.verdict.late), len(report.verdict.past_gate)
    report.tell(f"{report.verdict.frozen_runs} freezes: {late} late, {past} past the gate")
    for text in report.verdict.past_gate:
        report.tell(f"past the gate: {text}")


@row("5", "the session expires", quick=True, mixed=True)
def expired(lab: Lab, report: Report) -> None:
    with lab.group("5") as group:
        lab.populate(group)
        for number in range(lab.timing.times(4, 12)):
            victim = group.members[group.random.choice(sorted(group.members))]
            before = victim.session
            _just_then(group, victim, ("idle", "claim", "commit", "rebalance")[number % 4])
            fault = group.expire(victim)
            eventually(lambda v=victim, b=before: v.session != b, 20, "another session")  # type: ignore[misc]
            group.settle()
            fault.settled()
        group.finish()
        found = report.judged(group, lab.rules(bounds={"expiry": 2.0}))
        report.require(said(found, "rejoining|suspended"), "I9: no state told of the expiry")


def _just_then(group: RecordedGroup, victim: MemberProcess, when: str) -> None:
    """Wait for the moment of a kill: the begin of a commit, a claim, or a joining member's rebalance."""
    if when == "idle":
        sleep(group.random.uniform(0.0, 0.5))
        return
    if when == "commit":
        seen = len([e for e in victim.events if e["e"] == "commit"])
        eventually(lambda: len([e for e in victim.events if e["e"] == "commit"]) > seen, 10, "a commit")
        return
    # another member's session expires, so that the victim claims
    other = next(member for name, member in sorted(group.members.items()) if member is not victim)
    group.expire(other)
    if when == "claim":
        sleep(group.random.uniform(0.0, 0.1))
    else:
        sleep(group.random.uniform(0.05, 0.4))


@row("7", "own leftovers: the client forgets a session that lives on", quick=True)
def leftovers(lab: Lab, report: Report) -> None:
    with lab.group("7") as group:
        lab.populate(group)
        for _ in range(lab.timing.times(1, 4)):
            victim = group.members[group.random.choice(sorted(group.members))]
            fault = group.fault("forgotten session", victim)
            begin = monotonic_ns()
            old = victim.session[0]
            victim.tell("forget_session")
            eventually(lambda v=victim, o=old: v.session[0] != o, 20, "another session")  # type: ignore[misc]
            group.settle()
            fault.settled()
            waits = said(group.history_so_far(), "in use|waiting|held by|session|registered", begin, who=victim.name)
            report.require(waits, "I9: nothing told of waiting for the own old nodes")
        group.finish()
        report.judged(group, lab.rules())


@row("29", "clocks that step, freeze and run fast")
def clocks(lab: Lab, report: Report) -> None:
    with lab.group("29") as group:
        group.start(3)
        before = group.owners()
        lies: tuple[dict[str, Any], ...] = ({"step": 3600}, {"step": -3600}, {"freeze": True}, {"slew": 4.0})
        fault = group.fault("clock", loses=False)
        for lie, name in zip(lies, "abca", strict=True):
            group.members[name].tell("clock", **lie)
            sleep(lab.timing.session * 1.5)
            group.flow()
        fault.settled()
        report.require(group.owners() == before, "a clock moved partitions")
        group.finish()
        report.judged(group, lab.rules(bounds={"clock": 2.0}, rounds=1 + int(lab.timing.session * 6 / 20)))


@row("30", "user code that blocks or raises; resources that run out")
def user_code(lab: Lab, report: Report) -> None:
    session = lab.timing.session
    with lab.group("30") as group:
        group.start(3)
        # a handler that blocks for three sessions, and a member that joins meanwhile
        victim = group.members["a"]
        victim.tell("befall", what="block", seconds=3 * session)
        eventually(lambda: victim.tail.last("befallen"), 10, "a blocked handler")
        fault = group.fault("blocked handler", victim, loses=False, heals=True)
        begin = monotonic_ns()
        group.join("d", ready=False)
        group.members["d"].wait_for("ready")
        group.settle(flowing=False)
        report.tell(f"a join beside a blocked handler takes {(monotonic_ns() - begin) / SECOND:.1f} s with its start")
        group.flow(among={tp for tp, (thread, _) in group.owners().items() if victim.consumer not in thread})
        sleep(3 * session)
        fault.healed()
        group.settle()
        fault.settled()
        # a handler that raises: the message is not finished, its member leaves, another gets it
        victim = group.members["b"]
        fault = group.fault("failed handler", victim)
        victim.tell("befall", what="raise")
        failed = victim.wait_for("befallen")
        report.require(victim.wait_end(), "I6: a member whose handler failed does not end")
        group.members.pop("b").kill()
        group.settle()
        fault.settled()
        again = [
            e for m in group.members.values() for e in m.hand_outs() if (e["tp"], e["o"]) == (failed["tp"], failed["o"])
        ]
        report.require(bool(again), f"I2: {failed['tp']} {failed['o']}, whose handler failed, was not handed out again")
        _without_resources(group, report)
        group.settle()
        group.finish()
        found = report.judged(group, lab.rules(bounds={"blocked handler": 4.0}))
        report.tell(f"{report.verdict.overlaps} messages in hand at another's claim")
        report.require(bool(found.hand_outs), "nothing was handed out")


def _without_resources(group: RecordedGroup, report: Report) -> None:
    """Deny members a resource. They raise and leave nothing behind, which the checker verifies."""
    ended = 0
    tries: list[dict[str, Any]] = [{"limits": {"NOFILE": count}} for count in (7, 9, 11)]
    tries += [{"no_threads": count} for count in (1, 2, 4, 5, 6, 8)]
    for number, lack in enumerate(tries):
        member = group.join(f"poor{number}", ready=False, properties={"rebalance.max.retries": 4}, **lack)
        eventually(lambda m=member: m.tail.last("failed") or m.tail.last("ready"), 40, "an end or a beginning")  # type: ignore[misc]
        ended += member.tail.last("failed") is not None
        group.leave(member)
    report.tell(f"of {len(tries)} members without descriptors or threads {ended} refused to start")
