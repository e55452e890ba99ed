"""Forecasts of changes of a group: members that join or leave, more partitions, another strategy.

The group's assignment is computed before and after the change, by the strategies themselves; nothing is written and no
member is asked. Pure; any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zkconsumer.assignors.assignor import AssignmentError, known_assignors
from zkconsumer.core.names import first_of
from zkconsumer.core.registration import Registration
from zkconsumer.member.zookeeper.claim_plan import GroupView, Threads, threads_of
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.brokers_forecast import (
    Change,
    Forecast,
    ForecastError,
    ForecastMove,
    Join,
    Kill,
    Leave,
    MorePartitions,
    Pause,
    StrategyOutcome,
    UseStrategy,
    brokers_forecast,
    find_member,
    grown,
    moved_partitions,
    moves_between,
)
from zkconsumer.operations.group_snapshot import GroupSnapshot, MemberNode
from zkconsumer.operations.group_state import GroupState
from zkconsumer.operations.group_view import GroupAnalysis, MemberKind, member_kind
from zkconsumer.operations.printable import duration
from zkconsumer.operations.strategy_inference import (
    RANGE,
    ROUNDROBIN,
    ROUNDROBIN_OLD,
    Strategy,
    assignment_by,
    infer_strategy,
    is_scalas,
)

__all__ = [
    "Change",
    "Forecast",
    "ForecastError",
    "ForecastMove",
    "Join",
    "Kill",
    "Leave",
    "MorePartitions",
    "Pause",
    "StrategyOutcome",
    "UseStrategy",
    "find_member",
    "forecast",
    "moves_between",
    "strategy_named",
]

SESSION_TIMEOUT_MS = 6_000
"""``zookeeper.session.timeout.ms`` by default, in Scala members and in ours."""
MOST_STREAMS = 10_000
_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Scene:
    """The group after some changes."""

    view: GroupView
    kinds: Mapping[ConsumerId, MemberKind]
    strategy: Strategy | None = None
    killed: tuple[ConsumerId, ...] = ()
    joined: tuple[ConsumerId, ...] = ()


def forecast(snapshot: GroupSnapshot | GroupAnalysis, changes: Sequence[Change]) -> Forecast:
    """Return what these changes, made together, would do. Raises ForecastError."""
    analysis = snapshot if isinstance(snapshot, GroupAnalysis) else GroupAnalysis(snapshot)
    if analysis.by_brokers is not None:
        return brokers_forecast(analysis, analysis.by_brokers, changes)
    _check_kind(analysis)
    kinds = {consumer: member_kind(node) for consumer, node in analysis.snapshot.members.items()}
    scene = _Scene(analysis.view, kinds)
    for change in changes:
        scene = _changed(scene, change, analysis.snapshot)
    threads = _threads(scene.view)
    strategy = scene.strategy or _strategy_after(analysis, scene.view, threads)
    before = analysis.owners if analysis.problem else analysis.expected
    try:
        after = assignment_by(strategy, scene.view, threads) if scene.view.members else {}
    except AssignmentError as error:
        raise ForecastError(f"{error}; choose one with --strategy to compare") from error
    moves = moves_between(before, after)
    return Forecast(
        group=analysis.snapshot.group,
        before=before,
        after=after,
        strategy=strategy,
        moves=moves,
        stays=sum(after.get(tp) == thread for tp, thread in before.items()),
        idle=_idle(threads, after),
        pauses=_pauses(analysis, scene, moves),
        outcomes=_outcomes(analysis, scene.view, strategy, before),
        joined=scene.joined,
        notes=_notes(analysis, scene, strategy),
    )


def _check_kind(analysis: GroupAnalysis) -> None:
    group, state = analysis.snapshot.group, analysis.state
    if analysis.bridges_only:
        raise ForecastError(f"all members of {group} are migration bridges: the brokers' group assigns its partitions")
    if not analysis.snapshot.members and state.state in (GroupState.DEAD, GroupState.UNKNOWN):
        raise ForecastError(f"{group} cannot be planned: {state.reason}")


def _threads(view: GroupView) -> Threads:
    return threads_of(view, exclude_internal_topics=True)


def _strategy_after(analysis: GroupAnalysis, view: GroupView, threads: Threads) -> Strategy:
    """Return the strategy after the change: advertised by all members then, or else as before.

    A plug-in's strategy stays in effect only while all members advertise it.
    """
    advertised = infer_strategy(view, threads, {})
    if advertised.sure or not analysis.strategy.name:
        return advertised
    return analysis.strategy if is_scalas(analysis.strategy) else RANGE


# ---- the changes


def _changed(scene: _Scene, change: Change, snapshot: GroupSnapshot) -> _Scene:
    if isinstance(change, Join):
        return _with_member(scene, change, snapshot)
    if isinstance(change, Leave | Kill):
        consumer = find_member(change.member, {*scene.view.members, *_unreadable(scene.view)})
        left = _without_member(scene, consumer)
        return replace(left, killed=(*left.killed, consumer)) if isinstance(change, Kill) else left
    if isinstance(change, MorePartitions):
        return replace(scene, view=replace(scene.view, partitions=grown(scene.view.partitions, change)))
    return replace(scene, strategy=strategy_named(change.name))


def strategy_named(name: str) -> Strategy:
    """Return the strategy of a name; ``roundrobin-0.x`` is the order of Scala releases before 1.0.

    Raises ForecastError for an unknown name.
    """
    special = {"roundrobin": ROUNDROBIN, "roundrobin-1.x": ROUNDROBIN, "roundrobin-0.x": ROUNDROBIN_OLD}
    if name in special:
        return special[name]
    if name not in known_assignors():
        raise ForecastError(
            f"no strategy is called {name!r}; known are {', '.join(sorted({*known_assignors(), *special}))}"
        )
    return Strategy(name)


def _unreadable(view: GroupView) -> set[ConsumerId]:
    return {ConsumerId(path.rpartition("/")[2]) for path in view.unreadable}


def _with_member(scene: _Scene, change: Join, snapshot: GroupSnapshot) -> _Scene:
    template = _template(scene)
    registration = scene.view.members[template]
    streams = change.streams
    if streams is not None:
        if not 0 < streams <= MOST_STREAMS:
            raise ForecastError(f"--join {change.host}: {streams} streams; from 1 to {MOST_STREAMS} are possible")
        registration = replace(registration, subscription=dict.fromkeys(registration.subscription, streams))
    extra = dict(registration.extra)
    extra.update({"host": change.host} if "host" in extra else {})
    extra.pop("address", None)  # the template's: a strategy must not place the new member by it
    consumer = _new_id(change.host, snapshot, scene.view.members)
    members = {**scene.view.members, consumer: replace(registration, extra=extra)}
    return replace(
        scene,
        view=replace(scene.view, members=members),
        kinds={**scene.kinds, consumer: scene.kinds[template]},
        joined=(*scene.joined, consumer),
    )


def _new_id(host: str, snapshot: GroupSnapshot, taken: Mapping[ConsumerId, Registration]) -> ConsumerId:
    """Return an id that a member of this host could make now: only the id's place in the order counts."""
    plain = ConsumerId(f"{snapshot.group}_{host}")
    if not snapshot.taken and plain not in taken:  # a group on paper, whose ids have no times
        return plain
    for number in range(len(taken) + 1):
        consumer = ConsumerId(f"{snapshot.group}_{host}-{snapshot.taken}-{number:08x}")
        if consumer not in taken:
            return consumer
    raise AssertionError("more ids than members")


