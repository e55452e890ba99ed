"""Burrow's rules: from a partition's last commits and log ends to OK, WARN, STOP, STALL or REWIND. Pure; any thread.

Mirrors ``core/internal/evaluator/caching.go`` and ``core/internal/storage/inmemory.go`` of Burrow: the same windows,
the same order of the rules, the same limits. A commit is a new transaction on an offset node. Its time is the node's
``mtime``, so that a commit has the same time for every reader.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise


class BurrowStatus(enum.IntEnum):
    """The state of a partition or of a group; a larger number is worse. Only a group is NOTFOUND or ERR."""

    NOTFOUND = 0
    OK = 1
    WARN = 2
    ERR = 3
    STOP = 4
    STALL = 5
    REWIND = 6


# Burrow's settings with its defaults. The others, for windows that are not full and lags that do not count, are 0.
INTERVALS = 10
"""The length of a window in commits."""
EXPIRE_GROUP = 604_800
"""A group whose last commit is older than so many seconds is not found."""
OFFSET_REFRESH = 30
"""The least time in seconds between two log ends that are kept."""


@dataclass(frozen=True, slots=True)
class ObservedCommit:
    """One commit. ``time`` and ``observed`` are milliseconds since 1970; ``lag`` is None if the log's end was unknown.

    ``order`` is the transaction that wrote the offset node: it tells a new commit from one that was seen before.
    """

    offset: int
    time: int
    observed: int
    lag: int | None
    order: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log and when it was read, in milliseconds since 1970."""

    end: int
    time: int


class CommitWindow:
    """The last commits of a partition and the last ends of its log, each oldest first. Immutable.

    It keeps plain numbers. A server has tens of thousands of windows, and an object for each commit takes five times
    the memory.
    """

    __slots__ = ("_commits", "_ends")

    def __init__(self, commits: Sequence[ObservedCommit] = (), ends: Sequence[LogEnd] = ()) -> None:
        self._commits = array("q", chain.from_iterable(map(_commit_numbers, commits)))
        self._ends = array("q", chain.from_iterable((_bounded(one.end), _bounded(one.time)) for one in ends))

    @classmethod
    def _of(cls, commits: array[int], ends: array[int]) -> CommitWindow:
        made = cls.__new__(cls)
        made._commits, made._ends = commits, ends
        return made

    @property
    def commits(self) -> tuple[ObservedCommit, ...]:
        """The commits."""
        return tuple(map(self._commit, range(len(self))))

    @property
    def ends(self) -> tuple[LogEnd, ...]:
        """The ends of the log."""
        numbers = iter(self._ends)
        return tuple(LogEnd(end, time) for end, time in zip(numbers, numbers, strict=True))

    @property
    def last(self) -> ObservedCommit | None:
        """The last commit."""
        return self._commit(len(self) - 1) if self._commits else None

    @property
    def last_time(self) -> int | None:
        """The time of the last commit."""
        return self._commits[1 - _FIELDS] if self._commits else None

    def __len__(self) -> int:
        """The number of commits."""
        return len(self._commits) // _FIELDS

    def __bool__(self) -> bool:
        """A window is true, also without a commit."""
        return True

    def _commit(self, number: int) -> ObservedCommit:
        offset, time, observed, lag, order = self._commits[number * _FIELDS : (number + 1) * _FIELDS]
        return ObservedCommit(offset, time, observed, None if lag == _UNKNOWN else lag, order)

    def with_end(self, end: int, now: int) -> CommitWindow:
        """Return the window with one more end of the log, read at ``now``.

        The new end replaces the last end, unless the last end began a new span of ``OFFSET_REFRESH``. So the
        kept ends cover minutes, however often the log is read.
        """
        earlier = self._ends
        if len(earlier) > 2 and earlier[-1] - earlier[-3] < OFFSET_REFRESH * 1000:
            earlier = earlier[:-2]
        return self._of(self._commits, (earlier + array("q", (_bounded(end), _bounded(now))))[-2 * INTERVALS :])

    def with_commit(self, commit: ObservedCommit) -> CommitWindow:
        """Return the window with this commit, or the same window if the commit is not newer than the last one."""
        if self._commits and commit.order <= self._commits[-1]:
            return self
        return self._of((self._commits + array("q", _commit_numbers(commit)))[-_FIELDS * INTERVALS :], self._ends)

    @property
    def lag(self) -> int:
        """Messages between the last commit and the log's end; 0 without either, as Burrow has it."""
        return max(0, self._ends[-2] - self._commits[-_FIELDS]) if self._ends and self._commits else 0

    @property
    def complete(self) -> float:
        """The share of the window that commits fill."""
        return len(self) / INTERVALS

    def status(self, now: int) -> BurrowStatus:
        """Return the state of the partition at ``now``, in milliseconds since 1970."""
        if self.lag == 0:
            return BurrowStatus.OK
        offsets, times = self._commits[::_FIELDS], self._commits[1::_FIELDS]
        # Burrow's clock has whole seconds. No commit came for longer than the window lasts:
        stopped = now // 1000 * 1000 - times[-1] > times[-1] - times[0]
        if stopped and not any(end <= offsets[-1] for end in self._ends[::2]):
            return BurrowStatus.STOP
        if _rewound(offsets):
            return BurrowStatus.REWIND
        lags = [lag for lag in self._commits[3::_FIELDS] if lag != _UNKNOWN]
        if any(lag <= 0 for lag in lags):
            return BurrowStatus.OK
        if len(set(offsets)) == 1:
            return BurrowStatus.STALL
        fell = any(after < before for before, after in pairwise(lags))
        return BurrowStatus.OK if fell else BurrowStatus.WARN


_FIELDS = 5
"""The numbers of a commit in a window: the fields of :class:`ObservedCommit`, in their order."""
_UNKNOWN = -(1 << 63)
"""An unknown lag in a window."""


def _commit_numbers(commit: ObservedCommit) -> tuple[int, ...]:
    lag = _UNKNOWN if commit.lag is None else _bounded(commit.lag)
    times = _bounded(commit.time), _bounded(commit.observed)
    return _bounded(commit.offset), *times, lag, _bounded(commit.order)


def _bounded(number: int) -> int:
    """Return a number of 64 bits: a file of snapshots may hold any."""
    return max(1 - (1 << 63), min(number, (1 << 63) - 1))


NO_COMMIT = CommitWindow()
"""The window of a partition of which nothing is known."""


def status_of(window: CommitWindow, now: int) -> BurrowStatus:
    """Return the state of a partition at ``now``, in milliseconds since 1970."""
    return window.status(now)


def _rewound(offsets: Sequence[int]) -> bool:
    """Return whether the offset fell and never reached the former offset again. Only the first fall counts."""
    for number, (before, after) in enumerate(pairwise(offsets), 1):
        if after < before:
            return all(offset < before for offset in offsets[number:])
    return False


def status_of_group(statuses: Sequence[BurrowStatus]) -> BurrowStatus:
    """Return the state of a group from those of its partitions: the worst, and ERR for all that are worse than WARN."""
    return min(max(statuses, default=BurrowStatus.OK), BurrowStatus.ERR)
