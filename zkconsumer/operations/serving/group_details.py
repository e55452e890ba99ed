"""The document of one group beside the judgement: explanations, events and plans. Pure; any thread.

The details cost more than the judgement, and are made when somebody asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from zkconsumer.model import TopicPartition
from zkconsumer.operations.assignment_forecast import Change, ForecastError, Join, Leave, forecast
from zkconsumer.operations.explanation import explain, explained_partitions
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.judgement import Judgement, judge
from zkconsumer.operations.serving.watched_group import WatchedGroup
from zkconsumer.operations.timeline import events, rebalances

Document = Mapping[str, object]
"""A JSON object."""

EVENTS = 300
REBALANCES = 50
"""The most events and rebalances of a document, the latest ones."""


EXPLAINED = 200_000
"""The most partitions of a group that are explained, times its members. An explanation looks at every member."""
LEAST_EXPLAINED = 10
PLANNED_MEMBERS = 2000
"""The most members of a group whose changes are planned after each reading."""


@dataclass(frozen=True, slots=True)
class Details:
    """The parts of one group's document alone. ``explanations`` are one sentence a partition, the rest JSON objects."""

    explanations: Mapping[TopicPartition, str] = field(default_factory=dict)
    events: Sequence[Document] = ()
    rebalances: Sequence[Document] = ()
    plans: Mapping[str, Document] = field(default_factory=dict)


def judge_watched(watched: WatchedGroup) -> Judgement:
    """Return the judgement of a group after the latest reading, from its changes and progress so far."""
    return judge((*watched.changes, watched.judged), progress=watched.progress)


def details(watched: WatchedGroup, judgement: Judgement, before: tuple[WatchedGroup, Details] | None = None) -> Details:
    """Return the explanations, events and plans of one group.

    Arguments: ``before`` is an earlier reading with its details. Events and plans are taken from it if neither members
    nor owners nor topics have changed since.
    """
    snapshot = watched.judged
    analysis = GroupAnalysis(snapshot, watched.changes)
    explanations = {tp: explain(analysis, tp, judgement.verdict(tp)).sentence for tp in _to_explain(analysis)}
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


def _of_changes(watched: WatchedGroup) -> Details:
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
    if len(analysis.snapshot.members) > PLANNED_MEMBERS:
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
