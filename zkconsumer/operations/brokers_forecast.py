"""The values of all forecasts, and forecasts of a brokers' group by the Java consumer's strategies. Pure; any thread.

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
from zkconsumer.core.names import first_of
from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.group_snapshot import BrokersGroup
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.strategy_inference import Strategy

MOST_PARTITIONS = 200_000
_NAMED = 5


class ForecastError(ZkConsumerError):
    """A change cannot be forecast; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Join:
    """A member joins from ``host``, with the subscription of the others; ``streams`` for each topic, None: as many."""

    host: str
    streams: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A member leaves in order. ``member`` is a consumer id, or a part that no other consumer id has."""

    member: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A member dies, and its session ends by its timeout. ``member`` as in :class:`Leave`."""

    member: str


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """A topic gets ``count`` partitions more; without ``topic`` every subscribed one does."""

    count: int
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class UseStrategy:
    """All members use another strategy: a name, or ``roundrobin-0.x`` for the old order of ``roundrobin``."""

    name: str


Change = Join | Leave | Kill | MorePartitions | UseStrategy


@dataclass(frozen=True, slots=True)
class ForecastMove:
    """A partition that changes its thread; None is nobody."""

    partition: TopicPartition
    before: ThreadId | None
    after: ThreadId | None


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of some partitions: their owners in words, their number, and the duration in words."""

    whose: str
    partitions: int
    how_long: str


@dataclass(frozen=True, slots=True)
class StrategyOutcome:
    """The outcome of the change under one strategy.

    ``moves`` counts the partitions that the change moves if the group has this strategy already; ``switch`` those that
    move from the present assignment to this strategy after the change. ``least`` and ``most`` are the partitions of a
    thread, ``idle`` the threads without any. All are None where ``problem`` says why.
    """

    strategy: str
    in_effect: bool
    moves: int | None = None
    switch: int | None = None
    least: int | None = None
    most: int | None = None
    idle: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The effect of a change on a group.

    ``before`` and ``after`` are the assignments, ``strategy`` the one in effect afterwards. ``stays`` counts the
    partitions that keep their thread; ``idle`` are the threads without partitions afterwards.
    """

    group: str
    before: Assignment
    after: Assignment
    strategy: Strategy
    moves: tuple[ForecastMove, ...]
    stays: int
    idle: tuple[ThreadId, ...]
    pauses: tuple[Pause, ...]
    outcomes: tuple[StrategyOutcome, ...]
    joined: tuple[ConsumerId, ...] = ()
    notes: tuple[str, ...] = ()


def moves_between(before: Assignment, after: Assignment) -> tuple[ForecastMove, ...]:
    """Return, in order, the partitions whose threads differ."""
    return tuple(
        ForecastMove(tp, before.get(tp), after.get(tp))
        for tp in sorted({*before, *after})
        if before.get(tp) != after.get(tp)
    )


def moved_partitions(before: Assignment, after: Assignment) -> tuple[ForecastMove, ...]:
    """Return the moves of partitions that had an owner: new ones do not count."""
    return tuple(move for move in moves_between(before, after) if move.before is not None)


def find_member(wanted: str, members: set[ConsumerId]) -> ConsumerId:
    """Return the member of this consumer id, or the only one whose id contains the text. Raises ForecastError."""
    if ConsumerId(wanted) in members:
        return ConsumerId(wanted)
    found = [consumer for consumer in members if wanted and wanted in consumer]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} members have {wanted!r} in their id" if found else f"no member is called {wanted!r}"
    known = first_of(found or members, _NAMED)
    raise ForecastError(f"{problem}; name one of {known}" if known else f"{problem}: the group has no members")


def grown(partitions: Mapping[str, tuple[int, ...]], change: MorePartitions) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each topic after the change. Raises ForecastError."""
    found = dict(partitions)
    for topic in [change.topic] if change.topic is not None else sorted(found):
        if topic not in found:
            raise ForecastError(f"no member subscribes to a topic {topic!r}; known are {first_of(found, _NAMED)}")
        numbers = found[topic]
        if not 0 < change.count <= MOST_PARTITIONS - len(numbers):
            raise ForecastError(f"--partitions +{change.count}: a topic has at most {MOST_PARTITIONS} partitions")
        first = numbers[-1] + 1 if numbers else 0
        found[topic] = (*numbers, *range(first, first + change.count))
    return found


# ---- groups that the brokers coordinate

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
    moves = moves_between(before, after)
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
        gone = find_member(change.member, {ConsumerId(member) for member in scene.members})
        left = {member: one for member, one in scene.members.items() if member != gone}
        killed = (*scene.killed, gone) if isinstance(change, Kill) else scene.killed
        return replace(scene, members=left, killed=killed, joined=tuple(one for one in scene.joined if one != gone))
    if isinstance(change, MorePartitions):
        return replace(scene, partitions=grown(scene.partitions, change))
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


def _outcome(name: str, start: _BrokersScene, scene: _BrokersScene, current: Assignment) -> StrategyOutcome:
    old = _assigned(name, start)
    had = {member: [tp for tp, owner in old.items() if owner == member] for member in scene.members}
    members = {member: replace(one, owned=had[member], generation=1) for member, one in scene.members.items()}
    new = _assigned(name, replace(scene, members=members))
    sizes = Counter(new.values())
    counts = [sizes[ThreadId(member)] for member in scene.members]
    return StrategyOutcome(
        strategy=name,
        in_effect=name == scene.strategy,
        moves=len(moved_partitions(old, new)),
        switch=len(moved_partitions(current, _assigned(name, scene))),
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
