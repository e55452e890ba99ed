"""Claiming and releasing partitions by their owner nodes, and reading owners and offsets.

Called by the group thread only. Claims and releases are fenced: see ``zookeeper.ownership_transactions``. The session
that made an owner node decides whose it is, never its content. The original takes every node with its thread id for its
own, even a node of a former session, which vanishes a moment later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zkconsumer.core.message_pointers import encode_pointers
from zkconsumer.errors import MalformedNodeError, NotPermittedError, RegistryError
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, ownership_transactions, paths
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import FORBIDDEN, Look, Node, Seen
from zkconsumer.zookeeper.note_nodes import (
    NO_ACKS,
    AckWrite,
    KnownAcks,
    after_recreation,
    is_of_earlier_topic,
    known_acks,
)
from zkconsumer.zookeeper.ownership_transactions import ABSENT, Claim, ClaimSessions, Commit, KnownOffset, Outcome
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

_ROUNDS = 5
MOST_SHOWN = 200
"""Bytes of an owner node's content in a state or a log; it may hold anything."""
_UNKNOWN = Node(b"", 0, 0, 0, 0)


@dataclass(slots=True)
class Claimed:
    """The outcome of claiming.

    ``ours`` are the claimed partitions with their offset nodes, ``blocked`` the others with the reason. Of the blocked
    ones, ``held`` have owner nodes, and ``refused`` are of topics whose directories we may not make. ``recreated`` are
    claimed partitions whose topic is younger than their offset, with that offset.
    """

    ours: dict[TopicPartition, KnownOffset] = field(default_factory=dict)
    blocked: dict[TopicPartition, str] = field(default_factory=dict)
    held: set[TopicPartition] = field(default_factory=set)
    refused: dict[TopicPartition, NotPermittedError] = field(default_factory=dict)
    recreated: dict[TopicPartition, int] = field(default_factory=dict)


NOTHING = Seen()


