"""One rebalance round: look at the group, plan, give partitions up, claim others. Kept partitions are not touched.

Called by the group thread only. A failed request ends the round; what was done until then stays done, and the next
round goes on from there. A round that let messages drain looks again before it claims: changes meanwhile supersede its
plan.

Mirrors the original's ``syncedRebalance``. Differs on purpose: there each round releases everything, closes all queues,
reads the whole group and claims one node after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from zkconsumer.core.registration import Registration
from zkconsumer.errors import ConsumerIdInUseError, LogTruncatedError, RegistryError
from zkconsumer.member.events import Event, LookAgain, NodeChanged, StopRequested, SubscriptionChanged
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.revocation import Revocation
from zkconsumer.member.zookeeper.claim_plan import (
    NO_PLAN,
    Assign,
    GroupView,
    MemberPlan,
    PlanOutcome,
    differing_subscriptions,
    plan,
    possible,
    topics_of,
)
from zkconsumer.member.zookeeper.group_registration import GroupReader, GroupRegistration
from zkconsumer.member.zookeeper.owner_nodes import Claimed, LookAhead, OwnerNodes
from zkconsumer.member.zookeeper.state_machine import Trigger
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import Seen
from zkconsumer.zookeeper.ownership_transactions import KnownOffset
from zkconsumer.zookeeper.session import SessionChanged

if TYPE_CHECKING:
    from zkconsumer.member.zookeeper.placement_node import PlacementNode

_ABOUT_THE_GROUP = frozenset({Trigger.MEMBERS_CHANGED, Trigger.CHANGED, Trigger.PLAN_CHANGED})


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """The part of the configuration that concerns the group; times in seconds.

    ``patience`` is how long all attempts of a member to own a partition take together. ``conflict`` is
    ``offset.conflict``; ``raise_truncated``: ``log.truncation.policy`` is ``raise``.
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


