"""Chooses new names of topics so that ``roundrobin`` puts their partitions into the same order as before. Pure.

The strategy sorts partitions by Java's hash of their text, ``topic-0`` since 1.0 and ``[topic,0]`` before. Partition
numbers with the same count of digits have neighbouring hashes. So it is enough to look at the first and the last number
of each count, and a search among random names finds some for a dozen topics.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence

from zkconsumer.assignors.assignor import java_hash
from zkconsumer.model import TopicPartition

TRIES = 200_000
"""The most names that are tried for all topics together: some seconds."""
TRIES_EACH = 500
"""The most names that are tried for one topic before all are named anew."""


def _new_text(topic: str) -> tuple[int, str]:
    return java_hash(f"{topic}-"), ""


def _old_text(topic: str) -> tuple[int, str]:
    return java_hash(f"[{topic},"), "]"


TEXTS: tuple[Callable[[str], tuple[int, str]], ...] = (_new_text, _old_text)


def named_in_hash_order(
    partitions: Mapping[str, Iterable[int]],
    candidate: Callable[[str], str],
    texts: Sequence[Callable[[str], tuple[int, str]]] = TEXTS,
) -> dict[str, str] | None:
    """Return a new name for each topic, or None if the tries do not suffice.

    Arguments: ``partitions`` has the numbers of each topic; ``candidate`` makes another random name for a topic.
    """
    ends = {topic: _ends(numbers) for topic, numbers in partitions.items()}
    left = TRIES
    while left > 0:
        names, tried = _try(ends, candidate, [_Order(text, ends) for text in texts], min(left, TRIES_EACH))
        left -= tried
        if len(names) == len(ends):
            return names
    return None


def _try(
    ends: Mapping[str, tuple[int, ...]], candidate: Callable[[str], str], orders: Sequence[_Order], most: int
) -> tuple[dict[str, str], int]:
    """Name the topics in order until a topic needs too many tries. Return the names and the number of tries."""
    names: dict[str, str] = {}
    tried = 0
    for topic in ends:
        for _ in range(most):
            tried += 1
            name = candidate(topic)
            if all(order.fits(topic, name) for order in orders):
                for order in orders:
                    order.add(topic, name)
                names[topic] = name
                break
        else:
            break  # an earlier name leaves it too little room
    return names, tried


def _ends(numbers: Iterable[int]) -> tuple[int, ...]:
    """Return the first and the last number of each count of digits."""
    by_digits: dict[int, list[int]] = {}
    for number in sorted(numbers):
        by_digits.setdefault(len(str(number)), []).append(number)
    return tuple(sorted({end for same in by_digits.values() for end in (same[0], same[-1])}))


class _Order:
    """The order of partitions by the hash of one text: with all old names, and with the new names so far."""

    def __init__(self, text: Callable[[str], tuple[int, str]], ends: Mapping[str, tuple[int, ...]]) -> None:
        self._text = text
        self._ends = ends
        old = sorted((value, tp) for topic in ends for value, tp in self._hashes(topic, topic))
        self._rank = {tp: at for at, (_, tp) in enumerate(old)}
        self._placed: list[tuple[int, int]] = []

    def _hashes(self, topic: str, name: str) -> list[tuple[int, TopicPartition]]:
        prefix, end = self._text(name)
        return [(java_hash(f"{n}{end}", prefix), TopicPartition(topic, n)) for n in self._ends[topic]]

    def fits(self, topic: str, name: str) -> bool:
        """Return whether this name keeps the order among all topics so far."""
        mine = sorted((value, self._rank[tp]) for value, tp in self._hashes(topic, name))
        if any(a[1] > b[1] or a[0] == b[0] for a, b in itertools.pairwise(mine)):
            return False
        for value, rank in mine:
            at = bisect(self._placed, (value, -1))
            if at and self._placed[at - 1][1] > rank:
                return False
            if at < len(self._placed) and (self._placed[at][1] < rank or self._placed[at][0] == value):
                return False
        return True

    def add(self, topic: str, name: str) -> None:
        """Give a topic its name."""
        self._placed = sorted([*self._placed, *((value, self._rank[tp]) for value, tp in self._hashes(topic, name))])
