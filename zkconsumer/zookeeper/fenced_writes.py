"""Claims, commits and releases that ZooKeeper itself refuses to a member that no longer owns the partition.

An owner node of ours has data version 1, since the transaction that creates it writes it once more. The owner node of a
Scala member has version 0. Every claim of ours also writes the offset node, so that its version moves on. A commit
checks the owner node's version and names the offset node's. So a member that lost the partition, to one of ours or to a
Scala member, is refused and has written nothing. A release checks the same, so that it deletes no owner node but our
own; the original deletes any.

Each function handles many partitions in one transaction, split only by its size. Partitions that make it fail are taken
out, and the others are done at once. The functions keep no state; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from zkconsumer.deadline import Deadline
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.requests import NodeFailure, Transaction
from zkconsumer.zookeeper.session import Session

ANY_VERSION = -1
OWNER_VERSION = 1
"""The data version of an owner node of ours."""

REQUEST_BYTES = 512 * 1024
"""Largest transaction to send: half of a server's default jute.maxbuffer, since a chroot makes paths longer."""

_OPERATION_OVERHEAD = 64


@dataclass(frozen=True, slots=True)
class KnownOffset:
    """An offset node as last read or written: its content (negative: no valid offset) and its data version.

    Both are None if there is no node.
    """

    offset: int | None
    version: int | None


ABSENT = KnownOffset(None, None)


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition to claim for one of our threads, with the offset node as read before."""

    partition: TopicPartition
    thread: ThreadId
    known: KnownOffset


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset to write for a partition we own, with the offset node as last seen.

    ``offset`` None only checks that the partition is ours.
    """

    partition: TopicPartition
    offset: int | None
    known: KnownOffset


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an offset node that was last seen with data version ``version`` (None: no node).

    ``data`` None deletes the node.
    """

    partition: TopicPartition
    data: bytes | None
    version: int | None


class Outcome(Enum):
    """The result for one partition."""

    DONE = "done"
    OWNED = "another member's owner node exists"
    NOT_OURS = "our owner node is gone or was replaced"
    OFFSET_MOVED = "somebody else wrote the offset"
    NO_PARENT = "a parent node is missing"
    REFUSED = "ZooKeeper refused the operation"


Build = Callable[[Transaction], Sequence[Outcome]]
"""Adds one partition's operations; returns for each operation the outcome if it fails."""

Part = tuple[TopicPartition, int, Build]
"""One partition's part of a transaction: its size in bytes, and the function that adds it."""


def claim(session: Session, group: str, claims: Sequence[Claim], deadline: Deadline) -> dict[TopicPartition, Outcome]:
    """Claim partitions: create the owner nodes and move the versions of the offset nodes on.

    Returns an outcome for each. :attr:`Outcome.DONE` also means that the offset was still as read before.
    """

    def build(wanted: Claim) -> Part:
        owner, offset = paths.owner(group, wanted.partition), paths.offset(group, wanted.partition)
        data = node_codecs.encode_owner(wanted.thread)

        def add(transaction: Transaction) -> Sequence[Outcome]:
            transaction.create(owner, data, ephemeral=True)
            transaction.write(owner, data, 0)
            if wanted.known.version is None:
                return (Outcome.OWNED, Outcome.OWNED)
            # the same content again, also a negative one: only the version shall move
            transaction.write(offset, node_codecs.encode_offset(wanted.known.offset or 0), wanted.known.version)
            return (Outcome.OWNED, Outcome.OWNED, Outcome.OFFSET_MOVED)

        return wanted.partition, 2 * (len(owner) + len(data)) + len(offset), add

    return _perform(session, [build(wanted) for wanted in claims], deadline)


