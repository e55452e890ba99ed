"""The search for partitions that nobody owns, and waking the members that should own them.

Called by the group thread only. :class:`PendingHandovers` decides when to look.

A member of ours that wants a partition watches its owner node. A Scala member does not. It tries four times, two
seconds apart, and then stays registered and does nothing until it hears of another change of the group (KAFKA-4228).
So the member that gave a partition up looks when those tries must be over, and wakes the Scala member.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from time import monotonic

from zkconsumer.core.names import first_of
from zkconsumer.errors import NotPermittedError, RegistryError
from zkconsumer.member.connector_state import UNOWNED
from zkconsumer.member.zookeeper.claim_plan import GroupView
from zkconsumer.member.zookeeper.group_registration import GroupRegistration
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


NEVER = float("inf")
LONGEST = 300.0
"""Seconds between two looks at the same partition, at most."""


@dataclass(slots=True)
class _HandOver:
    thread: ThreadId
    since: float
    seen: float
    pause: float
    look_at: float
    nudges: int = 0


class PendingHandovers:
    """The partitions that may have no owner, and when to look at them. Pure; times are monotonic seconds.

    Arguments: ``patience`` in seconds, after which a member has used up its attempts to own a partition.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._open: dict[TopicPartition, _HandOver] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._open

    def gave(self, partitions: Mapping[TopicPartition, ThreadId], now: float) -> None:
        """Note partitions that we gave up, which these threads should own now."""
        for tp, thread in partitions.items():
            self._open[tp] = _HandOver(thread, now, now, self.patience, now + self.patience)

    def found(self, partitions: Mapping[TopicPartition, ThreadId], now: float) -> None:
        """Note partitions that nobody owns, which these threads should own.

        The member that gave them up looks first. We look after three times as long, for that member may be gone.
        """
        for tp, thread in partitions.items():
            if tp in self._open:
                self._open[tp].seen = now
            else:
                self._open[tp] = _HandOver(thread, now, now, 3 * self.patience, now + 3 * self.patience)

    def settled(self, partitions: Collection[TopicPartition]) -> None:
        """Drop partitions that have owners."""
        for tp in partitions:
            self._open.pop(tp, None)

    def assigned(self, assignment: Mapping[TopicPartition, ThreadId], ours: Collection[TopicPartition]) -> None:
        """Apply another assignment. Drop our partitions and unassigned ones, and note the new threads of the rest."""
        for tp, known in list(self._open.items()):
            thread = assignment.get(tp)
            if thread is None or tp in ours:
                del self._open[tp]
            elif thread != known.thread:
                known.thread, known.nudges = thread, 0

    def due(self, now: float) -> Mapping[TopicPartition, ThreadId]:
        """Return the partitions to look at now, with the threads that should own them."""
        return {tp: known.thread for tp, known in self._open.items() if known.look_at <= now}

    def nudges(self, tp: TopicPartition) -> int:
        """Return how often the member of the present thread was woken."""
        return self._open[tp].nudges

    def nudged(self, partitions: Collection[TopicPartition]) -> None:
        """Note that this member woke the new owners of these partitions."""
        for tp in partitions:
            self._open[tp].nudges += 1

    def looked(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note that these were looked at and have no owner. The pause before the next look doubles."""
        for tp in partitions:
            self._open[tp].seen = now
        self.postponed(partitions, now)

    def postponed(self, partitions: Collection[TopicPartition], now: float) -> None:
        """Note that these could not be looked at. The pause before the next look doubles."""
        for tp in partitions:
            known = self._open[tp]
            known.pause = min(LONGEST, 2 * known.pause)
            known.look_at = now + known.pause

    @property
    def next_look(self) -> float:
        """When a partition is due."""
        return min((known.look_at for known in self._open.values()), default=NEVER)

    def overdue(self) -> Mapping[TopicPartition, float]:
        """Return the partitions without an owner for too long, with the seconds for which they were seen so."""
        without = {tp: known.seen - known.since for tp, known in sorted(self._open.items()) if known.seen > known.since}
        return {tp: seconds for tp, seconds in without.items() if seconds >= self.patience}
