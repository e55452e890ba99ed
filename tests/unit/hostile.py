"""Answers that a hostile broker may give, read in a process of their own, whose peak of memory is printed.

``python -m tests.unit.hostile CASE WAY`` prints megabytes: before and at the peak. ``WAY`` is how the application
asks: for messages or for columns.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import cramjam  # type: ignore[import-untyped,unused-ignore]
import google_crc32c

from tests.streams import new_stream, valid_lease
from tests.unit.kafka.scripted import Peer, ScriptedBroker
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerError, ConsumerTimeoutException, InvalidMessageException
from zkconsumer.kafka import BrokerChannel, FetchPosition, FetchRequest
from zkconsumer.kafka.compression import GZIP, LZ4, SNAPPY, ZSTD
from zkconsumer.kafka.message_set_extent import extent
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.streams import KafkaStream, StreamQueue
from zkconsumer.streams.byte_budget import QueueBudget

MB = 1 << 20
LIMIT = 64 * MB
WHERE = TopicPartition("t", 3)
_LIBRARIES = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}


def memory(kind: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at its peak."""
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(kind))


def varint(number: int) -> bytes:
    """A signed number as records write it."""
    rest, out = number << 1 if number >= 0 else ((-number) << 1) - 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def compressed(codec: int, pieces: Iterator[bytes]) -> bytes:
    """One frame of all pieces, which are never in memory together."""
    if codec == SNAPPY:
        blocks = bytearray(struct.pack(">8sii", b"\x82SNAPPY\0", 1, 1))
        for piece in pieces:
            block = bytes(cramjam.snappy.compress_raw(piece))
            blocks += struct.pack(">i", len(block)) + block
        return bytes(blocks)
    compressor = _LIBRARIES[codec].Compressor()
    found = bytearray()
    for piece in pieces:
        compressor.compress(piece)
        found += bytes(compressor.flush())
    return bytes(found) + bytes(compressor.finish())


def batch(codec: int, content: bytes, records: int) -> bytes:
    """A batch of format 2 at offset 0 with this content."""
    tail = struct.pack(">hiqqqhii", codec, records - 1, 0, 0, -1, -1, -1, records) + content
    checksum = google_crc32c.value(tail)
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, checksum) + tail


