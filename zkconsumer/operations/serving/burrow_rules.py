"""Burrow's rules: from a partition's last commits and log ends to OK, WARN, STOP, STALL or REWIND. Pure; any thread.

Mirrors ``core/internal/evaluator/caching.go`` and ``core/internal/storage/inmemory.go`` of Burrow: the same windows,
the same order of the rules, the same limits. A commit is a new transaction on an offset node. Its time is the node's
``mtime``, so that a commit has the same time for every reader.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


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


@dataclass(frozen=True, slots=True)
class CommitWindow:
    """The last commits of a partition and the last ends of its log, each oldest first."""

    commits: tuple[ObservedCommit, ...] = ()
    ends: tuple[LogEnd, ...] = ()

    def with_end(self, end: int, now: int) -> CommitWindow:
        """Return the window with one more end of the log, read at ``now``.

        The new end replaces the last end, unless the last end began a new span of ``OFFSET_REFRESH``. So the
        kept ends cover minutes, however often the log is read.
        """
        earlier = self.ends
        if len(earlier) > 1 and earlier[-1].time - earlier[-2].time < OFFSET_REFRESH * 1000:
            earlier = earlier[:-1]
        return CommitWindow(self.commits, (*earlier, LogEnd(end, now))[-INTERVALS:])

    def with_commit(self, commit: ObservedCommit) -> CommitWindow:
        """Return the window with this commit, or the same window if the commit is not newer than the last one."""
        if self.commits and commit.order <= self.commits[-1].order:
            return self
        return CommitWindow((*self.commits, commit)[-INTERVALS:], self.ends)

    @property
    def lag(self) -> int:
        """Messages between the last commit and the log's end; 0 without either, as Burrow has it."""
        return max(0, self.ends[-1].end - self.commits[-1].offset) if self.ends and self.commits else 0

    @property
    def complete(self) -> float:
        """The share of the window that commits fill."""
        return len(self.commits) / INTERVALS


def status_of(window: CommitWindow, now: int) -> BurrowStatus:
    """Return the state of a partition at ``now``, in milliseconds since 1970."""
    commits = window.commits
    if not commits or window.lag == 0:
        return BurrowStatus.OK
    if _stopped(commits, now) and not _caught_up_recently(window):
        return BurrowStatus.STOP
    if _rewound(commits):
        return BurrowStatus.REWIND
    if any(commit.lag is not None and commit.lag <= 0 for commit in commits):
        return BurrowStatus.OK
    if len({commit.offset for commit in commits}) == 1:
        return BurrowStatus.STALL
    return BurrowStatus.OK if _lag_fell(commits) else BurrowStatus.WARN


def _stopped(commits: Sequence[ObservedCommit], now: int) -> bool:
    """Whether no commit came for longer than the window lasts. Burrow's clock has whole seconds."""
    return now // 1000 * 1000 - commits[-1].time > commits[-1].time - commits[0].time


def _caught_up_recently(window: CommitWindow) -> bool:
    return any(known.end <= window.commits[-1].offset for known in window.ends)


def _rewound(commits: Sequence[ObservedCommit]) -> bool:
    """Return whether the offset fell and never reached the former offset again. Only the first fall counts."""
    for number in range(1, len(commits)):
        before = commits[number - 1].offset
        if commits[number].offset < before:
            return all(commit.offset < before for commit in commits[number:])
    return False


def _lag_fell(commits: Sequence[ObservedCommit]) -> bool:
    lags = [commit.lag for commit in commits if commit.lag is not None]
    return any(after < before for before, after in pairwise(lags))


def status_of_group(statuses: Sequence[BurrowStatus]) -> BurrowStatus:
    """Return the state of a group from those of its partitions: the worst, and ERR for all that are worse than WARN."""
    return min(max(statuses, default=BurrowStatus.OK), BurrowStatus.ERR)
