"""A member in ZooKeeper and in the brokers' group at once, for a group that moves from the one to the other.

ZooKeeper's side is the whole of an ordinary member: it registers, owns, commits and releases, and consumes nothing
without its owner node. :class:`Bridge` is its strategy. While ZooKeeper coordinates that is the configured one; where
the brokers do it is what their coordinator assigned. So who coordinates never decides who may consume, only who
should: two members that see it differently for a moment wait for each other's owner nodes.

The brokers' side is an ordinary :class:`CoordinatedMember` whose streams and committer are :class:`Shadow`: what it
is given is a wish, and what it gives up is given up when ZooKeeper's side has drained, committed and released it.

Threads: the group's thread (ZooKeeper's) calls the strategy and :meth:`Bridge.concluded`; the coordinated member's
thread calls the shadow, and waits there, with a limit, for the group's thread, which never waits for it. The condition
guards the wish and its numbers, and what a look found; nothing is asked while it is held. A look at the brokers' group,
before it is left for ZooKeeper-only members, has a thread of its own.

The original has nothing of this: there, members of the new consumer beside old ones consume everything twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Condition, Event, Thread, current_thread
from typing import Any, Protocol

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.poll_watchdog import Place, StreamKey
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.deadline import Deadline
from zkconsumer.errors import LogTruncatedError, MalformedNodeError, OffsetConflictError, ZkConsumerError
from zkconsumer.member.bridge_rules import assigned_by_brokers, brokers_only_members, non_bridges, still_assignable
from zkconsumer.member.events import LookAgain, SubscriptionChanged
from zkconsumer.member.zookeeper.planner import Assign, GroupView, Threads
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.fenced_writes import ABSENT, KnownOffset
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

Streams = Mapping[TopicPartition, int]
"""The number of the stream of each partition."""

_LOOK_AGAIN = 2.0
"""Seconds between two looks at a brokers' group that cannot be left."""


class Holder(Protocol):
    """Whoever owns partitions: either side's thread."""

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""


class Bridge:
    """Who coordinates, and what of the plan is ours.

    Arguments: ``strategy`` is ZooKeeper's; ``tell`` puts an event on the queue of the group's thread; ``kafka`` is the
    queue of the coordinated member; ``clients`` asks for the ``client.id`` of everybody in the brokers' group (raises
    ZkConsumerError); ``patience`` in seconds is how long the brokers' side waits for a release.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        strategy: Assign,
        *,
        tell: Callable[[LookAgain], None],
        kafka: SimpleQueue[Any],
        clients: Callable[[], Collection[str]],
        patience: float,
    ) -> None:
        self._consumer = consumer
        self._strategy = strategy
        self._tell = tell
        self._kafka = kafka
        self._clients = clients
        self._patience = patience
        self._joined: Mapping[str, int] = {}  # the group's thread's, as the next two
        self._planned = 0
        self._own: Holder | None = None
        self._closing = Event()
        self._changed = Condition()  # guards everything below
        self._lookout: Thread | None = None
        self._may_leave = False
        self._wish: Streams | None = None
        self._number = 0
        self._done = 0
        self._in = False
        self.concern = ""
        """What keeps the group from moving, in words for the user; empty where nothing does."""

    def attach(self, own: Holder) -> None:
        """ZooKeeper's side; before its first round."""
        self._own = own

    def close(self) -> None:
        """Wait for nothing any more: ZooKeeper's side has ended."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()

    # ---- the group's thread

    def __call__(self, view: GroupView, threads: Threads) -> Assignment:
        """Who shall own what, as far as it concerns us. Raises what the strategy raises."""
        with self._changed:
            self._planned, wish = self._number, self._wish
        if self._consumer not in view.members:
            return self._strategy(view, threads)
        others = non_bridges(view)
        if others and (not self._joined or self._may_go(view)):
            self._want({}, f"ZooKeeper coordinates: {_some(others)} cannot do otherwise")
            return self._strategy(view, threads)
        if not others:
            self._look_no_more()
            wanted = {topic: len(ids) for topic, ids in threads[self._consumer].items()}
            self._want(wanted, "all members can do so: the brokers coordinate")
        if wish is None or not self._joined:
            assert self._own is not None
            owned = {tp: position.thread for tp, position in self._own.positions().items()}
            return still_assignable(owned, self._consumer, view, threads)
        return assigned_by_brokers(wish, self._consumer, view, threads)

    def concluded(self) -> None:
        """A round has ended: what its plan took away is committed and released."""
        with self._changed:
            self._done = self._planned
            self._changed.notify_all()

    def _want(self, topics: Mapping[str, int], why: str) -> None:
        """Be in the brokers' group for these topics; without any, leave it."""
        if topics == self._joined:
            return
        if bool(topics) != bool(self._joined):
            log.info("%s", why)
            with self._changed:
                self._in, self._wish = bool(topics), None
                self._changed.notify_all()
        self._joined = dict(topics)
        registration = Registration(STATIC, dict(topics))
        self._kafka.put(SubscriptionChanged(lambda: registration, frozenset(), 0, lambda: None, Future()))

    def _may_go(self, view: GroupView) -> bool:
        """Whether the brokers' group can be left to ZooKeeper: not while it has members that are no bridges, for they
        would take everything, and the members in ZooKeeper too.
        """
        with self._changed:
            if self._may_leave:
                self._may_leave = False
                return True
            if self._lookout is None or not self._lookout.is_alive():
                members = frozenset(view.members)
                self._lookout = Thread(
                    target=self._look_out, args=(members,), name=f"{self._consumer}-lookout", daemon=True
                )
                self._lookout.start()
        return False

    def _look_no_more(self) -> None:
        """Nobody is there for whom the brokers' group would be left; what a look finds from here on is no matter."""
        with self._changed:
            self._lookout, self._may_leave, self.concern = None, False, ""

    def _look_out(self, members: Collection[str]) -> None:
        while not self._closing.is_set():
            try:
                others = brokers_only_members(self._clients(), members)
                concern = _conflict(others) if others else ""
            except ZkConsumerError as e:
                concern = f"who is in the brokers' group cannot be seen: {e}"
            with self._changed:
                if self._lookout is not current_thread():
                    return
                self.concern, self._may_leave = concern, not concern
            if not concern:
                self._tell(LookAgain("nobody else is in the brokers' group"))
                return
            log.warning("%s", concern)
            self._closing.wait(_LOOK_AGAIN)

    # ---- the brokers' side, on its thread

    def given(self, streams: Streams) -> None:
        """The coordinator gave us this share."""
        self._set(dict(streams), "the coordinator gave us another share")

    def taken(self, partitions: Collection[TopicPartition]) -> None:
        """These are no longer ours; :meth:`released` waits until that is so."""
        gone = frozenset(partitions)
        with self._changed:
            before = self._wish
        if before is not None:
            self._set({tp: number for tp, number in before.items() if tp not in gone}, "the coordinator takes back")

    def _set(self, wish: Streams, why: str) -> None:
        with self._changed:
            if not self._in:
                return  # we are leaving: ZooKeeper's strategy says what is ours
            self._wish = wish
            self._number += 1
        self._tell(LookAgain(why))

    def released(self) -> None:
        """Wait until ZooKeeper's side has done what it was told last."""
        deadline = Deadline(self._patience)
        with self._changed:
            number = self._number
            while self._done < number and self._in and not self._closing.is_set() and not deadline.expired:
                self._changed.wait(deadline.remaining())
            late = self._done < number and self._in and not self._closing.is_set()
        if late:
            log.warning("what the coordinator takes back is not released after %g s; going on", self._patience)


