"""Describes requests and responses as fields with versions, as Kafka's own definitions do, and writes and reads both.

Pure; any thread. One description serves every version, also the flexible ones (KIP-482: compact lengths, tagged
fields). A client writes requests and reads responses; a broker of the test kit uses the description the other way
round. Values are dictionaries by Kafka's field names in snake_case. Tagged fields are passed over, and none are
written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from struct import Struct
from typing import Any, Final, TypeAlias

from zkconsumer.core.byte_reader import ByteReader

Values = Mapping[str, Any]
Fields: TypeAlias = "tuple[Field, ...]"
"""The fields of a message or a structure."""

_LATEST: Final = 0x7FFF
MOST_ENTRIES: Final = 400_000
"""The most structures in the arrays of one message. One of three bytes takes a hundred times that in memory."""


class _Missing:
    """No default: the field must be given."""


REQUIRED: Final = _Missing()


class BodyReader(ByteReader):
    """Reads the fields of a message of one version. Argument: ``compact`` for flexible versions."""

    __slots__ = ("compact", "entries")

    def __init__(self, data: bytes, compact: bool) -> None:
        super().__init__(data)
        self.compact = compact
        self.entries = 0

    def unsigned(self) -> int:
        """Read a number of one to five bytes of seven bits each."""
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number has more than five bytes")

    def tags(self) -> None:
        """Pass tagged fields."""
        for _ in range(self.unsigned()):
            self.unsigned()
            self.take(self.unsigned())

    def text(self) -> str | None:
        """Read a text, or None."""
        if not self.compact:
            return self.nullable_string()
        size = self.unsigned() - 1
        return None if size < 0 else self.take(size).decode()

    def data(self) -> bytes | None:
        """Read a byte string, or None."""
        if not self.compact:
            return self.nullable_bytes()
        size = self.unsigned() - 1
        return None if size < 0 else self.take(size)

    def count(self) -> int:
        """Read the number of an array's entries, -1 for null."""
        found = self.unsigned() - 1 if self.compact else self.int32()
        if found > self.left:
            raise ValueError(f"{found} entries are announced, {self.left} bytes are there")
        return found

    def count_structures(self) -> int:
        """Read the number of an array's entries as ``count()``; all such arrays together have a limit."""
        found = self.count()
        self.entries += max(found, 0)
        if self.entries > MOST_ENTRIES:
            raise ValueError(f"more than {MOST_ENTRIES} entries are in one message")
        return found


@dataclass(frozen=True, slots=True, eq=False)
class FieldType:
    """One type of value: how it is written (value, whether compact) and read.

    ``number`` is the layout of a number; other types have none.
    """

    write: Callable[[Any, bool], bytes]
    read: Callable[[BodyReader], Any]
    number: Struct | None = None


def _number(letter: str) -> FieldType:
    layout = Struct(f">{letter}")
    return FieldType(
        lambda value, _: layout.pack(value), lambda reader: layout.unpack(reader.take(layout.size))[0], layout
    )


def unsigned(value: int) -> bytes:
    """Return a number as one to five bytes of seven bits each."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _sized(data: bytes | None, compact: bool, length: Struct) -> bytes:
    if data is None:
        return b"\0" if compact else length.pack(-1)
    return (unsigned(len(data) + 1) if compact else length.pack(len(data))) + data


_INT16 = Struct(">h")
_INT32 = Struct(">i")
_HEAD = Struct(">hhih")  # key, version, correlation id, length of the client id

BOOL = _number("?")
INT8 = _number("b")
INT16 = _number("h")
INT32 = _number("i")
INT64 = _number("q")
STRING = FieldType(
    lambda text, compact: _sized(None if text is None else text.encode(), compact, _INT16), BodyReader.text
)
BYTES = FieldType(lambda data, compact: _sized(data, compact, _INT32), BodyReader.data)


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field, in the versions ``since`` to ``until``; ``default`` is used if no value is given.

    ``kind`` is its type, or a tuple of fields for a structure; with ``many`` it is an array of that.
    """

    name: str
    kind: FieldType | Fields
    since: int = 0
    until: int = _LATEST
    default: Any = REQUIRED
    many: bool = False


def many(name: str, *fields: Field) -> Field:
    """Return the field of an array of structures, in all versions."""
    return Field(name, fields, many=True)


def by_topic(topic: Field, *fields: Field) -> Field:
    """Return the field of an array of topics, each with an array of partitions of these fields."""
    return many("topics", topic, many("partitions", *fields))


def throttle_time(since: int) -> Field:
    """Return the field that every response has from a version on."""
    return Field("throttle_time_ms", INT32, since, default=0)


