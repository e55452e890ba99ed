"""Where the commands get their snapshots from: a live cluster, or files that ``zkconsumer snapshot`` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zkconsumer.operations.group_snapshot import GroupSnapshot


class SnapshotSource(Protocol):
    """Names the groups, and reads the snapshot of one. One thread at a time."""

    def groups(self) -> Sequence[str]:
        """Return the names of the groups that this source knows, sorted, without repetitions.

        Raises: RegistryError, BrokerError if nothing at all could be asked.
        """

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        """Return the group now; from files, the latest one of it. A group that nobody knows is an empty snapshot.

        Arguments: ``message_times`` also reads the timestamp of the message at each committed offset.
        Raises: RegistryError, BrokerError if nothing at all could be read; the rest stands in ``problems``.
        """

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        """Return all snapshots of the group that this source has, oldest first; a live cluster has the present one."""

    def close(self) -> None:
        """Close the connections."""