def _conflict(others: Sequence[str]) -> str:
    return (
        f"members are in ZooKeeper alone, and {_some(others)} with the brokers alone: each side consumes what the other"
        " does; stop one of them"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def members_beside(session: Session, group: str, deadline: Deadline) -> list[str]:
    """The live members in ZooKeeper beside whom nobody may be in the brokers' group: those that are no bridges, or
    cannot be read. Raises RegistryError.
    """
    names = session.children(paths.ids(group), deadline) or ()
    nodes = session.read([paths.member(group, name) for name in names], deadline)
    members: dict[ConsumerId, Registration] = {}
    unreadable: dict[str, str] = {}
    for name, node in zip(names, nodes, strict=True):
        if node is None:
            continue
        path = paths.member(group, name)
        try:
            members[ConsumerId(name)] = node_codecs.decode_registration(node.data, path)
        except MalformedNodeError as e:
            unreadable[path] = e.reason
    return non_bridges(GroupView(members, {}, unreadable=unreadable))


class Shadow:
    """What the brokers' side takes for its streams and its committer: nothing is handed out or written here."""

    asks = True
    reads_nodes = False

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.trouble = ""
        """Why the brokers do not let us into the group, in words for the user; empty where they do."""

    # ---- streams

    def start(self, positions: Sequence[PartitionPosition]) -> None:
        """Nothing is fetched."""

    def revoke(self, positions: Sequence[PartitionPosition], drain: Deadline) -> None:
        """Have ZooKeeper's side give these up."""
        del drain
        self._bridge.taken([position.tp for position in positions])

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Nothing is read here, so nothing goes on elsewhere."""

    def wake(self) -> None:
        """Nobody waits here."""

    def end(self) -> None:
        """ZooKeeper's side ends the streams."""

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Nobody holds anything here."""
        del position, thread
        return False

    def fail(self, position: PartitionPosition, error: OffsetConflictError | LogTruncatedError) -> None:
        """Nothing is read here."""

    def refuse(self, error: Exception | None) -> None:
        """Nothing flows less for it: what is owned in ZooKeeper stays so."""
        self.trouble = "" if error is None else f"the brokers' group: {error}"

    def places(self) -> Mapping[StreamKey, Place]:
        """Readers are not watched: what they own, they own in ZooKeeper."""
        return {}

    def came_back(self, key: StreamKey, place: Place) -> bool:
        """Nobody was away."""
        del key, place
        return True

    # ---- the committer

    def find_starts(
        self, positions: Sequence[PartitionPosition], found: Callable[[Mapping[PartitionPosition, int | None]], None]
    ) -> Sequence[PartitionPosition]:
        """Nothing starts here."""
        del positions, found
        return ()

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Nothing is written here."""

    def succeed(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Nothing is written here."""

    def store_starts(
        self, starts: Mapping[PartitionPosition, int], done: Callable[[Mapping[PartitionPosition, bool]], None]
    ) -> None:
        """Nothing starts here."""

    def overwrite(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        """Nothing is written here."""

    def level(self, positions: Collection[PartitionPosition]) -> None:
        """Nothing is written here."""

    def hurry(self) -> None:
        """Nothing is written here."""

    def surrender(
        self,
        positions: Collection[PartitionPosition],
        *,
        commit: bool,
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
        meanwhile: Callable[[], None],
        release: bool = False,
    ) -> Mapping[TopicPartition, KnownOffset]:
        """Wait for the last commit, which is ZooKeeper's side's."""
        del commit, count_held, deadline, meanwhile, release
        self._bridge.released()
        return {position.tp: ABSENT for position in positions}

    def check(self) -> None:
        """Nothing is written here."""

    def forget(self, positions: Collection[PartitionPosition]) -> None:
        """These are lost; :meth:`revoke` has said so."""
