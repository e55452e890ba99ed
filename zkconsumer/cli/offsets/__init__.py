"""``zkconsumer offsets``: resets a group's offsets, undoes a reset, and deletes dead offsets. The main thread's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zkconsumer.cli.offsets.reset import add_undo_arguments, run_reset, run_undo
from zkconsumer.cli.offsets.reset_arguments import KAFKAS_FILE, WAIT, add_reset_arguments, as_reset, existing_undo_file
from zkconsumer.cli.offsets.write_report import OperatedGroup, StopSignals, StoreChange, WriteReport, complain
from zkconsumer.cli.source_arguments import (
    add_execution,
    add_source_arguments,
    add_verbs,
    connect_options,
    open_client,
    open_source,
)
from zkconsumer.cli.source_arguments import run_verb as run
from zkconsumer.cli.tables import Table, add_format_argument, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.names import name_problem
from zkconsumer.core.offset_move_plan import Store
from zkconsumer.errors import BrokerError, ConfigException, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_deletion import DeadOffset, DeadReason, PrunePlan, plan_prune
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths


def add_prune_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("group", metavar="GROUP", help="the group.id")
    parser.add_argument(
        "--store", choices=[*(store.value for store in Store), "both"], default="both", help="where (default: both)"
    )
    parser.add_argument(
        "--unsubscribed",
        action="store_true",
        help="also delete the offsets of existing topics that no registration subscribes to",
    )
    how = parser.add_argument_group("how")
    add_execution(how, "show the dead offsets; the default", "delete them", "what is deleted")
    add_format_argument(parser)
    add_source_arguments(parser)


def run_prune(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    usage = _wrong_usage(arguments)
    if usage:
        print(usage, file=sys.stderr)
        return 2
    stores = tuple(Store) if arguments.store == "both" else (Store(arguments.store),)
    if arguments.snapshots:
        with open_source(arguments) as source:
            return _show(plan_prune(source.snapshot(arguments.group), stores), arguments)
    with open_client(arguments) as client:
        plan = plan_prune(LiveSource(client).snapshot(arguments.group), stores)
        code = _show(plan, arguments)
        return code or (_delete(client, plan, stores, arguments) if arguments.execute else 0)


def _wrong_usage(arguments: argparse.Namespace) -> str:
    problem = name_problem(arguments.group)
    if problem is not None:
        return f"{arguments.group!r} is no group: {problem}"
    if arguments.dry_run and arguments.execute:
        return "only one of --execute and --dry-run goes"
    if arguments.undo_file is not None and not (arguments.execute and arguments.undo_file):
        return "--undo-file goes with --execute only, and names a file"
    if arguments.snapshots and arguments.execute:
        return "--from reads files; --execute needs a cluster"
    return existing_undo_file(arguments.undo_file)


def _show(plan: PrunePlan, arguments: argparse.Namespace) -> int:
    """Print the plan. Return 1 if it is refused."""
    for text in (*plan.notes, *plan.errors):
        complain(text)
    if plan.errors:
        return 1
    rows = [
        (plan.group, *one.partition, one.store.value, one.offset, one.reason.value, _goes(one, arguments))
        for one in plan.dead
    ]
    columns = ("GROUP", "TOPIC", "PARTITION", "STORE", "CURRENT-OFFSET", "REASON", "DELETED")
    print(render(Table(columns, rows), arguments.format), flush=True)
    if not arguments.execute:
        complain("nothing was deleted; --execute deletes the offsets with yes under DELETED")
    return 0


def _goes(one: DeadOffset, arguments: argparse.Namespace) -> bool:
    return one.reason is not DeadReason.UNSUBSCRIBED or bool(arguments.unsubscribed)


def _delete(client: ClusterClient, plan: PrunePlan, stores: Sequence[Store], arguments: argparse.Namespace) -> int:
    with StopSignals() as stop, OperatedGroup(client, plan.group) as group:
        report = WriteReport(client.timeout, WAIT, connect_options(arguments), stop)
        # an offset that cannot be deleted in ZooKeeper is no dead one in Kafka either
        kept: set[TopicPartition] = set()
        chosen = {store: [one for one in plan.dead if one.store is store and _goes(one, arguments)] for store in stores}
        both = all(chosen.get(one) for one in Store)
        for store, found in chosen.items():
            dead = [one for one in found if one.partition not in kept]
            if len(dead) < len(found):
                report.skip(plan.group, store, f"{len(found) - len(dead)} offsets that stand in ZooKeeper still")
            if dead and stop():
                report.skip(plan.group, store, "stopped by the user")
            if not dead or stop():
                continue
            change = StoreChange(store, dict.fromkeys(one.partition for one in dead), _expected(dead))
            file = None
            if arguments.undo_file is not None:
                file = Path(arguments.undo_file + (KAFKAS_FILE if both and store is Store.KAFKA else ""))
            try:
                run = report.perform(group, change, file)
                kept = set(change.wanted) - run.left_to(change.wanted)
                if store is Store.ZOOKEEPER:
                    _remove_empty(client, plan, dead)
            except (RegistryError, BrokerError, ConfigException) as error:
                kept = {one.partition for one in dead}
                report.failed = True
                complain(f"group {plan.group}, {store}: {error}")
        return report.code()


def _expected(dead: Sequence[DeadOffset]) -> dict[TopicPartition, int | None]:
    """Return the offsets that were shown: one that is written meanwhile is not dead."""
    return {one.partition: one.offset if one.offset is not None and one.offset >= 0 else None for one in dead}


def _remove_empty(client: ClusterClient, plan: PrunePlan, dead: Sequence[DeadOffset]) -> None:
    """Delete the parents of the deleted nodes of topics that do not exist, if they are empty. Raises RegistryError."""
    deadline = Deadline(client.timeout)
    for topic in sorted({one.partition.topic for one in dead if one.reason is DeadReason.NO_TOPIC}):
        for path in (paths.offset_topic(plan.group, topic), paths.owner_topic(plan.group, topic)):
            client.session.delete(path, deadline)


__all__ = ["DESCRIPTION", "add_arguments", "add_reset_arguments", "as_reset", "run", "run_reset"]

DESCRIPTION = """\
Writes the offsets of groups, in ZooKeeper, in Kafka, or in both. Nothing is written
without --execute.

  zkconsumer offsets reset GROUP --to-earliest --all-topics --zookeeper HOST:2181
  zkconsumer offsets undo FILE --zookeeper HOST:2181
  zkconsumer offsets prune GROUP --zookeeper HOST:2181

"reset" takes the options of kafka-consumer-groups.sh --reset-offsets. It also resets a
live group, if every owner of the partitions is a member of this package that adopts the
new offset (offset.conflict=adopt).

Exit codes: 0 done; 1 refused or failed, or a member did not follow (each is named); 2
wrong usage; 130 after Ctrl-C and 143 after SIGTERM: what was written is listed.
"""

_VERBS = (
    ("reset", "move the offsets of groups", add_reset_arguments, run_reset),
    ("undo", "put back the offsets from before a reset", add_undo_arguments, run_undo),
    ("prune", "delete offsets of topics and partitions that exist no more", add_prune_arguments, run_prune),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs with their options."""
    add_verbs(parser, _VERBS)
