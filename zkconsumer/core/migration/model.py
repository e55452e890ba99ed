"""What two stores hold of a group's offsets, and what is to become of it. Pure; any thread.

The original had ``ExportZkOffsets`` and ``ImportZkOffsets``, which wrote blindly, and no way to Kafka but to consume
with ``dual.commit.enabled``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zkconsumer.model import TopicPartition


class Store(Enum):
    """Where offsets are kept; the values are those of ``offsets.storage``."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"

    @property
    def other(self) -> Store:
        """The other one."""
        return Store.KAFKA if self is Store.ZOOKEEPER else Store.ZOOKEEPER

    def __str__(self) -> str:
        return "ZooKeeper" if self is Store.ZOOKEEPER else "Kafka"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a store holds for one partition, exactly enough to put it back.

    ``offset`` is the next offset to consume; None where it cannot be read, and ``problem`` says why; negative: written,
    and no valid offset (the original writes -1). ``text`` is the content of the node in ZooKeeper, undecodable bytes as
    surrogates; ``metadata`` and ``leader_epoch`` (-1: unknown) stand beside an offset in Kafka.
    """

    offset: int | None
    problem: str = ""
    text: str = ""
    metadata: str = ""
    leader_epoch: int = -1

    @property
    def valid(self) -> int | None:
        """The offset where it is one."""
        return self.offset if self.offset is not None and self.offset >= 0 else None

    def __str__(self) -> str:
        return f"unreadable: {self.text[:20]!r}" if self.offset is None else str(self.offset)


Entries = Mapping[TopicPartition, Entry]
"""What one store holds; a partition that it does not know is absent."""


def shown(entry: Entry | None) -> str:
    """An entry for people; ``-`` where there is none."""
    return "-" if entry is None else str(entry)


class LogSpan(NamedTuple):
    """The offsets of a partition's log: the first one, and the one after the last."""

    start: int
    end: int

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset <= self.end

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


Logs = Mapping[TopicPartition, LogSpan]
"""The logs of the partitions that exist."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which partitions are meant: by topic, the numbers (None: all). Without topics: everything."""

    topics: Mapping[str, frozenset[int] | None]

    def __contains__(self, tp: object) -> bool:
        if not isinstance(tp, TopicPartition):
            return False
        if not self.topics:
            return True
        numbers = self.topics.get(tp.topic, frozenset())
        return numbers is None or tp.partition in numbers

    def of(self, entries: Entries) -> dict[TopicPartition, Entry]:
        """The selected part, sorted."""
        return {tp: entries[tp] for tp in sorted(entries) if tp in self}

    def named(self) -> Iterable[TopicPartition]:
        """The partitions that were named one by one."""
        return [TopicPartition(topic, n) for topic, numbers in self.topics.items() for n in sorted(numbers or ())]


EVERYTHING = Selection({})


def parse_selection(texts: Iterable[str]) -> Selection:
    """``topic`` or ``topic:0,1,4-7``, any number of them, as the Java tool's ``--topic`` (which knows no ranges).

    Raises ValueError quoting the text that is wrong.
    """
    topics: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not topic:
            raise ValueError(f"{text!r} names no topic; give topic or topic:0,1,4-7")
        wanted = _numbers(text, numbers) if colon else None
        before = topics.get(topic, frozenset())
        topics[topic] = None if before is None or wanted is None else before | wanted
    return Selection(topics)


def _numbers(text: str, numbers: str) -> frozenset[int]:
    found: set[int] = set()
    for part in numbers.split(","):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise ValueError(f"{text!r}: {part!r} is no partition; give topic or topic:0,1,4-7")
        if dash and int(last) < int(first):
            raise ValueError(f"{text!r}: {part!r} is empty; the smaller number comes first")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9
