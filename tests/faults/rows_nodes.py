"""What befalls nodes in ZooKeeper: rows 16, 23 to 25, 27 and 28 of the matrix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns

from kazoo.client import KazooClient

from tests.faults.checker import said
from tests.faults.events import read_all
from tests.faults.group import Group, sleep
from tests.faults.history import SECOND, History, history
from tests.faults.lab import Lab, Report, row
from tests.faults.proxy import Proxy
from tests.timing import eventually, scaled
from tests.vectors.cases import load
from zkconsumer.errors import MalformedNodeError
from zkconsumer.registry import codecs

_VECTORS = Path(__file__).parents[1] / "vectors" / "data"
_LONG = b'{"version":1,"subscription":{"t":1},"pattern":"static","x":' + b"[" * 100_000


def so_far(group: Group) -> History:
    """The history up to now."""
    return history(read_all(group.directory))


def odd_contents(what: str) -> dict[str, bytes]:
    """The recorded contents of a kind of node, by the name of the case."""
    found = {}
    for case in load(_VECTORS, ("kafka111_hostile_nodes",)):
        if case.data["what"] == what:
            text = case.data["bytes_hex"]
            found[case.data["case"]] = _LONG if text == "(long)" else bytes.fromhex(text or "")
    return found


@row("23", "members that cannot be read", quick=True)
def unreadable_members(lab: Lab, report: Report) -> None:
    with lab.group("23") as group:
        group.start(3)
        before = group.owners()
        contents = odd_contents("other_member")
        fault = group.fault("unreadable member", loses=False)
        slowest, unreadable = 0.0, 0
        for number, (case, data) in enumerate(contents.items()):
            for ephemeral in (True, False) if lab.timing.session >= 3 else (number % 2 == 0,):
                path = f"/consumers/{group.name}/ids/{group.name}_odd-{case}"
                group.zookeeper.create(path, data, ephemeral=ephemeral)
                begin = monotonic_ns()
                if _cannot_be_read(data, path):
                    unreadable += 1
                    eventually(lambda p=path: _all_say(group, p), 10, f"word of {case}")  # type: ignore[misc]
                    slowest = max(slowest, (monotonic_ns() - begin) / SECOND)
                else:
                    sleep(0.2)
                report.require(group.owners() == before, f"{case}: partitions moved")
                group.zookeeper.delete(path)
        group.flow()
        fault.settled()
        report.tell(f"{len(contents)} contents, {unreadable} unreadable, named after {slowest:.2f} s at most")
        eventually(lambda: not _all_say(group, "odd-"), 10, "states without trouble")
        report.require(group.owners() == before, "partitions moved")
        group.finish()
        report.judged(group, lab.rules(bounds={"unreadable member": float("inf")}))
        report.require(not report.verdict.duplicates, "I4: repetitions by unreadable members")


def _cannot_be_read(data: bytes, path: str) -> bool:
    try:
        codecs.decode_registration(data, path)
    except MalformedNodeError:
        return True
    return False


def _all_say(group: Group, text: str) -> bool:
    return all(text in member.state for member in group.members.values())


@contextlib.contextmanager
def client(connect: str, timeout: float = 4.0) -> Iterator[KazooClient]:
    """Somebody else's session."""
    made = KazooClient(connect, timeout=timeout)
    made.start(timeout=scaled(20))
    try:
        yield made
    finally:
        made.stop()
        made.close()


@row("27", "owner nodes of strangers", quick=True, mixed=True)
def strangers(lab: Lab, report: Report) -> None:
    host, _, port = lab.cluster.zookeeper_connect.rpartition(":")
    with (
        lab.group("27") as group,
        client(group.servers.connect) as alive,
        Proxy((host, int(port))) as link,
        client(link.address, lab.timing.session) as dying,
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


def _named(group: Group, report: Report) -> None:
    found = so_far(group)
    for number, holder in ((0, "stranger-0"), (1, "tool-0"), (2, "dead-0")):
        report.require(said(found, f"{group.name}-{number}.*{holder}"), f"I9: nothing names {holder}")


def _quiet(group: Group, report: Report, seconds: float) -> None:
    """A member that waits for somebody else for long neither works nor talks much."""
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
