"""Java's .properties text. The expected values of the table are what java.util.Properties of Java 17 read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.config.java_properties import parse_properties

CASES = {
    "group.id=g": {"group.id": "g"},
    "group.id = g": {"group.id": "g"},
    "group.id : g": {"group.id": "g"},
    "group.id:g": {"group.id": "g"},
    "group.id g": {"group.id": "g"},
    "\t\f group.id\t\f=\t g ": {"group.id": "g "},
    "a = = b": {"a": "= b"},
    "a==b": {"a": "=b"},
    "a:=b": {"a": "=b"},
    "a  b=c": {"a": "b=c"},
    "a": {"a": ""},
    "a=": {"a": ""},
    "=b": {"": "b"},
    "": {},
    "\n\r\n  \t\n": {},
    "# a=1\n  ! b=2\nc=3#not": {"c": "3#not"},
    "# a comment does not continue\\\na=1": {"a": "1"},
    "a=1\\\n# no comment": {"a": "1# no comment"},
    "a=x,\\\n   y,\\\r\n\tz": {"a": "x,y,z"},
    "a=x\\\\\nb=y": {"a": "x\\", "b": "y"},
    "a=x\\\\\\\ny": {"a": "x\\y"},
    "a=x\\\n\nb=y": {"a": "x", "b": "y"},
    "a=x\\": {"a": "x"},
    "\\\n# comment after all\nb=1": {"b": "1"},
    "a\\ b\\:c\\=d=e": {"a b:c=d": "e"},
    "a=\\ b": {"a": " b"},
    "a=\\t\\n\\r\\f\\q\\\\": {"a": "\t\n\r\fq\\"},
    "a=\\u00e9\\u0041": {"a": "éA"},
    "a=\\uD83D\\uDE00": {"a": "\U0001f600"},
    "a=\xe9": {"a": "é"},
    "a=1\ra=2": {"a": "2"},
    "c:\\temp=1": {"c": "\temp=1"},
}


@pytest.mark.parametrize("text", CASES)
def test_reads_what_java_reads(text: str) -> None:
    assert parse_properties(text) == CASES[text]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u", "a=\\u00zz", "a\\u=1", "a=\\u 041"])
def test_a_broken_escape_is_named_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match="line 3: .*four hexadecimal digits"):
        parse_properties(f"# one\nb=2\n{text}\n")


def test_the_line_of_an_error_is_where_its_entry_begins() -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_properties("a=1\nb=x\\\n  y\\\n  \\u1\n")


def escaped(text: str) -> str:
    units = [int.from_bytes(pair) for pair in zip(*[iter(text.encode("utf-16-be"))] * 2, strict=True)]
    return "".join(
        f"\\{chr(unit)}" if chr(unit) in " =:#!\\" else chr(unit) if 0x20 < unit < 0x7F else f"\\u{unit:04X}"
        for unit in units
    )


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_the_lines_of_java_are_read_back(properties: dict[str, str]) -> None:
    """``java.util.Properties`` writes ASCII: it escapes separators, line ends and all other characters."""
    text = "".join(f"{escaped(key)}={escaped(value)}\n" for key, value in properties.items())
    assert parse_properties(text) == properties


@given(st.text(st.sampled_from("ab=: \t\f\r\n\\#!u0123é")))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        properties = parse_properties(text)
    except ValueError as error:
        assert "line" in str(error)  # noqa: PT017
    else:
        assert all(isinstance(part, str) for pair in properties.items() for part in pair)
