"""The search for partitions that nobody owns, and waking the members that should own them.

Called by the group thread only. ``pending_handovers`` decides when to look.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from time import monotonic

from zkconsumer.core.names import first_of
from zkconsumer.errors import NotPermittedError, RegistryError
from zkconsumer.member.connector_state import UNOWNED
from zkconsumer.member.zookeeper.claim_plan import GroupView
from zkconsumer.member.zookeeper.group_registration import GroupRegistration
from zkconsumer.member.zookeeper.pending_handovers import PendingHandovers
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

ADVERTISES = "zkconsumer"
"""The key in the registrations of members of ours."""
NUDGES = 3
"""Times that we wake the member that should own a partition. Each makes all Scala members of the group stop and start
over. If that does not help, more will not: the offset node is unreadable, or the id node belongs to no process.
"""
TOPICS_A_LOOK = 100
"""Topics whose owners one reconciliation lists, in turn. A filter may match thousands."""


class OrphanedPartitions:
    """The partitions of a group that have no owner.

    Arguments: ``patience`` in seconds is the time that all attempts of a member to own a partition take together
    (``rebalance.max.retries`` times ``rebalance.backoff.ms``; Scala members have the same settings).
    """

    def __init__(self, session: Session, membership: GroupRegistration, patience: float) -> None:
        self._session = session
        self._membership = membership
        self._group = membership.group
        self.handovers = PendingHandovers(patience)
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
        """Note that we released these, which those threads should own now."""
        self.handovers.gave(released, monotonic())

    def concluded(self, assignment: Assignment, ours: Collection[TopicPartition], view: GroupView) -> None:
        """Note the outcome of a round."""
        self._assignment, self._ours = assignment, frozenset(ours)
        self._watching = {member for member, registration in view.members.items() if ADVERTISES in registration.extra}
        self.handovers.assigned(assignment, self._ours)

    def forget(self) -> None:
        """Forget everything: we have lost all partitions, and know nothing of the owners of the others either."""
        self.handovers = PendingHandovers(self.handovers.patience)

    def look(self, deadline: Deadline) -> bool:
        """Look at the partitions that are due, and wake the members that should own the orphaned ones, a few times.

        Members of ours need no waking: they watch owner nodes and never stop trying. Scala members notice only which
        nodes stand under ``ids``. Other data does not wake a Scala member, and a node of another kind would stop it for
        good. So we delete and make our own id node in one transaction. Members of ours read that node and go on.

        Returns: whether anybody was woken. Raises: RegistryError.
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
        """As :meth:`look`; after a failure the next look comes later."""
        try:
            self.look(Deadline(seconds))
        except RegistryError as e:
            self.handovers.postponed(self.handovers.due(monotonic()), monotonic())
            log.info("the owners of released partitions could not be looked at: %s", e)

    def try_reconcile(self, seconds: float) -> None:
        """As :meth:`reconcile`; a failure is logged, since the next reconciliation comes anyway."""
        try:
            self.reconcile(Deadline(seconds))
        except RegistryError as e:
            log.info("the owners of the group's partitions could not be listed: %s", e)

    def reconcile(self, deadline: Deadline) -> None:
        """List the owners of our topics, some in turn, and note the partitions without one.

        A topic whose owners we may not list is passed over. Raises RegistryError.
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
        """Return, in words, the partitions that had no owner for too long; empty if there are none."""
        overdue = self.handovers.overdue()
        if not overdue:
            return ""
        threads = {tp: self._assignment[tp] for tp in overdue if tp in self._assignment}
        return f"{UNOWNED}{first_of(overdue, 5)} for {max(overdue.values()):.0f} s, which {_threads(threads)} should"

    def look_up_owners(self, partitions: Collection[TopicPartition], deadline: Deadline) -> set[TopicPartition]:
        """Return those of the partitions that have owner nodes. Raises RegistryError."""
        wanted = list(partitions)
        nodes = self._session.stat([paths.owner(self._group, tp) for tp in wanted], deadline)
        return {tp for tp, node in zip(wanted, nodes, strict=True) if node is not None}


def _threads(threads: Mapping[TopicPartition, ThreadId]) -> str:
    return first_of(set(threads.values()), 3)
