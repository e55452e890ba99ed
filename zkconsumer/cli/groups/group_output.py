"""The output of ``zkconsumer groups --list`` and ``--describe``, with the texts of Kafka 3.9's tool.

Runs in the main thread. Tables and the errors of Kafka's tool go to standard output, warnings to standard error, as
there. In CSV and JSON standard output has nothing but the table.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from zkconsumer.cli.groups.group_tables import (
    CoordinatedBy,
    GroupSide,
    gone_messages,
    list_table,
    members_table,
    offsets_table,
    sides,
    states_table,
)
from zkconsumer.cli.source_arguments import connect_options, earlier_snapshots, read_groups
from zkconsumer.cli.tables import TABLE, Table, painted, render
from zkconsumer.operations.doctor import Level
from zkconsumer.operations.group_lookup import hint_for_unknown
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource, gone_words
from zkconsumer.operations.judgement import Judgement, judge
from zkconsumer.operations.printable import printable

_REBALANCING = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Rebalancing", "Stuck"}
)

_FAILED = 1
MOST_WARNINGS = 5
"""The most findings about one group that are printed."""


def chosen(text: str) -> list[str]:
    """Return the words of a list such as ``stable,empty``, in small letters."""
    return [word.strip().lower() for word in text.split(",")]


def list_groups(source: SnapshotSource, arguments: argparse.Namespace) -> int:
    """Print the groups, with their types and states if these are asked for. Return the exit code."""
    names = source.groups()
    with_type, with_state = arguments.type is not None, arguments.state is not None
    if not with_type and not with_state:
        if arguments.format == TABLE:
            for name in names:
                say(printable(name))
        else:
            say(render(Table(["GROUP"], [[name] for name in names]), arguments.format))
        return 0
    found = [side for _, snapshot in read_groups(source, names) for side in sides(snapshot)]
    shown = [side for side in found if _wanted(arguments.type, side.type) and _wanted(arguments.state, side.state)]
    say(render(list_table(shown, with_type=with_type, with_state=with_state), arguments.format))
    return 0


def _wanted(given: str | None, value: str) -> bool:
    return not given or value.lower() in chosen(given)


def describe_groups(source: SnapshotSource, arguments: argparse.Namespace) -> int:
    """Print a table for each group; in CSV and JSON, one table for all groups. Return the exit code."""
    names = source.groups() if arguments.all_groups else sorted(set(arguments.group))
    make = _table_maker(arguments)
    everything: list[GroupSide] = []
    judged: dict[str, Judgement] = {}
    code = 0
    for name, snapshot in read_groups(source, names, message_times=True):  # they tell whether an owner stands still
        found = sides(snapshot)
        warn_of_problems(snapshot)
        if not found and snapshot.problems:
            warn(f"Error: Consumer group '{printable(name)}' was not found, but not everything could be asked.")
            code = _FAILED
        elif not found:
            complain_of_unknown(name, source, arguments)
            if arguments.format == TABLE and arguments.members:
                say("\n" + render(make([])))
        if arguments.format == TABLE:
            for side in found:
                _print_side(side, arguments, make, both=len(found) > 1)
        everything += found
        if found:
            judged[name] = judge((*earlier_snapshots(source, name), snapshot))
            if arguments.format == TABLE:
                warn_of_findings(name, judged[name], connect_options(arguments))
    if arguments.format != TABLE:
        _print_rows(everything, judged, arguments, make)
    return code


def _print_rows(
    everything: Sequence[GroupSide],
    judged: Mapping[str, Judgement],
    arguments: argparse.Namespace,
    make: Callable[[Sequence[GroupSide]], Table],
) -> None:
    """Print one table for all groups on standard output, and what is wrong on standard error."""
    for side in everything:
        _print_condition(side)
        if not arguments.members and arguments.state is None:
            _warn_of_gone(side)
    say(render(make(everything), arguments.format))
    for name, judgement in judged.items():
        warn_of_findings(name, judgement, connect_options(arguments))


def _table_maker(arguments: argparse.Namespace) -> Callable[[Sequence[GroupSide]], Table]:
    maker = members_table if arguments.members else states_table if arguments.state is not None else offsets_table
    # Kafka's table has no place for the side, and Kafka has no other forms that scripts could know
    with_side = arguments.format != TABLE
    return lambda shown: maker(shown, verbose=arguments.verbose, with_side=with_side)


def _print_side(
    side: GroupSide, arguments: argparse.Namespace, make: Callable[[Sequence[GroupSide]], Table], *, both: bool
) -> None:
    _print_condition(side)
    if both:
        where = "ZooKeeper coordinates" if side.coordination is CoordinatedBy.ZOOKEEPER else "the brokers coordinate"
        say(f"\nGroup '{printable(side.group)}' as {where} it:")
    table = make([side])
    if not arguments.members and arguments.state is None:
        _warn_of_gone(side)
    # Kafka's tool prints the titles of members in any case, and other titles only above rows
    if table.rows or arguments.members:
        say("\n" + render(table))


def _warn_of_gone(side: GroupSide) -> None:
    """Print which offsets lie below their logs. LAG counts what is left to read, as in Kafka's tool."""
    for tp, gone, lag in gone_messages(side):
        warn(f"Warning: {printable(str(tp))}: {gone_words(gone, lag)}: the offset lies below the log.")


