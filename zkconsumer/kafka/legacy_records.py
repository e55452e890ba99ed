"""Reads message formats 0 and 1: single messages, compressed ones in wrappers. Pure.

Brokers before 0.11 store them, and newer brokers convert messages down to them. The records are of the class of format
2, so that iterators see one kind. In format 0, which has none, ``timestamp`` and ``timestamp_type`` are -1.

Mirrors the original's ByteBufferMessageSet. The CRC of each message is checked, inner ones too. The offsets inside a
format 1 wrapper are relative to the wrapper's (KIP-31). LogAppendTime of the wrapper overrides the inner timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from zkconsumer.data_plane.records import Record
from zkconsumer.kafka.compression import Expansion, decompress
from zkconsumer.kafka.record_batch import CODEC, DECODED_BYTES, LARGEST_OFFSET, MalformedSetError, RecordBatch

_MADE_TOGETHER = 256  # messages of a wrapper
RUN_LIMIT = 512  # uncompressed messages that make one batch: enough to spread its cost, few enough to hold

_HEAD = Struct(">qiIbB").unpack_from  # offset, size, CRC, magic, attributes
_TIME_AND_KEY = Struct(">qi").unpack_from  # the next fields of format 1
_INT32 = Struct(">i").unpack_from
_START = 12  # offset and size
_SUMMED = 16  # where the checksummed part begins
_BODY = 18  # the key in format 0, the timestamp in format 1
_SMALLEST = 26  # the bytes of a message of format 0 with empty key and value
_LOG_APPEND_TIME = 0x08


class MessageRun(NamedTuple):
    """Some messages that were read together.

    ``base_offset`` is that of the first, ``next_offset`` the one after the last (in a wrapper: after the wrapper's
    own). ``end`` is where the next run starts.
    """

    records: list[Record] | WrappedMessages
    base_offset: int
    next_offset: int
    end: int


def read_run(data: bytes, at: int, end: int, check_crc: bool, expansion: Expansion) -> MessageRun:
    """Return the messages from ``at``: one wrapper's content, or a run of uncompressed ones whose offsets grow.

    Arguments: ``data`` up to ``end`` is a message set. Its messages are complete from ``at`` on, as far as their sizes
    say. The last may be cut off; then the run ends before it. The caller has compared the first one's offset with its
    neighbours'. Raises: MalformedSetError if the first message is corrupt; a corrupt one after it ends the run.
    """
    records: list[Record] = []
    view = memoryview(data)
    next_offset = -1
    enough = at + DECODED_BYTES
    before = at
    while at + _SMALLEST <= end:
        offset, size, stored, magic, attributes = _HEAD(data, at)
        stop = at + _START + size
        if records:
            if offset < next_offset and magic < 2:
                if len(records) > 1:  # one of the two is wrong, and the caller looks at both
                    records.pop()
                    at, next_offset = before, records[-1].offset + 1
                break
            if stop > end or magic > 1 or attributes & CODEC or at >= enough or len(records) >= RUN_LIMIT:
                break
        try:
            _check(view, at, stop, offset, magic, stored if check_crc else None)
            if attributes & CODEC:
                wrapped = WrappedMessages(data, at, stop, check_crc, expansion)
                return MessageRun(wrapped, wrapped.base_offset, offset + 1, stop)
            records.append(_record(data, at, stop, magic, attributes, offset, None))
        except MalformedSetError:
            if not records:
                raise
            break
        before, at, next_offset = at, stop, offset + 1
    return MessageRun(records, records[0].offset, next_offset, at)


def _check(view: memoryview, at: int, stop: int, offset: int, magic: int, stored: int | None) -> None:
    """Refuse a message with a senseless head, or whose checksum is not ``stored`` (None: not checked)."""
    if stop - at < _SMALLEST or not 0 <= offset < LARGEST_OFFSET or not 0 <= magic <= 1:
        raise MalformedSetError(f"a message says that its size is {stop - at - _START}, its format {magic}")
    if stored is not None:
        computed = crc32(view[at + _SUMMED : stop])
        if computed != stored:
            raise MalformedSetError(f"its checksum is {computed:#010x}, not {stored:#010x} as it says")


def _record(data: bytes, at: int, stop: int, magic: int, attributes: int, offset: int, stamp: int | None) -> Record:
    """Return one message. Arguments: ``stamp`` is the wrapper's time of appending, None for the message's own time."""
    body = at + _BODY
    if magic:
        if body + 16 > stop:
            raise MalformedSetError("it is cut short")
        timestamp, length = _TIME_AND_KEY(data, body)
        kind = 1 if attributes & _LOG_APPEND_TIME else 0
        body += 12
        if stamp is not None:
            timestamp, kind = stamp, 1
    else:
        timestamp = kind = -1
        (length,) = _INT32(data, body)
        body += 4
    key = value = None
    if length != -1:
        if length < 0 or body + length + 4 > stop:
            raise MalformedSetError(f"a key of {length} bytes does not lie within it")
        key = data[body : body + length]
        body += length
    (length,) = _INT32(data, body)
    body += 4
    if length != -1:
        value = data[body : body + length]
        body += length
    if body != stop or length < -1:
        raise MalformedSetError(f"a value of {length} bytes does not end where it does")
    return Record(offset, timestamp, kind, key, value)


class WrappedMessages:
    """The messages inside a wrapper, with their absolute offsets.

    They are made when they are iterated, since there may be millions. Raises: MalformedSetError unless all messages are
    whole and their offsets grow up to the wrapper's. Iterating raises MalformedSetError for a message with fields
    outside of the message.
    """

    __slots__ = ("_content", "_heads", "_magic", "_shift", "_stamp", "base_offset")

    def __init__(self, data: bytes, at: int, stop: int, check_crc: bool, expansion: Expansion) -> None:
        offset, _, _, magic, attributes = _HEAD(data, at)
        wrapper = _record(data, at, stop, magic, attributes, offset, None)
        if wrapper.value is None:
            raise MalformedSetError("it is a wrapper without content")
        try:
            content = bytes(decompress(attributes & CODEC, wrapper.value, magic, expansion.limit))
        except ValueError as failure:
            raise MalformedSetError(str(failure)) from failure
        expansion.held = len(content)
        first, last, self._heads = _inner_offsets(content, magic, check_crc)
        self._content = content
        self._magic = magic
        self._shift = offset - last if magic else 0
        if self._shift < 0 or last > offset:
            raise MalformedSetError(f"offset {offset} is before that of its last inner message")
        self._stamp = wrapper.timestamp if wrapper.timestamp_type == 1 else None
        self.base_offset = first + self._shift

    def __iter__(self) -> Iterator[Record]:
        content, magic, shift, stamp = self._content, self._magic, self._shift, self._stamp
        for inner, at, stop, attributes in self._heads or _all_heads(content):
            yield _record(content, at, stop, magic, attributes, shift + inner, stamp)

    @property
    def few(self) -> bool:
        """Whether all of its messages may be made at once."""
        return len(self._heads) > 0


InnerHead = tuple[int, int, int, int]
"""Of a message in a wrapper: the offset as written, its beginning and end, its attributes."""


def _all_heads(content: bytes) -> Iterator[InnerHead]:
    at = 0
    while at < len(content):
        offset, size, _, _, attributes = _HEAD(content, at)
        stop = at + _START + size
        yield offset, at, stop, attributes
        at = stop


class WrapperBatch(RecordBatch):
    """The messages of a wrapper that holds many."""

    __slots__ = ()

    @property
    def many(self) -> bool:
        """Always: the messages of a small wrapper are made at once."""
        return True

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self._lists())

    def _lists(self) -> Iterator[list[Record]]:
        records, reached = iter(self._records), max(self.base_offset, self.first)
        failure: MalformedSetError | None = None
        more = True
        while more:
            made: list[Record] = []
            try:
                made.extend(islice(records, _MADE_TOGETHER))  # those before an error stay in the list
                more = len(made) == _MADE_TOGETHER
            except MalformedSetError as error:
                failure, more = error, False
            if made:
                reached = max(reached, made[-1].offset + 1)
                yield [record for record in made if record.offset >= self.first]
        if failure is not None:
            raise self._failed(reached, failure) from failure


def _inner_offsets(content: bytes, magic: int, check_crc: bool) -> tuple[int, int, list[InnerHead]]:
    """Return the first and last offset as inner messages write them, and the heads of all if these are few. All
    messages must be whole, and offsets must grow.
    """
    heads: list[InnerHead] = []
    view = memoryview(content)
    at, end = 0, len(content)
    first = last = -1
    while at < end:
        if end - at < _SMALLEST:
            raise MalformedSetError("its content is cut off")
        offset, size, stored, inner_magic, attributes = _HEAD(content, at)
        stop = at + _START + size
        if stop > end:
            raise MalformedSetError("its content is cut off")
        if inner_magic != magic:
            raise MalformedSetError(f"a message of format {inner_magic} is inside")
        if attributes & CODEC:
            raise MalformedSetError("a compressed message is inside")
        _check(view, at, stop, offset, magic, stored if check_crc else None)
        if offset <= last:
            raise MalformedSetError(f"the message inside with offset {offset} is behind that with {last}")
        if first < 0:
            first = offset
        if len(heads) <= RUN_LIMIT:
            heads.append((offset, at, stop, attributes))
        last, at = offset, stop
    if first < 0:
        raise MalformedSetError("it is a wrapper without content")
    return first, last, heads if len(heads) <= RUN_LIMIT else []
