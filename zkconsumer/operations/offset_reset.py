"""The plan of ``zkconsumer offsets reset``: which offset each partition gets, and why a reset is refused. Pure.

Scenarios, limits and texts are those of ``kafka-consumer-groups.sh --reset-offsets`` (Kafka 3.9). An offset is never
guessed: a partition whose log, topic or present offset is unknown is refused, and then nothing of its group is written.

Differs on purpose from Kafka's tool: it resets ZooKeeper groups, also live ones if every owner adopts the offset. It
refuses a named partition that does not exist, and leaves such partitions out of all topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from zkconsumer.core.names import first_of
from zkconsumer.core.offset_move_plan import PartitionSelection, Store
from zkconsumer.core.registration import ADOPTS, CONFLICT_KEY
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import (
    GroupSnapshot,
    LogState,
    MemberNode,
    OwnerNode,
    gone_before,
    lag_between,
)
from zkconsumer.operations.group_view import GroupAnalysis, MemberKind, member_kind
from zkconsumer.operations.printable import moment

INACTIVE = ("Empty", "Dead")
"""The states in which the brokers let somebody else write a group's offsets."""


class Scenario(Enum):
    """Where the offsets go, by the options of Kafka's tool."""

    TO_EARLIEST = "--to-earliest"
    TO_LATEST = "--to-latest"
    TO_CURRENT = "--to-current"
    TO_OFFSET = "--to-offset"
    SHIFT_BY = "--shift-by"
    TO_DATETIME = "--to-datetime"
    BY_DURATION = "--by-duration"
    FROM_FILE = "--from-file"

    @property
    def by_time(self) -> bool:
        """Whether the brokers must be asked for offsets by time."""
        return self in (Scenario.TO_DATETIME, Scenario.BY_DURATION)


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """A scenario with its value.

    ``number`` belongs to ``--to-offset`` and ``--shift-by``. ``offsets`` are those of ``--from-file`` for this group,
    None if the file has none. ``by_time`` are the offsets of the first messages that are not older than the wanted
    time, None for a partition without such a message.
    """

    scenario: Scenario
    number: int = 0
    offsets: Mapping[TopicPartition, int] | None = None
    by_time: Mapping[TopicPartition, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionReset:
    """The new offset of one partition.

    ``start`` is the log's start, None if it is unknown. ``shift`` is the distance from the overwritten offset, None
    if the new offset does not depend on it. ``current`` is the offset that a member would start at, None if there
    is none. ``held`` is the offset in each store that will be written. ``end`` is the log's end, None if it is
    unknown. ``owner`` is the member that adopts the offset, None if nobody owns the partition. ``time`` is the
    timestamp of the message at the new offset, in milliseconds since 1970, None if there is no such message or it
    is unknown.
    """

    partition: TopicPartition
    current: int | None
    new: int
    end: int | None
    owner: ConsumerId | None = None
    held: Mapping[Store, int | None] = field(default_factory=dict)
    time: int | None = None
    start: int | None = None
    shift: int | None = None

    def overwriting(self, stored: int | None) -> PartitionReset:
        """Return the reset of a partition whose live owner has committed ``stored`` to ZooKeeper since the plan.

        ``--shift-by`` and ``--to-current`` are computed anew, other scenarios stay. A member starts at the larger
        offset of both stores: one that was left in ZooKeeper long ago must not count. The log has at least the messages
        that were committed. Raises ResetRefusedError if there is no offset to compute from.
        """
        elsewhere = [held for store, held in self.held.items() if store is not Store.ZOOKEEPER]
        current = max((held for held in (stored, *elsewhere) if held is not None), default=None)
        if self.shift is None or current == self.current:
            return replace(self, current=current)
        if current is None:
            raise ResetRefusedError(f"the offset of {self.partition}, from which the new one is computed, is gone")
        shifted = max(current + self.shift, self.start or 0)
        new = shifted if self.end is None else min(shifted, max(self.end, current))
        return replace(self, current=current, new=new)

    @property
    def lag_after(self) -> int | None:
        """The messages from the new offset on that are left in the log, None if its end is unknown."""
        return lag_between(self.new, LogState(self.start, self.end))

    @property
    def effect(self) -> str:
        """The change of the group's progress, in words, with the time of the next message."""
        words = "first offset" if self.current is None else "no change"
        if self.current is not None and self.new != self.current:
            # deleted messages are neither skipped nor repeated: nobody can read them
            gone = gone_before(self.current, LogState(self.start))
            moved = abs(max(self.new, self.start or 0) - (self.current + gone))
            words = f"{'skips' if self.new > self.current else 'repeats'} {moved}" if moved else ""
            words += (", " if moved and gone else "") + (f"{gone} gone" if gone else "")
        return words if self.time is None else f"{words}, next is of {moment(self.time)}"


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The plan for one group. With ``errors`` there are no ``resets``.

    ``errors`` are complete sentences, the first as Kafka's tool prints it if the tool knows the error. ``warnings`` are
    lines for standard error, ``notes`` lines that Kafka's tool prints before the table.
    """

    group: str
    stores: tuple[Store, ...]
    resets: tuple[PartitionReset, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


class ResetRefusedError(ValueError):
    """One partition of a reset is refused; the text is for the user."""


def plan_reset(
    snapshot: GroupSnapshot, target: ResetTarget, selection: PartitionSelection, stores: Sequence[Store] = ()
) -> ResetPlan:
    """Plan the reset of one group.

    Arguments: ``snapshot`` must have the topics and logs of all selected partitions; ``selection`` without topics means
    all partitions with an offset (``--all-topics``); ``stores`` are the stores to write, by default those that the
    group uses (:func:`stores_in_use`).
    """
    # if one store could not be asked, nobody knows whether the group uses it as well
    group, asked = snapshot.group, tuple(stores) or tuple(Store)
    stores = tuple(stores) or stores_in_use(snapshot)
    refused = unread(snapshot, asked) or [text for text in (brokers_refusal(snapshot),) if text]
    if refused:
        return ResetPlan(group, stores, errors=tuple(refused))
    if target.scenario is Scenario.FROM_FILE and target.offsets is None:
        return ResetPlan(group, stores, errors=(f"No reset plan for group {group} found",))
    wanted, warnings, errors = _partitions(snapshot, target, selection)
    owners, live = adopting_owners(snapshot, wanted)
    if live:
        return ResetPlan(group, stores, warnings=tuple(warnings), errors=(*errors, *_refused_live(snapshot, live)))
    resets: list[PartitionReset] = []
    notes: list[str] = []
    for tp in wanted:
        current = current_offset(snapshot, tp, stores)
        try:
            new = _new_offset(snapshot, target, tp, current, warnings, notes)
        except ResetRefusedError as error:
            errors.append(str(error))
            continue
        held = {store: current_offset(snapshot, tp, (store,)) for store in stores}
        log = _log(snapshot, tp)
        resets.append(
            PartitionReset(tp, current, new, log.end, owners.get(tp), held, start=log.start, shift=_shift(target))
        )
    return ResetPlan(group, stores, () if errors else tuple(resets), tuple(warnings), tuple(notes), tuple(errors))


# ---- what to reset ----


def stores_in_use(snapshot: GroupSnapshot) -> tuple[Store, ...]:
    """Return the stores that hold offsets of the group: both with dual commit.

    A group without any offset gets them where it lives: in ZooKeeper if ZooKeeper knows the group, else in Kafka.
    """
    used = []
    if snapshot.offsets:
        used.append(Store.ZOOKEEPER)
    if snapshot.kafka_offsets:
        used.append(Store.KAFKA)
    if not used:
        used.append(Store.ZOOKEEPER if snapshot.in_zookeeper or not snapshot.bootstrap else Store.KAFKA)
    return tuple(used)


def current_offset(snapshot: GroupSnapshot, tp: TopicPartition, stores: Collection[Store]) -> int | None:
    """Return the offset at which a member would start: the larger one of both stores. None if there is none."""
    found = []
    if Store.ZOOKEEPER in stores and (node := snapshot.offsets.get(tp)) is not None:
        found.append(node.offset)
    if Store.KAFKA in stores and (stored := (snapshot.kafka_offsets or {}).get(tp)) is not None:
        found.append(stored.offset)
    return max((offset for offset in found if offset is not None and offset >= 0), default=None)


def _partitions(
    snapshot: GroupSnapshot, target: ResetTarget, selection: PartitionSelection
) -> tuple[list[TopicPartition], list[str], list[str]]:
    """Return the partitions to reset, warnings, and errors."""
    if target.scenario is Scenario.FROM_FILE:
        wanted: Iterable[TopicPartition] = target.offsets or {}
    elif selection.topics:
        wanted = _named(snapshot, selection)
    else:
        wanted = {*snapshot.offsets, *(snapshot.kafka_offsets or {})}
    found, warnings, errors = [], [], []
    for tp in sorted(wanted):
        reason = _missing(snapshot, tp)
        if reason is None:
            found.append(tp)
        elif selection.topics or target.scenario is Scenario.FROM_FILE or _unknown_topic(snapshot, tp.topic):
            errors.append(reason)
        else:
            warnings.append(f"{reason} Its offset is left as it is; see zkconsumer offsets prune.")
    return found, warnings, errors


def _named(snapshot: GroupSnapshot, selection: PartitionSelection) -> set[TopicPartition]:
    named: set[TopicPartition] = set()
    for topic, numbers in selection.topics.items():
        node = snapshot.topics.get(topic)
        # partition 0 stands for a topic that does not exist, so that the error is told once
        existing = (node.partitions or (0,)) if node is not None else (0,)
        named.update(TopicPartition(topic, number) for number in (existing if numbers is None else numbers))
    return named


def _missing(snapshot: GroupSnapshot, tp: TopicPartition) -> str | None:
    """Return why the partition cannot be reset: it does not exist, or that is unknown. None if it exists."""
    node = snapshot.topics.get(tp.topic)
    if node is None:
        return f"Topic '{tp.topic}' does not exist."
    if node.problem:
        return f"The partitions of topic '{tp.topic}' are unknown: {node.problem}."
    return None if tp.partition in node.partitions else f"Partition {tp} does not exist."


def _unknown_topic(snapshot: GroupSnapshot, topic: str) -> bool:
    node = snapshot.topics.get(topic)
    return node is not None and bool(node.problem)


# ---- the new offsets ----


def _log(snapshot: GroupSnapshot, tp: TopicPartition) -> LogState:
    return snapshot.logs.get(tp) or LogState()


def _new_offset(
    snapshot: GroupSnapshot,
    target: ResetTarget,
    tp: TopicPartition,
    current: int | None,
    warnings: list[str],
    notes: list[str],
) -> int:
    """Return the new offset. Raises ResetRefusedError."""
    log = _log(snapshot, tp)
    match target.scenario:
        case Scenario.TO_EARLIEST:
            return _known(log.start, f"Error getting starting offset of topic partition: {tp}", log)
        case Scenario.TO_LATEST:
            return _end(log, tp)
        case Scenario.TO_CURRENT:
            _refuse_unreadable(snapshot, tp)
            return current if current is not None else _end(log, tp)
        case Scenario.TO_OFFSET:
            return _clamped(target.number, log, tp, warnings)
        case Scenario.SHIFT_BY:
            _refuse_unreadable(snapshot, tp)
            if current is None:
                raise ResetRefusedError(
                    f"Cannot shift offset for partition {tp} since there is no current committed offset"
                )
            return _clamped(current + target.number, log, tp, warnings)
        case Scenario.FROM_FILE:
            return _clamped((target.offsets or {})[tp], log, tp, warnings)
        case _:
            if tp not in target.by_time:
                raise ResetRefusedError(f"Error getting offset by timestamp of topic partition: {tp}")
            found = target.by_time[tp]
            if found is None:
                where = f"Partition {tp.partition} from topic {tp.topic}"
                notes.append(f"Warn: {where} is empty. Falling back to latest known offset.")
                return _end(log, tp)
            return found


def _shift(target: ResetTarget) -> int | None:
    """Return the distance of the new offset from the overwritten offset, None if the scenario has no fixed distance."""
    return {Scenario.SHIFT_BY: target.number, Scenario.TO_CURRENT: 0}.get(target.scenario)


def _refuse_unreadable(snapshot: GroupSnapshot, tp: TopicPartition) -> None:
    for held in (snapshot.offsets.get(tp), (snapshot.kafka_offsets or {}).get(tp)):
        if held is not None and held.offset is None:
            raise ResetRefusedError(f"The current offset of {tp} is unknown: {held.problem or 'it cannot be read'}")


def _known(offset: int | None, text: str, log: LogState) -> int:
    if offset is None:
        raise ResetRefusedError(text + (f" ({log.problem})" if log.problem else ""))
    return offset


def _end(log: LogState, tp: TopicPartition) -> int:
    return _known(log.end, f"Error getting ending offset of topic partition: {tp}", log)


def _clamped(offset: int, log: LogState, tp: TopicPartition, warnings: list[str]) -> int:
    """Return the offset, or the end of the log that it is beyond."""
    end = _end(log, tp)
    start = _known(log.start, f"Error getting starting offset of topic partition: {tp}", log)
    for limit, beyond, words in (
        (end, offset > end, "higher than latest"),
        (start, offset < start, "lower than earliest"),
    ):
        if beyond:
            warnings.append(
                f"New offset ({offset}) is {words} offset for topic partition {tp}. Value will be set to {limit}"
            )
            return limit
    return offset


# ---- live groups ----


def unread(snapshot: GroupSnapshot, stores: Collection[Store]) -> list[str]:
    """Return what must be known before an offset of the group is written, and could not be read.

    A single node that cannot be read matters only to its own partition.
    """
    group = snapshot.path()
    lists = (group, *(f"{group}/{name}" for name in ("ids", "owners", "offsets")))
    return [
        f"The offsets of group '{snapshot.group}' cannot be written safely: {problem.what}: {problem.why}"
        for problem in snapshot.problems
        if problem.what in lists
        or problem.what.startswith(("ZooKeeper", "brokers' group"))
        or (problem.what.startswith(("brokers", "offsets of group")) and Store.KAFKA in stores)
    ]


def brokers_refusal(snapshot: GroupSnapshot) -> str:
    """Return why the brokers' side of the group forbids writes, in Kafka's own words; empty if it does not."""
    known = snapshot.brokers_group
    if known is None or (known.state in INACTIVE and not known.members):
        return ""
    members = ", ".join(sorted(f"{one.client_id} ({one.host})" for one in known.members)[:8])
    return _active(snapshot.group, known.state) + (f" The brokers know these members: {members}." if members else "")


def _active(group: str, state: str) -> str:
    return f"Assignments can only be reset if the group '{group}' is inactive, but the current state is {state}."


def _refused_live(snapshot: GroupSnapshot, reasons: Mapping[TopicPartition, str]) -> list[str]:
    """Return the refusal of a live ZooKeeper group, with one line for each reason."""
    by_reason: dict[str, list[TopicPartition]] = {}
    for tp, reason in sorted(reasons.items()):
        by_reason.setdefault(reason, []).append(tp)
    lines = [f"{first_of(some)}: {reason}" for reason, some in by_reason.items()]
    return [_active(snapshot.group, GroupAnalysis(snapshot).state.state.value), *lines]


def adopting_owners(
    snapshot: GroupSnapshot, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, ConsumerId], dict[TopicPartition, str]]:
    """Return the owners that go on from a new offset, and the reasons against all other owned partitions."""
    owners: dict[TopicPartition, ConsumerId] = {}
    refused: dict[TopicPartition, str] = {}
    for tp in partitions:
        owner = snapshot.owners.get(tp)
        if owner is None:
            continue
        reason = owner_refusal(snapshot, owner)
        if reason:
            refused[tp] = reason
        else:
            owners[tp] = ConsumerId(owner.thread.rpartition("-")[0])
    return owners, refused


def owner_refusal(snapshot: GroupSnapshot, owner: OwnerNode) -> str:
    """Return why the offset of a partition with this owner must not be written; empty if the owner adopts it."""
    if owner.problem or not owner.thread:
        return f"its owner node cannot be read ({owner.problem or 'it is empty'})"
    consumer = owner.thread.rpartition("-")[0]
    if owner.stat is not None and not owner.stat.ephemeral_owner:
        return f"its owner node names {consumer} and is persistent, so that it never vanishes; delete it"
    node = snapshot.members.get(ConsumerId(consumer))
    if node is None:
        return f"{consumer} owns it and is not registered; wait until its session ends"
    if node.registration is None:
        return f"{consumer} owns it, and its registration cannot be read ({node.problem})"
    if node.stat is not None and owner.stat is not None and node.stat.ephemeral_owner != owner.stat.ephemeral_owner:
        return f"{consumer} owns it with another session than that of its registration; wait until one of them ends"
    return _policy_refusal(consumer, node)


def _policy_refusal(consumer: str, node: MemberNode) -> str:
    kind = member_kind(node)
    extra = node.registration.extra if node.registration is not None else {}
    policy = extra.get(CONFLICT_KEY)
    if kind is MemberKind.SCALA:
        return f"the Scala member {consumer} owns it and would write over it with its next commit; stop it"
    if kind is MemberKind.SPARK:
        return f"the Spark query {consumer} owns it and goes on from its checkpoint; stop the query"
    if kind is MemberKind.BRIDGE:
        return f"{consumer} owns it and takes part in a migration to the brokers; end the migration first"
    if policy == ADOPTS and kind is MemberKind.ZKCONSUMER:
        return ""
    if policy is None:
        return f"{consumer} owns it and does not advertise that it adopts offsets (offset.conflict=adopt); stop it"
    return f"{consumer} owns it with offset.conflict={policy!s:.20} and would not go on from it; stop it"
