"""``zkconsumer plan``: what a change of a group would move, before anybody makes it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from zkconsumer.cli.source_arguments import add_source_arguments, open_source, read_group
from zkconsumer.cli.tables import CSV, JSON, Table, add_format_argument, as_json, json_row, render
from zkconsumer.core.names import first_of
from zkconsumer.errors import ConfigException
from zkconsumer.operations.assignment_forecast import (
    Change,
    Forecast,
    Join,
    Kill,
    Leave,
    MorePartitions,
    UseStrategy,
    forecast,
)
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.printable import printable
from zkconsumer.operations.snapshot_file import read_registrations

DESCRIPTION = """\
Computes the group's assignment before and after a change, and says which partitions move,
which members idle, what pauses and how long. Changes may be repeated and combined.
Nothing is written.

  zkconsumer plan GROUP --join HOST --zookeeper HOST:2181/CHROOT
  zkconsumer plan GROUP --kill ID --join HOST:4 --zookeeper HOST:2181/CHROOT
  zkconsumer plan GROUP --partitions events:+8 --from group.jsonl
  zkconsumer plan --registrations sizing.json --strategy roundrobin

Exit codes: 0 done; 1 failed; 2 wrong usage.
"""

_LISTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("group", metavar="GROUP", nargs="?", help="the group.id")
    parser.add_argument(
        "--registrations", metavar="FILE", help="a JSON file of members and topics in place of a group that exists"
    )
    changes = parser.add_argument_group("changes, in this order")
    for flag, metavar, make, said in (
        ("--join", "HOST[:STREAMS]", join, "a member joins; its subscription is the others'"),
        ("--leave", "ID", Leave, "a member leaves; a part of its consumer id will do"),
        ("--kill", "ID", Kill, "a member dies without leaving"),
        ("--partitions", "[TOPIC:]+N", more_partitions, "a topic, or each one, gets N partitions more"),
        ("--strategy", "NAME", UseStrategy, "all members use this strategy (roundrobin-0.x: as Scala 0.x)"),
    ):
        changes.add_argument(flag, dest="changes", action="append", type=make, metavar=metavar, help=said)
    add_source_arguments(parser)
    add_format_argument(parser)


def join(text: str) -> Join:
    """Return the change that ``HOST[:STREAMS]`` names. Raises argparse.ArgumentTypeError."""
    host, colon, streams = text.rpartition(":")
    if not colon:
        host, streams = text, ""
    good = streams.isascii() and streams.isdecimal() and 0 < len(streams) < 6 if colon else True
    if not host or not good or not host.isprintable() or "/" in host:
        raise argparse.ArgumentTypeError(f"{text!r} is no member; write HOST or HOST:STREAMS, as in web-7:2")
    return Join(host, int(streams) if colon else None)


def more_partitions(text: str) -> MorePartitions:
    """Return the change that ``[TOPIC:]+N`` names. Raises argparse.ArgumentTypeError."""
    topic, _, number = text.rpartition(":")
    digits = number.removeprefix("+")
    if not (number.startswith("+") and digits.isascii() and digits.isdecimal() and len(digits) < 7 and int(digits)):
        raise argparse.ArgumentTypeError(f"{text!r} adds no partitions; write +N or TOPIC:+N, as in events:+4")
    return MorePartitions(int(digits), topic or None)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    found = forecast(_snapshot(arguments), arguments.changes or ())
    if arguments.format == JSON:
        print(as_json(document(found)))
    elif arguments.format == CSV:
        print(render(move_table(found), CSV))
    else:
        for line in report(found, arguments.changes or ()):
            print(line)
    return 0


def _snapshot(arguments: argparse.Namespace) -> GroupSnapshot:
    if arguments.registrations is not None:
        live = [name for name in ("zookeeper", "bootstrap_server", "snapshots") if getattr(arguments, name)]
        if live:
            flag = "--from" if live[0] == "snapshots" else f"--{live[0].replace('_', '-')}"
            raise ConfigException("--registrations", f"goes without {flag}: the file is the whole group")
        return read_registrations(arguments.registrations, arguments.group)
    if arguments.group is None:
        raise ConfigException("GROUP", "name a group, or a file with --registrations FILE")
    with open_source(arguments) as source:
        return read_group(source, arguments.group)


def report(found: Forecast, changes: Sequence[Change]) -> list[str]:
    """Return the report for a terminal, line by line."""
    named = ", ".join(map(described, changes)) or "no change"
    new = sum(move.before is None for move in found.moves)
    moving = len(found.moves) - new
    lines = [
        f"Group {found.group}, {named}; strategy {found.strategy.label or 'none'}.",
        *(f"Note: {note}." for note in found.notes),
        f"{moving} of {len(found.before)} partitions move, {found.stays} stay" + (f", {new} are new." if new else "."),
    ]
    if found.idle:
        shown = first_of(found.idle, _LISTED)
        lines.append(f"{len(found.idle)} threads have nothing to do: {shown}.")
    lines = [printable(line) for line in lines]
    lines += ["", *render(move_table(found)).splitlines()] if found.moves else []
    lines += ["", *render(pause_table(found)).splitlines()] if found.pauses else []
    return [*lines, "", *render(strategy_table(found)).splitlines()]


def described(change: Change) -> str:
    """Return a change in words."""
    if isinstance(change, Join):
        return f"{change.host} joins" + (f" with {change.streams} streams" if change.streams is not None else "")
    if isinstance(change, Leave):
        return f"{change.member} leaves"
    if isinstance(change, Kill):
        return f"{change.member} dies"
    if isinstance(change, MorePartitions):
        return f"{change.topic or 'each topic'} gets {change.count} partitions more"
    return f"all members use {change.name}"


def move_table(found: Forecast) -> Table:
    """Return a row for each partition that moves."""
    rows = [(*move.partition, move.before, move.after) for move in found.moves]
    return Table(("TOPIC", "PARTITION", "FROM", "TO"), rows)


def pause_table(found: Forecast) -> Table:
    """Return what pauses, and how long."""
    rows = [(pause.whose, pause.partitions, pause.how_long) for pause in found.pauses]
    return Table(("WHOSE", "#PARTITIONS", "PAUSE"), rows)


def strategy_table(found: Forecast) -> Table:
    """Return the strategies side by side."""
    rows = [
        (one.strategy, one.in_effect, one.moves, one.switch, one.least, one.most, one.idle, one.problem or None)
        for one in found.outcomes
    ]
    return Table(("STRATEGY", "IN-EFFECT", "MOVES", "SWITCH", "LEAST", "MOST", "IDLE", "PROBLEM"), rows)


def document(found: Forecast) -> dict[str, Any]:
    """Return the forecast as values for JSON."""
    tables = {"moves": move_table(found), "pauses": pause_table(found), "strategies": strategy_table(found)}
    return {
        "group": found.group,
        "strategy": {"name": found.strategy.label, "sure": found.strategy.sure, "why": found.strategy.why},
        "joined": list(found.joined),
        "stays": found.stays,
        "idle": list(found.idle),
        "notes": list(found.notes),
        **{name: [json_row(table, row) for row in table.rows] for name, table in tables.items()},
    }
