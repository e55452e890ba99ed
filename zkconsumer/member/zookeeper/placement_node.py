"""The group's plan in its node: read, followed, and by the planner written. And the loads that the planner goes by.

Called by the group thread only, within a round. ``assignors.placement_decision`` decides. This module has what it needs
of ZooKeeper. The node is persistent, so that the plan outlives its planner. It is read through the node cache, whose
watch makes a round.

With ``lag-aware`` each member writes one ephemeral node now and then with the loads of its partitions, and the planner
reads them all as rarely. Nobody watches these nodes, so no report makes a round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic

from zkconsumer.assignors.group_strategy import GroupStrategy
from zkconsumer.assignors.placement_decision import (
    NEVER,
    Measured,
    Placement,
    PlacementDecision,
    PlacementVerdict,
    SeenGroup,
)
from zkconsumer.core.names import first_of
from zkconsumer.core.placement_plan import (
    InvalidPlanError,
    PartitionLoad,
    PlacementPlan,
    PlanInputs,
    consumer_of,
    decode_loads,
    decode_plan,
    encode_loads,
    encode_plan,
    streams_of,
    too_large,
)
from zkconsumer.core.registration import INSTANCE_KEY
from zkconsumer.errors import MalformedNodeError, NotPermittedError
from zkconsumer.member.zookeeper.claim_plan import NO_PLAN, GroupView, PlanOutcome, possible, threads_of
from zkconsumer.model import PLACEMENTS, Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import FORBIDDEN, Node
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

Positions = Mapping[TopicPartition, PartitionPosition]
TRIES = 3
"""Times that a plan is written in one round while others write it too."""


class PlacementNode:
    """The plan of a group, with one member's reads and writes.

    Arguments: ``placement`` decides; ``loads`` has what members tell about their partitions.
    """

    def __init__(
        self,
        session: Session,
        cache: NodeCache,
        group: str,
        consumer: ConsumerId,
        strategy: GroupStrategy,
        placement: Placement,
        loads: LoadReports,
        *,
        exclude_internal_topics: bool,
    ) -> None:
        self._session = session
        self._cache = cache
        self._group = group
        self._consumer = consumer
        self._strategy = strategy
        self._placement = placement
        self._loads = loads
        self._exclude_internal = exclude_internal_topics
        self._path = paths.placement(group)
        self._known: tuple[Node, PlacementPlan | None] | None = None
        self.outcome = NO_PLAN
        """The outcome of the last :meth:`settle`."""

    def restart_wait(self) -> None:
        """Begin to wait anew for a plan: the member was away."""
        self._placement.restart_wait()

    def settle(self, view: GroupView, in_force: Assignment, owned: Positions, deadline: Deadline) -> GroupView:
        """Return the view with the assignment of the plan. The planner writes it if it must.

        ``in_force`` is the last assignment. While this member waits for a plan, the view has the part of it that can
        stay, without partitions that this member would have to claim. Raises RegistryError.
        """
        now = monotonic()
        if self._placement.returns(now):
            self.outcome = PlanOutcome(self.outcome.waiting, again_at=now, advertise=True)
            return view
        if self._consumer not in view.members:
            # deleted since we registered: the next round registers again, and nothing is ours by any plan
            self.outcome = PlanOutcome("our registration is gone")
            return replace(view, placement=self._kept(view, in_force, owned))
        agreed = self._strategy.is_of_all(view.members)
        if agreed and view.doubtful:
            # others may read them, and follow a plan while we do not
            return self._withdraw(f"{first_of(view.doubtful)} cannot be read by us", view, in_force, owned)
        if self._unreadable(view) or not agreed:
            self._placement.leave()
            self._take_away(view, deadline)
            self.outcome = PlanOutcome(again_at=self._placement.withdrawn_until or NEVER)
            return view
        self._loads.publish(owned, deadline)
        decision = self._decided(self._seen(view), deadline)
        again_at = min(decision.again_at, self._loads.due)
        if decision.verdict is PlacementVerdict.FOLLOW and decision.plan is not None:
            self.outcome = PlanOutcome(again_at=again_at)
            return replace(view, placement=decision.plan.present)
        if decision.verdict is PlacementVerdict.WITHDRAW:
            return self._withdraw(decision.why, view, in_force, owned)
        self.outcome = PlanOutcome(decision.why, again_at, reread=decision.reread)
        return replace(view, placement=self._kept(view, in_force, owned))

    def _withdraw(self, why: str, view: GroupView, in_force: Assignment, owned: Positions) -> GroupView:
        """Advertise no longer that we read plans. Until the group knows, everything stays where it is."""
        log.warning("range will be in effect for a while, because no plan can be followed: %s", why)
        now = monotonic()
        self._placement.withdraw(now)
        self.outcome = PlanOutcome(why, now, advertise=True)
        return replace(view, placement=self._kept(view, in_force, owned))

    # ---- the group as it is seen

    def _unreadable(self, view: GroupView) -> bool:
        ids = paths.ids(self._group) + "/"
        return any(path.startswith(ids) for path in view.unreadable)

    def _seen(self, view: GroupView) -> SeenGroup:
        threads = threads_of(view, exclude_internal_topics=self._exclude_internal)
        partitions = {topic: numbers for topic, numbers in view.partitions.items() if numbers}
        streams = {consumer: streams_of(by_topic, partitions) for consumer, by_topic in threads.items()}
        lasting = frozenset(c for c, one in view.members.items() if isinstance(one.extra.get(INSTANCE_KEY), str))
        oldest = min(view.members, key=lambda consumer: (view.created.get(consumer, 0), consumer))
        return SeenGroup(PlanInputs(self._strategy.name, streams, partitions, lasting), oldest)

    def _kept(self, view: GroupView, in_force: Assignment, owned: Positions) -> Assignment:
        """Return what can stay until there is a plan. Nothing is claimed, or it would move twice."""
        threads = threads_of(view, exclude_internal_topics=self._exclude_internal)
        mine = {thread for ids in threads.get(self._consumer, {}).values() for thread in ids}
        others = {tp: thread for tp, thread in in_force.items() if thread not in mine and tp not in owned}
        return possible({**others, **{tp: position.thread for tp, position in owned.items()}}, view, threads)

    # ---- the node

    def _decided(self, seen: SeenGroup, deadline: Deadline) -> PlacementDecision:
        """Return the decision, after the plan is written if this member has to."""
        large = too_large(seen.inputs)
        if large:
            return PlacementDecision(PlacementVerdict.WITHDRAW, why=large)
        for _ in range(TRIES):
            node = self._cache.nodes([self._path], deadline)[self._path]
            found, now = self._plan_of(node), monotonic()
            needed = self._placement.needs(seen, found, now)
            owners = self._owners(seen, deadline) if needed.owners else {}
            placed = owners if found is None else found.assignment
            loads = self._loads.all(seen.inputs.streams, placed, deadline) if needed.loads else None
            decision = self._placement.decide(seen, found, now, Measured(owners, loads))
            if not decision.write:
                return decision
            assert decision.plan is not None
            try:
                if node is FORBIDDEN:
                    raise NotPermittedError(f"{self._path}: ZooKeeper does not let us read it; check the node's ACL")
                data = encode_plan(decision.plan)
                written = self._write(node, data, deadline)
            except (ValueError, NotPermittedError) as error:
                return PlacementDecision(PlacementVerdict.WITHDRAW, why=f"the plan cannot be written: {error}")
            if written:
                log.info("wrote the plan for %d members of %s", len(seen.inputs.streams), self._group)
                return self._placement.followed(decision)
        return PlacementDecision(PlacementVerdict.WAIT, why="others write the plan at the same time")

    def _write(self, node: Node | None, data: bytes, deadline: Deadline) -> bool:
        """Write the plan if the node still is as it was read, and watch the new content."""
        try:
            if node is None:
                return self._session.create(self._path, data, deadline)
            return self._session.write(self._path, data, deadline, node.version)
        finally:
            self._cache.forget([self._path])
            self._cache.nodes([self._path], deadline)

    def _plan_of(self, node: Node | None) -> PlacementPlan | None:
        if node is None:
            return None
        if self._known is None or self._known[0] != node:
            try:
                self._known = node, decode_plan(node.data)
            except InvalidPlanError as error:
                log.warning("%s is no plan: %s", self._path, error)
                self._known = node, None
        return self._known[1]

    def _take_away(self, view: GroupView, deadline: Deadline) -> None:
        """Delete the plan, if we would be its planner. One that fits again later would move everything back."""
        ours = [c for c, registration in view.members.items() if registration.extra.get("strategy") in PLACEMENTS]
        if not ours or min(ours, key=lambda c: (view.created.get(c, 0), c)) != self._consumer:
            return
        node = self._cache.nodes([self._path], deadline)[self._path]
        if node is not None:
            try:
                self._session.delete(self._path, deadline, node.version)
            except NotPermittedError as error:
                log.warning("the plan cannot be deleted, so it may move partitions back later: %s", error)
            self._cache.forget([self._path])

    def _owners(self, seen: SeenGroup, deadline: Deadline) -> dict[TopicPartition, ThreadId]:
        wanted = [TopicPartition(topic, n) for topic, numbers in seen.inputs.partitions.items() for n in numbers]
        where = [paths.owner(self._group, tp) for tp in wanted]
        owners = {}
        for tp, path, node in zip(wanted, where, self._session.read(where, deadline), strict=True):
            if node is not None:
                try:
                    owners[tp] = node_codecs.decode_owner(node.data, path)
                except MalformedNodeError:
                    continue  # nobody can tell its owner
        return owners


PUBLISH_EVERY_S = 30.0
"""Seconds between two reports of a member."""


@dataclass(slots=True)
class _Seen:
    """A position as it was when its log's end was last known: then (monotonic seconds), with the rate until then."""

    end: int
    fetched: int | None
    at: float
    rate: float | None = None


