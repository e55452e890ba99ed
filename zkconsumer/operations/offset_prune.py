"""Which offsets of a group are dead: those of topics and partitions that exist no more, or that nobody wants. Pure.

The original keeps the offsets of deleted topics for ever. Lag monitors show them, and a topic that is created again
under the same name is begun at the old offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from zkconsumer.core.migration_plan import Store
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.offset_reset import unread


class DeadReason(Enum):
    """Why an offset is dead. The values are for users."""

    NO_TOPIC = "the topic does not exist"
    NO_PARTITION = "the topic has no such partition"
    UNSUBSCRIBED = "no registration subscribes to the topic"


@dataclass(frozen=True, slots=True)
class DeadOffset:
    """A dead offset in one store. ``offset`` is None if it cannot be read; that does not matter here."""

    store: Store
    partition: TopicPartition
    offset: int | None
    reason: DeadReason


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """The dead offsets of a group. With ``errors`` there are none. ``notes`` say what could not be judged."""

    group: str
    dead: tuple[DeadOffset, ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def plan_prune(snapshot: GroupSnapshot, stores: Sequence[Store] = ()) -> PrunePlan:
    """Return the dead offsets in these stores; without any, in both. An offset is dead only if that is certain.

    A topic counts as unsubscribed only if the group has members, all of them can be read, and nobody owns a partition
    of it.
    """
    errors = unread(snapshot, tuple(Store)) + [
        f"The topics are unknown: {problem.what}: {problem.why}"
        for problem in snapshot.problems
        if problem.what.startswith(("/brokers/topics", "topic "))
    ]
    if not snapshot.brokers:
        errors.append("No broker is registered there, so no topic would exist; is the chroot that of the brokers?")
    if errors:
        return PrunePlan(snapshot.group, errors=tuple(errors))
    unreadable = [name for name, node in snapshot.members.items() if node.registration is None]
    notes = [f"{name} cannot be read, so nothing is taken as unsubscribed" for name in sorted(unreadable)]
    wanted: frozenset[str] | None = None
    if snapshot.members and not unreadable:
        wanted = GroupAnalysis(snapshot).subscribed | {tp.topic for tp in snapshot.owners}
    held: list[tuple[Store, TopicPartition, int | None]] = []
    if not stores or Store.ZOOKEEPER in stores:
        held += [(Store.ZOOKEEPER, tp, node.offset) for tp, node in snapshot.offsets.items()]
    if not stores or Store.KAFKA in stores:
        held += [(Store.KAFKA, tp, one.offset) for tp, one in (snapshot.kafka_offsets or {}).items()]
    dead = []
    for store, tp, offset in sorted(held, key=lambda one: (one[0].value, one[1])):
        reason = dead_reason(snapshot, tp, wanted)
        if reason is not None:
            dead.append(DeadOffset(store, tp, offset, reason))
    return PrunePlan(snapshot.group, tuple(dead), tuple(notes))


def dead_reason(snapshot: GroupSnapshot, tp: TopicPartition, wanted: frozenset[str] | None) -> DeadReason | None:
    """Return why the offset of a partition is dead, None if it is not. ``wanted`` None: what is wanted is unknown."""
    node = snapshot.topics.get(tp.topic)
    if node is None:
        return DeadReason.NO_TOPIC
    if node.problem:
        return None
    if tp.partition not in node.partitions:
        # no numbers at all: a topic that is being created or deleted
        return DeadReason.NO_PARTITION if node.partitions else None
    return DeadReason.UNSUBSCRIBED if wanted is not None and tp.topic not in wanted else None
