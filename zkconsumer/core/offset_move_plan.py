"""The plan of a move of offsets between two stores: the steps and the user's decisions. Pure; any thread.

An offset is never guessed. An offset outside its log, or one that would set the group back, is written only as the user
says. Nothing is written before all decisions are made.

The original had ``ExportZkOffsets`` and ``ImportZkOffsets``, which wrote without any check. Its only way to Kafka was
to consume with ``dual.commit.enabled``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zkconsumer.model import TopicPartition


class Store(Enum):
    """A store of offsets, by its value of ``offsets.storage``."""

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"

    @property
    def other(self) -> Store:
        """The other store."""
        return Store.KAFKA if self is Store.ZOOKEEPER else Store.ZOOKEEPER

    def __str__(self) -> str:
        return "ZooKeeper" if self is Store.ZOOKEEPER else "Kafka"


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """The content of a store for one partition, exact enough to restore it.

    ``offset`` is the next offset to consume. It is None if it cannot be read, with the reason in ``problem``. If
    negative, it was written but is not valid (the original writes -1). ``text`` is the content of the node in
    ZooKeeper, with undecodable bytes as surrogates. ``metadata`` and ``leader_epoch`` (-1: unknown) belong to an offset
    in Kafka.
    """

    offset: int | None
    problem: str = ""
    text: str = ""
    metadata: str = ""
    leader_epoch: int = -1

    @property
    def valid(self) -> int | None:
        """The offset, or None if it is not valid."""
        return self.offset if self.offset is not None and self.offset >= 0 else None

    def __str__(self) -> str:
        return f"unreadable: {self.text[:20]!r}" if self.offset is None else str(self.offset)


StoreEntries = Mapping[TopicPartition, StoreEntry]
"""The content of one store. Partitions without an offset are missing."""


def entry_text(entry: StoreEntry | None) -> str:
    """Return an entry as text for users, ``-`` for None."""
    return "-" if entry is None else str(entry)


class LogRange(NamedTuple):
    """The offsets of a partition's log: the first one, and the next after the last."""

    start: int
    end: int

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset <= self.end

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


Logs = Mapping[TopicPartition, LogRange]
"""The logs of all existing partitions."""


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    """Selected partitions: their numbers by topic (None: all of the topic). Without topics, all partitions."""

    topics: Mapping[str, frozenset[int] | None]

    def __contains__(self, tp: object) -> bool:
        if not isinstance(tp, TopicPartition):
            return False
        if not self.topics:
            return True
        numbers = self.topics.get(tp.topic, frozenset())
        return numbers is None or tp.partition in numbers

    def of(self, entries: StoreEntries) -> dict[TopicPartition, StoreEntry]:
        """Return the selected entries, sorted."""
        return {tp: entries[tp] for tp in sorted(entries) if tp in self}


def parse_selection(texts: Iterable[str]) -> PartitionSelection:
    """Parse any number of texts like ``topic`` or ``topic:0,1,4-7``. Raises ValueError that quotes the wrong text.

    This is the form of the Java tool's ``--topic``, which knows no ranges.
    """
    topics: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not topic:
            raise ValueError(f"{text!r} names no topic; give topic or topic:0,1,4-7")
        wanted = _numbers(text, numbers) if colon else None
        before = topics.get(topic, frozenset())
        topics[topic] = None if before is None or wanted is None else before | wanted
    return PartitionSelection(topics)


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


class OutOfRangePolicy(Enum):
    """The policy for an offset outside its log."""

    REFUSE = "refuse"
    EARLIEST = "earliest"
    LATEST = "latest"
    KEEP = "keep"
    SKIP = "skip"


class AheadPolicy(Enum):
    """The policy for a partition whose target store is ahead of the source."""

    REFUSE = "refuse"
    OVERWRITE = "overwrite"
    SKIP = "skip"


