"""The members, threads, strategy, expected owners and state of a group, derived from its snapshot.

These are the questions that every command asks. :class:`GroupAnalysis` answers several questions about a snapshot, and
computes each answer once. Pure; any thread, one at a time for each analysis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property

from zkconsumer.assignors.assignor import AssignmentError
from zkconsumer.core.names import first_of
from zkconsumer.core.registration import READER_KEY, SPARK_QUERY
from zkconsumer.core.subscription import failing_filters
from zkconsumer.member.migration_rules import ADVERTISED, BY_BROKERS, non_bridges
from zkconsumer.member.zookeeper.claim_plan import GroupView, Threads, threads_of, topics_wanted
from zkconsumer.model import PLACEMENTS, Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, BrokersGroup, GroupSnapshot, MemberNode
from zkconsumer.operations.group_state import (
    OUR_PATIENCE,
    SCALA_PATIENCE,
    GroupState,
    StateOfGroup,
    patience,
    quiet_since,
    state_of_brokers,
    unsettled,
    without_members,
)
from zkconsumer.operations.strategy_inference import (
    CANDIDATES,
    NEW_ORDER,
    ROUNDROBIN,
    Strategy,
    assignment_by,
    infer_strategy,
)
from zkconsumer.operations.strategy_reasons import StrategyWords
from zkconsumer.zookeeper import paths

_NAMED = 4
_DEFAULT_ID = re.compile(r"(?P<host>.+)-[0-9]{10,}-[0-9a-f]{1,16}", re.ASCII | re.DOTALL)
"""What follows the group in the id of a member without ``consumer.id``: the host, milliseconds, hexadecimal digits."""


class MemberKind(Enum):
    """The kinds of members. The values are for texts."""

    SCALA = "Scala"
    ZKCONSUMER = "zkconsumer"
    SPARK = "Spark query"
    BRIDGE = "migration bridge"
    UNKNOWN = "unknown"


def member_kind(node: MemberNode) -> MemberKind:
    """Return what registered this member.

    Scala members have no keys of their own; members of this package advertise their version. A registration that
    cannot be read, or has keys of somebody else, is of an unknown kind.
    """
    if node.registration is None:
        return MemberKind.UNKNOWN
    extra = node.registration.extra
    if "zkconsumer" not in extra:
        return MemberKind.UNKNOWN if extra else MemberKind.SCALA
    if extra.get(ADVERTISED) == BY_BROKERS:
        return MemberKind.BRIDGE
    return MemberKind.SPARK if extra.get(READER_KEY) == SPARK_QUERY else MemberKind.ZKCONSUMER


def member_host(group: str, consumer: ConsumerId, node: MemberNode | None) -> str | None:
    """Return the host that a member advertises or that its id contains; None if neither tells it."""
    registration = None if node is None else node.registration
    advertised = None if registration is None else registration.extra.get("host")
    if isinstance(advertised, str) and advertised:
        return advertised
    prefix = f"{group}_"
    found = _DEFAULT_ID.fullmatch(consumer.removeprefix(prefix)) if consumer.startswith(prefix) else None
    return found["host"] if found else None


def is_unread(snapshot: GroupSnapshot, part: str) -> bool:
    """Return whether there may be nodes in this part of the group ("ids" or "owners") that could not be read."""
    path = snapshot.path(part)  # brokers' groups may have names that no node can have
    return any(
        one.what.startswith("ZooKeeper ")
        or (one.why == FORBIDDEN_NODE and (one.what == path or (part == "owners" and one.what.startswith(f"{path}/"))))
        for one in snapshot.problems
    ) or (part == "owners" and any(node.problem == FORBIDDEN_NODE for node in snapshot.owners.values()))


class GroupAnalysis:
    """The answers about one snapshot, each computed when it is first asked for.

    Arguments: ``earlier`` snapshots of the group, in any order; ``strategy`` to use instead of the one in effect.
    """

    def __init__(
        self, snapshot: GroupSnapshot, earlier: Sequence[GroupSnapshot] = (), strategy: Strategy | None = None
    ) -> None:
        self.snapshot = snapshot
        self._earlier = earlier
        self._strategy = strategy
        self._path = snapshot.path()  # unchecked: a brokers' group may have any name

    def of_later(self, snapshot: GroupSnapshot, earlier: Sequence[GroupSnapshot]) -> GroupAnalysis:
        """Return the analysis of a later snapshot of the group.

        If neither members nor owners nor topics have changed, it takes over what it would compute from them again. A
        filter that failed is tried again, since a busy machine alone may have made it exceed its time limit.
        """
        later = GroupAnalysis(snapshot, earlier)
        same = self._strategy is None and _membership(self.snapshot) == _membership(snapshot)
        known = self.__dict__.get("view")
        if same and (known is None or (not known.unreadable and known.racks == later._racks())):
            later.__dict__.update((name, self.__dict__[name]) for name in _OF_MEMBERSHIP if name in self.__dict__)
        return later

    @property
    def by_brokers(self) -> BrokersGroup | None:
        """The group as brokers coordinate it; None if ZooKeeper does, or nobody."""
        known = self.snapshot.brokers_group
        if known is None or known.state == "Dead":
            return None
        if self.snapshot.members:
            return None
        return known if known.members or not self.snapshot.in_zookeeper else None

    @property
    def bridges_only(self) -> bool:
        """Whether all members are migration bridges, so that brokers assign what members own in ZooKeeper."""
        return bool(self.view.members) and not non_bridges(self.view)

    @cached_property
    def view(self) -> GroupView:
        """The group as seen by a member that plans."""
        nodes = self.snapshot.members
        readable = {c: node.registration for c, node in nodes.items() if node.registration is not None}
        unreadable = {
            f"{self._path}/ids/{c}": node.problem or "it cannot be read"
            for c, node in nodes.items()
            if node.registration is None
        }
        topics = tuple(sorted(self.snapshot.topics))
        for consumer, reason in failing_filters(readable, topics, exclude_internal=True).items():
            unreadable[f"{self._path}/ids/{consumer}"] = reason
            del readable[consumer]
        wanted = topics_wanted(threads_of(GroupView(readable, {}, topics), exclude_internal_topics=True))
        partitions = {
            topic: tuple(sorted(self.snapshot.topics[topic].partitions))
            for topic in sorted(wanted)
            if topic in self.snapshot.topics
        }
        silent = {path.rpartition("/")[2] for path in unreadable}
        kept = {tp: thread for tp, thread in self.owners.items() if thread.rpartition("-")[0] in silent}
        plan = self.snapshot.plan
        planned = None if plan is None or plan.problem else {tp: ThreadId(t) for tp, t in plan.assignment.items()}
        return GroupView(readable, partitions, topics, unreadable, self._racks(), kept, placement=planned)

    def _racks(self) -> Mapping[TopicPartition, str]:
        found = {}
        for tp, log in self.snapshot.logs.items():
            broker = self.snapshot.brokers.get(log.leader) if log.leader is not None else None
            if broker is not None and broker.rack:
                found[tp] = broker.rack
        return found

    @cached_property
    def owners(self) -> Assignment:
        """The thread that owns each partition, from readable owner nodes; in a brokers' group the member id."""
        if self.by_brokers is not None:
            return _by_coordinator(self.by_brokers)
        return {tp: ThreadId(node.thread) for tp, node in self.snapshot.owners.items() if node.thread}

    @cached_property
    def existing(self) -> frozenset[TopicPartition]:
        """The partitions that exist, of all known topics."""
        return frozenset(self.snapshot.partitions_of(self.snapshot.topics))

    @cached_property
    def threads(self) -> Threads:
        """The threads of each readable member by topic."""
        return threads_of(self.view, exclude_internal_topics=True)

    @cached_property
    def registered(self) -> Mapping[ThreadId, ConsumerId]:
        """The member of each thread of readable members."""
        return {thread: c for c, by_topic in self.threads.items() for ids in by_topic.values() for thread in ids}

    @cached_property
    def subscribed(self) -> frozenset[str]:
        """The topics that a member subscribes to."""
        by_brokers = self.by_brokers
        if by_brokers is not None:
            assigned = {tp.topic for member in by_brokers.members for tp in member.assignment or ()}
            return frozenset(assigned.union(*(member.topics for member in by_brokers.members)))
        return topics_wanted(self.threads)

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy in effect, or the one that was asked for."""
        if self._strategy is not None:
            return self._strategy
        if self.by_brokers is not None:
            return Strategy(self.by_brokers.strategy, why="the coordinator of the brokers' group says so")
        if self.bridges_only:
            known = self.snapshot.brokers_group
            why = "all members are migration bridges, so the brokers' group assigns partitions"
            return Strategy("" if known is None else known.strategy, sure=known is not None, why=why)
        if not self.snapshot.members and is_unread(self.snapshot, "ids"):
            return Strategy("", sure=False, why="the members cannot be read, so nothing tells their strategy")
        return infer_strategy(self.view, self.threads, self.owners, self._assigned)

    @cached_property
    def _outcome(self) -> tuple[Assignment, str]:
        """The expected owners, or why they cannot be known."""
        if self.by_brokers is not None:
            return _by_coordinator(self.by_brokers), ""
        if self.bridges_only and self._strategy is None:
            return self._bridged()
        if not self.strategy.name:
            return {}, self.strategy.why
        if self.strategy.name in PLACEMENTS and self._strategy is None:
            return self._planned()
        return self._by(self.strategy)

    def _by(self, strategy: Strategy) -> tuple[Assignment, str]:
        try:
            return self._assigned(strategy), ""
        except AssignmentError as error:
            return {}, str(error)

    def _assigned(self, strategy: Strategy) -> Assignment:
        """Return the assignment by a strategy, computed once. Raises AssignmentError."""
        key = strategy.name, strategy.scala_release or (NEW_ORDER if strategy.name == ROUNDROBIN.name else "")
        if key not in self._made:
            self._made[key] = assignment_by(strategy, self.view, self.threads)
        return self._made[key]

    @cached_property
    def _made(self) -> dict[tuple[str, str], Assignment]:
        return {}

    @cached_property
    def candidates(self) -> Mapping[str, Assignment]:
        """The assignment by each strategy of Scala members, by its label; empty where it cannot be computed."""
        return {one.label: self._by(one)[0] for one in CANDIDATES}

    @cached_property
    def collisions(self) -> Mapping[ConsumerId, Mapping[str, list[TopicPartition]]]:
        """The owned partitions that each member would claim, by each strategy of Scala members not in effect."""
        found: dict[ConsumerId, dict[str, list[TopicPartition]]] = {}
        for label, made in self.candidates.items():
            for tp, thread in made.items() if label != self.strategy.label else ():
                if tp in self.owners and (consumer := self.registered.get(thread)):
                    found.setdefault(consumer, {}).setdefault(label, []).append(tp)
        return found

    def _planned(self) -> tuple[Assignment, str]:
        """The assignment of the group's plan, without partitions that are kept for members that have left."""
        plan = self.snapshot.plan
        if plan is None:
            return {}, f"no plan for {self.strategy.label} has been written yet"
        if plan.problem:
            return {}, f"the plan for {self.strategy.label} cannot be read: {plan.problem}"
        if plan.strategy != self.strategy.name or set(plan.members) != set(self.view.members):
            return {}, f"the plan of {plan.planner} does not fit the present members, so another one is due"
        present = {tp for tp in self.snapshot.partitions_of(self.subscribed) if self.view.partitions.get(tp.topic)}
        wrong = present.symmetric_difference(plan.assignment)
        wrong |= {tp for tp, t in plan.assignment.items() if tp not in self.reserved and t not in self.registered}
        if wrong:
            named = first_of(wrong, _NAMED)
            return {}, f"the plan of {plan.planner} does not fit {named}, so another one is due"
        return {tp: ThreadId(t) for tp, t in plan.assignment.items() if tp not in self.reserved}, ""

    @cached_property
    def reserved(self) -> Mapping[TopicPartition, ConsumerId]:
        """The partitions that the plan in effect keeps for a member that has left, with that member."""
        plan = self.snapshot.plan
        if plan is None or self.strategy.name not in PLACEMENTS:
            return {}
        kept = frozenset(plan.reserved) - self.view.members.keys()
        members = {tp: ConsumerId(thread.rpartition("-")[0]) for tp, thread in plan.assignment.items()}
        return {tp: member for tp, member in members.items() if member in kept}

    def _bridged(self) -> tuple[Assignment, str]:
        """The brokers' assignment in threads of ZooKeeper's members, where only one thread can be meant."""
        known = self.snapshot.brokers_group
        if known is None or known.state != "Stable":
            return {}, "the brokers' group has no assignment now, or was not asked"
        found = {}
        for tp, name in _by_coordinator(known, clients=True).items():
            ids = self.threads.get(ConsumerId(name), {}).get(tp.topic, ())
            owner = self.owners.get(tp)
            if len(ids) == 1 or owner in ids:
                found[tp] = owner if owner is not None and owner in ids else ids[0]
        return found, ""

    @property
    def expected(self) -> Assignment:
        """The thread that should own each partition; empty where :attr:`problem` says why."""
        return self._outcome[0]

    @property
    def problem(self) -> str:
        """Why the expected owners cannot be known, in words; empty if they are."""
        return self._outcome[1]

    @cached_property
    def words(self) -> StrategyWords:
        """The arithmetic of the strategy, in words."""
        return StrategyWords(self.strategy, self.view, self.threads)

    @cached_property
    def contended(self) -> Mapping[ConsumerId, TopicPartition]:
        """For each member the first partition that it should own and another one's thread owns."""
        found: dict[ConsumerId, TopicPartition] = {}
        for tp, thread in sorted(self.expected.items()):
            consumer, other = self.registered.get(thread), self.owners.get(tp)
            if consumer is not None and other is not None and self.registered.get(other) != consumer:
                found.setdefault(consumer, tp)
        return found

    # ---- the state

    @cached_property
    def state(self) -> StateOfGroup:
        """The state of the group."""
        by_brokers = self.by_brokers
        if by_brokers is not None:
            return state_of_brokers(by_brokers)
        if self.unread:
            return StateOfGroup(GroupState.UNKNOWN, self.unread)
        if not self.snapshot.members:
            return without_members(self.snapshot)
        differences = self.differences
        return unsettled(differences, self.quiet_for, self.patience) if differences else self._stable()

    @cached_property
    def unread(self) -> str:
        """The unreadable part of members, owners and their topics, in words; empty if everything was read."""
        where = (self._path, f"{self._path}/ids", f"{self._path}/owners")
        topics = {f"{paths.TOPICS}/{topic}" for topic in self.subscribed}
        for problem in self.snapshot.problems:
            if problem.what.startswith("ZooKeeper "):
                return f"{problem.what} did not say everything: {problem.why}"
            node = problem.what in where or problem.what in topics or problem.what.startswith(f"{where[2]}/")
            if node and problem.why == FORBIDDEN_NODE:
                return f"{problem.what} cannot be read: {problem.why}"
        for topic in sorted(self.subscribed.intersection(self.snapshot.topics)):
            if self.snapshot.topics[topic].problem:
                return f"topic {topic} cannot be read: {self.snapshot.topics[topic].problem}"
        return ""

    def _stable(self) -> StateOfGroup:
        count = len(self.snapshot.owners)
        if self.problem:
            return StateOfGroup(GroupState.STABLE, f"registered threads own all {count} partitions; {self.problem}")
        if not self.expected:
            return StateOfGroup(GroupState.STABLE, "there is no partition to own: no subscribed topic exists")
        said = f"all {count} partitions are owned as {self.strategy.label} wants"
        if self.reserved:
            said += f"; {len(self.reserved)} more wait for {first_of(set(self.reserved.values()), _NAMED)}, which left"
        return StateOfGroup(GroupState.STABLE, said)

    @cached_property
    def differences(self) -> tuple[str, ...]:
        """In words, what keeps the group from being stable; empty if it is."""
        expected, owned = self.expected, self.owners
        if self.problem:  # then all that can be said is whether registered threads own everything
            wanted = self.snapshot.partitions_of(self.subscribed)
            missing = [tp for tp in wanted if tp not in self.snapshot.owners and tp not in self.reserved]
            wrong = [tp for tp in wanted if tp in owned and owned[tp] not in self.registered]
        else:
            missing = [tp for tp in expected if tp not in self.snapshot.owners]
            wrong = [tp for tp, thread in expected.items() if tp in owned and owned[tp] != thread]
        damaged = [tp for tp, node in self.snapshot.owners.items() if not node.thread]
        surplus = [tp for tp in owned if tp not in expected] if not self.problem else []
        gone = [tp for tp in (*wrong, *surplus) if owned[tp] not in self.registered]
        others = [tp for tp in wrong if tp not in set(gone)]
        left = [tp for tp in surplus if tp not in set(gone)]
        found = [
            (missing, "nobody owns"),
            (gone, "a thread that is not registered owns"),
            (others, "another thread than it should owns"),
            (left, "nobody should own, but a member does:"),
            (damaged, "an unreadable node claims"),
        ]
        return tuple(f"{said} {first_of(tps, _NAMED)}" for tps, said in found if tps)

    # ---- how long it has been so

    @property
    def patience(self) -> float:
        """Seconds after which everything that a rebalance waits for has ended."""
        kinds = {member_kind(node) for node in self.snapshot.members.values()}
        return patience(self.snapshot, SCALA_PATIENCE if kinds == {MemberKind.SCALA} else OUR_PATIENCE)

    @cached_property
    def quiet_for(self) -> float | None:
        """Seconds for which members and owners have not changed at least; None if nothing tells."""
        return quiet_since(self.snapshot, self._earlier)


_OF_MEMBERSHIP = (
    *("view", "owners", "existing", "threads", "registered", "subscribed", "strategy", "_outcome", "candidates"),
    *("collisions", "reserved", "contended", "unread", "differences"),
)
"""The answers that depend on :func:`_membership`, and on nothing else but the racks of the leaders."""


def _membership(snapshot: GroupSnapshot) -> object:
    return (
        *(snapshot.members, snapshot.owners, snapshot.topics, snapshot.plan, snapshot.brokers_group),
        *(snapshot.problems, snapshot.in_zookeeper),
    )


def _by_coordinator(group: BrokersGroup, *, clients: bool = False) -> Assignment:
    return {
        tp: ThreadId(member.client_id if clients else member.member_id)
        for member in group.members
        for tp in member.assignment or ()
    }