class OwnerNodes:
    """The owner nodes of a group, with one session's reads and writes."""

    def __init__(
        self,
        session: Session,
        cache: NodeCache,
        group: str,
        *,
        reads_offsets: bool = True,
        balanced: Callable[[], bool] = lambda: False,
        by_key: Callable[[], bool] = lambda: True,
    ) -> None:
        """``reads_offsets`` False: offsets are kept elsewhere only, so the offset nodes do not matter.

        ``balanced`` says whether this member finishes messages in any order. Then a claim reads their notes and keeps
        them valid. A claim of another member makes them void. ``by_key`` says whether slots follow from keys.
        """
        self._by_key = by_key
        self._balanced = balanced
        self._session = session
        self._reads_offsets = reads_offsets
        self._cache = cache
        self._group = group
        self._parents: set[str] = set()
        self._refused: dict[str, NotPermittedError] = {}
        self._unreadable: dict[TopicPartition, str] = {}
        self._stuck: set[TopicPartition] = set()
        self._claims = ClaimSessions(session)
        self._unkept: set[TopicPartition] = set()
        """Partitions whose notes could not be written with a claim, so that they are claimed without them."""
        self._doubtful: set[TopicPartition] = set()
        """Partitions that we do not own and whose nodes may be ours, after a request whose answer was lost."""

    def _path(self, tp: TopicPartition) -> str:
        return paths.owner(self._group, tp)

    def keep_alive(self) -> None:
        """Renew the lease of the session; return at once."""
        self._session.touch()

    def doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that these are ours no longer, though their nodes may stand as long as our session."""
        self._doubtful.update(partitions)

    def sweep(self, wanted: Collection[TopicPartition], deadline: Deadline) -> None:
        """Delete our owner nodes of partitions that are not ``wanted``. An interrupted round left them behind.

        Wanted ones stay in doubt until they are claimed, because a newer event may end the round before that.
        """
        stray = self._doubtful.difference(wanted)
        if stray:
            self.release({}, deadline, stray)
        self._doubtful.intersection_update(wanted)

    def mine(self, partitions: Collection[TopicPartition], deadline: Deadline) -> frozenset[TopicPartition]:
        """Return the partitions whose owner nodes our session made and no other client changed. Watch all of them."""
        ours = self._session.require_id()
        nodes = self._cache.nodes([self._path(tp) for tp in partitions], deadline)
        return frozenset(
            tp
            for tp in partitions
            if (node := nodes[self._path(tp)]) is not None
            and node.ephemeral_owner == ours
            and node.version == ownership_transactions.OWNER_VERSION
        )

    def standing(self, partitions: Collection[TopicPartition], deadline: Deadline) -> frozenset[TopicPartition]:
        """Return the partitions whose owner node our session made, even if somebody changed it since."""
        wanted, ours = list(partitions), self._session.require_id()
        nodes = self._session.stat([self._path(tp) for tp in wanted], deadline)
        return frozenset(
            tp for tp, node in zip(wanted, nodes, strict=True) if node is not None and node.ephemeral_owner == ours
        )

    def free(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions that had no owner node when :meth:`mine` looked. Sends no request."""
        known = self._cache.known([self._path(tp) for tp in partitions])
        return frozenset(tp for tp in partitions if known.get(self._path(tp), _UNKNOWN) is None)

    def claim(self, wanted: Mapping[TopicPartition, ThreadId], deadline: Deadline, ahead: Seen = NOTHING) -> Claimed:
        """Claim the free partitions of ``wanted``.

        :meth:`mine` must then watch all of them. So a release by another member wakes us, and we notice every change of
        our own nodes. If nobody else wants the partitions, it takes two round trips: all nodes are read together, and
        the claim names the versions that were read. Nodes seen ``ahead`` (by :meth:`look`) are not read again.
        """
        result = Claimed()
        self._doubtful.update(wanted)
        session_id = self._session.require_id()
        believed = {tp for tp in wanted if self._cache.stands(self._path(tp))}
        rest = self.look([tp for tp in wanted if self._path(tp) not in ahead.nodes], deadline)
        seen = Seen({**ahead.nodes, **rest.nodes})
        free: dict[TopicPartition, ThreadId] = {}
        for tp, thread in wanted.items():
            node = seen.nodes[self._path(tp)]
            if node is None:
                free[tp] = thread
            elif node.ephemeral_owner == session_id or self._session.is_former(node.ephemeral_owner):
                # of our own session, from a claim whose answer was lost: begin again, so that its version is ours. Or
                # of a session that we gave up ourselves, with everything that it owned
                self._delete(tp, node.version, deadline)
                free[tp] = thread
            else:
                result.blocked[tp] = _owner(node)
                result.held.add(tp)
        for first in (True, *(_ROUNDS - 1) * (False,)):
            if not free:
                break
            offsets = self._offsets(list(free), seen if first else Seen(), result, deadline)
            self._claim_free(free, offsets, result, deadline)
        result.blocked.update((tp, "its nodes keep changing") for tp in free)
        # read all again later, except nodes of others that were just read with a watch (a believed watch may be lost)
        fresh = {tp for tp in result.held - believed if seen.nodes[self._path(tp)] not in (None, FORBIDDEN)}
        self._cache.forget([self._path(tp) for tp in wanted if tp not in fresh])
        self._doubtful.difference_update(wanted)
        return result

    def look(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Seen:
        """Read the nodes that a claim needs.

        They are the owner nodes, parents that may be missing, and the offset nodes of partitions that seem to be free.
        """
        owners = {tp: self._path(tp) for tp in partitions}
        offsets = [paths.offset(self._group, tp) for tp, path in owners.items() if not self._cache.stands(path)]
        if self._balanced():
            # after the offsets: a note that is written meanwhile comes with another offset, and the claim sees that
            free = [tp for tp, path in owners.items() if not self._cache.stands(path)]
            offsets += [path for tp in free for path in self._ack_paths(tp)]
        missing = self._parents_in_doubt(owners)
        wanted = Look(existing=list(owners.values()), plain=offsets, stats=missing)
        seen = self._cache.look(wanted, deadline, believing=True)  # a claim fails where that is not so any more
        self._parents.update(path for path in missing if seen.nodes[path] is not None)
        return seen

    def _ack_paths(self, tp: TopicPartition) -> tuple[str, str]:
        return paths.ack(self._group, tp), paths.pointers(self._group, tp)

    def _claim_free(
        self,
        free: dict[TopicPartition, ThreadId],
        offsets: Mapping[TopicPartition, KnownOffset],
        result: Claimed,
        deadline: Deadline,
    ) -> None:
        self._ensure_parents(free, result, deadline)
        for tp in [tp for tp in free if tp in result.blocked]:
            del free[tp]
        offsets = {tp: _without_acks(known) if tp in self._unkept else known for tp, known in offsets.items()}
        claims = [Claim(tp, thread, offsets[tp], _kept(offsets[tp])) for tp, thread in free.items()]
        self._claims.claiming(free)
        for tp, outcome in ownership_transactions.claim(self._session, self._group, claims, deadline).items():
            if outcome is Outcome.DONE:
                result.ours[tp] = _claimed(offsets[tp])
                self._unkept.discard(tp)
            elif outcome is Outcome.OWNED:
                result.blocked[tp] = "another member, just now"
                result.held.add(tp)
            elif outcome is Outcome.REFUSED:
                result.blocked[tp] = f"{self._path(tp)}: {outcome.value}"
            else:
                if outcome is Outcome.NO_PARENT:
                    self._parents.clear()
                if outcome in (Outcome.NOTE_FAILED, Outcome.POINTERS_MOVED):
                    log.warning(
                        "%s is claimed without its note, so some messages may be repeated: %s", tp, outcome.value
                    )
                    self._unkept.add(tp)
                continue  # the offset moved, or a parent vanished: read again
            del free[tp]

    def _ensure_parents(self, partitions: Collection[TopicPartition], result: Claimed, deadline: Deadline) -> None:
        """Make missing directories of topics. A directory that we may not make blocks only its topic."""
        missing = self._parents_in_doubt(partitions)
        refused = self._made(missing, deadline)
        for tp in partitions if refused else ():
            directories = (paths.owner_topic(self._group, tp.topic), paths.offset_topic(self._group, tp.topic))
            for path in directories:
                if path in refused:
                    result.refused[tp] = refused[path]
                    result.blocked[tp] = str(refused[path])

    def _made(self, missing: Sequence[str], deadline: Deadline) -> Mapping[str, NotPermittedError]:
        """Create these nodes. Return the nodes that this member has no permission to create."""
        refused = self._session.ensure_each(missing, deadline) if missing else {}
        new = [str(error) for path, error in refused.items() if path not in self._refused]
        if new:  # once, not at every try
            more = f", and {len(new) - 1} more like it" if len(new) > 1 else ""
            log.error("partitions are not claimed: %s%s", new[0], more)
        for path in missing:
            self._refused.pop(path, None)
        self._refused.update(refused)
        self._parents.update(missing)
        self._parents.difference_update(refused)  # a deleted one that we may not make again seemed to stand
        return refused

    def _parents_in_doubt(self, partitions: Iterable[TopicPartition]) -> list[str]:
        needed = set()
        for topic in {tp.topic for tp in partitions}:
            needed |= {paths.owner_topic(self._group, topic), paths.offset_topic(self._group, topic)}
        return sorted(needed - self._parents)

    def _offsets(
        self,
        partitions: Sequence[TopicPartition],
        seen: Seen,
        result: Claimed,
        deadline: Deadline,
        *,
        recreated: bool = False,
    ) -> dict[TopicPartition, KnownOffset]:
        """Return the offset nodes; read those that are not ``seen``.

        ``recreated``: the topics were made anew, whatever the nodes tell. An unreadable node blocks its partition,
        for an offset is never guessed.
        """
        found: dict[TopicPartition, KnownOffset] = {}
        by_path = {paths.offset(self._group, tp): tp for tp in partitions}
        acks = [path for tp in partitions for path in self._ack_paths(tp)] if self._balanced() else []
        unseen = [path for path in (*by_path, *acks) if path not in seen.nodes]
        nodes = {**seen.nodes, **dict(zip(unseen, self._session.read(unseen, deadline), strict=True))}
        for path, tp in by_path.items():
            node = nodes[path]
            if node is None:
                found[tp] = replace(ABSENT, acks=self._acks(tp, None, None, nodes, anew=recreated))
                continue
            try:
                offset = node_codecs.decode_offset(node.data, path)
                result.recreated.pop(tp, None)
                if self._reads_offsets and offset > 0 and self._is_of_another_topic(tp, node):
                    # the claim writes the node, so the next owner could not see this any more
                    result.recreated[tp], offset = offset, 0
                anew = recreated or tp in result.recreated
                found[tp] = KnownOffset(offset, node.version, self._acks(tp, node, offset, nodes, anew=anew))
            except MalformedNodeError as e:
                if not self._reads_offsets:
                    found[tp] = replace(ABSENT, acks=self._acks(tp, None, None, nodes, anew=recreated))
                    continue
                # log it once, not at every look
                level = logging.DEBUG if self._unreadable.get(tp) == str(e) else logging.ERROR
                log.log(level, "%s is not claimed: %s; write a number, or delete the node for auto.offset.reset", tp, e)
                self._unreadable[tp] = result.blocked[tp] = str(e)
        return found

    def _acks(
        self,
        tp: TopicPartition,
        offset: Node | None,
        start: int | None,
        nodes: Mapping[str, Node | None],
        *,
        anew: bool = False,
    ) -> KnownAcks | None:
        """Return the note and the pointers of a partition; None if this member does not use them.

        ``anew``: the topic was made anew, so that note and pointers name deleted messages. The node of pointers tells
        that as well, also where offsets are kept elsewhere, or somebody else has written the offset since.
        """
        if not self._balanced():
            return None
        note, pointers = self._ack_paths(tp)
        known = known_acks(pointers, offset, start, nodes[note], nodes[pointers])
        if known.note is not None:
            known = replace(known, note=known.note.for_slots(by_key=self._by_key()))
        if known.trouble:
            log.error("%s parks no messages and keeps no dead letters: %s", tp, known.trouble)
        if anew:
            known = replace(known, note=None, note_data=b"")
        if anew or self._is_of_another_topic(tp, nodes[pointers]):
            known = after_recreation(known, self._topics([tp]).get(tp))
        if known.outdated:
            log.warning(
                "%s: its topic was deleted and made anew; %d parked messages and dead letters of it are no longer in"
                " the log, see 'zkconsumer dead list'",
                tp,
                sum(one.lost_ms > 0 for one in known.pointers.values()),
            )
        return known

    def _is_of_another_topic(self, tp: TopicPartition, node: Node | None) -> bool:
        """Return whether a node of the partition is older than the topic."""
        return is_of_earlier_topic(node, self._topics([tp]).get(tp))

    def topics_made(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ZooKeeper transaction number that created each topic, if known. Sends no request."""
        known = self._topics(partitions)
        return {tp: node.czxid for tp, node in known.items() if node is not None and node is not FORBIDDEN}

    def topics_deleted(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions whose topic did not exist at the last look at the group. Sends no request."""
        return frozenset(tp for tp, node in self._topics(partitions).items() if node is None)

    def _topics(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Node | None]:
        by_partition = {tp: paths.topic(tp.topic) for tp in partitions}
        known = self._cache.known(set(by_partition.values()))
        return {tp: known[path] for tp, path in by_partition.items() if path in known}

    def reread(
        self, partitions: Sequence[TopicPartition], deadline: Deadline, *, recreated: bool = False
    ) -> Mapping[TopicPartition, KnownOffset]:
        """Read the offset nodes of owned partitions again, and make missing parents, so that nodes can be made again.

        ``recreated``: the topics were made anew, perhaps before our own last commit. Left out are unreadable nodes
        (logged), and missing ones whose parent we may not make. Raises RegistryError.
        """
        known = self._offsets(partitions, Seen(), Claimed(), deadline, recreated=recreated)
        parents = {
            tp: paths.offset_topic(self._group, tp.topic) for tp, offset in known.items() if offset.version is None
        }
        refused = self._made(sorted(set(parents.values())), deadline)
        return {tp: offset for tp, offset in known.items() if parents.get(tp) not in refused}

    def _delete(self, tp: TopicPartition, version: int, deadline: Deadline) -> None:
        """Delete an owner node of ours. If we may not, it ends with our session and must not stop everything else."""
        try:
            self._session.delete(self._path(tp), deadline, version)
            self._stuck.discard(tp)
        except NotPermittedError as e:
            log.log(logging.DEBUG if tp in self._stuck else logging.ERROR, "%s cannot be released: %s", tp, e)
            self._stuck.add(tp)

    def release(
        self,
        known: Mapping[TopicPartition, KnownOffset | None],
        deadline: Deadline,
        doubtful: Collection[TopicPartition] = (),
    ) -> None:
        """Delete our owner nodes, and nobody else's.

        Arguments: ``known`` are the offset nodes as last seen; None: this partition was released with its last commit.
        ``doubtful`` partitions may be released already, so their owner nodes are read first.
        """
        commits = [
            Commit(tp, None, offset)
            for tp, offset in known.items()
            if offset is not None and not self._claims.ended(tp)
        ]
        try:
            session_id = self._session.require_id()
            if doubtful:
                commits += [Commit(tp, None, ABSENT) for tp in self.standing(doubtful, deadline)]
            outcomes = ownership_transactions.release(self._session, self._group, commits, deadline)
            # somebody wrote the offset or our node meanwhile, so versions prove nothing: look whose node it is
            refused = [tp for tp, outcome in outcomes.items() if outcome is not Outcome.DONE]
            nodes = self._session.stat([self._path(tp) for tp in refused], deadline) if refused else []
            for tp, node in zip(refused, nodes, strict=True):
                if node is not None and node.ephemeral_owner == session_id:
                    self._delete(tp, node.version, deadline)
            self._doubtful.difference_update(known, doubtful)
        finally:
            self._cache.forget([self._path(tp) for tp in (*known, *doubtful)])


class LookAhead:
    """A look at partitions to claim whose owner has left the group, while our last commit is waited for.

    Nobody can hold them any more, so the look need not wait for the commit. The claim itself finds later changes. Each
    look renews the lease.
    """

    def __init__(self, owner_nodes: OwnerNodes, partitions: Collection[TopicPartition]) -> None:
        self._owner_nodes = owner_nodes
        self._left = partitions
        self.seen = NOTHING

    def look(self, deadline: Deadline) -> None:
        """Look once; the claim asks again for a failed look."""
        self._owner_nodes.keep_alive()
        partitions, self._left = self._left, ()
        if partitions:
            try:
                self.seen = self._owner_nodes.look(partitions, deadline)
            except RegistryError as e:
                log.debug("partitions to claim could not be looked at ahead: %s", e)


def _kept(known: KnownOffset) -> AckWrite:
    """Return a claim's writes beside the offset: the same note, so that it stays valid, and pointers if outdated."""
    acks = known.acks
    if acks is None:
        return NO_ACKS
    note = acks.note_data if acks.note is not None else None
    pointers = encode_pointers(acks.pointers.values()) if acks.outdated else None
    return AckWrite(note, acks.has_note, pointers, acks.version)


def _without_acks(known: KnownOffset) -> KnownOffset:
    acks = known.acks
    if acks is None:
        return known
    trouble = "the pointers to messages of a deleted topic cannot be written" if acks.outdated else acks.trouble
    return replace(known, acks=replace(acks, note=None, note_data=b"", outdated=False, trouble=trouble))


def _claimed(known: KnownOffset) -> KnownOffset:
    """Return what is known after the claim."""
    acks = known.acks
    if acks is not None and acks.outdated and acks.version is not None:
        acks = replace(acks, version=acks.version + 1, outdated=False)
    return KnownOffset(known.offset, None if known.version is None else known.version + 1, acks)


def _owner(node: Node) -> str:
    if node is FORBIDDEN:
        return "a node that ZooKeeper does not let us read"
    text = node.data[:MOST_SHOWN].decode("utf-8", "replace")
    name = (text if text.isprintable() else repr(text)) or "(empty)"
    name += "..." if len(node.data) > MOST_SHOWN else ""
    if node.ephemeral_owner == 0:
        return f"{name} (a persistent node, left by some tool)"
    return f"{name} (session 0x{node.ephemeral_owner & (1 << 64) - 1:x})"