class MoveVerdict(Enum):
    """The outcome of the plan for one partition."""

    SAME = "same"
    WRITE = "write"
    REMOVE = "remove"
    LEFT = "left"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Step:
    """The plan for one partition.

    ``before`` is the target store's entry now (None: no entry), ``after`` its entry after a WRITE. ``reason`` is text
    for the user.
    """

    partition: TopicPartition
    verdict: MoveVerdict
    source: StoreEntry | None = None
    before: StoreEntry | None = None
    after: StoreEntry | None = None
    log: LogRange | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OffsetMovePlan:
    """The plan for one target store."""

    target: Store
    steps: Sequence[Step]

    def of(self, *verdicts: MoveVerdict) -> list[Step]:
        """Return the steps with these verdicts."""
        return [step for step in self.steps if step.verdict in verdicts]

    @property
    def changes(self) -> list[Step]:
        """The steps that change the store."""
        return self.of(MoveVerdict.WRITE, MoveVerdict.REMOVE)

    @property
    def undecided(self) -> list[Step]:
        """The steps that the user must decide first."""
        return self.of(MoveVerdict.UNDECIDED)


def plan_move(
    target: Store,
    source: StoreEntries,
    held: StoreEntries,
    logs: Logs,
    *,
    out_of_range: OutOfRangePolicy = OutOfRangePolicy.REFUSE,
    ahead: AheadPolicy = AheadPolicy.REFUSE,
) -> OffsetMovePlan:
    """Plan the writes that bring the store ``target`` from its entries ``held`` to those of ``source``.

    Arguments: ``logs`` has the logs of all existing partitions.
    """
    steps = [
        _step(target, tp, source.get(tp), held.get(tp), logs.get(tp), out_of_range, ahead)
        for tp in sorted({*source, *held})
    ]
    return OffsetMovePlan(target, steps)


def _step(
    target: Store,
    tp: TopicPartition,
    source: StoreEntry | None,
    before: StoreEntry | None,
    log: LogRange | None,
    out_of_range: OutOfRangePolicy,
    ahead: AheadPolicy,
) -> Step:
    verdict, reason, wanted = _wanted(source, log, out_of_range)
    if wanted is not None:
        verdict, also = _against(wanted, before, ahead)
        reason = "; ".join(filter(None, (reason, also)))
    after = stored_as(target, wanted) if wanted is not None and verdict is MoveVerdict.WRITE else None
    return Step(tp, verdict, source, before, after, log, reason)


def _wanted(
    source: StoreEntry | None, log: LogRange | None, policy: OutOfRangePolicy
) -> tuple[MoveVerdict, str, int | None]:
    """Return the verdict, a text for the user, and the offset to write or None."""
    if log is None:
        return MoveVerdict.LEFT, "the partition does not exist (any more)", None
    if source is None:
        return MoveVerdict.LEFT, "the source holds nothing of it", None
    if source.offset is None:
        return (
            MoveVerdict.UNDECIDED,
            f"{source.problem}; repair it, delete it, or leave the partition out by --topic",
            None,
        )
    if source.offset < 0:
        return MoveVerdict.LEFT, f"{source.offset} is no position, it stands for auto.offset.reset", None
    if source.offset in log:
        return MoveVerdict.WRITE, "", source.offset
    outside = f"{source.offset} is not in the log, {log}"
    match policy:
        case OutOfRangePolicy.REFUSE:
            return MoveVerdict.UNDECIDED, f"{outside}; say --out-of-range earliest, latest, keep or skip", None
        case OutOfRangePolicy.SKIP:
            return MoveVerdict.LEFT, outside, None
        case OutOfRangePolicy.KEEP:
            return MoveVerdict.WRITE, outside, source.offset
        case _:
            offset = log.start if policy is OutOfRangePolicy.EARLIEST else log.end
            return MoveVerdict.WRITE, f"{outside}; {policy.value} is {offset}", offset


