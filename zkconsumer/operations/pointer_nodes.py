"""Reads and changes the pointers of a group: its parked messages and its dead letters.

The owner of a partition writes the same node. So every change names the version that was read. If the owner was faster,
the node is read and changed again. The owner does the same after our change.

One thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from zkconsumer.core.message_pointers import MOST_POINTERS, Pointer, PointerKind, decode_pointers, encode_pointers
from zkconsumer.core.names import name_problem
from zkconsumer.core.offset_move_plan import PartitionSelection
from zkconsumer.errors import RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.balanced_ledger import applied
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_values import FORBIDDEN
from zkconsumer.zookeeper.note_nodes import KnownAcks, after_recreation, is_of_earlier_topic
from zkconsumer.zookeeper.session import Session

ROUNDS = 8
"""Tries to change a node. Each write of its owner makes one of them fail."""
MOST_NODES = 100_000
"""Partitions of one group that are read."""
_AT_ONCE = 200
_UNDO_KIND = "zkconsumer dead drop"


@dataclass(frozen=True, slots=True)
class PartitionPointers:
    """The pointers of one partition; ``version`` is the node's. ``problem`` says why they cannot be read."""

    partition: TopicPartition
    pointers: Mapping[int, Pointer]
    version: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PointerChange:
    """The result of a change: the places of the pointers that were changed, and why others were not."""

    partition: TopicPartition
    changed: tuple[int, ...] = ()
    problem: str = ""


class PointerNodes:
    """The pointers of one group.

    Arguments: ``timeout`` in seconds of each access. Methods raise RegistryError.
    """

    def __init__(self, session: Session, group: str, timeout: float) -> None:
        self.group = group
        self._session = session
        self._timeout = timeout

    def partitions(self, selection: PartitionSelection) -> list[TopicPartition]:
        """Return the selected partitions that have a node, sorted."""
        deadline = Deadline(self._timeout)
        found = []
        for topic in self._session.children(paths.parked(self.group), deadline) or ():
            if selection.topics and topic not in selection.topics:
                continue
            if name_problem(topic) is not None:
                continue  # not a topic's name, so no member of ours wrote the node
            names = self._session.children(f"{paths.parked(self.group)}/{topic}", deadline) or ()
            tps = (TopicPartition(topic, int(name)) for name in names if _is_partition(name))
            found += [tp for tp in tps if tp in selection]
            if len(found) > MOST_NODES:
                raise RegistryError(f"group {self.group} has pointers of more than {MOST_NODES} partitions")
        return sorted(found)

    def read(self, partitions: Sequence[TopicPartition]) -> list[PartitionPointers]:
        """Return the pointers of these partitions, without those that have no node."""
        found = []
        for at in range(0, len(partitions), _AT_ONCE):
            some = partitions[at : at + _AT_ONCE]
            nodes = self._session.read([paths.pointers(self.group, tp) for tp in some], Deadline(self._timeout))
            topics = self._session.stat([paths.topic(tp.topic) for tp in some], Deadline(self._timeout))
            for tp, node, topic in zip(some, nodes, topics, strict=True):
                if node is FORBIDDEN:
                    found.append(PartitionPointers(tp, {}, -1, "ZooKeeper does not let us read it; check the ACL"))
                elif node is not None:
                    try:
                        pointers = decode_pointers(node.data)
                        if is_of_earlier_topic(node, topic):
                            # a change writes the node, so the owner could not see this any more
                            pointers = dict(after_recreation(KnownAcks(pointers=pointers), topic).pointers)
                        found.append(PartitionPointers(tp, pointers, node.version))
                    except ValueError as error:
                        found.append(PartitionPointers(tp, {}, node.version, f"it holds no pointers: {error}"))
        return found

    def change(
        self,
        partition: TopicPartition,
        change: Callable[[Mapping[int, Pointer]], Mapping[int, Pointer | None]],
        *,
        create: bool = False,
    ) -> PointerChange:
        """Change pointers of one partition. Nothing is overwritten that was not read.

        Arguments: ``change`` returns the new pointers by place (None: remove it) for those that are there now; it is
        called again if somebody else wrote the node. It may raise ValueError, whose text becomes the problem. With
        ``create`` a missing node is made.
        """
        path = paths.pointers(self.group, partition)
        for _ in range(ROUNDS):
            found = self.read([partition])
            if not found and create:
                self._session.ensure([path.rpartition("/")[0]], Deadline(self._timeout))
                self._session.create(path, b"", Deadline(self._timeout))
                continue
            if not found:
                return PointerChange(partition, problem="it has no pointers any more")
            if found[0].problem:
                return PointerChange(partition, problem=found[0].problem)
            try:
                changes = change(found[0].pointers)
            except ValueError as error:
                return PointerChange(partition, problem=str(error))
            if not changes:
                return PointerChange(partition)
            data = encode_pointers(applied(found[0].pointers, changes).values())
            if self._session.write(path, data, Deadline(self._timeout), found[0].version):
                return PointerChange(partition, tuple(changes))
        return PointerChange(partition, problem="its owner wrote it each time; try again")


