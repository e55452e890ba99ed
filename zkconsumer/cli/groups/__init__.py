"""``zkconsumer groups``: lists, describes and deletes groups, with the flags of ``kafka-consumer-groups.sh``.

Runs in the main thread. ``group_tables`` makes the tables from snapshots. Only ``operations.group_deletion`` writes,
and only with ``--execute``. The texts of deletions are those of Kafka 3.9's tool. Its table of deleted offsets is on
one line, which is a defect and not copied.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from zkconsumer.cli.groups import group_output
from zkconsumer.cli.groups.group_output import say, warn, warn_of_problems
from zkconsumer.cli.groups.group_tables import CoordinatedBy, GroupSide, sides
from zkconsumer.cli.offsets import as_reset
from zkconsumer.cli.source_arguments import add_execution, add_source_arguments, add_topics, open_client, open_source
from zkconsumer.cli.tables import TABLE, Cell, Column, Table, add_format_argument, add_watch_argument, render, watched
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.offset_move_plan import PartitionSelection, parse_selection
from zkconsumer.errors import BrokerError, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.operations import group_deletion
from zkconsumer.operations.group_deletion import NO_PARTITION, NOT_EMPTY, NOT_FOUND
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.printable import printable
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.runtime.deadline import Deadline

__all__ = ["DESCRIPTION", "add_arguments", "as_flags", "completions", "run"]

DESCRIPTION = """\
Shows the groups that ZooKeeper coordinates, and those that the brokers coordinate, with
the flags, columns and texts of kafka-consumer-groups.sh. Each action is also a verb.

  zkconsumer groups --zookeeper HOST:2181 --list
  zkconsumer groups --zookeeper HOST:2181 --describe --group G
  zkconsumer groups describe G --members --verbose --zookeeper HOST:2181
  zkconsumer groups delete G --zookeeper HOST:2181 --execute
  zkconsumer groups --reset-offsets --group G --all-topics --to-earliest ...

--reset-offsets is "zkconsumer offsets reset", see its help.

One thing differs from Kafka's tool on purpose: --delete and --delete-offsets show what
they would do, and do it only with --execute.

