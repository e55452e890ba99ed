"""A member's gauges: values that are looked up when somebody asks, under the original's names. Any thread.

Differs from the original on purpose. There ``MaxLag`` is 0 when nothing is fetched, so that a partition without a
leader looks healthy. Here it is infinite while the lag of any owned partition is unknown. Gauges that the original does
not have are under ``zkconsumer:type=Member``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from zkconsumer.runtime.metrics import MetricName, Value
from zkconsumer.version import VERSION

if TYPE_CHECKING:
    from zkconsumer.balance.balance_state import BalanceState
    from zkconsumer.wiring.group_member import GroupMember

_Found = Iterator[tuple[MetricName, Value]]
CONNECTOR = ("kafka.consumer", "ZookeeperConsumerConnector")
OURS = ("zkconsumer", "Member")
UNKNOWN_LAG = -1
"""``ConsumerLag`` of a partition whose lag is not known, as in the original before its first fetch."""


def member_gauges(member: GroupMember, balance: BalanceState | None = None) -> _Found:
    """Yield all gauges of a member with their present values.

    Arguments: ``balance`` is what a run with ``concurrency`` does, None if there is none.
    """
    client = (("clientId", member.config.client_id),)
    group = (*client, ("groupId", member.config.group_id))
    positions = member.positions()
    yield MetricName(*CONNECTOR, "OwnedPartitionsCount", group), len(positions)
    for topic, count in sorted(Counter(tp.topic for tp in positions).items()):
        yield MetricName(*CONNECTOR, "OwnedPartitionsCount", (*group, ("topic", topic))), count
    yield from _streams(member, client)
    yield from _lags(member, client)
    yield (
        MetricName("kafka.consumer", "ConsumerFetcherManager", "MinFetchRate", client),
        member.fetching.fetchers.slowest_rate,
    )
    yield MetricName("kafka.common", "AppInfo", "Version"), VERSION
    state = member.state
    if state is not None:
        yield MetricName(*OURS, "State", group), state.phase.value
        yield MetricName(*OURS, "WaitingPartitionsCount", group), len(state.blocked)
        yield MetricName(*OURS, "FollowedPartitionsCount", group), len(state.followers)
    yield MetricName(*OURS, "LeaseRemaining", group), max(0.0, member.lease.until - monotonic())
    if member.engine is not None:
        yield MetricName(*OURS, "SessionsLost", group), member.engine.coordinator.sessions_lost
    if member.committer is not None and member.committer.tracker.last_commit is not None:
        yield MetricName(*OURS, "LastCommitTime", group), member.committer.tracker.last_commit
    yield MetricName(*OURS, "PausedPartitionsCount", group), sum(p.paused for p in positions.values())
    if balance is not None:
        yield from _balance(balance, client)


def _streams(member: GroupMember, client: tuple[tuple[str, str], ...]) -> _Found:
    queued = skipped = 0
    for topic, number, stream in member.delivery.streams():
        tags = (*client, *((("topic", topic),) if topic else ()), ("threadId", str(number)))
        yield MetricName(*CONNECTOR, "FetchQueueSize", tags), len(stream.queue)
        queued += stream.queue.bytes
        skipped += stream.queue.skipped
    yield MetricName(*OURS, "QueuedBytes", client), queued
    yield MetricName(*OURS, "SkippedCount", client), skipped


def _lags(member: GroupMember, client: tuple[tuple[str, str], ...]) -> _Found:
    lags, positions = member.lags(), member.positions()
    for tp, lag in sorted(lags.items()):
        tags = (*client, ("topic", tp.topic), ("partition", str(tp.partition)))
        yield MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag", tags), UNKNOWN_LAG if lag is None else lag
        position = positions.get(tp)
        if position is None:
            continue  # it has just left
        if position.stored.committed is not None:
            yield MetricName(*OURS, "CommittedOffset", tags), position.stored.committed
        if lag is not None:
            yield MetricName(*OURS, "LogEndOffset", tags), position.cursor.known_end
    largest = max((inf if lag is None else lag for lag in lags.values()), default=0)
    yield MetricName("kafka.consumer", "ConsumerFetcherManager", "MaxLag", client), largest
    leaderless = member.fetching.leaderless & lags.keys()
    yield MetricName(*OURS, "LeaderlessPartitionsCount", client), len(leaderless)


def _balance(balance: BalanceState, client: tuple[tuple[str, str], ...]) -> _Found:
    """Yield what a run with ``concurrency`` does, in all and of each partition."""
    yield MetricName(*OURS, "Concurrency", client), balance.concurrency
    yield MetricName(*OURS, "FailedAttempts", client), balance.failed
    yield MetricName(*OURS, "LateResults", client), balance.late
    yield MetricName(*OURS, "ZombieHandlers", client), balance.zombies
    yield MetricName(*OURS, "LostMessages", client), balance.lost
    yield MetricName(*OURS, "StoppedPartitionsCount", client), sum(bool(one.stopped) for one in balance.partitions)
    if balance.handler_times is not None:
        yield MetricName(*OURS, "HandlerTime", client), balance.handler_times
    for one in balance.partitions:
        tags = (*client, ("topic", one.partition.topic), ("partition", str(one.partition.partition)))
        yield MetricName(*OURS, "UnfinishedCount", tags), one.unfinished
        yield MetricName(*OURS, "FinishedBeyondCount", tags), one.finished_beyond
        yield MetricName(*OURS, "HeldTime", tags), one.oldest
        yield MetricName(*OURS, "InHandCount", tags), one.in_hand
        yield MetricName(*OURS, "HeldAttempts", tags), 0 if one.held is None else one.held.attempts
        yield MetricName(*OURS, "SlotsLent", tags), sum(one.lent.values())
        yield MetricName(*OURS, "SlotsBorrowed", tags), one.borrowed
        if not one.lender:  # the owner tells these
            yield MetricName(*OURS, "ParkedCount", tags), one.parked
            yield MetricName(*OURS, "DeadLetterCount", tags), one.dead
            yield MetricName(*OURS, "UnnotedCount", tags), one.unnoted
