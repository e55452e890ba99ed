"""The conclusions about a watched group, and their limits in a huge group."""

from __future__ import annotations

import pytest

from tests.group_snapshots import group_snapshot, partition
from tests.unit.operations.serving.watched import IDLE, at, watched
from zkconsumer.operations.group_snapshot import BrokersGroup, BrokersMember
from zkconsumer.operations.serving import api
from zkconsumer.operations.serving.api import Details, details, judge_watched
from zkconsumer.operations.serving.observed_group import ObservedGroup, observed

LAST = partition("events:5")


def details_of(group: ObservedGroup, before: tuple[ObservedGroup, Details] | None = None) -> Details:
    return details(group, judge_watched(group), before)


def test_events_and_plans_are_made_again_only_after_a_change() -> None:
    before = watched(at(0, 1, 2))
    told = details_of(before)
    again = details_of(observed(before, at(10, 2, 3)), (before, told))
    assert again.plans is told.plans
    assert again.events is told.events
    changed = at(20, 2, 3, owners={})
    assert details_of(observed(before, changed), (before, told)).plans is not told.plans


def test_a_huge_group_is_explained_where_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "EXPLAINED", 1)
    monkeypatch.setattr(api, "LEAST_EXPLAINED", 1)
    monkeypatch.setattr(api, "PLANNED_MEMBERS", 1)
    told = details_of(watched(at(0, 1, 2)))
    assert list(told.explanations) == [LAST]
    assert IDLE in told.explanations[LAST]
    assert "too large" in str(told.plans["join"]["problem"])


def test_plans_move_partitions() -> None:
    plans = details_of(watched(at(0, 1, 2))).plans
    assert plans["join"]["problem"] is None
    assert plans["join"]["moves"]
    assert "leaves" in str(plans["leave"]["title"])


def test_a_group_that_brokers_coordinate() -> None:
    member = BrokersMember("m-1", "app", "/10.0.0.7", assignment=(partition("t:0"),), topics=("t",))
    made = group_snapshot(
        logs={"t:0": (0, 9)},
        group_node=None,
        ids_node=None,
        zookeeper="",
        brokers_group=BrokersGroup("Stable", "range", members=(member,)),
    )
    found = judge_watched(watched(made))
    assert (found.state, found.coordination, found.strategy) == ("Stable", "brokers", "range")
    assert found.owners == {partition("t:0"): "m-1"}
    assert found.member_of == {"m-1": "m-1"}
    assert details_of(watched(made)).plans["join"]["problem"] is None
