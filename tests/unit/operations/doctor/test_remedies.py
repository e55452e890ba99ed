"""The remedies of the checks: each is done as told, and the check looks again.

Commands of the command line run on a cluster in memory. Other remedies change the snapshot as they say.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.group_snapshots import NOW, partition, stat
from tests.timing import scaled
from tests.unit.cli.command_line import CommandLine
from tests.unit.operations.doctor import test_balance as balanced
from tests.unit.operations.doctor import test_cluster as around
from tests.unit.operations.doctor import test_members as members
from tests.unit.operations.doctor import test_owners as owned
from tests.unit.operations.doctor import test_progress as moving
from tests.unit.operations.doctor.cases import (
    OURS,
    RIGHTS,
    diagnosed,
    healthy,
    later,
    levels,
    with_member,
    with_offset,
    with_owner,
    with_problem,
    without_owner,
)
from tests.values import present
from zkconsumer.core.message_pointers import Pointer, PointerKind, encode_pointers
from zkconsumer.core.registration import NUDGE
from zkconsumer.model import ConsumerId
from zkconsumer.operations.doctor import CHECKS, ClockProbe, Finding, Level, Observations, examine
from zkconsumer.operations.doctor.members import membership_size
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, GroupSnapshot, NoteSummary
from zkconsumer.testing import FakeCluster

Mend = Callable[[GroupSnapshot, str], GroupSnapshot]


def typed(snapshot: GroupSnapshot, remedy: str) -> GroupSnapshot:
    """The snapshot after the command of ``zookeeper-shell.sh`` in a remedy."""
    _, verb, *words = shlex.split(remedy.partition("zookeeper-shell.sh ")[2])
    if verb == "create":
        assert words == ["-e", "/consumers/g/ids/g_nudge", NUDGE]
        return replace(snapshot, owners={**snapshot.owners, **with_owner(healthy(), "t:2", "g_c-0").owners})
    if verb == "setAcl":
        return replace(snapshot, acls=dict.fromkeys(snapshot.acls, RIGHTS), problems=())
    _, version, path, *value = words
    part, *name = path.removeprefix("/consumers/g/").split("/")
    if part == "ids":
        assert version == str(present(snapshot.members[ConsumerId(name[0])].stat).version)
        return replace(snapshot, members={c: one for c, one in snapshot.members.items() if c != name[0]})
    if part == "offsets":
        assert (verb, value) == ("set", ["OFFSET"])
        return with_offset(snapshot, ":".join(name), 50)
    assert version == str(present(snapshot.owners[partition(":".join(name))].stat).version)
    return without_owner(snapshot, ":".join(name))


def restarted(snapshot: GroupSnapshot, remedy: str) -> GroupSnapshot:
    """The snapshot after the members that a remedy names have ended, or have begun anew: a healthy group."""
    return healthy()


SCALA_HEIR = healthy(members={"g_a": {"t": 1}}, extra={}, owners={"t:0": "g_a-0", "t:1": "g_x-0"})
IDLE = healthy(members={"g_a": {"t": 1}, "g_b": {"T": 1}}, extra={"g_b": {**OURS, "pid": "77"}})

CASES: dict[str, tuple[Any, Mend, str]] = {
    "persistent-owner": (
        with_owner(SCALA_HEIR, "t:1", ephemeral_owner=0, version=3),
        typed,
        "then wake g_a, a Scala member",
    ),
    "orphan-owner": (owned.LIVE_ORPHAN, restarted, r"at 10.0.0.9:1 \(there, ss -tnp 'sport = :1' shows"),
    "unknown-owner": (with_owner(healthy(), "t:1", "g_gone-0", ephemeral_owner=0, version=2), typed, "delete -v 2"),
    "unowned-partition": (owned.SCALA_ONLY, typed, "wake all members once"),
    "unreadable-registration": (with_member(healthy(), "g_a", "no JSON", ephemeral_owner=0), typed, "delete it"),
    "double-registration": (with_member(healthy(), "g_b", ephemeral_owner=0, version=4), typed, "delete -v 4"),
    "mixed-strategies": (
        members.owning("range", "1.x"),
        lambda now, remedy: members.owning(*re.findall(r"strategy=(\w+) for g_c", remedy) * 2),
        "set partition.assignment.strategy=range for g_c, and restart each of these; until the last one",
    ),
    "roundrobin-releases": (members.owning("1.x", "0.x"), lambda *_: members.owning("1.x", "1.x"), "same release"),
    "idle-member": (IDLE, restarted, r"\('T' may mean 't'\) of the process on h1 \(process 77\), or create"),
    "idle-threads": (healthy(members={"g_a": {"t": 1}, "g_b": {"t": 9}}), restarted, "fewer streams"),
    "flapping": (
        [members.CALM, later(members.CALM, 600, ids_node=stat(age=7200, cversion=30))],
        lambda now, _: later(now, 600),
        "Then look again: zkconsumer doctor g --twice 600",
    ),
    "mixed-coordination": (healthy(extra={"g_b": members.BRIDGE}), restarted, "migrate g --verify"),
    "session-timeout": (healthy(servers=around.SHORT), restarted, "compare with their zookeeper.session.timeout.ms"),
    "member-clock": (around.registered(0), restarted, "synchronise the clock"),
    "standing-still": (
        later(moving.waiting(), 900),
        lambda now, _: later(moving.waiting(-901), 900),
        r"see what the member does: kill -QUIT PID .* restart it: other members claim its partitions and begin",
    ),
    "no-member": (healthy(members={}, owners={}), restarted, "start its members; .*zkconsumer groups delete g "),
    "stuck": (
        [with_owner(healthy(), "t:1", "g_b-0"), later(with_owner(healthy(), "t:1", "g_b-0"), 600)],
        restarted,
        "see why: zkconsumer explain g ",
    ),
    "offset-not-a-number": (with_offset(healthy(), "t:1", None, "b'12 '"), typed, "write the right offset, 0 to 100"),
    "stores-disagree": (replace(healthy(), kafka_offsets=None), restarted, ""),
    "parked-beside-scala": (balanced.pointing(healthy(), {"t:0": balanced.pointers(2)}), restarted, "replace the"),
    "full-pointers": (balanced.crowded(balanced.pointers(900, 5)), restarted, "find out why they fail: zkconsumer"),
    "held-base": (balanced.noted(NoteSummary(50, 60, 9, 1, balanced.OLD)), restarted, "connector.state of the owner"),
    "void-note": (balanced.noted(NoteSummary(50, 90, 30, 10), 299), restarted, "nothing is lost"),
    "lost-loan": (balanced.lent(session=9), restarted, "the next owner that shares takes the slots over"),
    "mixed-sharing": (healthy(extra={"g_b": balanced.SHARING}), restarted, "set share.partitions=true on every"),
    "acl": (with_problem(healthy(), "/consumers/g/owners/t/1", FORBIDDEN_NODE), typed, "log in as the members do"),
    "chroot": (around.NO_BROKERS, restarted, "use --zookeeper 127.0.0.1:2181, and so for the members"),
    "brokers": (healthy(brokers=around.SECURE), restarted, "add a PLAINTEXT listener to each broker"),
    "unread": (with_problem(healthy(), "broker 0"), restarted, ""),
}
"""For each check an ill group, what the remedy does, and a part of the remedy."""


@pytest.mark.parametrize("check", CASES)
def test_a_remedy_mends_what_its_check_finds(check: str) -> None:
    ill, mend, words = CASES[check]
    looks = [ill] if isinstance(ill, GroupSnapshot) else ill
    found = diagnosed(check, *looks)[0]
    assert levels([found]) != ["ok"]
    assert re.search(words, found.remedy), found.remedy
    mended = mend(looks[-1], found.remedy)
    again = [*looks, mended][-len(looks) :]
    assert {one.level for one in diagnosed(check, *again)} == {0}


def test_what_is_left_after_a_command_is_told() -> None:
    """A Scala member claims nothing until its group changes, so the mended partition stays without an owner."""
    ill = with_owner(SCALA_HEIR, "t:1", ephemeral_owner=0)
    mended = typed(ill, diagnosed("persistent-owner", ill)[0].remedy)
    assert "create -e /consumers/g/ids/g_nudge" in diagnosed("unowned-partition", mended)[0].remedy


NAME = "--execute $(touch hurt)"


def test_commands_in_remedies_take_every_name_as_a_name() -> None:
    """A shell runs nothing that a name says, and a command takes no name for an option."""
    commands = 0
    for looks, _, _ in CASES.values():
        ill = [replace(one, group=NAME) for one in ([looks] if isinstance(looks, GroupSnapshot) else looks)]
        for remedy in (one.remedy for one in examine(ill, chroots={"/$(touch hurt)": ("brokers",)})):
            assert "$(" not in re.sub("'[^']*'", "", remedy)
            for command in re.findall(r"zkconsumer (.*)", remedy):
                words = shlex.split(command)
                assert NAME not in words[: words.index("--")] if NAME in words else f"--group={NAME}" in words
                commands += NAME in words
    assert commands > 5


def test_remedies_of_options_suffice() -> None:
    (found,) = diagnosed("scala-patience", healthy(), member_config={"rebalance.max.retries": "1"})
    config = dict(re.findall(r"(rebalance[\w.]+)=(\d+)", found.remedy))
    assert config == {"rebalance.max.retries": "7", "rebalance.backoff.ms": "2000"}
    assert levels(diagnosed("scala-patience", healthy(), member_config=config)) == ["ok"]
    assert levels(diagnosed("scala-patience", healthy(members={"g_b": {"t": 1}}))) == ["ok"]
    (found,) = diagnosed("our-clock", healthy(), probe=ClockProbe(NOW, NOW, NOW + 8_000))
    assert found.remedy == "synchronise the clock (NTP, chrony)"
    assert levels(diagnosed("our-clock", healthy(), probe=ClockProbe(NOW, NOW, NOW))) == ["ok"]


# ---- commands of the command line

DEAD, GONE = (Pointer(n, PointerKind.DEAD, 2, 0, NOW, "", "rejected") for n in (3, 1))
LATE = replace(DEAD, kind=PointerKind.PARKED, due_ms=1)
COMMANDS: dict[str, tuple[dict[str, bytes], str]] = {
    "dead-offsets": ({"offsets/gone/0": b"3"}, "offsets prune"),
    "offset-outside-log": ({"offsets/t/0": b"99"}, "groups --reset-offsets"),
    "parked-without-member": ({"parked/t/0": encode_pointers([LATE])}, "dead export"),
    "dead-letters": ({"parked/t/0": encode_pointers([DEAD])}, "dead list"),
    "pointer-retention": ({"parked/t/1": encode_pointers([GONE]), "offsets/t/1": b"7"}, "dead drop"),
}
"""For each check the nodes below the group's node, and the command of the remedy."""
THEN = {"parked-without-member": "dead drop g --parked --all", "dead-letters": "dead drop g --all"}
"""The command after one that only looks, or copies."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("t", 2)
        for number in range(2):
            made.append("t", number, [b"m"] * 9)
        made.truncate_before("t", 1, 5)
        yield made


@pytest.mark.parametrize("check", COMMANDS)
def test_a_command_mends_what_its_check_finds(
    check: str,
    cluster: FakeCluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    nodes, command = COMMANDS[check]
    line, where = CommandLine(capsys), ["--zookeeper", cluster.zookeeper_connect, "--timeout", str(int(scaled(9000)))]
    for path, content in nodes.items():
        cluster.zookeeper.put(f"/consumers/g/{path}", content)

    def found() -> Any:
        line.run("doctor", "g", "--format", "json", *where)
        return next(one for one in json.loads(line.out)[0]["findings"] if one["check"] == check)

    told = found()
    assert told["level"] in ("warn", "error")
    _, words = told["remedy"].split("zkconsumer ", 1)
    assert words.startswith(command)
    for one in filter(None, (words, THEN.get(check))):
        given = [word for word in shlex.split(one) if word != "--dry-run"]
        writes = [] if set(given) & {"export", "list"} else ["--execute"]
        assert line.run(*given, *where, *writes) == 0, line.err
    assert found()["level"] == "ok"
    cluster.zookeeper.remove("/consumers/g")


def test_fewer_members_with_more_streams_mend_their_list() -> None:
    """A raised ``jute.maxbuffer`` stands in no node, so the remedy says that the finding stays."""

    def group(members: int, streams: int) -> GroupSnapshot:
        node = next(iter(healthy().members.values()))
        wanted = replace(present(node.registration), subscription={"t": streams})
        names = (ConsumerId(f"g_{'h' * 100}-{number:08}") for number in range(members))
        return replace(healthy(), members=dict.fromkeys(names, replace(node, registration=wanted)))

    def sizes(snapshot: GroupSnapshot) -> list[Finding]:
        return list(membership_size(Observations([snapshot])))

    (found,) = sizes(group(10_000, 1))
    assert found.level is Level.ERROR
    assert found.remedy.startswith("use fewer members with more streams each, or raise jute.maxbuffer")
    assert found.remedy.endswith("does not learn of a raised jute.maxbuffer, and goes on to say this")
    assert sizes(group(2_000, 5)) == []


def test_every_check_has_a_remedy_that_was_done() -> None:
    """Tests of their own do the remedies of a membership's size, of a Scala member's patience, and of our clock."""
    assert {*CASES, *COMMANDS, "membership-size", "scala-patience", "our-clock"} == {one.name for one in CHECKS}
