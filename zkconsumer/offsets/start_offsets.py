"""Where partitions start: asked of the stores, or, where nothing is stored, stored there before anything is handed out.

Part of the committer and its thread's alone. A store that does not answer is asked again, all partitions together, for
as long as they are ours: an offset is never guessed. The original takes the error of a partition for "no offset", and
waits for a coordinator inside the rebalance without an end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from zkconsumer.core.backoff import backoff
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.dual_store import OwnedOffsets, may_pass
from zkconsumer.offsets.start_writer import Settle, Stored, Storing

log = logging.getLogger(__name__)

NEVER = float("inf")
LONGEST_RETRY = 30.0
"""Seconds between two tries of a store that refuses us, at most."""

Barred = Callable[[Exception | None], None]
"""Told, on the committer's thread, why nothing can start; None: it can again."""

Found = Callable[[Mapping[PartitionPosition, int | None]], None]
"""Told, on the committer's thread, where partitions start; None: nothing is stored."""


class Starts:
    """The partitions that wait for their start.

    Arguments: ``retry`` in seconds between two tries, ``timeout`` in seconds for one; ``barred``: see
    :class:`Committer`; ``unlevel`` takes the partitions whose stores do not agree.
    """

    def __init__(
        self,
        store: OwnedOffsets,
        *,
        timeout: float,
        retry: float,
        barred: Barred,
        settle: Settle,
        unlevel: set[TopicPartition],
    ) -> None:
        self._store = store
        self._timeout = timeout
        self._retry = retry
        self._barred = barred
        self._unlevel = unlevel
        self._finding: dict[PartitionPosition, Found] = {}
        self._storing = Storing(store, timeout, settle)
        self._denied = False
        self._bar: Exception | None = None
        self._failures = 0
        self.due = NEVER
        """When the next try is due (monotonic seconds)."""
        self.trouble = ""

    def find(self, positions: Sequence[PartitionPosition], found: Found, owned: int) -> None:
        """Look these up. ``owned``: how many partitions are ours."""
        self._finding.update((position, found) for position in positions)
        self._try_unless_waiting(owned)

    def store(self, starts: Mapping[PartitionPosition, int], done: Stored, owned: int) -> None:
        """Store starts that were resolved otherwise."""
        self._storing.add(starts, done)
        self._try_unless_waiting(owned, starts)

    def forget(self, position: PartitionPosition) -> None:
        """It is no longer ours, or goes on elsewhere."""
        self._finding.pop(position, None)
        self._storing.forget(position)

    def _try_unless_waiting(self, owned: int, starts: Collection[PartitionPosition] = ()) -> None:
        """A store that did not answer is not asked once for each partition: the next try is for all."""
        if self.due == NEVER:
            self.try_all(owned)
        elif self._denied:  # it answers, and who asks now has nothing to do with what waits
            self._try(owned, starts)
            if not self._denied:  # the long pause is over with what it was for
                self.due = min(self.due, monotonic() + self._retry) if self.trouble else NEVER

    def try_all(self, owned: int) -> None:
        """One try for everything that waits; the next one is scheduled where it is needed."""
        bar = self._try(owned)
        self._failures = self._failures + 1 if self._denied or bar is not None else 0
        # only an operator can let us in, so it is tried ever more seldom
        pause = backoff(self._failures + 1, self._retry, max(self._retry, LONGEST_RETRY))
        self.due = monotonic() + pause if self.trouble else NEVER

    def _try(self, owned: int, only: Collection[PartitionPosition] | None = None) -> Exception | None:
        """One try, of starts to be stored for ``only`` these. Returns what keeps us out of the store, if anything."""
        bar: Exception | None = None
        unfound = ""
        try:
            self._try_finding()
        except Exception as e:  # noqa: BLE001 (whatever a store raises: the offset is not known, and never guessed)
            unfound = str(e) or repr(e)
            bar = None if may_pass(e) else e
        self._storing.try_all(only)
        self._denied = self._storing.denied and not unfound
        trouble = "; ".join(filter(None, (unfound, self._storing.trouble)))
        if trouble and trouble != self.trouble:
            log.warning("partitions wait for their start offsets: %s", trouble)
        self.trouble = trouble
        barring = bar if len(self._finding) >= owned else None  # else something flows
        if (barring is None) != (self._bar is None):
            self._barred(barring)
        self._bar = barring
        return bar

    def _try_finding(self) -> None:
        finding = {position: found for position, found in self._finding.items() if not position.revoked}
        self._finding = finding
        if not finding:
            return
        starts = self._store.starts([position.tp for position in finding], Deadline(self._timeout))
        self._finding = {}
        told: dict[Found, dict[PartitionPosition, int | None]] = {}
        for position, found in finding.items():
            start = starts[position.tp]
            if not start.stores_agree:
                self._unlevel.add(position.tp)  # the next commit writes it to all stores
            told.setdefault(found, {})[position] = start.offset
        for found, offsets in told.items():
            found(offsets)
