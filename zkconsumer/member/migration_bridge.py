"""A member in ZooKeeper and in the brokers' group at once, for a group that moves from the one to the other.

ZooKeeper's side is an ordinary member: it registers, owns, commits and releases, and consumes nothing without its owner
node. :class:`Bridge` is its strategy. While ZooKeeper coordinates, the bridge assigns by the configured strategy. While
the brokers coordinate, it repeats their assignment. So the coordination only decides who should consume; the owner
nodes decide who may. Two members that see it differently for a moment wait for each other.

The brokers' side is an ordinary :class:`BrokersRebalancer` with :class:`WishedPartitions` as its assignment. A
partition that it takes is a wish. A revoked partition counts as given up when ZooKeeper's side has drained, committed
and released it.

Threads: the group thread (ZooKeeper's) calls the strategy and :meth:`Bridge.concluded`. The thread of the brokers' side
calls :class:`WishedPartitions` and waits there, with a limit, for the group thread, which never waits for it. No
request is sent under a lock.

The original has nothing of this: there, members of the new consumer beside old ones consume everything twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Condition, Event, Thread, current_thread
from typing import Any

from zkconsumer.core.names import first_of
from zkconsumer.core.registration import Registration
from zkconsumer.errors import MalformedNodeError, ZkConsumerError
from zkconsumer.member.events import LookAgain, StopRequested, SubscriptionChanged
from zkconsumer.member.migration_rules import (
    assigned_by_brokers,
    brokers_coordinate,
    brokers_only_members,
    non_bridges,
    still_assignable,
)
from zkconsumer.member.zookeeper.claim_plan import Assign, GroupView, Threads
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.runtime.withdrawable_request import Request
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

Streams = Mapping[TopicPartition, int]
"""The number of the stream of each partition."""
Owned = Callable[[], Mapping[TopicPartition, PartitionPosition]]
"""Returns the positions that are owned now (a copy)."""

_LOOK_AGAIN = 2.0
"""Seconds between two looks at a brokers' group that cannot be left."""


class Bridge:
    """The strategy of ZooKeeper's side, which decides who coordinates.

    Arguments: ``strategy`` is ZooKeeper's; ``kafka`` is the queue of the brokers' side.
    """

    def __init__(
        self, consumer: ConsumerId, strategy: Assign, kafka: SimpleQueue[Any], wish: BrokersWish, lookout: Lookout
    ) -> None:
        self._consumer = consumer
        self._strategy = strategy
        self._kafka = kafka
        self._wish = wish
        self._lookout = lookout
        self._joined: Mapping[str, int] = {}
        self._planned = 0
        self._owned: Owned = dict

    def attach(self, owned: Owned) -> None:
        """Bridge to this side in ZooKeeper, before its first round. ``owned`` returns its positions."""
        self._owned = owned

    def close(self) -> None:
        """Wait for nothing any more, since ZooKeeper's side has ended."""
        self._lookout.close()
        self._wish.close()

    def __call__(self, view: GroupView, threads: Threads) -> Assignment:
        """Return our part of the assignment, or all of it. Raises what the strategy raises.

        A partition that the brokers took back is released first, whoever gives it to us now. Another member may have
        owned it meanwhile, and going on with it would repeat that member's messages.
        """
        planned, wish, taken = self._wish.present()
        made, owned = self._assigned(view, threads, wish), self._owned()
        self._planned = planned
        return {tp: thread for tp, thread in made.items() if tp not in taken or tp not in owned}

    def _assigned(self, view: GroupView, threads: Threads, wish: Streams | None) -> Assignment:
        if self._consumer not in view.members:
            return self._strategy(view, threads)
        others = non_bridges(view)
        may_leave = partial(self._lookout.allows, view.members)
        if not brokers_coordinate(others, joined=bool(self._joined), may_leave=may_leave):
            self._want({}, f"ZooKeeper coordinates: {first_of(others, 3)} cannot do otherwise")
            return self._strategy(view, threads)
        if not others:
            self._lookout.end()
            wanted = {topic: len(ids) for topic, ids in threads[self._consumer].items()}
            self._want(wanted, "all members can do so: the brokers coordinate")
        if wish is None or not self._joined:
            owned = {tp: position.thread for tp, position in self._owned().items()}
            return still_assignable(owned, self._consumer, view, threads)
        return assigned_by_brokers(wish, self._consumer, view, threads)

    def concluded(self) -> None:
        """Note the end of a round, which has committed and released the partitions that the plan took away."""
        self._wish.carried_out(self._planned)

    def _want(self, topics: Mapping[str, int], why: str) -> None:
        """Be in the brokers' group for these topics; without any, leave it."""
        if topics == self._joined:
            return
        if bool(topics) != bool(self._joined):
            log.info("%s", why)
            self._wish.begin(member=bool(topics))
        self._joined = dict(topics)
        joined = self._joined
        self._kafka.put(SubscriptionChanged(lambda _: joined, Request(Deadline(None))))


