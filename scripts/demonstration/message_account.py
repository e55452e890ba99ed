"""The account of the demo's messages: produced, consumed, lost and repeated ones. Pure except for a lock.

The producer's thread and one thread for each member add messages; the main thread reads the account. One lock guards
it. A message is known by its partition and offset, and its content by a checksum. So "consumed" means: exactly as it
was produced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

MessagePosition = tuple[int, int]  # partition, offset


class Repeat(NamedTuple):
    """A repeated message: its ``first`` reader, the member that read it ``again``, and the demo's ``step``."""

    first: str
    again: str
    step: int


@dataclass(frozen=True)
class AccountTotals:
    """The numbers of messages. ``consumed`` counts different messages.

    ``altered`` messages differ from the produced ones, and ``unknown`` messages were never produced.
    """

    produced: int
    consumed: int
    lost: int
    altered: int
    unknown: int
    duplicates: dict[Repeat, int]
    by_member: dict[str, int]


class MessageAccount:
    """The account of all messages so far."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._produced: dict[MessagePosition, int] = {}
        self._consumed: dict[MessagePosition, tuple[int, str]] = {}
        self._again: Counter[Repeat] = Counter()
        self._by_member: Counter[str] = Counter()
        self._by_partition: Counter[int] = Counter()
        self._step = 0

    def begin(self, step: int) -> None:
        """Attribute repeated messages to this step from now on."""
        with self._lock:
            self._step = step

    def produced(self, position: MessagePosition, checksum: int) -> None:
        """Add a message that the broker has acknowledged."""
        with self._lock:
            self._produced[position] = checksum

    def consumed(self, member: str, messages: Iterable[tuple[MessagePosition, int]]) -> None:
        """Add messages that a member has processed."""
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
        """The number of acknowledged messages."""
        return len(self._produced)

    @property
    def consumed_count(self) -> int:
        """The number of different processed messages."""
        return len(self._consumed)

    def consumed_of(self, partition: int) -> int:
        """Return the number of different processed messages of a partition."""
        return self._by_partition[partition]

    def produced_checksums(self) -> dict[MessagePosition, int]:
        """Return the checksums of all acknowledged messages."""
        with self._lock:
            return dict(self._produced)

    def ends(self) -> dict[int, int]:
        """Return the next offset after the last produced message of each partition."""
        with self._lock:
            ends: dict[int, int] = {}
            for partition, offset in self._produced:
                ends[partition] = max(ends.get(partition, 0), offset + 1)
            return ends

    def totals(self) -> AccountTotals:
        """Return the totals. Call it when all threads are done."""
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
