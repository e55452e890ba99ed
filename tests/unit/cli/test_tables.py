"""Tables of the commands: their three forms, and hostile text in them."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.cli.tables import CSV, JSON, Column, Table, render
from zkconsumer.operations.printable import printable

TABLE = Table(
    ["GROUP", Column("LAG", 6), "#MEMBERS", "TOPICS"], [["g", 3, None, ["a", "b"]], ["long-one", None, 2, []]]
)


def test_a_text_table_is_aligned_and_shows_what_is_missing() -> None:
    assert render(TABLE).splitlines() == [
        "GROUP    LAG    #MEMBERS TOPICS",
        "g        3      -        a, b",
        "long-one -      2        -",
    ]


def test_a_csv_table_has_titles_and_empty_fields() -> None:
    assert render(TABLE, CSV).splitlines() == ["GROUP,LAG,#MEMBERS,TOPICS", 'g,3,,"a, b"', "long-one,,2,"]


def test_a_json_table_is_a_list_of_objects() -> None:
    assert json.loads(render(TABLE, JSON)) == [
        {"group": "g", "lag": 3, "number_members": None, "topics": ["a", "b"]},
        {"group": "long-one", "lag": None, "number_members": 2, "topics": []},
    ]


def test_one_huge_value_does_not_widen_all_rows() -> None:
    huge = "x" * 100_000
    rows: list[list[str | int]] = [[huge, 1]]
    rows += [["a", number] for number in range(100)]
    text = render(Table(["A", "B"], rows))
    assert f"{huge} 1" in text
    assert len(text) < 200_000


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table(["A"], [["a", "b"]])


def test_a_table_without_rows_has_its_titles() -> None:
    assert (render(Table(["A", "B"], [])), render(Table(["A"], []), JSON)) == ("A B", "[]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\x1b[2J", r"\x1b[2J"), ("a\nb", r"a\nb"), ("\u202eb", r"\u202eb"), ("\udc80", r"\udc80"), ("größe", "größe")],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(), st.text())
def test_no_form_hands_a_control_character_on(one: str, two: str) -> None:
    table = Table(["A", "B", "C"], [[one, two, [one, two]]])
    for form in ("table", CSV, JSON):
        assert all(line.isprintable() for line in render(table, form).split("\n"))
    assert json.loads(render(table, JSON)) == [{"a": one, "b": two, "c": [one, two]}]
    assert len(list(csv.reader(io.StringIO(render(table, CSV))))) == 2
