"""``zkconsumer offsets reset``, which is also ``zkconsumer groups --reset-offsets``, and ``undo``. The main thread's.

``undo`` puts back the offsets that a reset, a prune, a migration or an undo overwrote. The texts of ``reset`` and the
order on standard output are those of ``kafka-consumer-groups.sh`` 3.9: warnings about empty partitions, errors, and
then the table or the CSV. Differs on purpose: a refusal makes the exit code 1, and rows are sorted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from zkconsumer.cli.offsets.reset_arguments import (
    KAFKAS_FILE,
    MISSING_EXECUTE,
    add_wait_argument,
    number_of,
    scenario_of,
    wrong_usage,
)
from zkconsumer.cli.offsets.write_report import OperatedGroup, StopSignals, StoreChange, WriteReport, complain
from zkconsumer.cli.source_arguments import (
    add_connection_arguments,
    add_execution,
    connect_options,
    open_client,
    open_source,
    parsed_file,
)
from zkconsumer.cli.tables import TABLE, Column, Table, add_format_argument, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core import offset_move_plan
from zkconsumer.core.names import name_problem
from zkconsumer.core.offset_file_formats import UndoFile, format_csv, parse_csv, parse_undo_file
from zkconsumer.core.offset_move_plan import MoveVerdict, OffsetMovePlan, PartitionSelection, Step, Store
from zkconsumer.errors import BrokerError, ConfigException, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.operations import offset_reset
from zkconsumer.operations.group_lookup import hint_for_unknown
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.offset_reset import PartitionReset, ResetPlan, ResetTarget, Scenario
from zkconsumer.operations.offset_writer import OwnedZooKeeperOffsets, WriteState
from zkconsumer.operations.printable import printable
from zkconsumer.operations.snapshot_reader import LiveSource, times_of, with_topics
from zkconsumer.runtime.deadline import Deadline


def run_reset(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError if nothing could be read."""
    usage = wrong_usage(arguments)
    if usage:
        print(usage, file=sys.stderr)
        return 2
    if not arguments.dry_run and not arguments.execute:
        print(MISSING_EXECUTE, file=sys.stderr)
    with ExitStack() as stack:
        client: ClusterClient | None = None
        if arguments.snapshots:
            source: SnapshotSource = stack.enter_context(open_source(arguments))
        else:
            client = stack.enter_context(open_client(arguments))
            source = LiveSource(client)
        plans = _plans(arguments, source, client)
        for plan in plans:
            _tell(plan)
        failed = any(plan.errors for plan in plans)
        if not arguments.execute or client is None:
            _print(arguments, plans)
            return int(failed)
        with StopSignals() as stop:
            report = WriteReport(client.timeout, arguments.wait, connect_options(arguments), stop, failed)
            try:
                for plan in plans:
                    _write(report, client, plan, arguments)
            finally:
                _print(arguments, [_written(plan, report) for plan in plans])
            return report.code()


# ---- the plans ----


def _plans(arguments: argparse.Namespace, source: SnapshotSource, client: ClusterClient | None) -> list[ResetPlan]:
    (scenario,) = scenario_of(arguments)
    selection = offset_move_plan.parse_selection(arguments.topic)
    now = time.time_ns() // 1_000_000
    groups = list(source.groups()) if arguments.all_groups else arguments.group
    files = _from_file(arguments.from_file, groups) if scenario is Scenario.FROM_FILE else {}
    plans = []
    for group in groups:
        snapshot = source.snapshot(group)
        if not snapshot.in_zookeeper and not snapshot.in_kafka:
            _warn_of_unknown(group, source)
        target = ResetTarget(scenario, number_of(arguments, scenario), files.get(group))
        if client is not None:
            topics = {tp.topic for tp in target.offsets or ()} or set(selection.topics)
            snapshot = with_topics(client, snapshot, topics)
            if scenario.by_time:
                time_asked = target.number if scenario is Scenario.TO_DATETIME else now - target.number
                target = _with_times(client, snapshot, target, selection, time_asked)
        plan = offset_reset.plan_reset(snapshot, target, selection, _stores(arguments.store))
        if arguments.verbose and client is not None:
            times = times_of(client, snapshot, {one.partition: one.new for one in plan.resets})
            plan = replace(plan, resets=tuple(replace(one, time=times.get(one.partition)) for one in plan.resets))
        plans.append(plan)
    return plans


