"""Finds the start offsets of claimed partitions, and stores resolved ones before anything is handed out.

Part of the committer; only its thread comes here. A store that does not answer is asked again, for all partitions
together and for as long as they are ours: an offset is never guessed. The original takes the error of a partition for
"no offset", and waits for a coordinator inside the rebalance without an end. ``core/stored_start`` has the rule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.commit_schedule import NEVER
from zkconsumer.offsets.member_store import MemberStore, may_pass
from zkconsumer.offsets.store import CommitRefusedError, Failures
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline, backoff
from zkconsumer.zookeeper.ownership_transactions import Outcome

log = logging.getLogger(__name__)

LONGEST_RETRY = 30.0
"""Seconds between two tries of a store that refuses us, at most."""
TOGETHER = 256
"""Starts that one call stores, at most: each call has the whole time limit, and commits wait for its end."""
MISSES = 8
"""Calls that tell nothing, until a pause."""

Barred = Callable[[Exception | None], None]
"""Told, on the committer's thread, why no partition can start; None: they can again."""
Found = Callable[[Mapping[PartitionPosition, int | None]], None]
"""Told, on the committer's thread, where partitions start; None: nothing is stored."""
Stored = Callable[[Mapping[PartitionPosition, bool]], None]
"""Told, on the committer's thread, of each start once whether it is stored."""
Settle = Callable[[Mapping[PartitionPosition, int], Failures], None]
"""Told which starts were to be stored, and which of them failed."""


class StartOffsets:
    """The partitions that wait for their start.

    Arguments: ``retry`` in seconds between two tries, ``timeout`` in seconds for one; ``barred`` as for the committer;
    ``settle`` is told of stored starts; ``stores_differ`` of partitions whose stores do not agree; ``by_key`` says
    whether slots follow from keys.
    """

    def __init__(
        self,
        store: MemberStore,
        *,
        timeout: float,
        retry: float,
        barred: Barred,
        settle: Settle,
        stores_differ: Callable[[TopicPartition], None],
        by_key: Callable[[], bool] = lambda: True,
    ) -> None:
        self._by_key = by_key
        self._store = store
        self._timeout = timeout
        self.retry = retry
        self._barred = barred
        self._differ = stores_differ
        self._finding: dict[PartitionPosition, Found] = {}
        self._writer = StartWriter(store, timeout, settle)
        self._denied = False
        self._bar: Exception | None = None
        self._failures = 0
        self.due = NEVER
        """When the next try is due (monotonic seconds)."""
        self.trouble = ""

    def find(self, positions: Sequence[PartitionPosition], found: Found, owned: int) -> None:
        """Look up the starts of these positions. ``owned`` is the number of all owned partitions."""
        self._finding.update((position, found) for position in positions)
        self._try_unless_waiting(owned)

    def store(self, starts: Mapping[PartitionPosition, int], done: Stored, owned: int) -> None:
        """Store starts that ``auto.offset.reset`` or the user resolved."""
        self._writer.add(starts, done)
        self._try_unless_waiting(owned, starts)

    def forget(self, position: PartitionPosition) -> None:
        """Forget a position that has ended or has a successor."""
        self._finding.pop(position, None)
        self._writer.forget(position)

    def _try_unless_waiting(self, owned: int, starts: Collection[PartitionPosition] = ()) -> None:
        """Try now, unless the store did not answer: then the next try is for all partitions together."""
        if self.due == NEVER:
            self.try_all(owned)
        elif self._denied:  # ZooKeeper answers; these starts need not wait for others
            self._try(owned, starts)
            if not self._denied:  # the reason for the long pause is over
                self.due = min(self.due, monotonic() + self.retry) if self.trouble else NEVER

    def try_all(self, owned: int) -> None:
        """Try once for all partitions that wait, and schedule the next try if one is needed."""
        bar = self._try(owned)
        self._failures = self._failures + 1 if self._denied or bar is not None else 0
        # only an operator can let us in: try ever more seldom
        pause = backoff(self._failures + 1, self.retry, max(self.retry, LONGEST_RETRY))
        self.due = monotonic() + pause if self.trouble else NEVER

    def _try(self, owned: int, only: Collection[PartitionPosition] | None = None) -> Exception | None:
        """Try once; store ``only`` these starts, if given. Returns the error that keeps us out of the store, if any."""
        bar: Exception | None = None
        unfound = ""
        try:
            self._try_finding()
        except Exception as e:  # noqa: BLE001 (whatever a store raises: the offset is not known, and never guessed)
            unfound = str(e) or repr(e)
            bar = None if may_pass(e) else e
        self._writer.try_all(only)
        self._denied = self._writer.denied and not unfound
        trouble = "; ".join(filter(None, (unfound, self._writer.trouble)))
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
            # before the start itself: whoever begins there looks at it
            note = self._store.start_note(position.tp, start.offset)
            position.ledger_start.note = None if note is None else note.for_slots(by_key=self._by_key())
            if not start.stores_agree:
                self._differ(position.tp)  # the next commit writes it to all stores
            told.setdefault(found, {})[position] = start.offset
        for found, offsets in told.items():
            found(offsets)


