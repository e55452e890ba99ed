"""The thread that reads the snapshots of all groups again and again, and the board on which it publishes them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from zkconsumer.assignors.assignor import java_hash
from zkconsumer.errors import (
    BrokerUnavailableError,
    RegistryError,
    RegistryUnavailableError,
    SessionLostError,
    ZkConsumerError,
)
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.group_view import GroupAnalysis
from zkconsumer.operations.judgement import Judgement
from zkconsumer.operations.serving.api import judged_later
from zkconsumer.operations.serving.observed_group import ObservedGroup, depends_on, observed, unread
from zkconsumer.operations.watched_groups import ManyGroups, SnapshotOf
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

log = logging.getLogger(__name__)


MOST_GROUPS = 5000
"""Groups beyond this number, in the order of their names, are not watched; the board counts them."""
MOST_POINTS = 360
LEAST_POINTS = 10
"""Bounds of a group's history in readings: an hour at the default interval."""
HISTORY_VALUES, POINT_VALUES = 6_000_000, 40
"""The most lags that the histories of all groups hold together, 4 bytes each. A point takes as much as 40 more."""
_LEAST_PAUSE = 0.1
"""The share of the interval that the thread rests at least, also if reading takes longer than the interval."""
_MARGIN = 0.2
"""The share of the interval by which a change is shown before the interval has passed."""
JUDGED_WITHIN = 60
"""Seconds after which a group is judged again although nothing of it has changed: some findings depend on the time."""

_AWAY = (RegistryUnavailableError, SessionLostError, BrokerUnavailableError)
"""Errors that the other groups would meet as well."""


@dataclass(frozen=True, slots=True)
class Board:
    """All groups at one moment. Immutable: a thread takes the board once and reads it at leisure.

    A poll reads the groups in batches, and publishes a board after each batch. ``polls`` counts whole polls,
    ``failures`` those in which a group could not be read. ``completed`` is the end of the last poll in milliseconds
    since 1970, ``seconds`` its duration. ``failure`` says why nothing could be read in it, and is
    empty if something could. ``left_out`` groups are beyond :data:`MOST_GROUPS`. ``missing`` groups have not been read
    yet, None before the groups are known.
    ``differences`` counts nodes that had changed without an event of ZooKeeper, as later comparisons found. ``serial``
    counts boards.
    """

    groups: Mapping[str, ObservedGroup] = field(default_factory=dict)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    polls: int = 0
    failures: int = 0
    completed: int | None = None
    seconds: float = 0.0
    failure: str = ""
    left_out: int = 0
    missing: int | None = None
    differences: int = 0
    serial: int = 0
    ended: bool = False


def pause(interval: float, spent: float, slowest: float) -> float:
    """Return the seconds to the next poll. A change that a batch has just missed is then shown within one interval.

    Arguments: ``spent`` is the time of this poll, ``slowest`` that of its slowest batch.
    """
    early = interval * (1 - _MARGIN) - spent - slowest
    return max(early, min(slowest, interval - spent), interval * _LEAST_PAUSE)  # slow batches come no more often


