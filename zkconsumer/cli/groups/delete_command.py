"""``zkconsumer groups --delete`` and ``--delete-offsets``: a dry run unless ``--execute`` is given.

Runs in the main thread. The texts of the results are those of Kafka 3.9's tool. Its table of deleted offsets is on one
line, which is a defect and not copied.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from zkconsumer.cli.groups.arguments import selection_of
from zkconsumer.cli.groups.group_output import complain_of_unknown, say, warn, warn_of_problems
from zkconsumer.cli.groups.group_tables import CoordinatedBy, GroupSide, sides
from zkconsumer.cli.tables import TABLE, Cell, Column, Table, printable, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.offset_moves import PartitionSelection
from zkconsumer.errors import BrokerError, RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.operations import group_deletion
from zkconsumer.operations.group_deletion import NO_PARTITION, NOT_EMPTY, NOT_FOUND
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_source import SnapshotSource
from zkconsumer.runtime.deadline import Deadline

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
        complain_of_unknown(name, source, arguments)
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
