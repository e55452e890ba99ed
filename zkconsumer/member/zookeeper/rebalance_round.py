"""One rebalance round: look at the group, plan, give up what leaves, take over what comes. What stays is not touched.

Called by the group's thread only. Raises what ZooKeeper or the committer raise; what was done until then stays done,
and the next round goes on from there. A round that let messages drain looks again before it claims: what changed
meanwhile supersedes what it had planned.

Mirrors the original's ``syncedRebalance``. Differs on purpose: there each round releases everything, closes all
queues, reads the whole group and claims one node after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConsumerIdInUseError, OffsetCommitError, RegistryError
from zkconsumer.member.events import StopRequested
from zkconsumer.member.listener import Listening, by_topic
from zkconsumer.member.owned_partitions import Delivery, Holdings, Offsets
from zkconsumer.member.revocation import Drain
from zkconsumer.member.zookeeper.group_warnings import Reports
from zkconsumer.member.zookeeper.owner_nodes import Ahead, Claimed, Ownership
from zkconsumer.member.zookeeper.planner import Assign, GroupView, Plan, plan, possible, topics_of
from zkconsumer.member.zookeeper.recreated_topics import RecreatedTopics
from zkconsumer.member.zookeeper.registration import Membership
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.zookeeper.fenced_writes import KnownOffset
from zkconsumer.zookeeper.node_values import Seen
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

Lose = Callable[[Sequence[PartitionPosition], str], None]
"""Told of what turned out to be no longer ours, and why."""
LAST_COMMIT = 0.4
"""Seconds before the end of a shutdown from which on the listener is waited for no more, so that there is time for the
last commit.
"""
DRAIN_SLICE = 0.1
"""Seconds after which a wait for messages in the user's hands looks what else is asked of the member."""
SUPERSEDED_MOST = 3
"""Times in a row that newer events make a round begin anew; then it goes through, or a group that never rests would
leave its partitions without owners.
"""


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """What of the configuration concerns the group; seconds.

    ``patience`` is how long a member's attempts to own a partition take together; ``conflict`` is
    ``offset.conflict``, ``raise_truncated`` that ``log.truncation.policy`` is ``raise``.
    """

    quiet: float
    backoff: float
    backoff_max: float
    drain: float
    interval: float
    request_timeout: float
    auto_commit: bool
    exclude_internal_topics: bool
    patience: float = 9.0
    conflict: str = "adopt"
    raise_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """What a round came to: its plan and view, what was claimed, whether we had to register, why the assignment is not
    the strategy's (if it is not), and the seconds it took. ``superseded``: it stopped before it claimed; ``freed`` was
    held at the claim, and by nobody when it was looked at again.
    """

    todo: Plan
    view: GroupView
    claimed: Claimed
    registered: bool
    trouble: str
    seconds: float
    superseded: bool = False
    freed: frozenset[TopicPartition] = frozenset()


