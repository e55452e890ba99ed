"""Decides when the committer commits, and in which slices. ``ownership.stored_offset`` decides which offset is due.

Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from zkconsumer.errors import OffsetCommitError
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.ownership.stored_offset import NEGATIVE, StoredOffset
from zkconsumer.runtime.deadline import Deadline

NEVER: Final = float("inf")
ACK_INTERVAL: Final = 1.0
ACK_LOOK: Final = 0.2
POINTER_LOOK: Final = 2.0
"""Seconds between two looks for pointers that somebody else wrote, for instance a replay."""
MANY_ACKS: Final = 1000
SLICE: Final = 20_000
"""Acknowledgements and pointers of a slice at first. Encoding them takes some 50 ms of a quiet core."""
SMALLEST: Final = 1_000
LARGEST: Final = 400_000
"""The bounds of a slice that was adapted to the machine."""
SLICE_TIME: Final = 1.0
"""Seconds that a slice should take, on a machine as busy as it is now."""
FORGOTTEN_AFTER: Final = 480.0
"""Seconds after which an unchanged offset is written again to a store that forgets it: ten minutes at most, with the
quarter of it that may pass until the next look.
"""


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """Times and rules of commits, from the configuration.

    ``interval`` in seconds between the timer's commits, None for none (``auto.commit.enable=false``); ``timeout`` in
    seconds for one of them; ``count_held`` counts a message as consumed when it is handed out (``consumed.on=return``);
    ``retry`` in seconds before a start that could not be read or stored is tried again; ``refresh`` in seconds after
    which an unchanged offset is written again (``offsets.refresh.interval.ms``), None for never; ``balanced`` says
    whether messages are finished in any order, and ``by_key`` whether their slots follow from their keys.
    """

    interval: float | None
    timeout: float
    count_held: bool = False
    retry: float = 1.0
    refresh: float | None = None
    balanced: Callable[[], bool] = lambda: False
    by_key: Callable[[], bool] = lambda: True


class AckSchedule:
    """The times of commits and looks of a member whose messages are finished in any order.

    Acknowledgements are written at least every :data:`ACK_INTERVAL`, and at the next look if there are
    :data:`MANY_ACKS`. Thus few are repeated after a crash, and a fast member does not write more often than a look.

    Arguments: ``interval`` in seconds between automatic commits, None for none.
    """

    def __init__(self, interval: float | None) -> None:
        self._interval = NEVER if interval is None else min(interval, ACK_INTERVAL)
        self._committed = self._looked = NEGATIVE
        self.look_at = NEVER
        """When to look for acknowledgements next."""

    def is_due(self, unnoted: int, now: float, *, dirty: bool, failing: bool) -> bool:
        """Return whether to commit now; the next look comes after :data:`ACK_LOOK`.

        Arguments: ``unnoted`` is the number of acknowledgements that are not written, ``dirty`` whether there is
        anything to write; ``failing`` whether the last commit failed.
        """
        self.look_at = now + ACK_LOOK
        if not dirty or self._interval == NEVER:
            return False
        due = now >= self._committed + self._interval or (unnoted >= MANY_ACKS and not failing)
        if due:
            self._committed = now
        return due

    def pointers_are_due(self, now: float) -> bool:
        """Return whether to look now for pointers that somebody else wrote."""
        due = now >= self._looked + POINTER_LOOK
        if due:
            self._looked = now
        return due


class CommitSchedule:
    """The times of the timer's next commit and of the next look for unchanged offsets.

    Arguments: ``interval`` and ``refresh`` as in :class:`CommitSettings`; ``forgets`` says that a store forgets
    unchanged offsets, so that they are written again after :data:`FORGOTTEN_AFTER` at the latest.
    """

    def __init__(self, interval: float | None, refresh: float | None, *, forgets: bool) -> None:
        self.interval = NEVER if interval is None else interval
        self.refreshes_all = refresh is not None
        """Whether unchanged offsets are written to all stores, not only to one that forgets."""
        self._refresh = min(NEVER if refresh is None else refresh, FORGOTTEN_AFTER if forgets else NEVER)
        self.commit_at = self.refresh_at = NEVER

    @property
    def due(self) -> float:
        """When there is something to do."""
        return min(self.commit_at, self.refresh_at)

    def start(self, now: float) -> None:
        """Begin: the first commit comes after one interval."""
        self.committed(now)
        self.refreshed(now)

    def committed(self, now: float) -> None:
        """Note the end of a timer's commit, done or failed."""
        self.commit_at = now + self.interval

    def refreshed(self, now: float) -> None:
        """Note the end of a look for unchanged offsets."""
        self.refresh_at = now + self._refresh / 4

    def unchanged_before(self, now: float) -> float:
        """Return the time before which an offset must have been written last to be written again."""
        return now - self._refresh


