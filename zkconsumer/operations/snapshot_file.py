"""Files that stand for a cluster: group snapshots, and a group on paper. Any thread.

A file of snapshots has one JSON document a line, each with its format and version. So a snapshot can be appended, sent
to somebody else, and read by every command in place of a cluster. The reader trusts nothing in a file: unknown names,
wrong types and numbers out of range are errors that name the line and the place. Values that are the default are left
out.

A group on paper is a file of members and topics, for the size of a group before there is one::

    {"strategy": "range",
     "topics": {"events": 24},
     "members": [{"host": "web", "count": 3, "streams": 2},
                 {"id": "g_batch", "subscription": {"events": 1}, "pattern": "static"}]}

A topic has a number of partitions. A member has a ``host`` or an ``id``, and subscribes to ``topics`` (default: all)
with ``streams`` (default: 1) each, or has the ``subscription`` and ``pattern`` of a registration. ``count`` makes
several members of one host. With a ``strategy`` all members advertise it; without, they are like Scala members.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from zkconsumer.core.names import name_problem
from zkconsumer.core.registration import BLACK_LIST, STATIC, WHITE_LIST, Registration
from zkconsumer.errors import ConfigException
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, MemberNode, TopicNode

FORMAT: Final = "zkconsumer group snapshot"
VERSION: Final = 1
MOST_BYTES = 512 * 1024 * 1024
"""The largest file that is read. A snapshot of 10,000 members and 10,000 partitions has some 5 MB."""
MOST_SNAPSHOTS = 100_000

_INT64 = range(-(1 << 63), 1 << 63)
_INT32 = range(-(1 << 31), 1 << 31)
_DEEPEST = 250
"""Deeper than a registration that is read, with the levels around it. So each file that was written can be read."""


class SnapshotFileError(ValueError):
    """A line is no snapshot; the text says where and why."""


# ---- writing


def format_snapshot(snapshot: GroupSnapshot) -> str:
    """Return a snapshot as one line, with its end."""
    document = {"format": FORMAT, "version": VERSION, **_written(snapshot)}
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n"


def _written(value: Any) -> Any:
    kind = value.__class__
    if kind in (int, str, bool) or value is None:
        return value
    if kind is float:  # 1e999 in a registration is infinite, which JSON has no number for
        return value if math.isfinite(value) else str(value)
    if isinstance(value, TopicPartition):
        return _key(value)
    if isinstance(value, Mapping):
        return {_key(key): _written(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_written(one) for one in value]
    if not is_dataclass(kind):
        return value
    found = {}
    for name, default in _defaults_of(type(value)):
        content = getattr(value, name)
        if content != default or content.__class__ is not default.__class__:
            found[name] = _written(content)
    return found


_DEFAULTS: dict[Any, tuple[tuple[str, Any], ...]] = {}


def _defaults_of(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a class with their defaults."""
    if kind not in _DEFAULTS:
        _DEFAULTS[kind] = tuple(
            (one.name, one.default_factory() if one.default_factory is not MISSING else one.default)
            for one in fields(kind)
        )
    return _DEFAULTS[kind]


def _key(key: object) -> str:
    return f"{key.topic}:{key.partition}" if isinstance(key, TopicPartition) else str(key)


# ---- reading


