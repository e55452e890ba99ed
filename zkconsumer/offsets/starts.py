"""Where partitions start: asked of the stores, or, where nothing is stored, stored there before anything is handed out.

Part of the committer and its thread's alone. A store that does not answer is asked again, all partitions together, for
as long as they are ours: an offset is never guessed. The original takes the error of a partition for "no offset", and
waits for a coordinator inside the rebalance without an end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from zkconsumer.core.backoff import backoff
from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.owned import Failures, OwnedOffsets, may_pass
from zkconsumer.offsets.store import CommitRefusedError
from zkconsumer.registry.fenced import Outcome

log = logging.getLogger(__name__)

NEVER = float("inf")
LONGEST_RETRY = 30.0
"""Seconds between two tries of a store that refuses us, at most."""
TOGETHER = 256
"""Starts that are stored by one call, at most: each call has the whole time limit, and commits wait for its end."""
MISSES = 8
"""Calls in which nothing could be stored, as long as all of them together are within one time limit, until a pause."""

Barred = Callable[[Exception | None], None]
"""Told, on the committer's thread, why nothing can start; None: it can again."""

Found = Callable[[Mapping[PartitionPosition, int | None]], None]
"""Told, on the committer's thread, where partitions start; None: nothing is stored."""

Stored = Callable[[Mapping[PartitionPosition, bool]], None]
"""Told, on the committer's thread, of each start once whether it is stored."""

Settle = Callable[[Mapping[PartitionPosition, int], Failures], None]
"""Told what was to be stored and what of it was not."""


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
        self._settle = settle
        self._unlevel = unlevel
        self._finding: dict[PartitionPosition, Found] = {}
        self._storing: dict[PartitionPosition, tuple[int, Stored]] = {}
        self._together = TOGETHER
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
        # of some it was stored before, or the user has committed another one meanwhile, and that is where to start
        known = {p: p.committed == offset for p, offset in starts.items() if p.committed is not None}
        if known:
            done(known)
        self._storing.update((p, (offset, done)) for p, offset in starts.items() if p not in known)
        if len(known) < len(starts):
            self._try_unless_waiting(owned)

    def forget(self, position: PartitionPosition) -> None:
        """It is no longer ours, or goes on elsewhere."""
        self._finding.pop(position, None)
        self._storing.pop(position, None)

    def _try_unless_waiting(self, owned: int) -> None:
        """A store that did not answer is not asked once for each partition: the next try is for all."""
        if self.due == NEVER:
            self.try_all(owned)

    def try_all(self, owned: int) -> None:
        """One try for everything that waits; the next one is scheduled where it is needed."""
        bar: Exception | None = None
        trouble = ""
        try:
            self._try_finding()
        except Exception as e:  # noqa: BLE001 (whatever a store raises: the offset is not known, and never guessed)
            trouble = str(e) or repr(e)
            bar = None if may_pass(e) else e
        trouble = "; ".join(filter(None, (trouble, self._try_storing())))
        if trouble and trouble != self.trouble:
            log.warning("partitions wait for their start offsets: %s", trouble)
        self.trouble = trouble
        self._failures = self._failures + 1 if bar is not None else 0
        # only an operator can let us in, so it is tried ever more seldom
        pause = backoff(self._failures + 1, self._retry, max(self._retry, LONGEST_RETRY))
        self.due = monotonic() + pause if trouble else NEVER
        if len(self._finding) < owned:
            bar = None  # something flows
        if (bar is None) != (self._bar is None):
            self._barred(bar)
        self._bar = bar

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
            if not start.level:
                self._unlevel.add(position.tp)  # the next commit writes it to all stores
            told.setdefault(found, {})[position] = start.offset
        for found, offsets in told.items():
            found(offsets)

    def _try_storing(self) -> str:
        self._storing = {position: asked for position, asked in self._storing.items() if not position.revoked}
        untried = list(self._storing)
        trouble, misses, deadline = "", 0, Deadline(self._timeout)
        while untried and misses < MISSES and not (misses and deadline.expired):
            part, untried = untried[: self._together], untried[self._together :]
            answered = False
            try:
                answered, said = self._try_part({position: self._storing[position] for position in part})
            except RegistryError as e:
                said = f"they cannot be stored: {e}"
            except Exception as e:  # the thread that all commits need lives on, and what waits is tried again
                said = f"they cannot be stored: {e!r}"
                if said not in (self.trouble, trouble):
                    log.exception("storing starts failed unexpectedly")
            trouble = said or trouble
            # whatever is the matter with what is left of these, others are tried before it next time
            left = [position for position in part if position in self._storing]
            self._storing.update((position, self._storing.pop(position)) for position in left)
            # one of them may be what it cannot store: then fewer suffer from it
            self._together = min(TOGETHER, 2 * self._together) if answered else max(1, len(part) // 2)
            misses += not answered
        return trouble

    def _try_part(self, storing: Mapping[PartitionPosition, tuple[int, Stored]]) -> tuple[bool, str]:
        """One call of the store; what is not decided stays. Returns whether it said anything of any of these, and why
        something must be tried again. Raises RegistryError.
        """
        wanted = {position.tp: offset for position, (offset, _) in storing.items()}
        failures = self._store.commit(wanted, {}, Deadline(self._timeout), patient=False)
        self._settle({position: offset for position, (offset, _) in storing.items()}, failures)
        answered, why = False, ""
        told: dict[Stored, dict[PartitionPosition, bool]] = {}
        for position, (_, done) in storing.items():
            failure = failures.get(position.tp)
            answered = answered or failure is None or isinstance(failure, CommitRefusedError)
            if failure is not None and not _decides(failure):
                why = f"{position.tp} cannot be stored: {failure}"
                continue
            del self._storing[position]
            # a refusal that the group's thread was told of is dealt with there
            told.setdefault(done, {})[position] = failure is None
        for done, stored in told.items():
            done(stored)
        return answered, why


def _decides(failure: Exception) -> bool:
    """Whether the node says something else than we thought. Where we may not write it, nothing but time can help."""
    return isinstance(failure, CommitRefusedError) and failure.outcome is not Outcome.REFUSED
