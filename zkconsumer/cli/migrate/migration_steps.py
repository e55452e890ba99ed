"""The steps of ``zkconsumer migrate``: read, plan, write, read again, and print the result.

Runs in the main thread. The writes are an :class:`~zkconsumer.operations.offset_writer.OffsetRun`, as those of
``zkconsumer offsets``. At the end, also after Ctrl-C, each partition is read back and its result is printed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from zkconsumer.cli.offsets.write_report import StopSignals
from zkconsumer.cli.source_arguments import parsed_file
from zkconsumer.cluster.cluster_client import ClusterClient, existing_partitions
from zkconsumer.cluster.group_offsets import REASONS, GroupOffsets, KafkaGroupOffsets, ZooKeeperGroupOffsets
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.offset_file_formats import format_csv, parse_csv, parse_undo_file
from zkconsumer.core.offset_move_plan import (
    AheadPolicy,
    LogRange,
    MoveVerdict,
    OffsetMovePlan,
    OutOfRangePolicy,
    PartitionComparison,
    PartitionSelection,
    Step,
    Store,
    StoreEntries,
    StoreEntry,
    compare,
    entry_text,
    plan_move,
    plan_rollback,
)
from zkconsumer.model import TopicPartition
from zkconsumer.operations.atomic_file import write_new
from zkconsumer.operations.offset_writer import OffsetRun, WriteState
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import Outcome


class MemberlessOffsets:
    """A store to write. It looks for live members, and at the offsets in Kafka, right before each write.

    Arguments: ``live`` returns the live members that forbid a write.
    """

    def __init__(self, offsets: GroupOffsets, live: Callable[[], Sequence[str]]) -> None:
        self._offsets = offsets
        self._live = live
        self.store, self.read, self.members = offsets.store, offsets.read, offsets.members
        self.catch_up = offsets.catch_up

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """Write the steps whose offsets are those that the undo file has. Raises as :class:`GroupOffsets`."""
        if live := self._live():
            return dict.fromkeys((step.partition for step in steps), f"{live[0]} has come meanwhile")
        refused: dict[TopicPartition, str] = {}
        if self.store is Store.KAFKA:  # a commit names no version, so it would overwrite what came meanwhile
            held = self.read(deadline)
            moved = [step.partition for step in steps if held.get(step.partition) != step.before]
            refused = dict.fromkeys(moved, REASONS[Outcome.OFFSET_MOVED])
        allowed = [step for step in steps if step.partition not in refused]
        return {**refused, **(self._offsets.write(allowed, deadline) if allowed else {})}


class MigratedGroup:
    """One group on one cluster. A context manager; each connection opens when it is first needed.

    Arguments: ``config`` with the addresses and the security; ``timeout`` of each read or write in seconds.
    """

    def __init__(self, config: ConsumerConfig, timeout: float) -> None:
        self.group = config.group_id
        self.cluster = config.zookeeper_connect
        self.timeout = timeout
        self._client = ClusterClient(config, timeout, socket_timeout=config.socket_timeout_ms / 1000)
        self._kafka = KafkaGroupOffsets(self._client, self.group)

    def __enter__(self) -> Self:
        """Connect. Raises RegistryError."""
        self._client.open_session(Deadline(self._client.config.zookeeper_connection_timeout_ms / 1000))
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()
        self._client.close()

    def deadline(self) -> Deadline:
        """Return the deadline of one read or write."""
        return Deadline(self.timeout)

    def offsets(self, store: Store) -> GroupOffsets:
        """Return one of the stores."""
        return ZooKeeperGroupOffsets(self._client.session, self.group) if store is Store.ZOOKEEPER else self._kafka

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """Return the logs of the partitions that exist. Raises RegistryError, BrokerError."""
        topics = {tp.topic for tp in partitions}
        wanted = sorted(existing_partitions(self._client, topics, self.deadline()) & set(partitions))
        return self._client.lookup.logs(wanted, self.deadline())


FAILED, NOTHING, UNDECIDED, LIVE = 1, 3, 4, 5
_LOOK_AGAIN = 0.5


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """The options of writing; see the command's help."""

    execute: bool
    rolling: bool
    force: bool
    undo_file: Path | None
    connect: str
    """The options to connect with, for the command that undoes the run."""
    out_of_range: OutOfRangePolicy
    ahead: AheadPolicy

    def undo_command(self, undo_file: Path) -> str:
        """Return the command that puts back what the run overwrote."""
        return f"zkconsumer offsets undo {shlex.quote(str(undo_file))} {self.connect} --execute"


# ---- reading ----