class Poller:
    """Reads all groups at an interval, in a thread of its own, and publishes a new :class:`Board` after each batch.

    Arguments: ``opened`` opens the source of the snapshots. The thread opens, uses and closes the source, and opens
    another after a failed poll. ``interval`` is in seconds: a change is shown within it. ``groups`` restricts the watch
    to these. ``message_times`` also reads a message a partition for the lag in time. ``histories`` begins with all
    snapshots of a group that the source has, as files have them.

    Any thread may call :meth:`stop`, :meth:`wait`, :meth:`making_answer` and :attr:`board`.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[SnapshotSource]],
        interval: float = 10.0,
        groups: Sequence[str] = (),
        *,
        message_times: bool = True,
        histories: bool = False,
    ) -> None:
        self._opened = opened
        self._interval = interval
        self._wanted = tuple(sorted(set(groups)))
        self._message_times = message_times
        self._histories = histories
        self._board = Board()
        self._judged: dict[str, _Judged] = {}
        self._lock = InterruptibleLock()
        self._changed = threading.Condition(self._lock)
        self._stopping = threading.Event()
        self._answers = 0  # in the making, under the lock
        self._thread = threading.Thread(target=self._run, name="zkconsumer-serve-poller", daemon=True)

    @property
    def board(self) -> Board:
        """The latest board."""
        return self._board

    def start(self) -> None:
        """Start the thread. Once only."""
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Ask the thread to end and wait ``timeout`` seconds for it. Return whether it has ended."""
        self._stopping.set()
        with self._lock:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait(self, mark: Callable[[Board], object], told: object, timeout: float) -> Board:
        """Return the board once its ``mark`` is not ``told``, or it has ended, or after ``timeout`` seconds."""
        with self._lock:
            self._changed.wait_for(lambda: mark(self._board) != told or self._board.ended, timeout)
            return self._board

    @contextmanager
    def making_answer(self) -> Iterator[None]:
        """Keep the thread from judging the next group while the caller makes an answer, for a limited time.

        Otherwise both take turns at the interpreter, and an answer about a thousand groups takes twice its time.
        """
        with self._lock:
            self._answers += 1
        try:
            yield
        finally:
            with self._lock:
                self._answers -= 1
                if not self._answers:
                    self._changed.notify_all()

    def _give_way(self, most: float) -> float:
        """Wait while answers are made, ``most`` seconds. Return how long it took."""
        if not self._answers or most <= 0:
            return 0.0
        began = time.monotonic()
        with self._lock:
            self._changed.wait_for(lambda: not self._answers or self._stopping.is_set(), most)
        return time.monotonic() - began

    def _publish(self, board: Board) -> None:
        if board.failure and not self._board.failure:
            log.warning("nothing can be read; the old values stay: %a", board.failure)
        elif self._board.failure and not board.failure:
            log.warning("groups can be read again")
        with self._lock:
            self._board = replace(board, serial=self._board.serial + 1)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._poll_until_failure()
        finally:
            self._publish(replace(self._board, ended=True))

    def _poll_until_failure(self) -> None:
        """Poll with one source until nothing could be read, or until :meth:`stop`."""
        try:
            with self._opened() as source:
                while not self._stopping.is_set():
                    began = time.monotonic()
                    self._rest(began, self._poll(source))
                    if self._board.failure:
                        return
        except Exception as error:  # noqa: BLE001 (a source that cannot be opened or closed must not end the thread)
            self._failed(error)
            self._rest(time.monotonic(), 0.0)

    def _rest(self, began: float, slowest: float) -> None:
        self._stopping.wait(pause(self._interval, time.monotonic() - began, slowest))

    def _failed(self, error: BaseException) -> None:
        """Publish that nothing could be read."""
        why = _reason(error)
        board = self._board
        groups = {name: unread(watched, why) for name, watched in board.groups.items()}
        judgements = {
            name: _unread(board.judgements.get(name, Judgement(reason=why)), watched, why)
            for name, watched in board.groups.items()
        }
        now = int(time.time() * 1000)
        self._publish(
            replace(
                board,
                groups=groups,
                judgements=judgements,
                polls=board.polls + 1,
                failures=board.failures + 1,
                completed=now,
                failure=why,
            )
        )

    def _poll(self, source: SnapshotSource) -> float:
        """Read all groups. Return the seconds that the slowest batch took."""
        began = time.monotonic()
        try:
            listed = self._wanted or tuple(source.groups())
        except Exception as error:  # noqa: BLE001 (hostile content may raise anything, and the next poll may succeed)
            self._failed(error)
            return 0.0
        first = set(listed[:MOST_GROUPS])
        names = sorted({*first, *self._board.groups})
        many, times = max(1, len(names)), self._message_times
        reading = _Reading(source, self._board, many, self._judged, message_times=times, histories=self._histories)
        slowest = self._take_batches(reading, names, first)
        if self._stopping.is_set():
            return slowest
        board = reading.board(self._board)
        self._publish(
            replace(
                board,
                polls=board.polls + 1,
                failures=board.failures + bool(reading.failed),
                completed=int(time.time() * 1000),
                seconds=time.monotonic() - began,
                failure=reading.why if names and reading.failed == len(names) else "",
                left_out=max(0, len(listed) - MOST_GROUPS),
                missing=0,
                differences=source.differences if isinstance(source, ManyGroups) else 0,
            )
        )
        return slowest

    def _take_batches(self, reading: _Reading, names: Sequence[str], listed: set[str]) -> float:
        """Take the batches in, and publish a board after each but the last. Return the seconds of the slowest one.

        The method keeps no earlier board, so the memory of earlier groups is freed group by group.
        """
        left, began, slowest, waited = len(names), time.monotonic(), 0.0, 0.0
        begun = began
        for batch in reading.snapshots(names):
            for name, found in batch:
                worked = time.monotonic() - began - waited
                waited += self._give_way(worked - waited)  # many requests let it work half of the time
                if self._stopping.is_set():
                    return slowest
                reading.take(name, found, listed=name in listed)
                left -= 1
            if left > 0:
                board = reading.board(self._board)
                self._publish(replace(board, missing=len(listed - board.groups.keys())))
            begun, slowest = time.monotonic(), max(slowest, time.monotonic() - begun)
        return max(slowest, time.monotonic() - begun)


_Judged: TypeAlias = tuple[int, object, Judgement, GroupAnalysis | None]
"""The time until which a judgement counts if nothing changes, what it was made of, the judgement, and its analysis."""


