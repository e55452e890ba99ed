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
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, BrokerNode, GroupSnapshot
from zkconsumer.zookeeper.node_values import ZooKeeperServer

IN_CHROOT = healthy(zookeeper="zk:2181/kafka")
NO_BROKERS = replace(healthy(brokers={}), topics={}, logs={})
"""A group in a chroot in which no broker ever was. With topics in the chroot, its brokers are away."""
MIXED = {"/consumers/g/owners/t/0": "digest:alice=cdrwa, world:anyone=r", "/consumers/g/owners/t/2": RIGHTS}
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


BESIDE: dict[str, tuple[str, ...]] = {"/kafka": ("brokers", "group"), "/kafka/kafka": ("group",)}
ELSEWHERE = {**CONFIG, "zookeeper.connect": "a:2181,b:2181/other/"}


test_chroot_of_others = table(
    "chroot",
    (IN_CHROOT, ["warn"], "/kafka and /kafka/kafka (the chroot is doubled)", {"chroots": BESIDE}),
    (
        IN_CHROOT,
        ["error"],
        "name the chroot /other, the group was read in /kafka",
        {"member_config": ELSEWHERE, "chroots": {"/kafka": ("brokers", "group")}},
    ),
)


test_acl = table(
    "acl",
    (healthy(), ["ok"]),
    (healthy(acls={**OPEN, "/consumers/g/offsets/t": "sasl:a=cdrwa, world:anyone=r"}), ["warn"]),
    # as Scala members with a login make them: only registrations are open
    (
        healthy(acls={p: r if p.endswith("ids") else "sasl:a=cdrwa, world:anyone=r" for p, r in OPEN.items()}),
        ["ok"],
    ),
    (healthy(acls=MIXED), ["warn"], "digest:alice: /consumers/g/owners/t/0", "g_a-0 (digest:alice=cdrwa"),
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


SECURE = {0: BrokerNode("b", 9093, protocols=("SSL",))}


test_brokers = table(
    "brokers",
    (healthy(), ["ok"]),
    (healthy(brokers={}), ["error"], "no broker is registered"),
    (with_problem(healthy(brokers={}), "/brokers/ids"), ["unknown"], "brokers were not read"),
    (healthy(brokers={}, zookeeper=""), ["unknown"], "no broker was asked"),
    (healthy(brokers=SECURE), ["error"], "no PLAINTEXT listener"),
    (healthy(brokers=SECURE, members={"g_b": {"t": 1}}), ["ok"]),
    (healthy(brokers={0: BrokerNode("b", 9092)}), ["unknown"], "the listeners of brokers 0"),
    (with_log(healthy(), "t:1", leader=-1, replicas=(0, 7), in_sync=(7,)), ["error", "warn"], "without a leader"),
    (with_log(healthy(), "t:1", leader=None, in_sync=(0,)), ["error"], "without a leader"),
    (with_log(healthy(), "t:1", problem="LEADER_NOT_AVAILABLE"), ["error"], "without a leader"),
    (with_log(healthy(), "t:1", replicas=(0, 7), in_sync=(0,)), ["warn"], "under-replicated"),
    (with_log(healthy(), "t:1", leader=None, replicas=(), in_sync=()), ["unknown"], "leaders and replicas of t:1"),
)


SHORT = (ZooKeeperServer("zk:2181", tick_time=500, sessions={1: ("h:1", 10_000), 2: ("h:2", 6000)}),)


test_session_timeout = table(
    "session-timeout",
    (healthy(), ["ok"]),
    (healthy(), ["ok"], {"member_config": CONFIG}),
    (healthy(servers=SHORT), ["note"]),
    (healthy(servers=SHORT), ["warn", "note"], {"member_config": {"zookeeper.session.timeout.ms": "30000"}}),
    (healthy(servers=SHORT), ["note", "unknown"], {"member_config": {"zookeeper.session.timeout.ms": "soon"}}),
    (healthy(servers=()), ["unknown"]),
    (healthy(servers=sessions(zk={})), ["unknown"]),
    (healthy(servers=(ZooKeeperServer("zk", min_session_timeout=1, max_session_timeout=9),)), ["unknown"]),
    (healthy(members={}), ["ok"]),
)


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


def registered(before: float) -> GroupSnapshot:
    """The group whose member ``g_a`` registered so many seconds before the snapshot, by ZooKeeper's clock."""
    return with_member(healthy(), "g_a", ctime=NOW - int(before * 1000))


UNTIMED = {
    consumer: replace(node, registration=replace(node.registration, timestamp="now"))
    for consumer, node in healthy().members.items()
    if node.registration is not None
}


test_member_clock = table(
    "member-clock",
    (registered(60), ["ok"]),
    (registered(31), ["ok"]),
    (registered(66), ["warn"], "is 6 s ahead of ZooKeeper's"),
    (registered(0), ["warn"], "is 60 s behind ZooKeeper's, or it registered so late"),
    (registered(120), ["warn"], "is 60 s ahead of ZooKeeper's"),
    (replace(healthy(), members=UNTIMED), ["unknown", "unknown"]),
)


test_our_clock = table(
    "our-clock",
    (healthy(), ["ok"], {"probe": ClockProbe(NOW, NOW + 20, NOW + 10)}),
    (healthy(), ["warn"], {"probe": ClockProbe(NOW, NOW + 20, NOW + 8_020)}, "8 s behind"),
    (healthy(), ["warn"], {"probe": ClockProbe(NOW, NOW + 20, NOW - 8_000)}, "8 s ahead of"),
    # a creation that took long tells nothing about the clock
    (healthy(), ["ok"], {"probe": ClockProbe(NOW, NOW + 60_000, NOW + 30_000)}),
    (healthy(), ["unknown"], "--write-probe"),
    (with_member(healthy(), "g_a", mtime=NOW + 9_000), ["warn"], "at least 9 s behind"),
    (healthy(zookeeper="", ids_node=stat()), ["ok"]),
)