def parse_snapshot(text: str) -> GroupSnapshot:
    """Return the snapshot in a line. Raises SnapshotFileError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SnapshotFileError(f"it is no JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise SnapshotFileError("it was not written by zkconsumer snapshot")
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        raise SnapshotFileError(f"it has version {str(version)[:20]!a}, this program knows {VERSION}")
    rest = {name: value for name, value in document.items() if name not in ("format", "version")}
    found = _read(GroupSnapshot, rest, "the snapshot", 0)
    assert isinstance(found, GroupSnapshot)
    return found


@cache
def _types_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: Any, where: str, depth: int) -> Any:
    """Return a value of this type, made of JSON. ``where`` names the place in errors."""
    kind = getattr(kind, "__supertype__", kind)  # NewType
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if depth > _DEEPEST:
        raise SnapshotFileError(f"{where} is nested too deeply")
    if origin is types.UnionType or origin is typing.Union:
        return None if value is None else _read(parts[0], value, where, depth)
    if kind is object:
        return _free(value, where, depth)
    if kind is TopicPartition:
        return _partition(value, where)
    if kind in (bool, int, str):
        return _plain(kind, value, where)
    if origin is tuple:
        return _tuple(parts, value, where, depth)
    if origin in (Mapping, dict):
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        return {
            _read_key(parts[0], key, where): _read(parts[1], one, f"{where}[{key[:80]!a}]", depth + 1)
            for key, one in value.items()
        }
    return _read_fields(kind, value, where, depth)


def _read_fields(kind: type, value: Any, where: str, depth: int) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    hints = _types_of(kind)
    for name in value:
        if name not in hints:
            raise SnapshotFileError(f"{where} has the unknown field {name[:80]!a}")
    read = {
        name: _read(hints[name], one, f"{where}, {name}" if depth == 0 else f"{where}.{name}", depth + 1)
        for name, one in value.items()
    }
    try:
        return kind(**read)
    except TypeError:
        needed = [one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING]
        missing = ", ".join(name for name in needed if name not in read)
        raise SnapshotFileError(f"{where} lacks {missing}") from None


def _tuple(parts: Sequence[Any], value: Any, where: str, depth: int) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(where, "a list", value)
    if parts[-1] is ...:
        return tuple(_read(parts[0], one, f"{where}[{at}]", depth + 1) for at, one in enumerate(value))
    if len(value) != len(parts):
        raise _wrong(where, f"a list of {len(parts)}", value)
    return tuple(
        _read(part, one, f"{where}[{at}]", depth + 1) for at, (part, one) in enumerate(zip(parts, value, strict=True))
    )


def _read_key(kind: Any, key: str, where: str) -> Any:
    kind = getattr(kind, "__supertype__", kind)
    if kind is not int:
        return _read(kind, key, f"{where}: the key {key[:80]!a}", 0)
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(key) in _INT64):
        raise SnapshotFileError(f"{where}: the key {key[:80]!a} is no number")
    return int(key)


def _plain(kind: type, value: Any, where: str) -> Any:
    if kind is not int and isinstance(value, kind):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        if value in _INT64:
            return value
        raise SnapshotFileError(f"{where} is out of range")
    raise _wrong(where, {bool: "true or false", int: "a whole number", str: "text"}[kind], value)


def _partition(value: Any, where: str) -> TopicPartition:
    topic, colon, number = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    unsigned = number.removeprefix("-")  # as the original, topic nodes may have negative numbers
    digits = unsigned.isascii() and unsigned.isdecimal() and len(unsigned) < 11
    if colon and name_problem(topic) is None and digits and int(number) in _INT32:
        return TopicPartition(topic, int(number))
    raise _wrong(where, "a partition as topic:number", value)


def _free(value: Any, where: str, depth: int) -> object:
    """Check what a member advertises: any JSON, but not too deep."""
    if depth > _DEEPEST:
        raise SnapshotFileError(f"{where} is nested too deeply")
    if isinstance(value, dict):
        return {key: _free(one, where, depth + 1) for key, one in value.items()}
    if isinstance(value, list):
        return [_free(one, where, depth + 1) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise SnapshotFileError(f"{where} is not a number")
    return value


def _wrong(where: str, wanted: str, value: object) -> SnapshotFileError:
    return SnapshotFileError(f"{where} should be {wanted}, not {repr(value)[:60]!a}")


# ---- files


def write_snapshots(path: str, snapshots: Sequence[GroupSnapshot], *, append: bool = False) -> None:
    """Write snapshots to a file. Raises ConfigException that names the file.

    Arguments: with ``append`` they go behind those that are there.
    """
    text = "".join(map(format_snapshot, snapshots))
    try:
        with Path(path).open("a" if append else "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        raise ConfigException(path, f"cannot be written: {error.strerror}") from None


def read_snapshots(path: str) -> list[GroupSnapshot]:
    """Return the snapshots in a file, in its order. Raises ConfigException that names the file and the line."""
    found: list[GroupSnapshot] = []
    try:
        if (size := Path(path).stat().st_size) > MOST_BYTES:
            raise ConfigException(path, f"has {size} bytes, and {MOST_BYTES} are read at most; divide it by lines")
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                if len(found) == MOST_SNAPSHOTS:
                    raise ConfigException(path, f"has more than {MOST_SNAPSHOTS} snapshots; divide it by lines")
                try:
                    found.append(parse_snapshot(line))
                except SnapshotFileError as error:
                    raise ConfigException(path, f"line {number}: {error}") from None
    except OSError as error:
        raise ConfigException(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigException(path, "is no text; a file of 'zkconsumer snapshot' is wanted") from None
    if not found:
        raise ConfigException(path, "is empty; a file of 'zkconsumer snapshot' is wanted")
    return found


class FileSource:
    """The snapshots of several files, by group in the order of their times.

    Arguments: ``names`` of the files. Raises ConfigException.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._by_group: dict[str, list[GroupSnapshot]] = {}
        for name in names:
            for snapshot in read_snapshots(name):
                self._by_group.setdefault(snapshot.group, []).append(snapshot)
        for snapshots in self._by_group.values():
            snapshots.sort(key=lambda one: one.taken)

    def groups(self) -> Sequence[str]:
        """Return the names of the groups, sorted."""
        return sorted(self._by_group)

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        """Return the latest snapshot of the group; an empty one if the files have none."""
        del message_times  # they are in the file, or not
        found = self._by_group.get(group)
        latest = max((one.taken for snapshots in self._by_group.values() for one in snapshots), default=0)
        return found[-1] if found else GroupSnapshot(group, latest)

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        """Return all snapshots of the group, oldest first."""
        return tuple(self._by_group.get(group, ()))

    def close(self) -> None:
        """Do nothing: the files are closed."""


