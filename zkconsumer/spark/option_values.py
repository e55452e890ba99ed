"""The values of single options: from text to typed values. Pure: no I/O, no Spark.

Each function raises ValueError that says what is wrong.
"""

from __future__ import annotations

import json
import math
from typing import Any

from zkconsumer.core.node_names import name_problem
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
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise ValueError(example)
    return found


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
    given: dict[TopicPartition, int] = {}
    for topic, partitions in _json(text, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(example)
        for number, offset in partitions.items():
            if not (number.isascii() and number.isdigit()):
                raise ValueError(f"{number!r} is no partition; {example}")
            if type(offset) is not int or not (0 <= offset < 2**63 or offset in symbols):
                raise ValueError(f"{offset!r} is no offset here; {example}")
            given[_partition(topic, int(number), example)] = offset
    return OffsetChoice("given", given)