class _Reading:
    """One poll over the groups. A group that cannot be read stays as it was.

    Arguments: ``board`` is the board before the poll, ``count`` the number of groups, ``judged`` the judgements so far.
    """

    def __init__(
        self,
        source: SnapshotSource,
        board: Board,
        count: int,
        judged: dict[str, _Judged],
        *,
        message_times: bool,
        histories: bool,
    ) -> None:
        self._source = source
        self._groups = dict(board.groups)
        self._judgements = dict(board.judgements)
        self._values = HISTORY_VALUES // count
        self._judged = judged
        self._message_times = message_times
        self._histories = histories
        self.failed = 0
        self.why = ""

    def board(self, board: Board) -> Board:
        """Return the board with the groups as they are known now."""
        return replace(board, groups=dict(self._groups), judgements=dict(self._judgements))

    def snapshots(self, names: Sequence[str]) -> Iterator[Iterable[SnapshotOf]]:
        """Yield batches of the snapshots of all groups, or of the errors in place of them."""
        if isinstance(self._source, ManyGroups):
            yield from self._source.snapshots(names, message_times=self._message_times)
        else:
            yield self._each(names)

    def _each(self, names: Sequence[str]) -> Iterator[SnapshotOf]:
        away: Exception | None = None
        for name in names:
            try:
                if away is not None:
                    raise away  # otherwise each group waits for its own timeout
                yield name, self._source.snapshot(name, message_times=self._message_times)
            except Exception as error:  # noqa: BLE001 (hostile content may raise anything)
                away = error if isinstance(error, _AWAY) else None
                yield name, error

    def take(self, name: str, found: GroupSnapshot | Exception, *, listed: bool) -> None:
        """Take one group's snapshot in. A group that is not ``listed`` any more leaves, if nothing of it is left."""
        known = self._groups.get(name)
        try:
            if isinstance(found, Exception):
                raise found
            if known is None and self._histories:
                for earlier in self._source.history(name):
                    known = observed(known, earlier, self._points(earlier))
            if _blank(found) and found.problems:
                raise _unreadable(found)
            if _blank(found) and not listed:
                for kept in (self._groups, self._judgements, self._judged):
                    kept.pop(name, None)
                return
            watched = observed(known, found, self._points(found))
            self._groups[name], self._judgements[name] = watched, self._judge(name, watched)
        except Exception as error:
            self.failed += 1
            self.why = _reason(error)
            if not isinstance(error, ZkConsumerError):
                log.exception("the snapshot of group %a could not be read", name)
            self._keep(name, known, _reason(error))

    def _judge(self, name: str, watched: ObservedGroup) -> Judgement:
        """Return the judgement, the one before if nothing has changed that it depends on, and it is not old."""
        until, before, judgement, analysis = self._judged.get(name, (0, None, Judgement(), None))
        present, taken = depends_on(watched), watched.judged.taken
        if not 0 < until - taken <= JUDGED_WITHIN * 1000 or present != before:  # more after the clock was set back
            spread = java_hash(name) % (JUDGED_WITHIN // 2)  # not all groups in the same poll
            until = taken + (JUDGED_WITHIN - spread) * 1000
            judgement, analysis = judged_later(watched, analysis)
        self._judged[name] = until, present, judgement, analysis
        return judgement

    def _keep(self, name: str, known: ObservedGroup | None, why: str) -> None:
        if known is None:
            known = ObservedGroup(GroupSnapshot(name, int(time.time() * 1000)), failure=why)
            self._groups[name] = known
            self._judgements[name] = Judgement(reason=why).unread(why, known.snapshot.taken)
        else:
            self._groups[name] = unread(known, why)
            self._judgements[name] = _unread(self._judgements.get(name, Judgement(reason=why)), known, why)

    def _points(self, snapshot: GroupSnapshot) -> int:
        """Return the length of the group's history: an hour, or less if the group or their number is large."""
        return max(LEAST_POINTS, min(MOST_POINTS, self._values // (POINT_VALUES + len(snapshot.partitions()))))


def _unread(judgement: Judgement, watched: ObservedGroup, why: str) -> Judgement:
    """Return the judgement after one more failed reading. A second failure adds nothing to the first."""
    return judgement if watched.failure == why else judgement.unread(why, watched.snapshot.taken)


def _blank(snapshot: GroupSnapshot) -> bool:
    return not snapshot.in_zookeeper and not snapshot.in_kafka


def _unreadable(snapshot: GroupSnapshot) -> RegistryError:
    """Return the error for a snapshot with problems alone. Only a ZooKeeper that is away concerns the other groups."""
    why = f"{snapshot.problems[0].what}: {snapshot.problems[0].why}"
    away = any(one.what.startswith("ZooKeeper ") for one in snapshot.problems)
    return RegistryUnavailableError(why) if away else RegistryError(why)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