def _print_condition(side: GroupSide) -> None:
    """Print what Kafka's tool says of a group that is empty or rebalancing, and of one that is stuck."""
    name = printable(side.group)
    if side.state == "Empty":
        warn(f"\nConsumer group '{name}' has no active members.")
    elif side.state in _REBALANCING:
        warn(f"\nWarning: Consumer group '{name}' is {'stuck' if side.state == 'Stuck' else 'rebalancing'}.")
    elif side.coordination is CoordinatedBy.BROKERS and side.state in ("Dead", "Unknown"):
        # the group protocol of Kafka 4.0 has requests of its own
        told = "the coordinator does not describe the group, so its members are unknown"
        warn(f"\nWarning: Consumer group '{name}' has offsets, but {told}.")
    if side.reason and side.state in _REBALANCING:
        warn(printable(side.reason))


def complain_of_unknown(name: str, source: SnapshotSource, arguments: argparse.Namespace) -> None:
    """Print that the group does not exist, and what was probably meant."""
    text = f"Error: Consumer group '{printable(name)}' does not exist."
    if arguments.format == TABLE:
        say(f"\n{text}")
    else:
        warn(text)
    if hint := hint_for_unknown(source, name):
        warn(hint)


def warn_of_findings(name: str, judgement: Judgement, where: str) -> None:
    """Print what is wrong with a group by its judgement. Kafka's columns have no place for it.

    Arguments: ``where`` are the options to connect with, for a command to copy.
    """
    bad = [one for one in judgement.findings if one.level > Level.NOTE]
    for one in bad[:MOST_WARNINGS]:
        word = painted("Error" if one.level is Level.ERROR else "Warning", one.level, sys.stderr)
        warn(f"{word}: Consumer group '{printable(name)}': {printable(one.text)}.")
    if bad:
        more = f"{len(bad) - MOST_WARNINGS} more; " if len(bad) > MOST_WARNINGS else ""
        quoted = shlex.quote(printable(name))
        words = [where, "--", quoted] if name.startswith("-") else [quoted, where]
        warn(f"({more}what to do: zkconsumer doctor {' '.join(filter(None, words))})")


def warn_of_problems(snapshot: GroupSnapshot) -> None:
    """Print what could not be read, and why."""
    for problem in snapshot.problems:
        warn(f"Warning: {printable(problem.what)}: {printable(problem.why)}")


def say(text: str) -> None:
    """Print a line and flush it."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Print a line on standard error, after all that was printed before."""
    print(end="", flush=True)
    print(text, file=sys.stderr, flush=True)