class Lookout:
    """Looks at the brokers' group before it is left for ZooKeeper-only members, on a thread of its own.

    The group cannot be left while it has members that are no bridges. They would take everything, and members in
    ZooKeeper too. Called by the group thread; the lock guards the result of a look.

    Arguments: ``clients`` asks for the ``client.id`` of every member of the brokers' group (raises ZkConsumerError);
    ``tell`` puts an event on the queue of the group thread.
    """

    def __init__(
        self, consumer: ConsumerId, clients: Callable[[], Collection[str]], tell: Callable[[LookAgain], None]
    ) -> None:
        self._consumer = consumer
        self._clients = clients
        self._tell = tell
        self._closing = Event()
        self._lock = InterruptibleLock()
        self._thread: Thread | None = None
        self._may_leave = False
        self.concern = ""
        """What keeps the group from moving, in words for the user; empty if nothing does. Any thread."""

    def allows(self, members: Collection[str]) -> bool:
        """Return whether the brokers' group can be left to ZooKeeper. A look begins if none is under way."""
        with self._lock:
            if self._may_leave:
                self._may_leave = False
                return True
            if self._thread is None or not self._thread.is_alive():
                name = f"{self._consumer}-lookout"
                self._thread = Thread(target=self._look, args=(frozenset(members),), name=name, daemon=True)
                self._thread.start()
        return False

    def end(self) -> None:
        """Stop the look, because no member is left for which this one would leave the brokers' group."""
        with self._lock:
            self._thread, self._may_leave, self.concern = None, False, ""

    def close(self) -> None:
        """Look no more."""
        self._closing.set()

    def _look(self, members: Collection[str]) -> None:
        while not self._closing.is_set():
            try:
                others = brokers_only_members(self._clients(), members)
                concern = _conflict(others) if others else ""
            except ZkConsumerError as e:
                concern = f"the members of the brokers' group cannot be seen: {e}"
            with self._lock:
                if self._thread is not current_thread():
                    return
                self.concern, self._may_leave = concern, not concern
            if not concern:
                self._tell(LookAgain("nobody else is in the brokers' group"))
                return
            log.warning("%s", concern)
            self._closing.wait(_LOOK_AGAIN)