class Rounds:
    """Performs rounds.

    Arguments: ``serve`` is called while the application's listener is waited for (see :class:`Listening`);
    ``held_by_who_asked`` whether the thread that asks for another subscription holds a position's message, which then
    counts as finished; ``newer`` whether something of the group changed since it was last asked; ``stopping`` returns
    the request to shut down, or None.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        settings: RebalanceSettings,
        *,
        session: Session,
        membership: Membership,
        ownership: Ownership,
        holdings: Holdings,
        delivery: Delivery,
        offsets: Offsets,
        assign: Assign,
        reports: Reports,
        listening: Listening,
        serve: Callable[[float], bool],
        held_by_who_asked: Callable[[PartitionPosition], bool],
        newer: Callable[[], bool],
        stopping: Callable[[], StopRequested | None],
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._session = session
        self._membership = membership
        self._ownership = ownership
        self._holdings = holdings
        self.recreated = RecreatedTopics(holdings, ownership, offsets, raises=settings.raise_truncated)
        self._delivery = delivery
        self._offsets = offsets
        self._assign = assign
        self._reports = reports
        self._listening = listening
        self._serve = serve
        self._held_by_who_asked = held_by_who_asked
        self._newer = newer
        self._drain = Drain(delivery, holdings.owned.values, stopping)
        self._in_force: Assignment = {}
        self._orphaned: set[TopicPartition] = set()
        self._told: Assignment | None = None
        self._leaving: list[PartitionPosition] = []
        self._released: dict[TopicPartition, ThreadId] = {}
        self._superseded = 0
        self._registered = False

    def perform(self, lose: Lose) -> Round | None:
        """One round. ``lose`` is told what turns out to be no longer ours.

        Returns: None where it only registered us, which ends it.
        Raises: RegistryError, OffsetCommitError.
        """
        began = monotonic()
        deadline = Deadline(self._settings.request_timeout)
        self._newer()
        try:
            if self._membership.register(deadline):
                self._registered = True
                return None
        except ConsumerIdInUseError:
            # our node was deleted and somebody has made his: the group counts with him, and would wait for us for ever
            self._give_up(Plan(tuple(sorted(self._holdings.owned)), (), {}, {}))
            raise
        view = self._membership.view(deadline)
        self._lose_deleted(lose, deadline)
        self.recreated.check(deadline)
        todo, trouble = self._plan(view)
        self._sweep(todo, deadline)
        ahead = self._give_up(todo)
        superseded = bool(todo.release and todo.claim) and self._newer() and self._superseded < SUPERSEDED_MOST
        self._superseded = self._superseded + 1 if superseded else 0
        claimed = Claimed() if superseded else self._take_over(todo, view, ahead, lose)
        registered, self._registered = self._registered, False
        freed = self._ownership.free(claimed.held) if claimed.held else frozenset()
        return Round(todo, view, claimed, registered, trouble, monotonic() - began, superseded, freed)

    def take_released(self) -> Mapping[TopicPartition, ThreadId]:
        """What was released since this was last asked, with the threads whose it is then."""
        released, self._released = self._released, {}
        return released

    # ---- the end ----

    @property
    def left(self) -> Sequence[PartitionPosition]:
        """What was owned when the member left; empty before that."""
        return tuple(self._leaving)

    def let_go(self, request: StopRequested) -> None:
        """Hand out nothing more of anything, and wait for the messages in the user's hands, as long as there is time
        left for the last commit.
        """
        self._leaving = list(self._holdings.owned.values())
        self._drain.end_streams()
        if any(position.held for position in self._leaving):
            self._offsets.hurry()  # what is finished is not to wait for what is not
        self._wait_let_go(self._leaving, request.drain)
        if self._leaving:
            leaving = by_topic(p.tp for p in self._leaving)
            within = request.deadline.earlier(LAST_COMMIT)
            self._listening.call("before_releasing_partitions", leaving, serve=self._serve, within=within)
        self._holdings.remove([position.tp for position in self._leaving])

    def leave(self, request: StopRequested) -> None:
        """Commit, release, deregister, each step bounded; go on with the next where one fails."""
        deadline = Deadline(request.deadline.bounded(min(2.0, self._settings.request_timeout)))
        known: Mapping[TopicPartition, KnownOffset | None] = {}
        try:
            known = self._offsets.surrender(
                self._leaving,
                commit=self._settings.auto_commit,
                count_held=lambda _: False,
                deadline=deadline,
                meanwhile=self._session.touch,
                release=True,
            )
        except (RegistryError, OffsetCommitError) as e:
            log.warning("the last commit failed; what was not committed is consumed again by the next owner: %s", e)
        try:
            if self._leaving:
                self._ownership.release(known, deadline, [p.tp for p in self._leaving if p.tp not in known])
            self._membership.deregister(deadline)
        except RegistryError as e:
            log.info("left without deleting our nodes, which end with the session: %s", e)

    # ---- the steps ----

    def _lose_deleted(self, lose: Lose, deadline: Deadline) -> None:
        """Give up at once what we think we own and somebody deleted."""
        mine = self._ownership.mine(self._holdings.owned, deadline)
        gone = [position for tp, position in self._holdings.owned.items() if tp not in mine]
        if gone:
            lose(gone, "their owner nodes are gone")

    def _plan(self, view: GroupView) -> tuple[Plan, str]:
        """What to do, and why it is not what the strategy says, if it is not.

        A strategy that raises leaves the assignment before it in force: it harms nothing that flows already, and what
        was lost meanwhile is claimed again as before.
        """
        self._reports.group(view)

        def made(assign: Assign) -> Plan:
            return plan(
                view,
                self._consumer,
                {tp: position.thread for tp, position in self._holdings.owned.items()},
                assign,
                exclude_internal_topics=self._settings.exclude_internal_topics,
            )

        try:
            todo = made(self._assign)
        except (Exception, SystemExit) as e:  # noqa: BLE001 (a plug-in raises whatever it likes; the member lives on)
            return made(lambda view, threads: possible(self._in_force, view, threads)), self._reports.strategy_failed(e)
        self._reports.strategy_worked()
        members = view.members.keys() | {self._consumer}
        self._orphaned = {tp for tp, t in self._in_force.items() if ConsumerId(t.rpartition("-")[0]) not in members}
        self._in_force = todo.assignment
        return todo, ""

    def _sweep(self, todo: Plan, deadline: Deadline) -> None:
        """Delete owner nodes of our session that an interrupted round left behind."""
        stray = [tp for tp in self._holdings.leftover if tp not in self._holdings.owned and tp not in todo.claim]
        if stray:
            self._ownership.release({}, deadline, stray)
        self._holdings.leftover.clear()

    def _give_up(self, todo: Plan) -> Seen:
        """Release what leaves. Returns what was seen meanwhile of what comes."""
        partitions = todo.release
        positions = [self._holdings.owned[tp] for tp in partitions]
        ahead = Ahead(self._ownership, [tp for tp in todo.claim if tp in self._orphaned], self._session.touch)
        if not positions:
            return ahead.seen
        self._delivery.revoke(positions, Deadline(0.0))
        waiting_for = [position for position in positions if not self._held_by_who_asked(position)]
        self._wait_let_go(waiting_for, Deadline(self._settings.drain))
        self._call_listener("before_releasing_partitions", by_topic(partitions))
        self._holdings.remove(partitions)
        deadline = Deadline(self._settings.request_timeout)  # anew: the user's part took its own time
        # noted before: it may be done although its answer is lost
        self._released.update((tp, todo.assignment[tp]) for tp in partitions if tp in todo.assignment)
        known: dict[TopicPartition, KnownOffset | None] = {}
        there, deleted = self.recreated.split(partitions)
        for part, commit in ((there, self._settings.auto_commit), (deleted, False)):
            if part:
                known |= self._offsets.surrender(
                    [position for position in positions if position.tp in part],
                    commit=commit,
                    count_held=self._held_by_who_asked,
                    deadline=deadline,
                    meanwhile=lambda: ahead.look(deadline),
                    release=True,
                )
        self._ownership.release(known, deadline, [tp for tp in partitions if tp not in known])
        self._holdings.leftover.difference_update(partitions)
        return ahead.seen

    def _wait_let_go(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Wait for messages in the user's hands. That is not to cost what stays its lease, nor to hold up the end."""
        self._drain.wait(positions, limit, min(DRAIN_SLICE, self._session.timeout / 6), self._touch_and_serve)

    def _touch_and_serve(self) -> None:
        self._session.touch()
        # a seek or a subscription by a thread whose message is waited for would wait for us
        self._serve(0.0)

    def _take_over(self, todo: Plan, view: GroupView, ahead: Seen, lose: Lose) -> Claimed:
        claimed = Claimed()
        if todo.claim:
            self._holdings.leftover.update(todo.claim)
            claimed = self._ownership.claim(todo.claim, Deadline(self._settings.request_timeout), ahead)
            self._holdings.leftover.difference_update(todo.claim)
            self._holdings.add({tp: (todo.claim[tp], known) for tp, known in claimed.ours.items()})
            self.recreated.claimed(claimed)
            if claimed.refused and self._hopeless(claimed, view):
                raise next(iter(claimed.refused.values()))
        if self._listening.exists and (claimed.ours or todo.assignment != self._told):
            self._told = todo.assignment
            starts = self._call_listener("before_starting_fetchers", self._consumer, dict(todo.assignment))
            self._begin_elsewhere(starts, claimed)
        self._holdings.start(claimed.ours)
        # fetching has begun: now the watches
        if todo.claim:
            mine = self._ownership.mine(todo.claim, Deadline(self._settings.request_timeout))
            gone = [self._holdings.owned[tp] for tp in claimed.ours if tp not in mine and tp in self._holdings.owned]
            if gone:
                lose(gone, "their owner nodes are gone")
        return claimed

    def _hopeless(self, claimed: Claimed, view: GroupView) -> bool:
        """Whether nothing flows and nothing can: all topics that we might own something of are refused."""
        topics = topics_of(view, self._consumer, exclude_internal_topics=self._settings.exclude_internal_topics)
        return not self._holdings.owned and topics <= {tp.topic for tp in claimed.refused}

    def _begin_elsewhere(self, starts: object, claimed: Claimed) -> None:
        """Start where the listener says."""
        if starts is None:
            return
        if not isinstance(starts, Mapping):
            log.error("before_starting_fetchers must return offsets by partition or None, not %r", starts)
            return
        for tp, offset in starts.items():
            if tp not in claimed.ours:
                log.warning("the listener's offset for %s is not used: it did not come to us just now", tp)
            elif isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
                log.error("the listener's offset for %s is not used: %r is no offset", tp, offset)
            else:
                self._holdings.seek(TopicPartition(*tp), offset)

    def _call_listener(self, method: str, *arguments: object) -> object:
        return self._listening.call(method, *arguments, serve=self._serve)


def names(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for the log, the first few of many."""
    listed = [str(tp) for tp in sorted(partitions)]
    return (
        "nothing" if not listed else ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    )
