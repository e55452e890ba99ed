"""Claiming and releasing partitions, and seeing who owns what.

Called by the group's thread only. Claims and releases are fenced (``zookeeper.fenced_writes``). Whose an owner node
is, is decided by the session that made it and never by its content: the original takes a node with its own thread id
for its own, also when it is left over from its former session and vanishes a moment later.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zkconsumer.deadline import Deadline
from zkconsumer.errors import MalformedNodeError, NotPermittedError, RegistryError
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.zookeeper import fenced_writes, node_codecs, paths
from zkconsumer.zookeeper.fenced_writes import ABSENT, Claim, ClaimSessions, Commit, KnownOffset, Outcome
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import FORBIDDEN, Look, Node, Seen
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

_ROUNDS = 5
MOST_SHOWN = 200
"""Bytes of an owner node's content in a state or a log; it may hold anything."""
_UNKNOWN = Node(b"", 0, 0, 0, 0)


@dataclass(slots=True)
class Claimed:
    """The outcome of claiming: what is ours now with its offset node, and what is not, with the reason; ``held`` are
    those of the latter that have owner nodes, ``refused`` those whose topic's directories we may not make.
    ``recreated`` are those of ours whose topic was made after their offset was written, with that offset.
    """

    ours: dict[TopicPartition, KnownOffset] = field(default_factory=dict)
    blocked: dict[TopicPartition, str] = field(default_factory=dict)
    held: set[TopicPartition] = field(default_factory=set)
    refused: dict[TopicPartition, NotPermittedError] = field(default_factory=dict)
    recreated: dict[TopicPartition, int] = field(default_factory=dict)


NOTHING = Seen()


