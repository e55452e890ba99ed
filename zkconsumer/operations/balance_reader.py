"""Reads the nodes that balanced members keep of a group: notes, pointers and loans. One thread calls.

The nodes are read level by level, after the offsets, and only if the group has any. Other groups pay nothing.

The bytes may be anybody's. Bytes that cannot be decoded make a node unknown, never empty. A snapshot keeps numbers and
the first few messages, because one note may list a million offsets. Decoding is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from zkconsumer.balance.sharing.loan_format import decode_loan, decode_report
from zkconsumer.core.finished_note import MOST_OFFSET, FinishedNote, decode_note, note_of_text
from zkconsumer.core.key_slots import SLOTS
from zkconsumer.core.message_pointers import Pointer, PointerKind, decode_pointers
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.model import ConsumerId, TopicPartition, shared_partition
from zkconsumer.operations.group_snapshot import (
    FORBIDDEN_NODE,
    AckNode,
    FailingMessage,
    GroupSnapshot,
    LoanNode,
    NodeStat,
    NoteSummary,
    PointedMessage,
    PointersNode,
    node_stat,
)
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import Node, NodePart, Reading, Wanted

MOST_LISTED = 20
"""The most failing messages of a note, and pointers of each kind, that a snapshot keeps of one partition."""
NO_NOTE = "it is no note that this release knows"


def ack_node(data: bytes, stat: NodeStat) -> AckNode:
    """Return a partition's note."""
    note = decode_note(data)
    return AckNode(None, stat, NO_NOTE) if note is None else AckNode(summary_of(note), stat)


def note_in(metadata: str) -> NoteSummary | None:
    """Return the note in the metadata of a commit to Kafka, None if there is none."""
    data = note_of_text(metadata)
    note = None if data is None else decode_note(data)
    return None if note is None else summary_of(note)


def summary_of(note: FinishedNote) -> NoteSummary:
    """Return a note's numbers."""
    failing = tuple(
        FailingMessage(o, a.failed, a.first_ms) for o, a in islice(sorted(note.attempts.items()), MOST_LISTED)
    )
    return NoteSummary(
        note.base,
        min(MOST_OFFSET, max((one.end for one in note.finished), default=note.base)),  # a file takes 64 bits
        min(MOST_OFFSET, sum(map(_finished_of, note.finished))),
        sum(len(one.unfinished) for one in note.finished),
        failing,
    )


def _finished_of(one: Finished) -> int:
    """Return how many offsets a piece says to be finished: of some slots, their share of the range."""
    ours = (one.end - one.start) * one.slots.bit_count() // SLOTS
    return max(0, ours - len(one.unfinished))


def pointers_node(data: bytes, stat: NodeStat) -> PointersNode:
    """Return a partition's pointers."""
    try:
        found = decode_pointers(data)
    except ValueError as error:
        return PointersNode(None, None, (), stat, problem=f"it is no list of pointers: {error}")
    parked = sorted((p for p in found.values() if p.kind is PointerKind.PARKED), key=lambda p: p.offset)
    dead = sorted((p for p in found.values() if p.kind is PointerKind.DEAD), key=lambda p: (p.lost_ms > 0, p.offset))
    listed = tuple(map(_pointed, (*parked[:MOST_LISTED], *dead[:MOST_LISTED])))
    due = min((p.due_ms for p in parked if p.due_ms), default=0)
    return PointersNode(len(parked), len(dead), listed, stat, due)


def _pointed(one: Pointer) -> PointedMessage:
    return PointedMessage(one.offset, one.kind is PointerKind.DEAD, one.attempts, one.due_ms, one.first_ms, one.reason)


def loan_node(data: bytes, stat: NodeStat, answer: bytes | None, report: NodeStat | None) -> LoanNode:
    """Return a loan with its report. ``answer`` is the content of the report, None if there is none."""
    try:
        loan = decode_loan(data)
    except ValueError as error:
        return LoanNode(None, None, None, stat, report=report, problem=f"it is no loan: {error}")
    found = LoanNode(loan.slots.bit_count(), loan.number, loan.lender_session, stat, report=report)
    if answer is None:
        return found
    try:
        said = decode_report(answer)
    except ValueError as error:
        return replace(found, problem=f"its report cannot be read: {error}")
    if said.stay != loan.stay:  # of an earlier life of the partition's offsets
        return found
    return replace(found, answered=said.number, held=said.held.bit_count(), base=said.note.base)


BALANCE_PARTS = frozenset({"acks", "parked", "loans"})
"""Names of the parents below a group's node."""
MOST_NODES = 100_000
"""The most notes, pointers and loans that are read of one group, together."""
MOST_BYTES = 64 * 1024 * 1024
"""The most bytes of them that are decoded: a note has 64 KiB at the most, and usually less than one."""
_PARTITION = re.compile(r"[0-9]{1,10}", re.ASCII)
_LAST_PARTITION = (1 << 31) - 1


