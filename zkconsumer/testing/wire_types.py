"""Kafka's protocol types: converts bytes to Python values and back.

Pure. The body of a request or response is a dict by field name. A field that a version does not carry has its default.
Only the fake brokers use this. The client has its own code on purpose: a mistake in shared code would show in no test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct as Packed
from typing import Any, NamedTuple, Protocol

Body = dict[str, Any]


class MalformedRequestError(ValueError):
    """The bytes are no request of this kind and version."""


class WireReader:
    """A reader of one body. ``flexible`` versions have compact lengths and tagged fields."""

    def __init__(self, data: bytes, version: int = 0, flexible: bool = False) -> None:
        self.version = version
        self.flexible = flexible
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Raises MalformedRequestError if fewer are left."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise MalformedRequestError(f"{count} bytes expected at {self._at} of {len(self._data)}")
        data, self._at = self._data[self._at : end], end
        return data

    def varint(self) -> int:
        """Read an unsigned number of variable length. Raises MalformedRequestError."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedRequestError("a length has more than five bytes")

    def tags(self) -> None:
        """Skip the tagged fields."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    @property
    def rest(self) -> bytes:
        """The bytes that have not been read."""
        return self._data[self._at :]


class WireWriter:
    """A writer of one body; see ``WireReader``."""

    def __init__(self, version: int = 0, flexible: bool = False) -> None:
        self.version = version
        self.flexible = flexible
        self.data = bytearray()

    def varint(self, value: int) -> None:
        """Write an unsigned number of variable length."""
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def tags(self) -> None:
        """Write that there are no tagged fields."""
        self.varint(0)


class WireType(Protocol):
    """A type of the protocol."""

    def read(self, reader: WireReader) -> Any:
        """Read one value."""

    def write(self, writer: WireWriter, value: Any) -> None:
        """Write one value."""


class _Number:
    def __init__(self, code: str) -> None:
        self._packed = Packed(f">{code}")

    def read(self, reader: WireReader) -> Any:
        return self._packed.unpack(reader.take(self._packed.size))[0]

    def write(self, writer: WireWriter, value: Any) -> None:
        writer.data += self._packed.pack(value)


BOOLEAN, INT8, INT16, INT32, INT64 = (_Number(code) for code in "?bhiq")


def _length(reader: WireReader, number: _Number) -> int:
    return reader.varint() - 1 if reader.flexible else int(number.read(reader))


def _write_length(writer: WireWriter, number: _Number, length: int) -> None:
    if writer.flexible:
        writer.varint(length + 1)
    else:
        number.write(writer, length)


class _Bytes:
    """Bytes or text with a length in front, or None."""

    def __init__(self, number: _Number, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> None:
        self._number = number
        self._decode = decode
        self._encode = encode

    def read(self, reader: WireReader) -> Any:
        length = _length(reader, self._number)
        return None if length < 0 else self._decode(reader.take(length))

    def write(self, writer: WireWriter, value: Any) -> None:
        if value is None:
            _write_length(writer, self._number, -1)
        else:
            data = self._encode(value)
            _write_length(writer, self._number, len(data))
            writer.data += data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as failure:
        raise MalformedRequestError(str(failure)) from failure


STRING = _Bytes(INT16, _text, str.encode)
BYTES = _Bytes(INT32, bytes, bytes)
TEXT = _Bytes(INT32, _text, str.encode)
"""A string with a length of four bytes, as in ZooKeeper's protocol."""


@dataclass(frozen=True)
class Array:
    """A list of one type, or None."""

    of: WireType

    def read(self, reader: WireReader) -> Any:
        """Read a list, or None."""
        length = _length(reader, INT32)
        return None if length < 0 else [self.of.read(reader) for _ in range(length)]

    def write(self, writer: WireWriter, value: Any) -> None:
        """Write a list, or None."""
        if value is None:
            _write_length(writer, INT32, -1)
            return
        _write_length(writer, INT32, len(value))
        for item in value:
            self.of.write(writer, item)


class WireField(NamedTuple):
    """A field. The versions ``since`` to ``until``, both included, carry the field. Other versions have the default."""

    name: str
    type: WireType
    since: int = 0
    until: int = 999
    default: Any = None


class Struct:
    """A sequence of fields."""

    def __init__(self, *fields: WireField) -> None:
        self._fields = fields

    def read(self, reader: WireReader) -> Body:
        """Read a body. Fields that the version does not carry get their defaults."""
        body = {}
        for name, kind, since, until, default in self._fields:
            body[name] = kind.read(reader) if since <= reader.version <= until else default
        if reader.flexible:
            reader.tags()
        return body

    def write(self, writer: WireWriter, value: Mapping[str, Any]) -> None:
        """Write a body. Missing fields get their defaults."""
        for name, kind, since, until, default in self._fields:
            if since <= writer.version <= until:
                kind.write(writer, value.get(name, default))
        if writer.flexible:
            writer.tags()


@dataclass(frozen=True)
class Api:
    """One kind of request. Versions from ``flexible`` on have compact lengths and tagged fields.

    ``old`` and ``new`` are the versions (lowest, highest) that the fakes of Kafka 1.1 and 3.9 answer.
    """

    key: int
    name: str
    request: Struct
    response: Struct
    flexible: int
    old: tuple[int, int]
    new: tuple[int, int]

    def versions(self, modern: bool) -> tuple[int, int]:
        """Return the lowest and highest version that Kafka 3.9 (``modern``) or 1.1 answers."""
        return self.new if modern else self.old

    def read_request(self, version: int, data: bytes) -> Body:
        """Decode a request without its header. Raises MalformedRequestError."""
        return self.request.read(self._reader(version, data))

    def write_request(self, version: int, body: Mapping[str, Any]) -> bytes:
        """Encode a request without its header, for a test that plays the client."""
        return self._written(self.request, version, body)

    def read_response(self, version: int, data: bytes) -> Body:
        """Decode a response without its header. Raises MalformedRequestError."""
        return self.response.read(self._reader(version, data))

    def write_response(self, version: int, body: Mapping[str, Any]) -> bytes:
        """Encode a response without its header."""
        return self._written(self.response, version, body)

    def _reader(self, version: int, data: bytes) -> WireReader:
        return WireReader(data, version, version >= self.flexible)

    def _written(self, fields: Struct, version: int, body: Mapping[str, Any]) -> bytes:
        writer = WireWriter(version, version >= self.flexible)
        fields.write(writer, body)
        return bytes(writer.data)
