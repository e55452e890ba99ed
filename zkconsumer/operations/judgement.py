"""The one judgement of a group: state, findings, and a verdict on each partition. Pure; any thread.

Every command, page and metric that says how a group is takes it from here: ``doctor`` prints the findings, ``explain``
names a verdict as cause, ``groups --describe`` warns of both, and ``serve`` makes a judgement once a reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.operations.doctor import findings_of
from zkconsumer.operations.doctor.findings import Finding, Level, Observations
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_view import is_unread, member_kind
from zkconsumer.operations.stalled_partitions import Progress

STATUSES = {Level.OK: "OK", Level.NOTE: "OK", Level.WARN: "WARN", Level.ERROR: "ERR"}
"""The word for a level where other tools expect Burrow's words. ``UNKNOWN`` is ours."""
UNKNOWN = "UNKNOWN"
_FAILED = "the latest reading of the group failed, so all that is shown is old"


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """How a partition is: the worst finding about it. A partition without a finding is ``ok``.

    ``reason`` is a sentence, ``check`` the name of the doctor's check. ``since`` is when it began at the latest, in
    milliseconds since 1970, None if that is unknown. ``unknown`` is whether the check could not be decided.
    """

    level: Level = Level.OK
    reason: str = ""
    check: str = ""
    since: int | None = None
    unknown: bool = False

    @property
    def status(self) -> str:
        """``OK``, ``WARN``, ``ERR`` or ``UNKNOWN``."""
        return UNKNOWN if self.unknown and self.level is Level.NOTE else STATUSES[self.level]


FINE = PartitionVerdict()


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a group and its partitions are.

    ``findings`` are the doctor's, the worst first, without those that found nothing. ``verdicts`` has the partitions
    with a finding. ``state`` is a word such as ``Stable``, ``reason`` a sentence. ``coordination`` is ``zookeeper``,
    ``brokers`` or empty. ``strategy`` is empty if it is unknown, and ``strategy_why`` says how it is known. ``kinds``
    maps members to the software that registered them.
    ``owners`` and ``expected`` map partitions to thread ids, or to member ids of a group that brokers coordinate.
    ``member_of`` maps these ids to members. ``subscribed`` are the topics that a member subscribes to, None if a
    registration cannot be read.
    """

    state: str = "Unknown"
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    verdicts: Mapping[TopicPartition, PartitionVerdict] = field(default_factory=dict)
    coordination: str = ""
    strategy: str = ""
    strategy_why: str = ""
    kinds: Mapping[ConsumerId, str] = field(default_factory=dict)
    owners: Assignment = field(default_factory=dict)
    expected: Assignment = field(default_factory=dict)
    member_of: Mapping[str, str] = field(default_factory=dict)
    subscribed: frozenset[str] | None = None

    def abandoned(self, topic: str) -> bool:
        """Return whether the group has members, and none of them subscribes to this topic."""
        return self.subscribed is not None and bool(self.kinds) and topic not in self.subscribed

    def verdict(self, partition: TopicPartition) -> PartitionVerdict:
        """Return how a partition is."""
        return self.verdicts.get(partition, FINE)

    @property
    def severity(self) -> Level:
        """The level of the worst finding."""
        return self.findings[0].level if self.findings else Level.OK

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of findings of each level above ``ok``, the worst first."""
        found = Counter(one.level for one in self.findings)
        return {str(level): found[level] for level in (Level.ERROR, Level.WARN, Level.NOTE)}

    @property
    def headline(self) -> str:
        """The first sentence of the worst finding, empty if there is none."""
        return self.findings[0].headline if self.findings else ""

    @property
    def summary(self) -> str:
        """The headline with the numbers of findings: ``2 errors, 1 warning: the offset of ...``."""
        words = {"error": ("error", "errors"), "warn": ("warning", "warnings"), "note": ("note", "notes")}
        parts = [f"{count} {words[level][count != 1]}" for level, count in self.counts.items() if count]
        return f"{', '.join(parts) or 'ok'}{': ' if self.headline else ''}{self.headline}"

    @property
    def status(self) -> str:
        """``OK``, ``WARN`` or ``ERR`` by the severity; ``UNKNOWN`` if it would be OK, and a partition is unknown."""
        status = STATUSES[self.severity]
        return UNKNOWN if status == "OK" and any(v.status == UNKNOWN for v in self.verdicts.values()) else status

    def unread(self, why: str, taken: int) -> Judgement:
        """Return the judgement of a group whose latest reading failed: all that it says is as old as ``taken``.

        Arguments: ``why`` the reading failed; ``taken`` is milliseconds since 1970.
        """
        failed = Finding(Level.WARN, f"{_FAILED}: {why}", check="unread", since=taken)
        others = (one for one in self.findings if not one.text.startswith(_FAILED))
        return replace(self, findings=_sorted((failed, *others)))


def judge(
    snapshots: Sequence[GroupSnapshot], *, progress: Mapping[TopicPartition, Progress] | None = None
) -> Judgement:
    """Return how the group was in the latest of its snapshots.

    Arguments: ``snapshots`` are of one group, oldest first, at least one. ``progress`` is found from them unless it is
    given, by a reader that keeps no old offsets.
    """
    return judgement_of(Observations(snapshots, progress=progress or {}))


def judgement_of(seen: Observations) -> Judgement:
    """Return how the group was as it was observed."""
    snapshot, analysis, by_brokers = seen.latest, seen.analysis, seen.analysis.by_brokers
    if by_brokers is not None:
        kinds = {ConsumerId(member.member_id): member.client_id for member in by_brokers.members}
        member_of: dict[str, str] = {name: name for name in kinds}
    else:
        kinds = {consumer: member_kind(node).value for consumer, node in snapshot.members.items()}
        member_of = {str(thread): str(consumer) for thread, consumer in analysis.registered.items()}
    findings = tuple(one for one in findings_of(seen) if one.level > Level.OK)
    return Judgement(
        state=analysis.state.state.value,
        reason=analysis.state.reason,
        findings=findings,
        verdicts=_verdicts(findings),
        coordination="brokers" if by_brokers is not None else "zookeeper" if snapshot.in_zookeeper else "",
        strategy=analysis.strategy.label,
        strategy_why=analysis.strategy.why,
        kinds=kinds,
        owners=analysis.owners,
        expected=analysis.expected,
        member_of=member_of,
        subscribed=None if analysis.view.unreadable else analysis.subscribed,
    )


def _verdicts(findings: Iterable[Finding]) -> dict[TopicPartition, PartitionVerdict]:
    """Return the worst finding about each partition. The findings come worst first, and known before unknown."""
    found: dict[TopicPartition, PartitionVerdict] = {}
    for one in findings:
        verdict = PartitionVerdict(one.level, one.text, one.check, one.since, one.unknown)
        for tp in one.partitions:
            found.setdefault(tp, verdict)
    return found


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda one: (-one.level, one.unknown)))


def known_number(number: int, snapshot: GroupSnapshot, part: str) -> int | None:
    """Return the number of members ("ids") or owners, None if there seem to be none because they cannot be read."""
    return number or (None if is_unread(snapshot, part) else 0)