class NodeTriggers:
    """Tells which changed nodes concern a member.

    Arguments: ``owned`` are the partitions of this member, whatever they are at the time.
    """

    def __init__(self, group: str, owned: Container[TopicPartition]) -> None:
        self._group = group
        self._owned = owned
        self._waited_for: frozenset[str] = frozenset()

    def wait_for(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the owner nodes of these partitions matter too: other members hold them, and we wait for a release."""
        self._waited_for = frozenset(paths.owner(self._group, tp) for tp in partitions)

    def of(self, path: str) -> Trigger | None:
        """Return what a changed node means to us; None: it is an owner node that does not concern us."""
        ids, owners = paths.ids(self._group), paths.owners(self._group)
        if path == ids or path.startswith(ids + "/"):
            return Trigger.MEMBERS_CHANGED
        if path == paths.placement(self._group):
            return Trigger.PLAN_CHANGED
        if not path.startswith(owners + "/"):
            return Trigger.CHANGED
        topic, _, partition = path[len(owners) + 1 :].partition("/")
        ours = partition.isdecimal() and TopicPartition(topic, int(partition)) in self._owned
        return Trigger.OWNER_CHANGED if ours or path in self._waited_for else None

    def matters_to_a_round(self, event: Event) -> bool:
        """Return whether a round that is under way would have to know of this."""
        return isinstance(event, SessionChanged | SubscriptionChanged | StopRequested | LookAgain) or (
            isinstance(event, NodeChanged) and self.of(event.path) in _ABOUT_THE_GROUP
        )


log = logging.getLogger(__name__)

SUPERSEDED_MOST = 3
"""Times in a row that newer events make a round begin anew. Then it goes through, or a group that never rests would
leave its partitions without owners.
"""
LEAVE_WITHIN = 2.0
"""Seconds that the last commit and the release of a shutdown may take, at most."""


@dataclass(frozen=True, slots=True)
class Round:
    """The outcome of a round.

    ``registered``: it, or the one before, had to register us. ``trouble`` says what is wrong, in words. ``seconds`` is
    its duration. ``superseded``: it stopped before it claimed. ``freed`` partitions had owners at the claim, and none
    when they were looked at again. ``plan`` is what the group's plan asks for.
    """

    todo: MemberPlan
    view: GroupView
    claimed: Claimed
    registered: bool
    trouble: str
    seconds: float
    superseded: bool = False
    freed: frozenset[TopicPartition] = frozenset()
    plan: PlanOutcome = NO_PLAN


class RebalanceRounds:
    """Performs rounds."""

    def __init__(
        self,
        settings: RebalanceSettings,
        *,
        registration: GroupRegistration,
        reader: GroupReader,
        owner_nodes: OwnerNodes,
        strategy: AppliedStrategy,
        owned: OwnedPartitions,
        revocation: Revocation,
        inbox: Inbox,
    ) -> None:
        self._settings = settings
        self.registration = registration
        self.reader = reader
        self.owner_nodes = owner_nodes
        self._strategy = strategy
        self._owned = owned
        self._starts = owned.starts
        self.revocation = revocation
        self._listener = revocation.listener
        self._inbox = inbox
        self._recreated = RecreatedTopics(owned, owner_nodes, raises=settings.raise_truncated)
        self.triggers = NodeTriggers(registration.group, owned.positions)
        """Tells which changed nodes concern this member."""
        self._released: dict[TopicPartition, ThreadId] = {}
        self._superseded = 0
        self._registered = False

    def perform(self) -> Round | None:
        """Perform a round. Returns None if it only registered us.

        Raises: RegistryError, OffsetCommitError.
        """
        began = monotonic()
        deadline = Deadline(self._settings.request_timeout)
        self._is_outdated()
        for change in self._inbox.changes.begin():
            self.registration.subscribe(change.revise)
        try:
            if self.registration.register(deadline):
                self._registered = True
                return None  # the table puts the first whole round off for a quiet time (ROUND_REGISTERED)
        except ConsumerIdInUseError:
            # our node was deleted and somebody made another: the group counts with that, and would wait for us for ever
            self._give_up(MemberPlan(tuple(sorted(self._owned.positions)), (), {}, {}))
            raise
        view = self.reader.view(deadline)
        self._lose_deleted(deadline)
        self._recreated.check(deadline)
        todo, trouble = self._strategy.plan(view, self._owned.positions, deadline)
        self.owner_nodes.sweep({*self._owned.positions, *todo.claim}, deadline)
        ahead = self._give_up(todo)
        superseded = bool(todo.release and todo.claim) and self._is_outdated() and self._superseded < SUPERSEDED_MOST
        self._superseded = self._superseded + 1 if superseded else 0
        claimed = Claimed() if superseded else self._take_over(todo, view, ahead)
        registered, self._registered = self._registered, False
        freed = self.owner_nodes.free(claimed.held) if claimed.held else frozenset()
        if not superseded:
            self.triggers.wait_for({*claimed.blocked, *view.kept})
        outcome = self._strategy.outcome
        if outcome.reread:
            self.reader.forget_view()
        if outcome.advertise:
            self.registration.advertise()
        troubles = "; ".join(filter(None, (trouble, self._recreated.trouble, self._listener.trouble)))
        seconds = monotonic() - began
        return Round(todo, view, claimed, registered, troubles, seconds, superseded, freed, outcome)

    def _is_outdated(self) -> bool:
        """Return whether something of the group changed since this was last asked."""
        return self._inbox.newer(self.triggers.matters_to_a_round)

    def take_released(self) -> Mapping[TopicPartition, ThreadId]:
        """Return the partitions released since the last call, with the threads that should own them now."""
        released, self._released = self._released, {}
        return released

    def lose(self, positions: Sequence[PartitionPosition], why: str) -> None:
        """Drop these positions immediately: stop their hand-out and their commits."""
        self.owner_nodes.doubt(position.tp for position in positions)
        self.revocation.lose(positions, why)

    def forget_view(self) -> None:
        """Drop the cached view of the group: the member was away, or a round failed."""
        self.reader.forget_view()
        self._strategy.restart_wait()

    def leave(self, stop: StopRequested) -> None:
        """Commit and release partitions that were given up, and deregister. Each step has a time limit."""
        leaving = self._owned.left
        deadline = Deadline(stop.deadline.bounded(min(LEAVE_WITHIN, self._settings.request_timeout)))
        known = self.revocation.try_last_commit(
            leaving, deadline, meanwhile=self.owner_nodes.keep_alive, release=True, count_requester=False
        )
        try:
            if leaving:
                self.owner_nodes.release(known, deadline, [p.tp for p in leaving if p.tp not in known])
            self.registration.deregister(deadline)
        except RegistryError as e:
            log.info("left without deleting our nodes, which end with the session: %s", e)

    # ---- the steps ----

    def _lose_deleted(self, deadline: Deadline) -> None:
        """Lose at once the partitions whose owner nodes somebody deleted."""
        mine = self.owner_nodes.mine(self._owned.positions, deadline)
        gone = [position for tp, position in self._owned.positions.items() if tp not in mine]
        self.lose(gone, "their owner nodes are gone")

    def _give_up(self, todo: MemberPlan) -> Seen:
        """Revoke and release leaving partitions. Returns nodes of partitions to claim that were read meanwhile."""
        ahead = LookAhead(self.owner_nodes, [tp for tp in todo.claim if tp in self._strategy.orphaned])
        positions = [self._owned.positions[tp] for tp in todo.release]
        if not positions:
            return ahead.seen
        self.owner_nodes.doubt(todo.release)
        self.revocation.revoke(positions)
        deadline = Deadline(self._settings.request_timeout)  # anew: the user's part took its own time
        # noted before the release, which may succeed although the answer is lost
        self._released.update((tp, todo.assignment[tp]) for tp in todo.release if tp in todo.assignment)
        known: dict[TopicPartition, KnownOffset | None] = {}
        deleted = self.owner_nodes.topics_deleted(todo.release)
        for commit in (True, False):
            # the offset of a deleted topic would look like one of the topic that may have been made anew meanwhile
            part = [position for position in positions if (position.tp not in deleted) is commit]
            if part:
                known |= self.revocation.last_commit(
                    part, deadline, commit=commit, meanwhile=lambda: ahead.look(deadline), release=True
                )
        self.owner_nodes.release(known, deadline, [tp for tp in todo.release if tp not in known])
        return ahead.seen

    def _take_over(self, todo: MemberPlan, view: GroupView, ahead: Seen) -> Claimed:
        """Claim partitions of others, and fetch them."""
        claimed = Claimed()
        if todo.claim:
            claimed = self.owner_nodes.claim(todo.claim, Deadline(self._settings.request_timeout), ahead)
            self._owned.add({tp: (todo.claim[tp], known) for tp, known in claimed.ours.items()})
            self._recreated.claimed(claimed)
            if claimed.refused and self._is_hopeless(claimed, view):
                raise next(iter(claimed.refused.values()))
        if self._listener.exists and not self._strategy.outcome.waiting:
            for tp, offset in self._listener.start_offsets(todo.assignment, claimed.ours).items():
                self._owned.seek(tp, offset)
        self._starts.start(claimed.ours)
        # fetching has begun: now the watches
        if todo.claim:
            mine = self.owner_nodes.mine(todo.claim, Deadline(self._settings.request_timeout))
            positions = self._owned.positions
            gone = [positions[tp] for tp in claimed.ours if tp not in mine and tp in positions]
            self.lose(gone, "their owner nodes are gone")
        return claimed

    def _is_hopeless(self, claimed: Claimed, view: GroupView) -> bool:
        """Return whether nothing flows and nothing can: all topics that we might own something of are refused."""
        internal = self._settings.exclude_internal_topics
        topics = topics_of(view, self.registration.consumer, exclude_internal_topics=internal)
        return not self._owned.positions and topics <= {tp.topic for tp in claimed.refused}


Concern = Callable[[Mapping[ConsumerId, Registration]], str | None]
"""Returns why the members may not agree on our strategy; None: nothing speaks against it."""


class AppliedStrategy:
    """Runs the strategy for one member and keeps the last assignment. It logs each problem once.

    Arguments: ``assign`` is the strategy, ``name`` its name; ``concern`` returns a warning about a view's members.
    ``placement`` is the group's plan, for a strategy that needs one.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        assign: Assign,
        *,
        exclude_internal_topics: bool,
        name: str = "range",
        concern: Concern = lambda _: None,
        placement: PlacementNode | None = None,
    ) -> None:
        self._consumer = consumer
        self._assign = assign
        self._exclude_internal = exclude_internal_topics
        self._name = name
        self._concern = concern
        self._placement = placement
        self._in_force: Assignment = {}
        self._concerned: str | None = None
        self._differing = False
        self._failure = ""
        self.orphaned: frozenset[TopicPartition] = frozenset()
        """Partitions that the assignment before the last gave to members that have left since."""

    @property
    def outcome(self) -> PlanOutcome:
        """The outcome of the group's plan in the last round."""
        return NO_PLAN if self._placement is None else self._placement.outcome

    def restart_wait(self) -> None:
        """Wait anew for the plan of the group: the member was away."""
        if self._placement is not None:
            self._placement.restart_wait()

    def plan(
        self, view: GroupView, owned: Mapping[TopicPartition, PartitionPosition], deadline: Deadline
    ) -> tuple[MemberPlan, str]:
        """Return the plan, and the reason if it differs from the strategy's assignment (else empty).

        A strategy that raises leaves the assignment before it in force. That harms nothing that flows already, and
        partitions lost meanwhile are claimed again as before. Raises AssignmentError for an impossible assignment,
        RegistryError if the plan of the group cannot be read or written.
        """
        self._warn(view)
        threads = {tp: position.thread for tp, position in owned.items()}

        def made(assign: Assign) -> MemberPlan:
            return plan(view, self._consumer, threads, assign, exclude_internal_topics=self._exclude_internal)

        try:
            if self._placement is not None:
                view = self._placement.settle(view, self._in_force, owned, deadline)
            todo = made(self._assign)
        except RegistryError:
            raise
        except (Exception, SystemExit) as e:  # noqa: BLE001 (a plug-in raises whatever it likes; the member lives on)
            return made(lambda view, threads: possible(self._in_force, view, threads)), self._failed(e)
        if self._failure:
            log.info("the strategy %s works again", self._name)
        self._failure = ""
        members = view.members.keys() | {self._consumer}
        self.orphaned = frozenset(
            tp for tp, thread in self._in_force.items() if ConsumerId(thread.rpartition("-")[0]) not in members
        )
        self._in_force = todo.assignment
        return todo, ""

    def _warn(self, view: GroupView) -> None:
        """Warn if the members do not agree on the strategy, or do not subscribe alike."""
        concerned = self._concern(view.members)
        if concerned != self._concerned:
            if concerned is not None:
                log.warning("partition.assignment.strategy=%s: %s", self._name, concerned)
            else:
                log.info("partition.assignment.strategy=%s: the whole group agrees now", self._name)
            self._concerned = concerned
        differing = differing_subscriptions(view)
        if differing is not None and not self._differing:
            log.info("%s; that is legal, but is it meant?", differing)
        self._differing = differing is not None

    def _failed(self, error: BaseException) -> str:
        failure = f"the strategy {self._name} failed ({type(error).__name__}: {error})"
        if failure != self._failure:
            log.error("%s; the assignment before it stays in force", failure, exc_info=error)
        self._failure = failure
        return failure