Exit codes: 0 done, also for a group that does not exist, as in Kafka's tool; 1 failed, or
something was not deleted; 2 wrong usage; 130 after Ctrl-C.
"""


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    usage = wrong_usage(arguments)
    if usage:
        print(f"zkconsumer groups: {usage}", file=sys.stderr)
        return 2
    if arguments.action in (DELETE, DELETE_OFFSETS):
        with open_client(arguments) as client:
            delete = delete_groups if arguments.action == DELETE else delete_offsets
            return delete(LiveSource(client), client, arguments)
    if arguments.watch is None:
        return _look(arguments)
    names = "all groups" if arguments.all_groups else ", ".join(map(printable, arguments.group))
    return watched(partial(_look, arguments), arguments.watch, f"groups describe {names}")


def _look(arguments: argparse.Namespace) -> int:
    with open_source(arguments) as source:
        if arguments.action == LIST:
            return group_output.list_groups(source, arguments)
        return group_output.describe_groups(source, arguments)


_FAILED = 1
_DRY_RUN = "Nothing was deleted: this is a dry run. Add --execute to delete."
_NO_NUMBER = -1


# ---- groups ----


def delete_groups(source: SnapshotSource, client: ClusterClient, arguments: argparse.Namespace) -> int:
    """Delete groups, or tell what would be deleted. Return the exit code: 1 if any group cannot be deleted."""
    names = source.groups() if arguments.all_groups else sorted(set(arguments.group))
    found = {name: source.snapshot(name) for name in names}
    for snapshot in found.values():
        warn_of_problems(snapshot)
    failed = {name: reason for name, snapshot in found.items() if (reason := group_deletion.why_not(snapshot))}
    if arguments.execute:
        for name, snapshot in found.items():
            if name not in failed and (reason := _deleted(client, snapshot)):
                failed[name] = reason
    if arguments.format == TABLE:
        _say_of_groups(found, failed, execute=arguments.execute)
    else:
        say(render(_groups_table(found, failed, execute=arguments.execute), arguments.format))
    if not arguments.execute:
        warn(_DRY_RUN)
    return _FAILED if failed else 0


def _deleted(client: ClusterClient, snapshot: GroupSnapshot) -> str:
    """Delete a group. Return the reason why it was not, also if the outcome is unknown."""
    try:
        return group_deletion.delete_group(client, snapshot, Deadline(client.timeout))
    except (RegistryError, BrokerError) as error:
        return f"{error}; look whether it was deleted"


def _say_of_groups(found: Mapping[str, GroupSnapshot], failed: Mapping[str, str], *, execute: bool) -> None:
    done = [name for name in found if name not in failed]
    quoted = ", ".join(f"'{printable(name)}'" for name in done)
    if not execute:
        for name in done:
            say(f"Group '{printable(name)}' would be deleted: {_contents(found[name])}.")
        for name, reason in failed.items():
            say(f"* Group '{printable(name)}' could not be deleted due to: {printable(reason)}")
    elif failed:
        say("\nError: Deletion of some consumer groups failed:")
        for name, reason in failed.items():
            say(f"* Group '{printable(name)}' could not be deleted due to: {printable(reason)}")
        if done:
            say(f"\nThese consumer groups were deleted successfully: {quoted}")
    else:
        names = ", ".join(map(printable, done))
        say(f"Deletion of requested consumer groups ('{names}') was successful.")


def _contents(snapshot: GroupSnapshot) -> str:
    parts = []
    if snapshot.in_zookeeper:
        parts.append(f"{len(snapshot.offsets)} offsets in ZooKeeper")
    if snapshot.in_kafka:
        parts.append(f"{len(snapshot.kafka_offsets or ())} offsets at the brokers")
    return " and ".join(parts)


def _groups_table(found: Mapping[str, GroupSnapshot], failed: Mapping[str, str], *, execute: bool) -> Table:
    done = "deleted" if execute else "would be deleted"
    return Table(["GROUP", "STATUS"], [[name, f"Error: {failed[name]}" if name in failed else done] for name in found])


# ---- offsets ----


def delete_offsets(source: SnapshotSource, client: ClusterClient, arguments: argparse.Namespace) -> int:
    """Delete a group's offsets, or tell which would be deleted. Return the exit code: 1 if any cannot be deleted."""
    (name,) = arguments.group
    snapshot = source.snapshot(name)
    shown = sides(snapshot)
    warn_of_problems(snapshot)
    if not shown:
        group_output.complain_of_unknown(name, source, arguments)
        return _FAILED
    selection = selection_of(arguments)
    results = [(side, _offsets_of(side, selection, client, execute=arguments.execute)) for side in shown]
    if arguments.format == TABLE:
        for side, result in results:
            _say_of_offsets(side, result, arguments, both=len(results) > 1)
    else:
        rows = [[*row, side.coordination.value] for side, result in results for row in _rows(result)]
        say(render(Table(["TOPIC", "PARTITION", "STATUS", "COORDINATION"], rows), arguments.format))
    if not arguments.execute:
        warn(_DRY_RUN)
    failed = any(status.startswith("Error") for _, result in results for status in result.values())
    return _FAILED if failed else 0


def _offsets_of(
    side: GroupSide, selection: PartitionSelection, client: ClusterClient, *, execute: bool
) -> dict[TopicPartition, str]:
    """Return the status of each selected partition, after deleting its offset if ``execute`` is given."""
    snapshot = side.snapshot
    zookeeper = side.coordination is CoordinatedBy.ZOOKEEPER
    stored = {tp: _offset_text(side, tp) for tp in (snapshot.offsets if zookeeper else snapshot.kafka_offsets or {})}
    wanted = selected(selection, snapshot, stored)
    refused = {tp: NO_PARTITION for tp in wanted if not _exists(snapshot, tp, stored)}
    for tp in wanted:
        reason = group_deletion.why_not_offset(snapshot, tp, in_zookeeper=zookeeper)
        if reason:
            refused[tp] = reason
    partitions = [tp for tp in wanted if tp not in refused]
    if execute and partitions:
        try:
            deadline = Deadline(client.timeout)
            if zookeeper:
                refused |= group_deletion.delete_zookeeper_offsets(client, snapshot, partitions, deadline)
            else:
                refused |= group_deletion.delete_kafka_offsets(client, snapshot.group, partitions, deadline)
        except (RegistryError, BrokerError) as error:
            refused |= dict.fromkeys(partitions, f"{error}; look whether it was deleted")
    done = {
        tp: "Successful" if execute else f"would be deleted: {stored[tp]}" if tp in stored else "has no offset"
        for tp in partitions
    }
    return {tp: f"Error: :{refused[tp]}" if tp in refused else done[tp] for tp in wanted}