class BrokersWish:
    """The partitions that the coordinator of the brokers' group gave us, for ZooKeeper's side to own.

    The brokers' side changes the wish and waits for a release; the group thread reads and fulfils the wish. The
    condition guards everything.

    Arguments: ``tell`` puts an event on the queue of the group thread; ``patience`` in seconds is how long the brokers'
    side waits for a release.
    """

    def __init__(self, tell: Callable[[LookAgain], None], patience: float) -> None:
        self._tell = tell
        self._patience = patience
        self._lock = InterruptibleLock()  # code enters the lock itself, not the condition: see streams.stream_queue
        self._changed = Condition(self._lock)
        self._streams: Streams | None = None
        self._number = 0
        self._done = 0
        self._taken: dict[TopicPartition, int] = {}
        """By partition that was taken back and must be released: the number of the wish without it."""
        self._member = self._closed = False

    # ---- the group thread

    def begin(self, *, member: bool) -> None:
        """Begin without a wish, because we join the brokers' group, or leave it (not ``member``)."""
        with self._lock:
            self._member, self._streams = member, None
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more, since ZooKeeper's side has ended."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def present(self) -> tuple[int, Streams | None, Collection[TopicPartition]]:
        """Return the number of the wish, the wish, and the partitions to release first.

        The wish is None before the coordinator gave us anything.
        """
        with self._lock:
            return self._number, self._streams, frozenset(self._taken)

    def carried_out(self, number: int) -> None:
        """Note that a round has carried out the wish of this number."""
        with self._lock:
            self._done = number
            released = {tp for tp, without in self._taken.items() if without <= number}
            self._taken = {tp: without for tp, without in self._taken.items() if tp not in released}
            again = bool(released) and (self._streams is None or not released.isdisjoint(self._streams))
            self._changed.notify_all()
        if again:
            self._tell(LookAgain("the coordinator gave a partition again"))

    # ---- the brokers' side, on its thread

    def given(self, streams: Streams) -> None:
        """Wish for these partitions, which the coordinator gave us."""
        with self._lock:
            if not self._member:
                return
            self._number += 1
            self._streams = dict(streams)
        self._tell(LookAgain("the coordinator gave us another share"))

    def taken(self, partitions: Collection[TopicPartition]) -> None:
        """Remove these from the wanted partitions. :meth:`released` waits until they are released."""
        with self._lock:
            if not self._member:
                return  # we are leaving: ZooKeeper's strategy says what is ours
            self._number += 1
            self._taken |= dict.fromkeys(partitions, self._number)
            if self._streams is not None:
                self._streams = {tp: number for tp, number in self._streams.items() if tp not in self._taken}
        self._tell(LookAgain("the coordinator takes back"))

    def released(self) -> None:
        """Wait until ZooKeeper's side has carried out the last wish."""
        deadline = Deadline(self._patience)
        with self._lock:
            number = self._number
            while (late := self._done < number and self._member and not self._closed) and not deadline.expired:
                self._changed.wait(deadline.remaining())
        if late:
            log.warning("partitions that the coordinator takes back are not released after %g s", self._patience)


def _conflict(others: Sequence[str]) -> str:
    return (
        f"members are in ZooKeeper alone, and {first_of(others, 3)} with the brokers alone: each side consumes"
        " what the other does; stop one of them"
    )


def members_beside(session: Session, group: str, deadline: Deadline) -> list[str]:
    """Return the live members in ZooKeeper that are no bridges, or cannot be read.

    Beside them nobody may be in the brokers' group. Raises RegistryError.
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


class WishedPartitions:
    """The assignment of the brokers' side: a wish, which ZooKeeper's side carries out.

    Nothing is handed out or committed here. Giving partitions up waits until ZooKeeper's side has released them.
    """

    def __init__(self, wish: BrokersWish) -> None:
        self._wish = wish
        self.partitions: dict[TopicPartition, int] = {}
        """The partitions that the coordinator gave us, with the number of the stream of each. Any thread."""
        self.trouble = ""
        """Why the brokers do not let us into the group, in words for the user; empty if they do. Any thread."""

    @property
    def streams(self) -> Streams:
        """The number of the stream of each of these partitions."""
        return dict(self.partitions)

    def refuse(self, error: Exception | None) -> None:
        """Note why the brokers refuse us; None takes it back. Partitions owned in ZooKeeper stay so."""
        self.trouble = "" if error is None else f"the brokers' group: {error}"

    def take(self, streams: Streams) -> None:
        """Note what the coordinator gave; :meth:`settled` asks ZooKeeper's side for it."""
        self.partitions.update(streams)

    def settled(self) -> None:
        """Ask ZooKeeper's side for everything that the coordinator gave us in this generation."""
        self._wish.given(self.streams)

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Have ZooKeeper's side give these up, and wait for that."""
        gone = [tp for tp in partitions if tp in self.partitions]
        if gone:
            self._drop(gone)
            self._wish.released()

    def abandon(self) -> None:
        """Have ZooKeeper's side give everything up, and wait for that."""
        self.give_up(list(self.partitions))

    def lose(self, why: str) -> None:
        """Have ZooKeeper's side give everything up; return at once."""
        if self.partitions:
            log.warning("the brokers' group took back %s: %s", first_of(self.partitions), why)
            self._drop(list(self.partitions))

    def end(self, stop: StopRequested) -> None:
        """Revoke all partitions. ZooKeeper's side has ended, or ends within its own time."""
        del stop
        self.abandon()

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            del self.partitions[tp]
        self._wish.taken(partitions)
