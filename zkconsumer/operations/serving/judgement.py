"""What the other parts of ``zkconsumer.operations`` conclude about a watched group, as plain values. Pure; any thread.

A :class:`Judgement` is made once a reading. The :class:`Details` cost more and are made when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.operations.group_view import GroupAnalysis, member_kind
from zkconsumer.operations.serving.watched_group import WatchedGroup
from zkconsumer.operations.timeline import events, rebalances

Document = Mapping[str, object]
"""A JSON object."""

EVENTS = 300
REBALANCES = 50
"""The most events and rebalances of a document, the latest ones."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state of a group and of its partitions.

    ``state`` is a word such as ``Stable``, ``reason`` a sentence. ``coordination`` is ``zookeeper``, ``brokers`` or
    empty. ``strategy`` is empty if it is unknown, and ``strategy_why`` says how it is known. ``kinds`` maps members to
    the software that registered them.
    ``owners`` and ``expected`` map partitions to thread ids, or to member ids of a group that brokers coordinate.
    ``member_of`` maps these ids to members. ``subscribed`` are the topics that a member subscribes to, None if a
    registration cannot be read.
    """

    state: str = "Unknown"
    reason: str = ""
    coordination: str = ""
    strategy: str = ""
    strategy_why: str = ""
    kinds: Mapping[ConsumerId, str] = field(default_factory=dict)
    owners: Assignment = field(default_factory=dict)
    expected: Assignment = field(default_factory=dict)
    member_of: Mapping[str, str] = field(default_factory=dict)
    subscribed: frozenset[str] | None = None

    def abandoned(self, topic: str) -> bool:
        """Return whether the group has members, and none of them subscribes to this topic."""
        return self.subscribed is not None and bool(self.kinds) and topic not in self.subscribed


@dataclass(frozen=True, slots=True)
class Details:
    """What is told of one group only. ``explanations`` are one sentence a partition; the rest are JSON objects."""

    explanations: Mapping[TopicPartition, str] = field(default_factory=dict)
    events: Sequence[Document] = ()
    rebalances: Sequence[Document] = ()
    findings: Sequence[Document] = ()
    plans: Mapping[str, Document] = field(default_factory=dict)


def judge(watched: WatchedGroup) -> Judgement:
    """Return what the latest snapshot says, and the earlier ones about how long it has been so."""
    snapshot = watched.snapshot
    analysis = GroupAnalysis(snapshot, watched.changes)
    by_brokers = analysis.by_brokers
    if by_brokers is not None:
        kinds = {ConsumerId(member.member_id): member.client_id for member in by_brokers.members}
        member_of: dict[str, str] = {name: name for name in kinds}
    else:
        kinds = {consumer: member_kind(node).value for consumer, node in snapshot.members.items()}
        member_of = {str(thread): str(consumer) for thread, consumer in analysis.registered.items()}
    coordination = "brokers" if by_brokers is not None else "zookeeper" if snapshot.in_zookeeper else ""
    return Judgement(
        analysis.state.state.value,
        analysis.state.reason,
        coordination,
        analysis.strategy.label,
        analysis.strategy.why,
        kinds,
        analysis.owners,
        analysis.expected,
        member_of,
        None if analysis.view.unreadable else analysis.subscribed,
    )


def details(watched: WatchedGroup) -> Details:
    """Return what the document of one group says beside its judgement."""
    found = events(watched.changes)
    return Details(
        events=[event.document() for event in found[-EVENTS:]],
        rebalances=[one.document() for one in rebalances(found)[-REBALANCES:]],
    )
