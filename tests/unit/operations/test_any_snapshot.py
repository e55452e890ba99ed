"""Whatever stands in a group's nodes: explanations and forecasts end in texts or in an error of their own."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from zkconsumer.core.registration import BLACK_LIST, STATIC, WHITE_LIST, Registration
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.assignment_forecast import ForecastError, Join, Kill, Leave, MorePartitions, forecast
from zkconsumer.operations.explanation import explain, explained_partitions
from zkconsumer.operations.group_snapshot import (
    FORBIDDEN_NODE,
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    LoanNode,
    MemberNode,
    NodeStat,
    OffsetNode,
    OwnerNode,
    PartitionLog,
    Problem,
    TopicNode,
    ZooKeeperServer,
)
from zkconsumer.operations.group_view import GroupAnalysis, GroupState

NUMBERS = some.integers(-(1 << 63), (1 << 63) - 1)
TOPICS = some.sampled_from(["t", "u", "", "a/b", "\x1b[2J", "\ud800"])
PARTITIONS = some.builds(TopicPartition, TOPICS, some.integers(0, 3))
NAMES = some.sampled_from(["g_a", "g_b", "", "-", "\n"])
STATS = some.none() | some.builds(
    NodeStat, czxid=NUMBERS, mzxid=NUMBERS, ctime=NUMBERS, mtime=NUMBERS, ephemeral_owner=some.integers(0, 3)
)
EXTRAS = some.dictionaries(
    some.sampled_from(["zkconsumer", "strategy", "scala.compat.version", "room", "coordination", "reader"]),
    some.sampled_from(["range", "roundrobin", "average", "configured", "nobody", "kafka", "", "0.8", 7, None, ["x"]]),
)
REGISTRATIONS = some.builds(
    Registration,
    some.sampled_from([STATIC, WHITE_LIST, BLACK_LIST, "other"]),
    some.dictionaries(some.sampled_from(["t", "u", "(", "t|u", ".*", ""]), some.integers(1, 3), max_size=2),
    extra=EXTRAS,
)
SNAPSHOTS = some.builds(
    GroupSnapshot,
    group=some.sampled_from(["g", "a/b"]),
    taken=some.integers(0, 1 << 62),
    zookeeper=some.sampled_from(["", "h:2181"]),
    ids_node=STATS,
    members=some.dictionaries(NAMES.map(ConsumerId), some.builds(MemberNode, some.none() | REGISTRATIONS, STATS)),
    owners=some.dictionaries(
        PARTITIONS, some.builds(OwnerNode, some.sampled_from(["", "g_a-0", "g_b-1", "g_x-0", "-", "\n"]), STATS)
    ),
    offsets=some.dictionaries(PARTITIONS, some.builds(OffsetNode, some.none() | NUMBERS, STATS)),
    topics=some.dictionaries(
        TOPICS, some.builds(TopicNode, some.sampled_from([(), (0,), (0, 2), (0, 1, 2, 3)]), problem=some.just(""))
    ),
    logs=some.dictionaries(PARTITIONS, some.builds(PartitionLog, NUMBERS, NUMBERS, message_time=NUMBERS)),
    loans=some.dictionaries(
        PARTITIONS,
        some.dictionaries(
            NAMES.map(ConsumerId),
            some.builds(LoanNode, some.none() | NUMBERS, some.none(), some.none() | NUMBERS, STATS, NUMBERS, NUMBERS),
            max_size=2,
        ),
        max_size=2,
    ),
    servers=some.lists(
        some.builds(
            ZooKeeperServer,
            some.just("h"),
            mode=some.sampled_from(["standalone", "leader", ""]),
            sessions=some.dictionaries(some.integers(0, 3), some.just(("/h", 6_000))),
        ),
        max_size=2,
    ).map(tuple),
    brokers_group=some.none()
    | some.builds(
        BrokersGroup,
        some.sampled_from(["Stable", "Dead", "Empty", "?"]),
        some.sampled_from(["range", "roundrobin", "sticky", ""]),
        members=some.lists(
            some.builds(
                BrokersMember,
                some.sampled_from(["m-1", "m-2"]),
                some.just("c"),
                some.just("/h"),
                assignment=some.none() | some.lists(PARTITIONS, max_size=2).map(tuple),
                topics=some.lists(TOPICS, max_size=2).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
    ),
    problems=some.lists(
        some.builds(
            Problem,
            some.sampled_from(["/consumers/g/ids", "/consumers/g/owners/t", "ZooKeeper h", "brokers"]),
            some.sampled_from([FORBIDDEN_NODE, "x"]),
        ),
        max_size=1,
    ).map(tuple),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshot=SNAPSHOTS)
def test_any_snapshot_is_explained_and_planned(snapshot: Any) -> None:
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
