"""Our registration, and the group as ZooKeeper shows it.

Called by the group thread only. Everything is read through the node cache, so every read leaves a watch, and unchanged
nodes are not read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TypeVar

from zkconsumer.core.registration import Registration
from zkconsumer.core.subscription import failing_filters
from zkconsumer.errors import ConsumerIdInUseError, MalformedNodeError, NotPermittedError, RegistryError
from zkconsumer.member.zookeeper.claim_plan import GroupView, threads_of, topics_wanted
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_cache import DecodedNodes, NodeCache
from zkconsumer.zookeeper.node_requests import Transaction
from zkconsumer.zookeeper.node_values import FORBIDDEN, Look, Node, Seen
from zkconsumer.zookeeper.session import Session

K = TypeVar("K")
T = TypeVar("T")


class LeaderRacks:
    """The racks of partitions' leaders as ZooKeeper shows them."""

    def __init__(self, cache: NodeCache) -> None:
        self._cache = cache

    def of(self, partitions: Mapping[str, tuple[int, ...]], deadline: Deadline) -> Mapping[TopicPartition, str]:
        """Return the rack of each partition's leader. Partitions without a leader or rack are left out.

        Raises: RegistryError.
        """
        states = {
            TopicPartition(t, n): paths.partition_state(TopicPartition(t, n)) for t in partitions for n in partitions[t]
        }
        leaders = self._read(states, lambda data, path: node_codecs.decode_partition_state(data, path).leader, deadline)
        brokers = {leader: paths.broker(leader) for leader in sorted(set(leaders.values())) if leader >= 0}
        racks = self._read(brokers, lambda data, path: node_codecs.decode_broker(data, path).rack, deadline)
        return {tp: rack for tp, leader in leaders.items() if (rack := racks.get(leader))}

    def _read(self, by_key: Mapping[K, str], decode: Callable[[bytes, str], T], deadline: Deadline) -> dict[K, T]:
        """Return what the node of each key says; keys of missing or unreadable nodes are left out."""
        nodes = self._cache.nodes(list(by_key.values()), deadline)
        found: dict[K, T] = {}
        for key, path in by_key.items():
            node = nodes[path]
            try:
                if node is not None:
                    found[key] = decode(node.data, path)
            except MalformedNodeError as e:
                log.warning("%s; its partitions count as ones without a rack", e)
        return found


log = logging.getLogger(__name__)

GIVEN_UP_FOR = 60.0
"""Seconds before an expression that took too long is tried again on the same topics."""


DOUBTED = 10
"""Registrations of others that one reconciliation reads again."""
REPORTED_AT_ONCE = 10
"""Unreadable nodes that are named in the log at one look at the group."""


