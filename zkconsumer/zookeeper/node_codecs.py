"""Bytes of nodes <-> typed records. Pure; any thread.

Nodes of others are never trusted: whatever the bytes are, a decoder returns a value or raises MalformedNodeError with
the node's path, and nothing else.

All members must see the same group, so a decoder accepts and refuses the same nodes as the original (1.1.1). Accepted:

- text after the first JSON document, and duplicate keys (the last wins);
- bytes that are no UTF-8 outside of names (read as U+FFFD);
- a lone backslash in a string, which 1.0.1 and later read as itself on a second try (KAFKA-6319).

Refused on purpose, although the original might accept them, since they would only exhaust memory:

- nodes over 1 MB, and registrations over 128 kB;
- nesting deeper than 200 levels (the original's parser overflows its stack somewhere beyond);
- more than 100,000 streams of one member.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from zkconsumer.core.names import name_problem
from zkconsumer.core.registration import MAX_REGISTRATION_BYTES, Registration
from zkconsumer.core.subscription import topic_filter
from zkconsumer.core.topic_filter import InvalidTopicFilterError
from zkconsumer.errors import MalformedNodeError
from zkconsumer.model import Endpoint, ThreadId
from zkconsumer.zookeeper import paths

MAX_NODE_BYTES = 1 << 20
"""ZooKeeper's own limit for one node (jute.maxbuffer)."""

MAX_STREAMS = 100_000
"""The streams one registration may claim for a topic."""


class _Unreadable(bytes):
    """The content of a node that we may not read."""


UNREADABLE: Final[bytes] = _Unreadable()
"""Stands for the content of a node that ZooKeeper does not let us read. Every decoder raises MalformedNodeError for it,
so that the node does no more harm than any other malformed one.
"""

