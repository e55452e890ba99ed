"""The JSON documents of ``/api/groups`` and ``/api/groups/<group>``, which the page reads. Pure; any thread.

Times are milliseconds since 1970, ages and lags in time are seconds. An unknown value is null, never -1 or 0.
Names come from nodes that anybody may have written: a reader of the document has to escape them.

The event streams send an event ``changed`` after each reading, with the group's ``serial`` and ``taken``. A reader then
asks for the document again, with ``?since=<last time of its history>`` for the new points of the history only.

Explanations, events and plans of one group cost more than the judgement, and are made when somebody asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf

from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.assignment_forecast import Change, ForecastError, Join, Leave, forecast
from zkconsumer.operations.doctor.findings import Finding, Observations
from zkconsumer.operations.explanation import explained_in_short, explained_partitions
from zkconsumer.operations.group_snapshot import BrokersMember, GroupSnapshot, MemberNode, gone_before
from zkconsumer.operations.group_timeline import events, rebalances
from zkconsumer.operations.group_view import GroupAnalysis, member_host
from zkconsumer.operations.judgement import Judgement, PartitionVerdict, judgement_of, known_number
from zkconsumer.operations.serving.burrow_rules import NO_COMMIT, status_of, status_of_group
from zkconsumer.operations.serving.group_trends import GroupTrend
from zkconsumer.operations.serving.observed_group import LagPoint, ObservedGroup

Document = Mapping[str, object]
"""A JSON object."""

EVENTS = 300
REBALANCES = 50
"""The most events and rebalances of a document, the latest ones."""


EXPLAINED = 200_000
"""The most partitions of a group that are explained, times its members. An explanation looks at every member."""
LEAST_EXPLAINED = 10
PLANNED_MEMBERS, PLANNED_PARTITIONS = 2000, 5000
"""The most members and owned partitions of a group whose changes are planned after each reading."""


@dataclass(frozen=True, slots=True)
class Details:
    """The parts of one group's document alone. ``explanations`` are one sentence a partition, the rest JSON objects."""

    explanations: Mapping[TopicPartition, str] = field(default_factory=dict)
    events: Sequence[Document] = ()
    rebalances: Sequence[Document] = ()
    plans: Mapping[str, Document] = field(default_factory=dict)


def judge_watched(watched: ObservedGroup) -> Judgement:
    """Return the judgement of a group after the latest reading, from its changes and progress so far."""
    return judged_later(watched, None)[0]


def judged_later(watched: ObservedGroup, before: GroupAnalysis | None) -> tuple[Judgement, GroupAnalysis]:
    """Return the judgement and the analysis after the latest reading. ``before`` is the analysis of an earlier one."""
    seen = Observations((*watched.changes, watched.judged), progress=watched.progress, before=before)
    return judgement_of(seen), seen.analysis


def details(
    watched: ObservedGroup, judgement: Judgement, before: tuple[ObservedGroup, Details] | None = None
) -> Details:
    """Return the explanations, events and plans of one group.

    Arguments: ``before`` is an earlier reading with its details. Events and plans are taken from it if neither members
    nor owners nor topics have changed since.
    """
    snapshot = watched.judged
    analysis = GroupAnalysis(snapshot, watched.changes)
    explanations = {tp: explained_in_short(analysis, tp, judgement.verdict(tp)) for tp in _to_explain(analysis)}
    told = before[1] if before is not None and before[0].changes is watched.changes else _of_changes(watched)
    return replace(told, explanations=explanations)


def _to_explain(analysis: GroupAnalysis) -> list[TopicPartition]:
    """Return the partitions to explain: all, or in a huge group as many as :data:`EXPLAINED` allows.

    Partitions that are not where they should be come first.
    """
    every = explained_partitions(analysis)
    most = EXPLAINED // max(1, len(analysis.snapshot.members))
    odd = [tp for tp in every if analysis.owners.get(tp) != analysis.expected.get(tp)]
    return list(dict.fromkeys((*odd, *every)))[: max(LEAST_EXPLAINED, most)]


