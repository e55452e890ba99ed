"""The nodes of loans: what is written is read again, and other bytes are refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.balance.sharing.loan_format import (
    MOST_NODE_BYTES,
    Loan,
    LoanReport,
    decode_loan,
    decode_report,
    encode_loan,
    encode_report,
)
from zkconsumer.core.finished_note import Attempts, FinishedNote
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.unfinished_offsets import Finished

NOTE = FinishedNote(7, (Finished(7, 40, (9, 12), 5),), {9: Attempts(2, 1_000)})
LOAN = Loan(3, "1f-1", "g_host-1", -5, 17, "key", 5, 2, NOTE)
REPORT = LoanReport(3, "1f-1", 17, 4, NOTE, True, 2, 1_700_000_000_000)


@pytest.mark.parametrize("loan", [LOAN, Loan(0, "", "", 0, 0, "none"), Loan(1, "s", "l", 1, 2, "key", ALL_SLOTS, 7)])
def test_a_loan_is_read_as_it_was_written(loan: Loan) -> None:
    assert decode_loan(encode_loan(loan)) == loan


def test_a_report_is_read_as_it_was_written() -> None:
    assert decode_report(encode_report(REPORT)) == REPORT


def test_a_note_too_large_is_cut_from_the_end() -> None:
    scattered = tuple(offset * offset for offset in range(1, 100_000))
    note = FinishedNote(0, (Finished(0, scattered[-1] + 1, scattered),))
    data = encode_loan(Loan(1, "s", "l", 1, 2, "key", ALL_SLOTS, 0, note))
    assert len(data) < MOST_NODE_BYTES
    read = decode_loan(data).note
    assert 0 < read.finished[0].end < note.finished[0].end


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version"),
        ({"version": "1"}, "version"),
        ({"number": -1}, "number"),
        ({"number": 1 << 70}, "number"),
        ({"number": True}, "number"),
        ({"stay": "x" * 1000}, "stay"),
        ({"lender": None}, "lender"),
        ({"lender_session": "5"}, "lender_session"),
        ({"slots": "ff"}, "slots"),
        ({"slots": "0x" + "0" * 62}, "slots"),
        ({"slots": 255}, "slots"),
        ({"note": 5}, "note"),
        ({"note": "????"}, "note"),
        ({"note": "AAAA"}, "note"),
        ({"from": 8}, "note"),
    ],
)
def test_a_hostile_field_is_refused_by_name(change: dict[str, object], message: str) -> None:
    data = json.dumps(json.loads(encode_loan(LOAN)) | change).encode()
    with pytest.raises(ValueError, match=message):
        decode_loan(data)


@pytest.mark.parametrize("decode", [decode_loan, decode_report])
@pytest.mark.parametrize(
    "data", [b"", b"7", b"[]", b"\xff\xfe", b"[" * 100_000, b"{" * 10, b'{"version":1}', b" " * (MOST_NODE_BYTES + 1)]
)
def test_other_bytes_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        decode(data)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 20))
def test_damaged_loans_are_read_or_refused(noise: bytes, at: int, cut: int) -> None:
    data = encode_loan(LOAN)
    try:
        decode_loan(data[:at] + noise + data[at + cut :])
    except ValueError:
        pass
