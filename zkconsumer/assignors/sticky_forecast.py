"""Placement without a plan before it, for tools that compute the assignment of a new group. Pure; any thread.

Members never call these: they follow the group's plan (``assignors.placement``).
"""

from __future__ import annotations

from zkconsumer.assignors.assignor import NO_RACKS, Members, Partitions, Racks, threads_by_topic
from zkconsumer.assignors.lag_aware_placement import even_load
from zkconsumer.assignors.sticky_placement import fewest_moves
from zkconsumer.model import ThreadId, TopicPartition


class StickyAssignor:
    """Assigns as the first plan of a group with ``sticky``."""

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment."""
        return fewest_moves(threads_by_topic(members), partitions, {})


class LagAwareAssignor:
    """Assigns as the first plan of a group with ``lag-aware`` whose loads are not known."""

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> dict[TopicPartition, ThreadId]:
        """Return the assignment."""
        return even_load(threads_by_topic(members), partitions, {}, {})
