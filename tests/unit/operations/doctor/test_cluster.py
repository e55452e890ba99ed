"""The checks of chroots, rights, brokers, sessions and clocks: ill, healthy and unknown groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, stat
from tests.unit.operations.doctor.cases import (
    CHROOTS,
    CONFIG,
    NODES,
    RIGHTS,
    diagnosed,
    healthy,
    levels,
    sessions,
    table,
    with_log,
    with_member,
    with_problem,
)
from zkconsumer.operations.doctor import ClockProbe, examine
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, BrokerNode, GroupSnapshot, ZooKeeperServer

IN_CHROOT = healthy(zookeeper="zk:2181/kafka")
NO_BROKERS = replace(healthy(brokers={}), topics={}, logs={})
"""A group in a chroot in which no broker ever was. With topics in the chroot, its brokers are away."""
OPEN = {f"/consumers/g/{name}": RIGHTS for name in NODES}


@pytest.mark.parametrize(
    ("snapshot", "chroots", "expected", "remedy"),
    [
        (healthy(), CHROOTS, ["ok"], ""),
        (healthy(), None, ["unknown"], "without --from"),
        (NO_BROKERS, {"/kafka": ("brokers",)}, ["error"], "--zookeeper 127.0.0.1:2181/kafka"),
        (NO_BROKERS, None, ["error", "unknown"], "server.properties"),
        (healthy(brokers={}), CHROOTS, ["ok"], ""),
        (healthy(), {"": ("brokers", "group"), "/kafka": ("group",)}, ["warn"], "should be 127.0.0.1:2181"),
        (IN_CHROOT, {"/kafka": ("brokers", "group"), "/kafka/kafka": ("group",)}, ["warn"], "should be zk:2181/kafka"),
        (with_problem(healthy(brokers={}), "/brokers/ids"), CHROOTS, ["unknown"], ""),
        (healthy(zookeeper=""), CHROOTS, ["ok"], ""),
    ],
)
def test_chroot(snapshot: GroupSnapshot, chroots: Any, expected: list[str], remedy: str) -> None:
    found = diagnosed("chroot", snapshot, chroots=chroots)
    assert levels(found) == expected
    assert remedy in found[0].remedy


def test_a_doubled_chroot_is_named() -> None:
    beside = {"/kafka": ("brokers", "group"), "/kafka/kafka": ("group",)}
    (found,) = diagnosed("chroot", IN_CHROOT, chroots=beside)
    assert "/kafka and /kafka/kafka (the chroot is doubled)" in found.text


def test_a_member_with_another_chroot_is_told() -> None:
    other = {**CONFIG, "zookeeper.connect": "a:2181,b:2181/other/"}
    (found,) = diagnosed("chroot", IN_CHROOT, member_config=other, chroots={"/kafka": ("brokers", "group")})
    assert "name the chroot /other, the group was read in /kafka" in found.text


test_acl = table(
    "acl",
    (healthy(), ["ok"]),
    (healthy(acls={**OPEN, "/consumers/g/offsets/t": "sasl:a=cdrwa, world:anyone=r"}), ["warn"]),
    # as Scala members with a login make them: only registrations are open
    (
        healthy(acls={p: r if p.endswith("ids") else "sasl:a=cdrwa, world:anyone=r" for p, r in OPEN.items()}),
        ["ok"],
    ),
    (healthy(acls={}), ["unknown"]),
    (with_problem(healthy(), "/consumers/g/owners/t/1", FORBIDDEN_NODE), ["warn"]),
    (healthy(zookeeper=""), ["unknown"]),
)


def test_a_forbidden_node_is_told_once_as_a_warning() -> None:
    """One forbidden node made the same sentence appear ten times, each as a note."""
    path = "/consumers/g/ids/g_a"
    found = examine([with_problem(healthy(), path, FORBIDDEN_NODE)], chroots=CHROOTS)
    told = [one for one in found if path in one.text or FORBIDDEN_NODE in one.text]
    assert [(one.check, str(one.level)) for one in told] == [("acl", "warn")]
    assert "the right to read is missing" in told[0].text
    assert "undecided without these nodes: " in told[0].evidence
    assert f"setAcl {path} " in told[0].remedy


def test_mixed_rights_name_the_member_that_made_the_node() -> None:
    rights = {"/consumers/g/owners/t/0": "digest:alice=cdrwa, world:anyone=r", "/consumers/g/owners/t/2": RIGHTS}
    (found,) = diagnosed("acl", healthy(acls=rights))
    assert "digest:alice: /consumers/g/owners/t/0" in found.evidence
    assert "g_a-0 (digest:alice=cdrwa" in found.evidence


SECURE = {0: BrokerNode("b", 9093, protocols=("SSL",))}


@pytest.mark.parametrize(
    ("snapshot", "expected", "text"),
    [
        (healthy(), ["ok"], ""),
        (healthy(brokers={}), ["error"], "no broker is registered"),
        (with_problem(healthy(brokers={}), "/brokers/ids"), ["unknown"], "brokers were not read"),
        (healthy(brokers={}, zookeeper=""), ["unknown"], "no broker was asked"),
        (healthy(brokers=SECURE), ["error"], "no PLAINTEXT listener"),
        (healthy(brokers=SECURE, members={"g_b": {"t": 1}}), ["ok"], ""),
        (healthy(brokers={0: BrokerNode("b", 9092)}), ["unknown"], "the listeners of brokers 0"),
        (with_log(healthy(), "t:1", leader=-1, replicas=(0, 7), in_sync=(7,)), ["error", "warn"], "without a leader"),
        (with_log(healthy(), "t:1", leader=None, in_sync=(0,)), ["error"], "without a leader"),
        (with_log(healthy(), "t:1", problem="LEADER_NOT_AVAILABLE"), ["error"], "without a leader"),
        (with_log(healthy(), "t:1", replicas=(0, 7), in_sync=(0,)), ["warn"], "under-replicated"),
        (with_log(healthy(), "t:1", leader=None, replicas=(), in_sync=()), ["unknown"], "leaders and replicas of t:1"),
    ],
)
def test_brokers(snapshot: GroupSnapshot, expected: list[str], text: str) -> None:
    found = diagnosed("brokers", snapshot)
    assert levels(found) == expected
    assert text in found[0].text


SHORT = (ZooKeeperServer("zk:2181", tick_time=500, sessions={1: ("h:1", 10_000), 2: ("h:2", 6000)}),)


@pytest.mark.parametrize(
    ("snapshot", "config", "expected"),
    [
        (healthy(), None, ["ok"]),
        (healthy(), CONFIG, ["ok"]),
        (healthy(servers=SHORT), None, ["note"]),
        (healthy(servers=SHORT), {"zookeeper.session.timeout.ms": "30000"}, ["warn", "note"]),
        (healthy(servers=SHORT), {"zookeeper.session.timeout.ms": "soon"}, ["note", "unknown"]),
        (healthy(servers=()), None, ["unknown"]),
        (healthy(servers=sessions(zk={})), None, ["unknown"]),
        (healthy(servers=(ZooKeeperServer("zk", min_session_timeout=1, max_session_timeout=9),)), None, ["unknown"]),
        (healthy(members={}), None, ["ok"]),
    ],
)
def test_session_timeout(snapshot: GroupSnapshot, config: Any, expected: list[str]) -> None:
    assert levels(diagnosed("session-timeout", snapshot, member_config=config)) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, "unknown"),
        ({}, "ok"),  # 8 s against 6 s and the second for a message in hand
        (CONFIG, "ok"),
        ({"rebalance.max.retries": "3"}, "error"),
        ({"rebalance.max.retries": "13", "rebalance.backoff.ms": "500"}, "warn"),
        ({"zookeeper.sync.time.ms": "100"}, "error"),
        *(({"rebalance.max.retries": text}, "unknown") for text in ("many", "+-5", "-1", "9" * 30, "\u0663")),
    ],
)
def test_scala_patience(config: Any, expected: str) -> None:
    assert levels(diagnosed("scala-patience", healthy(), member_config=config)) == [expected]


def test_the_patience_that_is_advised_suffices() -> None:
    (found,) = diagnosed("scala-patience", healthy(), member_config={"rebalance.max.retries": "1"})
    assert "rebalance.max.retries=7 and rebalance.backoff.ms=2000" in found.remedy
    assert levels(diagnosed("scala-patience", healthy(members={"g_b": {"t": 1}}))) == ["ok"]


@pytest.mark.parametrize(
    ("age_ms", "expected", "text"),
    [
        (60_000, "ok", ""),
        (31_000, "ok", ""),
        (66_000, "warn", "is 6 s ahead of ZooKeeper's"),
        (0, "warn", "is 60 s behind ZooKeeper's, or it registered so late"),
        (120_000, "warn", "is 60 s ahead of ZooKeeper's"),
    ],
)
def test_member_clock(age_ms: int, expected: str, text: str) -> None:
    (found,) = diagnosed("member-clock", with_member(healthy(), "g_a", ctime=NOW - age_ms))
    assert levels([found]) == [expected]
    assert text in found.text


def test_a_registration_without_a_time_is_unknown() -> None:
    nodes = {
        c: replace(node, registration=replace(node.registration, timestamp="now"))
        for c, node in healthy().members.items()
        if node.registration is not None
    }
    assert levels(diagnosed("member-clock", replace(healthy(), members=nodes))) == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("probe", "snapshot", "expected", "text"),
    [
        (ClockProbe(NOW, NOW + 20, NOW + 10), healthy(), "ok", ""),
        (ClockProbe(NOW, NOW + 20, NOW + 8_020), healthy(), "warn", "8 s behind"),
        (ClockProbe(NOW, NOW + 20, NOW - 8_000), healthy(), "warn", "8 s ahead of"),
        # a creation that took long tells nothing about the clock
        (ClockProbe(NOW, NOW + 60_000, NOW + 30_000), healthy(), "ok", ""),
        (None, healthy(), "unknown", "--write-probe"),
        (None, with_member(healthy(), "g_a", mtime=NOW + 9_000), "warn", "at least 9 s behind"),
        (None, healthy(zookeeper="", ids_node=stat()), "ok", ""),
    ],
)
def test_our_clock(probe: ClockProbe | None, snapshot: GroupSnapshot, expected: str, text: str) -> None:
    (found,) = diagnosed("our-clock", snapshot, probe=probe)
    assert levels([found]) == [expected]
    assert text in found.text + found.remedy
