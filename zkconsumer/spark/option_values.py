"""The values of single options: from text to typed values. Pure: no I/O, no Spark.

Each function raises ValueError that says what is wrong.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from zkconsumer.core.names import name_problem
from zkconsumer.model import TopicPartition
from zkconsumer.spark.offset_ranges import EARLIEST, GROUP, LATEST, OffsetChoice


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def seconds(text: str) -> float:
    """Return a number of seconds, perhaps with a fraction."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ValueError("must be a number of seconds, such as 30 or 2.5")
    return value


_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def duration(text: str) -> float:
    """Return the seconds of a duration as Spark writes it: "500ms", "90s", "15m" or "15min", "2h", "1d"; a number
    without a unit is milliseconds.
    """
    found = re.fullmatch(r"([0-9]{1,15})([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError("must be a duration such as 500ms, 30s, 15m, 2h or 1d")
    return int(found[1]) * _UNITS[found[2]]


def flag(text: str) -> bool:
    """Return true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def choice(*words: str) -> Any:
    """Return a function that takes one of these words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return text

    return read


def not_empty(text: str) -> str:
    """Return a text that is not empty."""
    if not text:
        raise ValueError("must not be empty")
    return text


def _topic(name: str) -> str:
    problem = name_problem(name)
    if problem is not None:
        raise ValueError(problem)
    return name


def topics(text: str) -> tuple[str, ...]:
    """Return names of topics, which are separated by commas."""
    return tuple(sorted({_topic(name.strip()) for name in text.split(",")}))


def assigned(text: str) -> tuple[TopicPartition, ...]:
    """Return partitions named in JSON."""
    example = 'must be JSON such as {"topic":[0,1]}'
    topics = _json(text, example)
    if not all(isinstance(numbers, list) and numbers for numbers in topics.values()):
        raise ValueError(example)
    return tuple(sorted({_partition(topic, number, example) for topic, ns in topics.items() for number in ns}))


def _partition(topic: str, number: object, example: str) -> TopicPartition:
    if type(number) is not int or not 0 <= number < 2**31:
        raise ValueError(f"{number!r} is no partition; {example}")
    return TopicPartition(_topic(topic), number)


def _json(text: str, example: str) -> dict[str, Any]:
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        found = None
    if repeated:  # json keeps only the last value of a name, so the values before would be lost unseen
        raise ValueError(f"its JSON names {repeated[0]!r} twice")
    if not isinstance(found, dict) or not found:
        raise ValueError(example)
    return found


def _by_partition(text: str, example: str, accepts: Callable[[int], bool], what: str) -> dict[TopicPartition, int]:
    """Return the numbers that JSON names for partitions, as topic -> partition -> number."""
    named: dict[TopicPartition, int] = {}
    for topic, partitions in _json(text, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(example)
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit()):
                raise ValueError(f"{partition!r} is no partition; {example}")
            if type(number) is not int or not accepts(number):
                raise ValueError(f"{number!r} is no {what} here; {example}")
            tp = _partition(topic, int(partition), example)
            if tp in named:  # "0" and "00"
                raise ValueError(f"its JSON names {tp} twice")
            named[tp] = number
    return named


def timestamps(text: str) -> OffsetChoice:
    """Return the places of times that JSON names for single partitions."""
    example = 'must be JSON with milliseconds since 1970, such as {"topic":{"0":1700000000000,"1":1700000000000}}'
    return OffsetChoice("timestamp", times=_by_partition(text, example, lambda time: 0 <= time < 2**63, "time"))


def timestamp(text: str) -> OffsetChoice:
    """Return the place of a time in milliseconds since 1970."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError("must be milliseconds since 1970")
    return OffsetChoice("timestamp", time=int(text))


def offsets(text: str, symbols: set[int], refused: str = "") -> OffsetChoice:
    """Return a word, or the offsets that JSON names.

    ``symbols`` are numbers that may stand for an offset; ``refused`` is a word that makes no sense here.
    """
    words = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}
    word = text.lower()
    if word == refused:
        raise ValueError("nothing lies before it")
    if word in words:
        return words[word]
    example = 'must be earliest, latest, group, or JSON such as {"topic":{"0":23,"1":-1}}'
    return OffsetChoice(
        "given", _by_partition(text, example, lambda offset: 0 <= offset < 2**63 or offset in symbols, "offset")
    )
