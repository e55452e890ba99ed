"""A group on paper: a file of members and topics, for the size of a group before there is one.

::

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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zkconsumer.core.registration import BLACK_LIST, STATIC, WHITE_LIST, Registration
from zkconsumer.errors import ConfigException
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, MemberNode, TopicNode

MOST_BYTES = 16 * 1024 * 1024
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
        if Path(path).stat().st_size > MOST_BYTES:
            raise RegistrationsFileError(path, f"has more than {MOST_BYTES} bytes")
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