class LoadMeter:
    """Measures the loads of owned partitions. One thread.

    A stream whose reader is slow has no room, and then none of its partitions is fetched. Their log ends stay as they
    were, so a slow or stuck reader would look idle, and would be given more. So while a stream is full, its partitions
    keep the last known rates, and lags grow by these rates.
    """

    def __init__(self) -> None:
        self._before: dict[PartitionPosition, _Seen] = {}

    def measure(
        self, positions: Mapping[TopicPartition, PartitionPosition], now: float
    ) -> dict[TopicPartition, PartitionLoad]:
        """Return the loads of partitions that were fetched twice. ``now`` in monotonic seconds."""
        known = {tp: one for tp, one in positions.items() if one.cursor.known_end >= 0 and one.lag >= 0}
        fetched = {one.thread for one in known.values() if self._was_fetched(one)}
        full = {one.thread for one in known.values() if _is_unread(one)} - fetched
        found: dict[TopicPartition, PartitionLoad] = {}
        seen: dict[PartitionPosition, _Seen] = {}
        for tp, position in known.items():
            before, end, lag = self._before.get(position), position.cursor.known_end, float(position.lag)
            if before is None or now <= before.at:
                seen[position] = before or _Seen(end, position.cursor.fetched, now)
                continue
            grown, seconds = max(0, end - before.end), now - before.at
            if (position.paused or position.thread in full) and not grown:
                seen[position] = before
                if before.rate is not None:
                    more = 0.0 if position.paused else before.rate * seconds
                    found[tp] = PartitionLoad(lag + more, before.rate)
                continue
            seen[position] = _Seen(end, position.cursor.fetched, now, grown / seconds)
            found[tp] = PartitionLoad(lag, grown / seconds)
        self._before = seen
        return found

    def _was_fetched(self, position: PartitionPosition) -> bool:
        before = self._before.get(position)
        return before is None or (before.end, before.fetched) != (position.cursor.known_end, position.cursor.fetched)


