"""Explains a partition: the expected owner, the present owner, why the two differ, and what ends the difference.

Pure; any thread. Texts contain names from nodes as they are: escape a text where it reaches a terminal or a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice

from zkconsumer.core.key_slots import SLOTS
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.operations.doctor.findings import Level
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, GroupSnapshot, gone_words
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.judgement import FINE, PartitionVerdict
from zkconsumer.operations.ownership_causes import Cause, OwnershipCauses
from zkconsumer.operations.printable import ago, duration, moment
from zkconsumer.operations.strategy_reasons import brokers_arithmetic, number_runs

LISTED = 20
"""The threads, and the loans, that a text lists."""
STANDING_STILL = "standing-still"

__all__ = ["Cause", "Explanation", "Position", "explain", "explained_in_short", "explained_partitions"]


@dataclass(frozen=True, slots=True)
class Position:
    """The committed offset of a partition, and its lag; None is what is unknown.

    ``version`` and ``written`` (milliseconds since 1970) are those of the offset's node in ZooKeeper. ``lag``
    counts messages that are left in the log, ``gone`` those that were deleted before they were read; ``lag_ms`` is
    the age of the message at the committed offset, in milliseconds, 0 if the lag is 0.
    """

    committed: int | None
    version: int | None
    written: int | None
    lag: int | None
    gone: int
    lag_ms: int | None


@dataclass(frozen=True, slots=True)
class ExplainedTopic:
    """The threads of a topic, in the order of the strategies, and the numbers of its partitions."""

    threads: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """One partition, explained.

    ``should`` is the thread that should own it, ``owner`` the one that does (in brokers' groups member ids), and
    ``since`` when its node was made, in milliseconds since 1970. ``owner_unknown`` is whether the owner could not be
    read. ``sentence`` says it shortly; ``why`` has the strategy's arithmetic in words, about ``topic``. ``loans`` say
    which members handle slots of the partition without owning it. ``verdict`` is the judgement on the partition.
    """

    group: str
    partition: TopicPartition
    strategy: str
    should: str | None
    owner: str | None
    since: int | None
    sentence: str
    why: tuple[str, ...]
    cause: Cause
    position: Position
    taken: int
    topic: ExplainedTopic = ExplainedTopic()
    owner_unknown: bool = False
    loans: tuple[str, ...] = ()
    verdict: PartitionVerdict = FINE

    @property
    def settled(self) -> bool:
        """Whether all is as it should be."""
        return not self.cause.reason

    def lines(self) -> tuple[str, ...]:
        """Return the explanation as text, line by line."""
        position, cause = self.position, self.cause
        since = "" if self.since is None else f", since {moment(self.since)} ({ago(self.since, self.taken)})"
        offset = "unknown" if position.committed is None else str(position.committed)
        if position.written is not None:
            offset += (
                f", version {position.version}, at {moment(position.written)} ({ago(position.written, self.taken)})"
            )
        messages = "unknown" if position.lag is None else f"{position.lag} messages"
        if position.gone:
            messages = gone_words(position.gone, position.lag)
        late = "unknown" if position.lag_ms is None else duration(position.lag_ms)
        rows = [
            ("should own it", self.should or "nobody, or unknown"),
            *(("", step) for step in self.why),
            ("threads, in order", first_listed(self.topic.threads)),
            ("partitions", number_runs(self.topic.partitions)),
            ("owns it", (self.owner or ("unknown" if self.owner_unknown else "nobody")) + since),
            ("what is wrong" if self.should == self.owner else "they differ because", cause.reason),
            ("judged", self._judged()),
            ("waits for", cause.waits_for),
            ("until", "" if cause.until is None else f"{moment(cause.until)} at the latest"),
            *(("on loan" if at == 0 else "", text) for at, text in enumerate(self.loans)),
            ("last commit", offset),
            ("lag", f"{messages}; in time: {late}"),
        ]
        return (self.sentence, *(f"  {name:20} {said}" for name, said in rows if said))

    def _judged(self) -> str:
        """Return the verdict, empty if the cause has said it or there is none."""
        verdict = self.verdict
        return f"{verdict.level}: {verdict.reason}" if verdict.reason not in ("", self.cause.reason) else ""

    def document(self) -> dict[str, object]:
        """Return the explanation as values for JSON, with the topic's name alone.

        Threads and partitions are the same for every partition of the topic, and a large group has thousands.
        """
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "settled": self.settled,
            "cause": asdict(self.cause),
            "verdict": {**asdict(self.verdict), "level": str(self.verdict.level)},
            "position": asdict(self.position),
        }


def explain(
    snapshot: GroupSnapshot | GroupAnalysis, partition: TopicPartition, verdict: PartitionVerdict = FINE
) -> Explanation:
    """Return why this partition is where it is.

    Arguments: ``verdict`` of the group's judgement on the partition. It is a cause where no other is known.
    Pass a :class:`GroupAnalysis` to explain several partitions of one snapshot; then the group is computed once.
    """
    analysis = snapshot if isinstance(snapshot, GroupAnalysis) else GroupAnalysis(snapshot)
    should, owner = analysis.expected.get(partition), analysis.owners.get(partition)
    node = analysis.snapshot.owners.get(partition)
    cause = _cause(analysis, partition, verdict)
    return Explanation(
        group=analysis.snapshot.group,
        partition=partition,
        strategy=analysis.strategy.label,
        should=should,
        owner=owner,
        since=node.stat.ctime if node is not None and node.stat is not None else None,
        sentence=_sentence(analysis, partition, should, owner, cause),
        why=_why(analysis, partition),
        cause=cause,
        position=_position(analysis.snapshot, partition),
        taken=analysis.snapshot.taken,
        topic=ExplainedTopic(analysis.words.threads_of(partition.topic), _numbers(analysis.snapshot, partition.topic)),
        owner_unknown=_owner_unknown(analysis, partition),
        loans=tuple(islice(_loans(analysis.snapshot, partition), LISTED)),
        verdict=verdict,
    )


def explained_in_short(analysis: GroupAnalysis, partition: TopicPartition, verdict: PartitionVerdict) -> str:
    """Return the sentence of :func:`explain` alone, which costs less: a large group has thousands."""
    should, owner = analysis.expected.get(partition), analysis.owners.get(partition)
    return _sentence(analysis, partition, should, owner, _cause(analysis, partition, verdict))


def _cause(analysis: GroupAnalysis, partition: TopicPartition, verdict: PartitionVerdict) -> Cause:
    node = analysis.snapshot.owners.get(partition)
    cause = OwnershipCauses(analysis, partition, analysis.expected.get(partition), node).cause()
    if not cause.reason and verdict.level > Level.NOTE:
        return _judged(verdict, analysis.snapshot.taken)
    return cause


def _judged(verdict: PartitionVerdict, now: int) -> Cause:
    """Return a cause from the verdict on a partition that has the expected owner."""
    if verdict.check == STANDING_STILL and verdict.since is not None:
        return Cause(
            f"it stands still for {duration(now - verdict.since)}", verdict.reason, "its owner, which must go on"
        )
    return Cause(verdict.reason.partition(":")[0].partition(". ")[0], verdict.reason, "what the doctor says to do")


def _loans(snapshot: GroupSnapshot, partition: TopicPartition) -> Iterator[str]:
    """Yield who has slots of a partition on loan, and whether the loan counts."""
    owner = snapshot.owners.get(partition)
    session = None if owner is None or owner.stat is None else owner.stat.ephemeral_owner
    for borrower, loan in sorted(snapshot.loans.get(partition, {}).items()):
        if loan.slots is None:
            yield f"{borrower}: unknown, for {loan.problem}"
        elif loan.slots or loan.held:
            counts = "" if loan.session == session else "; it does not count, since the lender is not the owner"
            held = "" if loan.held in (None, loan.slots) else f", still holds {loan.held}"
            base = "" if loan.base is None else f", all of them finished before offset {loan.base}"
            yield f"{borrower} handles {loan.slots} of {SLOTS} slots{held}{base}{counts}"


def _owner_unknown(analysis: GroupAnalysis, partition: TopicPartition) -> bool:
    """Return whether the partition may have an owner that could not be read."""
    if analysis.by_brokers is not None:
        return False
    node = analysis.snapshot.owners.get(partition)
    return bool(analysis.unread) if node is None else node.problem == FORBIDDEN_NODE


def first_listed(names: Sequence[str]) -> str:
    """Return names in their order, the first :data:`LISTED` of them, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def explained_partitions(analysis: GroupAnalysis) -> tuple[TopicPartition, ...]:
    """Return, in order, all partitions to explain: subscribed, owned, or expected ones; not mere offsets."""
    wanted = analysis.snapshot.partitions_of(analysis.subscribed)
    return tuple(sorted({*wanted, *analysis.snapshot.owners, *analysis.owners, *analysis.expected}))


def _sentence(
    analysis: GroupAnalysis, partition: TopicPartition, should: ThreadId | None, owner: str | None, cause: Cause
) -> str:
    label = analysis.strategy.label
    if not cause.reason:
        if owner is None:
            return f"Nobody owns {partition}, and nobody should."
        if should is None:
            return f"{owner} owns {partition}; who should own it is unknown."
        return f"{owner} owns {partition}, as it should by {label}."
    nobody = f"Who owns {partition} is unknown" if _owner_unknown(analysis, partition) else f"Nobody owns {partition}"
    now = f"{owner} owns {partition}" if owner else nobody
    if should is None or should == owner:
        return f"{now}: {cause.short}."
    return f"{now}, but {should} should by {label}: {cause.short}."


def _why(analysis: GroupAnalysis, partition: TopicPartition) -> tuple[str, ...]:
    strategy = analysis.strategy
    sure = "" if strategy.sure else " (not sure)"
    said = f"strategy {strategy.label or 'unknown'}{sure}: {strategy.why}"
    if analysis.bridges_only:
        return (said, "the leader of the brokers' group computed the assignment with it")
    if analysis.by_brokers is not None:
        numbers = {topic: sorted(node.partitions) for topic, node in analysis.snapshot.topics.items()}
        computed = brokers_arithmetic(analysis.by_brokers, numbers, partition)
        owner = analysis.owners.get(partition)
        other = f"the leader gave it to {owner or 'nobody'}: with racks, or for members before, the sum differs"
        return (said, *computed.steps, *([other] if computed.thread not in (None, owner) else []))
    if analysis.problem:
        return said, analysis.problem
    steps = analysis.words.of(partition).steps if strategy.name else ()
    return said, *steps


def _numbers(snapshot: GroupSnapshot, topic: str) -> tuple[int, ...]:
    return tuple(sorted(snapshot.topics[topic].partitions)) if topic in snapshot.topics else ()


def _position(snapshot: GroupSnapshot, partition: TopicPartition) -> Position:
    node = snapshot.offsets.get(partition)
    stat = node.stat if node is not None and node.offset is not None else None
    return Position(
        committed=snapshot.committed(partition),
        version=stat.version if stat else None,
        written=stat.mtime if stat else None,
        lag=snapshot.lag(partition),
        gone=snapshot.gone(partition),
        lag_ms=snapshot.lag_ms(partition),
    )