def _stores(wanted: str | None) -> tuple[Store, ...]:
    if wanted is None:
        return ()
    return tuple(Store) if wanted == "both" else (Store(wanted),)


def _warn_of_unknown(group: str, source: SnapshotSource) -> None:
    complain(f"group {group!r} has neither members nor offsets. {hint_for_unknown(source, group)}".rstrip(" ."))


def _with_times(
    client: ClusterClient, snapshot: GroupSnapshot, target: ResetTarget, selection: PartitionSelection, wanted_time: int
) -> ResetTarget:
    """Return the target with the offsets by time of all partitions that may be reset. Raises BrokerError."""
    asked = snapshot.partitions_of(selection.topics or snapshot.topics)
    held = {*snapshot.offsets, *(snapshot.kafka_offsets or {})}
    chosen = [tp for tp in asked if tp in selection and (selection.topics or tp in held)]
    # a time before 1970 is before every message
    times = dict.fromkeys(chosen, max(0, wanted_time))
    return replace(target, by_time=client.lookup.find(times, Deadline(client.timeout)))


def _from_file(name: str, groups: Sequence[str]) -> dict[str, Mapping[TopicPartition, int]]:
    """Return the offsets of each group in the CSV file. Raises ConfigException."""
    text, found = parsed_file(Path(name), lambda text: (text, {group: parse_csv(text, group) for group in groups}))
    first = next((line for line in text.splitlines() if line.strip()), "")
    if len(groups) != 1 and first.count(",") < 3:
        raise ConfigException(name, "names no groups: with several groups each line is group,topic,partition,offset")
    return {group: offsets for group, offsets in found.items() if offsets}


# ---- the writes ----


def _write(report: WriteReport, client: ClusterClient, plan: ResetPlan, arguments: argparse.Namespace) -> None:
    """Write a group's offsets: first the offsets in ZooKeeper, which count after an interrupt in between."""
    if not plan.resets:
        return
    by_partition = {one.partition: one for one in plan.resets}

    def computed(tp: TopicPartition, current: int | None) -> int:
        return by_partition[tp].overwriting(current).new

    owned = [reset.partition for reset in plan.resets if reset.owner is not None]
    both = len(plan.stores) > 1
    left = {reset.partition for reset in plan.resets}
    with OperatedGroup(client, plan.group) as group:
        for store in plan.stores:
            resets = [one for one in by_partition.values() if one.partition in left]
            if report.stop():
                report.skip(plan.group, store, "stopped by the user")
            if not resets or report.stop():
                continue
            wanted = {one.partition: offset_move_plan.stored_as(store, one.new) for one in resets}
            expected = {one.partition: one.held[store] for one in resets}
            file = None
            if arguments.undo_file is not None:
                file = Path(arguments.undo_file + (KAFKAS_FILE if both and store is Store.KAFKA else ""))
            try:
                run = report.perform(group, StoreChange(store, wanted, expected, owned, computed), file)
            except (RegistryError, BrokerError, ConfigException) as error:
                report.skip(plan.group, store, str(error))
                return
            left = run.left_to(left)
            for tp, before in run.overwritten.items():  # the other store gets the same offset
                by_partition[tp] = by_partition[tp].overwriting(before)
            if run.trouble and both and store is Store.ZOOKEEPER and not report.stop():
                report.skip(plan.group, Store.KAFKA, "the writes to ZooKeeper came to no end")


