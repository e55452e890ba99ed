"""Carrying out what ``zkconsumer migrate`` was asked for: look, plan, keep what was there, write, look again.

Runs in the main thread. The order is what makes it safe to stop anywhere: what is written over is in a file, complete,
before the first write; what became of each partition is read back and said, also after Ctrl-C.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

from zkconsumer.cli.migrate.group_offsets import GroupOffsets
from zkconsumer.cli.migrate.report import comparison_table, complain, outcome_table, plan_table, say
from zkconsumer.core.migration.files import Backup, format_backup, format_csv, parse_backup, parse_csv
from zkconsumer.core.migration.planning import (
    Ahead,
    Compared,
    Entries,
    Entry,
    MovePlan,
    OutOfRange,
    Saved,
    Selection,
    Store,
    Verdict,
    compare,
    plan_move,
    plan_rollback,
    shown,
)
from zkconsumer.errors import BrokerError, ConfigException, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.admin import batches

FAILED, NOTHING, UNDECIDED, LIVE = 1, 3, 4, 5
_LOOK_AGAIN = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """How to write; see the command's help."""

    dry_run: bool
    rolling: bool
    force: bool
    backup: Path | None
    out_of_range: OutOfRange
    ahead: Ahead


# ---- looking ----


def verify(group: GroupOffsets, selection: Selection, wait: float) -> int:
    """Compares the stores, again for ``wait`` seconds while they differ. Returns 0 where they agree, else 4; 3 where
    neither holds anything.

    With live members that write both, the two are hardly ever written at the same moment: each partition counts as the
    same once it was seen so.
    """
    until = monotonic() + wait
    agreed: dict[TopicPartition, Compared] = {}
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


def _compared(group: GroupOffsets, selection: Selection) -> list[Compared]:
    held = {store: selection.of(group.side(store).read(group.deadline())) for store in Store}
    logs = group.logs({*held[Store.ZOOKEEPER], *held[Store.KAFKA]})
    return compare(held[Store.ZOOKEEPER], held[Store.KAFKA], logs)


def export(group: GroupOffsets, store: Store, selection: Selection, output: Path | None, *, with_group: bool) -> int:
    """Writes the offsets of a store as CSV. Returns 0; 1 where one cannot be read, 3 where there is none."""
    held = selection.of(group.side(store).read(group.deadline()))
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


def move(group: GroupOffsets, target: Store, source: Path | None, selection: Selection, options: Options) -> int:
    """Has ``target`` hold what the other store, or a CSV file, says. Returns the exit code.

    Raises: RegistryError, BrokerError, ConfigException for a file that cannot be read.
    """
    live = _live(group, target, options)  # before anything is read: who leaves after that has committed before
    held = group.side(target).read(group.deadline())
    wanted: Entries
    if source is None:
        wanted = group.side(target.other).read(group.deadline())
    else:
        wanted = {tp: Entry(offset) for tp, offset in _from_file(source, parse_csv, group.group).items()}
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


def rollback(group: GroupOffsets, file: Path, selection: Selection, options: Options) -> int:
    """Puts back what stood there before the run that made the file. Returns the exit code.

    Raises: RegistryError, BrokerError, ConfigException for a file that cannot be read.
    """
    backup = _from_file(file, parse_backup)
    if backup.group != group.group:
        complain(f"{file} is of group {backup.group!r}; nothing was done")
        return UNDECIDED
    if backup.cluster != group.cluster:
        say(f"note: {file} was made with zookeeper.connect={backup.cluster}")
    saved = {tp: one for tp, one in backup.saved.items() if tp in selection}
    live = _live(group, backup.store, options)
    held = {tp: e for tp, e in group.side(backup.store).read(group.deadline()).items() if tp in saved}
    plan = plan_rollback(backup.store, saved, held, force=options.force)
    say(f"group {group.group}: {backup.store} as it was before {backup.when}")
    say(plan_table(plan.steps, "before", backup.store))
    return _decide(group, plan, options, live)


def _decide(group: GroupOffsets, plan: MovePlan, options: Options, lived: list[str]) -> int:
    """Refuse, or carry it out. ``lived``: who stood in the way when the plan was begun."""
    code = 0
    live = lived or _live(group, plan.target, options)
    if live:
        complain("members of the group live:\n  " + "\n  ".join(live))
        complain('stop them, or move the group member by member: see "Leaving ZooKeeper" in README')
        code = LIVE
    if plan.undecided:
        complain(f"{len(plan.undecided)} partitions have to be decided first, see UNDECIDED above")
        code = UNDECIDED
    if options.dry_run or code:
        say(f"nothing was written{'' if code else f'; {len(plan.changes)} partitions would be'}")
        return code
    if not plan.changes:
        say("there is nothing to write")
        return 0
    return _carry_out(group, plan, options)