class BalanceReader:
    """Fills ``acks``, ``pointers`` and ``loans`` of a snapshot.

    Arguments: ``each`` sends reads and yields their answers, ``names`` gives the names in an answer that can be looked
    up; both are those of the reader of the group. ``draft`` is what to fill. After ``deadline`` nothing more is
    decoded.
    """

    def __init__(
        self,
        each: Callable[[Iterable[Wanted]], Iterator[Reading]],
        names: Callable[[Reading], list[str]],
        draft: GroupSnapshot,
        deadline: Deadline,
    ) -> None:
        self._each = each
        self._names = names
        self._draft = draft
        self._deadline = deadline
        self._group = draft.group
        self._room = MOST_NODES
        self._bytes = MOST_BYTES

    def read(self, parts: Collection[str]) -> None:
        """Read what the group has under these of :data:`BALANCE_PARTS`. Raises RegistryError."""
        top = paths.consumers_group(self._group)
        topics = self._below(f"{top}/{part}" for part in sorted(parts))
        partitions = [path for path in self._below(topics) if self._is_partition(path)]
        lent = self._below(path for path in partitions if path.startswith(f"{top}/loans/"))
        acked, pointed = f"{top}/acks/", f"{top}/parked/"
        contents = [Wanted(NodePart.CONTENT, path) for path in partitions if path.startswith((acked, pointed))]
        contents += [Wanted(NodePart.CONTENT, path) for loan in lent for path in (loan, f"{loan}/report")]
        loan: Reading | None = None
        for one in self._each(contents):
            path = one.wanted.path
            if path.startswith(acked):
                self._take_ack(one)
            elif path.startswith(pointed):
                self._take_pointers(one)
            elif loan is None:
                loan = one
            else:  # each loan is followed by its report
                self._take_loan(loan, one)
                loan = None

    def _below(self, parents: Iterable[str]) -> list[str]:
        """Return the paths of these nodes' children."""
        found: list[str] = []
        for one in self._each([Wanted(NodePart.CHILDREN, path) for path in parents]):
            found += [f"{one.wanted.path}/{name}" for name in self._names(one)]
        if len(found) > self._room:
            self._draft.problem(found[self._room], f"not read: the group has more than {MOST_NODES} such nodes")
            del found[self._room :]
        self._room -= len(found)
        return found

    def _is_partition(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        if _PARTITION.fullmatch(name) and int(name) <= _LAST_PARTITION:
            return True
        self._draft.problem(parent, f"the child {name!a} is no number of a partition")
        return False

    def _refusal(self, node: Node) -> str:
        """Return why a node's content is not decoded, empty if it is."""
        self._bytes -= node.length
        if self._bytes < 0:
            return f"not decoded: notes and pointers have more than {MOST_BYTES} bytes together"
        return "not decoded: no time was left" if self._deadline.expired else ""

    def _take_ack(self, one: Reading) -> None:
        tp = partition_at(one.wanted.path)
        if one.node is None:
            if one.forbidden:
                self._draft.acks[tp] = AckNode(None, None, FORBIDDEN_NODE)
            return
        stat, refusal = node_stat(one.node), self._refusal(one.node)
        self._draft.acks[tp] = AckNode(None, stat, refusal) if refusal else ack_node(one.node.data, stat)

    def _take_pointers(self, one: Reading) -> None:
        tp = partition_at(one.wanted.path)
        if one.node is None:
            if one.forbidden:
                self._draft.pointers[tp] = PointersNode(None, None, (), None, problem=FORBIDDEN_NODE)
            return
        stat, refusal = node_stat(one.node), self._refusal(one.node)
        self._draft.pointers[tp] = (
            PointersNode(None, None, (), stat, problem=refusal) if refusal else pointers_node(one.node.data, stat)
        )

    def _take_loan(self, loan: Reading, report: Reading) -> None:
        parent, _, borrower = loan.wanted.path.rpartition("/")
        loans = self._draft.loans.setdefault(partition_at(parent), {})
        if loan.node is None:
            if loan.forbidden:
                loans[ConsumerId(borrower)] = LoanNode(None, None, None, None, problem=FORBIDDEN_NODE)
            return
        stat, refusal = node_stat(loan.node), self._refusal(loan.node)
        reported = None if report.node is None else node_stat(report.node)
        if refusal:
            loans[ConsumerId(borrower)] = LoanNode(None, None, None, stat, report=reported, problem=refusal)
        else:
            answer = None if report.node is None else report.node.data
            loans[ConsumerId(borrower)] = loan_node(loan.node.data, stat, answer, reported)


def partition_at(path: str) -> TopicPartition:
    """Return the partition that the last two elements of a path name."""
    _, topic, number = path.rsplit("/", 2)
    return shared_partition(topic, int(number))