def _template(scene: _Scene) -> ConsumerId:
    """Return a member with the most frequent subscription, of this package if the group has any such member."""
    ours = [c for c in scene.view.members if scene.kinds.get(c) not in (MemberKind.SCALA, MemberKind.UNKNOWN)]
    among = ours or list(scene.view.members)
    if not among:
        raise ForecastError("the group has no readable member, whose subscription a new member could have")

    def subscription(consumer: ConsumerId) -> tuple[str, tuple[tuple[str, int], ...]]:
        one = scene.view.members[consumer]
        return one.pattern, tuple(sorted(one.subscription.items()))

    usual = Counter(map(subscription, among)).most_common(1)[0][0]
    return next(consumer for consumer in sorted(among) if subscription(consumer) == usual)


def _without_member(scene: _Scene, consumer: ConsumerId) -> _Scene:
    view = scene.view
    return replace(
        scene,
        view=replace(
            view,
            members={c: one for c, one in view.members.items() if c != consumer},
            unreadable={path: why for path, why in view.unreadable.items() if path.rpartition("/")[2] != consumer},
            kept={tp: thread for tp, thread in view.kept.items() if thread.rpartition("-")[0] != consumer},
        ),
        joined=tuple(one for one in scene.joined if one != consumer),
    )


# ---- the outcome


def _idle(threads: Threads, assignment: Assignment) -> tuple[ThreadId, ...]:
    every = {thread for by_topic in threads.values() for ids in by_topic.values() for thread in ids}
    return tuple(sorted(every.difference(assignment.values())))


def _outcomes(
    analysis: GroupAnalysis, after: GroupView, in_effect: Strategy, current: Assignment
) -> tuple[StrategyOutcome, ...]:
    """Return the outcome of each strategy: those of Scala members first, then the others by name."""
    scalas = [RANGE, ROUNDROBIN, ROUNDROBIN_OLD]
    others = [Strategy(name) for name in sorted(known_assignors()) if not is_scalas(Strategy(name))]
    return tuple(_outcome(one, analysis, after, in_effect, current) for one in scalas + others)


