"""The thread that follows the board: it keeps the trend of each group, and owns the file of ``serve --history``.

The thread ``zkconsumer-serve-history`` looks at the board a few times a second. It adds each reading to the trends,
which any thread may read, and to the sample of the present minute. When a minute ends, the samples of all groups are
written in one transaction, with the rebalances and findings since. Other threads ask it for what the file has.

Nothing of this can stop the answers. What cannot be written stays in memory for an hour. :attr:`GroupHistory.state`
says what is wrong, and the log says so once. A file system that hangs also hangs the thread: then the trends are
unknown, and the state says so.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field, replace

from zkconsumer.errors import ConfigException
from zkconsumer.operations.doctor.findings import Finding, Level
from zkconsumer.operations.group_timeline import EventKind, events, rebalances
from zkconsumer.operations.judgement import Judgement
from zkconsumer.operations.printable import duration
from zkconsumer.operations.serving.group_trends import GroupTrend, followed
from zkconsumer.operations.serving.history_file import (
    DAY,
    MINUTE,
    TEN_MINUTES,
    HistoryFile,
    HistoryReader,
    Limits,
    Sample,
)
from zkconsumer.operations.serving.observed_group import ObservedGroup
from zkconsumer.operations.serving.poller import Board

log = logging.getLogger(__name__)

TICK = 0.25
"""Seconds between two looks at the board."""
SPANS = {"day": (DAY, MINUTE), "week": (7 * DAY, TEN_MINUTES)}
"""The graphs: the seconds that they show, and the seconds of a point."""
PENDING_MINUTES = 60
"""The samples that wait for a file that cannot be written. Older ones are dropped."""
PENDING_GONE = 1000
"""The most groups that are gone, and whose last samples wait for the file."""
HANGS_SECONDS = 60.0
"""A thread that has not looked at the board for so long hangs in the file system."""
JUMP_MS = 60_000
"""A clock that differs from the time that has passed by so much was set."""
TRUST_SECONDS = 3600.0
"""So long after the begin, and after the clock was set, nothing is deleted for its age: the clock may be wrong."""
_PRUNE_SECONDS = 600.0
ASKED = 16
"""The most requests that wait for the thread. With the event streams they leave connections for other requests."""


@dataclass(frozen=True, slots=True)
class HistoryState:
    """How the history is. ``file`` is its name, empty without a file. Times are milliseconds since 1970.

    ``failure`` says why it cannot be written, empty if it can. ``written`` is the last time that it was, ``since`` its
    begin. ``size`` and ``limit`` are bytes. ``clock`` says how the clock was set. ``dropped`` counts the samples
    that were not written.
    """

    file: str = ""
    failure: str = ""
    written: int | None = None
    since: int | None = None
    size: int = 0
    limit: int = 0
    clock: str = ""
    dropped: int = 0

    def document(self) -> dict[str, object] | None:
        """Return the state for JSON, None without a file."""
        if not self.file:
            return None
        found = {name: getattr(self, name) for name in ("written", "since", "size", "limit", "dropped")}
        return {**found, "failure": self.failure or None, "clock": self.clock or None}


@dataclass(slots=True)
class _Followed:
    """What the thread keeps of one group between two readings."""

    watched: ObservedGroup
    sample: Sample | None = None
    changes: object = None
    names: frozenset[tuple[str, str]] | None = None


@dataclass(slots=True)
class _Pending:
    """What has not been written yet: samples, and the groups whose rebalances and findings have changed."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    rebalances: dict[str, ObservedGroup] = field(default_factory=dict)
    findings: dict[str, list[tuple[int, Sequence[Finding], bool]]] = field(default_factory=dict)


