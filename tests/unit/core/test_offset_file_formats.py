"""The files of a migration: what the Java tool writes is read, and what we write comes back unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.core.offset_file_formats import UndoFile, format_csv, format_undo_file, parse_csv, parse_undo_file
from zkconsumer.core.offset_move_plan import SavedEntry, Store, StoreEntry
from zkconsumer.model import TopicPartition

OFFSETS = {TopicPartition("b", 10): 0, TopicPartition("a", 0): 2**63 - 1, TopicPartition("b", 9): 7}
TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True).filter(lambda name: name not in (".", ".."))


def test_the_lines_are_those_of_the_java_tool() -> None:
    assert format_csv(OFFSETS) == f"a,0,{2**63 - 1}\nb,9,7\nb,10,0\n"
    assert format_csv({TopicPartition("b", 9): 7}, "g") == "g,b,9,7\n"


def test_the_java_tools_quotes_around_long_names_are_read() -> None:
    text = '"a-topic-with-more-than-24-characters",0,5\r\n"t","1","6"\n\n'
    assert parse_csv(text, "g") == {
        TopicPartition("a-topic-with-more-than-24-characters", 0): 5,
        TopicPartition("t", 1): 6,
    }


def test_of_lines_with_groups_those_of_ours_count() -> None:
    assert parse_csv("g,t,0,5\nother,t,0,6\ng,t,1,7\n", "g") == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}


@given(st.dictionaries(st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)))
def test_what_is_written_is_read_back(offsets: dict[TopicPartition, int]) -> None:
    assert parse_csv(format_csv(offsets), "g") == offsets
    assert parse_csv(format_csv(offsets, "g"), "g") == offsets
    assert parse_csv(format_csv(offsets, "g"), "h") == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("t,0", "is wanted"),
        ("t,x,5", "'x' is no partition"),
        ("t,0,-1", "'-1' is no offset"),
        ("t,0,9223372036854775808", "is no offset"),
        ("t,2147483648,1", "is no partition"),
        ("a/b,0,5", "no topic"),
        (",0,5", "no topic"),
        ("g,t,0,5,6", "is wanted"),
        ("u,0,6", "u-0 was named before"),
        ('"t,0,5', "line 2"),
        ("t,0,5,", "'0' is no topic|'' is no offset"),
        ("other,t,0,x", "'x' is no offset"),
        ("other,t,0,7", "4 columns, and 3 before"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        parse_csv(f"u,0,5\n{line}\n", "g")
    assert str(raised.value).startswith("line ")


TEXTS = st.binary(max_size=8).map(lambda data: data.decode("utf-8", "surrogateescape"))


@st.composite
def entries(draw: st.DrawFn) -> StoreEntry:
    offset = draw(st.none() | st.integers(-1, 2**63 - 1))
    signs = ("", "-0") if offset == 0 else ("", "+0", "0") if offset is not None and offset > 0 else ("",)
    text = draw(TEXTS) if offset is None else draw(st.sampled_from(["", *(f"{sign}{offset}" for sign in signs)]))
    return StoreEntry(offset, draw(st.text(max_size=5)), text, draw(st.text(max_size=5)), draw(st.integers(-1, 5)))


SAVED = st.builds(SavedEntry, st.none() | entries(), st.none() | entries())


@given(st.dictionaries(st.builds(TopicPartition, TOPICS, st.integers(0, 99)), SAVED), st.sampled_from(Store))
def test_a_backup_is_read_back_exactly(saved: dict[TopicPartition, SavedEntry], store: Store) -> None:
    backup = UndoFile("g", store, "h:2181/root", "2026-01-02T03:04:05Z", saved)
    text = format_undo_file(backup)
    assert text.isascii()
    assert parse_undo_file(text) == backup


def test_a_backup_can_be_read_by_people() -> None:
    saved = {TopicPartition("t", 0): SavedEntry(None, StoreEntry(7))}
    lines = format_undo_file(UndoFile("g", Store.KAFKA, "h", "now", saved)).splitlines()
    assert '    {"topic": "t", "partition": 0, "before": null, "wrote": {"offset": 7}}' in lines


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: [],
        lambda document: {**document, "format": "another"},
        lambda document: {**document, "version": 2},
        lambda document: {**document, "store": "elsewhere"},
        lambda document: {key: value for key, value in document.items() if key != "group"},
        lambda document: {**document, "partitions": {}},
        lambda document: {**document, "partitions": [{"topic": "t"}]},
        lambda document: {**document, "partitions": [{"topic": "t", "partition": True, "before": None, "wrote": None}]},
        lambda document: {
            **document,
            "partitions": [{"topic": "t", "partition": 0, "before": None, "wrote": {"offset": "1"}}],
        },
    ],
)
def test_a_damaged_backup_is_refused(damage: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads(
        format_undo_file(
            UndoFile("g", Store.KAFKA, "h", "now", {TopicPartition("t", 0): SavedEntry(None, StoreEntry(7))})
        )
    )
    with pytest.raises(ValueError):
        parse_undo_file(json.dumps(damage(document)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"partition": -3}, "-3 is no whole number from 0"),
        ({"partition": 2**31}, "2147483648 is no whole number"),
        ({"before": {"offset": 2**63}}, "9223372036854775808 is no whole number"),
        ({"before": {"offset": float("nan")}}, "nan is no whole number"),
        ({"before": [1]}, "is no entry"),
        ({"before": "offset"}, "is no entry"),
        ({"before": {"offset": 5, "text": "77"}}, "t-0 has the offset 5 and the text '77'; change both"),
        ({"before": {"offset": 50, "text": "5_0"}}, "the text '5_0'"),
        ({"before": {"offset": None, "text": "\ud800"}}, "surrogates not allowed"),
        ({"before": {"offset": 5, "metadata": "m" * 2**15}}, "t-0 has metadata of more than 32767 bytes"),
        ({"before": {"offset": 5, "leader_epoch": 2**31}}, "2147483648 is no whole number"),
        ({"topic": "u"}, "u-1 stands in it twice"),
    ],
)
def test_an_entry_that_must_not_be_written_is_refused(change: dict[str, Any], says: str) -> None:
    saved = {TopicPartition("t", 0): SavedEntry(None, None), TopicPartition("u", 1): SavedEntry(None, None)}
    document = json.loads(format_undo_file(UndoFile("g", Store.ZOOKEEPER, "h", "now", saved)))
    document["partitions"][0] |= change | ({"partition": 1} if "topic" in change else {})
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_undo_file(json.dumps(document))


@pytest.mark.parametrize("text", ["topic,0,5", "[" * 200_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_undo_file(text)
