"""Writes offsets to one store of a group, so that every interruption can be told and undone.

The order makes it safe to stop anywhere. Before the first write, the offsets that will be overwritten are complete in a
file on disk. They are then written in slices; after a lost answer nothing more is written. At the end all partitions
are read back.

A partition without an owner is written if its offset is still the one that was read. An owned partition is written if
its owner advertises that it adopts the offset. Such an owner commits meanwhile. So each try reads the offset anew,
saves it in the file, computes the new offset, and names the version that was read. ZooKeeper checks all within the
transaction. Kafka checks neither: its coordinator only refuses a group that has members; owners are looked up right
before a commit.

One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from zkconsumer.cluster.group_offsets import REASONS, GroupOffsets, ZooKeeperGroupOffsets, batches, node_content
from zkconsumer.core.offset_file_formats import UndoFile, format_undo_file
from zkconsumer.core.offset_move_plan import MoveVerdict, SavedEntry, Step, StoreEntry, stored_as
from zkconsumer.errors import BrokerError, ConfigException, MalformedNodeError, NotPermittedError, RegistryError
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.atomic_file import write_new
from zkconsumer.operations.group_snapshot import GroupSnapshot, MemberNode, OwnerNode, node_stat
from zkconsumer.operations.offset_reset import adopting_owners
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, ownership_transactions, paths
from zkconsumer.zookeeper.node_values import FORBIDDEN, Node
from zkconsumer.zookeeper.ownership_transactions import Outcome, OwnedChange
from zkconsumer.zookeeper.session import Session

ROUNDS = 8
"""Tries to write an owned partition. Each commit of its owner, or a new owner, makes one of them fail."""
_LOOK_AGAIN = 0.2
"""Seconds between two looks at partitions whose owners have not followed."""


class WriteState(Enum):
    """The result of a write for one partition."""

    WRITTEN = "written"
    NOT_WRITTEN = "not written"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result for one partition; ``why`` explains a state other than WRITTEN."""

    state: WriteState
    why: str = ""

    def __str__(self) -> str:
        return f"{self.state.value}: {self.why}" if self.why else self.state.value


class AdoptingOwner(NamedTuple):
    """A member that adopts offsets: its registration's content and data version."""

    consumer: ConsumerId
    data: bytes
    version: int


# ---- owners ----


