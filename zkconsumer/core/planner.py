"""What to release, keep and claim: a pure function of what ZooKeeper shows, what we own and the strategy.

The original releases and claims everything for every change. The outcome is the same here, since every member
computes the same assignment from the same view; but what stays with its thread is kept and never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from zkconsumer.core.registration import Registration
from zkconsumer.core.subscription import thread_ids
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition

Threads = Mapping[ConsumerId, Mapping[str, tuple[ThreadId, ...]]]
"""For each member the threads that want each topic."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """What ZooKeeper shows of a group at one moment.

    ``members`` are the readable registrations; ``unreadable`` the paths of the others, with the reason (they count as
    members without topics: the original stops the whole group); ``topics`` all names, needed only where somebody
    subscribes by expression; ``partitions`` the partitions of every topic that somebody may want, without those that
    do not exist.
    """

    members: Mapping[ConsumerId, Registration]
    partitions: Mapping[str, tuple[int, ...]]
    topics: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one member does to get from what it owns to its part of the assignment."""

    release: tuple[TopicPartition, ...]
    keep: tuple[TopicPartition, ...]
    claim: Mapping[TopicPartition, ThreadId]
    assignment: Assignment

    @property
    def wanted(self) -> int:
        """How many partitions are ours by this plan."""
        return len(self.keep) + len(self.claim)


Assign = Callable[[GroupView, Threads], Assignment]
"""The strategy: who shall own what, from the view and the threads of each member."""


def threads_of(view: GroupView, *, exclude_internal_topics: bool) -> Threads:
    """The threads of every member by topic; expressions are expanded against the view's topics, as each reader does."""
    return {
        consumer: thread_ids(consumer, registration, view.topics, exclude_internal_topics)
        for consumer, registration in view.members.items()
    }


def topics_wanted(threads: Threads) -> frozenset[str]:
    """Every topic that some member wants; the partitions of these must be known before an assignment can be made."""
    return frozenset(topic for by_topic in threads.values() for topic in by_topic)


def plan(
    view: GroupView,
    me: ConsumerId,
    owned: Mapping[TopicPartition, ThreadId],
    assign: Assign,
    *,
    exclude_internal_topics: bool = True,
) -> Plan:
    """What ``me``, which owns ``owned`` now, has to do under this view.

    Raises: whatever the strategy raises; nothing was changed then.
    """
    threads = threads_of(view, exclude_internal_topics=exclude_internal_topics)
    assignment = assign(view, threads)
    mine = {thread for by_topic in [threads.get(me, {})] for ids in by_topic.values() for thread in ids}
    wanted = {tp: thread for tp, thread in assignment.items() if thread in mine}
    return Plan(
        release=tuple(sorted(tp for tp, thread in owned.items() if wanted.get(tp) != thread)),
        keep=tuple(sorted(tp for tp, thread in owned.items() if wanted.get(tp) == thread)),
        claim={tp: wanted[tp] for tp in sorted(wanted) if owned.get(tp) != wanted[tp]},
        assignment=assignment,
    )
