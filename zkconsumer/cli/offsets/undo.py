"""``zkconsumer offsets undo``: puts back the offsets that a reset, a prune, a migration or an undo overwrote.

The main thread's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from zkconsumer.cli.offsets.reset_arguments import add_wait_argument
from zkconsumer.cli.offsets.write_report import OperatedGroup, StopSignals, StoreChange, WriteReport, complain
from zkconsumer.cli.source_arguments import add_connection_arguments, connect_options, open_client
from zkconsumer.cli.tables import Table, add_format_argument, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.migration_plan import MovePlan, MoveVerdict, Step, entry_text, plan_rollback
from zkconsumer.core.names import name_problem
from zkconsumer.core.offset_files import Backup, parse_backup
from zkconsumer.errors import BrokerError, ConfigException, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.operations.offset_reset import adopting_owners, brokers_refusal, unread
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.runtime.deadline import Deadline

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
    how.add_argument("--dry-run", action="store_true", help="show what would be put back; the default")
    how.add_argument("--execute", action="store_true", help="put the offsets back")
    how.add_argument("--force", action="store_true", help="also put back offsets that changed since")
    how.add_argument(
        "--undo-file", metavar="FILE", help="the new file for what this overwrites (default: a new file here)"
    )
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
    backups = [_read(Path(name)) for name in arguments.files]
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


def _read(path: Path) -> Backup:
    try:
        backup = parse_backup(path.read_text(encoding="utf-8"))
        for name in (backup.group, *(tp.topic for tp in backup.saved)):
            problem = name_problem(name)
            if problem is not None:
                raise ValueError(f"{name!r}: {problem}")
        return backup
    except OSError as error:
        raise ConfigException(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigException(str(path), str(error)) from None


def _undo(
    report: WriteReport, client: ClusterClient, name: str, backup: Backup, arguments: argparse.Namespace
) -> list[tuple[str | int | None, ...]]:
    """Undo one file. Return its rows of the table."""
    if backup.cluster != client.zookeeper:
        complain(f"note: {name} was made with zookeeper.connect={backup.cluster or 'nothing'}")
    with OperatedGroup(client, backup.group) as group:
        offsets = group.offsets(backup.store)
        held = {tp: one for tp, one in offsets.read(Deadline(client.timeout)).items() if tp in backup.saved}
        plan = plan_rollback(backup.store, backup.saved, held, force=arguments.force)
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


def _refusals(client: ClusterClient, backup: Backup, plan: MovePlan) -> tuple[list[TopicPartition], list[str]]:
    """Return the partitions with live owners that adopt, and why offsets must not be written now."""
    snapshot = LiveSource(client).snapshot(backup.group)
    texts = unread(snapshot, (backup.store,)) + [text for text in (brokers_refusal(snapshot),) if text]
    owners, against = adopting_owners(snapshot, [step.partition for step in plan.changes])
    texts += [f"{tp}: {reason}" for tp, reason in sorted(against.items())]
    return list(owners), texts


def _row(group: str, step: Step) -> tuple[str | int | None, ...]:
    what = _WHAT[step.verdict] + (f": {step.reason}" if step.reason else "")
    before = None if step.before is None else entry_text(step.before)
    after = None if step.source is None else entry_text(step.source)
    return (group, *step.partition, before, after, what)