def _written(plan: ResetPlan, report: WriteReport) -> ResetPlan:
    """Return the plan with those resets alone that were written to all stores, or are left to a live owner."""
    runs = {run.offsets.store: run for run in report.runs if run.group == plan.group}
    done = {one.partition for one in plan.resets} if runs else set()
    adopted: set[TopicPartition] = set()
    for store in plan.stores:
        run = runs.get(store)
        results = {} if run is None else run.results
        written = {tp for tp, result in results.items() if result.state is WriteState.WRITTEN}
        done &= written | adopted
        if run is not None and isinstance(run.offsets, OwnedZooKeeperOffsets):
            adopted = set(run.offsets.adopted)
    overwritten = {tp: before for run in runs.values() for tp, before in run.overwritten.items()}
    resets = [
        one.overwriting(overwritten[one.partition]) if one.partition in overwritten else one
        for one in plan.resets
        if one.partition in done
    ]
    return replace(plan, resets=tuple(resets))


# ---- output ----


def _tell(plan: ResetPlan) -> None:
    """Print warnings and errors as Kafka's tool does."""
    for warning in plan.warnings:
        print(f"WARN {printable(warning)}", file=sys.stderr)
    for note in plan.notes:
        print(f"\n{printable(note)}")
    if plan.errors:
        first, *more = map(printable, plan.errors)
        print(f"\nError: {first}")
        for line in more:
            print(f"  {line}")


def _print(arguments: argparse.Namespace, plans: Sequence[ResetPlan]) -> None:
    if arguments.export:
        single = len(arguments.group) == 1
        for plan in plans:
            offsets = {one.partition: one.new for one in plan.resets}
            print(format_csv(offsets, None if single else plan.group), end="")
        print()
        return
    table = reset_table(plans, verbose=arguments.verbose)
    if arguments.format == TABLE:
        print("\n" + (render(table) if arguments.verbose else _kafkas_lines(table)), flush=True)
    else:
        print(render(table, arguments.format), flush=True)


