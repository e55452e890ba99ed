"""``zkconsumer timeline``: the changes of a group in the order of ZooKeeper's transactions, and its rebalances.

Runs in the main thread. ``operations.timeline`` makes the events of snapshots, ``operations.timeline_watch`` follows.
"""

from __future__ import annotations

import argparse
import json
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic

from zkconsumer.cli.source_arguments import add_source_arguments, moment_argument, open_connection, open_source
from zkconsumer.cluster.cluster_client import zookeeper_session
from zkconsumer.core.node_names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.timeline import EventKind, Rebalance, TimelineEvent, events, rebalances
from zkconsumer.operations.timeline_report import event_runs, printable, rebalance_line, report, since
from zkconsumer.operations.timeline_watch import GroupWatch, OpenRebalance

NAME = "timeline"
HELP = "show the rebalances of a group, with cause and duration"
DESCRIPTION = """\
Shows the joins, leaves, claims and releases of a group in the order of ZooKeeper's
transactions, and sums each rebalance up: its cause, its duration, the partitions that
moved, and the last claim.

  zkconsumer timeline GROUP --zookeeper HOST:PORT
  zkconsumer timeline GROUP --zookeeper HOST:PORT --follow --format json
  zkconsumer timeline GROUP --from MONDAY.json --from TUESDAY.json --since 2h

Without --follow it shows what the nodes tell that still stand. Several snapshots also
tell what vanished between them. What is unknown is a dash, or a bound as in "<=0x1f".

Exit codes: 0 done; 1 there is no such group, or it cannot be read; 2 wrong usage; 130
after Ctrl-C or SIGTERM, which are the usual ends of --follow.
"""

_MOST_WARNINGS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("group", metavar="GROUP", help="the group.id")
    add_source_arguments(parser)
    parser.add_argument("--follow", action="store_true", help="print further changes as they happen, until Ctrl-C")
    parser.add_argument(
        "--since",
        type=moment_argument,
        metavar="WHEN",
        help="only from this time on: 90s, 10m, 2h, 3d, or 2026-11-22T17:00:00Z",
    )
    parser.add_argument("--commits", action="store_true", help="also show the last commit of each partition")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="print text, or one JSON object a line"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    if arguments.follow:
        if arguments.snapshots:
            raise ConfigException("--follow", "goes without --from: a file does not change any more")
        return _follow(arguments)
    with open_source(arguments) as source:
        history = source.history(arguments.group)
        if not any(one.in_zookeeper or one.in_kafka for one in history):
            history = [require_group(source, arguments.group)]
    found = events(history)
    _warn(history[-1], found)
    if arguments.since is not None:
        found = since(found, arguments.since)
    if arguments.format == "json":
        _print(_json_lines(found, rebalances(found), arguments.commits))
    else:
        _print(report(found, commits=arguments.commits))
    return 0


def _warn(latest: GroupSnapshot, found: tuple[TimelineEvent, ...]) -> None:
    """Say on standard error what was not read, and why there may be nothing to show."""
    for problem in latest.problems[:_MOST_WARNINGS]:
        print(f"zkconsumer timeline: not read: {printable(f'{problem.what}: {problem.why}')}", file=sys.stderr)
    if not found and latest.in_kafka and not latest.in_zookeeper:
        told = "the brokers tell only the present state: give several snapshots with --from"
        print(f"zkconsumer timeline: {told}", file=sys.stderr)


def _print(lines: Iterable[str]) -> None:
    """Print lines, each at once: a program may read them while we follow."""
    for line in lines:
        print(line, flush=True)


def _json_lines(found: Iterable[TimelineEvent], over: Iterable[Rebalance], commits: bool) -> Iterator[str]:
    for event in found:
        if commits or event.kind is not EventKind.COMMITTED:
            yield json.dumps({"type": "event", **event.document()})
    for one in over:
        yield json.dumps({"type": "rebalance", **one.document()})


def _follow(arguments: argparse.Namespace) -> int:
    if problem := name_problem(arguments.group):
        raise ConfigException("GROUP", problem)
    connection = open_connection(arguments)
    if not connection.zookeeper:
        raise ConfigException("--zookeeper", "is missing: --follow needs it; brokers tell nobody of changes")
    session = partial(zookeeper_session, connection.config)
    with _terminated(), GroupWatch(session, arguments.group, timeout=connection.timeout) as watch:
        collected, first = OpenRebalance(), True
        for found in watch.changes():
            if first and watch.snapshot is not None:
                first = False
                _show_standing(found, arguments)
                continue
            over = collected.add(found, monotonic(), watch.snapshot)
            if arguments.format == "json":
                _print(_json_lines(found, over, True))
            else:
                _print([*event_runs(found), *map(rebalance_line, over)])
            if _reader_is_gone():
                return 0
    return 0


def _show_standing(found: tuple[TimelineEvent, ...], arguments: argparse.Namespace) -> None:
    if arguments.since is not None:
        found = since(found, arguments.since)
    if arguments.format == "json":
        _print(_json_lines(found, rebalances(found), True))
    else:
        _print(report(found))


@contextmanager
def _terminated() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C inside the block, so that the session ends and its watches do."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _reader_is_gone() -> bool:
    """Return whether standard output is a pipe that nobody reads any more: we write nothing while nothing happens."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except (OSError, ValueError):  # standard output is no file, as in a test
        return False