def _of_changes(watched: ObservedGroup) -> Details:
    found = events(watched.changes)
    return Details(
        events=[event.document() for event in found[-EVENTS:]],
        rebalances=[one.document() for one in rebalances(found)[-REBALANCES:]],
        plans=_plans(GroupAnalysis(watched.judged, watched.changes)),
    )


def _plans(analysis: GroupAnalysis) -> Mapping[str, Document]:
    """Return the plan for one more member, and the plan without the member that has the most partitions."""
    plans = {"join": _plan("one more member", analysis, Join("new-member"))}
    owned = Counter(thread.rpartition("-")[0] for thread in analysis.expected.values())
    names = sorted(analysis.snapshot.members, key=lambda name: (-owned[name], name))
    if names:
        plans["leave"] = _plan(f"{names[0]} leaves", analysis, Leave(names[0]))
    return plans


def _plan(title: str, analysis: GroupAnalysis, change: Change) -> Document:
    """Return a forecast. ``problem`` says why there is none, and is null if there is one."""
    plan: dict[str, object] = {"title": title, "text": None, "moves": [], "idle": [], "pauses": [], "notes": []}
    if len(analysis.snapshot.members) > PLANNED_MEMBERS or len(analysis.owners) > PLANNED_PARTITIONS:
        return {**plan, "problem": "the group is too large to plan for after each reading: run zkconsumer plan"}
    try:
        found = forecast(analysis, (change,))
    except ForecastError as error:
        return {**plan, "problem": str(error)}
    moves = [{"partition": _name(m.partition), "from": m.before, "to": m.after} for m in found.moves]
    pauses = [{"whose": one.whose, "partitions": one.partitions, "how_long": one.how_long} for one in found.pauses]
    text = f"partitions that move: {len(moves)}, that stay: {found.stays}; idle threads: {len(found.idle)}"
    told = {"text": text, "moves": moves, "idle": list(found.idle), "pauses": pauses, "notes": list(found.notes)}
    return {**plan, **told, "problem": None}


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic}:{tp.partition}"


def groups_document(
    watched: Mapping[str, tuple[ObservedGroup, Judgement]], now: int, trends: Mapping[str, GroupTrend] = {}
) -> Document:
    """Return the overview of all groups at ``now``: a row a group, in the order of their names.

    ``curve`` of a row has the largest lag of each minute of the last hour, the latest last.
    """
    rows = []
    for name in sorted(watched):
        trend = trends.get(name, GroupTrend())
        rows.append({**_row(*watched[name], now, trend), "curve": trend.curve(now)})
    return {"now": now, "groups": rows}


def group_document(
    watched: ObservedGroup,
    judgement: Judgement,
    details: Details,
    now: int,
    since: int = 0,
    trend: GroupTrend = GroupTrend(),  # noqa: B008 (immutable)
) -> Document:
    """Return everything about one group at ``now``. ``since`` drops the points of the history up to that time."""
    snapshot = watched.snapshot
    return {
        **_row(watched, judgement, now, trend),
        "zookeeper": snapshot.zookeeper,
        "bootstrap": snapshot.bootstrap,
        "strategy_why": judgement.strategy_why,
        "members": _members(snapshot, judgement),
        "partitions": [
            {**_partition(watched, judgement, tp, now), "explanation": details.explanations.get(tp)}
            for tp in _partitions(watched, judgement)
        ],
        "history": _history([point for point in watched.points if point.taken > since]),
        "events": list(details.events),
        "rebalances": list(details.rebalances),
        "findings": [_finding(one) for one in judgement.findings],
        "plans": dict(details.plans),
        "problems": [{"what": problem.what, "why": problem.why} for problem in snapshot.problems],
    }


def _partitions(watched: ObservedGroup, judgement: Judgement) -> list[TopicPartition]:
    """Return each partition that has an owner, should have one, or has an offset, as far as it is known."""
    return sorted({*watched.snapshot.partitions(), *judgement.expected, *watched.lags})