class OwnRegistration:
    """A member's subscription.

    Arguments: ``complete`` makes the content of the node of it for each registration, with a new timestamp.
    """

    def __init__(
        self, subscribed: Registration, complete: Callable[[Registration], Registration] = lambda subscribed: subscribed
    ) -> None:
        self.subscribed = subscribed
        self._complete = complete

    def __call__(self) -> Registration:
        """Return the content of the member's node."""
        return self._complete(self.subscribed)

    def revise(self, revise: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        """Subscribe to the topics that ``revise`` makes of the present subscription."""
        self.subscribed = replace(self.subscribed, subscription=revise(self.subscribed.subscription))


class GroupRegistration:
    """A member's node under ``ids``. Argument: ``own`` is the content of the node."""

    def __init__(
        self, session: Session, cache: NodeCache, group: str, consumer: ConsumerId, own: OwnRegistration
    ) -> None:
        self._session = session
        self._cache = cache
        self.own = own
        self._rewrite = False
        self._written = b""
        self.group = group
        self.consumer = consumer
        self.path = paths.member(group, consumer)

    def subscribe(self, revise: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        """Have the next :meth:`register` write another subscription, which ``revise`` makes of the present one."""
        self.own.revise(revise)
        self._rewrite = True

    def advertise(self) -> None:
        """Have the next :meth:`register` write our node again: what it advertises has changed."""
        self._rewrite = True

    def register(self, deadline: Deadline) -> bool:
        """Make our registration, if it does not stand as our session made it. Returns whether it was made.

        Raises: :class:`ConsumerIdInUseError` while a node of another session stands there. It belongs to a second
        process with our ``consumer.id``, or to our own former session, which ends by its timeout. Such a node is never
        adopted: it would vanish under us (KAFKA-1387).
        """
        session_id = self._session.require_id()
        seen = self._cache.look(self._before_registering(), deadline)
        self._examine(seen)
        node = seen.nodes[self.path]
        if node is not None and node.ephemeral_owner == session_id:
            overwritten = bool(self._written) and node.data != self._written
            if overwritten and not self._rewrite:
                log.warning("somebody else wrote our registration %s; making it anew", self.path)
            if not self._rewrite and not overwritten:
                return False
            self._make_anew(node.version, deadline)
            self._cache.look(self._after_registering(), deadline)
            return True
        if node is not None:
            self._clear(node, deadline)
        parent = paths.ids(self.group)
        if seen.nodes.get(parent) is None:
            self._session.ensure([parent], deadline)
        data = node_codecs.encode_registration(self.own())
        self._written = data  # before: it may be made although its answer is lost
        created = self._session.create(self.path, data, deadline, ephemeral=True)
        self._cache.forget([self.path])
        if not created:
            raise ConsumerIdInUseError(f"{self.path} was made by somebody else at the same moment")
        self._rewrite = False
        self._cache.look(self._after_registering(), deadline)
        return True

    def _clear(self, node: Node, deadline: Deadline) -> None:
        """Delete a node in our place that no process uses. Raises as :meth:`register` for any other."""
        if self._session.is_former(node.ephemeral_owner):  # of a session that we gave up ourselves
            self._session.delete(self.path, deadline, node.version)
            return
        if node is FORBIDDEN:
            raise NotPermittedError(f"{self.path}: ZooKeeper does not let us read it; check the node's ACL")
        owner = node.ephemeral_owner
        kind = f"session 0x{owner & (1 << 64) - 1:x}" if owner else "a persistent node"
        raise ConsumerIdInUseError(
            f"{self.path} is held by {kind}: another live member has this consumer.id or group.instance.id, or its "
            "former session has not expired yet"
        )

    def _before_registering(self) -> Look:
        """Return the nodes to read before we register: our node, and the first time its parent."""
        stats = () if self._written else (paths.ids(self.group),)
        return Look(existing=(self.path,), stats=stats)

    def _examine(self, seen: Seen) -> None:
        """Raise if the nodes that were read forbid to register."""

    def _after_registering(self) -> Look:
        """Return the nodes to read once we are registered: our node, to watch it, and those of the next view."""
        registration = self.own()
        if registration.is_wildcard:
            return Look(nodes=(self.path,), children=(paths.TOPICS,))
        topics = []
        for topic in registration.subscription:
            with suppress(ValueError):  # the view reports a name that no node can have
                topics.append(paths.topic(topic))
        return Look(nodes=(self.path, *topics))

    def _make_anew(self, version: int, deadline: Deadline) -> None:
        """Delete and create our node in one transaction, so that nobody sees the group without us.

        Scala members watch which nodes there are, not their content. They would notice a change in place only with the
        next rebalance.
        """
        data = node_codecs.encode_registration(self.own())

        def build(transaction: Transaction) -> None:
            transaction.delete(self.path, version)
            transaction.create(self.path, data, ephemeral=True)

        self._written = data  # before: it may be made although its answer is lost
        failures = [failure for failure in self._session.transact(build, deadline) if failure is not None]
        self._cache.forget([self.path])
        if failures:
            raise RegistryError(f"{self.path} could not be made anew: {failures[0].value}")
        self._rewrite = False

    def renew(self, deadline: Deadline) -> bool:
        """Delete and make our node again, which every member notices. Returns False if the node is not ours now."""
        session_id = self._session.require_id()
        node = self._session.stat([self.path], deadline)[0]
        if node is None or node.ephemeral_owner != session_id:
            return False
        self._make_anew(node.version, deadline)
        with suppress(RegistryError):  # it is done, whatever cannot be looked at now
            self._cache.look(self._after_registering(), deadline)
        return True

    def deregister(self, deadline: Deadline) -> None:
        """Delete our registration, if our session made it."""
        session_id = self._session.require_id()
        node = self._session.stat([self.path], deadline)[0]
        if node is not None and node.ephemeral_owner == session_id:
            self._session.delete(self.path, deadline, node.version)


class GroupReader:
    """A member's view of the group: all registrations, and the partitions of the topics that the members want.

    Argument: ``wants_racks``: the view has the racks of the partitions' leaders.
    """

    def __init__(
        self,
        session: Session,
        cache: NodeCache,
        group: str,
        consumer: ConsumerId,
        *,
        exclude_internal_topics: bool,
        wants_racks: bool = False,
    ) -> None:
        self._session = session
        self._cache = cache
        self._group = group
        self._consumer = consumer
        self._exclude_internal = exclude_internal_topics
        self._racks = LeaderRacks(cache) if wants_racks else None
        self._reported: dict[str, str] = {}
        self._given_up: dict[tuple[str, str], str] = {}
        self._given_up_topics: tuple[str, ...] = ()
        self._given_up_until = 0.0
        self._registrations = DecodedNodes(node_codecs.decode_registration, self._keep_lease)
        self._topics = DecodedNodes(node_codecs.decode_topic)
        self._members: tuple[str, ...] = ()
        self._turn = 0
        self._next_touch = 0.0

    def view(self, deadline: Deadline) -> GroupView:
        """Return the group as it is now: the registrations, and the partitions of every topic that a member wants."""
        names = self._cache.children(paths.ids(self._group), deadline) or ()
        # a member that left between the listing and the reading is None; the watch on the list makes another round
        members = tuple(paths.member(self._group, name) for name in names)
        self._cache.forget(set(self._members).difference(members))  # large groups leave nothing behind
        self._members = members
        # no watch on missing nodes: it would stay until the session's end, because new members have new names
        nodes = self._cache.look(Look(existing=members), deadline).nodes
        registrations, unreadable = self._registrations.of(nodes)
        readable = {_name(path): known for path, known in registrations.items()}
        created = {_name(path): node.czxid for path, node in nodes.items() if node is not None}
        legible = set(readable)
        topics = self._all_topics(readable, unreadable, deadline)
        given_up = self._gave_up_on(topics)
        left_out = failing_filters(readable, topics, self._exclude_internal, given_up, self._keep_lease)
        for consumer, reason in left_out.items():
            unreadable[paths.member(self._group, consumer)] = reason
            del readable[consumer]
        known = GroupView(readable, {}, topics)
        wanted = topics_wanted(threads_of(known, exclude_internal_topics=self._exclude_internal))
        partitions = self._partitions(wanted, unreadable, deadline)
        racks = self._racks.of(partitions, deadline) if self._racks is not None else {}
        kept = self._kept(unreadable, partitions, deadline)
        doubtful = frozenset(legible - readable.keys())
        view = GroupView(readable, partitions, topics, unreadable, racks, kept, created, doubtful)
        self._report(unreadable)
        return view

    def _keep_lease(self) -> None:
        """Renew the lease while a large group is read; otherwise our streams would stand still for that time."""
        now = monotonic()
        if now >= self._next_touch:
            self._next_touch = now + self._session.timeout / 6
            self._session.touch()

    def _all_topics(
        self, members: dict[ConsumerId, Registration], unreadable: dict[str, str], deadline: Deadline
    ) -> tuple[str, ...]:
        """Return the names of all topics, if any member subscribes by filter.

        If we may not list topics, we cannot know what those members want. Then they count as unreadable, so that
        members that subscribe by name go on.
        """
        by_filter = [consumer for consumer, registration in members.items() if registration.is_wildcard]
        if not by_filter:
            return ()
        try:
            return tuple(sorted(self._cache.children(paths.TOPICS, deadline) or ()))
        except NotPermittedError as e:
            if self._consumer in by_filter:
                raise
            for consumer in by_filter:
                unreadable[paths.member(self._group, consumer)] = str(e)
                del members[consumer]
            return ()

    def forget_view(self) -> None:
        """Read everything again: watches do not survive a connection."""
        self._cache.refresh()

    def doubt_view(self) -> None:
        """Read everything again but the registrations of other members; of these a few, in turn.

        This is against a watch that was lost for no known reason. If every member read all registrations each time,
        that alone would be members times members requests.
        """
        own = paths.member(self._group, self._consumer)
        others = sorted(path for path in self._members if path != own)
        in_turn = {others[(self._turn + n) % len(others)] for n in range(min(DOUBTED, len(others)))}
        self._turn += DOUBTED
        self._cache.refresh(but=set(others) - in_turn)

    def _partitions(
        self, topics: frozenset[str], unreadable: dict[str, str], deadline: Deadline
    ) -> Mapping[str, tuple[int, ...]]:
        by_path = {}
        for topic in sorted(topics):
            try:
                by_path[paths.topic(topic)] = topic
            except ValueError as e:
                unreadable[f"{paths.TOPICS}/{topic!r}"] = str(e)
        partitions, reasons = self._topics.of(self._cache.nodes(by_path, deadline))
        unreadable.update(reasons)
        return {by_path[path]: numbers for path, numbers in partitions.items()}

    def _kept(
        self, unreadable: Mapping[str, str], partitions: Mapping[str, tuple[int, ...]], deadline: Deadline
    ) -> Mapping[TopicPartition, ThreadId]:
        """Return the partitions that threads of unreadable members own: those may well be alive and read them."""
        consumers = {path.rpartition("/")[2] for path in unreadable if path.startswith(f"{paths.ids(self._group)}/")}
        if not consumers:
            return {}
        by_path = {
            paths.owner(self._group, tp): tp
            for topic, numbers in partitions.items()
            for tp in (TopicPartition(topic, number) for number in numbers)
        }
        kept = {}
        for path, node in self._cache.nodes(by_path, deadline).items():
            try:
                thread = ThreadId("") if node is None else node_codecs.decode_owner(node.data, path)
            except MalformedNodeError:
                continue  # nobody can tell the owner; a member that wants the partition finds it held
            if thread.rpartition("-")[0] in consumers:
                kept[by_path[path]] = thread
        return kept

    def _gave_up_on(self, topics: tuple[str, ...]) -> dict[tuple[str, str], str]:
        """Return the expressions that took too long over these topics; forget them after a while."""
        now = monotonic()
        if topics != self._given_up_topics or now >= self._given_up_until:
            self._given_up = {}
            self._given_up_topics, self._given_up_until = topics, now + GIVEN_UP_FOR
        return self._given_up

    def _report(self, unreadable: Mapping[str, str]) -> None:
        new = [path for path, reason in unreadable.items() if self._reported.get(path) != reason]
        for path in new[:REPORTED_AT_ONCE]:
            log.warning("%s cannot be read (%s); the group is computed without it", path, unreadable[path])
        if len(new) > REPORTED_AT_ONCE:
            log.warning("%d more nodes cannot be read, %s the last of them", len(new) - REPORTED_AT_ONCE, new[-1])
        self._reported = dict(unreadable)


def _name(path: str) -> ConsumerId:
    return ConsumerId(path.rpartition("/")[2])
