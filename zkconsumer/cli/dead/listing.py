"""``zkconsumer dead list``: a table of pointers. The main thread's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from zkconsumer.cli.dead.selected import (
    Selected,
    add_selection,
    pointer_nodes,
    read_selected,
    wrong_usage,
)
from zkconsumer.cli.source_arguments import add_connection_arguments, open_client
from zkconsumer.cli.tables import Table, add_format_argument, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.names import name_problem
from zkconsumer.operations.moments import moment
from zkconsumer.operations.pointer_nodes import PointerNodes
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths

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
