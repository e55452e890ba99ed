"""``zkconsumer dead``: lists, shows, exports, drops and replays dead letters and parked messages. The main thread's.

Before pointers are dropped, they are complete in a file on disk. Each partition is one write, which names the version
that was read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from zkconsumer.cli.dead import messages
from zkconsumer.cli.dead.messages import COLUMNS, Selected, by_partition, complain, filter_of, refused
from zkconsumer.cli.source_arguments import add_connection_arguments, add_execution, add_verbs, open_client, parsed_file
from zkconsumer.cli.source_arguments import run_verb as run
from zkconsumer.cli.tables import Table, add_format_argument, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.message_pointers import Pointer
from zkconsumer.errors import RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.operations.atomic_file import write_new
from zkconsumer.operations.pointer_nodes import (
    DroppedPointers,
    PointerNodes,
    dropped,
    format_undo,
    parse_undo,
    put_back,
    replayed,
)

Change = Callable[[Mapping[int, Pointer]], Mapping[int, Pointer | None]]


def _add_how(parser: argparse.ArgumentParser, shown: str, done: str, saved: str = "") -> None:
    add_execution(parser.add_argument_group("how"), f"{shown}; the default", done, saved)
    add_format_argument(parser)
    add_connection_arguments(parser)


def add_drop_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    messages.add_group(parser)
    messages.add_selection(parser, all_option=True)
    _add_how(parser, "show what would be dropped", "drop it", "what is dropped")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    messages.add_group(parser)
    messages.add_selection(parser, all_option=True)
    _add_how(parser, "show what would be replayed", "make it due for a member")


def add_undo_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", metavar="FILE", help="a file that a drop wrote")
    _add_how(parser, "show what would be put back", "put it back")


def run_drop(arguments: argparse.Namespace) -> int:
    """Drop pointers. Return the exit code. Raises: ZkConsumerError."""
    usage = messages.wrong_usage(arguments, changes=True)
    if not usage and arguments.undo_file is not None and not (arguments.execute and arguments.undo_file):
        usage = "--undo-file goes with --execute only, and names a file"
    if usage:
        return refused(usage)
    with open_client(arguments) as client:
        nodes = messages.pointer_nodes(client, arguments.group)
        selected, whole = _shown(nodes, arguments, "--execute drops these messages for good")
        if not arguments.execute or not selected:
            return 0 if whole else 1
        saved = by_partition(selected)
        file = _undo_file(arguments)
        write_new(file, format_undo(DroppedPointers(nodes.group, client.zookeeper, saved)))
        complain(f"what is dropped now is kept in {file}; 'zkconsumer dead undo' puts it back")
        chosen = filter_of(arguments)
        changes = {tp: dropped(chosen, {one.place for one in some}) for tp, some in saved.items()}
        return 0 if _perform(nodes, changes, "dropped") and whole else 1


def run_replay(arguments: argparse.Namespace) -> int:
    """Make dead letters due for a member. Return the exit code. Raises: ZkConsumerError."""
    usage = messages.wrong_usage(arguments, changes=True)
    if usage:
        return refused(usage)
    with open_client(arguments) as client:
        nodes = messages.pointer_nodes(client, arguments.group)
        selected, whole = _shown(nodes, arguments, "--execute hands these messages to a member once more")
        present = _present(nodes.group, client, selected)
        whole = whole and len(present) == len(selected)
        if not arguments.execute or not present:
            return 0 if whole else 1
        chosen, now_ms = filter_of(arguments), time.time_ns() // 1_000_000
        changes = {
            tp: replayed(chosen, {one.place for one in some}, now_ms) for tp, some in by_partition(present).items()
        }
        return 0 if _perform(nodes, changes, "replayed") and whole else 1


def run_undo(arguments: argparse.Namespace) -> int:
    """Put dropped pointers back. Return the exit code. Raises: ZkConsumerError."""
    if arguments.dry_run and arguments.execute:
        return refused("only one of --execute and --dry-run goes")
    path = Path(arguments.file)
    saved = parsed_file(path, parse_undo)
    with open_client(arguments) as client:
        if saved.cluster != client.zookeeper:
            complain(f"note: {path} was made with zookeeper.connect={saved.cluster or 'nothing'}")
        nodes = messages.pointer_nodes(client, saved.group)
        selected = [(tp, one) for tp, some in sorted(saved.pointers.items()) for one in some]
        _print(saved.group, selected, arguments)
        if not arguments.execute:
            complain("nothing was written; --execute puts these pointers back")
            return 0
        changes = {tp: put_back(some) for tp, some in saved.pointers.items()}
        return 0 if _perform(nodes, changes, "put back", create=True) else 1


def _shown(nodes: PointerNodes, arguments: argparse.Namespace, hint: str) -> tuple[list[Selected], bool]:
    """Print the selected pointers. Returns them, and whether all nodes could be read."""
    selected, whole = messages.read_selected(nodes, arguments)
    _print(nodes.group, selected, arguments)
    if not selected:
        complain(f"group {nodes.group} has no such messages")
    elif not arguments.execute:
        complain(f"nothing was written; {hint}")
    return selected, whole


def _print(group: str, selected: Sequence[Selected], arguments: argparse.Namespace) -> None:
    print(render(Table(COLUMNS, [messages.row(group, one) for one in selected]), arguments.format), flush=True)


def _present(group: str, client: ClusterClient, selected: Sequence[Selected]) -> list[Selected]:
    """Return the pointers whose messages are in the log, and tell of the others."""
    present, gone = [], 0
    for one, message in messages.read_messages(client, selected):
        if message.record is not None:
            present.append(one)
            continue
        tp, pointer = one
        gone += message.gone
        remedy = "it can only be dropped" if message.gone else "try again later"
        complain(f"group {group}, {tp}: offset {pointer.offset} is not replayed: {message.problem}; {remedy}")
    if gone:
        complain(f"group {group}: {gone} messages are no longer in the log")
    return present


def _undo_file(arguments: argparse.Namespace) -> Path:
    if arguments.undo_file is not None:
        return Path(arguments.undo_file)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return Path(f"{arguments.group}-dead-{stamp}.undo.json")


def _perform(nodes: PointerNodes, changes: Mapping[TopicPartition, Change], done: str, *, create: bool = False) -> bool:
    """Make the changes, and tell what became of them. Returns whether all were made. Raises RegistryError."""
    whole, count = True, 0
    for tp, change in changes.items():
        try:
            result = nodes.change(tp, change, create=create)
        except RegistryError as error:
            complain(f"group {nodes.group}, {tp}: it is unknown whether it was written: {error}")
            whole = False
            continue
        if result.problem:
            complain(f"group {nodes.group}, {tp}: nothing was written: {result.problem}")
            whole = False
        count += len(result.changed)
    complain(f"group {nodes.group}: {count} messages {'were ' if done != 'put back' else 'are '}{done}")
    return whole


__all__ = ["DESCRIPTION", "add_arguments", "run"]

DESCRIPTION = """\
Looks after the messages that a run with concurrency= gave up, its dead letters, and those
that wait for another attempt (--parked). ZooKeeper keeps a pointer to each; the message
itself stays in the log.

  zkconsumer dead list --zookeeper HOST:2181
  zkconsumer dead show GROUP --topic TOPIC:0 --offset 1234 --zookeeper HOST:2181
  zkconsumer dead export GROUP --to FILE --zookeeper HOST:2181
  zkconsumer dead replay GROUP --all --zookeeper HOST:2181 --execute
  zkconsumer dead drop GROUP --reason TimeoutError --zookeeper HOST:2181 --execute
  zkconsumer dead undo FILE --zookeeper HOST:2181 --execute

"drop", "replay" and "undo" only show what they would do, without --execute. The group may
be live: a member hands a replayed message out within seconds.

Exit codes: 0 done; 1 failed, refused, or a message could not be read; 2 wrong usage; 130
after Ctrl-C.
"""

_VERBS = (
    ("list", "list dead letters", messages.add_list_arguments, messages.run_list),
    ("show", "show the content of one message", messages.add_show_arguments, messages.run_show),
    ("export", "write messages to a file, one JSON object a line", messages.add_export_arguments, messages.run_export),
    ("drop", "give up messages for good", add_drop_arguments, run_drop),
    ("replay", "hand messages to a member once more", add_replay_arguments, run_replay),
    ("undo", "put back the pointers that a drop removed", add_undo_arguments, run_undo),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs with their options."""
    add_verbs(parser, _VERBS)