_MAX_DEPTH = 200
_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?+|[\[\]{}]', re.DOTALL)
_JAVA_INTEGER = re.compile(r"[+-]?[^\W\U00010000-\U0010ffff]{1,4000}")
_ENDPOINT = re.compile(
    r"(?P<listener>[^/]*)://(?:\[(?P<v6>[^\]]*)\]|(?P<host>[0-9A-Za-z\-%._]*)):(?P<port>-?[0-9]{1,5})", re.A
)
_KNOWN_KEYS = ("version", "subscription", "pattern", "timestamp")


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker as it registered itself: ``version`` is the format of its JSON (1 to 5), never without ``endpoints``."""

    broker_id: int
    version: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition's leader (-1: none), the leader's epoch and the in-sync replicas."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


class _NotJson(Exception):
    """The text is no JSON document: "no partitions" in a topic node, an error in any other node."""


# --- JSON as the original's parser reads it ---------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _integer(digits: str) -> int | str:
    """Convert a number, but leave very long ones as text: converting a million digits takes minutes."""
    return int(digits) if len(digits) <= 20 else digits + " "


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_integer)


def _too_deep(text: str) -> bool:
    """Return whether brackets nest beyond our limit.

    They are counted before parsing, so that the verdict does not depend on our own stack.
    """
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return False
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        if token[0] in ("[", "{"):
            depth += 1
            if depth > _MAX_DEPTH:
                return True
        elif token[0] in ("]", "}"):
            depth -= 1
    return False


def _text(data: bytes | None, path: str) -> str:
    if data is None:
        raise MalformedNodeError(path, "the node has no data")
    if data is UNREADABLE:
        raise MalformedNodeError(path, "ZooKeeper does not let us read it; check the node's ACL")
    if len(data) > MAX_NODE_BYTES:
        raise MalformedNodeError(path, f"{len(data)} bytes are more than a node can hold")
    return data.decode("utf-8", "replace")


def _first_document(text: str) -> object:
    """Return the first JSON document in ``text``; ignore the rest. Raises _NotJson."""
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        return _DECODER.raw_decode(text, start)[0]
    except (ValueError, RecursionError) as error:
        raise _NotJson(str(error)) from None


def _json(data: bytes | None, path: str) -> object:
    text = _text(data, path)
    if _too_deep(text):
        raise MalformedNodeError(path, f"JSON nested deeper than {_MAX_DEPTH} levels")
    try:
        return _first_document(text)
    except _NotJson:
        if "\\" not in text:
            raise
        return _first_document(text.replace("\\", "\\\\"))


def _json_object(data: bytes | None, path: str) -> dict[str, object]:
    try:
        return _object(_json(data, path), path, "the node")
    except _NotJson as error:
        raise MalformedNodeError(path, f"not JSON: {error}; the node starts with {_excerpt(data)}") from None


def _excerpt(data: bytes | None) -> str:
    return repr((data or b"")[:60])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _object(value: object, path: str, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise MalformedNodeError(path, f"{what} should hold a JSON object, not {_shown(value)}")
    return value


def _int(value: object, path: str, what: str) -> int:
    """Return a JSON integer of 32 bits. The original reads neither 1.0 nor "1" nor true as one."""
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT32:
        raise MalformedNodeError(path, f"{what} should be a 32-bit integer, not {_shown(value)}")
    return value


def _java_integer(text: str, allowed: range) -> int | None:
    """Return the number as Java's ``parseInt`` or ``parseLong`` reads it, or None if Java refuses the text.

    Java accepts a sign and digits of any script, and no blanks.
    """
    if _JAVA_INTEGER.fullmatch(text) is None:
        return None
    try:
        value = int(text.replace("_", "x"))
    except ValueError:
        return None
    return value if value in allowed else None


# --- members ----------------------------------------------------------------------------------------------------------


def _check_extra(value: object, where: str) -> None:
    """Refuse numbers beyond 32 bits: members up to 0.11 cannot read them, and that stops the whole group."""
    if isinstance(value, float) or (isinstance(value, int) and value not in _INT32):
        raise ValueError(f"{where}: {value!r} would stop the rebalance of old members; write it as text")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: the key {key!r} is no text")
            _check_extra(inner, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_extra(inner, f"{where}[{index}]")
    elif value is not None and not isinstance(value, str | int):
        raise ValueError(f"{where}: {value!r} cannot be written as JSON")


def encode_registration(registration: Registration) -> bytes:
    """Return the bytes of a member's node: compact JSON, keys in the original's order, extra keys after them.

    Raises ValueError for content that would stop the group: stream counts that are no integers from 1 to 100,000, more
    than 128 kB in all, numbers beyond 32 bits or not finite, lone surrogates. An expression is escaped exactly once, as
    JSON wants it; 1.0.1 to 1.1.1 escape their own twice and then match nothing.
    """
    for name, streams in registration.subscription.items():
        if not isinstance(streams, int) or isinstance(streams, bool) or not 1 <= streams <= MAX_STREAMS:
            raise ValueError(
                f"subscription: {streams!r} streams for {name!r}; it must be an integer from 1 to {MAX_STREAMS}"
            )
    document: dict[str, object] = {
        "version": registration.version,
        "subscription": dict(registration.subscription),
        "pattern": registration.pattern,
        "timestamp": registration.timestamp,
    }
    for key in registration.extra:
        if key in document:
            raise ValueError(f"extra: the key {key!r} belongs to the registration itself")
    _check_extra(registration.extra, "extra")
    _check_extra(registration.version, "version")
    document.update(registration.extra)
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")
    if len(data) > MAX_REGISTRATION_BYTES:
        raise ValueError(
            f"subscription: it takes {len(data)} bytes to register, more than the {MAX_REGISTRATION_BYTES} that other"
            " members read; subscribe to fewer topics, or by an expression"
        )
    return data


def decode_registration(data: bytes | None, path: str) -> Registration:
    """Return the subscription of the member whose node is at ``path``.

    ``pattern`` and ``subscription`` are required; ``version`` and ``timestamp`` are neither required nor checked.
    Raises MalformedNodeError, also for an invalid expression.
    """
    if data is not None and len(data) > MAX_REGISTRATION_BYTES:
        raise MalformedNodeError(
            path, f"{len(data)} bytes are more than the {MAX_REGISTRATION_BYTES} of a registration that is read"
        )
    document = _json_object(data, path)
    pattern = document.get("pattern")
    if not isinstance(pattern, str):
        raise MalformedNodeError(path, f"pattern should be text, not {_shown(pattern)}")
    if "subscription" not in document:
        raise MalformedNodeError(path, "subscription is missing")
    subscription = {
        name: _int(streams, path, f"the number of streams for {_shown(name)}")
        for name, streams in _object(document["subscription"], path, "subscription").items()
    }
    version, timestamp = document.get("version"), document.get("timestamp")
    registration = Registration(
        pattern=pattern,
        subscription=subscription,
        timestamp=timestamp if isinstance(timestamp, str) else "" if timestamp is None else _shown(timestamp),
        version=version if isinstance(version, int) and not isinstance(version, bool) and version in _INT64 else 1,
        extra={key: value for key, value in document.items() if key not in _KNOWN_KEYS},
    )
    _check_subscription(registration, path)
    return registration


def _check_subscription(registration: Registration, path: str) -> None:
    """Check counts and names as the original does, which ignores further entries of a wildcard."""
    used = [registration.wildcard] if registration.is_wildcard else registration.subscription.items()
    for name, streams in used:
        if not 1 <= streams <= MAX_STREAMS:
            raise MalformedNodeError(path, f"{streams} streams for {_shown(name)}; expected 1 to {MAX_STREAMS}")
        problem = None if registration.is_wildcard else name_problem(name, slash_allowed=True)
        if problem is not None:
            raise MalformedNodeError(path, f"the topic {_shown(name)}: {problem}")
    try:
        topic_filter(registration)
    except InvalidTopicFilterError as error:
        raise MalformedNodeError(path, str(error)) from None


# --- owners and offsets -----------------------------------------------------------------------------------------------


def encode_owner(thread: ThreadId) -> bytes:
    """Return the content of an owner node: the thread id as plain text."""
    return thread.encode("utf-8")


def decode_owner(data: bytes | None, path: str) -> ThreadId:
    """Return the thread id in the owner node at ``path``. Raises MalformedNodeError if it holds no text."""
    text = _text(data, path)
    if not text or "\ufffd" in text:
        raise MalformedNodeError(path, f"should hold a thread id, not {_excerpt(data)}")
    return ThreadId(text)


def encode_offset(offset: int) -> bytes:
    """Return the content of an offset node: the next offset to consume, in decimal. Raises ValueError."""
    if offset not in _INT64:
        raise ValueError(f"{offset} does not fit into an offset")
    return b"%d" % offset


def decode_offset(data: bytes | None, path: str) -> int:
    """Return the next offset to consume; negative means "none, use auto.offset.reset". Raises MalformedNodeError.

    The text is read as the original does, with Java's ``Long.parseLong``: a leading ``+`` is fine, blanks are not.
    """
    text = _text(data, path)
    value = _java_integer(text, _INT64)
    if value is None:
        raise MalformedNodeError(path, f"should hold an offset as decimal text, not {_excerpt(data)}")
    return value


# --- brokers and topics -----------------------------------------------------------------------------------------------


def decode_broker(data: bytes | None, path: str) -> RegisteredBroker:
    """Return a broker's registration, in formats 1 to 5 and later ones. Raises MalformedNodeError.

    Format 1 has one PLAINTEXT endpoint, ``host`` and ``port``. Later formats list ``endpoints``; there the two fields
    are ignored, and are null and -1 if no listener is PLAINTEXT. Endpoints that cannot be read are left out.
    """
    try:
        broker_id = paths.parse_broker(path)
    except ValueError as error:
        raise MalformedNodeError(path, str(error)) from None
    document = _json_object(data, path)
    version = _int(document.get("version"), path, "version")
    if version < 1:
        raise MalformedNodeError(path, f"version {version} is not one that brokers write")
    rack = document.get("rack")
    rack = rack if isinstance(rack, str) else None
    if version == 1:
        host, port = document.get("host"), _int(document.get("port"), path, "port")
        if not isinstance(host, str) or not host:
            raise MalformedNodeError(path, f"host should be text, not {_shown(host)}")
        return RegisteredBroker(
            broker_id, version, (Endpoint(broker_id, host, port, version, "PLAINTEXT", rack),), rack
        )
    listed = document.get("endpoints")
    if not isinstance(listed, list):
        raise MalformedNodeError(path, f"endpoints should be a list, not {_shown(listed)}")
    protocols = document.get("listener_security_protocol_map")
    protocols = protocols if isinstance(protocols, dict) else {}
    read = [_endpoint(text, broker_id, version, protocols, rack) for text in listed]
    endpoints = tuple(endpoint for endpoint in read if endpoint is not None)
    if not endpoints:
        raise MalformedNodeError(path, f"no endpoint can be read in {_shown(listed)}")
    return RegisteredBroker(broker_id, version, endpoints, rack)


def _endpoint(
    text: object, broker_id: int, version: int, protocols: Mapping[str, object], rack: str | None
) -> Endpoint | None:
    found = _ENDPOINT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    listener, port = found["listener"], int(found["port"])
    protocol = protocols.get(listener, protocols.get(listener.upper(), listener))
    if not isinstance(protocol, str) or not -1 <= port <= 65535:
        return None
    host = found["v6"] if found["v6"] is not None else found["host"]
    return Endpoint(broker_id, host, port, version, protocol.upper(), rack)


def decode_topic(data: bytes | None, path: str) -> tuple[int, ...]:
    """Return a topic's partition numbers, ascending; gaps are legal. Raises MalformedNodeError.

    As in the original, text that is no JSON, or JSON without ``partitions``, means no partitions (yet). "00" and "+1"
    fold onto 0 and 1, and "-1" is a number. Null data is an error.
    """
    try:
        document = _object(_json(data, path), path, "the node")
    except _NotJson:
        return ()
    if "partitions" not in document:
        return ()
    numbers: set[int] = set()
    for key, replicas in _object(document["partitions"], path, "partitions").items():
        number = _java_integer(key, _INT32)
        if number is None:
            raise MalformedNodeError(path, f"{_shown(key)} is no partition number")
        _ints(replicas, path, f"the replicas of partition {number}")
        numbers.add(number)
    return tuple(sorted(numbers))


def _ints(value: object, path: str, what: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise MalformedNodeError(path, f"{what} should be a list, not {_shown(value)}")
    return tuple(_int(item, path, what) for item in value)


def decode_partition_state(data: bytes | None, path: str) -> PartitionState:
    """Return a partition's leader and in-sync replicas. Raises MalformedNodeError."""
    document = _json_object(data, path)
    return PartitionState(
        leader=_int(document.get("leader"), path, "leader"),
        leader_epoch=_int(document.get("leader_epoch"), path, "leader_epoch"),
        isr=_ints(document.get("isr"), path, "isr"),
    )
