"""Reads the group that a command names, and says what is wrong with the name or the answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zkconsumer.cli.tables import printable
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.operations.snapshot_source import SnapshotSource


def read_group(source: SnapshotSource, group: str, *, message_times: bool = False) -> GroupSnapshot:
    """Return the snapshot of a group that exists. What could not be read goes to standard error.

    Raises: UnknownGroupError; RegistryError, BrokerError as :meth:`SnapshotSource.snapshot`.
    """
    snapshot = require_group(source, group, message_times=message_times)
    for problem in snapshot.problems:
        print(f"zkconsumer: {printable(problem.what)}: {printable(problem.why)}", file=sys.stderr)
    return snapshot


def earlier_snapshots(source: SnapshotSource, group: str) -> Sequence[GroupSnapshot]:
    """Return the snapshots before the latest. A live cluster has none, and is not read for that."""
    return () if isinstance(source, LiveSource) else source.history(group)[:-1]
