"""The checks of registrations and strategies: ill, healthy and unknown groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, stat
from tests.unit.operations.doctor.cases import OURS, diagnosed, healthy, later, levels, table, with_member, with_problem
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import BrokersGroup, BrokersMember, GroupSnapshot

UNREAD = with_problem(healthy(), "/consumers/g/ids/g_a")
WITHOUT_STAT = {c: replace(node, stat=None) for c, node in healthy().members.items()}
TWELVE = {f"t:{n}": (0, 9) for n in range(12)}
THREE = {"g_a": {"t": 1}, "g_b": {"t": 1}, "g_c": {"t": 1}}
# By the vectors of round-robin over 12 partitions: releases 1.x sort 0..11, releases 0.x sort 10, 11, 0..9.
OWNS = {"range": (0, 1, 2, 3), "1.x": (0, 3, 6, 9), "0.x": (1, 4, 7, 10)}
B_OWNS = {"range": (4, 5, 6, 7), "1.x": (1, 4, 7, 10), "0.x": (2, 5, 8, 11)}
C_OWNS = {"range": (8, 9, 10, 11), "1.x": (2, 5, 8, 11), "0.x": (0, 3, 6, 9)}


def owning(a: str, c: str, **more: Any) -> GroupSnapshot:
    """Scala members: ``g_c`` first claimed its share by its strategy, then ``g_a`` and ``g_b`` claimed the rest."""
    owners = {f"t:{n}": "g_a-0" for n in OWNS[a]} | {f"t:{n}": "g_b-0" for n in B_OWNS[a]}
    owners |= {f"t:{n}": "g_c-0" for n in C_OWNS[c]}
    return healthy(members=THREE, extra={}, owners=owners, logs=TWELVE, offsets={}, **more)


test_unreadable_registration = table(
    "unreadable-registration",
    (healthy(), ["ok"]),
    (with_member(healthy(), "g_a", "no JSON"), ["error"]),
    (with_member(healthy(), "g_a", "no JSON", ephemeral_owner=0, version=4), ["error"], "delete -v 4 /consumers/g/ids"),
    (UNREAD, ["unknown"]),
)


test_double_registration = table(
    "double-registration",
    (healthy(), ["ok"]),
    (with_member(healthy(), "g_b", ephemeral_owner=1), ["warn"]),
    (with_member(healthy(), "g_b", ephemeral_owner=0), ["error"]),
    (healthy(extra={"g_a": {**OURS, "pid": "7"}, "g_b": {**OURS, "pid": "7"}}), ["note"]),
    (healthy(extra={"g_a": {**OURS, "pid": "7"}, "g_b": {**OURS, "pid": "8"}}), ["ok"]),
    (replace(healthy(), members=WITHOUT_STAT), ["unknown", "unknown"]),
)


ADVERTISED = {**OURS, "strategy": "roundrobin", "scala.compat.version": "0.10"}


test_mixed_strategies = table(
    "mixed-strategies",
    (healthy(), ["ok"]),
    (owning("range", "range"), ["ok"]),
    (owning("1.x", "1.x"), ["ok"]),
    (owning("range", "1.x"), ["error"], "g_c: roundrobin (1.x) (it owns t:2,5,8,11)"),
    (owning("1.x", "0.x"), ["ok"]),
    (owning("1.x", "range"), ["error"]),
    # a Scala member that owns nothing tells nothing
    (healthy(owners={"t:2": "g_b-0", "t:3": "g_b-0"}), ["warn"]),
    (healthy(members={}), ["ok"]),
    (healthy(extra={"g_b": ADVERTISED}), ["error"], "it advertises that"),
    (healthy(extra={"g_b": {**OURS, "strategy": "average"}}), ["note"], "average is not in effect"),
)


test_roundrobin_releases = table(
    "roundrobin-releases",
    (healthy(), ["ok"]),
    (owning("1.x", "1.x"), ["ok"]),
    (owning("range", "1.x"), ["ok"]),
    (owning("1.x", "0.x"), ["error"]),
)


def test_a_strategy_of_before_counts_in_an_earlier_snapshot() -> None:
    """Contending members give up in turn. A single look shows only one contending member."""
    first, second = owning("range", "range"), owning("1.x", "1.x")
    first = replace(first, owners={tp: n for tp, n in first.owners.items() if n.thread == "g_a-0"})
    second = replace(second, owners={tp: n for tp, n in second.owners.items() if n.thread == "g_c-0"})
    assert levels(diagnosed("mixed-strategies", second)) != ["error"]
    assert levels(diagnosed("mixed-strategies", first, later(second, 5))) == ["error"]


def test_what_a_silent_member_would_claim_is_told() -> None:
    (found,) = diagnosed("mixed-strategies", healthy(owners={"t:2": "g_b-0", "t:3": "g_b-0"}))
    assert "roundrobin (1.x) would make it claim t:2, which others own" in found.evidence
    assert "set one strategy. These members have range: g_b" in found.text


@pytest.mark.parametrize(
    ("members", "extra", "expected", "text"),
    [
        ({"g_a": {"t": 1}}, {}, "ok", ""),
        ({"g_a": {"t": 1}, "g_b": {}}, {}, "warn", "g_b subscribes to nothing"),
        ({"g_a": {"t": 1}, "g_b": {}}, {"g_b": OURS}, "warn", "g_b subscribes to nothing"),
        ({"g_a": {"t": 1}, "g_b": {"evnets": 1}}, {"g_b": OURS}, "warn", "topics that do not exist"),
        ({"g_a": {"t": 1}, "g_b": {"evnets": 1, "t": 1}}, {}, "note", "also to evnets, which does not exist"),
    ],
)
def test_idle_members(members: Any, extra: Any, expected: str, text: str) -> None:
    """A member that subscribes to nothing was named by no tool."""
    found = diagnosed("idle-member", healthy(members=members, extra=extra))
    assert levels(found) == [expected]
    assert text in found[0].text


test_idle_threads = table(
    "idle-threads",
    (healthy(), ["ok"]),
    (healthy(members={"g_a": {"t": 1}, "g_b": {"t": 9}}), ["note"]),
    (healthy(members={}), ["ok"]),
)


@pytest.mark.parametrize(
    ("members", "expected"), [(10, ["ok"]), (14_000, ["warn"]), (30_000, ["error"])], ids=["few", "many", "too-many"]
)
def test_membership_size(members: int, expected: list[str]) -> None:
    node = next(iter(healthy().members.values()))
    many = {f"g_{'h' * 30}-{number:06}": node for number in range(members)}
    from zkconsumer.operations.doctor import Observations
    from zkconsumer.operations.doctor.members import membership_size

    found = list(membership_size(Observations([replace(healthy(), members=many)])))  # type: ignore[arg-type]
    assert (levels(found) or ["ok"]) == expected
    assert levels(diagnosed("membership-size", UNREAD)) == ["unknown"]


CALM = replace(healthy(), ids_node=stat(age=7200, cversion=10))


OLD = {tp: replace(node, stat=stat(version=5000)) for tp, node in CALM.offsets.items()}


test_flapping = table(
    "flapping",
    ([CALM, later(CALM, 600)], ["ok"]),
    ([CALM, later(CALM, 600, ids_node=stat(age=7200, cversion=30))], ["warn"]),
    ([CALM, later(CALM, 60, ids_node=stat(age=7200, cversion=12))], ["ok"]),
    ([CALM, later(CALM, 60, ids_node=stat(age=100, cversion=99))], ["unknown"]),
    ([CALM], ["unknown"]),
    ([healthy(members={})], ["ok"]),
    # a young member of an old group
    ([with_member(replace(CALM, offsets=OLD), "g_a", ctime=NOW - 5_000)], ["note", "unknown"]),
)


BRIDGE = {**OURS, "coordination": "kafka"}
JAVA = BrokersMember("m-1", "java-1", "h", assignment=(TopicPartition("t", 0),))


test_mixed_coordination = table(
    "mixed-coordination",
    (healthy(), ["ok"]),
    (healthy(other_nodes={"/consumers/g/broadcast": stat(), "/consumers/g/broadcast/g_x": stat()}), ["error"]),
    (healthy(other_nodes={"/consumers/g/broadcast": stat()}), ["ok"]),
    (healthy(extra={"g_b": BRIDGE}), ["note"]),
    (healthy(brokers_group=BrokersGroup("Stable", members=(JAVA,))), ["error"]),
    (healthy(extra={"g_a": BRIDGE, "g_b": BRIDGE}), ["ok"]),
    (healthy(brokers_group=None), ["unknown"]),
)
