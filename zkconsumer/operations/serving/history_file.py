"""The file of ``serve --history``: lags, rates, rebalances and findings of all groups, in SQLite.

A file is bounded by size and by age. SQLite itself refuses to grow beyond the size (``max_page_count``), and the oldest
part is deleted before that. The thread that opened a file is the only one that may use it. Times in the file are
seconds since 1970. Names are stored as bytes, because a node's name may be text that SQLite refuses.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.operations.doctor.findings import Finding, Level
from zkconsumer.operations.group_timeline import EventKind, Rebalance, TimelineEvent, rebalances

APPLICATION = 0x7A6B6373
"""The mark in the header of a file of ours."""
VERSION = 1
MINUTE, TEN_MINUTES, DAY = 60, 600, 86_400
MINUTES_KEPT = 26 * 3600
"""Lags of single minutes are kept for so many seconds, for the graph of a day. Later there is one of ten minutes."""
LEVELS = {int(level): str(level) for level in Level}
LEAST_BYTES = 1_000_000
MOST_EVENTS = 2000
"""The most events of one rebalance that are kept: half of its first, half of its last ones."""
LONGEST = 2000
"""The most characters of a finding's text."""
BUSY_SECONDS = 2.0
_LARGEST = 2**63 - 1
"""The largest number that SQLite takes. Offsets that anybody may write to nodes can have larger sums."""
_PAGE = 4096
_FULL, _EMPTIED = 0.9, 0.8
"""Shares of the size: beyond the first one, the oldest part is deleted until the second one is reached."""

_SCHEMA = """
CREATE TABLE groups (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, position INTEGER NOT NULL DEFAULT 0);
CREATE TABLE samples (grp INTEGER, span INTEGER, at INTEGER, seconds REAL, lag INTEGER, consumed INTEGER,
 produced INTEGER, severity INTEGER, PRIMARY KEY (grp, span, at)) WITHOUT ROWID;
CREATE TABLE rebalances (id INTEGER PRIMARY KEY, grp INTEGER, name TEXT, at INTEGER, size INTEGER, events BLOB,
 UNIQUE (grp, name));
CREATE TABLE findings (id INTEGER PRIMARY KEY, grp INTEGER, name TEXT, node BLOB, level INTEGER, text TEXT, link TEXT,
 came INTEGER, seen INTEGER, went INTEGER);
CREATE INDEX findings_of_group ON findings (grp, came);
"""
_ADD_SAMPLE = """
INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (grp, span, at) DO UPDATE SET
 seconds = seconds + excluded.seconds, lag = coalesce(max(lag, excluded.lag), lag, excluded.lag),
 consumed = consumed + excluded.consumed, produced = produced + excluded.produced,
 severity = max(severity, excluded.severity)
"""
_ADD_REBALANCE = """
INSERT INTO rebalances (grp, name, at, size, events) VALUES (?, ?, ?, ?, ?) ON CONFLICT (grp, name) DO UPDATE SET
 at = excluded.at, size = excluded.size, events = excluded.events WHERE excluded.size >= size
"""
_ADD_FINDING = """
INSERT INTO findings (grp, name, node, level, text, link, came, seen) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELETE_EMPTY_GROUPS = """
DELETE FROM groups WHERE NOT EXISTS (SELECT 1 FROM samples WHERE grp = groups.id)
 AND NOT EXISTS (SELECT 1 FROM rebalances WHERE grp = groups.id)
 AND NOT EXISTS (SELECT 1 FROM findings WHERE grp = groups.id)
"""


@dataclass(slots=True)
class Sample:
    """A group in a span of time that begins ``at``. ``seconds`` of the span were seen; ``lag`` is the largest one."""

    at: int
    seconds: float = 0.0
    lag: int | None = None
    consumed: int = 0
    produced: int = 0
    severity: int = 0

    def document(self) -> dict[str, object]:
        """Return the sample for JSON; unknown values are null. Rates are messages a second."""
        seen = self.seconds > 0
        return {
            "time": self.at * 1000,
            "seconds": round(self.seconds, 1),
            "lag": self.lag,
            "consumed_rate": round(self.consumed / self.seconds, 3) if seen else None,
            "produced_rate": round(self.produced / self.seconds, 3) if seen else None,
            "severity": self.severity,
        }


@dataclass(frozen=True, slots=True)
class PastFinding:
    """A finding that came, and went unless ``went`` is None. It was ``seen`` last; all in seconds since 1970."""

    check: str
    node: str
    level: int
    text: str
    link: str
    came: int
    seen: int
    went: int | None

    def document(self) -> dict[str, object]:
        """Return the finding for JSON, with milliseconds since 1970."""
        found = {"check": self.check, "node": self.node or None, "level": LEVELS[self.level], "text": self.text}
        went = None if self.went is None else self.went * 1000
        return {**found, "link": self.link or None, "came": self.came * 1000, "seen": self.seen * 1000, "went": went}


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a file: its size in bytes, and the age of what it keeps in seconds."""

    size: int = 256_000_000
    age: int = 8 * DAY