def verify(group: MigratedGroup, selection: PartitionSelection, wait: float) -> int:
    """Compare the stores. Repeat it for ``wait`` seconds while they differ.

    Return 0 if they agree, 4 if they differ, 3 if both are empty. Live members that write both stores hardly ever write
    them at the same moment. So a partition counts as equal once it was seen equal.
    """
    until = monotonic() + wait
    agreed: dict[TopicPartition, PartitionComparison] = {}
    while True:
        found = [agreed.get(one.partition, one) for one in _compared(group, selection)]
        agreed.update((one.partition, one) for one in found if one.agrees)
        differing = [one for one in found if not one.agrees]
        if not differing or monotonic() >= until:
            break
        sleep(min(_LOOK_AGAIN, max(0.0, until - monotonic())))
    if not found:
        say(f"group {group.group}: neither ZooKeeper nor Kafka holds any offset{_of(selection)}")
        return NOTHING
    say(comparison_table(found))
    _say_members(group)
    if differing:
        say(f"{len(differing)} of {len(found)} partitions differ")
        return UNDECIDED
    say(f"{len(found)} partitions: it makes no difference which store is read")
    return 0


def _compared(group: MigratedGroup, selection: PartitionSelection) -> list[PartitionComparison]:
    held = {store: selection.of(group.offsets(store).read(group.deadline())) for store in Store}
    logs = group.logs({*held[Store.ZOOKEEPER], *held[Store.KAFKA]})
    return compare(held[Store.ZOOKEEPER], held[Store.KAFKA], logs)


def export(
    group: MigratedGroup, store: Store, selection: PartitionSelection, output: Path | None, *, with_group: bool
) -> int:
    """Write the offsets of a store as CSV. Return 0, 1 if an offset cannot be read, 3 if there is none."""
    held = selection.of(group.offsets(store).read(group.deadline()))
    for tp, entry in held.items():
        if entry.offset is None:
            complain(f"{tp}: {entry.problem}")
    if any(entry.offset is None for entry in held.values()):
        complain("nothing was exported; leave out what cannot be read by --topic")
        return FAILED
    offsets = {tp: entry.valid for tp, entry in held.items() if entry.valid is not None}
    if not offsets:
        complain(f"{store} holds no offset of group {group.group}{_of(selection)}")
        return NOTHING
    text = format_csv(offsets, group.group if with_group else None)
    if output is None:
        print(text, end="")
    else:
        write_new(output, text)
    return 0


# ---- moving ----


def move(
    group: MigratedGroup, target: Store, source: Path | None, selection: PartitionSelection, options: MigrationOptions
) -> int:
    """Write the offsets of the other store, or of a CSV file, to ``target``. Return the exit code.

    Raises: RegistryError, BrokerError, ConfigException for a file that cannot be read.
    """
    # before the first read; otherwise a member could commit and leave after the read, and its commit would be missed
    live = _live(group, target, options)
    held = group.offsets(target).read(group.deadline())
    wanted: StoreEntries
    if source is None:
        wanted = group.offsets(target.other).read(group.deadline())
    else:
        wanted = {tp: StoreEntry(offset) for tp, offset in parsed_file(source, parse_csv, group.group).items()}
    wanted, held = selection.of(wanted), selection.of(held)
    if not wanted:
        complain(f"{source or target.other} holds no offset of group {group.group}{_of(selection)}")
        return NOTHING
    plan = plan_move(
        target,
        wanted,
        held if source is None else {tp: entry for tp, entry in held.items() if tp in wanted},
        group.logs({*wanted, *held}),
        out_of_range=options.out_of_range,
        ahead=options.ahead,
    )
    name = str(target.other) if source is None else source.name
    say(f"group {group.group}: {name} -> {target}")
    say(plan_table(plan.steps, name, target))
    return _decide(group, plan, options, live)


def rollback(group: MigratedGroup, file: Path, selection: PartitionSelection, options: MigrationOptions) -> int:
    """Restore the offsets from before the run that made the file. Return the exit code.

    Raises: RegistryError, BrokerError, ConfigException for a file that cannot be read.
    """
    backup = parsed_file(file, parse_undo_file)
    if backup.group != group.group:
        complain(f"{file} is of group {backup.group!r}; nothing was done")
        return UNDECIDED
    if backup.cluster != group.cluster:
        say(f"note: {file} was made with zookeeper.connect={backup.cluster}")
    saved = {tp: one for tp, one in backup.saved.items() if tp in selection}
    live = _live(group, backup.store, options)
    held = {tp: e for tp, e in group.offsets(backup.store).read(group.deadline()).items() if tp in saved}
    plan = plan_rollback(backup.store, saved, held, force=options.force)
    say(f"group {group.group}: {backup.store} as it was before {backup.when}")
    say(plan_table(plan.steps, "before", backup.store))
    return _decide(group, plan, options, live)


def _decide(group: MigratedGroup, plan: OffsetMovePlan, options: MigrationOptions, lived: list[str]) -> int:
    """Refuse the plan, or perform it. ``lived`` are the live members before the plan was made."""
    code = 0
    live = lived or _live(group, plan.target, options)
    if live:
        complain("members of the group live:\n  " + "\n  ".join(live))
        complain('stop them, or move the group member by member: see "Leaving ZooKeeper" in the docs')
        code = LIVE
    if plan.undecided:
        complain(f"{len(plan.undecided)} partitions have to be decided first, see UNDECIDED above")
        code = UNDECIDED
    if code or not options.execute:
        say(f"nothing was written{'' if code else f'; {len(plan.changes)} partitions would be'}")
        return code
    if not plan.changes:
        say("there is nothing to write")
        return 0
    return _carry_out(group, plan, options)


