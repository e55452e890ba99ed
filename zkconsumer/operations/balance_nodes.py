"""The nodes of balanced members, decoded for a group snapshot. Pure.

The bytes may be anybody's. Bytes that cannot be decoded make a node unknown, never empty. A snapshot keeps numbers and
the first few messages, because one note may list a million offsets.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from zkconsumer.balance.sharing.loan_nodes import decode_loan, decode_report
from zkconsumer.core.finished_note import MOST_OFFSET, FinishedNote, decode_note, note_of_text
from zkconsumer.core.key_slots import SLOTS
from zkconsumer.core.message_pointers import Pointer, PointerKind, decode_pointers
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.operations.group_snapshot import (
    AckNode,
    FailingMessage,
    LoanNode,
    NodeStat,
    NoteSummary,
    PointedMessage,
    PointersNode,
)

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
    return PointedMessage(
        one.offset,
        one.kind is PointerKind.DEAD,
        one.attempts,
        one.due_ms,
        one.first_ms,
        one.reason,
    )


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
