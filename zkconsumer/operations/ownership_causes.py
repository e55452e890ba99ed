"""The causes of a partition that is not where it should be: sessions, give-ups, drains and unreadable nodes.

Pure; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.core.names import first_of
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.group_snapshot import OwnerNode
from zkconsumer.operations.group_state import OUR_PATIENCE, SCALA_PATIENCE, SESSION_TIMEOUT, GroupState
from zkconsumer.operations.group_view import GroupAnalysis, MemberKind, member_kind
from zkconsumer.operations.printable import duration

_DRAIN = "at most rebalance.drain.timeout.ms (1 s by default) and a round"
_SMALLEST_ENSEMBLE = 3


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a partition is not where it should be.

    ``short`` is a few words, ``reason`` a sentence. ``waits_for`` names the event that ends the state, ``until`` the
    latest time of the event (milliseconds since 1970). ``until`` is None without a bound, and if somebody must act.
    """

    short: str = ""
    reason: str = ""
    waits_for: str = ""
    until: int | None = None


class OwnershipCauses:
    """Finds why one partition is not where it should be."""

    def __init__(
        self, analysis: GroupAnalysis, partition: TopicPartition, should: ThreadId | None, node: OwnerNode | None
    ) -> None:
        self._analysis = analysis
        self._snapshot = analysis.snapshot
        self._partition = partition
        self._should = should
        self._node = node

    def cause(self) -> Cause:
        """Return the cause; an empty one if the partition is where it should be, or nothing says otherwise."""
        analysis, node = self._analysis, self._node
        if analysis.by_brokers is not None:
            return self._of_brokers()
        topic = self._snapshot.topics.get(self._partition.topic)
        exists = self._partition in analysis.existing
        if topic is not None and topic.problem:
            return Cause(
                "its topic cannot be read", f"the topic's node cannot be read: {topic.problem}", "a readable node"
            )
        if node is None and analysis.unread:
            return Cause("its owner could not be read", analysis.unread, "an answer of ZooKeeper")
        if node is None:
            return self._unowned(exists)
        if not node.thread:
            problem = node.problem or "it has no content"
            reason = f"the owner node cannot be read ({problem}), so no member can tell whose it is"
            return Cause(
                "its owner node cannot be read", reason, "an end of the node or of its session", self._session_end()
            )
        if node.stat is not None and not node.stat.ephemeral_owner:
            reason = "the owner node is persistent: no session ends it, and no member replaces it"
            return Cause("its owner node is persistent", reason, "somebody who deletes the owner node")
        return self._owned(ThreadId(node.thread), exists)

    def _of_brokers(self) -> Cause:
        state = self._analysis.state.state
        if self._partition in self._analysis.owners or state in (GroupState.EMPTY, GroupState.STABLE):
            return Cause()
        reason = f"the brokers' group is in the state {state.value}"
        return Cause("the group rebalances", reason, "the next assignment by the group's leader")

    # ---- nobody owns it

    def _unowned(self, exists: bool) -> Cause:
        waits = self._analysis.reserved.get(self._partition)
        if waits is not None:
            reason = f"{waits} has left, and the plan keeps its partitions for it (group.instance.grace.ms)"
            return Cause("it is kept for its member", reason, f"{waits} again, or the end of the grace time")
        if self._should is None:
            return self._unclaimed(exists)
        consumer = self._analysis.registered.get(self._should) or ConsumerId(self._should.rpartition("-")[0])
        if not self._connected(consumer):
            return self._dying(consumer, "cannot claim it: its session is connected to no server")
        kind = self._kind(consumer)
        quiet = self._analysis.quiet_for
        if kind is not MemberKind.SCALA:
            return Cause(
                f"{consumer} has not claimed it yet",
                f"{consumer} ({kind.value}) has not claimed it yet",
                f"the next round of {consumer}: it looks at the group every rebalance.interval.ms (20 s by default)",
                self._after(OUR_PATIENCE / 3),
            )
        return self._unclaimed_by_scala(consumer, quiet)

    def _unclaimed_by_scala(self, consumer: ConsumerId, quiet: float | None) -> Cause:
        strategy = self._analysis.strategy
        reasons = [self._contended(consumer)]
        if not strategy.sure and consumer not in strategy.by_member:
            reasons.append(
                f"or it does not assign by {strategy.label}: it advertises no strategy, and owns nothing to tell"
            )
            reasons += [
                f"{label} would make it claim {first_of(taken, 3)}, which others own: set one strategy"
                for label, taken in self._analysis.collisions.get(consumer, {}).items()
            ]
        if quiet is None or quiet <= SCALA_PATIENCE:
            said = f"{consumer} is a Scala member, which claims all of its partitions or none: it may still try"
            waits = "its next attempt (each 2 s, 4 in all by default)"
            reason = "; ".join(filter(None, (said, *reasons)))
            return Cause("its Scala member may still try", reason, waits, self._after(SCALA_PATIENCE))
        said = (
            f"{consumer} is a Scala member and has not claimed it for {duration(quiet * 1000)}: it gives up after"
            " rebalance.max.retries x rebalance.backoff.ms (4 x 2 s by default)"
        )
        kinds = {member_kind(node) for node in self._snapshot.members.values()}
        woken = kinds.intersection((MemberKind.ZKCONSUMER, MemberKind.SPARK, MemberKind.BRIDGE))
        waits = "the next change under ids" + (
            ": members of zkconsumer make one a few times to wake it" if woken else ", for example a member that joins"
        )
        return Cause("its Scala member seems to have given up", "; ".join(filter(None, (said, *reasons))), waits)

    def _unclaimed(self, exists: bool) -> Cause:
        """The cause if the strategy gives the partition to nobody, or is unknown."""
        topic = self._partition.topic
        if not exists:
            return Cause("it does not exist", f"{topic} has no such partition", "")
        if not self._snapshot.members:
            return Cause("the group has no members", "no member is registered", "a member that joins")
        if topic not in self._analysis.subscribed:
            unreadable = [path.rpartition("/")[2] for path in self._analysis.view.unreadable]
            if unreadable:
                reason = f"no readable registration subscribes to {topic}; {first_of(unreadable, 3)} cannot be read"
                return Cause("no readable member subscribes to it", reason, "readable registrations")
            return Cause(
                "no member subscribes to it", f"no registration subscribes to {topic}", "a member that subscribes"
            )
        if self._analysis.problem:
            return Cause("who should own it is unknown", self._analysis.problem, "")
        reason = f"the strategy {self._analysis.strategy.label} gives it to nobody"
        return Cause("its strategy gives it to nobody", reason, "other members or another strategy")

    def _contended(self, consumer: ConsumerId) -> str:
        """Say which other partition keeps a member from claiming, empty if none does.

        A Scala member claims all of its partitions or none.
        """
        tp = self._analysis.contended.get(consumer)
        if tp is None:
            return ""
        other = self._analysis.owners[tp]
        return f"it should also own {tp}, which {other} owns; {self._uses(other)}"

    def _uses(self, thread: str) -> str:
        """Say whether the owner's member assigns by another strategy."""
        consumer = self._analysis.registered.get(ThreadId(thread))
        if consumer is None:
            return "that thread is not registered"
        labels = self._analysis.strategy.by_member.get(consumer)
        if labels is None or self._analysis.strategy.label in labels or not labels:
            return "that member has not released it"
        return f"what {consumer} owns is explained by {' or '.join(labels)}"

    # ---- another thread owns it

    def _owned(self, owner: ThreadId, exists: bool) -> Cause:
        consumer = self._analysis.registered.get(owner)
        if consumer is None:
            return self._unregistered(owner)
        if owner == self._should or (self._should is None and self._analysis.problem):
            if not self._connected(consumer):
                return self._dying(
                    consumer, "has not heard from ZooKeeper lately: its session is connected to no server"
                )
            return self._of_former_session(consumer)
        if not self._connected(consumer):
            return self._dying(consumer, "cannot release it: its session is connected to no server")
        return self._not_released(consumer, exists)

    def _unregistered(self, owner: ThreadId) -> Cause:
        consumer = ConsumerId(owner.rpartition("-")[0])
        if consumer in self._snapshot.members:
            problem = self._snapshot.members[consumer].problem
            unreadable = next(
                (why for path, why in self._analysis.view.unreadable.items() if path.endswith(f"/{consumer}")), problem
            )
            if unreadable:
                if self._should == owner:
                    return Cause()
                reason = f"the registration of {consumer} cannot be read ({unreadable}); it keeps what it owns"
                return Cause("its owner's registration cannot be read", reason, "a readable registration")
            reason = f"{consumer} is registered, but has no thread {owner} for this topic"
            return Cause(
                "its owner has no such thread", reason, f"a rebalance of {consumer}, or the end of its session"
            )
        session = self._session()
        who = next(
            (c for c, one in self._snapshot.members.items() if one.stat and one.stat.ephemeral_owner == session), None
        )
        if who is not None and session:
            reason = (
                f"the node was made by the session of {who}, under another consumer id: one process, two connectors"
            )
            return Cause("its owner node is of another member's session", reason, f"the end of {who}'s session")
        live = self._live_sessions()
        known = live.get(session) if live is not None else None
        if known is not None:
            reason = f"{owner} is not registered, but its session {session:#x} is alive, from {known[0]}"
            return Cause("its owner is alive but not registered", reason, "an end of that client")
        reason = f"{owner} is not registered: its member is gone, and its session {session:#x} has not expired yet"
        return Cause("its owner is dead", reason, f"the end of session {session:#x}", self._session_end())

    def _not_released(self, consumer: ConsumerId, exists: bool) -> Cause:
        kind = self._kind(consumer)
        label = self._analysis.strategy.label
        labels = self._analysis.strategy.by_member.get(consumer)
        if not exists:
            return Cause(
                "it does not exist any more",
                "its topic has no such partition any more",
                f"the next round of {consumer}",
            )
        if labels and label not in labels:
            reason = (
                f"{consumer} assigns by another strategy: {' or '.join(labels)} explains what it owns, {label} does not"
            )
            return Cause(
                "its owner uses another strategy", reason, "the same partition.assignment.strategy in all members"
            )
        if kind is MemberKind.SPARK:
            reason = f"{consumer} is a Spark query: it keeps the partitions of its running batch"
            return Cause("a Spark batch keeps it", reason, "the end of the batch, or releaseAfter")
        if kind is MemberKind.SCALA:
            reason = f"{consumer}, a Scala member, has not released it: its rebalance has not begun, or failed early"
            waits = f"the rebalance of {consumer}; if it gave up, the next change under ids"
            return Cause("a Scala member has not released it", reason, waits, self._after(SCALA_PATIENCE))
        reason = f"{consumer} has not released it: it drains the message in its reader's hands, or has yet to begin"
        return Cause("its owner drains", reason, f"the release by {consumer}, {_DRAIN}", self._after(OUR_PATIENCE / 3))

    def _of_former_session(self, consumer: ConsumerId) -> Cause:
        """The cause if a member's node stands under its former session, which will end it."""
        stat = self._snapshot.members[consumer].stat
        session = self._session()
        if stat is None or not session or session == stat.ephemeral_owner:
            return Cause()
        reason = f"the node is of session {session:#x}, and {consumer} now has session {stat.ephemeral_owner:#x}"
        return Cause("its node is of a former session", reason, f"the end of session {session:#x}", self._session_end())

    # ---- sessions

    def _kind(self, consumer: ConsumerId) -> MemberKind:
        return member_kind(self._snapshot.members[consumer])

    def _session(self) -> int:
        return self._node.stat.ephemeral_owner if self._node is not None and self._node.stat is not None else 0

    def _live_sessions(self) -> dict[int, tuple[str, int]] | None:
        """Return the sessions with a connection; None unless every server of the ensemble told.

        A server that was not asked may have the session. So the answers count only if they come from a standalone
        server, or from a leader and enough followers to be the ensemble.
        """
        servers = self._snapshot.servers
        if not servers or any(server.problem or not server.sessions for server in servers):
            return None
        modes = [server.mode for server in servers]
        if modes != ["standalone"] and (len(modes) < _SMALLEST_ENSEMBLE or modes.count("leader") != 1):
            return None
        return {session: client for server in servers for session, client in server.sessions.items()}

    def _connected(self, consumer: ConsumerId) -> bool:
        """Return whether a member's session has a connection, or nothing says otherwise."""
        live = self._live_sessions()
        node = self._snapshot.members.get(consumer)
        if node is None or node.stat is None:
            return True
        return node.stat.ephemeral_owner != 0 and (live is None or node.stat.ephemeral_owner in live)

    def _dying(self, consumer: ConsumerId, said: str) -> Cause:
        stat = self._snapshot.members[consumer].stat
        session = stat.ephemeral_owner if stat is not None else 0
        if not session:
            reason = f"the registration of {consumer} is persistent: no session ends it, and no member stands behind it"
            return Cause("its member's registration is persistent", reason, "somebody who deletes the registration")
        reason = f"{consumer} {said}; either its process is gone, or the network keeps it away"
        waits = f"its return, or the end of session {session:#x}"
        return Cause("its member has no connection", reason, waits, self._longest_session())

    def _session_end(self) -> int | None:
        """When the session of the owner node has ended at the latest, if its client is gone."""
        return self._longest_session() if self._session() and not self._is_live() else None

    def _is_live(self) -> bool:
        live = self._live_sessions()
        return live is not None and self._session() in live

    def _longest_session(self) -> int:
        limits = [server.max_session_timeout for server in self._snapshot.servers if server.max_session_timeout]
        return self._snapshot.taken + int(max(limits, default=SESSION_TIMEOUT * 1000))

    def _after(self, seconds: float) -> int | None:
        """A moment that many seconds after the group's last change, None if that is unknown or has passed."""
        quiet = self._analysis.quiet_for
        if quiet is None or quiet > seconds:
            return None
        return self._snapshot.taken + int((seconds - quiet) * 1000)