LOG_START = 0
"""Offset of a topic's first message. If it is deleted already, the fetcher looks the start up."""
_REASON = "its topic was deleted and made anew"


class RecreatedTopics:
    """Owned partitions whose topic was deleted and made again, so that their offsets belong to deleted messages.

    The brokers make a topic's node in ZooKeeper once, so the node's creation tells two topics of the same name apart.
    Reading on at the offset would leave out the start of the new log. So the new log is read from its start, or the
    stream raises (``log.truncation.policy``). A claim finds that before it writes the offset node (``owner_nodes``),
    and each round finds it for partitions that are owned already. The original reads on at the old offset, or goes by
    ``auto.offset.reset`` where the new log is shorter.

    Arguments: ``raises`` is ``log.truncation.policy=raise``.
    """

    def __init__(self, owned: OwnedPartitions, owner_nodes: OwnerNodes, *, raises: bool) -> None:
        self._owned = owned
        self._owner_nodes = owner_nodes
        self._raises = raises
        self._made: dict[TopicPartition, int] = {}
        self._stopped: dict[TopicPartition, tuple[object, str]] = {}

    @property
    def trouble(self) -> str:
        """The stream that raises since its topic was made anew, in words for the user; empty if none does."""
        owned = self._owned.positions
        return next((said for tp, (position, said) in self._stopped.items() if owned.get(tp) is position), "")

    def claimed(self, claimed: Claimed) -> None:
        """Check claimed partitions before they are started."""
        self._made.update(self._owner_nodes.topics_made(claimed.ours))
        for tp, reached in claimed.recreated.items():
            position = self._owned.positions[tp]
            if self._raises:
                error = self._error(tp, reached)
                self._stopped[tp] = self._owned.stop_at(position, claimed.ours[tp], error), str(error)
            else:
                self._say(tp, reached)
                position.from_start = True

    def check(self, deadline: Deadline) -> None:
        """Check owned partitions whose topics were made anew since the claim. Raises RegistryError."""
        owned = self._owned.positions
        self._made = {tp: made for tp, made in self._made.items() if tp in owned}
        now = self._owner_nodes.topics_made(self._made)
        anew = [tp for tp, made in now.items() if made != self._made[tp]]
        if not anew:
            return
        for tp, known in self._owner_nodes.reread(anew, deadline, recreated=True).items():
            self._made[tp] = now[tp]
            position, reached = owned[tp], owned[tp].consumed
            if reached is None:
                continue  # nothing was stored of it: ``auto.offset.reset`` has yet to decide
            if self._raises:
                error = self._error(tp, reached)
                self._stopped[tp] = self._owned.stop_at(position, known, error), str(error)
            else:
                self._say(tp, reached)
                self._owned.begin_other_log(position, known, LOG_START)

    def _say(self, tp: TopicPartition, reached: int) -> None:
        log.warning("%s: %s; it was read up to offset %d, going back to its start", tp, _REASON, reached)

    def _error(self, tp: TopicPartition, reached: int) -> LogTruncatedError:
        error = LogTruncatedError(tp, reached, LOG_START, _REASON)
        log.error("%s", error)
        return error
