"""``zkconsumer dead list``, ``show`` and ``export``: pointers, and the messages that they name. The main thread's.

The options that select pointers of a group are those of all verbs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from zkconsumer.cli.source_arguments import add_connection_arguments, add_topics, open_client
from zkconsumer.cli.tables import JSON, Table, add_format_argument, as_json, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.message_pointers import Pointer, PointerKind
from zkconsumer.core.names import name_problem
from zkconsumer.core.offset_move_plan import PartitionSelection, parse_selection
from zkconsumer.errors import BrokerError, ConfigException
from zkconsumer.fetch.broker_fetch import FetchSettings
from zkconsumer.fetch.message_lookup import MessageAt, MessageLookup
from zkconsumer.model import EARLIEST, TopicPartition
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.pointer_nodes import PointerFilter, PointerNodes
from zkconsumer.operations.printable import data_field, moment, printable
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths

_MOST_OFFSETS = 100_000

Selected = tuple[TopicPartition, Pointer]


def complain(text: str) -> None:
    """Print a line on standard error, without control characters."""
    print(f"zkconsumer dead: {printable(text)}", file=sys.stderr, flush=True)


def refused(usage: str) -> int:
    """Print an error in the options. Return the exit code."""
    print(f"zkconsumer dead: {usage}", file=sys.stderr)
    return 2


def add_selection(parser: argparse.ArgumentParser, *, all_option: bool = False) -> None:
    """Declare the options that select pointers; ``all_option`` declares ``--all``, which then one of them must be."""
    which = parser.add_argument_group("which messages")
    add_topics(which, "of this topic, or of these partitions of it")
    which.add_argument(
        "--offset", type=_offsets, metavar="N[,N-M]", help="at these offsets of one partition, which --topic names"
    )
    which.add_argument("--reason", default="", metavar="TEXT", help="whose reason contains this text")
    which.add_argument("--parked", action="store_true", help="also those that wait for another attempt")
    if all_option:
        which.add_argument("--all", action="store_true", help="all dead letters")


def add_group(parser: argparse.ArgumentParser) -> None:
    """Declare the name of the group."""
    parser.add_argument("group", metavar="GROUP", help="the group.id")


def _offsets(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not _is_offset(first) or (dash and not _is_offset(last)):
            raise argparse.ArgumentTypeError(f"{text!r} are no offsets; give 5 or 5,7-9")
        begin, end = int(first), int(last if dash else first)
        if end < begin or end - begin > _MOST_OFFSETS:
            raise argparse.ArgumentTypeError(f"{part!r} is empty or has more than {_MOST_OFFSETS} offsets")
        found.update(range(begin, end + 1))
    return frozenset(found)


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def wrong_usage(arguments: argparse.Namespace, *, changes: bool = False) -> str:
    """Return the error in the combination of options, or an empty text."""
    problem = name_problem(arguments.group)
    if problem is not None:
        return f"{arguments.group!r} is no group: {problem}"
    selection, text = _parsed(arguments)
    if text:
        return text
    numbers = next(iter(selection.topics.values())) if len(selection.topics) == 1 else None
    if arguments.offset is not None and (numbers is None or len(numbers) != 1):
        return "--offset is of one partition: name it as --topic TOPIC:PARTITION"
    if changes:
        chosen = arguments.offset is not None or bool(arguments.reason)
        if chosen == arguments.all:
            return "one of --offset, --reason and --all must say which messages"
        if arguments.dry_run and arguments.execute:
            return "only one of --execute and --dry-run goes"
    return ""


def _parsed(arguments: argparse.Namespace) -> tuple[PartitionSelection, str]:
    try:
        return parse_selection(arguments.topic), ""
    except ValueError as error:
        return PartitionSelection({}), f"--topic: {error}"


def selection_of(arguments: argparse.Namespace) -> PartitionSelection:
    """Return the selected partitions."""
    return _parsed(arguments)[0]


def filter_of(arguments: argparse.Namespace) -> PointerFilter:
    """Return the filter that the options name."""
    return PointerFilter(
        arguments.offset, arguments.reason, tuple(PointerKind) if arguments.parked else (PointerKind.DEAD,)
    )


def pointer_nodes(client: ClusterClient, group: str) -> PointerNodes:
    """Return the pointers of a group that ZooKeeper knows.

    Raises: UnknownGroupError; ConfigException for a group that the brokers coordinate; RegistryError, BrokerError.
    """
    session = client.session
    if session.stat([paths.consumers_group(group)], Deadline(client.timeout))[0] is None:
        require_group(LiveSource(client), group)
        raise ConfigException(
            group,
            "is a group that the brokers coordinate, and they keep no pointers."
            " Its dead letters went where dead_letter= of run sent them",
        )
    return PointerNodes(session, group, client.timeout)


def read_selected(nodes: PointerNodes, arguments: argparse.Namespace) -> tuple[list[Selected], bool]:
    """Return the selected pointers, and whether all nodes could be read; what could not is printed."""
    found: list[Selected] = []
    whole = True
    chosen = filter_of(arguments)
    for one in nodes.read(nodes.partitions(selection_of(arguments))):
        if one.problem:
            complain(f"group {nodes.group}, {one.partition}: {one.problem}")
            whole = False
        found += [(one.partition, pointer) for pointer in chosen.of(one.pointers.values())]
    return found, whole


def by_partition(selected: Sequence[Selected]) -> dict[TopicPartition, list[Pointer]]:
    """Return the pointers of each partition."""
    found: dict[TopicPartition, list[Pointer]] = {}
    for tp, pointer in selected:
        found.setdefault(tp, []).append(pointer)
    return found


COLUMNS = ("GROUP", "TOPIC", "PARTITION", "OFFSET", "STATE", "ATTEMPTS", "FIRST-FAILED", "NEXT-TRY", "REASON")


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="a group.id (default: all groups)")
    parser.add_argument("--group", action="append", default=[], metavar="GROUP", help="the same as GROUP")
    add_selection(parser)
    add_format_argument(parser)
    add_connection_arguments(parser)


def run_list(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    names = [*arguments.group, *arguments.groups]
    for arguments.group in names or ["all"]:
        usage = wrong_usage(arguments)
        if usage:
            return refused(usage)
    with open_client(arguments) as client:
        rows, whole = [], True
        for nodes in [pointer_nodes(client, name) for name in names] if names else _all_groups(client):
            selected, read = read_selected(nodes, arguments)
            rows += [row(nodes.group, one) for one in selected]
            whole = whole and read
        print(render(Table(COLUMNS, rows), arguments.format), flush=True)
        return 0 if whole else 1


def _all_groups(client: ClusterClient) -> Iterable[PointerNodes]:
    names = client.session.children(paths.CONSUMERS, Deadline(client.timeout)) or ()
    for name in sorted(names):
        if name_problem(name) is None:
            yield PointerNodes(client.session, name, client.timeout)


def row(group: str, selected: Selected) -> tuple[str | int | None, ...]:
    """Return a pointer's row of the table."""
    tp, one = selected
    times = when(one.first_ms), when(one.due_ms)
    return (group, *tp, one.offset, one.kind.value, one.attempts, *times, one.reason or None)


