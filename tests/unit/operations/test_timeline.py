"""The timeline: events of one snapshot and of several, and the rebalances that they form."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.group_snapshots import NOW, group_snapshot, partition
from tests.timing import scaled
from zkconsumer.cli.timeline import report, since
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import (
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    MemberNode,
    NodeStat,
    OffsetNode,
    OwnerNode,
    Problem,
    TopicNode,
)
from zkconsumer.operations.group_timeline import EventKind, TimelineEvent, events, rebalances

Claims = dict[str, tuple[str, int]]


def at(zxid: int) -> int:
    """The time of a transaction in these tests: one each 100 ms."""
    return NOW + 100 * zxid


def node(zxid: int, **more: Any) -> NodeStat:
    return NodeStat(**{"czxid": zxid, "mzxid": zxid, "ctime": at(zxid), "mtime": at(zxid), **more})


def look(
    zxid: int, members: dict[str, int], owners: Claims, ids: tuple[int, int] = (0, 0), **more: Any
) -> GroupSnapshot:
    """A snapshot at a transaction: members with their joins, owners with their claims, (pzxid, cversion) of ids."""
    sessions = {name: number + 1 for number, name in enumerate(members)}
    found: dict[str, Any] = {
        "group": "g",
        "taken": at(zxid),
        "zxid": zxid,
        "group_node": node(1),
        "ids_node": node(2, pzxid=ids[0], cversion=ids[1], children=len(members)),
        "members": {
            ConsumerId(name): MemberNode(Registration(STATIC, {"t": 1}), node(joined, ephemeral_owner=sessions[name]))
            for name, joined in members.items()
        },
        "owners": {
            partition(text): OwnerNode(thread, node(claimed, ephemeral_owner=sessions.get(thread[:-2], 99)))
            for text, (thread, claimed) in owners.items()
        },
    }
    return GroupSnapshot(**{**found, **more})


def told(found: tuple[TimelineEvent, ...]) -> list[str]:
    return [
        " ".join(
            str(word)
            for word in (one.kind.value, one.member, one.partition, one.zxid if one.zxid else f"<={one.before}")
            if word not in ("", None)
        )
        for one in found
    ]


def test_one_snapshot_tells_everything_that_stands_in_order() -> None:
    snapshot = look(
        40,
        {"g_b": 20, "g_a": 10},
        {"t:1": ("g_b-0", 22), "t:0": ("g_a-0", 12)},
        ids=(20, 2),
        offsets={partition("t:0"): OffsetNode(7, node(15, mzxid=30, mtime=at(30), version=4))},
    )
    assert told(events([snapshot])) == [
        "group created 1",
        "joined g_a 10",
        "claimed g_a-0 t-0 12",
        "joined g_b 20",
        "claimed g_b-0 t-1 22",
        "committed t-0 30",
    ]


def test_one_snapshot_tells_the_transaction_of_the_last_leave() -> None:
    """``ids`` keeps the transaction of its last change. No present member made this change, so a member left."""
    snapshot = look(40, {"g_a": 10}, {"t:0": ("g_a-0", 12), "t:1": ("g_a-0", 33)}, ids=(31, 3))
    found = events([snapshot])
    assert told(found)[-2:] == ["left 31", "claimed g_a-0 t-1 33"]
    last = rebalances(found)[-1]
    assert ([one.kind for one in last.causes], last.duration) == ([EventKind.LEFT], None)
    assert list(report(found))[-1] == (
        "  = rebalance: cause: a member left (unknown which); duration: at least 0.000 s, its begin is unknown; "
        "1 claimed, 0 of them moved, 1 unknown; last claim by g_a-0"
    )


@pytest.mark.parametrize(
    "unsure",
    [
        look(40, {"g_a": 10}, {}, ids=(10, 1)),
        look(40, {"g_a": 10}, {}, ids=(2, 0)),
        look(40, {"g_a": 10}, {}, ids_node=None),
        replace(look(40, {"g_a": 10}, {}, ids=(31, 3)), members={ConsumerId("g_a"): MemberNode(None, None, "unread")}),
        replace(look(40, {"g_a": 10, "g_b": 31}, {}, ids=(31, 3)), members={}),
    ],
    ids=["a join was last", "nobody ever came", "no ids", "an unread member", "members that left while it was read"],
)
def test_a_leave_is_not_guessed(unsure: GroupSnapshot) -> None:
    assert not [one for one in events([unsure]) if one.kind is EventKind.LEFT]


def test_two_snapshots_tell_who_left_and_what_moved() -> None:
    before = look(30, {"g_a": 10, "g_b": 20}, {"t:0": ("g_a-0", 12), "t:1": ("g_b-0", 22)}, ids=(20, 2))
    after = look(50, {"g_a": 10}, {"t:0": ("g_a-0", 12), "t:1": ("g_a-0", 44)}, ids=(41, 3))
    found = events([before, after])
    assert told(found)[-3:] == ["left g_b 41", "released g_b-0 t-1 <=43", "claimed g_a-0 t-1 44"]
    last = rebalances(found)[-1]
    assert [(move.partition.partition, move.before, move.after) for move in last.moved] == [(1, "g_b-0", "g_a-0")]
    assert last.last == "g_a-0"
    assert (last.duration, last.at_least, last.at_most) == (None, 0.0, 2.0)
    assert "; 0.000 to 2.000 s; 1 claimed, 1 of them moved; " in list(report(found))[-1]


def test_the_order_of_several_leaves_is_unknown_but_bounded() -> None:
    before = look(30, {"g_a": 10, "g_b": 20, "g_c": 21}, {}, ids=(21, 3))
    after = look(50, {"g_a": 10}, {}, ids=(45, 5))
    assert told(events([before, after]))[-2:] == ["left g_b <=45", "left g_c <=45"]


def test_a_member_that_came_and_went_between_looks_is_said() -> None:
    before = look(30, {"g_a": 10}, {}, ids=(10, 1))
    after = look(50, {"g_a": 10, "g_c": 48}, {}, ids=(48, 4))
    (unseen,) = (one for one in events([before, after]) if one.kind is EventKind.UNSEEN)
    assert unseen.detail == "2 more joins and leaves between two looks"


def test_a_member_that_comes_back_under_its_name_has_left() -> None:
    before = look(30, {"g_a": 10}, {"t:0": ("g_a-0", 12)}, ids=(10, 1))
    after = look(50, {"g_a": 40}, {"t:0": ("g_a-0", 42)}, ids=(40, 3))
    again = ["left g_a <=39", "joined g_a 40", "released g_a-0 t-0 <=41", "claimed g_a-0 t-0 42"]
    assert told(events([before, after]))[3:] == again


def test_releases_before_a_leave_belong_to_it() -> None:
    """A member that leaves cleanly releases first."""
    steps = [
        look(30, {"g_a": 10, "g_b": 20}, {"t:0": ("g_a-0", 12), "t:1": ("g_b-0", 22)}, ids=(20, 2)),
        look(31, {"g_a": 10, "g_b": 20}, {"t:0": ("g_a-0", 12)}, ids=(20, 2)),
        look(35, {"g_a": 10}, {"t:0": ("g_a-0", 12)}, ids=(32, 3)),
        look(50, {"g_a": 10}, {"t:0": ("g_a-0", 12), "t:1": ("g_a-0", 44)}, ids=(32, 3)),
    ]
    *_, last = rebalances(events(steps))
    assert told(last.events) == ["left g_b 32", "released g_b-0 t-1 <=31", "claimed g_a-0 t-1 44"]
    assert (last.duration, last.at_most) == (None, (50 - 31) / 10), (
        "the leave's time is no node's, and lies between looks"
    )


def test_looks_close_to_each_change_give_a_duration() -> None:
    """No node has the time of a leave. Our own clock has it, if it was looked at closely before and after."""
    before = look(30, {"g_a": 10, "g_b": 20}, {"t:0": ("g_a-0", 12), "t:1": ("g_b-0", 22)}, ids=(20, 2))
    left = look(32, {"g_a": 10}, {"t:0": ("g_a-0", 12)}, ids=(32, 3))
    claimed = look(51, {"g_a": 10}, {"t:0": ("g_a-0", 12), "t:1": ("g_a-0", 50)}, ids=(32, 3))
    steps = [before, replace(before, taken=at(31)), left, replace(left, taken=at(50)), claimed]
    *_, last = rebalances(events(steps))
    assert (last.duration, last.began) == ((51 - 31) / 10, at(32))


def test_claims_long_after_all_else_have_no_known_cause() -> None:
    snapshot = look(9_000, {"g_a": 10}, {"t:0": ("g_a-0", 12), "t:1": ("g_a-0", 8_000)}, ids=(10, 1))
    first, second = rebalances(events([snapshot]))
    assert (len(first.causes), second.causes, second.duration) == (1, (), None)
    assert "cause: unknown, nothing that stands explains it" in "\n".join(report(events([snapshot])))


def test_a_join_has_its_duration_by_zookeepers_clock() -> None:
    snapshot = look(40, {"g_a": 10}, {"t:0": ("g_a-0", 12), "t:1": ("g_a-0", 18)}, ids=(10, 1), taken=5)
    (only,) = rebalances(events([snapshot]))
    assert (only.duration, only.document()["cause"]) == (0.8, "g_a joined")


def test_topics_and_partitions_that_come_and_go_are_causes() -> None:
    def topics(zxid: int, owners: Claims, **numbers: int) -> GroupSnapshot:
        known = {name: TopicNode(tuple(range(count)), at(35 if name == "u" else 1)) for name, count in numbers.items()}
        return look(zxid, {"g_a": 10}, owners, ids=(10, 1), topics=known)

    found = events([topics(30, {}, t=2, v=1), topics(50, {"t:2": ("g_a-0", 44), "u:0": ("g_a-0", 41)}, t=4, u=1)])
    assert [(one.kind.value, one.detail, one.before) for one in found if "t" in one.detail and one.zxid is None] == [
        ("topic created", "u, 1 partitions", 40),
        ("partitions changed", "t, 2 to 4 partitions", 43),
    ]
    assert [one.detail for one in found if one.kind is EventKind.TOPIC_DELETED] == ["v"]


def test_an_unread_node_has_not_vanished() -> None:
    before = look(30, {"g_a": 10}, {"t:0": ("g_a-0", 12)}, ids=(10, 1))
    for what in ("/consumers/g/owners/t", "/consumers/g/owners", "/consumers/g", "/"):
        after = look(50, {"g_a": 10}, {}, ids=(10, 1), problems=(Problem(what, "not permitted"),))
        assert not [one for one in events([before, after]) if one.kind is EventKind.RELEASED]
    nothing = GroupSnapshot("g", at(50), problems=(Problem("ZooKeeper 127.0.0.1:2181", "no answer"),))
    assert told(events([before, nothing])) == told(events([before]))


def test_a_zookeeper_that_was_set_back_begins_anew() -> None:
    found = events([look(30, {"g_a": 10}, {"t:0": ("g_a-0", 12)}), look(9, {"g_a": 5}, {"t:0": ("g_a-0", 6)})])
    words = [one.kind.value for one in found]
    assert words.index("data set back") == 3
    assert "released" not in words


def test_a_brokers_group_has_its_changes_without_transactions() -> None:
    def group(taken: int, **members: str) -> GroupSnapshot:
        each = [
            BrokersMember(name, "c", "/h", assignment=tuple(partition(text) for text in texts.split()))
            for name, texts in members.items()
        ]
        return GroupSnapshot("g", taken, brokers_group=BrokersGroup("Stable", members=tuple(each)))

    found = events([group(1_000, a="t:0 t:1"), group(2_000, a="t:0", b="t:1"), group(3_000, b="t:1 t:0")])
    assert [(one.kind.value, one.member, one.seen) for one in found] == [
        ("joined", "b", 2_000),
        ("released", "a", 2_000),
        ("claimed", "b", 2_000),
        ("left", "a", 3_000),
        ("released", "a", 3_000),
        ("claimed", "b", 3_000),
    ]
    assert [len(one.moved) for one in rebalances(found)] == [1, 1]


def test_a_deleted_offset_and_a_deleted_group_are_events() -> None:
    offsets = {partition("t:0"): OffsetNode(7, node(15))}
    gone = GroupSnapshot("g", at(50), zxid=50)
    words = [one.kind.value for one in events([look(30, {}, {}, offsets=offsets), gone])]
    assert words == ["group created", "committed", "offset deleted", "group deleted"]


def test_the_report_folds_neighbours_and_escapes_names() -> None:
    owners = {f"t:{number}": ("g_\x1b[2J-0", 20 + number) for number in (0, 1, 2, 5)}
    lines = list(report(events([look(40, {"g_\x1b[2J": 10}, owners, ids=(10, 1))])))
    assert lines[0] == "2023-11-14T22:13:20.100Z  0x1             group created         "
    assert lines[1].endswith(r"joined                g_\x1b[2J (t x 1)")
    assert lines[2].endswith(r"claimed               g_\x1b[2J-0 t:0-2,5")
    assert lines[3].startswith(r"  = rebalance: cause: g_\x1b[2J joined; 1.500 s; 4 claimed, 0 of them moved")


def test_a_node_full_of_text_makes_no_long_line() -> None:
    subscription = {f"topic-{number}": 1 for number in range(10_000)}
    member = MemberNode(Registration(STATIC, subscription), node(10))
    snapshot = replace(look(40, {}, {"t:0": ("x" * 1_000_000, 20)}), members={ConsumerId("g_a"): member})
    assert max(map(len, report(events([snapshot])))) < 1_000


def test_commits_are_shown_only_if_asked_for() -> None:
    found = events([group_snapshot(offsets={"t:0": 3, "t:1": 4})])
    assert list(report(found, commits=False))[-1] == ("(--commits also shows the last commits, here 2)")
    assert "t:0-1 (offset 3, version 10, ...)" in list(report(found))[-1]


def test_since_keeps_a_cause_without_a_time() -> None:
    found = events([look(400, {"g_a": 10}, {"t:0": ("g_a-0", 12), "t:1": ("g_a-0", 333)}, ids=(331, 3))])
    assert told(since(found, at(332))) == ["left 331", "claimed g_a-0 t-1 333"]
    assert since(found, at(500)) == ()


changes = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "claim", "release"]), st.integers(0, 3), st.booleans()), max_size=30
)


@settings(max_examples=60)
@given(changes)
def test_a_timeline_never_contradicts_what_happened(done: list[tuple[str, int, bool]]) -> None:
    """Known transactions are the real ones, and bounds contain the real ones, whichever looks were taken."""
    members: dict[str, int] = {}
    owners: Claims = {}
    real: dict[tuple[str, object], list[int]] = {}
    looks = [look(3, {}, {}, ids=(2, 0))]
    pzxid, cversion = 2, 0
    for zxid, (what, number, seen) in enumerate(done, 4):
        name, tp = f"g_{number}", f"t:{number}"
        if what == "join" and name not in members:
            members[name], pzxid, cversion = zxid, zxid, cversion + 1
            real.setdefault(("joined", name), []).append(zxid)
        elif what == "leave" and name in members:
            del members[name]
            pzxid, cversion = zxid, cversion + 1
            real.setdefault(("left", name), []).append(zxid)
        elif what == "claim" and tp not in owners:
            owners[tp] = ("g_0-0", zxid)
            real.setdefault(("claimed", partition(tp)), []).append(zxid)
        elif what == "release" and tp in owners:
            del owners[tp]
            real.setdefault(("released", partition(tp)), []).append(zxid)
        if seen:
            looks.append(look(zxid, members, owners, ids=(pzxid, cversion)))
    found = events(looks)
    for event in found:
        happened = real.get((event.kind.value, event.partition or event.member), [])
        if event.kind in (EventKind.JOINED, EventKind.CLAIMED) or (event.kind is EventKind.LEFT and event.zxid):
            assert event.zxid in happened
        elif event.kind in (EventKind.LEFT, EventKind.RELEASED):
            assert any(event.after < zxid <= event.before for zxid in happened)
    assert sum(len(one.claims) for one in rebalances(found)) == sum(one.kind is EventKind.CLAIMED for one in found)
    known = [event.zxid for event in found if event.zxid is not None]
    assert known == sorted(known)


def test_a_replaced_snapshot_tells_nothing_twice() -> None:
    snapshot = look(40, {"g_a": 10}, {"t:0": ("g_a-0", 12)}, ids=(10, 1))
    again = replace(snapshot, taken=at(60), zxid=60)
    assert events([snapshot, again]) == events([snapshot])
    assert events([]) == ()


def test_a_rebalance_of_many_claims_is_found_quickly() -> None:
    """Each claim looked at all before it: 8 s of CPU for the page of a group with 7000 owned partitions."""
    claims = [
        TimelineEvent(EventKind.CLAIMED, at=NOW + n, member="m-0", partition=TopicPartition("t", n))
        for n in range(10_000)
    ]
    began = process_time()
    (only,) = rebalances(claims)
    assert process_time() - began < scaled(2)
    assert only.claims == tuple(claims)
