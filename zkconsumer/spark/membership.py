"""A stream's place in its group: what it may read, and where it writes how far it came.

``Bystander`` is ``membership=none``: everything is read, nothing is owned, offsets are written without a fence, but for
the brokers' coordinator, which takes them only while the group has no members. The default, a live member of the group,
is in ``member``. One thread calls, the main one of the stream's driver process.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Final, Protocol

from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.spark.offset_ranges import Progress
from zkconsumer.spark.zookeeper_cluster import Cluster, LiveMembersError

log = logging.getLogger(__name__)

_PAUSE: Final = 1.0
"""Seconds between two looks at the group's members, and after a commit that they stood in the way of."""


class Membership(Protocol):
    """How a query stands to its group."""

    def join(self) -> None:
        """Before anything is read. Raises ConfigException, RegistryError, ConsumerRebalanceFailedException."""

    def settle(self, done: Progress) -> None:
        """Batches up to here are finished: write it to the group. Raises OffsetCommitError, RegistryError."""

    def claim(self, partitions: Collection[TopicPartition], *, patient: bool) -> Collection[TopicPartition]:
        """Those of the existing partitions that the query may read in its next batch; ``patient`` waits for all of its
        share.
        """

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The group's offsets of claimed partitions that have one and where it counts: not where the query has read
        all along.
        """

    def begin(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Partitions without an offset begin here. Returns those that may be read now."""

    def set_back(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Set the group's offsets of these back, since their logs end before them; no batch of before is finished for
        them after this. Returns those that may be read from there now.
        """

    def made_anew(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return those of claimed partitions whose topics are younger than the group's offsets of them."""

    def reserve(self, progress: Progress) -> None:
        """The next batch is planned; empty where there is none."""

    def repeat(self, progress: Progress) -> None:
        """A batch is repeated from the checkpoint."""

    def leave(self) -> None:
        """The query ends."""


class Bystander:
    """``membership=none``: reads all partitions beside the group, and moves the group's offsets.

    Arguments: ``allow_live_members`` goes on although others consume in the same group, who then get the same messages
    and write the same offsets. A group that the brokers coordinate has those of its members alone, as long as there are
    any; ours follow with the first batch after that.
    """

    def __init__(self, cluster: Cluster, group: str, *, allow_live_members: bool) -> None:
        self._cluster = cluster
        self._group = group
        self._allowed = allow_live_members
        self._warned = False
        self._look_at = self._try_at = 0.0
        self._trouble = ""
        self._settled: dict[TopicPartition, int] = {}
        self._asked: set[TopicPartition] = set()

    def join(self) -> None:
        """Refuses a group with live members."""
        members = self._cluster.live_members(self._group)
        if members and not self._allowed:
            raise ConfigException(
                "membership",
                f"'none': group {self._group!r} has live members ({', '.join(members[:3])}), which would consume the "
                "same messages and write the same offsets; use another group.id, or say allowLiveMembers=true",
            )
        self._warned = bool(members)

    def claim(self, partitions: Collection[TopicPartition], *, patient: bool) -> Collection[TopicPartition]:
        """All of them. Somebody who joins while the query runs is warned of, once; looked for once a second."""
        if self._warned or monotonic() < self._look_at:
            return partitions
        self._look_at = monotonic() + _PAUSE
        if members := self._cluster.live_members(self._group):
            self._warned = True
            log.warning(
                "%s joined group %s while a query with membership=none reads it: messages are consumed twice",
                ", ".join(members[:3]),
                self._group,
            )
        return partitions

    def settle(self, done: Progress) -> None:
        """Writes what changed since the last time; never backwards."""
        news = {tp: span.end for tp, span in done.items() if self._settled.get(tp) != span.end}
        if not news or monotonic() < self._try_at:
            return
        try:
            self._cluster.commit(self._group, news)
        except LiveMembersError as error:
            self._refused(error)
        else:
            self._settled.update(news)
            self._trouble = ""

    def _refused(self, error: LiveMembersError) -> None:
        """Say so once, and leave the coordinator alone for a while: an idle query has hundreds of triggers a second."""
        self._try_at = monotonic() + _PAUSE
        if not self._trouble:
            log.warning("the query goes on; the group's offsets are its members' for now: %s", error)
        self._trouble = str(error)

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The group's offsets when a partition is read for the first time; after that the query's own place counts."""
        new = [tp for tp in partitions if tp not in self._asked]
        self._asked.update(new)
        return self._cluster.committed(self._group, new) if new else {}

    def begin(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Nothing has to be stored first."""
        return starts.keys()

    def set_back(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Writes where these begin, or a query that starts later would go on at the old place."""
        try:
            self._cluster.set_back(self._group, starts)
        except LiveMembersError as error:
            self._refused(error)
        self._settled.update(starts)
        return starts.keys()

    def made_anew(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """None: nothing is claimed, and so nothing compared."""
        return ()

    def reserve(self, progress: Progress) -> None:
        """Nobody else may read them in any case."""

    def repeat(self, progress: Progress) -> None:
        """They are read in any case."""

    def leave(self) -> None:
        """There is nothing to give back."""