class Slices:
    """Splits partitions into slices, so that a committed slice counts even if the next slice fails.

    A slice takes about :data:`SLICE_TIME`. Larger ones would not end in time on a busy machine, and each one costs an
    exchange with ZooKeeper. Partitions without a ledger cost next to nothing, so they come together.
    """

    def __init__(self) -> None:
        self._most = SLICE

    def commit_each(
        self,
        ours: Iterable[StoredOffset],
        deadline: Deadline,
        write: Callable[[list[StoredOffset]], None],
        *,
        whole: bool = True,
    ) -> None:
        """Call ``write`` for each slice: the partition that was tried longest ago comes first.

        No slice begins after the deadline; that is an error if the ``whole`` is wanted. Raises the errors of slices as
        one OffsetCommitError; RegistryError at once.
        """
        failed: list[OffsetCommitError] = []
        left = sorted(ours, key=lambda one: (one.position.ledger is not None, one.tried))
        while left:
            some, cost, began = *self._next(left), monotonic()
            del left[: len(some)]
            for found in some:
                found.tried = began
            try:
                write(some)
            except OffsetCommitError as e:
                failed.append(e)
            finally:
                self._adapt(cost, monotonic() - began)
            if deadline.expired:
                break
        late = [str(found.position.tp) for found in left if whole and found.is_due(counting_held=False)]
        if late:
            failed.append(OffsetCommitError(f"not committed in time: {', '.join(sorted(late))}"))
        if failed:
            raise OffsetCommitError("; ".join(map(str, failed))) from failed[0].__cause__

    def _next(self, left: Sequence[StoredOffset]) -> tuple[list[StoredOffset], int]:
        """Return the next slice, of at least one partition, and its cost."""
        some, cost = [left[0]], left[0].cost
        for found in left[1:]:
            if cost + found.cost > self._most:
                break
            some.append(found)
            cost += found.cost
        return some, cost

    def _adapt(self, cost: int, seconds: float) -> None:
        if seconds > 2 * SLICE_TIME:
            self._most = max(SMALLEST, self._most // 2)
        elif seconds < SLICE_TIME / 2 and cost > self._most / 2:
            self._most = min(LARGEST, self._most * 2)


def is_moving(found: StoredOffset) -> bool:
    """Return whether a seek of the partition is under way. The committer's thread calls this."""
    found.seeks = [seek for seek in found.seeks if not seek.expired]
    return bool(found.seeks)


@dataclass(frozen=True, slots=True)
class GivenOffset:
    """An offset that a caller gave to be committed, as of its call.

    ``position`` is the caller's ownership of the partition, None if this member did not own it. ``committed`` is the
    committed offset of that position.
    """

    offset: int
    position: PartitionPosition | None
    committed: int | None

    @classmethod
    def as_of_call(cls, position: PartitionPosition | None, offset: int) -> GivenOffset:
        """Return the offset as a call gives it at this moment."""
        return cls(offset, position, None if position is None else position.stored.committed)

    def refusal(self, found: StoredOffset | None) -> str:
        """Return why this is not written any more, in words; empty if it is. ``found`` is our ownership now."""
        if self.position is None:
            return "" if found is None else "this member has claimed the partition since the call"
        if found is None or found.position is not self.position:
            return "the partition was released, or a seek moved it, since the call"
        return "a seek is under way" if is_moving(found) else ""

    def overtaken_by(self, committed: int | None) -> bool:
        """Return whether another commit has written a later offset since the call, which ours would undo."""
        if committed is None or committed == self.committed:
            return False
        return (self.committed is None or self.committed <= self.offset) and self.offset < committed