class GroupHistory:
    """Follows the board in a thread of its own. :meth:`start` opens the file, if there is one.

    Arguments: ``board`` returns the latest board; ``path`` names the file, None keeps the trends alone; ``limits`` are
    the bounds of the file; ``clock`` returns seconds since 1970, ``monotonic`` those of a clock that is never set.
    """

    def __init__(
        self,
        board: Callable[[], Board],
        path: str | None = None,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._path = path
        self._limits = limits or Limits()
        self._now = clock
        self._monotonic = monotonic
        self._trends: Mapping[str, GroupTrend] = {}
        self._state = HistoryState(file=path or "", limit=self._limits.size if path else 0)
        self._looked = monotonic()
        self._asked: queue.Queue[tuple[Callable[[HistoryReader], object], Future[object]] | None] = queue.Queue(ASKED)
        self._opened: Future[None] = Future()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zkconsumer-serve-history", daemon=True)
        self._collected = _Collected(self._limits)

    def _hangs(self) -> bool:
        return self._monotonic() - self._looked > HANGS_SECONDS

    @property
    def trends(self) -> Mapping[str, GroupTrend]:
        """The trends of all groups, none while the thread hangs."""
        return {} if self._hangs() else self._trends

    @property
    def state(self) -> HistoryState:
        """How the history is."""
        state = self._state
        return replace(state, failure=f"{state.file}: the file system does not answer") if self._hangs() else state

    def start(self, timeout: float = 10.0) -> None:
        """Start the thread, and wait until it has opened the file. Raises: ConfigException for a wrong file."""
        self._thread.start()
        with suppress(FutureTimeoutError):  # a file system that hangs: the answers begin without the history
            self._opened.result(timeout)

    def stop(self, timeout: float) -> bool:
        """Write what is left, and end. Return whether the thread has ended within ``timeout`` seconds."""
        self._stopping.set()
        with suppress(queue.Full):
            self._asked.put_nowait(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def graph(self, group: str, span: str, timeout: float = 5.0) -> dict[str, object] | str:
        """Return the history of a group for JSON, or why it cannot be read now. ``span`` is a key of :data:`SPANS`."""
        now = int(self._now())
        seconds, step = SPANS[span]

        def read(file: HistoryReader) -> dict[str, object]:
            since = now - seconds
            samples = [one.document() for one in file.samples(group, since // step * step, now, step)]
            names = ("time", "lag", "consumed_rate", "produced_rate", "severity")
            return {
                "group": group,
                "since": since * 1000,
                "until": now * 1000,
                "step": step,
                "samples": {name: [one[name] for one in samples] for name in names},
                "rebalances": [one.document() for one in file.rebalances(group, since, now, _MOST_SHOWN)],
                "findings": [one.document() for one in file.findings(group, since, now, _MOST_SHOWN)],
                "state": self.state.document(),
            }

        future: Future[object] = Future()
        try:
            self._asked.put_nowait((read, future))
            found = future.result(timeout)
        except (queue.Full, FutureTimeoutError):  # before OSError: this timeout is one
            future.cancel()
            found = None
        except (sqlite3.Error, OSError) as error:
            return str(error)
        return found if isinstance(found, dict) else self.state.failure or "it is busy"

    # ---- the thread

    def _run(self) -> None:
        try:
            self.open()
        except Exception as error:  # noqa: BLE001 (start() raises it)
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        while not self._stopping.is_set():
            self._answer()
            try:
                self.look()
            except Exception as error:  # hostile content may raise anything, and the next reading may be taken in
                if not self._state.failure:
                    log.exception("the history could not take a reading in")
                self._trends = {}
                self._state = replace(self._state, failure=f"{type(error).__name__}: {error}")
        self.close()

    def open(self) -> None:
        """Open the file, if there is one, and take the last hour from it. Raises: ConfigException for a wrong file.

        A damaged or locked file is no mistake of the user: it is opened again each minute. Tests call this,
        :meth:`look` and :meth:`close` in place of the thread.
        """
        if self._path is None:
            return
        try:
            self._collected.file = HistoryFile(self._path, self._limits)
        except (sqlite3.Error, OSError) as error:
            self._fail(f"{self._path}: {error}")
        else:
            self._collected.load(int(self._now()))
            self._trends = dict(self._collected.trends)

    def close(self) -> None:
        """Write what is left, and close the file."""
        collected = self._collected
        collected.finish_minute()
        try:
            self._write()
        finally:
            if collected.file is not None:
                collected.file.close()
                collected.file = None

    def _answer(self) -> None:
        """Serve a request, or wait for one for :data:`TICK` seconds."""
        try:
            asked = self._asked.get(timeout=TICK)
        except queue.Empty:
            return
        if asked is None:
            return
        call, future = asked
        if not future.set_running_or_notify_cancel():
            return
        try:
            file = self._collected.file
            future.set_result(None if file is None else call(file))
        except Exception as error:  # noqa: BLE001 (the caller gets it)
            future.set_exception(error)

    def look(self) -> None:
        """Take the latest board in, if it is another one. Write once a minute."""
        collected, board = self._collected, self._board()
        now, at = int(self._now() * 1000), self._monotonic()
        self._looked = at
        if moved := collected.clock_moved(now, at):
            self._state = replace(self._state, clock=moved)
            log.warning("history: %s", moved)
        if board.completed is None or board is collected.board:
            return
        ended = collected.minute_ended(now)
        collected.take(board, now, at)
        self._trends = dict(collected.trends)
        if ended:
            self._write()

    def _write(self) -> None:
        """Write what is pending. A failure leaves it pending, and closes a file that may be damaged.

        What no file can take is dropped: otherwise one hostile value would keep out all groups.
        """
        collected = self._collected
        if self._path is None:
            collected.forget()
            return
        if collected.file is not None and collected.file.moved:
            collected.file.close()
            collected.file = None
        if collected.file is None:
            self._open_again()
        file = collected.file
        if file is None:
            self._drop(collected.bound())
            return
        now = int(self._now() * 1000)
        try:
            collected.write(file, now // 1000, self._monotonic())
            since = file.since()
            self._state = replace(
                self._state, failure="", written=now, since=None if since is None else since * 1000, size=file.size()
            )
        except Exception as error:
            if not isinstance(error, sqlite3.Error | OSError):
                self._drop(collected.forget())
                raise
            self._fail(f"{self._path}: {error}")
            if not isinstance(error, sqlite3.OperationalError):  # damaged: perhaps somebody moves it away
                collected.file = None
                file.close()
            self._drop(collected.bound())

    def _drop(self, samples: int) -> None:
        self._state = replace(self._state, dropped=self._state.dropped + samples)

    def _open_again(self) -> None:
        try:
            self.open()
        except ConfigException as error:  # it was replaced by a file of another program
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        if not self._state.failure:
            log.warning("the history cannot be written; what is new stays in memory for an hour: %a", why)
        self._state = replace(self._state, failure=why)


_MOST_SHOWN = 200
"""The most rebalances and findings of a graph, the latest ones."""


class _Collected:
    """What the thread knows: the trends, the samples of the present minute, and what has to be written."""

    def __init__(self, limits: Limits) -> None:
        self.board: Board | None = None
        self.file: HistoryFile | None = None
        self.trends: dict[str, GroupTrend] = {}
        self._limits = limits
        self._groups: dict[str, _Followed] = {}
        self._pending = _Pending()
        self._minute: int | None = None
        self._clock: tuple[int, float] | None = None
        self._trusted_from = 0.0
        self._pruned = float("-inf")

    def load(self, now: int) -> None:
        """Take the lags of the last hour from the file. ``now`` is seconds since 1970."""
        if self.file is None or self.trends:
            return
        try:
            for group in self.file.groups():
                lags = self.file.samples(group, now - 3600, now)
                past = [(one.at // MINUTE, one.lag) for one in lags if one.lag is not None]
                self.trends[group] = GroupTrend().with_past(past)
        except sqlite3.Error:
            return  # the first write tells of it

    def clock_moved(self, now: int, at: float) -> str:
        """Return how the clock was set since the last look, empty if it was not."""
        before, self._clock = self._clock, (now, at)
        if before is None:
            self._trusted_from = at + TRUST_SECONDS
            return ""
        moved = now - before[0] - int((at - before[1]) * 1000)
        if abs(moved) < JUMP_MS:
            return ""
        self._trusted_from = at + TRUST_SECONDS
        return f"the clock was set {'back' if moved < 0 else 'ahead'} by {duration(abs(moved))}"

    def take(self, board: Board, now: int, at: float) -> None:
        """Take a board in. ``now`` is milliseconds since 1970, ``at`` the time of the clock that is never set."""
        earlier, self.board = {} if self.board is None else self.board.groups, board
        for name in [name for name in self._groups if name not in board.groups]:
            self._pending.findings.setdefault(name, []).append((now // 1000, (), True))
            self._finish(name, self._groups.pop(name))
            del self.trends[name]
        for name, watched in board.groups.items():
            if name in earlier and earlier[name] is watched:
                continue  # the board is that of a batch without this group
            judgement = board.judgements.get(name, Judgement())
            known = self._groups.get(name)
            before = None if known is None else known.watched
            trend = followed(self.trends.get(name, GroupTrend()), before, watched, judgement, now, at)
            self.trends[name] = trend
            if known is None:
                known = self._groups[name] = _Followed(watched)
            if known.sample is None:
                known.sample = Sample(now // 1000)
            _add(known.sample, trend, judgement)
            if not watched.failure:
                known.watched = watched
                self._note(known, name, judgement, now)

    def _note(self, known: _Followed, name: str, judgement: Judgement, now: int) -> None:
        """Note that the rebalances or findings of a group have changed, and once a minute that findings are seen."""
        watched = known.watched
        if watched.changes is not known.changes:
            known.changes = watched.changes
            self._pending.rebalances[name] = watched
        told = [one for one in judgement.findings if one.level >= Level.WARN or not one.unknown]
        names = frozenset((one.check, one.node) for one in told)
        if names != known.names or (told and name not in self._pending.findings):
            known.names = names
            self._pending.findings.setdefault(name, []).append((now // 1000, told, watched.complete))

    def minute_ended(self, now: int) -> bool:
        """Return whether a minute has ended since the last call, and begin the samples of the next one."""
        minute = now // 60_000
        if self._minute is None:
            self._minute = minute
        if minute == self._minute:
            return False
        self._minute = minute
        self.finish_minute()
        return True

    def finish_minute(self) -> None:
        """Make the samples of the present minute pending."""
        for name, known in self._groups.items():
            self._finish(name, known)

    def _finish(self, name: str, known: _Followed) -> None:
        if known.sample is not None:
            self._pending.samples.setdefault(name, []).append(known.sample)
            known.sample = None

    def forget(self) -> int:
        """Forget what is pending. Return the number of its samples."""
        pending, self._pending = self._pending, _Pending()
        return sum(map(len, pending.samples.values()))

    def bound(self) -> int:
        """Drop what has waited for too long. Return the number of dropped samples."""
        dropped, pending = 0, self._pending
        for name in [name for name in pending.samples if name not in self._groups][:-PENDING_GONE]:
            dropped += len(pending.samples.pop(name))
            for waiting in (pending.rebalances, pending.findings):
                waiting.pop(name, None)
        for name, samples in pending.samples.items():
            over = max(0, len(samples) - PENDING_MINUTES)
            dropped += over
            del samples[:over]
            pending.findings.get(name, [])[:-PENDING_MINUTES] = []
        return dropped

    def write(self, file: HistoryFile, now: int, at: float) -> None:
        """Write all that is pending in one transaction. ``now`` is seconds since 1970. Raises: sqlite3.Error."""
        file.shrink()
        pruned = at >= self._trusted_from and at - self._pruned >= _PRUNE_SECONDS
        with file.transaction():
            file.add_samples(self._pending.samples)
            for name, watched in self._pending.rebalances.items():
                found = events(watched.changes)
                if any(one.kind is EventKind.DATA_SET_BACK for one in found):
                    file.begin_anew(name)
                file.add_rebalances(name, rebalances(found))
            for name, noted in self._pending.findings.items():
                for when, told, complete in noted:
                    file.note_findings(name, told, when, complete=complete)
            if pruned:
                file.prune(now)
        self.forget()
        if pruned:
            self._pruned = at


def _add(sample: Sample, trend: GroupTrend, judgement: Judgement) -> None:
    """Add a reading to the sample of a minute."""
    if trend.lag is not None:
        sample.lag = trend.lag if sample.lag is None else max(sample.lag, trend.lag)
    if trend.latest is not None:
        sample.seconds += trend.latest.seconds
        sample.consumed += trend.latest.consumed
        sample.produced += trend.latest.produced
    sample.severity = max(sample.severity, int(judgement.severity))
