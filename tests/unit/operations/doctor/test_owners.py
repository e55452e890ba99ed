"""The checks of owner nodes: ill, healthy and unknown groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, stat
from tests.unit.operations.doctor.cases import (
    OURS,
    diagnosed,
    healthy,
    later,
    levels,
    sessions,
    table,
    with_member,
    with_owner,
    with_problem,
    without_owner,
)
from zkconsumer.core.registration import NUDGE
from zkconsumer.model import ConsumerId
from zkconsumer.operations.doctor import Level
from zkconsumer.operations.group_snapshot import MemberNode
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.judgement import judge
from zkconsumer.zookeeper.node_codecs import decode_registration

SCALA_ONLY = healthy(members={"g_a": {"t": 1}, "g_c": {"t": 1}}, extra={}, owners={"t:0": "g_a-0", "t:1": "g_a-0"})
ORPHAN = with_owner(healthy(), "t:1", ephemeral_owner=77)
UNREAD = with_problem(healthy(), "/consumers/g/owners/t")
HOSTILE = healthy(owners={"t;rm -rf $HOME:1": "g_a-0"}, logs={"t;rm -rf $HOME:1": (0, 9)})
"""A shell would obey the name of this topic, unless commands quote it."""
LIVE_ORPHAN = replace(ORPHAN, servers=sessions(a={77: ("10.0.0.9:1", 6000)}))
T0, OWNER = next(iter(healthy().owners.items()))
FORBIDDEN = replace(healthy(), owners={**healthy().owners, T0: replace(OWNER, thread="", stat=None, problem="ACL")})


test_persistent_owner = table(
    "persistent-owner",
    (healthy(), ["ok"]),
    (
        with_owner(healthy(), "t:1", ephemeral_owner=0, version=3),
        ["error"],
        "zookeeper-shell.sh 127.0.0.1:2181 delete -v 3 /consumers/g/owners/t/1",
    ),
    (with_owner(HOSTILE, "t;rm -rf $HOME:1", ephemeral_owner=0), ["error"], "'/consumers/g/owners/t;rm -rf $HOME/1'"),
    (UNREAD, ["unknown"]),
    (with_problem(healthy(), "ZooKeeper zk:2181", "the rest was not read: gone"), ["unknown"]),
    (healthy(zookeeper="", bootstrap="b:9092"), ["unknown"]),
)


test_orphan_owner = table(
    "orphan-owner",
    (healthy(), ["ok"]),
    (ORPHAN, ["warn"], "the session ends within 40 s"),
    (replace(ORPHAN, servers=()), ["warn"], "40 s, the longest session by default"),
    (LIVE_ORPHAN, ["error"], "a live client owns 1 partition but", "connected from 10.0.0.9:1", " at 10.0.0.9:1"),
    ([ORPHAN, later(ORPHAN, 30)], ["warn"], "Either"),
    ([ORPHAN, later(ORPHAN, 41)], ["error"], "is not registered"),
    ([healthy(), later(ORPHAN, 41)], ["warn"], "Either"),
    (with_problem(ORPHAN, "/consumers/g/ids/g_x"), ["unknown"], "g_x"),
    (UNREAD, ["unknown"], "owners"),
)


test_unknown_owner = table(
    "unknown-owner",
    (healthy(), ["ok"]),
    (with_owner(healthy(), "t:1", "g_gone-0"), ["error"], "its member is not registered"),
    (with_owner(healthy(), "t:1", "g_a-7"), ["error"], "the member has other threads"),
    (with_owner(healthy(), "t:1", "g_gone-0", ephemeral_owner=77), ["ok"]),
    (with_owner(healthy(), "t:1", "g_gone-0", ephemeral_owner=0), ["error"], "its member is not registered"),
    (with_member(healthy(), "g_a", "no JSON"), ["ok"]),
    (FORBIDDEN, ["unknown"]),
)


test_unowned_partition = table(
    "unowned-partition",
    (healthy(), ["ok"]),
    (
        SCALA_ONLY,
        ["error"],
        "nobody owns 2 partitions, which g_c should own; it gave up",
        "= 8 s by default",
        "create -e /consumers/g/ids/g_nudge",
        '"subscription":{}',
    ),
    (SCALA_ONLY, ["note"], {"member_config": {"rebalance.max.retries": "100"}}),
    (without_owner(healthy(), "t:3"), ["error"], "which g_b should own; it cannot claim them"),
    (UNREAD, ["unknown"], "not all nodes were read"),
    (healthy(members={}), ["ok"]),
    # the last change is so young that a rebalance may be under way
    (replace(SCALA_ONLY, taken=NOW - 43_000), ["note"], "may be under way"),
    # the last change under ids left no time
    (replace(SCALA_ONLY, ids_node=stat(pzxid=900)), ["warn"], "or stuck"),
)


@pytest.mark.parametrize("check", ["idle-member", "member-clock", "mixed-strategies"])
def test_the_node_that_wakes_the_members_is_none_itself(check: str) -> None:
    # it was a member that subscribes to nothing, 20,785 days behind, by another strategy
    nudge = MemberNode(decode_registration(NUDGE.encode(), "/consumers/g/ids/g_nudge"), stat(ephemeral_owner=9))
    before = healthy(extra={"g_a": OURS, "g_b": OURS})
    woken = replace(before, members={**before.members, ConsumerId("g_nudge"): nudge})
    assert levels(diagnosed(check, woken)) == ["ok"]


@pytest.mark.parametrize("extra", [{}, {"g_b": OURS}, {"g_a": OURS, "g_b": OURS}], ids=len)
def test_a_group_is_judged_while_a_node_wakes_it(extra: dict[str, Any]) -> None:
    # the commands ended with a KeyError as long as it was there
    nudge = MemberNode(decode_registration(NUDGE.encode(), "/consumers/g/ids/g_nudge"), stat(ephemeral_owner=9))
    before = healthy(extra=extra)
    woken = replace(before, members={**before.members, ConsumerId("g_nudge"): nudge})
    assert judge((woken,)).severity is judge((before,)).severity is Level.OK
    assert GroupAnalysis(woken).strategy.label == GroupAnalysis(before).strategy.label
