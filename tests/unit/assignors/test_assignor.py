"""Strategies by name: ours, and a plug-in's."""

from __future__ import annotations

import importlib.metadata
import sys
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.unit.assignors.groups import group
from zkconsumer.assignors import (
    ENTRY_POINT_GROUP,
    NO_RACKS,
    Members,
    Partitions,
    Racks,
    RangeAssignor,
    assignment_strategy,
    assignor,
    known_assignors,
)
from zkconsumer.assignors.assignor import OURS
from zkconsumer.core.registration import Registration
from zkconsumer.errors import UnknownAssignorError
from zkconsumer.member.zookeeper.claim_plan import GroupView, threads_of
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition


class FirstTakesAll:
    """A user's strategy: ten lines."""

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        first = members[min(members)]
        return {
            TopicPartition(topic, number): threads[0]
            for topic, threads in first.threads.items()
            for number in partitions.get(topic, ())
        }


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("somebodys_package")
    vars(module).update(First=FirstTakesAll, nothing=None, Useless=dict)
    monkeypatch.setitem(sys.modules, "somebodys_package", module)
    points = [
        EntryPoint(name, value, ENTRY_POINT_GROUP)
        for name, value in {
            "first": "somebodys_package:First",
            "range": "somebodys_package:First",
            "useless": "somebodys_package:Useless",
            "nothing": "somebodys_package:nothing",
            "gone": "somebodys_package:Gone",
            "absent": "no_such_package:X",
        }.items()
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == ENTRY_POINT_GROUP else [])


def test_ours_are_announced_in_the_package_s_metadata() -> None:
    parsed = ConfigParser()
    parsed.read(Path(__file__).parents[3] / "setup.cfg")
    lines = parsed["options.entry_points"][ENTRY_POINT_GROUP].strip().splitlines()
    assert dict(line.split(" = ") for line in lines) == OURS


@pytest.mark.parametrize("name", [name for name in OURS if name not in ("machine-room", "configured")])
def test_ours_are_found_by_name(name: str) -> None:
    assert assignor(name).assign(group({"g_a": {"t": 1}}), {}) == {}


@pytest.mark.usefixtures("plugged")
def test_a_plug_in_is_found_by_name_but_never_under_one_of_ours() -> None:
    assert isinstance(assignor("first"), FirstTakesAll)
    assert isinstance(assignor("range"), RangeAssignor)
    assert known_assignors()["first"] == "somebodys_package:First"


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rnage", "'rnage'; known are .*first.*range.*roundrobin"),
        ("useless", "has no method assign"),
        ("nothing", "neither a class nor a function"),
        ("gone", "cannot be loaded from somebodys_package:Gone"),
        ("absent", "cannot be loaded from no_such_package:X"),
    ],
)
def test_what_cannot_be_had_is_an_unknown_strategy(name: str, said: str) -> None:
    with pytest.raises(UnknownAssignorError, match=said):
        assignor(name)


@pytest.mark.usefixtures("plugged")
def test_the_planner_s_strategy_sees_what_members_advertise() -> None:
    seen: list[Members] = []

    class Watching(FirstTakesAll):
        def assign(
            self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
        ) -> dict[TopicPartition, ThreadId]:
            seen.append(members)
            return super().assign(members, partitions, racks)

    sys.modules["somebodys_package"].First = Watching  # type: ignore[attr-defined]
    extra = {"host": "h", "address": "10.0.0.1", "room": 7, "strategy": "first", "other": [1]}
    view = GroupView(
        {
            ConsumerId("g_a"): Registration("static", {"t": 2}, extra=extra),
            ConsumerId("g_b"): Registration("static", {}, extra={"strategy": "first"}),
        },
        {"t": (0, 1)},
    )
    assign = assignment_strategy(SimpleNamespace(partition_assignment_strategy="first"))
    threads = threads_of(view, exclude_internal_topics=True)
    assert set(assign(view, threads).values()) == {"g_a-0"}
    one = seen[0][ConsumerId("g_a")]
    assert (one.host, one.address, one.room, one.strategy, one.version) == ("h", "10.0.0.1", None, "first", None)
    assert one.extra == extra