def _live(group: MigratedGroup, target: Store, options: MigrationOptions) -> list[str]:
    """Return the live members. A rolling migration allows members on the side that is not written."""
    sides = [target] if options.rolling else list(Store)
    return [f"{who} ({store})" for store in sides for who in group.offsets(store).members(group.deadline())]


def _carry_out(group: MigratedGroup, plan: OffsetMovePlan, options: MigrationOptions) -> int:
    offsets = MemberlessOffsets(group.offsets(plan.target), lambda: _live(group, plan.target, options))
    expected = {step.partition: None if step.before is None else step.before.valid for step in plan.changes}
    with StopSignals() as stop:
        run = OffsetRun(group.group, group.cluster, offsets, group.timeout, stop)
        if run.begin({step.partition: step.after for step in plan.changes}, expected):
            kept = run.save(options.undo_file)
            say(f"what stands there now is kept in {kept}")
        held: Mapping[TopicPartition, StoreEntry] | None = None
        try:
            run.write()
        finally:  # also after a second Ctrl-C: what was written must be told
            try:
                held = run.settle(always=True)
            finally:  # also after one during the settling
                _tell_outcomes(plan, run, held, options)
        done = held is not None and all(held.get(step.partition) == step.after for step in plan.changes)
        return stop.code or (0 if done else FAILED)


def _tell_outcomes(
    plan: OffsetMovePlan, run: OffsetRun, held: Mapping[TopicPartition, StoreEntry] | None, options: MigrationOptions
) -> None:
    """Print the result of each partition, and the command that undoes the run. ``held`` is None if not read back."""
    say(outcome_table({step.partition: _outcome(step, run, held) for step in plan.changes}))
    if held is None:
        done = run.count(WriteState.WRITTEN)
    else:
        done = sum(held.get(step.partition) == step.after for step in plan.changes)
    undo = f"; to put back what stood there: {options.undo_command(run.undo_file)}" if run.undo_file else ""
    say(f"{done} of {len(plan.changes)} written{undo}")


def _outcome(step: Step, run: OffsetRun, held: Mapping[TopicPartition, StoreEntry] | None) -> str:
    """Return the result of one partition as text, with the offset that is there now if it is another one."""
    result = run.results[step.partition]
    if held is None:
        return f"{result}; it was not read back"
    now = held.get(step.partition)
    if now == step.after:
        return "removed" if step.verdict is MoveVerdict.REMOVE else f"written: {now}"
    told = now == step.before and result.state is not WriteState.WRITTEN
    return str(result) if told else f"{result}; {entry_text(now)} stands there now"


# ---- output ----


def say(text: str = "") -> None:
    """Print a line and flush it, so that the output of a hanging run is complete."""
    print(text, flush=True)


def complain(text: str) -> None:
    """Print a line on standard error."""
    print(f"zkconsumer migrate: {text}", file=sys.stderr, flush=True)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as text with aligned columns."""
    lines = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def plan_table(steps: Sequence[Step], source: str, target: Store) -> str:
    """Return a plan as text, with a row for each partition."""
    rows = [("partition", source, str(target), "log", "what")]
    rows += [
        (str(s.partition), entry_text(s.source), entry_text(s.before), "-" if s.log is None else str(s.log), _what(s))
        for s in steps
    ]
    return table(rows)


def _what(step: Step) -> str:
    words = {
        MoveVerdict.SAME: "the same already",
        MoveVerdict.WRITE: f"write {entry_text(step.after)}",
        MoveVerdict.REMOVE: "remove",
        MoveVerdict.LEFT: "left as it is",
        MoveVerdict.UNDECIDED: "UNDECIDED",
    }
    return f"{words[step.verdict]}: {step.reason}" if step.reason else words[step.verdict]


def outcome_table(outcomes: Mapping[TopicPartition, str]) -> str:
    """Return the outcome of each partition of the plan as text."""
    return table([("partition", "outcome"), *((str(tp), outcomes[tp]) for tp in sorted(outcomes))])


def comparison_table(compared: Sequence[PartitionComparison]) -> str:
    """Return the comparison of the two stores as text."""
    rows = [("partition", str(Store.ZOOKEEPER), str(Store.KAFKA), "log", "")]
    rows += [
        (
            str(one.partition),
            entry_text(one.zookeeper),
            entry_text(one.kafka),
            "-" if one.log is None else str(one.log),
            "; ".join(filter(None, (one.agreement.value, one.note))),
        )
        for one in compared
    ]
    return table(rows)


def _say_members(group: MigratedGroup) -> None:
    for store in Store:
        names = group.offsets(store).members(group.deadline())
        if names:
            say(f"live through {store}: {', '.join(names)}")


def _of(selection: PartitionSelection) -> str:
    return f" of {', '.join(sorted(selection.topics))}" if selection.topics else ""
