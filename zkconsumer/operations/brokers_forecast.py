"""Forecasts of changes of a brokers' group, by the Java consumer's strategies. Pure; any thread.

The leader of such a group knows what members had before, and the random part of a new member's id decides its place in
``range`` and ``roundrobin``. So the forecast of a join is one of several equal assignments; the numbers of moves hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zkconsumer.assignors.java_consumer_assignors import (
    MemberPartitions,
    SubscribedMember,
    SubscribedMembers,
    range_assignment,
    roundrobin_assignment,
    sticky,
)
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations import forecast_values
from zkconsumer.operations.forecast_values import Change, Forecast, ForecastError, Join, Kill, Leave, Pause
from zkconsumer.operations.group_snapshot import BrokersGroup
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.strategy_inference import Strategy

_COOPERATIVE = "cooperative-sticky"
_Assign = Callable[[SubscribedMembers, Mapping[str, int]], MemberPartitions]
_STRATEGIES: Mapping[str, _Assign] = {
    "range": range_assignment,
    "roundrobin": roundrobin_assignment,
    "sticky": sticky,
    _COOPERATIVE: sticky,  # it ends where sticky does, after one more rebalance
}
MOST_JOINED = 1_000


@dataclass(frozen=True, slots=True)
class _BrokersScene:
    """The group after some changes."""

    members: Mapping[str, SubscribedMember]
    partitions: Mapping[str, tuple[int, ...]]
    strategy: str
    killed: tuple[ConsumerId, ...] = ()
    joined: tuple[ConsumerId, ...] = ()
    holders: Mapping[TopicPartition, str] = field(default_factory=dict)


def brokers_forecast(analysis: GroupAnalysis, group: BrokersGroup, changes: Sequence[Change]) -> Forecast:
    """Return what these changes, made together, would do. Raises ForecastError."""
    start = _present(analysis, group)
    scene = start
    for change in changes:
        scene = _changed(scene, change)
    if scene.strategy not in _STRATEGIES:
        known = ", ".join(_STRATEGIES)
        raise ForecastError(f"the strategy {scene.strategy!r} cannot be computed from here; --strategy may be {known}")
    before = dict(analysis.owners)
    after = _assigned(scene.strategy, scene)
    moves = forecast_values.moves_between(before, after)
    return Forecast(
        group=analysis.snapshot.group,
        before=before,
        after=after,
        strategy=Strategy(scene.strategy, why="the members of the brokers' group agree on it"),
        moves=moves,
        stays=sum(after.get(tp) == member for tp, member in before.items()),
        idle=tuple(sorted({ThreadId(member) for member in scene.members}.difference(after.values()))),
        pauses=_pauses(scene, before, {move.partition for move in moves}),
        outcomes=tuple(_outcome(name, start, scene, before) for name in _STRATEGIES),
        joined=scene.joined,
        notes=_notes(analysis, scene),
    )


def _present(analysis: GroupAnalysis, group: BrokersGroup) -> _BrokersScene:
    members = {
        one.member_id: SubscribedMember(one.topics, one.assignment or (), 1, one.instance_id) for one in group.members
    }
    topics = {topic for one in group.members for topic in one.topics}
    known = analysis.snapshot.topics
    partitions = {topic: tuple(sorted(known[topic].partitions)) for topic in sorted(topics) if topic in known}
    return _BrokersScene(members, partitions, group.strategy)


def _changed(scene: _BrokersScene, change: Change) -> _BrokersScene:
    if isinstance(change, Join):
        return _with_members(scene, change)
    if isinstance(change, Leave | Kill):
        gone = forecast_values.find_member(change.member, {ConsumerId(member) for member in scene.members})
        left = {member: one for member, one in scene.members.items() if member != gone}
        killed = (*scene.killed, gone) if isinstance(change, Kill) else scene.killed
        return replace(scene, members=left, killed=killed, joined=tuple(one for one in scene.joined if one != gone))
    if isinstance(change, forecast_values.MorePartitions):
        return replace(scene, partitions=forecast_values.grown(scene.partitions, change))
    return replace(scene, strategy=change.name)


def _with_members(scene: _BrokersScene, change: Join) -> _BrokersScene:
    """Add a member for each stream: the Java consumer is one member, and has no streams."""
    count = 1 if change.streams is None else change.streams
    if not scene.members:
        raise ForecastError("the group has no member, whose subscription a new member could have")
    if not 0 < count <= MOST_JOINED:
        raise ForecastError(f"--join {change.host}: {count} members; from 1 to {MOST_JOINED} are possible")
    usual = Counter(tuple(sorted(one.topics)) for one in scene.members.values()).most_common(1)[0][0]
    taken = len(scene.members)
    new = {f"{change.host}-{number:08x}": SubscribedMember(usual) for number in range(taken, taken + count)}
    return replace(scene, members={**scene.members, **new}, joined=(*scene.joined, *map(ConsumerId, new)))


def _assigned(name: str, scene: _BrokersScene) -> Assignment:
    sizes = {topic: len(numbers) for topic, numbers in scene.partitions.items()}
    given = _STRATEGIES[name](scene.members, sizes)
    return {tp: ThreadId(member) for member, partitions in given.items() for tp in partitions}


def _outcome(
    name: str, start: _BrokersScene, scene: _BrokersScene, current: Assignment
) -> forecast_values.StrategyOutcome:
    old = _assigned(name, start)
    had = {member: [tp for tp, owner in old.items() if owner == member] for member in scene.members}
    members = {member: replace(one, owned=had[member], generation=1) for member, one in scene.members.items()}
    new = _assigned(name, replace(scene, members=members))
    sizes = Counter(new.values())
    counts = [sizes[ThreadId(member)] for member in scene.members]
    return forecast_values.StrategyOutcome(
        strategy=name,
        in_effect=name == scene.strategy,
        moves=len(forecast_values.moved_partitions(old, new)),
        switch=len(forecast_values.moved_partitions(current, _assigned(name, scene))),
        least=min(counts, default=0),
        most=max(counts, default=0),
        idle=sum(count == 0 for count in counts),
    )


def _pauses(scene: _BrokersScene, before: Assignment, moving: set[TopicPartition]) -> tuple[Pause, ...]:
    found = []
    for member in scene.killed:
        count = sum(owner == ThreadId(member) for owner in before.values())
        how = "its session.timeout.ms (45 s by default, 10 s before Kafka 3.0), and then a rebalance"
        found.append(Pause(f"{member}, which dies", count, how))
    live = [tp for tp, owner in before.items() if ConsumerId(owner) not in scene.killed]
    moved = [tp for tp in live if tp in moving]
    if scene.strategy == _COOPERATIVE:
        found.append(Pause("what moves", len(moved), "from one rebalance to the next"))
        found.append(Pause("what stays", len(live) - len(moved), "no pause"))
    else:
        how = "all members stop until the slowest has joined again: at most max.poll.interval.ms (5 min by default)"
        found.append(Pause("all members", len(live), how))
    return tuple(pause for pause in found if pause.partitions)


def _notes(analysis: GroupAnalysis, scene: _BrokersScene) -> tuple[str, ...]:
    notes = []
    known = analysis.by_brokers
    if known is not None and known.state != "Stable":
        notes.append(f"the group is {known.state} now")
    if any(not one.topics for one in scene.members.values()):
        notes.append("some members did not tell what they subscribe to, and get nothing here")
    if scene.joined and scene.strategy in ("range", "roundrobin"):
        notes.append("a new member's id has a random part: its place among the others, and so its share, may differ")
    if not scene.members:
        notes.append("no member is left: nobody consumes")
    return tuple(notes)
