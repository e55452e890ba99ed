"""Resolved starts on their way into the store.

Part of the committer and its thread's alone. Many go together, but one that cannot be stored must not keep the others
from it: calls become smaller where they fail, and what was tried in vain goes to the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ZkConsumerError
from zkconsumer.offsets.dual_store import DualStore, Failures
from zkconsumer.offsets.store import CommitRefusedError
from zkconsumer.zookeeper.fenced_writes import Outcome

log = logging.getLogger(__name__)

TOGETHER = 256
"""Starts that are stored by one call, at most: each call has the whole time limit, and commits wait for its end."""
MISSES = 8
"""Calls that tell nothing, until a pause."""

Stored = Callable[[Mapping[PartitionPosition, bool]], None]
"""Told, on the committer's thread, of each start once whether it is stored."""

Settle = Callable[[Mapping[PartitionPosition, int], Failures], None]
"""Told what was to be stored and what of it was not."""


class Storing:
    """The starts that are to be stored. Arguments: ``timeout`` in seconds for one call."""

    def __init__(self, store: DualStore, timeout: float, settle: Settle) -> None:
        self._store = store
        self._timeout = timeout
        self._settle = settle
        self._waiting: dict[PartitionPosition, tuple[int, Stored]] = {}
        self._why: dict[PartitionPosition, Exception] = {}
        self._together = TOGETHER

    def add(self, starts: Mapping[PartitionPosition, int], done: Stored) -> None:
        """These are to be stored, before all others."""
        fresh = {position: (offset, done) for position, offset in starts.items()}
        self._waiting = fresh | {position: asked for position, asked in self._waiting.items() if position not in fresh}
        self._tell_known()

    def forget(self, position: PartitionPosition) -> None:
        """It is no longer ours, or goes on elsewhere."""
        self._waiting.pop(position, None)
        self._why.pop(position, None)

    @property
    def denied(self) -> bool:
        """Whether something waits, and all of it only because ZooKeeper does not let us write it."""
        return bool(self._waiting) and all(isinstance(self._why.get(p), CommitRefusedError) for p in self._waiting)

    @property
    def trouble(self) -> str:
        """What waits, and why, in words for the user; empty where nothing does."""
        why = {position.tp: self._why[position] for position in self._waiting if position in self._why}
        if not why:
            return ""
        first = min(why)
        more = f" (and {len(self._waiting) - 1} more)" if len(self._waiting) > 1 else ""
        return f"{first} cannot be stored: {str(why[first]) or repr(why[first])}{more}"

    def _tell_known(self) -> None:
        """Of some it was stored before, or the user has committed another one meanwhile, and that is where to start."""
        known = {p: asked for p, asked in self._waiting.items() if p.committed is not None}
        self._tell({position: position.committed == offset for position, (offset, _) in known.items()})

    def _tell(self, stored: Mapping[PartitionPosition, bool]) -> None:
        """These wait no more."""
        told: dict[Stored, dict[PartitionPosition, bool]] = {}
        for position, is_stored in stored.items():
            told.setdefault(self._waiting[position][1], {})[position] = is_stored
            self.forget(position)
        for done, of_it in told.items():
            done(of_it)

    def try_all(self, only: Collection[PartitionPosition] | None = None) -> None:
        """One try for all that waits, or for ``only`` these."""
        self._tell_known()
        for position in [position for position in self._waiting if position.revoked]:
            self.forget(position)
        untried = [position for position in self._waiting if only is None or position in only]
        misses, behind, deadline = 0, False, Deadline(self._timeout)
        while untried and misses < MISSES and not (behind and deadline.expired):
            part, untried = untried[: self._together], untried[self._together :]
            answered = self._try(part)
            # whatever is the matter with what is left of these, others are tried before it next time
            left = [position for position in part if position in self._waiting]
            self._waiting.update((position, self._waiting.pop(position)) for position in left)
            behind = behind or bool(left)
            # one of them may be what it cannot store: then fewer suffer from it
            self._together = min(TOGETHER, 2 * self._together) if answered else max(1, len(part) // 2)
            misses += not answered

    def _try(self, part: Collection[PartitionPosition]) -> bool:
        """One call of the store. Returns whether it said anything of any of these."""
        wanted = {position.tp: self._waiting[position][0] for position in part}
        try:
            failures = self._store.commit(wanted, {}, Deadline(self._timeout), patient=False)
        except Exception as e:  # the thread that all commits need lives on, and what waits is tried again
            if not isinstance(e, ZkConsumerError) and repr(e) not in map(repr, self._why.values()):
                log.exception("storing starts failed unexpectedly")
            self._why.update(dict.fromkeys(part, e))
            return False
        self._settle({position: self._waiting[position][0] for position in part}, failures)
        decided: dict[PartitionPosition, bool] = {}
        answered = False
        for position in part:
            failure = failures.get(position.tp)
            answered = answered or failure is None or isinstance(failure, CommitRefusedError)
            if failure is None or self._decides(failure):
                # a refusal that the group's thread was told of is dealt with there
                decided[position] = failure is None
            else:
                self._why[position] = failure
        self._tell(decided)
        return answered

    def _decides(self, failure: Exception) -> bool:
        """Whether its node says something else than we thought. Where we may not write it nothing but time can help,
        unless there is another store to ask, which has it now.
        """
        denied = isinstance(failure, CommitRefusedError) and failure.outcome is Outcome.REFUSED
        return isinstance(failure, CommitRefusedError) and (not denied or self._store.keeps_refused)
