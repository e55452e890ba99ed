"""Reads the group that a command names, and says what is wrong with the name or the answers."""

from __future__ import annotations

import sys

from zkconsumer.cli.groups.group_output import nearest
from zkconsumer.cli.tables import printable
from zkconsumer.errors import ZkConsumerError
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_view import GroupState, group_state
from zkconsumer.operations.snapshot_source import SnapshotSource


class UnknownGroupError(ZkConsumerError):
    """Nobody knows a group of this name; the message has similar names."""


def read_group(source: SnapshotSource, group: str, *, message_times: bool = False) -> GroupSnapshot:
    """Return the snapshot of a group that exists. What could not be read goes to standard error.

    Raises: UnknownGroupError; RegistryError, BrokerError as :meth:`SnapshotSource.snapshot`.
    """
    snapshot = source.snapshot(group, message_times=message_times)
    for problem in snapshot.problems:
        print(f"zkconsumer: {printable(problem.what)}: {printable(problem.why)}", file=sys.stderr)
    if group_state(snapshot).state in (GroupState.DEAD, GroupState.UNKNOWN) and group not in (known := source.groups()):
        similar = nearest(group, known)
        meant = f"; did you mean {' or '.join(map(printable, similar))}?" if similar else ""
        raise UnknownGroupError(f"there is no group {printable(group)}{meant}")
    return snapshot
