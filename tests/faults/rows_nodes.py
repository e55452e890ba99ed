"""Faults of nodes in ZooKeeper: rows 16 and 27 of the matrix."""

from __future__ import annotations

from kazoo.security import make_acl

from tests.cluster.in_process import client_of
from tests.faults.checker import said
from tests.faults.group import RecordedGroup, sleep
from tests.faults.history import SECOND
from tests.faults.lab import Lab, Report, row
from tests.faults.proxy import Proxy
from tests.timing import eventually


@row("27", "owner nodes of strangers", quick=True, mixed=True)
def strangers(lab: Lab, report: Report) -> None:
    host, _, port = lab.cluster.zookeeper_connect.rpartition(":")
    with (
        lab.group("27") as group,
        client_of(group.servers.connect, 4.0) as alive,
        Proxy((host, int(port))) as link,
        client_of(link.address, lab.timing.session) as dying,
    ):
        base = f"/consumers/{group.name}/owners/{group.name}"
        alive.ensure_path(base)
        alive.create(f"{base}/0", f"{group.name}_stranger-0".encode(), ephemeral=True)
        alive.create(f"{base}/1", f"{group.name}_tool-0".encode())
        dying.create(f"{base}/2", f"{group.name}_dead-0".encode(), ephemeral=True)
        for name in "abc":
            group.join(name, ready=False)
        for member in group.members.values():
            member.wait_for("ready")
        if lab.mixed:
            group.join_legacy("scala")
        free = {f"{group.name}-{number}" for number in range(3, 8)}
        eventually(lambda: group.owners().keys() >= free, 30, "owners of the free partitions")
        group.flow(among=free)
        _named(group, report)
        _quiet(group, report, lab.timing.session)
        for number, what in ((2, "dead stranger"), (0, "live stranger"), (1, "persistent node")):
            fault = group.fault(what, loses=False, heals=number != 2)
            if number == 2:
                link.swallow()
            else:
                group.zookeeper.delete(f"{base}/{number}")
                fault.healed()
            free.add(f"{group.name}-{number}")
            group.flow(among=free)
            eventually(lambda: group.owners().keys() >= free, 30, "owners")
            fault.settled()
        link.carry()
        group.settle()
        group.finish()
        # each is timed over the partitions that had come free by then
        report.judged(group, lab.rules(bounds={"dead stranger": lab.timing.bound + lab.patience}))


def _named(group: RecordedGroup, report: Report) -> None:
    found = group.history_so_far()
    for number, holder in ((0, "stranger-0"), (1, "tool-0"), (2, "dead-0")):
        report.require(said(found, f"{group.name}-{number}.*{holder}"), f"I9: nothing names {holder}")


def _quiet(group: RecordedGroup, report: Report, seconds: float) -> None:
    """Check that a member with a long wait for another one uses little CPU and few requests."""
    lines = {name: len(m.errors_text(100_000).splitlines()) for name, m in group.members.items()}
    before = {name: m.wait_for("usage") for name, m in group.members.items()}
    sleep(2 * seconds)
    for name, member in group.members.items():
        eventually(lambda m=member, b=before[name]: m.tail.last("usage")["t"] > b["t"], 10, "usage")  # type: ignore[misc]
        after = member.wait_for("usage")
        cpu = (after["cpu"] - before[name]["cpu"]) / ((after["t"] - before[name]["t"]) / SECOND)
        more = len(member.errors_text(100_000).splitlines()) - lines[name]
        report.tell(f"{name}: {cpu:.0%} of a processor, {more} log lines in {2 * seconds:.0f} s")
        report.require(more <= 20 * seconds, f"I8: {name} wrote {more} log lines while it waited")


@row("16", "rights are taken away while we run")
def refused(lab: Lab, report: Report) -> None:
    with lab.group("16") as group:
        group.start(3)
        offset = f"/consumers/{group.name}/offsets/{group.name}/0"
        fault = group.fault("rights", loses=False)
        before = group.owners()
        zookeeper, read_only = group.zookeeper, [make_acl("world", "anyone", read=True, admin=True)]
        eventually(lambda: zookeeper.exists(offset) is not None, 10, "an offset node")
        zookeeper.set_acls(offset, read_only)
        stuck = int(zookeeper.get(offset)[0])
        holder = next(m for m in group.members.values() if m.consumer in before[f"{group.name}-0"][0])
        lines = len(holder.errors_text(100_000).splitlines())
        sleep(4 * lab.timing.commit)
        group.flow()
        others = [int(zookeeper.get(f"{offset[:-1]}{number}")[0]) for number in range(1, 8)]
        report.require(min(others) > stuck, "the other offsets are not committed any more")
        said_so = f"{group.name}-0" in holder.errors_text(100_000)
        report.require(said_so, "I9: nothing tells of the refused commit")
        more = len(holder.errors_text(100_000).splitlines()) - lines
        report.tell(f"{more} log lines in {4 * lab.timing.commit:.0f} s of refused commits")
        zookeeper.set_acls(offset, [make_acl("world", "anyone", all=True)])
        eventually(lambda: int(zookeeper.get(offset)[0]) > stuck, 20, "commits of partition 0 again")
        fault.settled()
        _no_claims(lab, report, group)
        group.finish()
        report.judged(group, lab.rules(bounds={"rights": 2.0, "rights to claim": 2.0}))


def _no_claims(lab: Lab, report: Report, group: RecordedGroup) -> None:
    """Forbid the creation of owner nodes: owned partitions flow on, and free ones wait until it is allowed again."""
    owners = f"/consumers/{group.name}/owners/{group.name}"
    group.zookeeper.set_acls(owners, [make_acl("world", "anyone", read=True, delete=True, admin=True)])
    dead = group.members["c"]
    kept = {tp for tp, (thread, _) in group.owners().items() if dead.consumer not in thread}
    group.leave(dead)
    eventually(lambda: all("ACL" in m.state or "refused" in m.state for m in group.members.values()), 20, "word of it")
    sleep(lab.timing.session)
    report.require(group.owners().keys() <= kept, "a member claimed without the right")
    fault = group.fault("rights to claim", loses=False, heals=True)
    group.zookeeper.set_acls(owners, [make_acl("world", "anyone", all=True)])
    fault.healed()
    group.settle()
    fault.settled()
