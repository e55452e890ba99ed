"""``zkconsumer dead list``, a table of pointers, and the options that select pointers of a group. The main thread's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from zkconsumer.cli.source_arguments import add_connection_arguments, open_client
from zkconsumer.cli.tables import Table, add_format_argument, printable, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.message_pointers import Pointer, PointerKind
from zkconsumer.core.migration_plan import PartitionSelection, parse_selection
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.moments import moment
from zkconsumer.operations.pointer_nodes import PointerFilter, PointerNodes
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths

_MOST_OFFSETS = 100_000

Selected = tuple[TopicPartition, Pointer]


def complain(text: str) -> None:
    """Print a line on standard error, without control characters."""
    print(f"zkconsumer dead: {printable(text)}", file=sys.stderr, flush=True)


def add_selection(parser: argparse.ArgumentParser, *, all_option: bool = False) -> None:
    """Declare the options that select pointers; ``all_option`` declares ``--all``, which then one of them must be."""
    which = parser.add_argument_group("which messages")
    which.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:0,1,2]",
        help="of this topic, or of these partitions of it; may be repeated",
    )
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
            print(f"zkconsumer dead: {usage}", file=sys.stderr)
            return 2
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