def when(ms: int) -> str | None:
    """Return a time in milliseconds since 1970 in words, None for 0."""
    return moment(ms) if ms else None


LARGEST = 64 * 1024 * 1024
"""Bytes of the largest batch that is read."""
AT_ONCE = 16 * 1024 * 1024
"""Bytes of messages that are in memory at once."""


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_group(parser)
    add_selection(parser)
    parser.add_argument("--format", choices=("text", JSON), default="text", help="text for people, or JSON")
    add_connection_arguments(parser)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_group(parser)
    parser.add_argument("--to", required=True, metavar="FILE", help="the new file; - is standard output")
    parser.add_argument(
        "--base64", action="store_true", help="write all keys and values as base64, not only those that are no text"
    )
    add_selection(parser)
    add_connection_arguments(parser)


def run_show(arguments: argparse.Namespace) -> int:
    """Show one message. Return the exit code. Raises: ZkConsumerError."""
    usage = wrong_usage(arguments)
    if not usage and (arguments.offset is None or len(arguments.offset) != 1):
        usage = "show takes one message: --topic TOPIC:PARTITION --offset N"
    if usage:
        return refused(usage)
    arguments.parked = True  # a message named by its offset is shown, also a parked one
    with open_client(arguments) as client:
        selected, _ = read_selected(pointer_nodes(client, arguments.group), arguments)
        if not selected:
            complain(f"group {arguments.group} has no pointer to that message; see 'zkconsumer dead list --parked'")
            return 1
        ((one, message),) = read_messages(client, selected)
        document = _document(arguments.group, one, message, as_base64=False)
        print(as_json(document) if arguments.format == JSON else _text(document), flush=True)
        return 1 if message.record is None else 0


