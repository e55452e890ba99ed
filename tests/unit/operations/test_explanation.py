"""Explanations of single partitions, from tables of snapshots."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, group_snapshot, partition, stat
from zkconsumer.model import ConsumerId
from zkconsumer.operations.explanation import explain, explained_partitions
from zkconsumer.operations.group_snapshot import (
    FORBIDDEN_NODE,
    BrokersGroup,
    BrokersMember,
    LoanNode,
    LogState,
    MemberNode,
    OwnerNode,
    Problem,
    TopicNode,
)
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.printable import ago, duration, moment
from zkconsumer.operations.strategy_inference import ROUNDROBIN
from zkconsumer.zookeeper.node_values import ZooKeeperServer

OURS = {"zkconsumer": "1.0", "strategy": "range"}
LOGS = {f"t:{n}": (0, 10) for n in range(4)}
TWO = {"g_a": {"t": 1}, "g_b": {"t": 1}}
OWNED = {"t:0": "g_a-0", "t:1": "g_a-0", "t:2": "g_b-0", "t:3": "g_b-0"}
ALL_OURS: Any = {"g_a": OURS, "g_b": OURS}
T0, T3 = partition("t:0"), partition("t:3")


def without(*names: str) -> dict[str, str]:
    return {tp: thread for tp, thread in OWNED.items() if tp not in names}


def test_a_healthy_partition() -> None:
    snapshot = group_snapshot(TWO, OWNED, {"t:3": 4}, LOGS, ALL_OURS)
    snapshot = replace(snapshot, logs={**snapshot.logs, T3: LogState(0, 10, 0, message_time=NOW - 184_000)})
    found = explain(snapshot, T3)
    assert (found.settled, found.should, found.owner, found.since) == (True, "g_b-0", "g_b-0", NOW - 50_000)
    assert found.sentence == "g_b-0 owns t-3, as it should by range."
    assert (found.position.lag, found.position.lag_ms, found.position.version) == (6, 184_000, 10)
    text = "\n".join(found.lines())
    assert "thread 2 of 2, g_b-0, gets partitions 2-3; t-3 is the 2nd of these" in text
    assert "4, version 10, at 2023-11-14 22:13:15 UTC (5 s ago)" in text
    assert "6 messages; in time: 3 min 4 s" in text
    assert json.loads(json.dumps(found.document()))["position"]["lag"] == 6


def test_without_lag_there_is_no_lag_in_time() -> None:
    """Nor is one guessed if the message has no timestamp, or was not read."""
    assert explain(group_snapshot(TWO, OWNED, {"t:0": 10}, LOGS), T0).position.lag_ms == 0
    behind = group_snapshot(TWO, OWNED, {"t:0": 1}, LOGS)
    assert explain(behind, T0).position.lag_ms is None
    untimed = replace(behind, logs={T0: LogState(0, 10, message_time=-1)})
    assert explain(untimed, T0).position.lag_ms is None
    assert "unknown" in "\n".join(explain(group_snapshot(TWO, OWNED, logs=LOGS), T0).lines())


LIVE = {1: ("/10.0.0.1:4", 6_000), 2: ("/10.0.0.2:4", 6_000)}


def server(sessions: dict[int, tuple[str, int]]) -> tuple[ZooKeeperServer, ...]:
    return (ZooKeeperServer("h:2181", mode="standalone", max_session_timeout=20_000, sessions=sessions),)


SOON = NOW - 48_000
"""Two seconds after the last change."""

UNCLAIMED, KEPT = {"owners": without("t:3")}, {"owners": {**OWNED, "t:3": "g_a-0"}}
ALIVE = {"owners": {**OWNED, "t:3": "g_x-0"}, "servers": server({**LIVE, 999: ("/10.0.0.9:1", 6_000)})}
ONE_LIVES = {"servers": server({1: LIVE[1]})}
SPARK = {"extra": {"g_a": {**OURS, "reader": "spark"}, "g_b": OURS}}
CONFIGURED = {"extra": {key: {**OURS, "strategy": "configured"} for key in TWO}}
DEAD_OWNER = {"owners": {**without("t:3"), "t:2": "g_gone-0"}}
DEAD_WHY = "it should also own t-2, which g_gone-0 owns; that thread is not registered"
FORMER, FORMER_WHY = OwnerNode("g_b-0", stat(ephemeral_owner=77)), "session 0x4d, and g_b now has session 0x2"
OTHER_ID = OwnerNode("g_other-0", stat(ephemeral_owner=2))

CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("Scala gave up", UNCLAIMED, "t:3", "seems to have given up", "rebalance.max.retries x rebalance.backoff.ms"),
    ("Scala tries", {**UNCLAIMED, "taken": SOON}, "t:3", "may still try", "all of its partitions or none"),
    ("ours late", {**UNCLAIMED, "extra": ALL_OURS}, "t:3", "not claimed it yet", "g_b (zkconsumer)"),
    ("dead owner", {"owners": {**OWNED, "t:3": "g_gone-0"}}, "t:3", "dead", "session 0x3e7 has not expired"),
    ("no such thread", {"owners": {**OWNED, "t:3": "g_b-7"}}, "t:3", "no such thread", "no thread g_b-7"),
    ("ours drains", {**KEPT, "extra": ALL_OURS}, "t:3", "drains", "reader's hands"),
    ("Spark keeps", {**KEPT, **SPARK}, "t:3", "Spark batch", "running batch"),
    (
        "Scala keeps",
        {**KEPT, "extra": {"g_b": OURS}, "taken": SOON},
        "t:3",
        "Scala member has not released",
        "its rebalance has not begun",
    ),
    ("nobody there", {"members": {}, "owners": {}}, "t:3", "no members", "no member is registered"),
    ("not subscribed", {"logs": {**LOGS, "u:0": (0, 1)}}, "u:0", "no member subscribes", "no registration"),
    ("no partition", {}, "t:9", "does not exist", "no such partition"),
    ("left over", {"owners": {**OWNED, "u:0": "g_a-0"}, "extra": ALL_OURS}, "u:0", "not exist any more", "any more"),
    ("no connection", ONE_LIVES, "t:3", "no connection", "the network keeps it away"),
    ("cannot claim", {**UNCLAIMED, **ONE_LIVES}, "t:3", "no connection", "g_b cannot claim it"),
    ("alive", ALIVE, "t:3", "alive but not registered", "from /10.0.0.9:1"),
    ("cannot be computed", {**UNCLAIMED, **CONFIGURED}, "t:3", "unknown", "assignment.table"),
    ("topic unread", {"topics": {"t": TopicNode((), None, "forbidden")}}, "t:3", "", "forbidden"),
    ("damaged owner", {"node": OwnerNode("", stat(ephemeral_owner=5), "no UTF-8")}, "t:3", "", "no UTF-8"),
    ("persistent owner", {"node": OwnerNode("g_b-0", stat(ephemeral_owner=0))}, "t:3", "persistent", ""),
    ("former session", {"node": FORMER}, "t:3", "former session", FORMER_WHY),
    ("two connectors", {"node": OTHER_ID}, "t:3", "", "session of g_b, under another consumer id"),
    ("a dead owner of another partition", DEAD_OWNER, "t:3", "given up", DEAD_WHY),
]


@pytest.mark.parametrize(("case", "given", "where", "short", "reason"), CASES, ids=[row[0] for row in CASES])
def test_the_cause_of_a_difference(case: str, given: dict[str, Any], where: str, short: str, reason: str) -> None:
    del case
    tp, nodes = partition(where), {partition(where): given["node"]} if "node" in given else {}
    rest = {key: value for key, value in given.items() if key != "node"}
    snapshot = group_snapshot(**{"members": TWO, "owners": OWNED, "logs": LOGS, **rest})
    found = explain(replace(snapshot, owners={**snapshot.owners, **nodes}), tp)
    assert not found.settled
    assert found.cause.until is None or "persistent" not in short
    assert short in found.sentence, found.sentence
    assert reason in found.cause.reason, found.cause


def test_a_dead_owner_ends_with_its_session_at_the_latest() -> None:
    given: Any = {"members": TWO, "owners": {**OWNED, "t:3": "g_gone-0"}, "logs": LOGS}
    assert explain(group_snapshot(**given), T3).cause.until == NOW + 40_000
    known = explain(group_snapshot(**given, servers=server(LIVE)), T3)
    assert known.cause.until == NOW + 20_000
    assert "the end of session 0x3e7" in known.cause.waits_for
    assert "until" in "\n".join(known.lines())


def test_an_ensemble_that_was_asked_in_part_proves_nothing() -> None:
    """The session may have its connection to the server that was not asked."""
    one = replace(server({1: LIVE[1]})[0], mode="follower")
    snapshot = group_snapshot(TWO, OWNED, logs=LOGS, servers=(one, one))
    assert explain(snapshot, T3).settled
    whole = replace(snapshot, servers=(one, one, replace(one, mode="leader")))
    assert not explain(whole, T3).settled
    assert explain(replace(whole, servers=(*whole.servers[:2], replace(one, problem="cons: off"))), T3).settled


def test_a_persistent_registration_is_no_member() -> None:
    """Somebody restored it from a backup: nobody consumes, and no session ends it."""
    snapshot = group_snapshot(TWO, without("t:3"), logs=LOGS)
    g_b = ConsumerId("g_b")
    left = replace(snapshot, members={**snapshot.members, g_b: replace(snapshot.members[g_b], stat=stat())})
    found = explain(left, T3)
    assert "registration is persistent" in found.sentence
    assert found.cause.until is None


def test_an_unreadable_member_keeps_its_partition() -> None:
    snapshot = group_snapshot({"g_a": {"t": 1}}, {"t:0": "g_bad-0"}, logs=LOGS)
    snapshot = replace(snapshot, members={**snapshot.members, ConsumerId("g_bad"): MemberNode(None, stat(), "no JSON")})
    found = explain(snapshot, T0)
    assert found.settled
    assert "its registration cannot be read" in "\n".join(found.why)


def test_an_owner_that_could_not_be_read_is_nobodys_fault() -> None:
    """A forbidden node under owners: nobody is blamed for a claim that may well stand."""
    problems = (Problem("/consumers/g/owners/t", FORBIDDEN_NODE),)
    found = explain(group_snapshot(TWO, logs=LOGS, problems=problems), T0)
    assert "its owner could not be read" in found.sentence
    assert "nobody" not in found.sentence.lower()
    assert "  owns it              unknown" in found.lines()
    assert "/consumers/g/owners/t cannot be read" in found.cause.reason


def test_members_with_two_strategies_contend() -> None:
    """g_b uses roundrobin and owns t-1. The Scala member g_a should own it by range, and claims nothing at all."""
    wanted: Any = {name: {"t": 1, "u": 1} for name in ("g_a", "g_b", "g_c")}
    given: Any = {"members": wanted, "logs": {**LOGS, "u:0": (0, 1)}, "extra": {"g_c": OURS}}
    by_turns = GroupAnalysis(group_snapshot(**given), strategy=ROUNDROBIN).expected
    theirs = {f"{tp.topic}:{tp.partition}": thread for tp, thread in by_turns.items() if thread == "g_b-0"}
    snapshot = group_snapshot(owners=theirs, **given)
    kept = explain(snapshot, partition("t:1"))
    assert "its owner uses another strategy" in kept.sentence
    assert "roundrobin" in kept.cause.reason
    unowned = explain(snapshot, T0)
    assert unowned.should == "g_a-0"
    assert "it should also own t-1, which g_b-0 owns; what g_b owns is explained by" in unowned.cause.reason


def test_members_of_ours_wake_a_scala_member_that_gave_up() -> None:
    alone = explain(group_snapshot(TWO, without("t:3"), logs=LOGS), T3)
    assert "for example a member that joins" in alone.cause.waits_for
    beside = explain(group_snapshot(TWO, without("t:2", "t:3"), logs=LOGS, extra={"g_a": OURS}), T3)
    assert "members of zkconsumer make one" in beside.cause.waits_for
    assert "or it does not assign by range" in beside.cause.reason


def test_a_brokers_group_is_explained_by_its_coordinator() -> None:
    brokers = BrokersGroup("Stable", "range", members=(BrokersMember("m-1", "c", "/h", None, (T0,), ("t",)),))
    snapshot = group_snapshot(brokers_group=brokers, group_node=None, ids_node=None, logs=LOGS)
    found = explain(snapshot, T0)
    assert found.sentence == "m-1 owns t-0, as it should by range."
    assert found.why[-1] == "member 1 of 1, m-1, gets partitions 0-3; t-0 is the 1st of these"
    assert found.topic.partitions == (0, 1, 2, 3)
    elsewhere = replace(brokers.members[0], assignment=(), member_id="m-0")
    given = replace(snapshot, brokers_group=replace(brokers, members=(*brokers.members, elsewhere)))
    assert explain(given, T0).why[-1].startswith("the leader gave it to m-1: with racks")
    moving = replace(snapshot, brokers_group=replace(brokers, state="PreparingRebalance", members=()))
    assert "rebalances" in explain(moving, T0).sentence


def test_loans_say_why_others_handle_a_partition() -> None:
    loans = {
        "g_c": LoanNode(64, 3, 2, stat(9), 3, 64, 1234, stat(10)),
        "g_d": LoanNode(0, 4, 2, stat(9), 3, 32, 7, stat(10)),
        "g_e": LoanNode(8, 4, 77, stat(9)),
        "g_f": LoanNode(None, None, None, stat(9), problem="it is no loan"),
        "g_g": LoanNode(0, 5, 2, stat(9), 5, 0, 7, stat(10)),
    }
    made = group_snapshot({"g_a": {"t": 1}, "g_b": {"t": 1}}, {"t:0": "g_b-0"}, {"t:0": 4}, {"t:0": (0, 9)})
    given = {ConsumerId(name): loan for name, loan in loans.items()}
    found = explain(replace(made, loans={T0: given}), T0)
    assert found.loans == (
        "g_c handles 64 of 256 slots, all of them finished before offset 1234",
        "g_d handles 0 of 256 slots, still holds 32, all of them finished before offset 7",
        "g_e handles 8 of 256 slots; it does not count, since the lender is not the owner",
        "g_f: unknown, for it is no loan",
    )
    assert f"  {'on loan':20} {found.loans[0]}" in found.lines()


def test_all_partitions_of_a_group_are_listed_once() -> None:
    analysis = GroupAnalysis(group_snapshot(TWO, {**OWNED, "u:5": "g_a-0"}, {"old:0": 3}, LOGS))
    assert [str(tp) for tp in explained_partitions(analysis)] == ["t-0", "t-1", "t-2", "t-3", "u-5"]


def test_moments_in_words() -> None:
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(1 << 62) == f"{1 << 62} ms since 1970"
    said = [duration(ms) for ms in (0, 250, 9_500, 61_000, 3_600_000, 90_061_000)]
    assert said == ["0 s", "0.25 s", "9.5 s", "1 min 1 s", "1 h", "1 d 1 h"]
    assert (ago(1_000, 3_000), ago(3_000, 1_000)) == ("2 s ago", "2 s ahead of our clock")
