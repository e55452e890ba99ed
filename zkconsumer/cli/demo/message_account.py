"""The books: which message was produced, and which member read it how often. Pure but for a lock.

Written to by the producer's thread and by one thread for each member's reports, read by the main thread; one lock
guards all of it. A message is known by its partition and offset, and its content by a checksum, so that "consumed"
means: just as it was produced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

MessagePosition = tuple[int, int]  # partition, offset


class Repeat(NamedTuple):
    """Why a message was read more than once: who had it ``first``, who ``again``, during which ``step``."""

    first: str
    again: str
    step: int


@dataclass(frozen=True)
class AccountTotals:
    """What the books say. ``consumed`` counts different messages; ``altered`` those that came otherwise than they were
    produced, ``unknown`` those that nobody produced.
    """

    produced: int
    consumed: int
    lost: int
    altered: int
    unknown: int
    duplicates: dict[Repeat, int]
    by_member: dict[str, int]


class MessageAccount:
    """Counts from the first message on."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._produced: dict[MessagePosition, int] = {}
        self._consumed: dict[MessagePosition, tuple[int, str]] = {}
        self._again: Counter[Repeat] = Counter()
        self._by_member: Counter[str] = Counter()
        self._by_partition: Counter[int] = Counter()
        self._step = 0

    def begin(self, step: int) -> None:
        """From now on, what is read again is put down to this step."""
        with self._lock:
            self._step = step

    def produced(self, position: MessagePosition, checksum: int) -> None:
        """The broker has acknowledged a message."""
        with self._lock:
            self._produced[position] = checksum

    def consumed(self, member: str, messages: Iterable[tuple[MessagePosition, int]]) -> None:
        """A member has processed these messages."""
        with self._lock:
            for position, checksum in messages:
                self._by_member[member] += 1
                before = self._consumed.get(position)
                if before is None:
                    self._consumed[position] = (checksum, member)
                    self._by_partition[position[0]] += 1
                else:
                    self._again[Repeat(before[1], member, self._step)] += 1

    @property
    def produced_count(self) -> int:
        """How many were acknowledged."""
        return len(self._produced)

    @property
    def consumed_count(self) -> int:
        """How many different ones were processed."""
        return len(self._consumed)

    def consumed_of(self, partition: int) -> int:
        """How many different ones of a partition were processed."""
        return self._by_partition[partition]

    def ends(self) -> dict[int, int]:
        """Partition -> one past the highest offset produced."""
        with self._lock:
            ends: dict[int, int] = {}
            for partition, offset in self._produced:
                ends[partition] = max(ends.get(partition, 0), offset + 1)
            return ends

    def totals(self) -> AccountTotals:
        """The balance. Meant for the end, when nothing is under way."""
        with self._lock:
            produced, consumed = self._produced, self._consumed
            return AccountTotals(
                produced=len(produced),
                consumed=len(consumed),
                lost=len(produced.keys() - consumed.keys()),
                altered=sum(at in produced and produced[at] != found[0] for at, found in consumed.items()),
                unknown=len(consumed.keys() - produced.keys()),
                duplicates=dict(self._again),
                by_member=dict(self._by_member),
            )
