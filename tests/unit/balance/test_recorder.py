"""The checks of ``tests.balance_recorder``: each of them finds what it is for, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.balance_recorder import (
    DONE,
    NEVER,
    SUFFIX,
    Ended,
    Handling,
    Noted,
    Place,
    Recorder,
    Records,
    again_although_noted,
    disorder,
    late,
    lost,
    overlaps,
    read_records,
    repeated,
)
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.unfinished_offsets import Finished

KEY = b"k"
A, B = 1, 2
"""Sessions, and processes."""


def place(offset: int) -> Place:
    return Place("t", 0, offset)


def handled(
    offset: int, begin: int, end: int = NEVER, *, by: int = A, key: bytes | None = KEY, outcome: str = ""
) -> Handling:
    told = outcome or (DONE if end != NEVER else "")
    return Handling("ab"[by - 1], by, by, place(offset), key, begin, end, told)


def records(*handlings: Handling, **more: object) -> Records:
    found = Records(sorted(handlings, key=lambda one: one.begin))
    for name, value in more.items():
        setattr(found, name, value)
    return found


def test_a_killed_writer_loses_no_line_but_the_torn_one(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a", lambda: 7)
    first = recorder.begin(place(0), b"\xff")
    recorder.begin(place(1), None)
    recorder.end(first)
    with next(tmp_path.glob(f"*{SUFFIX}")).open("ab") as file:
        file.write(b'{"t":1,"e":"en')
    one, other = read_records(tmp_path).handlings
    assert (one.place, one.key, one.session, one.pid, one.done) == (place(0), b"\xff", 7, os.getpid(), True)
    assert (other.place, other.key, other.end, other.done) == (place(1), None, NEVER, False)
    assert one.begin < one.end
    recorder.close()


def test_lost_is_what_was_never_done_and_is_not_dead() -> None:
    found = records(handled(0, 1, 2), handled(1, 3, 4, outcome="failed"), handled(2, 5))
    assert lost(found, map(place, range(5)), dead=[place(3)]) == [place(1), place(2), place(4)]
    assert lost(found, [place(0)]) == []


def test_repeated_counts_what_began_after_it_was_done() -> None:
    found = records(
        handled(0, 1, 2, outcome="failed"), handled(0, 3, 4), handled(1, 1, 9), handled(1, 5, 6), handled(2, 1, 2)
    )
    assert repeated(found) == {}, "a failed one comes again, and what overlaps was not done"
    found = records(handled(0, 1, 2), handled(0, 3, 4, by=B), handled(0, 5))
    assert repeated(found) == {place(0): 2}


@pytest.mark.parametrize(
    ("note", "wrong"),
    [
        (FinishedNote(4), 1),
        (FinishedNote(3), 0),
        (FinishedNote(1, (Finished(1, 5, (1,)),)), 1),
        (FinishedNote(1, (Finished(1, 5, (1, 3)),)), 0),
        (None, 0),
    ],
)
def test_what_was_noted_must_not_be_begun_again(note: FinishedNote | None, wrong: int) -> None:
    handlings = handled(3, 1, 2), handled(3, 10, 11, by=B)
    found = records(*handlings, noted={("t", 0): [Noted(0, FinishedNote(0)), Noted(5, note)]})
    assert len(again_although_noted(found)) == wrong
    assert again_although_noted(found, anew={("t", 0): 9}) == [], "somebody else wrote the offset before"
    assert len(again_although_noted(found, anew={("t", 0): 11})) == wrong
    found = records(*handlings, noted={("t", 0): [Noted(0, FinishedNote(0)), Noted(10, note)]})
    assert again_although_noted(found) == [], "noted too late"


def test_a_failed_message_comes_again_though_it_was_passed() -> None:
    """The base passes a parked message, which nobody has finished."""
    found = records(
        handled(3, 1, 2, outcome="failed"), handled(3, 10, 11), noted={("t", 0): [Noted(5, FinishedNote(9))]}
    )
    assert again_although_noted(found) == []


@pytest.mark.parametrize(("parked", "wrong"), [((3,), 0), ((4,), 1), ((), 1)])
def test_a_parked_message_counts_once_its_pointer_is_gone(parked: tuple[int, ...], wrong: int) -> None:
    """The offset has passed it. If the session ends before the next commit, the pointer is still there."""
    handlings = handled(3, 1, 2, outcome="failed"), handled(3, 6, 7), handled(3, 10, 11, by=B)
    found = records(*handlings, noted={("t", 0): [Noted(5, FinishedNote(9), (3,)), Noted(8, FinishedNote(9), parked)]})
    assert len(again_although_noted(found)) == wrong


@pytest.mark.parametrize(
    ("first", "second", "more", "wrong", "zombies"),
    [
        (handled(0, 1, 5), handled(1, 5, 6), {}, 0, 0),
        (handled(0, 1, 5), handled(1, 4, 6), {}, 1, 0),
        (handled(0, 1, 5), handled(1, 4, 6, by=B), {}, 1, 0),
        (handled(0, 1, 5), handled(1, 4, 6, key=b"other"), {}, 0, 0),
        (handled(0, 1, 5, key=None), handled(1, 4, 6, key=None), {}, 0, 0),
        (handled(0, 1, 5, key=None), handled(0, 4, 6, key=None, by=B), {}, 1, 0),
        (handled(0, 1), handled(1, 4, 6, by=B), {}, 1, 0),
        (handled(0, 1), handled(1, 4, 6, by=B), {"processes": {A: Ended(4, 5)}}, 0, 0),
        (handled(0, 1), handled(1, 4, 6, by=B), {"processes": {A: Ended(5, 6)}}, 1, 0),
        (handled(0, 1, 9), handled(1, 4, 6, by=B), {"sessions": {A: Ended(4, 5)}}, 0, 1),
        (handled(0, 1, 9), handled(1, 4, 6, by=B), {"sessions": {A: Ended(5, 7)}}, 1, 0),
        (handled(0, 1, 9), handled(1, 4, 6, by=B), {"sessions": {B: Ended(3, 3)}}, 0, 1),
        (handled(0, 1, 9), handled(1, 4, 6, by=B), {"sessions": {B: Ended(8, 8)}}, 1, 0),
    ],
)
def test_two_handlers_of_one_key(
    first: Handling, second: Handling, more: dict[str, object], wrong: int, zombies: int
) -> None:
    found = overlaps(records(first, second, **more))
    assert (len(found.wrong), len(found.zombies)) == (wrong, zombies)


def test_late_is_a_begin_after_the_end_of_the_session() -> None:
    found = records(handled(0, 1, 9), handled(1, 5, 6), handled(2, 9, 10), sessions={A: Ended(3, 7)})
    assert [text.split()[0] for text in late(found)] == ["t-0@2"]


@pytest.mark.parametrize(
    ("handlings", "wrong"),
    [
        ([handled(0, 1, 2), handled(1, 2, 3)], 0),
        ([handled(0, 1, 3), handled(1, 2, 4)], 1),
        ([handled(1, 1, 2), handled(0, 3, 4)], 1),
        ([handled(1, 1, 2)], 1),
        ([handled(0, 1, 2, outcome="failed"), handled(1, 3, 4), handled(0, 5, 6)], 1),
        ([handled(0, 1, 2), handled(1, 3, 4), handled(0, 5, 6, by=B), handled(1, 7, 8, by=B)], 0),
        ([handled(0, 1, 2), handled(1, 3, 4), handled(3, 5, 6)], 0),
    ],
)
def test_order_within_a_key(handlings: list[Handling], wrong: int) -> None:
    keys: dict[Place, bytes | None] = {place(0): KEY, place(1): KEY, place(2): b"other", place(3): None}
    assert len(disorder(records(*handlings), keys)) == wrong


def test_dead_letters_hold_nothing_up() -> None:
    handlings = handled(0, 1, 2, outcome="failed"), handled(1, 3, 4)
    assert len(disorder(records(*handlings), {place(0): KEY, place(1): KEY})) == 1
    assert disorder(records(*handlings), {place(0): KEY, place(1): KEY}, passed=[place(0)]) == []
