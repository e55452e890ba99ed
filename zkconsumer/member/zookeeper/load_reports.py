"""The loads of partitions, which members publish for the planner of ``lag-aware``.

Called by the group thread only, within a round. Each member writes one ephemeral node now and then, and the planner
reads them all as rarely. Nobody watches them, so no report makes a round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import monotonic

from zkconsumer.core.placement_plan import PartitionLoad, consumer_of, decode_loads, encode_loads
from zkconsumer.errors import NotPermittedError
from zkconsumer.member.zookeeper.round_schedule import NEVER
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

PUBLISH_EVERY_S = 30.0
"""Seconds between two reports of a member."""


@dataclass(slots=True)
class _Seen:
    """A position as it was when its log's end was last known: then (monotonic seconds), with the rate until then."""

    end: int
    fetched: int | None
    at: float
    rate: float | None = None


class LoadMeter:
    """Measures the loads of owned partitions. One thread.

    A stream whose reader is slow has no room, and then none of its partitions is fetched. Their log ends stay as they
    were, so a slow or stuck reader would look idle, and would be given more. So while a stream is full, its partitions
    keep the last known rates, and lags grow by these rates.
    """

    def __init__(self) -> None:
        self._before: dict[PartitionPosition, _Seen] = {}

    def measure(
        self, positions: Mapping[TopicPartition, PartitionPosition], now: float
    ) -> dict[TopicPartition, PartitionLoad]:
        """Return the loads of partitions that were fetched twice. ``now`` in monotonic seconds."""
        known = {tp: one for tp, one in positions.items() if one.cursor.log_end >= 0 and one.lag >= 0}
        fetched = {one.thread for one in known.values() if self._was_fetched(one)}
        full = {one.thread for one in known.values() if _is_unread(one)} - fetched
        found: dict[TopicPartition, PartitionLoad] = {}
        seen: dict[PartitionPosition, _Seen] = {}
        for tp, position in known.items():
            before, end, lag = self._before.get(position), position.cursor.log_end, float(position.lag)
            if before is None or now <= before.at:
                seen[position] = before or _Seen(end, position.cursor.fetched, now)
                continue
            grown, seconds = max(0, end - before.end), now - before.at
            if (position.paused or position.thread in full) and not grown:
                seen[position] = before
                if before.rate is not None:
                    more = 0.0 if position.paused else before.rate * seconds
                    found[tp] = PartitionLoad(lag + more, before.rate)
                continue
            seen[position] = _Seen(end, position.cursor.fetched, now, grown / seconds)
            found[tp] = PartitionLoad(lag, grown / seconds)
        self._before = seen
        return found

    def _was_fetched(self, position: PartitionPosition) -> bool:
        before = self._before.get(position)
        return before is None or (before.end, before.fetched) != (position.cursor.log_end, position.cursor.fetched)


def _is_unread(position: PartitionPosition) -> bool:
    """Return whether fetched messages wait for their reader."""
    fetched, consumed = position.cursor.fetched, position.consumed
    return fetched is not None and consumed is not None and consumed < fetched


class LoadReports:
    """The reports of one group. ``publishes``: whether this member's strategy uses them."""

    def __init__(self, session: Session, group: str, consumer: ConsumerId, *, publishes: bool) -> None:
        self._session = session
        self._group = group
        self._path = paths.member_loads(group, consumer)
        self._publishes = publishes
        self._meter = LoadMeter()
        self._next = 0.0
        self._refused = False

    @property
    def due(self) -> float:
        """When the next report is due (monotonic seconds)."""
        return self._next if self._publishes else NEVER

    def publish(self, owned: Mapping[TopicPartition, PartitionPosition], deadline: Deadline) -> None:
        """Write this member's report, if it is due. Raises RegistryError."""
        now = monotonic()
        if not self._publishes or now < self._next:
            return
        self._next = now + PUBLISH_EVERY_S
        data = encode_loads(self._meter.measure(owned, now))
        try:
            self._session.ensure([paths.loads(self._group)], deadline)
            # made anew each time: a node of a former session would vanish with that
            self._session.delete(self._path, deadline)
            self._session.create(self._path, data, deadline, ephemeral=True)
        except NotPermittedError as error:
            if not self._refused:
                log.warning("the loads of our partitions are not published: %s", error)
            self._refused = True

    def all(
        self, members: Iterable[ConsumerId], owners: Assignment, deadline: Deadline
    ) -> dict[TopicPartition, PartitionLoad]:
        """Return what these members publish. Raises RegistryError.

        The report of a partition's owner counts, by ``owners``. Another member's report, which may be old, counts only
        until the owner has measured.
        """
        named = list(members)
        nodes = self._session.read([paths.member_loads(self._group, member) for member in named], deadline)
        others: dict[TopicPartition, PartitionLoad] = {}
        of_owners: dict[TopicPartition, PartitionLoad] = {}
        for member, node in zip(named, nodes, strict=True):
            for tp, load in () if node is None else decode_loads(node.data).items():
                owner = owners.get(tp)
                if owner is not None:
                    (of_owners if consumer_of(owner) == member else others)[tp] = load
        return {**others, **of_owners}