@dataclass(frozen=True, slots=True, eq=False)
class ApiSchema:
    """A request and its response, in versions ``lowest`` to ``highest``; those from ``flexible`` on are compact."""

    key: int
    name: str
    lowest: int
    highest: int
    flexible: int
    request: Fields
    response: Fields

    def compact(self, version: int) -> bool:
        """Return whether this version has compact fields, tags, and the headers that go with them."""
        return version >= self.flexible

    def write(self, fields: Fields, version: int, values: Values) -> bytes:
        """Return the body of the ``request`` or ``response`` with these fields.

        Raises: ValueError for a version or a number out of range, KeyError for a missing value.
        """
        self._check(version)
        try:
            return _write_structure(fields, version, self.compact(version), values)
        except struct.error as failure:
            raise ValueError(f"{self.name} {version} cannot be written: {failure}") from failure

    def read(self, fields: Fields, version: int, data: bytes) -> dict[str, Any]:
        """Return the field values in the body of a ``request`` or ``response``. Raises ValueError if malformed."""
        self._check(version)
        reader = BodyReader(data, self.compact(version))
        found = _read_structure(fields, version, reader)
        if reader.left:
            raise ValueError(f"{self.name} {version} is followed by {reader.left} bytes")
        return found

    def _check(self, version: int) -> None:
        if not self.lowest <= version <= self.highest:
            raise ValueError(f"{self.name} {version} is not described, only {self.lowest} to {self.highest}")


@cache
def _present(fields: Fields, version: int) -> Fields:
    return tuple(field for field in fields if field.since <= version <= field.until)


@cache
def _steps(fields: Fields, version: int) -> Sequence[tuple[tuple[str, ...], Struct | Field]]:
    """Return the fields of a version, and in place of numbers that are neighbours the ``Struct`` that reads them."""
    steps: list[tuple[tuple[str, ...], Struct | Field]] = []
    for numbers, run in groupby(_present(fields, version), lambda field: bool(_layout(field))):
        found = tuple(run)
        if numbers:
            layout = "".join(map(_layout, found))
            steps.append((tuple(field.name for field in found), Struct(f">{layout}")))
        else:
            steps += (((field.name,), field) for field in found)
    return steps


def _layout(field: Field) -> str:
    """Return the layout of a field that is one number; empty for others."""
    kind = field.kind
    if field.many or not isinstance(kind, FieldType) or kind.number is None:
        return ""
    return kind.number.format[1:]


def _write_structure(fields: Fields, version: int, compact: bool, values: Values) -> bytes:
    written = bytearray()
    for field in _present(fields, version):
        value = values[field.name] if isinstance(field.default, _Missing) else values.get(field.name, field.default)
        if not field.many:
            written += _write_one(field.kind, version, compact, value)
            continue
        size = -1 if value is None else len(value)
        written += unsigned(size + 1) if compact else _INT32.pack(size)
        for entry in value or ():
            written += _write_one(field.kind, version, compact, entry)
    if compact:
        written += b"\0"  # no tagged fields
    return bytes(written)


def _write_one(kind: FieldType | Fields, version: int, compact: bool, value: Any) -> bytes:
    return (
        kind.write(value, compact) if isinstance(kind, FieldType) else _write_structure(kind, version, compact, value)
    )


def _read_structure(fields: Fields, version: int, reader: BodyReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for names, step in _steps(fields, version):
        if isinstance(step, Struct):
            found.update(zip(names, step.unpack(reader.take(step.size)), strict=True))
        elif step.many:
            found[step.name] = _read_many(step.kind, version, reader)
        else:
            found[step.name] = _read_one(step.kind, version, reader)
    if reader.compact:
        reader.tags()
    return found


def _read_one(kind: FieldType | Fields, version: int, reader: BodyReader) -> Any:
    return kind.read(reader) if isinstance(kind, FieldType) else _read_structure(kind, version, reader)


def _read_many(kind: FieldType | Fields, version: int, reader: BodyReader) -> list[Any] | None:
    if not isinstance(kind, FieldType):
        count = reader.count_structures()
        return None if count < 0 else [_read_structure(kind, version, reader) for _ in range(count)]
    count = reader.count()
    if count < 0:
        return None
    if kind.number is not None:
        return [value for (value,) in kind.number.iter_unpack(reader.take(count * kind.number.size))]
    return [kind.read(reader) for _ in range(count)]


class ApiRequest:
    """One request: a schema, a version and the field values."""

    def __init__(self, message: ApiSchema, version: int, values: Values) -> None:
        self.message = message
        self.version = version
        self._values = values

    @property
    def name(self) -> str:
        """The request and its version, for errors."""
        return f"{self.message.name} {self.version}"

    def encode(self, correlation_id: int, client_id: str) -> bytes:
        """Return the request as its bytes, length and header included.

        Raises: ValueError for a value out of range, KeyError for a missing one.
        """
        client = client_id.encode()  # never compact, so that a broker can read the head of any version
        tags = b"\0" if self.message.compact(self.version) else b""
        body = self.message.write(self.message.request, self.version, self._values)
        head = _HEAD.pack(self.message.key, self.version, correlation_id, len(client))
        length = len(head) + len(client) + len(tags) + len(body)
        return b"".join((_INT32.pack(length), head, client, tags, body))

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Return the response, from behind its correlation id on. Raises ValueError for bytes that are none."""
        if self.message.compact(self.version):
            reader = BodyReader(payload, compact=True)
            reader.tags()
            payload = reader.take(reader.left)
        return self.message.read(self.message.response, self.version, payload)