def run_export(arguments: argparse.Namespace) -> int:
    """Export messages. Return the exit code. Raises: ZkConsumerError."""
    usage = wrong_usage(arguments) or ("--to names no file" if not arguments.to else "")
    if usage:
        return refused(usage)
    with open_client(arguments) as client:
        selected, whole = read_selected(pointer_nodes(client, arguments.group), arguments)
        missing = count = 0
        with nullcontext(sys.stdout) if arguments.to == "-" else _new_file(Path(arguments.to)) as out:
            for one, message in read_messages(client, selected):
                document = _document(arguments.group, one, message, as_base64=arguments.base64)
                out.write(json.dumps(document, ensure_ascii=True) + "\n")
                count += 1
                missing += message.record is None
        complain(f"{count - missing} messages were exported" + (f", {missing} could not be read" if missing else ""))
        return 1 if missing or not whole else 0


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Open a new file, and remove it again if the block fails. Raises ConfigException, also for an existing file."""
    try:
        with path.open("x", encoding="ascii") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigException(str(path), f"cannot be written: {error.strerror or error}") from None


def read_messages(client: ClusterClient, selected: Sequence[Selected]) -> Iterator[tuple[Selected, MessageAt]]:
    """Yield each pointer with its message, which has a problem if it is gone or cannot be read."""
    timeout = client.timeout
    settings = FetchSettings(
        client.config.client_id,
        max_wait=0.1,
        min_bytes=1,
        partition_bytes=1024 * 1024,
        max_bytes=LARGEST,
        reset_to=EARLIEST,
        socket_timeout=timeout,
        receive_buffer=65536,
        backoff=0.2,
        security=client.channels.security,
        largest_batch=LARGEST,
    )
    with closing(MessageLookup(settings, client.brokers)) as lookup:
        for tp, pointers in by_partition(selected).items():
            yield from (((tp, p), MessageAt(p.offset, problem=p.reason, gone=True)) for p in pointers if p.lost_ms)
            left = [pointer.offset for pointer in pointers if not pointer.lost_ms]
            named = {pointer.offset: pointer for pointer in pointers if not pointer.lost_ms}
            while left:
                try:
                    found = lookup.read(tp, left, Deadline(timeout), AT_ONCE)
                except BrokerError as error:
                    found = {offset: MessageAt(offset, problem=str(error)) for offset in left}
                yield from (
                    ((tp, named[offset]), _checked(named[offset], found[offset])) for offset in left if offset in found
                )
                left = [offset for offset in left if offset not in found]


def _checked(pointer: Pointer, message: MessageAt) -> MessageAt:
    """Return the message if it is that of the pointer, otherwise a problem."""
    if message.record is None or pointer.is_of(message.record.key):
        return message
    return MessageAt(message.offset, problem="a message of another key has its offset", gone=True)


def _document(group: str, selected: Selected, message: MessageAt, *, as_base64: bool) -> dict[str, Any]:
    tp, pointer = selected
    document: dict[str, Any] = {
        "group": group,
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": pointer.offset,
        "state": pointer.kind.value,
        "attempts": pointer.attempts,
        "first_failed": when(pointer.first_ms),
        "next_try": when(pointer.due_ms),
        "reason": pointer.reason,
    }
    record = message.record
    if record is None:
        return {**document, "problem": message.problem}
    document["timestamp"] = record.timestamp
    document |= data_field("key", record.key, as_base64) | data_field("value", record.value, as_base64)
    document["headers"] = [{"name": name, **data_field("value", value, as_base64)} for name, value in record.headers]
    return document


def _text(document: dict[str, Any]) -> str:
    lines = []
    for name, value in document.items():
        if name == "headers":
            lines += [f"header {printable(one.pop('name'))}: {_shown(next(iter(one.values())))}" for one in value]
        else:
            lines.append(f"{name.replace('_', ' ')}: {_shown(value)}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    return "-" if value is None else printable(str(value))