MOST_FILE_BYTES = 16 * 1024 * 1024
MOST_MEMBERS = 10_000
MOST_PARTITIONS = 200_000
MOST_STREAMS = 1_000
_KEYS = ("group", "strategy", "topics", "members")
_MEMBER_KEYS = ("host", "id", "count", "streams", "topics", "subscription", "pattern")


class RegistrationsFileError(ConfigException):
    """A file of registrations cannot be used; the message names the file and the place."""


def read_registrations(path: str, group: str | None = None) -> GroupSnapshot:
    """Return the group that a file describes, as a snapshot without owners. Raises RegistrationsFileError.

    ``group`` is the group's name if the file has none; by default ``group``.
    """
    try:
        if Path(path).stat().st_size > MOST_FILE_BYTES:
            raise RegistrationsFileError(path, f"has more than {MOST_FILE_BYTES} bytes")
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RegistrationsFileError(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RegistrationsFileError(path, f"is no JSON: {error}") from None
    return _Reader(path, group).read(document)


class _Reader:
    """Checks every value before it is used."""

    def __init__(self, path: str, group: str | None) -> None:
        self._path = path
        self._group = group

    def read(self, document: Any) -> GroupSnapshot:
        found = self._object(document, "the file", _KEYS)
        group = self._text(found.get("group", self._group or "group"), "group")
        topics = {
            name: tuple(range(self._number(count, f"topics: {name!a}", 0, MOST_PARTITIONS)))
            for name, count in self._object(found.get("topics"), "topics").items()
        }
        if sum(map(len, topics.values())) > MOST_PARTITIONS:
            raise self._wrong("topics", f"have more than {MOST_PARTITIONS} partitions together")
        listed = found.get("members")
        if not isinstance(listed, list):
            raise self._wrong("members", "are no list")
        strategy = found.get("strategy")
        extra = {} if strategy is None else {"zkconsumer": "", "strategy": self._text(strategy, "strategy")}
        members: dict[ConsumerId, MemberNode] = {}
        for at, one in enumerate(listed):
            for consumer, registration in self._members(one, f"members[{at}]", group, topics, extra):
                if consumer in members:
                    raise self._wrong(f"members[{at}]", f"has the id {consumer!a} of another member")
                members[consumer] = MemberNode(registration, None)
                if len(members) > MOST_MEMBERS:
                    raise self._wrong("members", f"are more than {MOST_MEMBERS}")
        return GroupSnapshot(
            group,
            0,
            zookeeper=self._path,
            members=members,
            topics={name: TopicNode(numbers) for name, numbers in topics.items()},
            logs={TopicPartition(name, n): LogState() for name, numbers in topics.items() for n in numbers},
        )

    def _members(
        self, value: Any, where: str, group: str, topics: Mapping[str, Any], extra: Mapping[str, object]
    ) -> Iterator[tuple[ConsumerId, Registration]]:
        one = self._object(value, where, _MEMBER_KEYS)
        registration = self._registration(one, where, topics, extra)
        if ("id" in one) == ("host" in one):
            raise self._wrong(where, "needs either a host or an id")
        if "id" in one:
            if "count" in one:
                raise self._wrong(where, "has an id, which only one member can have, and a count")
            yield ConsumerId(self._text(one["id"], f"{where}.id")), registration
            return
        host = self._text(one["host"], f"{where}.host")
        count = self._number(one.get("count", 1), f"{where}.count", 1, MOST_MEMBERS)
        width = len(str(count))
        for number in range(1, count + 1):
            name = host if count == 1 else f"{host}-{number:0{width}d}"  # zeros, so that names sort by number
            yield ConsumerId(f"{group}_{name}"), registration

    def _registration(
        self, one: Mapping[str, Any], where: str, topics: Mapping[str, Any], extra: Mapping[str, object]
    ) -> Registration:
        pattern = one.get("pattern", STATIC)
        if pattern not in (STATIC, WHITE_LIST, BLACK_LIST):
            raise self._wrong(f"{where}.pattern", f"is none of {STATIC}, {WHITE_LIST}, {BLACK_LIST}")
        if "subscription" in one:
            if "streams" in one or "topics" in one:
                raise self._wrong(where, "has a subscription, which has topics and streams itself")
            given = self._object(one["subscription"], f"{where}.subscription")
            wanted = {t: self._number(n, f"{where}.subscription", 1, MOST_STREAMS) for t, n in given.items()}
            return Registration(pattern, wanted, extra=extra)
        streams = self._number(one.get("streams", 1), f"{where}.streams", 1, MOST_STREAMS)
        names = one.get("topics", sorted(topics))
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._wrong(f"{where}.topics", "is no list of names")
        for name in names:
            if name not in topics:
                raise self._wrong(f"{where}.topics", f"has {name!a}, which is not among the file's topics")
        return Registration(STATIC, dict.fromkeys(names, streams), extra=extra)

    # ---- checks

    def _wrong(self, where: str, said: str) -> RegistrationsFileError:
        return RegistrationsFileError(self._path, f"{where} {said}")

    def _object(self, value: Any, where: str, known: tuple[str, ...] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(where, "is no object with keys and values")
        for key in value:
            if known and key not in known:
                raise self._wrong(where, f"has the unknown key {key[:60]!a}; known are {', '.join(known)}")
        return value

    def _text(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._wrong(where, "is no text")
        return value

    def _number(self, value: Any, where: str, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._wrong(where, f"is no number from {least} to {most}")
        return value