def _kafkas_lines(table: Table) -> str:
    """Return the table as Kafka's tool prints it: with fixed widths, and blanks at the ends."""
    rows = [tuple(column.title for column in table.columns), *table.rows]
    widths = (30, 30, 10, 15)
    return "\n".join(
        " ".join(printable(str(cell)).ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def reset_table(plans: Sequence[ResetPlan], *, verbose: bool) -> Table:
    """Return the new offsets as Kafka's tool prints them; ``verbose`` adds columns."""
    head = (Column("GROUP", 30), Column("TOPIC", 30), Column("PARTITION", 10))
    if not verbose:
        rows: list[tuple[str | int | None, ...]] = [
            (plan.group, *one.partition, one.new) for plan in plans for one in plan.resets
        ]
        return Table((*head, Column("NEW-OFFSET")), rows)
    columns = ("CURRENT-OFFSET", "NEW-OFFSET", "LAG-AFTER", "EFFECT")
    return Table((*head, *columns), [_verbose_row(plan.group, one) for plan in plans for one in plan.resets])


def _verbose_row(group: str, one: PartitionReset) -> tuple[str | int | None, ...]:
    return (group, *one.partition, one.current, one.new, one.lag_after, one.effect)


_WHAT = {
    MoveVerdict.SAME: "the same already",
    MoveVerdict.WRITE: "put back",
    MoveVerdict.REMOVE: "remove",
    MoveVerdict.UNDECIDED: "REFUSED",
    MoveVerdict.LEFT: "left as it is",
}


def add_undo_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a file that a reset, a prune or a migration wrote")
    how = parser.add_argument_group("how")
    shown = "show what would be put back; the default"
    add_execution(how, shown, "put the offsets back", "what this overwrites")
    how.add_argument("--force", action="store_true", help="also put back offsets that changed since")
    add_wait_argument(how)
    add_format_argument(parser)
    add_connection_arguments(parser)


def run_undo(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    if arguments.dry_run and arguments.execute:
        print("only one of --execute and --dry-run goes", file=sys.stderr)
        return 2
    if arguments.undo_file is not None and (
        not arguments.execute or len(arguments.files) > 1 or not arguments.undo_file
    ):
        print("--undo-file goes with --execute and with one file only", file=sys.stderr)
        return 2
    backups = [parsed_file(Path(name), _checked_undo_file) for name in arguments.files]
    with open_client(arguments) as client, StopSignals() as stop:
        report = WriteReport(client.timeout, arguments.wait, connect_options(arguments), stop)
        rows: list[tuple[str | int | None, ...]] = []
        for name, backup in zip(arguments.files, backups, strict=True):
            if stop():
                break
            rows += _undo(report, client, name, backup, arguments)
        columns = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "EFFECT")
        print(render(Table(columns, rows), arguments.format), flush=True)
        if not arguments.execute:
            complain("nothing was written; --execute puts the offsets back")
        return report.code()


def _checked_undo_file(text: str) -> UndoFile:
    """Return the content of an undo file. Raises ValueError, also for names that no node can have."""
    backup = parse_undo_file(text)
    for name in (backup.group, *(tp.topic for tp in backup.saved)):
        problem = name_problem(name)
        if problem is not None:
            raise ValueError(f"{name!r}: {problem}")
    return backup


def _undo(
    report: WriteReport, client: ClusterClient, name: str, backup: UndoFile, arguments: argparse.Namespace
) -> list[tuple[str | int | None, ...]]:
    """Undo one file. Return its rows of the table."""
    if backup.cluster != client.zookeeper:
        complain(f"note: {name} was made with zookeeper.connect={backup.cluster or 'nothing'}")
    with OperatedGroup(client, backup.group) as group:
        offsets = group.offsets(backup.store)
        held = {tp: one for tp, one in offsets.read(Deadline(client.timeout)).items() if tp in backup.saved}
        plan = offset_move_plan.plan_rollback(backup.store, backup.saved, held, force=arguments.force)
        live, refused = _refusals(client, backup, plan)
        for text in refused:
            complain(f"{name}: {text}")
        if plan.undecided:
            complain(
                f"{name}: {len(plan.undecided)} partitions were changed since, see REFUSED; --force puts them back too"
            )
        if refused or plan.undecided:
            report.failed = True
        elif arguments.execute:
            wanted = {step.partition: step.after for step in plan.changes}
            expected = {step.partition: None if step.before is None else step.before.valid for step in plan.changes}
            file = Path(arguments.undo_file) if arguments.undo_file is not None else None
            try:
                report.perform(group, StoreChange(backup.store, wanted, expected, live), file)
            except (RegistryError, BrokerError, ConfigException) as error:
                report.failed = True
                complain(f"{name}: nothing was written: {error}")
        return [_row(backup.group, step) for step in plan.steps]


def _refusals(client: ClusterClient, backup: UndoFile, plan: OffsetMovePlan) -> tuple[list[TopicPartition], list[str]]:
    """Return the partitions with live owners that adopt, and why offsets must not be written now."""
    snapshot = LiveSource(client).snapshot(backup.group)
    texts = offset_reset.unread(snapshot, (backup.store,)) + list(
        filter(None, [offset_reset.brokers_refusal(snapshot)])
    )
    owners, against = offset_reset.adopting_owners(snapshot, [step.partition for step in plan.changes])
    texts += [f"{tp}: {reason}" for tp, reason in sorted(against.items())]
    return list(owners), texts


def _row(group: str, step: Step) -> tuple[str | int | None, ...]:
    what = _WHAT[step.verdict] + (f": {step.reason}" if step.reason else "")
    before = None if step.before is None else offset_move_plan.entry_text(step.before)
    after = None if step.source is None else offset_move_plan.entry_text(step.source)
    return (group, *step.partition, before, after, what)
