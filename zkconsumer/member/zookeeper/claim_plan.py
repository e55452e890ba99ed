"""The plan of one member: which partitions to release, keep and claim.

The original releases and claims everything for every change. The outcome is the same here, since every member computes
the same assignment from the same view. But partitions that stay with their thread are kept and never touched.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from zkconsumer.assignors.assignor import AssignmentError
from zkconsumer.core.registration import Registration
from zkconsumer.core.subscription import thread_ids
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition

Threads = Mapping[ConsumerId, Mapping[str, tuple[ThreadId, ...]]]
"""For each member the threads that want each topic."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group at one moment, as ZooKeeper shows it.

    ``members`` are the readable registrations, ``unreadable`` the paths of the others with the reason. An unreadable
    member counts as one without topics (the original stops the whole group), and its threads keep the partitions that
    they own, ``kept``. ``topics`` are all topic names, if a member subscribes by expression. ``partitions`` are those
    of every existing topic that a member may want. ``racks`` are those of the partitions' leaders, if the strategy
    wants them. ``created`` are the transactions that made the registrations. ``doubtful`` are unreadable members that
    others may be able to read: their expression took us too long, or we may not list the topics. ``placement`` is the
    assignment of the group's plan, if the strategy needs one and it is in effect.
    """

    members: Mapping[ConsumerId, Registration]
    partitions: Mapping[str, tuple[int, ...]]
    topics: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    racks: Mapping[TopicPartition, str] = field(default_factory=dict)
    kept: Mapping[TopicPartition, ThreadId] = field(default_factory=dict)
    created: Mapping[ConsumerId, int] = field(default_factory=dict)
    doubtful: frozenset[ConsumerId] = frozenset()
    placement: Assignment | None = None


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The effects of the plan on a round, beside its assignment.

    ``waiting`` says which plan the member waits for, in words. ``again_at`` is when the next round must be, even if
    nothing changes (monotonic seconds). ``reread``: it must read the whole group again. ``advertise``: it must write
    our registration again, because what we advertise has changed.
    """

    waiting: str = ""
    again_at: float = inf
    reread: bool = False
    advertise: bool = False


NO_PLAN = PlanOutcome()


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The steps of a member from its present partitions to its part of the assignment."""

    release: tuple[TopicPartition, ...]
    keep: tuple[TopicPartition, ...]
    claim: Mapping[TopicPartition, ThreadId]
    assignment: Assignment

    @property
    def wanted(self) -> int:
        """The number of partitions that this plan assigns to this member."""
        return len(self.keep) + len(self.claim)


Assign = Callable[[GroupView, Threads], Assignment]
"""The strategy: returns the assignment, from the view and the threads of each member."""


def threads_of(view: GroupView, *, exclude_internal_topics: bool) -> Threads:
    """Return the threads of every member by topic; expressions are expanded against the topics of the view."""
    return {
        consumer: thread_ids(consumer, registration, view.topics, exclude_internal_topics)
        for consumer, registration in view.members.items()
    }


def topics_wanted(threads: Threads) -> frozenset[str]:
    """Return the topics that any member wants, whose partitions an assignment needs."""
    return frozenset(topic for by_topic in threads.values() for topic in by_topic)


def topics_of(view: GroupView, member: ConsumerId, *, exclude_internal_topics: bool) -> frozenset[str]:
    """Return the topics of which the member may get partitions."""
    registration = view.members.get(member)
    if registration is None:
        return frozenset()
    wanted = thread_ids(member, registration, view.topics, exclude_internal_topics)
    return frozenset(topic for topic in wanted if view.partitions.get(topic))


def plan(
    view: GroupView,
    me: ConsumerId,
    owned: Mapping[TopicPartition, ThreadId],
    assign: Assign,
    *,
    exclude_internal_topics: bool = True,
) -> MemberPlan:
    """Return what ``me``, which owns ``owned`` now, has to do under this view.

    Raises: any error of the strategy; AssignmentError for an assignment that nobody could carry out.
    """
    threads = threads_of(view, exclude_internal_topics=exclude_internal_topics)
    assignment = dict(assign(view, threads))
    _check(assignment, view, threads)
    assignment |= view.kept
    mine = {thread for by_topic in [threads.get(me, {})] for ids in by_topic.values() for thread in ids}
    wanted = {tp: thread for tp, thread in assignment.items() if thread in mine}
    return MemberPlan(
        release=tuple(sorted(tp for tp, thread in owned.items() if wanted.get(tp) != thread)),
        keep=tuple(sorted(tp for tp, thread in owned.items() if wanted.get(tp) == thread)),
        claim={tp: wanted[tp] for tp in sorted(wanted) if owned.get(tp) != wanted[tp]},
        assignment=assignment,
    )


def possible(assignment: Assignment, view: GroupView, threads: Threads) -> Assignment:
    """Return the part of an assignment that can still be carried out under another view."""
    existing = _existing(view)
    return {tp: thread for tp, thread in assignment.items() if _problem(tp, thread, existing, threads) is None}


def _check(assignment: Assignment, view: GroupView, threads: Threads) -> None:
    """Refuse an impossible assignment of a plug-in. Otherwise a claim is made that no stream waits for."""
    existing = _existing(view)
    for tp, thread in assignment.items():
        problem = _problem(tp, thread, existing, threads)
        if problem is not None:
            raise AssignmentError(f"the strategy assigns {tp} to {thread}: {problem}")


def _existing(view: GroupView) -> Mapping[str, frozenset[int]]:
    return {topic: frozenset(numbers) for topic, numbers in view.partitions.items()}


def _problem(
    tp: TopicPartition, thread: ThreadId, existing: Mapping[str, frozenset[int]], threads: Threads
) -> str | None:
    if tp.partition not in existing.get(tp.topic, ()):
        return f"{tp} does not exist"
    consumer, _, number = thread.rpartition("-")
    ids = threads.get(ConsumerId(consumer), {}).get(tp.topic, ())
    if not number.isdecimal() or int(number) >= len(ids) or ids[int(number)] != thread:
        return f"this thread takes no part in {tp.topic}"
    return None


def differing_subscriptions(view: GroupView) -> str | None:
    """Return, in words, how the members subscribe differently: legal, and a frequent mistake. None: they do not.

    The numbers of their streams may differ.
    """
    wanted = {
        consumer: (r.pattern, frozenset(r.subscription)) for consumer, r in view.members.items() if r.subscription
    }
    if len(set(wanted.values())) < 2:
        return None
    first, second = list(dict.fromkeys(wanted.values()))[:2]
    example = [next(consumer for consumer in sorted(wanted) if wanted[consumer] == one) for one in (first, second)]
    said = [f"{consumer} to {wanted[consumer][0]} {', '.join(sorted(wanted[consumer][1]))}" for consumer in example]
    return f"the members of this group subscribe differently: {' and '.join(said)}"