def _rates(trend: GroupTrend) -> Document:
    """Return the rates of the last minutes, in messages a second. ``drains`` is false if the lag never ends at them."""
    rates, drain = trend.rates(), trend.drain_seconds()
    return {
        "consumed_rate": None if rates is None else round(rates[0], 3),
        "produced_rate": None if rates is None else round(rates[1], 3),
        "drains": None if drain is None else drain < inf,
        "drain_seconds": None if drain is None or drain == inf else round(drain, 1),
    }


def _row(watched: ObservedGroup, judgement: Judgement, now: int, trend: GroupTrend) -> Document:
    lags = {tp: known for tp, known in watched.lags.items() if not judgement.abandoned(tp.topic)}
    seconds = [known.seconds for known in lags.values() if known.seconds is not None]
    partitions = _partitions(watched, judgement)
    current = [tp for tp in partitions if not judgement.abandoned(tp.topic)]
    statuses = [status_of(watched.windows.get(tp, NO_COMMIT), now) for tp in current]
    oldest = min((known.taken for known in lags.values()), default=None)
    read = watched.failure == "" or watched.serial > 1
    return {
        "group": watched.group,
        "serial": watched.serial,
        "now": now,
        "taken": watched.snapshot.taken,
        "age": max(0, now - watched.snapshot.taken) / 1000,
        "failure": watched.failure or None,
        "zookeeper_taken": watched.zookeeper_taken or None,
        "incomplete": bool(watched.snapshot.problems),
        "state": judgement.state,
        "reason": judgement.reason,
        "severity": str(judgement.severity),
        "finding_counts": dict(judgement.counts),
        "headline": judgement.headline or None,
        "worst_check": judgement.findings[0].check if judgement.findings else None,
        "status": judgement.status,
        "burrow_status": status_of_group(statuses).name,
        "coordination": judgement.coordination or None,
        "strategy": judgement.strategy or None,
        "member_count": known_number(len(judgement.kinds), watched.snapshot, "ids") if read else None,
        "partition_count": len(partitions) if read else None,
        "owned_count": known_number(len(judgement.owners), watched.snapshot, "owners") if read else None,
        "lag": sum(known.lag for known in lags.values()) if lags else None,
        "lag_taken": oldest,
        "lag_age": None if oldest is None else max(0, now - oldest) / 1000,
        "unknown_lags": len([tp for tp in current if tp not in lags]),
        "lag_seconds": max(seconds, default=None),
        "abandoned_topics": sorted({tp.topic for tp in watched.lags if judgement.abandoned(tp.topic)}),
        **_rates(trend),
    }


def _members(snapshot: GroupSnapshot, judgement: Judgement) -> list[Document]:
    owned: dict[str, list[str]] = {}
    for tp, thread in sorted(judgement.owners.items()):
        owned.setdefault(judgement.member_of.get(thread, ""), []).append(_name(tp))
    threads: dict[str, list[str]] = {}
    for name, member in sorted(judgement.member_of.items()):
        threads.setdefault(member, []).append(name)
    found = [_member(snapshot, consumer, node, judgement) for consumer, node in sorted(snapshot.members.items())]
    if not found and snapshot.brokers_group is not None:
        found = [_brokers_member(member) for member in snapshot.brokers_group.members]
    return [
        {**member, "threads": threads.get(str(member["id"]), []), "owned": owned.get(str(member["id"]), [])}
        for member in found
    ]


def _member(snapshot: GroupSnapshot, name: ConsumerId, node: MemberNode, judgement: Judgement) -> Document:
    registration, stat = node.registration, node.stat
    return {
        "id": name,
        "kind": judgement.kinds.get(name),
        "host": member_host(snapshot.group, name, node),
        "pattern": None if registration is None else registration.pattern,
        "subscription": None if registration is None else dict(registration.subscription),
        "since": None if stat is None else stat.ctime,
        "session": None if stat is None else f"0x{stat.ephemeral_owner:x}",
        "problem": node.problem or None,
    }


