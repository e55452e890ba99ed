"""Partitions that nobody owns although somebody should: looking for them, and waking who has stopped trying.

Called by the group's thread only. When to look is decided by
:class:`zkconsumer.member.zookeeper.pending_handovers.HandOvers`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from time import monotonic

from zkconsumer.core.wording import first_of
from zkconsumer.deadline import Deadline
from zkconsumer.errors import NotPermittedError, RegistryError
from zkconsumer.member.zookeeper.pending_handovers import HandOvers
from zkconsumer.member.zookeeper.planner import GroupView
from zkconsumer.member.zookeeper.registration import Membership
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

ADVERTISES = "zkconsumer"
"""The key in the registrations of members of ours."""
NUDGES = 3
"""Times that we wake whoever should own a partition: each makes all Scala members of the group stop and start over, and
where that does not help (the partition's offset node cannot be read, nobody stands behind the id node) no more will.
"""
TOPICS_A_LOOK = 100
"""Topics whose owners one reconciliation lists, in turn: a member by filter may have thousands."""


class OrphanedPartitions:
    """What of the group's partitions has no owner.

    Arguments: ``patience`` in seconds, the time that a member's attempts to own a partition take together
    (``rebalance.max.retries`` times ``rebalance.backoff.ms``; the original's members have the same settings).
    """

    def __init__(self, session: Session, membership: Membership, patience: float) -> None:
        self._session = session
        self._membership = membership
        self._group = membership.group
        self.handovers = HandOvers(patience)
        self._assignment: Assignment = {}
        self._ours: frozenset[TopicPartition] = frozenset()
        self._watching: Collection[ConsumerId] = ()
        self._turn = 0
        self._unlisted: set[str] = set()

    @property
    def next_look(self) -> float:
        """When :meth:`look` has something to do (monotonic seconds)."""
        return self.handovers.next_look

    def gave(self, released: Mapping[TopicPartition, ThreadId]) -> None:
        """We released these, which are those threads' now."""
        self.handovers.gave(released, monotonic())

    def concluded(self, assignment: Assignment, ours: Collection[TopicPartition], view: GroupView) -> None:
        """A round ended: by this assignment of this group, with these ours."""
        self._assignment, self._ours = assignment, frozenset(ours)
        self._watching = {member for member, registration in view.members.items() if ADVERTISES in registration.extra}
        self.handovers.assigned(assignment, self._ours)

    def forget(self) -> None:
        """Everything we own was dropped: nothing is known of what others own either."""
        self.handovers = HandOvers(self.handovers.patience)

    def look(self, deadline: Deadline) -> bool:
        """Look at what is due; where it has no owner, wake whoever should own it, a few times, unless it is one of
        ours, which watch owner nodes and never stop trying. Returns whether that was done.

        Scala members notice nothing but which nodes there are under ``ids`` (and the topics' partitions, which are not
        ours to touch): setting data does not wake them, and a new node of another kind would stop them for good. So
        our own id node is deleted and made again, in one transaction. Members of ours read that one node and go on.
        Raises: RegistryError.
        """
        due = self.handovers.due(monotonic())
        self.handovers.settled(self.look_up_owners(due, deadline))
        left = {tp: thread for tp, thread in due.items() if tp in self.handovers}
        if not left:
            return False
        asleep = {
            tp: thread
            for tp, thread in left.items()
            if ConsumerId(thread.rpartition("-")[0]) not in self._watching and self.handovers.nudges(tp) < NUDGES
        }
        self.handovers.looked(left, monotonic())
        if not asleep:
            return False
        log.warning(
            "nobody owns %s, which %s should: waking them by making our id node anew",
            first_of(asleep, 5),
            _threads(asleep),
        )
        if not self._membership.renew(deadline):
            return False
        self.handovers.nudged(asleep)  # afterwards: one that failed has woken nobody
        return True

    def try_look(self, seconds: float) -> None:
        """As :meth:`look`; where that fails the next comes later."""
        try:
            self.look(Deadline(seconds))
        except RegistryError as e:
            self.handovers.postponed(self.handovers.due(monotonic()), monotonic())
            log.info("the owners of what was given up could not be looked at: %s", e)

    def try_reconcile(self, seconds: float) -> None:
        """As :meth:`reconcile`, which is done again anyway."""
        try:
            self.reconcile(Deadline(seconds))
        except RegistryError as e:
            log.info("the owners of the group's partitions could not be listed: %s", e)

    def reconcile(self, deadline: Deadline) -> None:
        """List the owners of our topics, some in turn, and note what has none; a topic whose owners we may not list is
        passed over. Raises RegistryError.
        """
        topics = sorted({tp.topic for tp in self._assignment})
        topics = [topics[(self._turn + n) % len(topics)] for n in range(min(TOPICS_A_LOOK, len(topics)))]
        self._turn += len(topics)
        for topic in topics:
            try:
                names = set(self._session.children(paths.owner_topic(self._group, topic), deadline) or ())
                self._unlisted.discard(topic)
            except NotPermittedError as e:
                level = logging.DEBUG if topic in self._unlisted else logging.WARNING
                log.log(level, "the owners of a topic are not known: %s", e)
                self._unlisted.add(topic)
                continue
            others = {
                tp: thread for tp, thread in self._assignment.items() if tp.topic == topic and tp not in self._ours
            }
            owned = {tp for tp in others if str(tp.partition) in names}
            self.handovers.settled(owned)
            self.handovers.found({tp: thread for tp, thread in others.items() if tp not in owned}, monotonic())

    def report(self) -> str:
        """What has had no owner for too long, in words; empty where there is nothing."""
        overdue = self.handovers.overdue()
        if not overdue:
            return ""
        threads = {tp: self._assignment[tp] for tp in overdue if tp in self._assignment}
        return (
            f"nobody owned {first_of(overdue, 5)} for {max(overdue.values()):.0f} s, which {_threads(threads)} should"
        )

    def look_up_owners(self, partitions: Collection[TopicPartition], deadline: Deadline) -> set[TopicPartition]:
        """Return those of the partitions that have owner nodes. Raises RegistryError."""
        wanted = list(partitions)
        nodes = self._session.stat([paths.owner(self._group, tp) for tp in wanted], deadline)
        return {tp for tp, node in zip(wanted, nodes, strict=True) if node is not None}


def _threads(threads: Mapping[TopicPartition, ThreadId]) -> str:
    return first_of(set(threads.values()), 3)
