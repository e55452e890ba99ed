"""Kafka's protocol types, both ways: bytes to Python's own objects and back.

Pure. A message is a dict by field name; what a version does not carry has its default. Written for the fake broker
alone and on purpose not shared with the client, so that the two cannot make the same mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct as Packed
from typing import Any, NamedTuple, Protocol

Message = dict[str, Any]


class MalformedRequestError(ValueError):
    """The bytes are no request of this kind and version."""


class Reader:
    """Reads one message. ``version`` is the request's; ``flexible`` whether that has compact lengths and tags."""

    def __init__(self, data: bytes, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """The next bytes. Raises MalformedRequestError where there are not so many."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise MalformedRequestError(f"{count} bytes are wanted at {self._at} of {len(self._data)}")
        data, self._at = self._data[self._at : end], end
        return data

    def varint(self) -> int:
        """An unsigned number of variable length. Raises MalformedRequestError."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedRequestError("a length has more than five bytes")

    def tags(self) -> None:
        """Skip tagged fields; we know none."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())

    @property
    def rest(self) -> bytes:
        """What has not been read."""
        return self._data[self._at :]


class Writer:
    """Writes one message; see ``Reader``."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.data = bytearray()

    def varint(self, value: int) -> None:
        """An unsigned number of variable length."""
        while value > 0x7F:
            self.data.append(value & 0x7F | 0x80)
            value >>= 7
        self.data.append(value)

    def tags(self) -> None:
        """No tagged fields."""
        self.varint(0)


class Type(Protocol):
    """A type of the protocol."""

    def read(self, reader: Reader) -> Any:
        """A value from bytes."""

    def write(self, writer: Writer, value: Any) -> None:
        """A value to bytes."""


class _Number:
    def __init__(self, code: str) -> None:
        self._packed = Packed(f">{code}")

    def read(self, reader: Reader) -> Any:
        return self._packed.unpack(reader.take(self._packed.size))[0]

    def write(self, writer: Writer, value: Any) -> None:
        writer.data += self._packed.pack(value)


BOOLEAN, INT8, INT16, INT32, INT64 = (_Number(code) for code in "?bhiq")


def _length(reader: Reader, number: _Number) -> int:
    return reader.varint() - 1 if reader.flexible else int(number.read(reader))


def _write_length(writer: Writer, number: _Number, length: int) -> None:
    if writer.flexible:
        writer.varint(length + 1)
    else:
        number.write(writer, length)


class _Bytes:
    """Bytes, or text, or None, behind a length."""

    def __init__(self, number: _Number, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> None:
        self._number = number
        self._decode = decode
        self._encode = encode

    def read(self, reader: Reader) -> Any:
        length = _length(reader, self._number)
        return None if length < 0 else self._decode(reader.take(length))

    def write(self, writer: Writer, value: Any) -> None:
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
"""A string with a long length, as ZooKeeper has them."""


@dataclass(frozen=True)
class Array:
    """A list of one type, or None."""

    of: Type

    def read(self, reader: Reader) -> Any:
        """A list."""
        length = _length(reader, INT32)
        return None if length < 0 else [self.of.read(reader) for _ in range(length)]

    def write(self, writer: Writer, value: Any) -> None:
        """A list to bytes."""
        if value is None:
            _write_length(writer, INT32, -1)
            return
        _write_length(writer, INT32, len(value))
        for item in value:
            self.of.write(writer, item)


class Field(NamedTuple):
    """A field, and the versions that carry it: ``since`` to ``until``, both included."""

    name: str
    type: Type
    since: int = 0
    until: int = 999
    default: Any = None


class Struct:
    """Fields one after the other."""

    def __init__(self, *fields: Field) -> None:
        self._fields = fields

    def read(self, reader: Reader) -> Message:
        """A message; what the version does not carry has its default."""
        message = {}
        for name, kind, since, until, default in self._fields:
            message[name] = kind.read(reader) if since <= reader.version <= until else default
        if reader.flexible:
            reader.tags()
        return message

    def write(self, writer: Writer, value: Mapping[str, Any]) -> None:
        """A message to bytes; what is not given has its default."""
        for name, kind, since, until, default in self._fields:
            if since <= writer.version <= until:
                kind.write(writer, value.get(name, default))
        if writer.flexible:
            writer.tags()


@dataclass(frozen=True)
class Api:
    """A kind of request: its number and name, what is asked and answered, from which version on it is flexible, and
    the versions (lowest, highest) that Kafka 1.1 and 3.9 are played with, None where a release lacks it.
    """

    key: int
    name: str
    request: Struct
    response: Struct
    flexible: int
    old: tuple[int, int] | None
    new: tuple[int, int]

    def read_request(self, version: int, data: bytes) -> Message:
        """The request from its bytes (without header). Raises MalformedRequestError."""
        return self.request.read(Reader(data, version, version >= self.flexible))

    def write_request(self, version: int, message: Mapping[str, Any]) -> bytes:
        """The request's bytes, for whoever plays the client."""
        writer = Writer(version, version >= self.flexible)
        self.request.write(writer, message)
        return bytes(writer.data)

    def read_response(self, version: int, data: bytes) -> Message:
        """The answer from its bytes. Raises MalformedRequestError."""
        return self.response.read(Reader(data, version, version >= self.flexible))

    def write_response(self, version: int, message: Mapping[str, Any]) -> bytes:
        """The answer's bytes."""
        writer = Writer(version, version >= self.flexible)
        self.response.write(writer, message)
        return bytes(writer.data)


def field(name: str, kind: Type, default: Any = None, since: int = 0, until: int = 999) -> Field:
    """A field of a message; ``default`` is what other versions have."""
    return Field(name, kind, since, until, default)
