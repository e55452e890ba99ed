"""The nodes of a loan: what the lender writes, and the report of the borrower. Pure.

Both are JSON with the note of finished messages (``core.finished_note``) in base64. Their bytes may be anybody's: what
is no whole node of a known version raises ValueError, and counts as no node.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field

from zkconsumer.core.finished_note import FinishedNote, decode_note, encode_note
from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS, SLOTS

VERSION = 1
MOST_NOTE_BYTES = 48 * 1024
"""Bytes of the note in one node. What does not fit is consumed again if the node is needed."""
MOST_NODE_BYTES = 128 * 1024
_MOST_NUMBER = (1 << 63) - 1
_MOST_TEXT = 512
_HEX_DIGITS = SLOTS // 4


@dataclass(frozen=True, slots=True)
class Loan:
    """The slots of one partition that a borrower has, as the lender wrote it.

    * ``number``: rises with each change, so that a report tells which one it answers
    * ``stay``: the life of the partition's offsets. What is finished in one stay says nothing in another
    * ``lender`` and ``lender_session``: the owner, whose owner node has this session; the loan counts only while it has
    * ``borrower_session``: the ZooKeeper session of the borrower that it is meant for
    * ``order``: ``key`` or ``none``
    * ``slots``: the borrower may begin messages of these
    * ``recalled``: the borrower must give these back, and may still have them
    * ``note``: what is finished of them, as far as the lender knows
    """

    number: int
    stay: str
    lender: str
    lender_session: int
    borrower_session: int
    order: str
    slots: int = NO_SLOTS
    recalled: int = NO_SLOTS
    note: FinishedNote = field(default_factory=lambda: FinishedNote(0))

    @property
    def lent(self) -> int:
        """All slots that the borrower may have."""
        return self.slots | self.recalled

    def answered_by(self, report: LoanReport | None) -> bool:
        """Return whether the report is about this loan: of the same number, stay and session."""
        return report is not None and (report.number, report.stay, report.session) == (
            self.number,
            self.stay,
            self.borrower_session,
        )


@dataclass(frozen=True, slots=True)
class LoanReport:
    """A borrower's answer to its loan.

    * ``number`` and ``stay``: of the loan that it answers
    * ``session``: the borrower's
    * ``held``: the slots that it may still begin or has in hand; it begins nothing of others before a higher number
    * ``note``: what is finished, also of the slots that it gives back
    * ``leaving``: whether it wants no more loans
    * ``in_hand``: messages that its handlers have now
    * ``at_ms``: when it was written (milliseconds since 1970), for people
    """

    number: int
    stay: str
    session: int
    held: int
    note: FinishedNote
    leaving: bool = False
    in_hand: int = 0
    at_ms: int = 0


def encode_loan(loan: Loan) -> bytes:
    """Return the content of a loan's node."""
    return _encode(
        {
            "version": VERSION,
            "number": loan.number,
            "stay": loan.stay,
            "lender": loan.lender,
            "lender_session": loan.lender_session,
            "borrower_session": loan.borrower_session,
            "order": loan.order,
            "slots": f"{loan.slots:0{_HEX_DIGITS}x}",
            "recalled": f"{loan.recalled:0{_HEX_DIGITS}x}",
            "from": loan.note.base,
            "note": _note_text(loan.note),
        }
    )


def encode_report(report: LoanReport) -> bytes:
    """Return the content of a report's node."""
    return _encode(
        {
            "version": VERSION,
            "number": report.number,
            "stay": report.stay,
            "session": report.session,
            "held": f"{report.held:0{_HEX_DIGITS}x}",
            "from": report.note.base,
            "note": _note_text(report.note),
            "leaving": report.leaving,
            "in_hand": report.in_hand,
            "at_ms": report.at_ms,
        }
    )


def decode_loan(data: bytes) -> Loan:
    """Return the loan of a node. Raises ValueError."""
    fields = _Fields(data)
    return Loan(
        fields.number("number"),
        fields.text("stay"),
        fields.text("lender"),
        fields.session("lender_session"),
        fields.session("borrower_session"),
        fields.text("order"),
        fields.slots("slots"),
        fields.slots("recalled"),
        fields.note(),
    )


def decode_report(data: bytes) -> LoanReport:
    """Return the report of a node. Raises ValueError."""
    fields = _Fields(data)
    return LoanReport(
        fields.number("number"),
        fields.text("stay"),
        fields.session("session"),
        fields.slots("held"),
        fields.note(),
        fields.flag("leaving"),
        fields.number("in_hand"),
        fields.number("at_ms"),
    )


def _encode(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _note_text(note: FinishedNote) -> str:
    """Return a note in base64; empty if the offset from which everything is unfinished says as much."""
    if note.empty:
        return ""
    return base64.b64encode(encode_note(note, MOST_NOTE_BYTES)).decode()


class _Fields:
    """The fields of a node, each checked when it is asked for. Raises ValueError that names the field."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MOST_NODE_BYTES:
            raise ValueError(f"it has {len(data)} bytes, more than {MOST_NODE_BYTES}")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as e:
            raise ValueError(f"it is not JSON: {e!s:.80}") from None
        if not isinstance(document, dict):
            raise ValueError("it is no JSON object")
        self._document = document
        if self.number("version") != VERSION:
            raise ValueError(f"its version is {document['version']}, and only {VERSION} is known")

    def number(self, name: str) -> int:
        """Return a number that is not negative."""
        value = self.session(name)
        if value < 0:
            raise ValueError(f"{name} is negative")
        return value

    def session(self, name: str) -> int:
        """Return the id of a session, which may be negative."""
        value = self._document.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not -_MOST_NUMBER - 1 <= value <= _MOST_NUMBER:
            raise ValueError(f"{name} is no number of 64 bits: {value!r:.40}")
        return value

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        value = self._document.get(name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} is neither true nor false: {value!r:.40}")
        return value

    def text(self, name: str) -> str:
        """Return a text."""
        value = self._document.get(name)
        if not isinstance(value, str) or len(value) > _MOST_TEXT:
            raise ValueError(f"{name} is no short text: {value!r:.40}")
        return value

    def slots(self, name: str) -> int:
        """Return a set of slots."""
        value = self.text(name)
        if len(value) != _HEX_DIGITS or not set(value) <= set("0123456789abcdef"):
            raise ValueError(f"{name} is no set of slots: {value!r:.40}")
        return int(value, 16) & ALL_SLOTS

    def note(self) -> FinishedNote:
        """Return the note."""
        start, text = self.number("from"), self._document.get("note")
        if not isinstance(text, str):
            raise ValueError("note is no text")
        if not text:
            return FinishedNote(start)
        try:
            note = decode_note(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            note = None
        if note is None or note.base != start:
            raise ValueError("note is no note of finished messages")
        return note