def _brokers_member(member: BrokersMember) -> Document:
    return {
        "id": member.member_id,
        "kind": member.client_id,
        "host": member.host,
        "pattern": None,
        "subscription": dict.fromkeys(member.topics, 1),
        "since": None,
        "session": None,
        "problem": None if member.assignment is not None else "its assignment cannot be decoded",
    }


def _partition(watched: ObservedGroup, judgement: Judgement, tp: TopicPartition, now: int) -> Document:
    snapshot = watched.snapshot
    owner, expected = judgement.owners.get(tp), judgement.expected.get(tp)
    node, claim = snapshot.offsets.get(tp), snapshot.owners.get(tp)
    known, log = watched.lags.get(tp), watched.logs.get(tp)
    window = watched.windows.get(tp, NO_COMMIT)
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "owner": owner,
        "owner_member": judgement.member_of.get(owner or ""),
        "owned_since": claim.stat.ctime if claim is not None and claim.stat is not None else None,
        "expected": expected,
        "expected_member": judgement.member_of.get(expected or ""),
        **_verdict(judgement.verdict(tp), watched.judged.taken),
        "burrow_status": status_of(window, now).name,
        "abandoned": judgement.abandoned(tp.topic),
        "offset": snapshot.committed(tp),
        "offset_problem": (node.problem or None) if node is not None else None,
        "committed": window.last_time,
        "lag": None if known is None else known.lag,
        "gone": gone_before(snapshot.committed(tp), None if log is None else log.log),
        "lag_seconds": None if known is None else known.seconds,
        "lag_taken": None if known is None else known.taken,
        "lag_age": None if known is None else max(0, now - known.taken) / 1000,
        "log_start": None if log is None else log.log.start,
        "log_end": None if log is None else log.log.end,
        "log_taken": None if log is None else log.taken,
        "leader": None if log is None else log.log.leader,
        **_balance(snapshot, tp),
    }


def _verdict(verdict: PartitionVerdict, read: int) -> Document:
    """Return a partition's verdict, with its least age in seconds at the time ``read``."""
    return {
        "severity": str(verdict.level),
        "verdict": verdict.reason or None,
        "check": verdict.check or None,
        "verdict_since": verdict.since,
        "verdict_age": None if verdict.since is None else max(0, read - verdict.since) / 1000,
        "status": verdict.status,
    }


def _finding(found: Finding) -> Document:
    return {
        "level": str(found.level),
        "check": found.check,
        "text": found.text,
        "evidence": found.evidence or None,
        "node": found.node or None,
        "remedy": found.remedy or None,
        "unknown": found.unknown,
        "since": found.since,
        "link": found.link or None,
    }


def _balance(snapshot: GroupSnapshot, tp: TopicPartition) -> Document:
    """Return a partition's values of balanced members. Null is unknown; a value that no member wrote is left out."""
    found: dict[str, object] = {}
    pointers = snapshot.pointers.get(tp)
    if tp in snapshot.acks or snapshot.note(tp) is not None:
        found["finished_beyond"] = snapshot.finished_beyond(tp)
    if pointers is not None:
        found |= {"parked": pointers.parked, "dead": pointers.dead}
    if tp in snapshot.loans:
        found["lent"] = {name: loan.slots for name, loan in sorted(snapshot.loans[tp].items())}
    return found


def _history(points: list[LagPoint]) -> Document:
    """Return the lags over time: of each partition, and of all whose lag was known at that time."""
    known = [point.known() for point in points]
    partitions = sorted(set(chain.from_iterable(point.partitions for point in points)))
    return {
        "times": [point.taken for point in points],
        "total": [sum(lags.values()) if lags else None for lags in known],
        "partitions": {_name(tp): [lags.get(tp) for lags in known] for tp in partitions},
    }
