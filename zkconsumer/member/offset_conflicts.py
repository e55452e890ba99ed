"""Handles starts that become known, seeks, and offsets that another client wrote for an owned partition.

The other client is an operator's tool, a Scala zombie, or an old-style commit through a broker. ``offset.conflict``
decides what the member does about it, also with offsets in Kafka.

Called by the group thread only. The original does not notice the other client's offset and overwrites it with the next
commit. So it undoes an operator's reset. If the owner dies before that commit, the next owner starts at a zombie's
stale offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from zkconsumer.errors import OffsetConflictError, RegistryError
from zkconsumer.member.events import (
    CommitsRefused,
    OffsetsMoved,
    SeekRequested,
    StartsFound,
    StartsResolved,
    StartsStored,
)
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import ABSENT, KnownOffset, Outcome

log = logging.getLogger(__name__)

OffsetEvent = StartsFound | StartsResolved | StartsStored | CommitsRefused | OffsetsMoved | SeekRequested
"""The events that this module deals with."""
MOST_TOLD = 8
"""Partitions that a line of the log names; an operator may rewind a whole group."""
_UNREADABLE = "their offset nodes cannot be read"

Gone = dict[PartitionPosition, str]
"""Positions that cannot stay ours, and why, in words for the log."""


class OffsetNodes(Protocol):
    """The offset nodes of owned partitions."""

    def reread(self, partitions: Sequence[TopicPartition], deadline: Deadline) -> Mapping[TopicPartition, KnownOffset]:
        """Read them again; unreadable ones are left out. Raises RegistryError."""


@dataclass(frozen=True, slots=True)
class RoundNeeded:
    """A rebalance is needed; ``gone`` positions cannot stay ours."""

    reason: str
    gone: Sequence[PartitionPosition] = ()


class OffsetConflicts:
    """Moves owned partitions to other places.

    Arguments: ``policy`` is ``offset.conflict``: ``adopt`` (read the offset again and go on there), ``overwrite`` (go
    on as before and commit that) or ``raise`` (hand out nothing more; the stream raises OffsetConflictError until
    somebody seeks). ``nodes`` are the offset nodes; None in a group that the brokers coordinate. ``limit`` in seconds
    for reading them.
    """

    def __init__(self, policy: str, owned: OwnedPartitions, nodes: OffsetNodes | None, limit: float) -> None:
        self._policy = policy
        self._owned = owned
        self._starts = owned.starts
        self._nodes = nodes
        self._limit = limit
        self._unread: list[PartitionPosition] = []
        self._stopped: Mapping[PartitionPosition, OffsetConflictError] = {}
        """Positions of which nothing is handed out until somebody seeks; replaced and never changed."""

    @property
    def trouble(self) -> str:
        """The partitions that wait for a seek, in words for the user; empty if none does. Any thread."""
        told = [str(error) for position, error in self._stopped.items() if self._owned.holds(position)]
        return "" if not told else told[0] + (f" (and {len(told) - 1} more)" if len(told) > 1 else "")

    def handle(self, event: OffsetEvent) -> RoundNeeded | None:
        """Deal with one event. Returns what the coordinator must do about it, if anything."""
        match event:
            case StartsFound(starts):
                self._starts.found(starts)
            case StartsResolved(starts):
                self._starts.resolved(starts)
            case StartsStored(starts, refused):
                doubtful = self._starts.stored(starts, refused)
                if doubtful and self._nodes is None:
                    self._starts.begin_at_committed(doubtful)
                elif doubtful:
                    return self._reread(lambda nodes, deadline: self._adopt(doubtful, nodes, deadline))
            case CommitsRefused(outcomes):
                return self._reread(lambda nodes, deadline: self._resolve(outcomes, nodes, deadline))
            case OffsetsMoved(offsets):
                self._resolve_elsewhere(offsets)
            case SeekRequested():
                self._owned.answer_seek(event)
        return None

    def retry(self) -> RoundNeeded | None:
        """Read again the offsets that could not be read before; ZooKeeper answers now."""
        positions = [p for p in self._unread if self._owned.holds(p) and p.consumed is None]
        self._unread.clear()
        return self._reread(lambda nodes, deadline: self._adopt(positions, nodes, deadline)) if positions else None

    def _reread(self, take_up: Callable[[OffsetNodes, Deadline], Gone]) -> RoundNeeded | None:
        """Take offsets from their nodes again.

        If ZooKeeper does not answer, that is tried again after the next round. A partition whose node cannot be read is
        given up, and claimed again in the next round.
        """
        assert self._nodes is not None
        try:
            gone = take_up(self._nodes, Deadline(self._limit))
        except RegistryError as e:
            return RoundNeeded(str(e))
        return RoundNeeded(", ".join(sorted({*gone.values()})), list(gone)) if gone else None

    def _resolve(self, outcomes: Mapping[PartitionPosition, Outcome], nodes: OffsetNodes, deadline: Deadline) -> Gone:
        """Deal with refused commits. Raises RegistryError."""
        ours = {position: outcome for position, outcome in outcomes.items() if self._owned.holds(position)}
        gone = {position: "their owner nodes are gone" for position, is_ in ours.items() if is_ is Outcome.NOT_OURS}
        moved = [position for position, outcome in ours.items() if outcome is Outcome.OFFSET_MOVED]
        if moved and self._policy == "adopt":
            gone |= self._adopt(moved, nodes, deadline)
        elif moved:
            gone |= self._keep(moved, nodes, deadline)
        return gone

    def _adopt(self, positions: Sequence[PartitionPosition], nodes: OffsetNodes, deadline: Deadline) -> Gone:
        """Keep the ownership but read the offset again. Raises RegistryError; nothing has changed then."""
        try:
            read = nodes.reread([position.tp for position in positions], deadline)
        except RegistryError:
            # the next commit finds the conflict of a begun position again; the other positions have no commit
            self._unread += [position for position in positions if position.consumed is None]
            raise
        known = {position: read[position.tp] for position in positions if position.tp in read}
        _tell({p: offset.offset for p, offset in known.items() if offset.version is not None})
        # if no offset stands any more, auto.offset.reset could skip messages that were not consumed
        deleted = {p for p, offset in known.items() if offset.offset is None and p.consumed is not None}
        for position in deleted:
            log.warning("%s: its offset node was deleted; it is made again at %d", position.tp, position.consumed)
            self._owned.commits.overwrite(position, ABSENT)
        self._owned.begin_anew({p: offset for p, offset in known.items() if p not in deleted})
        if deleted:
            self._owned.commits.hurry()
        return {position: _UNREADABLE for position in positions if position not in known}

    def _keep(self, positions: Sequence[PartitionPosition], nodes: OffsetNodes, deadline: Deadline) -> Gone:
        """Keep our place, or stop at it. Raises RegistryError."""
        read = nodes.reread([position.tp for position in positions], deadline)
        known = {position: read[position.tp] for position in positions if position.tp in read}
        # nothing was read of these: nothing to insist on
        self._owned.begin_anew({p: node for p, node in known.items() if self._place(p) is None})
        self._insist([(p, node, node.offset) for p, node in known.items() if self._place(p) is not None])
        return {position: _UNREADABLE for position in positions if position not in known}

    def _resolve_elsewhere(self, offsets: Mapping[PartitionPosition, int]) -> None:
        """Apply ``offset.conflict`` to offsets that another client wrote outside ZooKeeper."""
        ours = {position: theirs for position, theirs in offsets.items() if self._owned.holds(position)}
        if self._policy == "adopt":
            _tell(ours)
            for position, offset in ours.items():
                self._owned.seek(position.tp, offset)
            if self._owned.commits.reads_nodes:
                self._owned.commits.write_starts([self._owned.positions[position.tp] for position in ours])
            return
        self._insist([(position, None, theirs) for position, theirs in ours.items()])

    def _place(self, position: PartitionPosition) -> int | None:
        """Return where we are. A stopped position stays where it was: that somebody writes again decides nothing."""
        if position.consumed is None and position in self._stopped:
            return self._stopped[position].ours
        return position.consumed

    def _insist(self, conflicts: Sequence[tuple[PartitionPosition, KnownOffset | None, int | None]]) -> None:
        """Overwrite these offset nodes and offsets, or stop the partitions, by the policy."""
        for position, known, theirs in conflicts:
            if self._policy == "overwrite":
                log.warning("%s: somebody else wrote offset %s; it is overwritten with ours", position.tp, theirs)
                self._owned.commits.overwrite(position, known)
            else:
                error = OffsetConflictError(position.tp, self._place(position), theirs)
                log.error("%s", error)
                stopped = self._owned.stop_at(position, known, error)
                still = {p: told for p, told in self._stopped.items() if self._owned.holds(p)}
                self._stopped = {**still, stopped: error}
        if conflicts and self._policy == "overwrite":
            self._owned.commits.hurry()


def _tell(moves: Mapping[PartitionPosition, int | None]) -> None:
    told = [
        f"{p.tp} to {offset}" + ("" if p.consumed is None else f" (we were at {p.consumed})")
        for p, offset in moves.items()
    ]
    if told:
        more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        log.warning("somebody else set %s%s; going on there", ", ".join(told[:MOST_TOLD]), more)
