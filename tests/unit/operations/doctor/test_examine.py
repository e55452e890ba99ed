"""The checks together: a healthy mixed group, hostile names, and groups that only the brokers know."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.documents import DOCS
from tests.group_snapshots import NOW, partition
from tests.unit.operations.doctor.cases import CHROOTS, CONFIG, above_notes, healthy, levels, with_owner, with_problem
from zkconsumer.operations.doctor import CHECKS, ClockProbe, Level, examine, worst
from zkconsumer.operations.group_snapshot import (
    BrokersGroup,
    GroupSnapshot,
    KafkaOffset,
    LogState,
    NodeStat,
    OwnerNode,
    TopicNode,
)


def test_a_healthy_mixed_group_is_healthy() -> None:
    looks = [healthy(), replace(healthy(), taken=NOW + 60_000)]
    found = examine(looks, CONFIG, probe=ClockProbe(NOW, NOW, NOW), chroots=CHROOTS)
    assert [one for one in found if one.level is not Level.OK] == []
    assert sorted(one.check for one in found) == sorted(check.name for check in CHECKS)
    assert worst(found) is Level.OK
    assert above_notes(examine([healthy()])) == []


def test_each_check_has_its_place_in_the_docs() -> None:
    for page in {check.page for check in CHECKS}:
        text = (DOCS / page.removeprefix("docs/")).read_text(encoding="utf-8")
        assert re.findall(r"^### (.*)$", text, re.MULTILINE) == [check.name for check in CHECKS if check.page == page]


def test_findings_come_worst_first_with_their_page() -> None:
    found = examine([with_problem(with_owner(healthy(), "t:1", ephemeral_owner=0), "broker 0")])
    assert [one.level for one in found] == sorted((one.level for one in found), reverse=True)
    assert worst(found) is Level.ERROR
    assert {one.link for one in found} == {f"{check.page}#{check.name}" for check in CHECKS}


def test_many_findings_of_one_check_are_counted() -> None:
    nobodys = OwnerNode("g_x-0", NodeStat(1, 1, NOW, NOW))
    many = replace(healthy(), owners={partition(f"t:{number}"): nobodys for number in range(500)})
    found = [one for one in examine([many]) if one.check == "persistent-owner"]
    assert len(found) == 21
    assert found[-1].text == "480 more findings of this check"
    assert levels(found) == ["error"] * 21


def test_a_group_of_the_brokers_is_not_judged_by_nodes() -> None:
    tp = partition("t:0")
    brokers = GroupSnapshot(
        "g",
        NOW,
        bootstrap="b:9092",
        kafka_offsets={tp: KafkaOffset(500)},
        brokers_group=BrokersGroup("Empty"),
        topics={"t": TopicNode((0,))},
        logs={tp: LogState(0, 100, 0, replicas=(0,), in_sync=(0,))},
    )
    found = examine([brokers])
    offsets = {"dead-offsets", "offset-outside-log", "held-base"}
    assert {one.check for one in found} == offsets | {"standing-still", "no-member", "brokers", "unread"}
    assert [one.check for one in found if one.level is Level.ERROR] == ["offset-outside-log"]


def test_an_empty_snapshot_is_nowhere_judged_ill() -> None:
    assert above_notes(examine([GroupSnapshot("g", NOW)])) == []
    with pytest.raises(ValueError, match="at least one"):
        examine([])


def test_a_snapshot_that_broke_off_judges_no_check_of_nodes_ok() -> None:
    lost = with_problem(GroupSnapshot("g", NOW, zookeeper="zk:2181"), "ZooKeeper zk:2181", "the rest was not read")
    found = examine([lost])
    assert above_notes(found) == []
    judged = {one.check for one in found if one.level is Level.OK and not one.unknown}
    assert judged.isdisjoint({"persistent-owner", "orphan-owner", "unowned-partition", "unreadable-registration"})
    assert judged.isdisjoint({"double-registration", "dead-offsets", "acl", "chroot", "brokers", "membership-size"})
