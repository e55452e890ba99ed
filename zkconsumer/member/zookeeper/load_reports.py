"""The loads of partitions, which members publish for the planner of ``lag-aware``.

Called by the group thread only, within a round. Each member writes one ephemeral node now and then, and the planner
reads them all as rarely. Nobody watches them, so no report makes a round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from time import monotonic

from zkconsumer.core.load_report import LoadMeter, PartitionLoad, decode_loads, encode_loads
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.placement_plan import consumer_of
from zkconsumer.errors import NotPermittedError
from zkconsumer.member.zookeeper.round_schedule import NEVER
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

PUBLISH_EVERY_S = 30.0
"""Seconds between two reports of a member."""


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