def _against(wanted: int, before: StoreEntry | None, policy: AheadPolicy) -> tuple[MoveVerdict, str]:
    """Compare the offset to write with the target store's entry. Return the verdict and a text for the user."""
    held = None if before is None else before.valid
    if held == wanted:
        return MoveVerdict.SAME, ""
    if held is None or held < wanted:
        return MoveVerdict.WRITE, ""
    match policy:
        case AheadPolicy.REFUSE:
            return (
                MoveVerdict.UNDECIDED,
                f"it would be set back, from {held} to {wanted}; say --ahead overwrite or skip",
            )
        case AheadPolicy.SKIP:
            return MoveVerdict.LEFT, f"it would be set back, from {held} to {wanted}"
        case _:
            return MoveVerdict.WRITE, f"set back by {held - wanted}"


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """The entry ``before`` a run (None: no entry), and the entry that the run ``wrote`` (None: it removed one)."""

    before: StoreEntry | None
    wrote: StoreEntry | None


def plan_rollback(
    target: Store, saved: Mapping[TopicPartition, SavedEntry], held: StoreEntries, *, force: bool
) -> OffsetMovePlan:
    """Plan to restore the entries before a run. Entries changed since then are undecided, unless ``force`` is true."""
    steps = []
    for tp in sorted(saved):
        before, wrote, now = saved[tp].before, saved[tp].wrote, held.get(tp)
        if now == before:
            steps.append(Step(tp, MoveVerdict.SAME, before, now))
            continue
        reason = ""
        if now != wrote:
            reason = f"it was changed since: {'absent' if now is None else now} now, {_written(wrote)} by that run"
            if not force:
                steps.append(
                    Step(tp, MoveVerdict.UNDECIDED, before, now, reason=f"{reason}; say --force to set it back")
                )
                continue
        verdict = MoveVerdict.REMOVE if before is None else MoveVerdict.WRITE
        steps.append(Step(tp, verdict, before, now, before, reason=reason))
    return OffsetMovePlan(target, steps)


def _written(wrote: StoreEntry | None) -> str:
    return "removed" if wrote is None else f"{wrote} written"


def stored_as(target: Store, offset: int) -> StoreEntry:
    """Return the entry of a store after a write of ``offset``."""
    return StoreEntry(offset, text=str(offset)) if target is Store.ZOOKEEPER else StoreEntry(offset)


class Agreement(Enum):
    """The outcome of comparing one partition in both stores."""

    SAME = "same"
    DIFFERS = "differs"
    ONLY_ZOOKEEPER = "only in ZooKeeper"
    ONLY_KAFKA = "only in Kafka"
    UNREADABLE = "unreadable"
    GONE = "does not exist (any more)"


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """One partition in both stores."""

    partition: TopicPartition
    agreement: Agreement
    zookeeper: StoreEntry | None
    kafka: StoreEntry | None
    log: LogRange | None

    @property
    def agrees(self) -> bool:
        """Whether a member starts at the same offset from either store."""
        return self.agreement in (Agreement.SAME, Agreement.GONE)

    @property
    def note(self) -> str:
        """Text for the user about offsets outside the log."""
        offsets = {e.valid for e in (self.zookeeper, self.kafka) if e is not None and e.valid is not None}
        outside = sorted(offset for offset in offsets if self.log is not None and offset not in self.log)
        return f"{', '.join(map(str, outside))} not in the log" if outside else ""


def compare(zookeeper: StoreEntries, kafka: StoreEntries, logs: Logs) -> list[PartitionComparison]:
    """Compare both stores by partition. As for members, an invalid offset (-1) counts as none."""
    found = []
    for tp in sorted({*zookeeper, *kafka}):
        here, there = zookeeper.get(tp), kafka.get(tp)
        found.append(PartitionComparison(tp, _agreement(here, there, exists=tp in logs), here, there, logs.get(tp)))
    return found


def _agreement(zookeeper: StoreEntry | None, kafka: StoreEntry | None, *, exists: bool) -> Agreement:
    if not exists:
        return Agreement.GONE
    if any(entry is not None and entry.offset is None for entry in (zookeeper, kafka)):
        return Agreement.UNREADABLE
    here = None if zookeeper is None else zookeeper.valid
    there = None if kafka is None else kafka.valid
    if here == there:
        return Agreement.SAME
    if there is None:
        return Agreement.ONLY_ZOOKEEPER
    return Agreement.ONLY_KAFKA if here is None else Agreement.DIFFERS
