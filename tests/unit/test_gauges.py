"""The gauges of a member, above all of its failing partitions."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zkconsumer.balance.balance_state import BalanceState, HeldMessage, PartitionBalance
from zkconsumer.connector.member_metrics import member_gauges
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.metrics import Buckets
from zkconsumer.streams.member_streams import ANY_TOPIC
from zkconsumer.wiring import GroupMember


def position(partition: int, *, consumed: int | None, log_end: int) -> PartitionPosition:
    made = PartitionPosition(TopicPartition("t", partition), ThreadId("g_a-0"), consumed)
    made.cursor.log_end = log_end
    return made


def gauges(
    *positions: PartitionPosition, leaderless: tuple[int, ...] = (), balance: BalanceState | None = None
) -> dict[str, Any]:
    owned = {p.tp: p for p in positions}
    member: Any = SimpleNamespace(
        config=SimpleNamespace(client_id="c", group_id="g"),
        positions=lambda: owned,
        lease=SimpleNamespace(until=float("-inf")),
        engine=None,
        committer=None,
        state=ConnectorState(Phase.OWNING, len(owned)),
        fetching=SimpleNamespace(
            fetchers=SimpleNamespace(slowest_rate=0.5), leaderless=frozenset(TopicPartition("t", n) for n in leaderless)
        ),
        delivery=SimpleNamespace(streams=lambda: [(ANY_TOPIC, 3, SimpleNamespace(queue=_Queue()))]),
    )
    member.lags = lambda: GroupMember.lags(cast("GroupMember", member))
    return {str(name): value for name, value in member_gauges(member, balance)}


class _Queue:
    bytes = 10
    skipped = 1

    def __len__(self) -> int:
        return 2


LAG = "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=c,topic=t,partition="
MAX_LAG = "kafka.consumer:type=ConsumerFetcherManager,name=MaxLag,clientId=c"


def test_lags_are_told_by_partition_and_the_largest_once() -> None:
    found = gauges(position(0, consumed=5, log_end=9), position(1, consumed=7, log_end=7))
    assert (found[f"{LAG}0"], found[f"{LAG}1"], found[MAX_LAG]) == (4, 0, 4)
    assert found["kafka.consumer:type=ZookeeperConsumerConnector,name=OwnedPartitionsCount,clientId=c,groupId=g"] == 2


@pytest.mark.parametrize(("consumed", "log_end", "leaderless"), [(None, -1, ()), (5, -1, ()), (9, 9, (1,))])
def test_a_partition_of_unknown_lag_does_not_look_healthy(
    consumed: int | None, log_end: int, leaderless: tuple[int, ...]
) -> None:
    """In the original ``MaxLag`` of partitions that nobody leads, or that were never fetched, is 0."""
    found = gauges(
        position(0, consumed=5, log_end=9), position(1, consumed=consumed, log_end=log_end), leaderless=leaderless
    )
    assert (found[f"{LAG}0"], found[f"{LAG}1"], found[MAX_LAG]) == (4, -1, inf)
    assert found["zkconsumer:type=Member,name=LeaderlessPartitionsCount,clientId=c"] == len(leaderless)


def test_a_member_that_owns_nothing_lags_behind_nothing() -> None:
    found = gauges()
    assert found[MAX_LAG] == 0


def test_the_streams_of_a_filter_have_no_topic() -> None:
    found = gauges()
    assert found["kafka.consumer:type=ZookeeperConsumerConnector,name=FetchQueueSize,clientId=c,threadId=3"] == 2
    assert found["zkconsumer:type=Member,name=QueuedBytes,clientId=c"] == 10
    assert found["zkconsumer:type=Member,name=State,clientId=c,groupId=g"] == "owning"


def test_a_balanced_run_is_told_by_partition() -> None:
    own = PartitionBalance(TopicPartition("t", 0), 5, HeldMessage(5, 4), 3, 2, 1, 9.5, 7, 6, 88, {"g_b": 64, "g_c": 1})
    lent = PartitionBalance(TopicPartition("t", 1), 8, lender="g_b", borrowed=32, stopped="stopped at 8: no room")
    times = Buckets().value()
    found = gauges(balance=BalanceState(64, (own, lent), 11, 12, 13, 14, handler_times=times))
    told = {name.removeprefix("zkconsumer:type=Member,name="): value for name, value in found.items()}
    names = (
        *("UnfinishedCount", "FinishedBeyondCount", "HeldTime", "InHandCount", "HeldAttempts", "SlotsLent"),
        *("SlotsBorrowed", "ParkedCount", "DeadLetterCount", "UnnotedCount"),
    )
    place = "clientId=c,topic=t,partition"
    assert [told[f"{name},{place}=0"] for name in names] == [2, 3, 9.5, 1, 4, 65, 0, 7, 6, 88]
    assert [told.get(f"{name},{place}=1") for name in names] == [0, 0, 0.0, 0, 0, 0, 32, None, None, None]
    whole = ("Concurrency", "FailedAttempts", "LateResults", "ZombieHandlers", "LostMessages", "StoppedPartitionsCount")
    assert [told[f"{name},clientId=c"] for name in whole] == [64, 11, 12, 13, 14, 1]
    assert told["HandlerTime,clientId=c"] == times
    assert not any("Unfinished" in name for name in gauges())
