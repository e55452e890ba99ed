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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zkconsumer.errors import RegistryError
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_requests import NodeFailure, Transaction
from zkconsumer.zookeeper.note_nodes import NO_ACKS, AckWrite, KnownAcks
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

    Both are None if there is no node. ``acks`` is what a member that is balanced by messages read with it.
    """

    offset: int | None
    version: int | None
    acks: KnownAcks | None = None


ABSENT = KnownOffset(None, None)


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition to claim for one of our threads, with the offset node as read before.

    ``acks`` are written in the same transaction, so that a note stays valid although the claim writes the offset node.
    """

    partition: TopicPartition
    thread: ThreadId
    known: KnownOffset
    acks: AckWrite = NO_ACKS


@dataclass(frozen=True, slots=True)
class Commit:
    """An offset to write for a partition we own, with the offset node as last seen.

    ``offset`` None only checks that the partition is ours. ``acks`` are written in the same transaction.
    """

    partition: TopicPartition
    offset: int | None
    known: KnownOffset
    acks: AckWrite = NO_ACKS


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an offset node that was last seen with data version ``version`` (None: no node).

    ``data`` None deletes the node.
    """

    partition: TopicPartition
    data: bytes | None
    version: int | None


@dataclass(frozen=True, slots=True)
class OwnedChange:
    """A new offset for a partition that a live member of ours owns, and that this member adopts.

    ``version`` is the data version of the offset node (None: no node). It was read before the owner node was read. The
    owner node named ``consumer``, whose registration had the data version ``registration`` and says that it adopts.
    """

    partition: TopicPartition
    data: bytes
    version: int | None
    consumer: str
    registration: int


class Outcome(Enum):
    """The result for one partition."""

    DONE = "done"
    OWNED = "another member's owner node exists"
    NOT_OURS = "our owner node is gone or was replaced"
    OFFSET_MOVED = "somebody else wrote the offset"
    NOTE_FAILED = "the note of finished messages cannot be written"
    UNANSWERED = "ZooKeeper did not answer in time"
    POINTERS_MOVED = "somebody else wrote the pointers to parked messages"
    NO_PARENT = "a parent node is missing"
    REFUSED = "ZooKeeper refused the operation"


class _Kind(Enum):
    CREATE = "create"
    CREATE_EPHEMERAL = "create an ephemeral node"
    CHECK = "check"
    WRITE = "write"
    DELETE = "delete"


class _Operation(NamedTuple):
    """An operation of a transaction on the node at ``path``, with the outcome of a failure.

    ``version`` is the data version that the node must have before; None if there must be no node.
    """

    kind: _Kind
    path: str
    version: int | None
    outcome: Outcome
    data: bytes = b""

    @property
    def size(self) -> int:
        """The bytes of its request, or a few more."""
        return len(self.path) + len(self.data) + _OPERATION_OVERHEAD

    def add_to(self, transaction: Transaction) -> None:
        """Add it as the next one."""
        version = ANY_VERSION if self.version is None else self.version
        if self.kind is _Kind.CHECK:
            transaction.check(self.path, version)
        elif self.kind is _Kind.WRITE:
            transaction.write(self.path, self.data, version)
        elif self.kind is _Kind.DELETE:
            transaction.delete(self.path, version)
        else:
            transaction.create(self.path, self.data, ephemeral=self.kind is _Kind.CREATE_EPHEMERAL)


_OF_ACKS = (Outcome.NOTE_FAILED, Outcome.POINTERS_MOVED)
"""Outcomes of nodes without which the offset can be written all the same."""

Part = tuple[TopicPartition, Sequence[_Operation]]
"""One partition's part of a transaction."""


def claim(session: Session, group: str, claims: Sequence[Claim], deadline: Deadline) -> dict[TopicPartition, Outcome]:
    """Claim partitions: create the owner nodes and move the versions of the offset nodes on.

    Returns an outcome for each. :attr:`Outcome.DONE` also means that the offset was still as read before.
    """

    def operations(wanted: Claim) -> Iterator[_Operation]:
        owner, data = paths.owner(group, wanted.partition), node_codecs.encode_owner(wanted.thread)
        yield _Operation(_Kind.CREATE_EPHEMERAL, owner, None, Outcome.OWNED, data)
        yield _Operation(_Kind.WRITE, owner, 0, Outcome.OWNED, data)
        if wanted.known.version is not None:
            # the same content again, also a negative one: only the version shall move
            same = node_codecs.encode_offset(wanted.known.offset or 0)
            yield _write_offset(group, wanted.partition, same, wanted.known.version)
        yield from _write_acks(group, wanted.partition, wanted.acks)

    return _perform(session, [(wanted.partition, list(operations(wanted))) for wanted in claims], deadline)