class OwnerNodes:
    """The owner nodes of one group, as one session may touch them."""

    def __init__(self, session: Session, cache: NodeCache, group: str, *, reads_offsets: bool = True) -> None:
        """``reads_offsets`` False: offsets are kept elsewhere only, so what the offset nodes say does not matter."""
        self._session = session
        self._reads_offsets = reads_offsets
        self._cache = cache
        self._group = group
        self._parents: set[str] = set()
        self._refused: dict[str, NotPermittedError] = {}
        self._unreadable: dict[TopicPartition, str] = {}
        self._stuck: set[TopicPartition] = set()
        self._claims = ClaimSessions(session)
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
        """Delete nodes of ours that an interrupted round left behind, of partitions that are not ``wanted``."""
        stray = self._doubtful.difference(wanted)
        if stray:
            self.release({}, deadline, stray)
        self._doubtful.clear()

    def mine(self, partitions: Collection[TopicPartition], deadline: Deadline) -> frozenset[TopicPartition]:
        """Those of ``partitions`` whose owner node was made by our session and is as we made it; each is watched."""
        nodes = self._cache.nodes([self._path(tp) for tp in partitions], deadline)
        ours = self._session.session_id
        return frozenset(
            tp
            for tp in partitions
            if (node := nodes[self._path(tp)]) is not None
            and node.ephemeral_owner == ours
            and node.version == fenced_writes.OWNER_VERSION
        )

    def standing(self, partitions: Collection[TopicPartition], deadline: Deadline) -> frozenset[TopicPartition]:
        """Those of ``partitions`` whose owner node was made by our session, whatever became of it since."""
        wanted = list(partitions)
        nodes = self._session.stat([self._path(tp) for tp in wanted], deadline)
        ours = self._session.session_id
        return frozenset(
            tp for tp, node in zip(wanted, nodes, strict=True) if node is not None and node.ephemeral_owner == ours
        )

    def free(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those that had no owner node when :meth:`mine` looked. Asks nothing."""
        known = self._cache.known([self._path(tp) for tp in partitions])
        return frozenset(tp for tp in partitions if known.get(self._path(tp), _UNKNOWN) is None)

    def claim(self, wanted: Mapping[TopicPartition, ThreadId], deadline: Deadline, ahead: Seen = NOTHING) -> Claimed:
        """Claim what is free of ``wanted``; :meth:`mine` then leaves watches on all of it, so that the release of what
        another member owns wakes us, and nothing that is done to our nodes goes unnoticed.

        Two round trips where nobody else wants it: whatever is to be known of the nodes is read together, and the claim
        names the versions that were read. What was seen of them ``ahead`` (by :meth:`look`) is not read again.
        """
        result = Claimed()
        self._doubtful.update(wanted)
        believed = {tp for tp in wanted if self._cache.stands(self._path(tp))}
        rest = self.look([tp for tp in wanted if self._path(tp) not in ahead.nodes], deadline)
        seen = Seen({**ahead.nodes, **rest.nodes})
        free: dict[TopicPartition, ThreadId] = {}
        for tp, thread in wanted.items():
            node = seen.nodes[self._path(tp)]
            if node is None:
                free[tp] = thread
            elif node.ephemeral_owner == self._session.session_id or self._session.is_former(node.ephemeral_owner):
                # of our own session, from a claim whose answer was lost: begin again, so that its version is ours; or
                # of one that we gave up ourselves, and dropped all it owned
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
        # all is to be read afterwards, but others' that were read just now, with a watch (a believed one may be lost)
        fresh = {tp for tp in result.held - believed if seen.nodes[self._path(tp)] not in (None, FORBIDDEN)}
        self._cache.forget([self._path(tp) for tp in wanted if tp not in fresh])
        self._doubtful.difference_update(wanted)
        return result

    def look(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Seen:
        """What is to be known of partitions to claim them: owner nodes, the offset nodes of what is not believed to be
        held, and parents that may be missing.
        """
        owners = {tp: self._path(tp) for tp in partitions}
        offsets = [paths.offset(self._group, tp) for tp, path in owners.items() if not self._cache.stands(path)]
        missing = self._parents_in_doubt(owners)
        wanted = Look(existing=list(owners.values()), plain=offsets, stats=missing)
        seen = self._cache.look(wanted, deadline, believing=True)  # a claim fails where that is not so any more
        self._parents.update(path for path in missing if seen.nodes[path] is not None)
        return seen

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
        claims = [Claim(tp, thread, offsets[tp]) for tp, thread in free.items()]
        self._claims.claiming(free)
        for tp, outcome in fenced_writes.claim(self._session, self._group, claims, deadline).items():
            if outcome is Outcome.DONE:
                version = offsets[tp].version
                result.ours[tp] = offsets[tp] if version is None else KnownOffset(offsets[tp].offset, version + 1)
            elif outcome is Outcome.OWNED:
                result.blocked[tp] = "another member, just now"
                result.held.add(tp)
            elif outcome is Outcome.REFUSED:
                result.blocked[tp] = f"{self._path(tp)}: {outcome.value}"
            else:
                if outcome is Outcome.NO_PARENT:
                    self._parents.clear()
                continue  # the offset moved, or a parent vanished: read again
            del free[tp]

    def _ensure_parents(self, partitions: Collection[TopicPartition], result: Claimed, deadline: Deadline) -> None:
        """Make the directories of topics where they are missing; one that we may not make blocks its topic alone."""
        missing = self._parents_in_doubt(partitions)
        refused = self._made(missing, deadline)
        for tp in partitions if refused else ():
            directories = (paths.owner_topic(self._group, tp.topic), paths.offset_topic(self._group, tp.topic))
            for path in directories:
                if path in refused:
                    result.refused[tp] = refused[path]
                    result.blocked[tp] = str(refused[path])

    def _made(self, missing: Sequence[str], deadline: Deadline) -> Mapping[str, NotPermittedError]:
        """Make these nodes; returns those that we may not make."""
        refused = self._session.ensure_each(missing, deadline) if missing else {}
        new = [str(error) for path, error in refused.items() if path not in self._refused]
        if new:  # once, not at every try
            more = f", and {len(new) - 1} more like it" if len(new) > 1 else ""
            log.error("partitions are not claimed: %s%s", new[0], more)
        for path in missing:
            self._refused.pop(path, None)
        self._refused.update(refused)
        self._parents.update(missing)
        self._parents.difference_update(refused)  # one that was deleted and may not be made again was believed to stand
        return refused

    def _parents_in_doubt(self, partitions: Iterable[TopicPartition]) -> list[str]:
        needed = set()
        for topic in {tp.topic for tp in partitions}:
            needed |= {paths.owner_topic(self._group, topic), paths.offset_topic(self._group, topic)}
        return sorted(needed - self._parents)

    def _offsets(
        self, partitions: Sequence[TopicPartition], seen: Seen, result: Claimed, deadline: Deadline
    ) -> dict[TopicPartition, KnownOffset]:
        """The offset nodes, as far as they are not ``seen``; an unreadable one blocks its partition, for an offset is
        never guessed.
        """
        found: dict[TopicPartition, KnownOffset] = {}
        by_path = {paths.offset(self._group, tp): tp for tp in partitions}
        unseen = [path for path in by_path if path not in seen.nodes]
        nodes = {**seen.nodes, **dict(zip(unseen, self._session.read(unseen, deadline), strict=True))}
        for path, tp in by_path.items():
            node = nodes[path]
            if node is None:
                found[tp] = ABSENT
                continue
            try:
                offset = node_codecs.decode_offset(node.data, path)
                result.recreated.pop(tp, None)
                if self._reads_offsets and offset > 0 and self._is_of_another_topic(tp, node):
                    # the claim writes this: the next owner could not see it any more
                    result.recreated[tp], offset = offset, 0
                found[tp] = KnownOffset(offset, node.version)
            except MalformedNodeError as e:
                if not self._reads_offsets:
                    found[tp] = ABSENT
                    continue
                # once, not at every look at it
                level = logging.DEBUG if self._unreadable.get(tp) == str(e) else logging.ERROR
                log.log(level, "%s is not claimed: %s; write a number, or delete the node for auto.offset.reset", tp, e)
                self._unreadable[tp] = result.blocked[tp] = str(e)
        return found

    def _is_of_another_topic(self, tp: TopicPartition, offset: Node) -> bool:
        """Whether an offset node was written before the topic was made that is there now. ZooKeeper numbers all changes
        one after the other, so no clock takes part (times of creation and change would say the same).
        """
        made = self.topics_made([tp]).get(tp)
        return made is not None and made > offset.mzxid >= 0

    def topics_made(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The number of the change that made each one's topic, as far as it is known. Asks nothing."""
        known = self._topics(partitions)
        return {tp: node.czxid for tp, node in known.items() if node is not None and node is not FORBIDDEN}

    def topics_deleted(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Those whose topic was not there when the group was looked at. Asks nothing."""
        return frozenset(tp for tp, node in self._topics(partitions).items() if node is None)

    def _topics(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Node | None]:
        by_partition = {tp: paths.topic(tp.topic) for tp in partitions}
        known = self._cache.known(set(by_partition.values()))
        return {tp: known[path] for tp, path in by_partition.items() if path in known}

    def reread(self, partitions: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, KnownOffset]:
        """The offset nodes of partitions we own, but of those where it is unreadable (logged). Of those that have none
        the parents stand afterwards, or the nodes could never be made again: one that has none, and whose parent we may
        not make, is left out as well. Raises RegistryError.
        """
        known = self._offsets(partitions, Seen(), Claimed(), deadline)
        parents = {
            tp: paths.offset_topic(self._group, tp.topic) for tp, offset in known.items() if offset.version is None
        }
        refused = self._made(sorted(set(parents.values())), deadline)
        return {tp: offset for tp, offset in known.items() if parents.get(tp) not in refused}

    def _delete(self, tp: TopicPartition, version: int, deadline: Deadline) -> None:
        """Delete an owner node of ours. One that may not be deleted ends with our session; it must not keep us from all
        else.
        """
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
        """Delete our owner nodes, and nobody else's. ``known`` are the offset nodes as we last saw them; None: this one
        was released with its last commit. ``doubtful`` ones may be released already, so whose they are is looked up.
        """
        commits = [
            Commit(tp, None, offset)
            for tp, offset in known.items()
            if offset is not None and not self._claims.ended(tp)
        ]
        try:
            if doubtful:
                commits += [Commit(tp, None, ABSENT) for tp in self.standing(doubtful, deadline)]
            outcomes = fenced_writes.release(self._session, self._group, commits, deadline)
            # somebody wrote the offset meanwhile, or into our node, so versions prove nothing: look whose node it is
            refused = [tp for tp, outcome in outcomes.items() if outcome is not Outcome.DONE]
            nodes = self._session.stat([self._path(tp) for tp in refused], deadline) if refused else []
            for tp, node in zip(refused, nodes, strict=True):
                if node is not None and node.ephemeral_owner == self._session.session_id:
                    self._delete(tp, node.version, deadline)
            self._doubtful.difference_update(known, doubtful)
        finally:
            self._cache.forget([self._path(tp) for tp in (*known, *doubtful)])


class LookAhead:
    """A look at partitions that nobody can hold any more (their owner has left the group), while we wait for our last
    commit: it needs none of that to have happened. Whatever changes after it the claim itself finds.

    It renews the lease each time.
    """

    def __init__(self, owner_nodes: OwnerNodes, partitions: Collection[TopicPartition]) -> None:
        self._owner_nodes = owner_nodes
        self._left = partitions
        self.seen = NOTHING

    def look(self, deadline: Deadline) -> None:
        """Look once; what fails here is asked again with the claim."""
        self._owner_nodes.keep_alive()
        partitions, self._left = self._left, ()
        if partitions:
            try:
                self.seen = self._owner_nodes.look(partitions, deadline)
            except RegistryError as e:
                log.debug("what comes could not be looked at ahead: %s", e)


def _owner(node: Node) -> str:
    if node is FORBIDDEN:
        return "a node that ZooKeeper does not let us read"
    text = node.data[:MOST_SHOWN].decode("utf-8", "replace")
    name = (text if text.isprintable() else repr(text)) or "(empty)"
    name += "..." if len(node.data) > MOST_SHOWN else ""
    if node.ephemeral_owner == 0:
        return f"{name} (a persistent node, left by some tool)"
    return f"{name} (session 0x{node.ephemeral_owner & (1 << 64) - 1:x})"