def _live(group: GroupOffsets, target: Store, options: Options) -> list[str]:
    """Who stands in the way. The rolling way needs nobody on the side that is written."""
    sides = [target] if options.rolling else list(Store)
    return [f"{who} ({store})" for store in sides for who in group.side(store).members(group.deadline())]


def _carry_out(group: GroupOffsets, plan: MovePlan, options: Options) -> int:
    kept = _keep(group, plan, options)
    say(f"what stands there now is kept in {kept}")
    outcomes = {step.partition: "not written: somebody wrote it meanwhile" for step in plan.changes}
    side = group.side(plan.target)
    held = side.read(group.deadline())
    todo = [step for step in plan.changes if held.get(step.partition) == step.before]
    outcomes.update((step.partition, "not written") for step in todo)
    try:
        for some in batches(todo):
            outcomes.update((step.partition, "unknown") for step in some)
            live = _live(group, plan.target, options)
            if live:
                outcomes.update((step.partition, f"not written: {live[0]} has come meanwhile") for step in some)
                break
            try:
                refused = side.write(some, group.deadline())
            except (RegistryError, BrokerError) as error:
                outcomes.update((step.partition, f"unknown: {error}") for step in some)
                break
            outcomes.update((step.partition, "written") for step in some)
            outcomes.update((tp, f"not written: {reason}") for tp, reason in refused.items())
    finally:
        done = _read_back(group, plan, outcomes)
        say(outcome_table(outcomes))
        say(f"{done} of {len(outcomes)} written; to put back what stood there: --rollback {kept}")
    return 0 if done == len(outcomes) else FAILED


def _read_back(group: GroupOffsets, plan: MovePlan, outcomes: dict[TopicPartition, str]) -> int:
    """Put into ``outcomes`` what stands there now; returns how many are as they should be."""
    try:
        held = group.side(plan.target).read(group.deadline())
    except (RegistryError, BrokerError) as error:
        outcomes.update((tp, f"unknown, it cannot be read back: {error}") for tp in outcomes)
        return 0
    done = 0
    for step in plan.changes:
        now = held.get(step.partition)
        if now == step.after:
            outcomes[step.partition] = "removed" if step.verdict is Verdict.REMOVE else f"written: {now}"
            done += 1
        elif now == step.before and outcomes[step.partition].startswith("unknown"):
            outcomes[step.partition] = f"not written{outcomes[step.partition].removeprefix('unknown')}"
        elif now != step.before or outcomes[step.partition] == "written":
            outcomes[step.partition] += f"; {shown(now)} stands there now"
    return done


# ---- files ----


def _keep(group: GroupOffsets, plan: MovePlan, options: Options) -> Path:
    """Write down what is written over. Returns where. Raises ConfigException where that cannot be."""
    when = datetime.now(UTC)
    default = f"{group.group}-{plan.target.value}-{when:%Y%m%dT%H%M%S.%f}.rollback.json"
    path = options.backup or Path(default)
    saved = {step.partition: Saved(step.before, step.after) for step in plan.changes}
    backup = Backup(group.group, plan.target, group.cluster, f"{when:%Y-%m-%dT%H:%M:%SZ}", saved)
    write_new(path, format_backup(backup))
    return path


def write_new(path: Path, text: str) -> None:
    """A new file, whole or not at all, and on the disk. Raises ConfigException where there is one, or none can be."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # in place of a rename, which would write over a file of this name
        finally:
            Path(temporary).unlink()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigException(str(path), f"cannot be written: {error.strerror or error}") from None


T = TypeVar("T")


def _from_file(path: Path, parse: Callable[..., T], *arguments: str) -> T:
    try:
        return parse(path.read_text(encoding="utf-8-sig"), *arguments)  # some editors put a mark before it
    except OSError as error:
        raise ConfigException(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigException(str(path), str(error)) from None


# ---- words ----


def _say_members(group: GroupOffsets) -> None:
    for store in Store:
        names = group.side(store).members(group.deadline())
        if names:
            say(f"live through {store}: {', '.join(names)}")


def _of(selection: Selection) -> str:
    return f" of {', '.join(sorted(selection.topics))}" if selection.topics else ""