def commit(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write offsets of partitions we own; create missing offset nodes."""
    return _perform(session, [_committing(group, one, release=False) for one in commits], deadline)


def commit_unowned(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write offsets of partitions without an owner, as :func:`write_unowned`."""
    changes = [Change(one.partition, node_codecs.encode_offset(one.offset or 0), one.known.version) for one in commits]
    return write_unowned(session, group, changes, deadline)


def write_unowned(
    session: Session, group: str, changes: Sequence[Change], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write, create or delete the offset nodes of partitions without an owner.

    A partition with an owner node is refused with :attr:`Outcome.OWNED`. ZooKeeper cannot check that a node is absent,
    so the transaction creates the owner node and deletes it again.
    """

    def build(one: Change) -> Part:
        owner, offset = paths.owner(group, one.partition), paths.offset(group, one.partition)

        def add(transaction: Transaction) -> Sequence[Outcome]:
            transaction.create(owner, b"", ephemeral=True)
            transaction.delete(owner)
            if one.data is None:
                transaction.delete(offset, ANY_VERSION if one.version is None else one.version)
            elif one.version is None:
                transaction.create(offset, one.data)
            else:
                transaction.write(offset, one.data, one.version)
            return (Outcome.OWNED, Outcome.OWNED, Outcome.OFFSET_MOVED)

        return one.partition, 2 * len(owner) + len(offset) + 20, add

    return _perform(session, [build(one) for one in changes], deadline)


def release(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Release partitions: do the last commit and delete the owner node, of each both or neither."""
    return _perform(session, [_committing(group, one, release=True) for one in commits], deadline)


def _committing(group: str, one: Commit, *, release: bool) -> Part:
    owner, offset = paths.owner(group, one.partition), paths.offset(group, one.partition)

    def add(transaction: Transaction) -> Sequence[Outcome]:
        meaning = [Outcome.NOT_OURS]
        transaction.check(owner, OWNER_VERSION)
        if one.offset is not None and one.known.version is None:
            transaction.create(offset, node_codecs.encode_offset(one.offset))
            meaning.append(Outcome.OFFSET_MOVED)
        elif one.offset is not None:
            transaction.write(offset, node_codecs.encode_offset(one.offset), one.known.version or 0)
            meaning.append(Outcome.OFFSET_MOVED)
        elif one.known.version is not None:
            transaction.check(offset, one.known.version)
            meaning.append(Outcome.OFFSET_MOVED)
        if release:
            transaction.delete(owner, OWNER_VERSION)
            meaning.append(Outcome.NOT_OURS)
        return meaning

    return one.partition, 2 * len(owner) + len(offset) + 20, add


def _perform(session: Session, parts: Sequence[Part], deadline: Deadline) -> dict[TopicPartition, Outcome]:
    """Do all parts that can be done, in as few transactions as possible.

    A transaction names only the first part that makes it fail. That part is taken out, and the rest is sent again. If
    that fails too, the nodes in ZooKeeper tell which other parts cannot be done. If they do not tell (a right is
    missing), ever smaller transactions find them. Taking out one part after the other would send n parts n times when
    many members claim the same partitions at once.
    """
    outcomes: dict[TopicPartition, Outcome] = {}
    waiting = [(batch, 0) for batch in _batches(parts)]
    while waiting:
        batch, failures = waiting.pop()
        offender = _transact(session, [add for _, _, add in batch], deadline)
        if offender is None:
            outcomes.update((partition, Outcome.DONE) for partition, _, _ in batch)
            continue
        index, outcome = offender
        outcomes[batch.pop(index)[0]] = outcome
        hopeless = _hopeless(session, batch, deadline) if failures else {}
        outcomes.update(hopeless)
        rest = [part for part in batch if part[0] not in hopeless]
        half = len(rest) if hopeless or not failures else (len(rest) + 1) // 2
        waiting += [(some, failures + 1) for some in (rest[half:], rest[:half]) if some]
    return outcomes


class _Needs(Transaction):
    """Records the version that each node must have for the operations to succeed; None for no node."""

    def __init__(self) -> None:
        super().__init__(None)
        self.needs: list[tuple[str, int | None]] = []

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Record that there must be no node."""
        self.needs.append((path, None))

    def check(self, path: str, version: int) -> None:
        """Record the version of the node."""
        self.needs.append((path, version))

    def write(self, path: str, data: bytes, version: int = -1) -> None:
        """Record the version of the node."""
        self.needs.append((path, version))

    def delete(self, path: str, version: int = -1) -> None:
        """Record the version of the node."""
        self.needs.append((path, version))


def _hopeless(session: Session, parts: Sequence[Part], deadline: Deadline) -> dict[TopicPartition, Outcome]:
    """Return the parts that cannot be done with the nodes as they are now, with the reasons."""
    needs: list[tuple[TopicPartition, str, int | None, Outcome]] = []
    for partition, _, add in parts:
        recorded = _Needs()
        first: dict[str, tuple[int | None, Outcome]] = {}  # later operations depend on it
        meanings = add(recorded)
        for (path, version), meaning in zip(recorded.needs, meanings, strict=True):
            first.setdefault(path, (version, meaning))
        needs += [(partition, path, version, meaning) for path, (version, meaning) in first.items()]
    found: dict[TopicPartition, Outcome] = {}
    nodes = session.stat([path for _, path, _, _ in needs], deadline)
    for (partition, _, version, meaning), node in zip(needs, nodes, strict=True):
        if (None if node is None else node.version if version != ANY_VERSION else ANY_VERSION) != version:
            found.setdefault(partition, meaning)
    return found


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    size = 0
    for part in parts:
        cost = part[1] + 3 * _OPERATION_OVERHEAD
        if batch and size + cost > REQUEST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += cost
    if batch:
        yield batch


def _transact(session: Session, builds: Sequence[Build], deadline: Deadline) -> tuple[int, Outcome] | None:
    """Do all parts, or return the index of the part that failed and the outcome."""
    owners: list[tuple[int, Outcome]] = []

    def build(transaction: Transaction) -> None:
        for index, add in enumerate(builds):
            owners.extend((index, meaning) for meaning in add(transaction))

    for (index, meaning), failure in zip(owners, session.transact(build, deadline), strict=True):
        if failure is None:
            continue
        if failure in (NodeFailure.NO_AUTH, NodeFailure.OTHER):
            return index, Outcome.REFUSED
        if failure is NodeFailure.NO_NODE and meaning is Outcome.OWNED:
            return index, Outcome.NO_PARENT
        return index, meaning
    return None


class ClaimSessions:
    """The session in which each partition of one group was claimed. Used by one thread.

    Guards a node that a later session of this member does not own. Versions alone do not tell it: the owner nodes of
    all our members look alike, and the versions of an offset node begin anew after an operator deleted it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._claimed_in: dict[TopicPartition, int] = {}

    def claiming(self, partitions: Iterable[TopicPartition]) -> None:
        """Note a claim in the present session, whatever was before."""
        self._claimed_in.update(dict.fromkeys(partitions, self._session.session_id))

    def claimed(self, partition: TopicPartition) -> None:
        """Note a claim in the present session, unless an earlier claim is known."""
        self._claimed_in.setdefault(partition, self._session.session_id)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that is ours no longer."""
        self._claimed_in.pop(partition, None)

    def ended(self, partition: TopicPartition) -> bool:
        """Return whether the session of the claim has ended, and the owner node with it; False if one is unknown."""
        now, then = self._session.session_id, self._claimed_in.get(partition)
        return bool(now and then) and now != then