def selected(
    selection: PartitionSelection, snapshot: GroupSnapshot, stored: Mapping[TopicPartition, object]
) -> list[TopicPartition]:
    """Return the selected partitions in order: those that exist, have an offset, or are named by number.

    A topic of which nothing is known has the one partition -1. Without a selection, partitions with an offset.
    """
    if not selection.topics:
        return sorted(stored)
    found: set[TopicPartition] = set()
    for topic, numbers in selection.topics.items():
        if numbers is not None:
            found.update(TopicPartition(topic, number) for number in numbers)
            continue
        known = {*snapshot.partitions_of([topic]), *(tp for tp in stored if tp.topic == topic)}
        found.update(known or {TopicPartition(topic, _NO_NUMBER)})
    return sorted(found)


def _exists(snapshot: GroupSnapshot, tp: TopicPartition, stored: Mapping[TopicPartition, object]) -> bool:
    return tp in stored or tp in snapshot.partitions_of([tp.topic])


def _offset_text(side: GroupSide, tp: TopicPartition) -> str:
    if side.coordination is CoordinatedBy.ZOOKEEPER:
        node = side.snapshot.offsets[tp]
        return f"offset {node.offset}" if node.offset is not None else node.problem
    offset = (side.snapshot.kafka_offsets or {})[tp]
    return f"offset {offset.offset}"


def _rows(result: Mapping[TopicPartition, str]) -> list[list[Cell]]:
    return [
        [tp.topic, tp.partition if tp.partition != _NO_NUMBER else "Not Provided", status]
        for tp, status in sorted(result.items())
    ]


def _say_of_offsets(
    side: GroupSide, result: Mapping[TopicPartition, str], arguments: argparse.Namespace, *, both: bool
) -> None:
    group = printable(side.group)
    if both:
        where = "in ZooKeeper" if side.coordination is CoordinatedBy.ZOOKEEPER else "at the brokers"
        say(f"\nOffsets of group '{group}' {where}:")
    wrong = [status for tp, status in result.items() if status.startswith("Error") and tp.partition != _NO_NUMBER]
    if any(NOT_EMPTY in status for status in wrong):
        say(f"\nError: Deleting offsets of a consumer group '{group}' is forbidden if the group is not empty.")
    elif any(NOT_FOUND in status for status in wrong):
        say(f"\nError: '{group}' does not exist.")
    elif wrong:
        say("\nError: Encounter some partition level error, see the follow-up details:")
    elif arguments.execute:
        topics = ", ".join(map(printable, arguments.topic or sorted({tp.topic for tp in result})))
        say(f"Request succeed for deleting offsets with topic {topics} group {group}")
    columns: Sequence[Column] = (Column("TOPIC", 30), Column("PARTITION", 15), Column("STATUS", 15))
    say("\n" + render(Table(columns, _rows(result))))


LIST, DESCRIBE, DELETE, DELETE_OFFSETS = "list", "describe", "delete", "delete-offsets"
ACTIONS = (LIST, DESCRIBE, DELETE, DELETE_OFFSETS)

STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
OUR_STATES = ("Rebalancing", "Stuck")
TYPES = ("Consumer", "Classic", "Share", "ZooKeeper")
_ANY = ""


def as_flags(argv: Sequence[str]) -> list[str]:
    """Return the command line with its verb as a flag: ``groups describe G`` becomes ``groups --describe G``.

    ``groups --reset-offsets`` becomes ``offsets reset``, which has the same options.
    """
    words = as_reset(argv)
    if words[:1] == ["groups"] and len(words) > 1 and words[1] in ACTIONS:
        words[1] = f"--{words[1]}"
    return words


def completions(command: str) -> dict[str, Sequence[str]]:
    """Return the words that a shell completes, by the argument: the verbs."""
    return {"groups": ACTIONS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="the same as --group GROUP")
    actions = parser.add_argument_group("what to do").add_mutually_exclusive_group(required=True)
    for action, text in (
        (LIST, "list the groups"),
        (DESCRIBE, "show the partitions of a group with offsets, lag and members; see --members and --state"),
        (DELETE, "delete groups, their offsets included"),
        (DELETE_OFFSETS, "delete a group's offsets of the topics of --topic"),
    ):
        actions.add_argument(f"--{action}", dest="action", action="store_const", const=action, help=text)
    _add_selection(parser)
    _add_columns(parser)
    how = parser.add_argument_group("deleting").add_mutually_exclusive_group()
    done = "delete; Kafka's own tool deletes without this option"
    add_execution(how, "show what would be deleted; this is the default", done)
    add_source_arguments(parser)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    which = parser.add_argument_group("which groups")
    which.add_argument("--group", action="append", default=[], metavar="GROUP", help="a group; may be repeated")
    which.add_argument("--all-groups", action="store_true", help="all groups")
    add_topics(which, "with --delete-offsets: this topic, or these partitions of it")
    which.add_argument("--all-topics", action="store_true", help="with --delete-offsets: all topics of the group")


