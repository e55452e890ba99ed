"""Any content of a group's nodes: the doctor and explanations answer, forecasts answer or refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.group_snapshots import NOW
from tests.unit.operations.doctor.cases import CHROOTS, healthy
from zkconsumer.core.registration import BLACK_LIST, STATIC, WHITE_LIST, Registration
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.assignment_forecast import ForecastError, Join, Kill, Leave, MorePartitions, forecast
from zkconsumer.operations.doctor import CHECKS, examine
from zkconsumer.operations.doctor.findings import Observations
from zkconsumer.operations.explanation import explain, explained_partitions
from zkconsumer.operations.group_snapshot import (
    FORBIDDEN_NODE,
    BrokersGroup,
    GroupSnapshot,
    LogState,
    OwnerNode,
    PlanNode,
    Problem,
    TopicNode,
)
from zkconsumer.operations.group_state import GroupState
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.judgement import judgement_of
from zkconsumer.zookeeper.node_values import ZooKeeperServer

NAMES = st.sampled_from(
    ["g_a", "g_b", "t", "u", "", "-", "\n", "a/b", "\x1b[2J", "a b'c", "\u202e", "e\udc80", "-1", "x" * 300, "$(id)"]
)
THREADS = st.sampled_from(["g_a-0", "g_b-1", "g_x-0"]) | NAMES
NUMBERS = st.sampled_from([0, 1, -1, 2, 77, NOW, (1 << 63) - 1, -(1 << 63)])
STRATEGIES = st.sampled_from(["range", "roundrobin", "average", "configured", "sticky", "nobody", ""])
EXTRA = st.dictionaries(
    st.sampled_from(["strategy", "zkconsumer", "host", "pid", "coordination", "reader", "scala.compat.version"]),
    STRATEGIES | st.sampled_from(["kafka", "0.8", None, ["x"]]) | NAMES | NUMBERS,
    max_size=3,
)
OF_TYPES: Mapping[Any, st.SearchStrategy[Any]] = {
    str: NAMES,
    int: NUMBERS,
    bool: st.booleans(),
    type(None): st.none(),
    ConsumerId: NAMES.map(ConsumerId),
    TopicPartition: st.builds(TopicPartition, NAMES, st.integers(0, 4)),
}
OF_FIELDS: Mapping[tuple[Any, str], st.SearchStrategy[Any]] = {
    (Registration, "pattern"): st.sampled_from([STATIC, WHITE_LIST, BLACK_LIST, "\x00"]),
    (Registration, "subscription"): st.dictionaries(
        NAMES | st.sampled_from(["(", "t|u", ".*"]), st.integers(1, 3), max_size=3
    ),
    (Registration, "extra"): EXTRA,
    (OwnerNode, "thread"): THREADS,
    (TopicNode, "partitions"): st.sampled_from([(), (0,), (0, 2), (0, 1, 2, 3)]),
    # brokers tell replicas of topics that exist, and these have no hostile names
    (LogState, "replicas"): st.just(()),
    (LogState, "in_sync"): st.just(()),
    (BrokersGroup, "state"): st.sampled_from(["Stable", "Dead", "Empty", "?"]),
    (BrokersGroup, "strategy"): STRATEGIES,
    (PlanNode, "strategy"): STRATEGIES,
    (Problem, "what"): st.sampled_from(["/consumers/g/ids", "/consumers/g/owners/t", "ZooKeeper h", "brokers"]) | NAMES,
    (Problem, "why"): st.just(FORBIDDEN_NODE) | NAMES,
    (ZooKeeperServer, "mode"): st.sampled_from(["standalone", "leader", ""]),
    (GroupSnapshot, "group"): st.sampled_from(["g", "a/b"]),
    (GroupSnapshot, "taken"): st.integers(0, 1 << 62),
}


@cache
def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type."""
    if kind in OF_TYPES:
        return OF_TYPES[kind]
    if isinstance(kind, type) and is_dataclass(kind):
        return st.builds(kind, **parts_of(kind))
    origin, of = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return st.one_of(*map(anything, of))
    if origin is tuple and of[-1] is ...:
        return st.lists(anything(of[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(anything, of))
    return st.dictionaries(anything(of[0]), anything(of[1]), max_size=3)


def parts_of(kind: Any) -> dict[str, st.SearchStrategy[Any]]:
    hints = get_type_hints(kind)
    return {
        one.name: OF_FIELDS[kind, one.name] if (kind, one.name) in OF_FIELDS else anything(hints[one.name])
        for one in fields(kind)
    }


LOOKS = st.fixed_dictionaries({}, optional=parts_of(GroupSnapshot)).map(lambda parts: replace(healthy(), **parts))
"""The healthy group, with any parts of its snapshot replaced by anything."""
LARGE = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=60, deadline=None, suppress_health_check=LARGE)
@given(looks=st.lists(LOOKS, min_size=1, max_size=2), config=st.none() | EXTRA)
def test_any_snapshot_is_examined(looks: list[GroupSnapshot], config: Mapping[str, Any] | None) -> None:
    texts = None if config is None else {key: str(value) for key, value in config.items()}
    found = examine(looks, texts, chroots=CHROOTS)
    assert all(one.check in {check.name for check in CHECKS} for one in found)
    assert all(one.text for one in found)
    assert len(found) <= 30 * len(CHECKS)
    assert examine(looks, texts, chroots=CHROOTS) == found


@settings(max_examples=30, deadline=None, suppress_health_check=LARGE)
@given(snapshot=LOOKS)
def test_any_snapshot_is_explained_and_planned(snapshot: GroupSnapshot) -> None:
    analysis = GroupAnalysis(snapshot, [snapshot])
    assert analysis.state.reason
    for tp in (*explained_partitions(analysis), TopicPartition("absent", 9)):
        found = explain(analysis, tp)
        assert found.sentence
        assert all(found.lines())
        assert json.dumps(found.document())
        if analysis.state.state is GroupState.STABLE and tp in analysis.expected and analysis.by_brokers is None:
            assert found.owner == found.should
        if not found.settled:
            assert found.cause.short
    for change in (Join("c", 2), Leave("g_a"), Kill("g_b"), MorePartitions(1)):
        with suppress(ForecastError):
            made = forecast(analysis, [change])
            assert {move.partition for move in made.moves if move.before} <= set(made.before)


CHANGED = st.fixed_dictionaries({}, optional=parts_of(GroupSnapshot))


@settings(max_examples=60, deadline=None, suppress_health_check=LARGE)
@given(
    look=LOOKS, parts=CHANGED, names=st.sets(st.sampled_from([one.name for one in fields(GroupSnapshot)]), max_size=2)
)
def test_a_judgement_after_another_is_as_the_first(
    look: GroupSnapshot, parts: Mapping[str, Any], names: set[str]
) -> None:
    """What it takes over from the analysis before does not depend on what has changed."""
    later = replace(look, **{name: value for name, value in parts.items() if name in names})
    before = Observations([look])
    judgement_of(before)
    found = judgement_of(Observations([look, later], before=before.analysis))
    assert found == judgement_of(Observations([look, later]))