class StartWriter:
    """The starts that are to be stored.

    Many go together, but a start that cannot be stored must not keep the others back. Calls become smaller after a
    failure, and failed starts go to the end.

    Arguments: ``timeout`` in seconds for one call.
    """

    def __init__(self, store: MemberStore, timeout: float, settle: Settle) -> None:
        self._store = store
        self._timeout = timeout
        self._settle = settle
        self._waiting: dict[PartitionPosition, tuple[int, Stored]] = {}
        self._why: dict[PartitionPosition, Exception] = {}
        self._together = TOGETHER

    def add(self, starts: Mapping[PartitionPosition, int], done: Stored) -> None:
        """Store these, before all others."""
        fresh = {position: (offset, done) for position, offset in starts.items()}
        self._waiting = fresh | {position: asked for position, asked in self._waiting.items() if position not in fresh}
        self._tell_known()

    def forget(self, position: PartitionPosition) -> None:
        """Forget a position that has ended or has a successor."""
        self._waiting.pop(position, None)
        self._why.pop(position, None)

    @property
    def denied(self) -> bool:
        """Whether starts wait, and all only because ZooKeeper forbids the write."""
        return bool(self._waiting) and all(isinstance(self._why.get(p), CommitRefusedError) for p in self._waiting)

    @property
    def trouble(self) -> str:
        """Why starts wait, in words for the user; empty if none do."""
        why = {position.tp: self._why[position] for position in self._waiting if position in self._why}
        if not why:
            return ""
        first = min(why)
        more = f" (and {len(self._waiting) - 1} more)" if len(self._waiting) > 1 else ""
        return f"{first} cannot be stored: {str(why[first]) or repr(why[first])}{more}"

    def _tell_known(self) -> None:
        """Tell of partitions that have an offset by now: a start stored before, or a commit of the user."""
        known = {p: asked for p, asked in self._waiting.items() if p.stored.committed is not None}
        self._tell({position: position.stored.committed == offset for position, (offset, _) in known.items()})

    def _tell(self, stored: Mapping[PartitionPosition, bool]) -> None:
        """Tell the callers whether these starts are stored, and forget the starts."""
        told: dict[Stored, dict[PartitionPosition, bool]] = {}
        for position, is_stored in stored.items():
            told.setdefault(self._waiting[position][1], {})[position] = is_stored
            self.forget(position)
        for done, of_it in told.items():
            done(of_it)

    def try_all(self, only: Collection[PartitionPosition] | None = None) -> None:
        """Try once for all starts that wait, or for ``only`` these."""
        self._tell_known()
        for position in [position for position in self._waiting if position.revoked]:
            self.forget(position)
        untried = [position for position in self._waiting if only is None or position in only]
        misses, behind, deadline = 0, False, Deadline(self._timeout)
        while untried and misses < MISSES and not (behind and deadline.expired):
            part, untried = untried[: self._together], untried[self._together :]
            answered = self._try(part)
            # whatever is wrong with a failed start, the other starts are tried first next time
            left = [position for position in part if position in self._waiting]
            self._waiting.update((position, self._waiting.pop(position)) for position in left)
            behind = behind or bool(left)
            # the store may be unable to store one start: fewer starts in a call then suffer
            self._together = min(TOGETHER, 2 * self._together) if answered else max(1, len(part) // 2)
            misses += not answered

    def _try(self, part: Collection[PartitionPosition]) -> bool:
        """Call the store once. Returns whether it decided about any of these."""
        wanted = {position.tp: self._waiting[position][0] for position in part}
        try:
            failures = self._store.commit(wanted, {}, Deadline(self._timeout), patient=False)
        except Exception as e:  # the thread that all commits need must live on; the starts are tried again
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
                # the group's thread was told of the refusal, and deals with it
                decided[position] = failure is None
            else:
                self._why[position] = failure
        self._tell(decided)
        return answered

    def _decides(self, failure: Exception) -> bool:
        """Return whether the offset node is not as we thought, so that the start must be read again.

        If a right is missing, only another try can help, unless another store has the start already.
        """
        denied = isinstance(failure, CommitRefusedError) and failure.outcome is Outcome.REFUSED
        return isinstance(failure, CommitRefusedError) and (not denied or self._store.keeps_refused)