def _is_unread(position: PartitionPosition) -> bool:
    """Return whether fetched messages wait for their reader."""
    fetched, consumed = position.cursor.fetched, position.consumed
    return fetched is not None and consumed is not None and consumed < fetched


class LoadReports:
    """The reports of one group. ``publishes``: whether this member's strategy uses them."""

    def __init__(self, session: Session, group: str, consumer: ConsumerId, *, publishes: bool) -> None:
        self._session = session
        self._group = group
        self._path = paths.member_loads(group, consumer)
        self._publishes = publishes
        self._meter = LoadMeter()
        self._next = 0.0
        self._refused = False

    @property
    def due(self) -> float:
        """When the next report is due (monotonic seconds)."""
        return self._next if self._publishes else NEVER

    def publish(self, owned: Mapping[TopicPartition, PartitionPosition], deadline: Deadline) -> None:
        """Write this member's report, if it is due. Raises RegistryError."""
        now = monotonic()
        if not self._publishes or now < self._next:
            return
        self._next = now + PUBLISH_EVERY_S
        data = encode_loads(self._meter.measure(owned, now))
        try:
            self._session.ensure([paths.loads(self._group)], deadline)
            # made anew each time: a node of a former session would vanish with that
            self._session.delete(self._path, deadline)
            self._session.create(self._path, data, deadline, ephemeral=True)
        except NotPermittedError as error:
            if not self._refused:
                log.warning("the loads of our partitions are not published: %s", error)
            self._refused = True

    def all(
        self, members: Iterable[ConsumerId], owners: Assignment, deadline: Deadline
    ) -> dict[TopicPartition, PartitionLoad]:
        """Return what these members publish. Raises RegistryError.

        The report of a partition's owner counts, by ``owners``. Another member's report, which may be old, counts only
        until the owner has measured.
        """
        named = list(members)
        nodes = self._session.read([paths.member_loads(self._group, member) for member in named], deadline)
        others: dict[TopicPartition, PartitionLoad] = {}
        of_owners: dict[TopicPartition, PartitionLoad] = {}
        for member, node in zip(named, nodes, strict=True):
            for tp, load in () if node is None else decode_loads(node.data).items():
                owner = owners.get(tp)
                if owner is not None:
                    (of_owners if consumer_of(owner) == member else others)[tp] = load
        return {**others, **of_owners}