class HistoryReader:
    """An open file that is read. One thread opens, uses and closes it.

    Raises: ConfigException if the file is no history, or cannot be read; sqlite3.Error if it is damaged or another
    process has locked it. Every method may raise sqlite3.Error.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._database = _opened(self._path, writes=self.writes)

    writes = False
    """Whether this is the writer."""

    def close(self) -> None:
        """Close the file, also a damaged one."""
        with suppress(sqlite3.Error):
            self._database.close()

    def groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(_text(row[0]) for row in self._database.execute("SELECT name FROM groups"))

    def since(self) -> int | None:
        """Return when the history begins, in seconds since 1970; None if it is empty."""
        return _number(self._database.execute("SELECT min(at) FROM samples").fetchone()[0])

    def samples(self, group: str, since: int, until: int, span: int = MINUTE) -> list[Sample]:
        """Return the samples of a group in order: one a minute, or one in ten with ``TEN_MINUTES``."""
        rows = self._database.execute(
            "SELECT at, seconds, lag, consumed, produced, severity FROM samples"
            " WHERE grp = (SELECT id FROM groups WHERE name = ?) AND span = ? AND at BETWEEN ? AND ? ORDER BY at",
            (_bytes(group), span, since, until),
        )
        return [Sample(*row) for row in rows]

    def rebalances(self, group: str, since: int, until: int, most: int = _LARGEST) -> list[Rebalance]:
        """Return the rebalances of a group, oldest first, and not more than the latest ``most``."""
        rows = self._database.execute(
            "SELECT events FROM rebalances WHERE grp = (SELECT id FROM groups WHERE name = ?)"
            " AND at BETWEEN ? AND ? ORDER BY at DESC, id DESC LIMIT ?",
            (_bytes(group), since, until, most),
        ).fetchall()
        return list(rebalances([event for row in reversed(rows) for event in _unpacked(row[0])]))

    def findings(self, group: str, since: int, until: int, most: int = _LARGEST) -> list[PastFinding]:
        """Return the findings that a group had at any moment of this time, as :meth:`rebalances`."""
        rows = self._database.execute(
            "SELECT name, node, level, text, link, came, seen, went FROM findings WHERE grp = (SELECT id FROM groups"
            " WHERE name = ?) AND came <= ? AND coalesce(went, seen) >= ? ORDER BY came DESC, id DESC LIMIT ?",
            (_bytes(group), until, since, most),
        ).fetchall()
        return [PastFinding(row[0], _text(row[1]), *row[2:]) for row in reversed(rows)]


class HistoryFile(HistoryReader):
    """An open file that is written. Raises as its base class, also if the file cannot be made.

    Arguments: ``path`` of the file, and its ``limits``.
    """

    writes = True

    def __init__(self, path: str, limits: Limits) -> None:
        super().__init__(path)
        self._limits = limits
        try:
            self._database.execute(f"PRAGMA max_page_count = {max(LEAST_BYTES, limits.size) // _PAGE}")
            if not self._database.execute("PRAGMA user_version").fetchone()[0]:
                self._database.executescript(
                    f"PRAGMA application_id = {APPLICATION}; BEGIN IMMEDIATE; {_SCHEMA}"
                    f" PRAGMA user_version = {VERSION}; COMMIT;"
                )
            found = self._path.stat()
            self._inode = found.st_dev, found.st_ino
        except BaseException:
            self._database.close()
            raise

    @property
    def moved(self) -> bool:
        """Whether the file is not under its name any more. What is written to it then is lost."""
        try:
            found = self._path.stat()
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._inode

    def size(self) -> int:
        """Return the bytes that are in use."""
        pages, free = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")
        )
        return int(pages - free) * _PAGE

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the body writes, or nothing of it. Waits :data:`BUSY_SECONDS` for another process."""
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            yield

    def _id(self, group: str) -> int:
        name = _bytes(group)
        self._database.execute("INSERT OR IGNORE INTO groups (name) VALUES (?)", (name,))
        return int(self._database.execute("SELECT id FROM groups WHERE name = ?", (name,)).fetchone()[0])

    def add_samples(self, samples: Mapping[str, Iterable[Sample]]) -> None:
        """Add samples of minutes, and those of the ten minutes around them."""
        for group, found in samples.items():
            key = self._id(group)
            for one in found:
                numbers = (one.lag, one.consumed, one.produced, one.severity)
                rest = one.seconds, *(None if number is None else min(number, _LARGEST) for number in numbers)
                for span in (MINUTE, TEN_MINUTES):
                    self._database.execute(_ADD_SAMPLE, (key, span, one.at // span * span, *rest))

    def add_rebalances(self, group: str, found: Sequence[Rebalance]) -> None:
        """Add the rebalances that are newer than the newest known one, and those that have grown.

        After a restart the standing nodes tell of old rebalances again, in part. Their transactions are older.
        """
        number = self._id(group)
        (newest,) = self._database.execute("SELECT position FROM groups WHERE id = ?", (number,)).fetchone()
        position = newest
        for one in found:
            last = _position(one)
            row = (number, _name(one), _time(one) // 1000, len(one.events), _packed(one.events))
            if last > newest:
                self._database.execute(_ADD_REBALANCE, row)
                position = max(position, last)
        self._database.execute("UPDATE groups SET position = ? WHERE id = ?", (position, number))

    def begin_anew(self, group: str) -> None:
        """Forget the newest transaction of a group: ZooKeeper lost its data, and counts from less."""
        self._database.execute("UPDATE groups SET position = 0 WHERE id = ?", (self._id(group),))

    def note_findings(self, group: str, found: Sequence[Finding], now: int, *, complete: bool = True) -> None:
        """Note which findings a group has now: others went, new ones came. ``now`` is seconds since 1970.

        Nothing went if the reading was not ``complete``: the check may lack what was not read.
        """
        number = self._id(group)
        present = {(one.check, one.node): one for one in reversed(found)}  # the worst come first, and stay
        rows = self._database.execute(
            "SELECT id, name, node, level, came FROM findings WHERE grp = ? AND went IS NULL", (number,)
        ).fetchall()
        for key, check, node, level, came in rows:
            one = present.pop((check, _text(node)), None)
            if one is None and not complete:
                continue
            if one is None:
                self._database.execute("UPDATE findings SET went = ? WHERE id = ?", (max(now, came), key))
            else:
                worst = max(level, int(one.level))
                self._database.execute("UPDATE findings SET seen = ?, level = ? WHERE id = ?", (now, worst, key))
        for (check, node), one in present.items():
            text = _storable(one.text[:LONGEST])
            row = (number, check, _bytes(node), int(one.level), text, one.link, now, now)
            self._database.execute(_ADD_FINDING, row)

    def prune(self, now: int) -> None:
        """Delete what is too old, and what the clock was wrong about. ``now`` is seconds since 1970."""
        groups = [row[0] for row in self._database.execute("SELECT id FROM groups")]
        for number in groups:
            for span, age in ((MINUTE, min(MINUTES_KEPT, self._limits.age)), (TEN_MINUTES, self._limits.age)):
                this = "DELETE FROM samples WHERE grp = ? AND span = ? AND "
                self._database.execute(this + "at < ?", (number, span, now - age))
                self._database.execute(this + "at > ?", (number, span, now + DAY))
        self._forget(now - self._limits.age)

    def _forget(self, before: int) -> None:
        """Delete the rebalances and findings of before a time, and the groups of which nothing is left."""
        self._database.execute("DELETE FROM rebalances WHERE at < ?", (before,))
        self._database.execute("DELETE FROM findings WHERE went < ? OR seen < ?", (before, before))
        self._database.execute(_DELETE_EMPTY_GROUPS)

    def shrink(self) -> None:
        """Delete the oldest tenths of the samples, and what is as old, while the file is almost full.

        Samples are counted, and times are not: one sample of a clock that was years ahead must not age the others.
        """
        most = max(LEAST_BYTES, self._limits.size)
        if self.size() < most * _FULL:
            return
        query = "SELECT at / ? AS part, count(*) FROM samples GROUP BY part ORDER BY part"
        parts = self._database.execute(query, (TEN_MINUTES,)).fetchall()
        tenth, passed = sum(count for _, count in parts) / 10, 0
        for part, count in parts:
            if self.size() < most * _EMPTIED:
                return
            before, passed = passed, passed + count
            if passed // tenth > before // tenth:
                cut = (part + 1) * TEN_MINUTES
                self._database.execute("DELETE FROM samples WHERE at < ?", (cut,))
                self._forget(cut)


def _opened(path: Path, *, writes: bool) -> sqlite3.Connection:
    """Return a connection to a file of ours, or to a new file. Raises as :class:`HistoryFile`."""
    where = str(path)
    if not path.parent.is_dir():
        raise ConfigException("--history", f"{where} cannot be made: {path.parent} is no folder")
    if path.exists() and not path.is_file():
        raise ConfigException("--history", f"{where} is no file")
    if not writes and not path.exists():
        raise ConfigException("--history", f"there is no file {where}")
    if path.exists() and not os.access(path, os.R_OK | (os.W_OK if writes else 0)):
        raise ConfigException("--history", f"{where} cannot be {'written' if writes else 'read'}: permission denied")
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode={'rwc' if writes else 'ro'}"
    database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        mark, version, tables = (
            database.execute(statement).fetchone()[0]
            for statement in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if mark != APPLICATION and (tables or not writes):
            raise ConfigException("--history", f"{where} is a database of another program")
        if version > VERSION:
            raise ConfigException("--history", f"{where} was written by a newer release of zkconsumer")
    except BaseException:
        database.close()
        raise
    return database


def read_history(path: str) -> HistoryReader:
    """Return a file that is only read, while ``serve`` may write to it. Raises: ConfigException."""
    try:
        return HistoryReader(path)
    except (sqlite3.Error, OSError) as error:
        raise ConfigException("--history", f"{path} cannot be read: {error}") from None


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    try:
        return bytes(name).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # no name that we wrote
        raise sqlite3.DatabaseError(f"a name is damaged: {name!r}") from None


def _storable(text: str) -> str:
    """Return a text without what SQLite refuses."""
    return text.encode("utf-8", "backslashreplace").decode()


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _position(one: Rebalance) -> int:
    """Return where a rebalance stands: its last transaction, or when it was seen if it has none."""
    zxids = [event.zxid or event.before for event in one.events]
    return max(zxids, default=0) or _time(one)


def _time(one: Rebalance) -> int:
    """Return when a rebalance ended, in milliseconds since 1970, as far as it is known."""
    times = [event.at if event.at is not None else event.seen for event in one.events]
    return one.ended or max((at for at in times if at is not None), default=0)


def _name(one: Rebalance) -> str:
    """Return what a rebalance keeps while it grows: its first event."""
    first = one.events[0]
    where = first.zxid or f"{first.after}-{first.before}-{first.seen_after}"
    return _storable(f"{where} {first.kind.value} {first.member!a} {first.partition}")


def _packed(events: Sequence[TimelineEvent]) -> bytes:
    half = MOST_EVENTS // 2
    kept = events if len(events) <= MOST_EVENTS else (*events[:half], *events[-half:])
    return zlib.compress(json.dumps([one.document() for one in kept], separators=(",", ":")).encode())


def _unpacked(packed: bytes) -> Iterator[TimelineEvent]:
    """Yield the events of a rebalance. Raises: sqlite3.DatabaseError if they are damaged, which SQLite does not see."""
    try:
        found = json.loads(zlib.decompress(packed))
    except (zlib.error, ValueError) as error:
        raise sqlite3.DatabaseError(f"a rebalance is damaged: {error}") from None
    for one in found:
        topic = one["topic"]
        yield TimelineEvent(
            EventKind(one["event"]),
            one["zxid"],
            one["time"],
            one["member"] or "",
            None if topic is None else TopicPartition(topic, one["partition"]),
            one["detail"] or "",
            one["after_zxid"] or 0,
            one["before_zxid"] or 0,
            one["seen_after"],
            one["seen"],
        )
