"""Describes requests and responses as fields with versions, as Kafka's own definitions do, and writes and reads both.

Pure; any thread. One description serves every version, also the flexible ones (KIP-482: compact lengths, tagged
fields). It serves both sides: a client writes requests and reads responses, a broker of the test kit the other way
round. Values are dictionaries by Kafka's field names in snake_case. Tagged fields are passed over, and none are
written. The client library lacks most versions of the group requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from zkconsumer.core.byte_reader import ByteReader

Values = Mapping[str, Any]

_LATEST: Final = 0x7FFF
MOST_ENTRIES: Final = 400_000
"""The most entries of all arrays of one message. An entry of three bytes takes a hundred times that in memory."""


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
        self.entries += max(found, 0)
        if self.entries > MOST_ENTRIES:
            raise ValueError(f"more than {MOST_ENTRIES} entries are in one message")
        return found


@dataclass(frozen=True, slots=True)
class FieldType:
    """One type of value: how it is written (value, whether compact) and read."""

    write: Callable[[Any, bool], bytes]
    read: Callable[[BodyReader], Any]


def _number(layout: str) -> FieldType:
    struct = Struct(layout)
    return FieldType(lambda value, _: struct.pack(value), lambda reader: struct.unpack(reader.take(struct.size))[0])


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
_HEAD = Struct(">hhi")

BOOL = _number(">?")
INT8 = _number(">b")
INT16 = _number(">h")
INT32 = _number(">i")
INT64 = _number(">q")
STRING = FieldType(
    lambda text, compact: _sized(None if text is None else text.encode(), compact, _INT16), BodyReader.text
)
BYTES = FieldType(lambda data, compact: _sized(data, compact, _INT32), BodyReader.data)


@dataclass(frozen=True, slots=True)
class Field:
    """One field, in the versions ``since`` to ``until``; ``default`` is used if no value is given.

    ``kind`` is its type, or a tuple of fields for a structure; with ``many`` it is an array of that.
    """

    name: str
    kind: FieldType | tuple[Field, ...]
    since: int = 0
    until: int = _LATEST
    default: Any = REQUIRED
    many: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ApiSchema:
    """One request and its response, in the versions ``lowest`` to ``highest``; from ``flexible`` on it is compact."""

    key: int
    name: str
    lowest: int
    highest: int
    flexible: int
    request: tuple[Field, ...]
    response: tuple[Field, ...]

    def compact(self, version: int) -> bool:
        """Return whether this version has compact fields, tags, and the headers that go with them."""
        return version >= self.flexible

    def write(self, fields: Sequence[Field], version: int, values: Values) -> bytes:
        """Return the body of the ``request`` or ``response`` with these fields.

        Raises: ValueError for a version out of range, KeyError for a missing value.
        """
        self._check(version)
        return _write_structure(fields, version, self.compact(version), values)

    def read(self, fields: Sequence[Field], version: int, data: bytes) -> dict[str, Any]:
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


def _present(fields: Sequence[Field], version: int) -> Sequence[Field]:
    return [field for field in fields if field.since <= version <= field.until]


def _write_structure(fields: Sequence[Field], version: int, compact: bool, values: Values) -> bytes:
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


def _write_one(kind: FieldType | tuple[Field, ...], version: int, compact: bool, value: Any) -> bytes:
    return (
        kind.write(value, compact) if isinstance(kind, FieldType) else _write_structure(kind, version, compact, value)
    )


def _read_structure(fields: Sequence[Field], version: int, reader: BodyReader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in _present(fields, version):
        if field.many:
            count = reader.count()
            found[field.name] = None if count < 0 else [_read_one(field.kind, version, reader) for _ in range(count)]
        else:
            found[field.name] = _read_one(field.kind, version, reader)
    if reader.compact:
        reader.tags()
    return found


def _read_one(kind: FieldType | tuple[Field, ...], version: int, reader: BodyReader) -> Any:
    return kind.read(reader) if isinstance(kind, FieldType) else _read_structure(kind, version, reader)


class ApiRequest:
    """One request: a schema, its version and its field values."""

    def __init__(self, message: ApiSchema, version: int, values: Values) -> None:
        self.API_VERSION = version
        self.name = f"{message.name} {version}"
        self._message = message
        self._values = values

    @property
    def RESPONSE_TYPE(self) -> ApiRequest:  # noqa: N802 - the name that the client library's classes have
        """The decoder of the response."""
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> _Header:
        """Return the header of the version."""
        return _Header(self._message, self.API_VERSION, correlation_id, client_id)

    def encode(self) -> bytes:
        """Return the body."""
        return self._message.write(self._message.request, self.API_VERSION, self._values)

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Return the response, from behind its correlation id on. Raises ValueError for bytes that are none."""
        if self._message.compact(self.API_VERSION):
            reader = BodyReader(payload, compact=True)
            reader.tags()
            payload = reader.take(reader.left)
        return self._message.read(self._message.response, self.API_VERSION, payload)


@dataclass(frozen=True, slots=True)
class _Header:
    message: ApiSchema
    version: int
    correlation_id: int
    client_id: str

    def encode(self) -> bytes:
        head = _HEAD.pack(self.message.key, self.version, self.correlation_id)
        name = self.client_id.encode()  # never compact, so that a broker can read the head of any version
        return head + _INT16.pack(len(name)) + name + (b"\0" if self.message.compact(self.version) else b"")