class GroupOwners:
    """Looks up who owns partitions now, and whether these members adopt offsets."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    def look(
        self, partitions: Collection[TopicPartition], deadline: Deadline
    ) -> tuple[dict[TopicPartition, AdoptingOwner], dict[TopicPartition, str]]:
        """Return the owners that adopt, and the reasons against all other owned partitions. Raises RegistryError."""
        wanted = sorted(partitions)
        nodes = self._session.read([paths.owner(self._group, tp) for tp in wanted], deadline)
        owners = {tp: self._owner(tp, node) for tp, node in zip(wanted, nodes, strict=True) if node is not None}
        names = sorted({owner.thread.rpartition("-")[0] for owner in owners.values() if owner.thread})
        members, registered = self._members(names, deadline)
        found, refused = adopting_owners(GroupSnapshot(self._group, 0, members=members, owners=owners), wanted)
        adopting = {}
        for tp, consumer in found.items():
            node = registered[consumer]
            adopting[tp] = AdoptingOwner(consumer, node.data, node.version)
        return adopting, refused

    def nudge(self, owners: Iterable[AdoptingOwner], deadline: Deadline) -> None:
        """Have owners look at their offsets now, by writing their registrations again with the same content.

        Members of ours watch the contents of registrations, Scala members do not. A registration that this user must
        not write is left alone: the member looks without the write, but later. Raises RegistryError.
        """
        for owner in {owner.consumer: owner for owner in owners}.values():
            with suppress(NotPermittedError):
                self._session.write(paths.member(self._group, owner.consumer), owner.data, deadline, owner.version)

    def _owner(self, tp: TopicPartition, node: Node) -> OwnerNode:
        try:
            return OwnerNode(node_codecs.decode_owner(node.data, paths.owner(self._group, tp)), node_stat(node))
        except MalformedNodeError as error:
            return OwnerNode("", node_stat(node), str(error))

    def _members(
        self, names: Sequence[str], deadline: Deadline
    ) -> tuple[dict[ConsumerId, MemberNode], dict[ConsumerId, Node]]:
        members: dict[ConsumerId, MemberNode] = {}
        registered: dict[ConsumerId, Node] = {}
        by_path = {}
        for name in names:
            try:
                by_path[paths.member(self._group, name)] = ConsumerId(name)
            except ValueError:  # a hostile owner node; it counts as an owner without a registration
                continue
        for (path, name), node in zip(by_path.items(), self._session.read(list(by_path), deadline), strict=True):
            if node is None:
                continue
            registered[name] = node
            try:
                members[name] = MemberNode(node_codecs.decode_registration(node.data, path), node_stat(node))
            except MalformedNodeError as error:
                members[name] = MemberNode(None, node_stat(node), str(error))
        return members, registered


def _made_again(owner: AdoptingOwner) -> str:
    return f"{owner.consumer} owns it and would make the offset again; stop it"


# ---- the stores ----

_FORBIDDEN = "ZooKeeper does not let us read its offset; check the node's ACL"

Prepare = Callable[[Sequence[Step]], tuple[Sequence[Step], Mapping[TopicPartition, str]]]
"""Makes the steps of one try from those with the offsets that it will overwrite."""


class _PresentOffset(NamedTuple):
    """An offset node as read by one try: entry and data version, None without a node."""

    entry: StoreEntry | None
    version: int | None


class OwnedZooKeeperOffsets(ZooKeeperGroupOffsets):
    """The offset nodes of a group that may be live.

    ``adopted`` has, for each partition that was written although it is owned, the owner and the data version of the
    offset node after the write.
    """

    def __init__(self, session: Session, group: str) -> None:
        super().__init__(session, group)
        self.owners = GroupOwners(session, group)
        self.adopted: dict[TopicPartition, tuple[AdoptingOwner, int]] = {}

    def write(
        self, steps: Sequence[Step], deadline: Deadline, prepare: Prepare = lambda steps: (steps, {})
    ) -> dict[TopicPartition, str]:
        """Write, in one transaction each, the partitions without an owner and those whose owners adopt the offset.

        A claim or a commit that comes in between makes a transaction fail. Then owners, offsets and versions are read
        again, :data:`ROUNDS` times at most. ``prepare`` gets the owned partitions with the offsets that this try will
        overwrite. It returns the steps to write, and the reason for each partition left out.
        """
        # an offset that cannot be read could not be put back
        forbidden = {step.partition for step in steps if self.versions.get(step.partition) == FORBIDDEN.version}
        reasons = dict.fromkeys(forbidden, _FORBIDDEN)
        left = [step for step in steps if step.partition not in forbidden]
        for _ in range(ROUNDS):
            # the versions before the owners: see ownership_transactions.write_adopted
            present = self._present(left, deadline)
            adopting, refused = self.owners.look([step.partition for step in left], deadline)
            reasons.update(refused)
            free = [step for step in left if step.partition not in adopting and step.partition not in refused]
            reasons.update(super().write(free, deadline) if free else {})
            unread = {tp for tp in adopting if present[tp].version == FORBIDDEN.version}
            reasons.update(dict.fromkeys(unread, _FORBIDDEN))
            owned = [
                replace(step, before=present[step.partition].entry)
                for step in left
                if step.partition in adopting and step.partition not in unread
            ]
            left = [step for step in free if reasons.get(step.partition) == REASONS[Outcome.OWNED]]
            prepared, against = prepare(owned) if owned else (owned, {})
            reasons.update(against)
            left += self._write_owned(prepared, adopting, present, reasons, deadline)
            if not left:
                break
            for step in left:
                reasons.pop(step.partition, None)
        why = f"its owner changed or committed at each of {ROUNDS} tries; run the command again"
        reasons.update({step.partition: why for step in left})
        return reasons

    def _present(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, _PresentOffset]:
        nodes = self._session.read([paths.offset(self._group, step.partition) for step in steps], deadline)
        found = {}
        for step, node in zip(steps, nodes, strict=True):
            readable = None if node is None or node is FORBIDDEN else self._entry(step.partition, node.data)
            found[step.partition] = _PresentOffset(readable, None if node is None else node.version)
        return found

    def _write_owned(
        self,
        steps: Sequence[Step],
        adopting: Mapping[TopicPartition, AdoptingOwner],
        present: Mapping[TopicPartition, _PresentOffset],
        reasons: dict[TopicPartition, str],
        deadline: Deadline,
    ) -> list[Step]:
        """Write owned partitions. Return those to try again."""
        changes = []
        for step in steps:
            data, owner = node_content(step), adopting[step.partition]
            if data is None:
                reasons[step.partition] = _made_again(owner)
                continue
            version = present[step.partition].version
            changes.append(OwnedChange(step.partition, data, version, owner.consumer, owner.version))
        outcomes = (
            ownership_transactions.write_adopted(self._session, self._group, changes, deadline) if changes else {}
        )
        again = []
        for step in steps:
            outcome = outcomes.get(step.partition)
            if outcome is Outcome.DONE:
                version = present[step.partition].version
                self.adopted[step.partition] = (adopting[step.partition], 0 if version is None else version + 1)
            elif outcome in (Outcome.NOT_OURS, Outcome.OFFSET_MOVED):
                again.append(step)
            elif outcome is not None:
                reasons[step.partition] = outcome.value
        return again

    # ---- after the writes ----

    def nudge(self, deadline: Deadline) -> None:
        """Have the owners look at their offsets now. Raises RegistryError."""
        self.owners.nudge([owner for owner, _ in self.adopted.values()], deadline)

    def unfollowed(self, deadline: Deadline) -> dict[TopicPartition, ConsumerId]:
        """Return the written partitions whose owners have not confirmed the new offset. Raises RegistryError.

        An owner that goes on from an offset writes it once more. Its commits name the last version of the offset node
        that the owner saw. So any later version was written by a member that knows the new offset.
        """
        waiting = sorted(self.adopted)
        nodes = self._session.stat([paths.offset(self._group, tp) for tp in waiting], deadline)
        return {
            tp: self.adopted[tp][0].consumer
            for tp, node in zip(waiting, nodes, strict=True)
            if node is None or node.version <= self.adopted[tp][1]
        }


class OwnerCheckedKafkaOffsets:
    """The offsets at the coordinator, of a group whose members ZooKeeper may coordinate.

    ``owners`` looks at the owners right before each write, None without ZooKeeper. Kafka cannot check them with it.
    ``adopting`` has the owners of written partitions.
    """

    def __init__(self, offsets: GroupOffsets, owners: GroupOwners | None) -> None:
        self._offsets = offsets
        self._owners = owners
        self.adopting: dict[TopicPartition, AdoptingOwner] = {}
        self.store = offsets.store
        self.read, self.members, self.catch_up = offsets.read, offsets.members, offsets.catch_up

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """Write the partitions that nobody owns or whose owners adopt offsets. Raises as :class:`GroupOffsets`."""
        refused: dict[TopicPartition, str] = {}
        if self._owners is not None:
            adopting, refused = self._owners.look([step.partition for step in steps], deadline)
            removed = [step.partition for step in steps if step.verdict is MoveVerdict.REMOVE]
            refused |= {tp: _made_again(adopting.pop(tp)) for tp in removed if tp in adopting}
            self.adopting.update(adopting)
        allowed = [step for step in steps if step.partition not in refused]
        return {**refused, **(self._offsets.write(allowed, deadline) if allowed else {})}

    def nudge(self, deadline: Deadline) -> None:
        """Have the owners look at their offsets now. Kafka does not show whether they follow. Raises RegistryError."""
        if self._owners is not None:
            self._owners.nudge(self.adopting.values(), deadline)


# ---- one run ----


@dataclass(slots=True)
class OffsetRun:
    """The writes to one store of one group, from the undo file to the results.

    ``offsets`` is the store, ``timeout`` the seconds for each access. ``stopped`` tells whether the user ends the run.
    ``computed`` returns the offset to write over an owned partition's present offset. It raises ValueError with the
    reason if there is none.
    ``results`` has all partitions from :meth:`begin` on.
    """

    group: str
    cluster: str
    offsets: GroupOffsets
    timeout: float
    stopped: Callable[[], bool] = lambda: False
    results: dict[TopicPartition, WriteResult] = field(default_factory=dict)
    undo_file: Path | None = None
    computed: Callable[[TopicPartition, int | None], int] | None = None
    overwritten: dict[TopicPartition, int | None] = field(default_factory=dict)
    """The offset in ZooKeeper that the last look found, of each partition that has or had an owner."""
    trouble: str = ""
    """Why :meth:`write` ended early, empty if it did not."""
    planned: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """The offsets that the plan was made with."""
    _todo: list[Step] = field(default_factory=list)

    def begin(
        self,
        wanted: Mapping[TopicPartition, StoreEntry | None],
        expected: Mapping[TopicPartition, int | None],
        live: Collection[TopicPartition] = (),
    ) -> int:
        """Read what is there now. Return the number of partitions to write.

        Arguments: ``wanted`` are the entries to write (None: remove the entry); ``expected`` are the offsets of the
        plan, which partitions outside ``live`` must still have; ``live`` partitions have owners that commit all the
        time. There an equal offset is written too: the owner may be ahead of the node.
        Raises RegistryError, BrokerError.
        """
        self.planned = expected
        held = self.offsets.read(Deadline(self.timeout))
        for tp, after in sorted(wanted.items()):
            before = held.get(tp)
            if tp not in live:
                if before == after:
                    self.results[tp] = WriteResult(WriteState.WRITTEN, "")
                    continue
                if tp in expected and (None if before is None else before.valid) != expected[tp]:
                    why = (
                        "somebody deleted it meanwhile" if before is None else f"somebody wrote it meanwhile: {before}"
                    )
                    self.results[tp] = WriteResult(WriteState.NOT_WRITTEN, why)
                    continue
            step = Step(tp, MoveVerdict.REMOVE if after is None else MoveVerdict.WRITE, before=before, after=after)
            try:  # an owner that has left meanwhile committed after the plan was made
                owned = tp in live and isinstance(self.offsets, OwnedZooKeeperOffsets)
                self._todo.append(self._from_present(step) if owned else step)
                self.results[tp] = WriteResult(WriteState.NOT_WRITTEN, "the run ended before it")
            except ValueError as error:
                self.results[tp] = WriteResult(WriteState.NOT_WRITTEN, str(error))
        return len(self._todo)

    def save(self, path: Path | None) -> Path:
        """Save what will be overwritten in a new file, on disk before this returns. Raises ConfigException."""
        default = f"{self.group}-{self.offsets.store.value}-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.undo.json"
        file = path or Path(default)
        self._save(file, anew=False)
        self.undo_file = file
        return file

    def _save(self, file: Path, *, anew: bool) -> None:
        saved = {step.partition: SavedEntry(step.before, step.after) for step in self._todo}
        backup = UndoFile(
            self.group, self.offsets.store, self.cluster, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", saved
        )
        write_new(file, format_undo_file(backup), replace=anew)

    def _from_present(self, step: Step) -> Step:
        """Compute the new offset of a partition from its present offset. Raises ValueError if there is none."""
        before = None if step.before is None else step.before.valid
        if self.computed is not None and step.after is not None:
            step = replace(step, after=stored_as(self.offsets.store, self.computed(step.partition, before)))
        self.overwritten[step.partition] = before
        return step

    def _prepare(self, steps: Sequence[Step]) -> tuple[Sequence[Step], Mapping[TopicPartition, str]]:
        """Compute the new offsets of owned partitions from the present offsets. Save the latter before the write."""
        made, refused = [], {}
        for step in steps:
            try:
                made.append(self._from_present(step))
            except ValueError as error:
                refused[step.partition] = str(error)
        changed = {step.partition: step for step in made}
        self._todo = [changed.get(step.partition, step) for step in self._todo]
        if self.undo_file is not None:
            self._save(self.undo_file, anew=True)
        return made, refused

    def write(self) -> str:
        """Write slice by slice, until a lost answer or until the user stops it. Return the trouble, empty if none."""
        for some in batches(self._todo):
            if self.stopped():
                self.trouble = "stopped by the user"
                break
            self._note(some, WriteState.UNKNOWN, "no answer")
            try:
                refused = self._write_slice(some)
            except (RegistryError, BrokerError, ConfigException) as error:
                self._note(some, WriteState.UNKNOWN, str(error))
                self.trouble = str(error)
                break
            self._note(some, WriteState.WRITTEN, "")
            for tp, reason in refused.items():
                self.results[tp] = WriteResult(WriteState.NOT_WRITTEN, reason)
        return self.trouble

    def _write_slice(self, some: Sequence[Step]) -> Mapping[TopicPartition, str]:
        if isinstance(self.offsets, OwnedZooKeeperOffsets):
            return self.offsets.write(some, Deadline(self.timeout), self._prepare)
        return self.offsets.write(some, Deadline(self.timeout))

    def left_to(self, other: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions of ``other`` that may be written in the other store after this run.

        A member starts at the larger offset of both stores. So a partition that was not written here must not be
        written there. A live owner that adopts the offset writes the other store itself.
        """
        adopted = self.offsets.adopted if isinstance(self.offsets, OwnedZooKeeperOffsets) else {}
        held = {tp for tp, result in self.results.items() if result.state is not WriteState.WRITTEN}
        return set() if self.trouble else set(other) - held - set(adopted)

    def _note(self, steps: Sequence[Step], state: WriteState, why: str) -> None:
        self.results.update((step.partition, WriteResult(state, why)) for step in steps)

    def settle(self, *, always: bool = False) -> Mapping[TopicPartition, StoreEntry] | None:
        """Read the store again if a result is unknown, or ``always``, and complete the unknown results.

        Return what is there now, None if it was not read. A partition that cannot be read keeps its result.
        """
        unknown = [step for step in self._todo if self.results[step.partition].state is WriteState.UNKNOWN]
        held = self._read_back() if unknown or always else None
        if held is None:
            return None
        for step in unknown:
            now = held.get(step.partition)
            if now == step.after and now != step.before:
                self.results[step.partition] = WriteResult(WriteState.WRITTEN)
            elif now == step.before and now != step.after:
                why = self.results[step.partition].why
                self.results[step.partition] = WriteResult(WriteState.NOT_WRITTEN, why)
        return held

    def _read_back(self) -> dict[TopicPartition, StoreEntry] | None:
        """Return what is there now, None if that cannot be seen in time. A lost connection may come back."""
        deadline = Deadline(self.timeout)
        while True:
            try:
                self.offsets.catch_up(deadline)
                return self.offsets.read(deadline)
            except (RegistryError, BrokerError):
                if deadline.expired:
                    return None
                sleep(deadline.bounded(_LOOK_AGAIN))

    def count(self, state: WriteState) -> int:
        """Return the number of partitions with this result."""
        return sum(result.state is state for result in self.results.values())

    @property
    def done(self) -> bool:
        """Whether all partitions have their new offsets."""
        return self.count(WriteState.WRITTEN) == len(self.results)


def wait_until_followed(
    offsets: OwnedZooKeeperOffsets, seconds: float, stopped: Callable[[], bool], timeout: float
) -> dict[TopicPartition, ConsumerId]:
    """Wait until the owners go on from the new offsets. Return the partitions that did not follow, with their owners.

    Raises RegistryError if that cannot be seen at all.
    """
    until = monotonic() + seconds
    offsets.nudge(Deadline(timeout))
    while True:
        late = offsets.unfollowed(Deadline(timeout))
        if not late or stopped() or monotonic() >= until:
            return late
        sleep(_LOOK_AGAIN)