def commit(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write offsets of partitions we own; create missing offset nodes.

    If ZooKeeper answers only some of several transactions, the others are :attr:`Outcome.UNANSWERED`.
    """
    outcomes: dict[TopicPartition, Outcome] = {}
    try:
        _perform(session, [(one.partition, list(_fenced(group, one))) for one in commits], deadline, outcomes)
    except RegistryError:
        if not outcomes:
            raise
    return {one.partition: outcomes.get(one.partition, Outcome.UNANSWERED) for one in commits}


def release(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Release partitions: do the last commit and delete the owner node, of each both or neither."""

    def operations(one: Commit) -> Iterator[_Operation]:
        yield from _fenced(group, one)
        yield _Operation(_Kind.DELETE, paths.owner(group, one.partition), OWNER_VERSION, Outcome.NOT_OURS)

    return _perform(session, [(one.partition, list(operations(one))) for one in commits], deadline)


def _fenced(group: str, one: Commit) -> Iterator[_Operation]:
    yield _Operation(_Kind.CHECK, paths.owner(group, one.partition), OWNER_VERSION, Outcome.NOT_OURS)
    if one.offset is not None:
        yield _write_offset(group, one.partition, node_codecs.encode_offset(one.offset), one.known.version)
    elif one.known.version is not None:
        yield _Operation(_Kind.CHECK, paths.offset(group, one.partition), one.known.version, Outcome.OFFSET_MOVED)
    yield from _write_acks(group, one.partition, one.acks)


def _write_acks(group: str, partition: TopicPartition, acks: AckWrite) -> Iterator[_Operation]:
    if acks.pointers is not None:
        path = paths.pointers(group, partition)
        kind = _Kind.CREATE if acks.version is None else _Kind.WRITE
        yield _Operation(kind, path, acks.version, Outcome.POINTERS_MOVED, acks.pointers)
    if acks.note is not None:
        # any version: owner and offset fence it, and only its mzxid counts
        kind, version = (_Kind.WRITE, ANY_VERSION) if acks.has_note else (_Kind.CREATE, None)
        yield _Operation(kind, paths.ack(group, partition), version, Outcome.NOTE_FAILED, acks.note)


def _write_offset(group: str, partition: TopicPartition, data: bytes, version: int | None) -> _Operation:
    kind = _Kind.CREATE if version is None else _Kind.WRITE
    return _Operation(kind, paths.offset(group, partition), version, Outcome.OFFSET_MOVED, data)


def write_unowned(
    session: Session, group: str, changes: Sequence[Change], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write, create or delete the offset nodes of partitions without an owner; create missing parents.

    A partition with an owner node is refused with :attr:`Outcome.OWNED`. ZooKeeper cannot check that a node is absent,
    so the transaction creates the owner node and deletes it again.
    """
    topics = {one.partition.topic for one in changes}
    parents = [path(group, topic) for topic in topics for path in (paths.owner_topic, paths.offset_topic)]
    session.ensure(sorted(parents), deadline)

    def operations(one: Change) -> Iterator[_Operation]:
        owner = paths.owner(group, one.partition)
        yield _Operation(_Kind.CREATE_EPHEMERAL, owner, None, Outcome.OWNED)
        yield _Operation(_Kind.DELETE, owner, ANY_VERSION, Outcome.OWNED)
        if one.data is not None:
            yield _write_offset(group, one.partition, one.data, one.version)
        else:
            version = ANY_VERSION if one.version is None else one.version
            yield _Operation(_Kind.DELETE, paths.offset(group, one.partition), version, Outcome.OFFSET_MOVED)

    return _perform(session, [(one.partition, list(operations(one))) for one in changes], deadline)


def write_adopted(
    session: Session, group: str, changes: Sequence[OwnedChange], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write the offset nodes of partitions whose owners adopt what another process writes.

    The transaction checks that the owner node is one of ours, and that the member is still registered as it was read.
    A claim by another member of ours moves the version of the offset node on. So an unchanged version of the offset
    node means an unchanged owner, if the offset node was read before the owner node. A Scala member's owner node has
    another version. Only if there is no offset node can another member of ours have come in between unseen.
    """
    topics = {one.partition.topic for one in changes if one.version is None}
    if topics:  # an owner that has not committed yet may have no offset node, and no parent of one
        session.ensure(sorted(paths.offset_topic(group, topic) for topic in topics), deadline)

    def operations(one: OwnedChange) -> Iterator[_Operation]:
        yield _Operation(_Kind.CHECK, paths.owner(group, one.partition), OWNER_VERSION, Outcome.NOT_OURS)
        yield _Operation(_Kind.CHECK, paths.member(group, one.consumer), one.registration, Outcome.NOT_OURS)
        yield _write_offset(group, one.partition, one.data, one.version)

    return _perform(session, [(one.partition, list(operations(one))) for one in changes], deadline)


def _perform(
    session: Session, parts: Sequence[Part], deadline: Deadline, outcomes: dict[TopicPartition, Outcome] | None = None
) -> dict[TopicPartition, Outcome]:
    """Do all parts that can be done, in as few transactions as possible.

    A transaction names only the first part that makes it fail. That part is taken out, and the rest is sent again. If
    that fails too, the nodes in ZooKeeper tell which other parts cannot be done. If they do not tell (a right is
    missing), ever smaller transactions find them. Taking out one part after the other would send n parts n times when
    many members claim the same partitions at once.

    Arguments: ``outcomes`` is filled as they become known, also if a later request raises.
    """
    outcomes = {} if outcomes is None else outcomes
    waiting = [(batch, 0) for batch in _batches(parts)]
    while waiting:
        batch, failures = waiting.pop()
        offender = _transact(session, batch, deadline)
        if offender is None:
            outcomes.update((partition, Outcome.DONE) for partition, _ in batch)
            continue
        index, outcome = offender
        outcomes[batch.pop(index)[0]] = outcome
        hopeless = _hopeless(session, batch, deadline) if failures else {}
        outcomes.update(hopeless)
        rest = [part for part in batch if part[0] not in hopeless]
        half = len(rest) if hopeless or not failures else (len(rest) + 1) // 2
        waiting += [(some, failures + 1) for some in (rest[half:], rest[:half]) if some]
    return outcomes


def _hopeless(session: Session, parts: Sequence[Part], deadline: Deadline) -> dict[TopicPartition, Outcome]:
    """Return the parts that cannot be done with the nodes as they are now, with the reasons."""
    first: dict[tuple[TopicPartition, str], _Operation] = {}  # later operations on a node depend on the first
    for partition, operations in parts:
        for operation in operations:
            first.setdefault((partition, operation.path), operation)
    found: dict[TopicPartition, Outcome] = {}
    nodes = session.stat([path for _, path in first], deadline)
    for ((partition, _), operation), node in zip(first.items(), nodes, strict=True):
        stands = None if node is None else ANY_VERSION if operation.version == ANY_VERSION else node.version
        if stands != operation.version:
            found.setdefault(partition, operation.outcome)
    return found


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    size = 0
    for part in parts:
        cost = sum(operation.size for operation in part[1])
        if batch and size + cost > REQUEST_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += cost
    if batch:
        yield batch


def _transact(session: Session, parts: Sequence[Part], deadline: Deadline) -> tuple[int, Outcome] | None:
    """Do all parts, or return the index of the part that failed and the outcome."""
    all_of = [(index, operation) for index, (_, operations) in enumerate(parts) for operation in operations]

    def build(transaction: Transaction) -> None:
        for _, operation in all_of:
            operation.add_to(transaction)

    for (index, operation), failure in zip(all_of, session.transact(build, deadline), strict=True):
        if failure is None:
            continue
        if operation.outcome in _OF_ACKS:
            return index, operation.outcome
        if failure in (NodeFailure.NO_AUTH, NodeFailure.OTHER):
            return index, Outcome.REFUSED
        if failure is NodeFailure.NO_NODE and operation.outcome is Outcome.OWNED:
            return index, Outcome.NO_PARENT
        return index, operation.outcome
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
        """Forget a partition that this member no longer owns."""
        self._claimed_in.pop(partition, None)

    def ended(self, partition: TopicPartition) -> bool:
        """Return whether the session of the claim has ended, and the owner node with it; False if one is unknown."""
        now, then = self._session.session_id, self._claimed_in.get(partition)
        return bool(now and then) and now != then
