"""Topic filters: the topics of a wildcard subscription. Pure; any thread.

Mirrors ``kafka.consumer.TopicFilter``: a filter normalises its text, compiles it as a *Java* expression and matches
whole names. Differs on purpose: a match has a time limit. Otherwise one expression like ``(a+)+$`` in one member's
registration would stop every member of the group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

import regex  # type: ignore[import-untyped]

from zkconsumer.core.java_regex import (
    MAX_SPELLED_OUT,
    InvalidTopicFilterError,
    UntranslatableTopicFilterError,
    translate_with_size,
)
from zkconsumer.core.java_regex_lexer import MOST_SHOWN
from zkconsumer.core.registration import BLACK_LIST, WHITE_LIST
from zkconsumer.errors import ZkConsumerError

T = TypeVar("T")

_ENTRY = 64
"""The least size of an entry."""


class SizedCache(Generic[T]):
    """Keeps the entries that were used last. Argument: ``limit`` is the total size, in the unit of the sizes.

    A limit on the number of entries would not bound memory, because other members decide the size of an entry. Any
    thread: each step is one operation of a dictionary. Two threads at once may at worst cache less.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[Hashable, tuple[T, int]] = {}
        self._total = 0

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached value of ``key``, or that of ``make``. Raises what ``make`` raises, and caches nothing."""
        found = self._entries.pop(key, None)
        if found is not None:
            self._entries[key] = found  # at the end: the entry that was used last stays longest
            return found[0]
        value = make()
        cost = _ENTRY + size(value)
        if cost <= self._limit:
            self._entries[key] = value, cost
            self._total += cost
            if self._total > self._limit:
                self._evict()
        return value

    def _evict(self) -> None:
        """Drop the oldest entries, and an eighth more than needed, so that this happens seldom."""
        entries = list(self._entries.items())
        total = sum(cost for _, (_, cost) in entries)
        for key, (_, cost) in entries[:-1]:
            if total <= self._limit - self._limit // 8:
                break
            with suppress(KeyError):
                del self._entries[key]
            total -= cost
        self._total = total


__all__ = [
    "INTERNAL_TOPICS",
    "MATCH_SECONDS",
    "Blacklist",
    "InvalidTopicFilterError",
    "TopicFilter",
    "TopicFilterTimeoutError",
    "UntranslatableTopicFilterError",
    "Whitelist",
]

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's own topics. Scala members up to 0.10.2 know only the first, so a broad wildcard may match differently."""

MATCH_SECONDS = 1.0
"""The time limit for matching one topic."""

CACHED_CHARACTERS = 2 * MAX_SPELLED_OUT
"""The size of the cache of compiled patterns, in characters, repetitions spelled out. Each takes 100 to 250 bytes."""

_JAVA_BLANKS = "".join(map(chr, range(33)))
_LEADING_QUOTES = re.compile("\\A[\"']+")
_TRAILING_QUOTES = re.compile("[\"']+(?=(?:\r\n|[\n\r\x85\u2028\u2029])?\\Z)")


class TopicFilterTimeoutError(ZkConsumerError):
    """Matching a ``topic`` took longer than allowed; ``expression`` is the filter's."""

    def __init__(self, expression: str, topic: str, seconds: float) -> None:
        shown = expression if len(expression) <= MOST_SHOWN else f"{expression[:MOST_SHOWN]}..."
        super().__init__(f"topic filter: {shown!r} did not finish matching {topic!r} within {seconds:g} s")
        self.expression = expression
        self.topic = topic


def normalised(text: str) -> str:
    """Return ``text`` as the original rewrites it, so that property files may quote a list and lists may use commas.

    The steps in their order: trim; turn every comma into a bar; remove every blank; remove a leading and a trailing run
    of quotes. So ``a{1,2}`` is an error, and ``'a','b'`` matches neither a nor b.
    """
    text = text.strip(_JAVA_BLANKS).replace(",", "|").replace(" ", "")
    return _TRAILING_QUOTES.sub("", _LEADING_QUOTES.sub("", text))


_COMPILED: SizedCache[tuple[regex.Pattern[str], int]] = SizedCache(CACHED_CHARACTERS)


def _compiled(expression: str) -> regex.Pattern[str]:
    return _COMPILED.get(expression, lambda: _compile(expression), lambda made: made[1])[0]


def _compile(expression: str) -> tuple[regex.Pattern[str], int]:
    try:
        text, size = translate_with_size(expression)
        # the regex package would cache 500 patterns of any size
        return regex.compile(text, regex.VERSION1, cache_pattern=False), size
    except (regex.error, OverflowError, MemoryError, RecursionError) as error:
        raise UntranslatableTopicFilterError(expression, 0, f"cannot be expressed here: {error}") from error


class TopicFilter:
    """A set of topics given by an expression. Use :class:`Whitelist` or :class:`Blacklist`.

    ``regex`` is the normalised text, which also stands in the registration.

    Arguments: ``text`` is in Java's syntax; ``match_seconds`` is the time limit of one match. Raises
    InvalidTopicFilterError for an expression that Java refuses, and its subclass UntranslatableTopicFilterError for one
    whose meaning in Java the ``regex`` package cannot express.
    """

    __slots__ = ("_compiled", "_match_seconds", "regex")

    pattern: ClassVar[str]
    """``white_list`` or ``black_list``, as it stands in the registration."""
    _allows_matches: ClassVar[bool]

    def __init__(self, text: str, *, match_seconds: float = MATCH_SECONDS) -> None:
        self.regex = normalised(text)
        self._compiled = _compiled(self.regex)
        self._match_seconds = match_seconds

    @staticmethod
    def from_registration(pattern: str, text: str) -> TopicFilter:
        """Return the filter in a member's registration. Its text is normalised again, as in the original.

        Raises ValueError if ``pattern`` is no wildcard, and the errors of the constructor.
        """
        for kind in (Whitelist, Blacklist):
            if kind.pattern == pattern:
                return kind(text)
        raise ValueError(f"{pattern!r} is neither {WHITE_LIST} nor {BLACK_LIST}")

    def allows(self, topic: str, exclude_internal_topics: bool) -> bool:
        """Return whether ``topic`` is in the set. Raises TopicFilterTimeoutError.

        ``exclude_internal_topics`` keeps Kafka's own topics out of every set.
        """
        if exclude_internal_topics and topic in INTERNAL_TOPICS:
            return False
        try:
            matched = self._compiled.match(topic, timeout=self._match_seconds) is not None
        except TimeoutError:
            raise TopicFilterTimeoutError(self.regex, topic, self._match_seconds) from None
        return matched is self._allows_matches

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, TopicFilter) and other.regex == self.regex

    def __hash__(self) -> int:
        return hash((self.pattern, self.regex))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.regex!r})"


class Whitelist(TopicFilter):
    """The topics whose whole name matches: ``create_message_streams_by_filter(Whitelist("logs-.*"), 2)``."""

    __slots__ = ()
    pattern = WHITE_LIST
    _allows_matches = True


class Blacklist(TopicFilter):
    """The topics whose whole name does not match: ``Blacklist("test-.*|tmp")``."""

    __slots__ = ()
    pattern = BLACK_LIST
    _allows_matches = False