def wrapper(magic: int, codec: int, content: bytes, offset: int) -> bytes:
    """A compressed message of format 0 or 1."""
    body = struct.pack(">bb", magic, codec) + (struct.pack(">q", 5) if magic else b"")
    body += struct.pack(">ii", -1, len(content)) + content
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def _zeros(size: int) -> Iterator[bytes]:
    for _ in range(size // MB):
        yield bytes(MB)


def _one_value(size: int) -> Iterator[bytes]:
    """One record whose value is zeros, of so many bytes in all."""
    inner = b"\0\0\0" + varint(-1) + varint(size)
    yield varint(len(inner) + size + 1) + inner
    yield from _zeros(size)
    yield b"\0"


def _tiny(count: int) -> Iterator[bytes]:
    """So many records without key and value."""
    made = bytearray()
    for number in range(count):
        body = b"\0\0" + varint(number) + b"\x01\x01\0"
        made += varint(len(body)) + body
        if len(made) > MB:
            yield bytes(made)
            made.clear()
    yield bytes(made)


def _small_messages(size: int) -> tuple[Iterator[bytes], int]:
    """The smallest messages of format 1, as many as fit, and how many they are."""
    count = size // 34
    body = struct.pack(">bb", 1, 0) + struct.pack(">qii", 5, -1, -1)
    tail = struct.pack(">iI", len(body) + 4, crc32(body)) + body
    return (
        b"".join(struct.pack(">q", number) + tail for number in range(at, min(at + 30_000, count)))
        for at in range(0, count, 30_000)
    ), count


def _bomb(codec: int) -> Callable[[], bytes]:
    return lambda: batch(codec, compressed(codec, _zeros(2048 * MB)), 1)


def _full(codec: int) -> Callable[[], bytes]:
    return lambda: batch(codec, compressed(codec, _one_value(LIMIT - MB)), 1)


def _wrapped(magic: int, codec: int) -> Callable[[], bytes]:
    return lambda: wrapper(magic, codec, compressed(codec, _zeros(1024 * MB)), 9)


def _wrapped_small() -> bytes:
    pieces, count = _small_messages(LIMIT - MB)
    return wrapper(1, GZIP, compressed(GZIP, pieces), count - 1)


def _claims(codec: int) -> Callable[[], bytes]:
    """A few bytes that say that they stand for gigabytes."""
    return lambda: batch(codec, b"\xff\xff\xff\xff\x0f" + b"abc", 1)


SETS: dict[str, Callable[[], bytes]] = {
    **{f"bomb-{name}": _bomb(codec) for name, codec in (("gzip", GZIP), ("lz4", LZ4), ("zstd", ZSTD))},
    "bomb-snappy": lambda: batch(SNAPPY, compressed(SNAPPY, _zeros(1024 * MB)), 1),
    "claim-snappy": _claims(SNAPPY),
    **{f"full-{name}": _full(codec) for name, codec in (("gzip", GZIP), ("snappy", SNAPPY), ("zstd", ZSTD))},
    "tiny-zstd": lambda: batch(ZSTD, compressed(ZSTD, _tiny(5_500_000)), 5_500_000),
    "wrapped-0-lz4": _wrapped(0, LZ4),
    "wrapped-1-gzip": _wrapped(1, GZIP),
    "wrapped-1-small": _wrapped_small,
    "count": lambda: batch(0, b"".join(_tiny(1)), 2**31 - 1),
}
"""Message sets by name."""

ANSWERS: dict[str, tuple[int, int]] = {"length": (2**31 - 1, 0), "slow": (95 * MB, MB), "real": (95 * MB, 95 * MB)}
"""Lengths that an answer to a fetch announces, and how many bytes come."""


def read_set(records: bytes, way: str) -> str:
    """Read a set as a stream's reader does, all of it; returns what became of it."""
    budget = QueueBudget(64 * MB)
    queue = StreamQueue(2, lambda: None, budget)
    lease = valid_lease()
    stream: KafkaStream[bytes, bytes] = new_stream("s", queue, lease, timeout=0.0, largest_batch=LIMIT)
    position = PartitionPosition(WHERE, ThreadId("g_c-0"), 0)
    reach = extent(records, WHERE, 0)
    queue.deliver(position, records, (0, reach.next_offset or 1), (), reach.messages)
    del records
    count = 0
    try:
        if way == "columns":
            for rows in stream.batches():
                count += rows.num_rows
        else:
            for _ in stream:
                count += 1
    except ConsumerTimeoutException:
        return f"{count} messages"
    except InvalidMessageException as error:
        return f"corrupt at {error.offset}: {error}"[:120]
    return f"{count} messages, then the end"


def answer(announced: int, sent: int) -> str:
    """Fetch from a broker that announces so many bytes and sends so many."""
    head = struct.pack(">ihii", 0, 0, 0, 1) + b"\0\x01t" + struct.pack(">i", 1)
    head += struct.pack(">ihqqqii", 3, 0, 100, 100, 0, -1, -1)
    head += struct.pack(">i", announced - 4 - len(head) - 4)

    def script(peer: Peer) -> None:
        peer.versions()
        peer.send(struct.pack(">ii", announced, peer.request().correlation_id) + head)
        with suppress(OSError):
            for _ in range(sent // MB):
                peer.send(bytes(MB))

    with ScriptedBroker(script) as broker:
        channel = BrokerChannel(broker.endpoint(), client_id="c", socket_timeout=30.0)
        channel.connect(Deadline(30.0))
        request = FetchRequest([FetchPosition("t", 3, 0, MB)], 0.0, 1, MB)
        try:
            channel.receive_fetch(channel.send_fetch(request, Deadline(30.0)), Deadline(30.0))
        except BrokerError as error:
            return str(error)
        finally:
            channel.close()
    return "read"


def main(case: str, way: str) -> None:
    """Print the memory before, at the peak, and what became of it."""
    if way == "columns":
        import pyarrow as pa

        pa.allocate_buffer(1)  # not pa.array(), which imports pandas: some 50 MB that no answer costs
    if case in ANSWERS:
        before = memory("VmRSS")
        told = answer(*ANSWERS[case])
    else:
        records = SETS[case]()
        before = memory("VmHWM")
        told = read_set(records, way)
    print(f"{before:.0f} {memory('VmHWM'):.0f} {told}")


if __name__ == "__main__":
    main(*sys.argv[1:])
