"""Where partitions of ours go on: what the committer, the brokers and the user say of it, while nothing moves.

Called by the group's thread only.
"""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryError
from zkconsumer.member.events import (
    CommitsRefused,
    OffsetsMoved,
    SeekRequested,
    StartsFound,
    StartsResolved,
    StartsStored,
)
from zkconsumer.member.offset_conflicts import Conflicts, Gone
from zkconsumer.member.owned_partitions import Holdings, Offsets

Told = StartsFound | StartsResolved | StartsStored | CommitsRefused | OffsetsMoved | SeekRequested
"""The events that this module deals with."""


def answer_seek(request: SeekRequested, holdings: Holdings) -> None:
    """Go on elsewhere. The request is told what of it is not ours, or what went wrong."""
    try:
        strange = {tp for tp, offset in request.offsets.items() if not holdings.seek(tp, offset)}
    except Exception as e:  # noqa: BLE001 (whoever waits for the answer raises it)
        request.done.set_exception(e)
    else:
        request.done.set_result(frozenset(strange))


class Repositioning:
    """Deals with them.

    Arguments: ``limit`` in seconds for reading offsets anew; ``demand`` asks for a round, with the reason; ``gone`` is
    told of what cannot stay ours.
    """

    def __init__(
        self,
        holdings: Holdings,
        conflicts: Conflicts,
        offsets: Offsets,
        *,
        limit: float,
        demand: Callable[[str], None],
        gone: Callable[[Gone], None],
    ) -> None:
        self._holdings = holdings
        self._conflicts = conflicts
        self._offsets = offsets
        self._limit = limit
        self._demand = demand
        self._gone = gone

    def handle(self, event: Told) -> None:
        """Something was told of an offset."""
        match event:
            case StartsFound(starts):
                self._holdings.starts_found(starts)
            case StartsResolved(starts):
                self._holdings.starts_resolved(starts)
            case StartsStored(starts, refused):
                doubtful = self._holdings.starts_stored(starts, refused)
                if doubtful:
                    self._take_up(lambda deadline: self._conflicts.adopt(doubtful, deadline))
            case CommitsRefused(outcomes):
                self._take_up(lambda deadline: self._conflicts.resolve(outcomes, deadline))
            case OffsetsMoved(offsets):
                self._conflicts.resolve_elsewhere(offsets)
                self._hurry_if_ours()
            case SeekRequested():
                self.seek(event)

    def seek(self, request: SeekRequested) -> None:
        """Go on elsewhere, and tell what of it is not ours."""
        answer_seek(request, self._holdings)

    def retry(self) -> None:
        """ZooKeeper answers: take up the offsets that could not be read before."""
        self._take_up(self._conflicts.adopt_unread)

    def _take_up(self, take_up: Callable[[Deadline], Gone]) -> None:
        """Take offsets anew from their nodes. Where ZooKeeper does not answer, that is tried again after the round that
        this demands. A partition whose node cannot be read is given up, and claimed anew in the next round.
        """
        try:
            gone = take_up(Deadline(self._limit))
        except RegistryError as e:
            self._demand(str(e))
        else:
            if gone:
                self._gone(gone)
        self._hurry_if_ours()

    def _hurry_if_ours(self) -> None:
        if self._conflicts.settled_by_us:
            self._offsets.hurry()
