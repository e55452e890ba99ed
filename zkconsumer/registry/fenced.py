"""Claims, commits and releases that ZooKeeper itself refuses to anybody who no longer owns the partition.

An owner node of ours carries data version 1 (it is written once more in the transaction that creates it; a Scala
member's has 0), and every claim of ours writes the offset node, so that its version moves on. A commit checks the
owner's version and names the offset's: whoever lost the partition, to one of ours or to a Scala member, is refused
and has written nothing. A release checks the same, so that nobody's owner node but our own is ever deleted; the
original deletes whatever stands there.

Each function takes many partitions and does them in one transaction, split only by its size; a partition that makes
it fail is taken out and the others are done at once. Pure calls on a session: no state, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from zkconsumer.deadline import Deadline
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.registry import codecs, paths
from zkconsumer.registry.session import Session
from zkconsumer.registry.transaction import NodeFailure, Transaction

OWNER_VERSION = 1
"""The data version of an owner node of ours."""

REQUEST_BYTES = 512 * 1024
"""Largest transaction to send: half of a server's default jute.maxbuffer, for paths are longer with a chroot."""

_OPERATION_OVERHEAD = 64


@dataclass(frozen=True, slots=True)
class KnownOffset:
    """An offset node as it was last read or written: content (negative: no valid offset) and data version; None: no
    node.
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
    """An offset to write for a partition we own, with the offset node as last seen. ``offset`` None: write nothing,
    only check.
    """

    partition: TopicPartition
    offset: int | None
    known: KnownOffset


class Outcome(Enum):
    """What became of one partition's part."""

    DONE = "done"
    OWNED = "another member's owner node exists"
    NOT_OURS = "our owner node is gone or was replaced"
    OFFSET_MOVED = "somebody else wrote the offset"
    NO_PARENT = "a parent node is missing"
    REFUSED = "ZooKeeper refused the operation"


Build = Callable[[Transaction], Sequence[Outcome]]
"""Adds one partition's operations and says, one entry an operation, what a failure there means."""


def claim(session: Session, group: str, claims: Sequence[Claim], deadline: Deadline) -> dict[TopicPartition, Outcome]:
    """Own partitions: create the owner nodes and move the versions of the offset nodes on.

    Returns an outcome for each; :attr:`Outcome.DONE` also means that the offset was still the one that was read.
    """

    def build(wanted: Claim) -> tuple[TopicPartition, int, Build]:
        owner, offset = paths.owner(group, wanted.partition), paths.offset(group, wanted.partition)
        data = codecs.encode_owner(wanted.thread)

        def add(transaction: Transaction) -> Sequence[Outcome]:
            transaction.create(owner, data, ephemeral=True)
            transaction.write(owner, data, 0)
            if wanted.known.version is None:
                return (Outcome.OWNED, Outcome.OWNED)
            # the same content again, negative too: only the version shall move
            transaction.write(offset, codecs.encode_offset(wanted.known.offset or 0), wanted.known.version)
            return (Outcome.OWNED, Outcome.OWNED, Outcome.OFFSET_MOVED)

        return wanted.partition, 2 * (len(owner) + len(data)) + len(offset), add

    return _perform(session, [build(wanted) for wanted in claims], deadline)


def commit(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write offsets of partitions we own; a missing offset node is created."""
    return _perform(session, [_committing(group, one, release=False) for one in commits], deadline)


def commit_unowned(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Write offsets of partitions that nobody owns: refused, with :attr:`Outcome.OWNED`, where an owner node exists.

    ZooKeeper cannot check that a node is absent, so the transaction makes the owner node and deletes it again.
    """

    def build(one: Commit) -> tuple[TopicPartition, int, Build]:
        owner, offset = paths.owner(group, one.partition), paths.offset(group, one.partition)

        def add(transaction: Transaction) -> Sequence[Outcome]:
            transaction.create(owner, b"", ephemeral=True)
            transaction.delete(owner)
            if one.known.version is None:
                transaction.create(offset, codecs.encode_offset(one.offset or 0))
            else:
                transaction.write(offset, codecs.encode_offset(one.offset or 0), one.known.version)
            return (Outcome.OWNED, Outcome.OWNED, Outcome.OFFSET_MOVED)

        return one.partition, 2 * len(owner) + len(offset) + 20, add

    return _perform(session, [build(one) for one in commits], deadline)


def release(
    session: Session, group: str, commits: Sequence[Commit], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    """Give partitions up: the last commit and the deletion of the owner node, together or not at all."""
    return _perform(session, [_committing(group, one, release=True) for one in commits], deadline)


def _committing(group: str, one: Commit, *, release: bool) -> tuple[TopicPartition, int, Build]:
    owner, offset = paths.owner(group, one.partition), paths.offset(group, one.partition)

    def add(transaction: Transaction) -> Sequence[Outcome]:
        meaning = [Outcome.NOT_OURS]
        transaction.check(owner, OWNER_VERSION)
        if one.offset is not None and one.known.version is None:
            transaction.create(offset, codecs.encode_offset(one.offset))
            meaning.append(Outcome.OFFSET_MOVED)
        elif one.offset is not None:
            transaction.write(offset, codecs.encode_offset(one.offset), one.known.version or 0)
            meaning.append(Outcome.OFFSET_MOVED)
        elif one.known.version is not None:
            transaction.check(offset, one.known.version)
            meaning.append(Outcome.OFFSET_MOVED)
        if release:
            transaction.delete(owner, OWNER_VERSION)
            meaning.append(Outcome.NOT_OURS)
        return meaning

    return one.partition, 2 * len(owner) + len(offset) + 20, add


def _perform(
    session: Session, parts: Sequence[tuple[TopicPartition, int, Build]], deadline: Deadline
) -> dict[TopicPartition, Outcome]:
    outcomes: dict[TopicPartition, Outcome] = {}
    for batch in _batches(parts):
        remaining = list(batch)
        while remaining:
            offender = _transact(session, [add for _, _, add in remaining], deadline)
            if offender is None:
                outcomes.update((partition, Outcome.DONE) for partition, _, _ in remaining)
                break
            index, outcome = offender
            outcomes[remaining[index][0]] = outcome
            del remaining[index]
    return outcomes


def _batches(parts: Sequence[tuple[TopicPartition, int, Build]]) -> Iterator[list[tuple[TopicPartition, int, Build]]]:
    batch: list[tuple[TopicPartition, int, Build]] = []
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
    """Do it all, or say which part stands in the way and why."""
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
