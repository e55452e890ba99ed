"""Whitelists and blacklists: the original's normalisation, Java's meaning, and an end to every match."""

from __future__ import annotations

from time import process_time

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.core.java_expressions import JAVA
from zkconsumer.core.java_regex import translate
from zkconsumer.core.topic_filter import (
    Blacklist,
    InvalidTopicFilterError,
    TopicFilter,
    TopicFilterTimeoutError,
    UntranslatableTopicFilterError,
    Whitelist,
    normalised,
)
from zkconsumer.errors import ConfigException


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, b", "a|b"),
        ('"t , logs-[a-z]"', "t|logs-[a-z]"),
        ("'a','b'", "a'|'b"),
        ("", ""),
        ("a{1,3}", "a{1|3}"),
        ("\t a \n", "a"),
        ("\"'a'\"", "a"),
        ('a"b', 'a"b'),
        ("a b", "ab"),
        ("a\tb", "a\tb"),
        ('a"\x85', "a\x85"),
        ("\xa0a", "\xa0a"),
    ],
)
def test_the_text_is_normalised_as_the_original_does(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_a_whitelist_allows_whole_names_only() -> None:
    wanted = Whitelist("white1,white2")
    assert wanted.regex == "white1|white2"
    assert [t for t in ("white1", "white2", "white12", "awhite1", "white") if wanted.allows(t, True)] == [
        "white1",
        "white2",
    ]


def test_a_blacklist_allows_the_rest() -> None:
    assert [t for t in ("a", "b", "ab") if Blacklist("a|b").allows(t, True)] == ["ab"]


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("wanted", [Whitelist(".+"), Blacklist("x")])
def test_internal_topics_need_the_flag(wanted: TopicFilter, topic: str) -> None:
    assert not wanted.allows(topic, True)
    assert wanted.allows(topic, False)


def test_the_empty_text_matches_the_empty_name_only() -> None:
    assert not Whitelist("").allows("a", True)
    assert Whitelist("").allows("", True)


@pytest.mark.parametrize(("expression", "yes", "no"), JAVA, ids=[expression for expression, _, _ in JAVA])
def test_an_expression_means_what_it_means_in_java(expression: str, yes: list[str], no: list[str]) -> None:
    compiled = regex.compile(translate(expression), regex.VERSION1)
    assert [name for name in yes + no if compiled.match(name)] == yes


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("[", 0),
        ("a(b", 1),
        ("a)", 1),
        ("a**", 2),
        ("*", 0),
        ("\\", 0),
        ("ab(?P<n>a)", 4),
        ("(?#c)", 2),
        ("a{", 1),
        ("a{1", 3),
        ("a{,2}", 1),
        ("a{3,2}", 1),
        ("[z-a]", 1),
        (r"[a-\d]", 1),
        (r"\y", 0),
        (r"\p{Foo}", 0),
        (r"\p{InNowhere}", 0),
        ("(?<a>x)(?<a>y)", 7),
        (r"\k<a>", 0),
        (r"\x6", 0),
        ("(?i)*", 4),
        ("[a&&", 4),
        ("(?<=a|b{1)", 9),
    ],
)
def test_an_expression_that_java_refuses_is_refused(expression: str, position: int) -> None:
    """The error names the expression, the position and the reason."""
    with pytest.raises(InvalidTopicFilterError) as caught:
        translate(expression)
    assert caught.value.expression == expression
    assert caught.value.position == position
    assert repr(expression) in str(caught.value)
    assert isinstance(caught.value, ConfigException)
    assert not isinstance(caught.value, UntranslatableTopicFilterError)


@pytest.mark.parametrize(
    "expression",
    [
        r"(?i)(a)\1",
        r"\b{g}",
        r"\p{javaMirrored}",
        "(?<=a*)b",
        "(" * 101 + ")" * 101,
        "[" * 101 + "a" + "]" * 101,
        r"[\d_&&]",
        "[a-cd&&]",
        "[a" + "&&[a]" * 101 + "]",
    ],
)
def test_what_cannot_be_translated_is_refused_as_such(expression: str) -> None:
    with pytest.raises(UntranslatableTopicFilterError):
        translate(expression)


def test_a_comma_breaks_a_quantifier_as_in_the_original() -> None:
    with pytest.raises(InvalidTopicFilterError):
        Whitelist("(a|b){1,2}")


def test_an_endless_match_is_ended() -> None:
    """The error names the expression and the topic."""
    wanted = Whitelist("(a|aa)+$.", match_seconds=0.05)
    with pytest.raises(TopicFilterTimeoutError, match=r"did not finish matching 'aaa") as caught:
        wanted.allows("a" * 3000, True)
    assert caught.value.expression == "(a|aa)+$."


def test_a_filter_is_made_from_a_registration_verbatim() -> None:
    assert TopicFilter.from_registration("white_list", r"a\.b") == Whitelist(r"a\.b")
    assert TopicFilter.from_registration("black_list", "a") == Blacklist("a")
    assert TopicFilter.from_registration("black_list", "a") != Whitelist("a")
    with pytest.raises(ValueError, match="static"):
        TopicFilter.from_registration("static", "a")


PIECES = r"""
    a b ab [ ] [^ && - a-c ( ) (?: (?i) (?= (?<= (?<n> \k<n> \1 * + ? { } {2} | . ^ $ \b \w \W \p{L} \Q \E \x61
    \\ (?x) # é
"""


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=8).map("".join) | st.text(max_size=12))
@example("[" * 3000)
@example("(" * 3000)
@example("((a{4000}){4000}){4000}")
def test_any_text_is_a_filter_or_an_invalid_filter(text: str) -> None:
    try:
        wanted = Whitelist(text, match_seconds=0.2)
    except InvalidTopicFilterError:
        return
    for topic in ("", "a", "ab", "aab", "é"):
        assert wanted.allows(topic, True) in (True, False)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8))
def test_a_quoted_text_matches_itself(text: str) -> None:
    compiled = regex.compile(translate("\\Q" + text.replace("\\E", "") + "\\E"), regex.VERSION1)
    assert compiled.match(text.replace("\\E", ""))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("x" * 40_000, "an expression of 40000 characters is larger than 32768"),
        ("|".join(f"topic-{number}" for number in range(40_000)), "is larger than 32768"),
        (r"\b" * 15_000, "spelled out it is larger than 131072"),
        ("(a{4096})" * 100, "spelled out it is larger than 131072"),
        ("(((a{50}){50}){50})", "spelled out it is larger than 131072"),
        ("(((a{2000}){2000}){2000}){2000}", "spelled out it is larger than 131072"),
    ],
)
def test_an_expression_that_is_too_large_is_refused(expression: str, reason: str) -> None:
    """One of 16 kB took 1.7 GB, one of 450 kB 28 s and 150 MB that were not given back."""
    before = process_time()
    with pytest.raises(UntranslatableTopicFilterError, match=reason) as refused:
        Whitelist(expression)
    assert process_time() - before < 5
    assert len(str(refused.value)) < 500


def test_a_large_expression_within_the_limits_is_taken() -> None:
    names = [f"topic-{number:04}" for number in range(2500)]
    wanted = Whitelist("|".join(names))
    assert [wanted.allows(name, exclude_internal_topics=True) for name in (names[0], "other", names[-1])] == [
        True,
        False,
        True,
    ]
