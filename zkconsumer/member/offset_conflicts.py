"""Somebody else wrote the offset of a partition that we own: an operator, a Scala zombie, an old-style commit through a
broker. What then happens is ``offset.conflict``, also where offsets are in Kafka.

Called by the group's thread only. The original notices nothing and writes over it with its next commit; so the hand of
an operator is undone, and a zombie's stale offset may be what stands when the owner dies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import OffsetConflictError, RegistryError
from zkconsumer.member.owned_partitions import Holdings
from zkconsumer.member.zookeeper.owner_nodes import Ownership
from zkconsumer.zookeeper.fenced_writes import ABSENT, KnownOffset, Outcome

log = logging.getLogger(__name__)


Gone = dict[PartitionPosition, str]
"""What cannot stay ours, and why, in words for the log."""
_UNREADABLE = "their offset nodes cannot be read"
MOST_TOLD = 8
"""Partitions that a line of the log names; an operator may rewind a whole group."""


def _tell(moves: Mapping[PartitionPosition, int | None]) -> None:
    told = [
        f"{p.tp} to {offset}" + ("" if p.consumed is None else f" (we were at {p.consumed})")
        for p, offset in moves.items()
    ]
    if told:
        more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        log.warning("somebody else set %s%s; going on there", ", ".join(told[:MOST_TOLD]), more)


class Conflicts:
    """Deals with refused commits.

    Arguments: ``way`` is ``adopt`` (read the offset again and go on from there), ``overwrite`` (go on where we are and
    commit that) or ``raise`` (hand out nothing more of the partition; its stream raises OffsetConflictError until
    somebody seeks).
    """

    def __init__(self, way: str, holdings: Holdings, ownership: Ownership) -> None:
        self._way = way
        self._holdings = holdings
        self._ownership = ownership
        self.count = 0
        """Partitions so far whose offsets somebody else wrote."""
        self._overwriting = False
        self._unread: list[PartitionPosition] = []
        self._stopped: Mapping[PartitionPosition, OffsetConflictError] = {}
        """Positions of which nothing is handed out until somebody seeks; replaced and never changed."""

    @property
    def trouble(self) -> str:
        """The partitions that wait for a seek, in words for the user; empty where none does. Any thread."""
        told = [str(error) for position, error in self._stopped.items() if self._holdings.holds(position)]
        return "" if not told else told[0] + (f" (and {len(told) - 1} more)" if len(told) > 1 else "")

    @property
    def settled_by_us(self) -> bool:
        """Whether something is to be committed over what somebody wrote; asking takes it back."""
        overwriting, self._overwriting = self._overwriting, False
        return overwriting

    def resolve(self, outcomes: Mapping[PartitionPosition, Outcome], deadline: Deadline) -> Gone:
        """Deal with refused commits; return the partitions that cannot stay ours. Raises RegistryError."""
        ours = {position: outcome for position, outcome in outcomes.items() if self._holdings.holds(position)}
        gone = {position: "their owner nodes are gone" for position, is_ in ours.items() if is_ is Outcome.NOT_OURS}
        moved = [position for position, outcome in ours.items() if outcome is Outcome.OFFSET_MOVED]
        if moved:
            self.count += len(moved)
            gone |= self.adopt(moved, deadline) if self._way == "adopt" else self._keep(moved, deadline)
        return gone

    def adopt_unread(self, deadline: Deadline) -> Gone:
        """Adopt what could not be read before. Raises RegistryError; it is then tried again."""
        positions = [p for p in self._unread if self._holdings.holds(p) and p.consumed is None]
        self._unread.clear()
        return self.adopt(positions, deadline) if positions else {}

    def adopt(self, positions: Sequence[PartitionPosition], deadline: Deadline) -> Gone:
        """Keep the ownership but take the offset anew from its node; returns what cannot stay ours. Raises
        RegistryError; nothing has changed then.
        """
        try:
            read = self._ownership.read_offsets([position.tp for position in positions], deadline)
        except RegistryError:
            # what has begun hears of it again at its next commit; of what has not nobody would
            self._unread += [position for position in positions if position.consumed is None]
            raise
        known = {position: read[position.tp] for position in positions if position.tp in read}
        _tell({p: offset.offset for p, offset in known.items() if offset.version is not None})
        # where nothing stands any more, going by auto.offset.reset could skip what was not consumed
        deleted = {p for p, offset in known.items() if offset.offset is None and p.consumed is not None}
        for position in deleted:
            log.warning("%s: its offset node was deleted; it is made again at %d", position.tp, position.consumed)
            self._holdings.insist(position, ABSENT)
        self._overwriting = bool(deleted)
        self._holdings.begin_anew({p: offset for p, offset in known.items() if p not in deleted})
        return {position: _UNREADABLE for position in positions if position not in known}

    def _keep(self, positions: Sequence[PartitionPosition], deadline: Deadline) -> Gone:
        gone = {}
        read = self._ownership.read_offsets([position.tp for position in positions], deadline)
        for position in positions:
            known = read.get(position.tp)
            ours, theirs = position.consumed, None if known is None else known.offset
            if ours is None:
                ours = self._stood(position)  # somebody wrote once more: that decides nothing either
            if known is None:
                gone[position] = _UNREADABLE
            elif ours is None:
                self._holdings.begin_anew({position: known})  # nothing was read of it: nothing to insist on
            else:
                self._overwrite_or_stop(position, known, ours, theirs)
        return gone

    def resolve_elsewhere(self, offsets: Mapping[PartitionPosition, int]) -> None:
        """Deal with offsets that somebody else wrote outside ZooKeeper, as they were read there."""
        ours = {position: theirs for position, theirs in offsets.items() if self._holdings.holds(position)}
        self.count += len(ours)
        if self._way == "adopt":
            _tell(ours)
            self._holdings.adopt_elsewhere({position.tp: theirs for position, theirs in ours.items()})
            return
        for position, theirs in ours.items():
            at = position.consumed if position.consumed is not None else self._stood(position)
            self._overwrite_or_stop(position, None, at, theirs)

    def _stood(self, position: PartitionPosition) -> int | None:
        return self._stopped[position].ours if position in self._stopped else None

    def _overwrite_or_stop(
        self, position: PartitionPosition, known: KnownOffset | None, ours: int | None, theirs: int | None
    ) -> None:
        if self._way == "overwrite":
            log.warning("%s: somebody else wrote offset %s; it is overwritten with ours", position.tp, theirs)
            self._holdings.insist(position, known)
            self._overwriting = True
        else:
            error = OffsetConflictError(position.tp, ours, theirs)
            log.error("%s", error)
            stopped = self._holdings.stop_at(position, known, error)
            still = {p: told for p, told in self._stopped.items() if self._holdings.holds(p)}
            self._stopped = {**still, stopped: error}