def _is_partition(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10 and str(int(name)) == name


# ---- what the commands do with pointers; pure


@dataclass(frozen=True, slots=True)
class PointerFilter:
    """Selects pointers: by ``offsets`` (None: all), by a text that their reason contains, and by kind."""

    offsets: Collection[int] | None = None
    reason: str = ""
    kinds: tuple[PointerKind, ...] = (PointerKind.DEAD,)

    def of(self, pointers: Iterable[Pointer]) -> list[Pointer]:
        """Return the selected pointers in the order of offsets."""
        return sorted(
            (
                one
                for one in pointers
                if one.kind in self.kinds
                and (self.offsets is None or one.offset in self.offsets)
                and self.reason in one.reason
            ),
            key=lambda one: one.offset,
        )


def replayed(
    chosen: PointerFilter, present: Collection[int], now_ms: int
) -> Callable[[Mapping[int, Pointer]], Mapping[int, Pointer | None]]:
    """Return the change that makes messages due for a member; dead letters have all attempts anew.

    Arguments: ``present`` are the places of pointers whose messages are in the log. Others are left alone.
    It raises ValueError if the partition would have more parked messages than it may.
    """

    def change(pointers: Mapping[int, Pointer]) -> Mapping[int, Pointer | None]:
        some = [one for one in chosen.of(pointers.values()) if one.place in present]
        dead = [
            replace(one, kind=PointerKind.PARKED, attempts=0, first_ms=0)
            for one in some
            if one.kind is PointerKind.DEAD
        ]
        parked = [one for one in some if one.kind is PointerKind.PARKED]
        room = MOST_POINTERS - sum(one.kind is PointerKind.PARKED for one in pointers.values())
        if len(dead) > room:
            raise ValueError(
                f"{len(dead)} dead letters were chosen, and only {max(0, room)} more messages can be parked:"
                " replay fewer with --offset"
            )
        return {one.offset: replace(one, due_ms=now_ms) for one in (*dead, *parked)}

    return change


def dropped(
    chosen: PointerFilter, shown: Collection[int]
) -> Callable[[Mapping[int, Pointer]], Mapping[int, Pointer | None]]:
    """Return the change that removes pointers.

    Only those whose places were shown, and which were saved for an undo, are removed.
    """
    return lambda pointers: {one.place: None for one in chosen.of(pointers.values()) if one.place in shown}


def put_back(saved: Iterable[Pointer]) -> Callable[[Mapping[int, Pointer]], Mapping[int, Pointer | None]]:
    """Return the change that puts dropped pointers back. It raises ValueError if there is no room for them."""

    def change(pointers: Mapping[int, Pointer]) -> Mapping[int, Pointer | None]:
        missing = [one for one in saved if one.place not in pointers]
        for kind in PointerKind:
            have = sum(one.kind is kind for one in [*pointers.values(), *missing])
            if have > MOST_POINTERS:
                raise ValueError(f"there would be {have} {kind.value} messages, {MOST_POINTERS} are the most")
        return {one.place: one for one in missing}

    return change


# ---- the undo file


@dataclass(frozen=True, slots=True)
class DroppedPointers:
    """The content of an undo file: the pointers that a command removed, by partition."""

    group: str
    cluster: str
    pointers: Mapping[TopicPartition, Sequence[Pointer]]


def format_undo(dropped: DroppedPointers) -> str:
    """Return the text of an undo file."""
    return json.dumps(
        {
            "kind": _UNDO_KIND,
            "version": 1,
            "group": dropped.group,
            "zookeeper": dropped.cluster,
            "pointers": [_listed(tp, one) for tp, some in sorted(dropped.pointers.items()) for one in some],
        },
        indent=1,
    )


def _listed(tp: TopicPartition, one: Pointer) -> dict[str, object]:
    fields = asdict(one)
    kind = fields.pop("kind").value  # undo files of earlier releases name it "fate"
    return {"topic": tp.topic, "partition": tp.partition, "fate": kind, **fields}


def parse_undo(text: str) -> DroppedPointers:
    """Return the content of an undo file. Raises ValueError for another file."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("it is no undo file of 'zkconsumer dead drop'") from None
    if not isinstance(document, dict) or document.get("kind") != _UNDO_KIND or document.get("version") != 1:
        raise ValueError("it is no undo file of 'zkconsumer dead drop'")
    group, cluster, listed = document.get("group"), document.get("zookeeper"), document.get("pointers")
    if not isinstance(group, str) or name_problem(group) or not isinstance(cluster, str):
        raise ValueError("it names no group")
    if not isinstance(listed, list):
        raise ValueError("it lists no pointers")
    found: dict[TopicPartition, list[Pointer]] = {}
    for one in listed:
        tp, pointer = _parsed(one)
        found.setdefault(tp, []).append(pointer)
    return DroppedPointers(group, cluster, found)


def _parsed(one: Any) -> tuple[TopicPartition, Pointer]:
    if not isinstance(one, dict):
        raise ValueError(f"{one!r:.80} is no pointer")
    names = ("offset", "attempts", "due_ms", "first_ms", "partition")
    numbers = {**{name: one.get(name) for name in names}, "lost_ms": one.get("lost_ms", 0)}
    texts = {name: one.get(name) for name in ("key", "reason", "topic")}
    if not all(type(value) is int and 0 <= value < 1 << 63 for value in numbers.values()):
        raise ValueError(f"{one!r:.80} has no number where one belongs")
    if not all(isinstance(value, str) for value in texts.values()) or name_problem(str(texts["topic"])):
        raise ValueError(f"{one!r:.80} has no text where one belongs")
    tp = TopicPartition(str(texts.pop("topic")), int(numbers.pop("partition") or 0))
    return tp, Pointer(kind=PointerKind(one.get("fate")), **numbers, **texts)  # type: ignore[arg-type]
