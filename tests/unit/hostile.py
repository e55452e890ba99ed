"""The answers of a hostile broker, read in a process of their own, whose peak of memory is printed.

``python -m tests.unit.hostile CASE WAY`` prints megabytes: before and at the peak. ``WAY`` is how the application
asks: for messages or for columns.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import cramjam  # type: ignore[import-untyped,unused-ignore]
import google_crc32c

from tests.streams import new_stream, valid_lease
from tests.unit.kafka.scripted import Peer, ScriptedBroker
from zkconsumer import KafkaStream
from zkconsumer.errors import BrokerError, ConsumerTimeoutException, InvalidMessageException
from zkconsumer.kafka import BrokerChannel, FetchPosition, FetchRequest
from zkconsumer.kafka.compression import SNAPPY, ZSTD
from zkconsumer.kafka.fetched_batches import extent
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.stream_queue import StreamQueue

MB = 1 << 20
LIMIT = 64 * MB
WHERE = TopicPartition("t", 3)


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


def compressed(pieces: Iterable[bytes]) -> bytes:
    """One zstd frame of all pieces, which are never in memory together."""
    compressor = cramjam.zstd.Compressor()
    found = bytearray()
    for piece in pieces:
        compressor.compress(piece)
        found += bytes(compressor.flush())
    return bytes(found) + bytes(compressor.finish())


def one_value(size: int) -> Iterator[bytes]:
    """One record whose value is zeros, of so many bytes in all."""
    inner = b"\0\0\0" + varint(-1) + varint(size)
    yield varint(len(inner) + size + 1) + inner
    for _ in range(size // MB):
        yield bytes(MB)
    yield b"\0"


def batch(codec: int, content: bytes, records: int) -> bytes:
    """A batch of format 2 at offset 0 with this content."""
    tail = struct.pack(">hiqqqhii", codec, records - 1, 0, 0, -1, -1, -1, records) + content
    checksum = google_crc32c.value(tail)
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, checksum) + tail


SETS: dict[str, Callable[[], bytes]] = {
    "bomb": lambda: batch(ZSTD, compressed([bytes(MB)] * 2048), 1),
    "claim": lambda: batch(SNAPPY, b"\xff\xff\xff\xff\x0fabc", 1),  # says that it stands for gigabytes
    "full": lambda: batch(ZSTD, compressed(one_value(LIMIT - MB)), 1),
    "count": lambda: batch(0, b"\x0c\0\0\0\x01\x01\0", 2**31 - 1),  # one record, without key and value
}
"""Message sets by name."""

ANSWERS: dict[str, tuple[int, int]] = {"length": (2**31 - 1, 0), "slow": (95 * MB, MB), "real": (95 * MB, 95 * MB)}
"""Lengths that an answer to a fetch announces, and how many bytes come."""


def read_set(records: bytes, way: str) -> str:
    """Read a whole set as a stream's reader does. Return the outcome."""
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
    head += struct.pack(">ihqqqi", 3, 0, 100, 100, 0, -1)
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