def _outcome(
    strategy: Strategy, analysis: GroupAnalysis, after: GroupView, in_effect: Strategy, current: Assignment
) -> StrategyOutcome:
    chosen = strategy.label == (in_effect.label if in_effect.label != "roundrobin" else ROUNDROBIN.label)
    threads = _threads(after)
    try:
        old = assignment_by(strategy, analysis.view, analysis.threads)
        new = assignment_by(strategy, after, threads)
    except AssignmentError as error:
        return StrategyOutcome(strategy.label, chosen, problem=str(error.__cause__ or error))
    counts = Counter(new.values())
    every = {thread for by_topic in threads.values() for ids in by_topic.values() for thread in ids}
    sizes = [counts[thread] for thread in every]
    return StrategyOutcome(
        strategy=strategy.label,
        in_effect=chosen,
        moves=len(moved_partitions(old, new)),
        switch=len(moved_partitions(current, new)),
        least=min(sizes, default=0),
        most=max(sizes, default=0),
        idle=sum(size == 0 for size in sizes),
    )


def _pauses(analysis: GroupAnalysis, scene: _Scene, moves: Sequence[ForecastMove]) -> tuple[Pause, ...]:
    """Return which partitions pause, and how long."""
    before = analysis.owners if analysis.problem else analysis.expected
    holder = {tp: ConsumerId(thread.rpartition("-")[0]) for tp, thread in before.items()}
    moving = {move.partition for move in moves}
    killed = set(scene.killed)
    found = [_killed_pause(consumer, analysis.snapshot, holder) for consumer in scene.killed]
    if scene.strategy is not None and scene.strategy.label != analysis.strategy.label:
        found.append(
            Pause(
                "every member",
                len(holder),
                "each member is restarted with the strategy; until all agree, members contend",
            )
        )
    scala = [tp for tp, c in holder.items() if scene.kinds.get(c) in (MemberKind.SCALA, MemberKind.UNKNOWN)]
    stopped = [tp for tp in scala if holder[tp] not in killed]
    theirs = set(scala)
    if stopped:
        stays = sum(tp not in moving for tp in stopped)
        again = f", {stays} of them only to claim them again" if stays else ""
        how = f"they stop all they own{again}: about a second, 8 s if a claim conflicts"
        found.append(Pause("Scala members", len(stopped), how))
    ours = [tp for tp, c in holder.items() if tp not in theirs and c not in killed]
    moved = [tp for tp in ours if tp in moving]
    if moved:
        how = (
            "from the release to the next claim, mostly under a second; at most rebalance.drain.timeout.ms and a round"
        )
        found.append(Pause("members of zkconsumer, what moves", len(moved), how))
    if len(ours) > len(moved):
        found.append(Pause("members of zkconsumer, what stays", len(ours) - len(moved), "no pause"))
    return tuple(found)


def _killed_pause(consumer: ConsumerId, snapshot: GroupSnapshot, holder: Mapping[TopicPartition, ConsumerId]) -> Pause:
    node = snapshot.members.get(consumer)
    known = _timeout(node, snapshot) if node is not None else None
    limits = [server.max_session_timeout for server in snapshot.servers if server.max_session_timeout]
    if known is not None:
        how = f"its session timeout, {duration(known)}, and then a rebalance"
    else:
        most = duration(max(limits, default=40_000))
        usual = duration(SESSION_TIMEOUT_MS)
        how = f"its session timeout (unknown; {usual} by default, at most {most}), and then a rebalance"
    return Pause(f"{consumer}, which dies", sum(c == consumer for c in holder.values()), how)


def _timeout(node: MemberNode, snapshot: GroupSnapshot) -> int | None:
    if node.stat is None:
        return None
    known = [
        server.sessions[node.stat.ephemeral_owner][1]
        for server in snapshot.servers
        if node.stat.ephemeral_owner in server.sessions
    ]
    return known[0] if known else None


def _notes(analysis: GroupAnalysis, scene: _Scene, strategy: Strategy) -> tuple[str, ...]:
    notes = []
    on_paper = not analysis.snapshot.taken
    if on_paper and not analysis.strategy.sure and scene.strategy is None:
        notes.append(f"the file names no strategy, so this is {strategy.label}")
    elif not analysis.strategy.sure and scene.strategy is None and analysis.strategy.name:
        notes.append(f"the strategy is not sure: {analysis.strategy.why}")
    state = analysis.state
    if not on_paper and state.state in (GroupState.REBALANCING, GroupState.STUCK):
        notes.append(f"the group is {state.state.value} now ({state.reason}); the plan starts from what should be")
    if scene.strategy is None and analysis.strategy.name and strategy.label != analysis.strategy.label:
        notes.append(
            f"{analysis.strategy.label} is no longer in effect then: {strategy.label} is, because {strategy.why}"
        )
    scala = [c for c in scene.view.members if scene.kinds.get(c) is MemberKind.SCALA]
    if scene.strategy is not None and not is_scalas(scene.strategy) and scala:
        notes.append(f"{first_of(scala, _NAMED)} are Scala members and cannot use {scene.strategy.name}")
    if scene.view.unreadable:
        notes.append(f"{first_of(_unreadable(scene.view), _NAMED)} cannot be read, and keep what they own")
    if not scene.view.members:
        notes.append("no member is left: nobody consumes")
    return tuple(notes)