def _add_columns(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_argument_group("what to show")
    shown.add_argument("--members", action="store_true", help="with --describe: the members")
    shown.add_argument("--offsets", action="store_true", help="with --describe: the offsets; this is the default")
    shown.add_argument(
        "--state",
        nargs="?",
        const=_ANY,
        metavar="STATE,...",
        help="with --describe: the state; with --list: the state of each group, or only groups in these states",
    )
    shown.add_argument(
        "--type",
        nargs="?",
        const=_ANY,
        metavar="TYPE,...",
        help="with --list: the type of each group, or only groups of these types",
    )
    shown.add_argument("--verbose", action="store_true", help="with --describe: further columns")
    add_format_argument(shown)
    add_watch_argument(shown)


def selection_of(arguments: argparse.Namespace) -> PartitionSelection:
    """Return the partitions that ``--topic`` names. Raises ValueError."""
    return parse_selection(arguments.topic)


def wrong_usage(arguments: argparse.Namespace) -> str:
    """Return the error in the combination of options, or an empty text. Moves the words to ``--group``."""
    action = arguments.action
    arguments.group = [*arguments.group, *arguments.groups]
    if action == DESCRIBE:
        _take_state_as_group(arguments)
    if any(not group for group in arguments.group):  # for example, an unset variable in a script
        return "--group names no group"
    if arguments.group and arguments.all_groups:
        return 'Option "[group]" can\'t be used with option "[all-groups]"'
    if action == LIST:
        if arguments.group:
            return 'Option "[group]" can\'t be used with option "[list]"'
    elif not arguments.group and not arguments.all_groups:
        return f"Option [{action}] takes one of these options: [group], [all-groups]"
    return (
        _wrong_place(arguments)
        or _wrong_states(arguments.state)
        or _wrong_choice(arguments.type, TYPES, "types", "types")
        or _wrong_deletion(arguments)
    )


def _take_state_as_group(arguments: argparse.Namespace) -> None:
    """Take the word behind ``--describe --state`` as a group, since ``--describe`` filters by no state.

    Kafka's tool ignores the word. So do we where the groups are named otherwise and the word names states.
    """
    word, arguments.state = arguments.state, arguments.state and _ANY
    if word and (not (arguments.group or arguments.all_groups) or _wrong_states(word)):
        arguments.group.append(word)


def _wrong_place(arguments: argparse.Namespace) -> str:
    """Return the option that does not go with the action, in words, or an empty text."""
    action = arguments.action
    details = [name for name in ("members", "offsets") if getattr(arguments, name)]
    if action == DESCRIBE:
        if arguments.state is not None:
            details.append("state")
        if len(details) > 1:
            return "Option [describe] takes at most one of these options: [members], [offsets], [state]"
    elif details or arguments.verbose:
        return f"--{(details or ['verbose'])[0]} goes with --describe only"
    elif arguments.watch is not None:
        return "--watch goes with --describe only"
    if arguments.state is not None and action not in (LIST, DESCRIBE):
        return "--state goes with --describe and --list only"
    if arguments.type is not None and action != LIST:
        return "--type goes with --list only"
    return ""


def _wrong_deletion(arguments: argparse.Namespace) -> str:
    action = arguments.action
    deletes = action in (DELETE, DELETE_OFFSETS)
    if not deletes and (arguments.dry_run or arguments.execute):
        return f"--dry-run and --execute go with what writes, --{DELETE} and --{DELETE_OFFSETS}"
    if action != DELETE_OFFSETS and (arguments.topic or arguments.all_topics):
        return f"--topic and --all-topics go with --{DELETE_OFFSETS} only"
    if action == DELETE_OFFSETS:
        if len(arguments.group) != 1:
            return f"--{DELETE_OFFSETS} takes one --group"
        if bool(arguments.topic) == arguments.all_topics:
            return f"Option [{DELETE_OFFSETS}] takes one of these options: [topic], [all-topics]"
        try:
            selection_of(arguments)
        except ValueError as error:
            return f"--topic: {error}"
    if deletes and getattr(arguments, "snapshots", None):
        return "--from reads files, in which nothing can be deleted"
    return ""


def _wrong_states(given: str | None) -> str:
    return _wrong_choice(given, (*STATES, *OUR_STATES), "state", "states")


def _wrong_choice(given: str | None, valid: Sequence[str], word: str, words: str) -> str:
    if not given or set(group_output.chosen(given)) <= {one.lower() for one in valid}:
        return ""
    return f"Invalid {word} list '{given}'. Valid {words} are: {', '.join(valid)}"
