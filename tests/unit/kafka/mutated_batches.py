r"""Mutated message sets of all formats and codecs, read by the compiled data plane and by its sources.

    python -m tests.unit.kafka.mutated_batches --cases 200000

Two processes read the same sets, one of them in plain Python. Each prints a digest of what it read: batches, records,
columns, and the text and place of each error. The first set with another outcome is shown.

With AddressSanitizer, which finds reads beyond the bytes of a set (``scripts/compile`` afterwards, to undo it):

    CFLAGS="-fsanitize=address -O1" LDFLAGS=-fsanitize=address scripts/compile
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
        python -m tests.unit.kafka.mutated_batches --cases 200000

A set is mutated before it is compressed, too. Otherwise decompressing would fail, and nothing behind it would be read.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from random import Random
from typing import Any

import cramjam  # type: ignore[import-untyped,unused-ignore]
import pyarrow as pa

from tests.unit.kafka.record_writer import GZIP, LZ4, SNAPPY, ZSTD
from tests.unit.kafka.sets import WHERE, Batch, MessageSet, Written, resealed
from zkconsumer import data_plane
from zkconsumer.kafka import CorruptRecordsError, batches
from zkconsumer.kafka.arrow_columns import HEADERS, NAMES, ColumnBuilder
from zkconsumer.kafka.compression import Expansion

CODECS = {
    GZIP: lambda data: bytes(cramjam.gzip.compress(data, 1)),
    SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}
BASE = 50
BLOCK = 500
"""Sets of one digest."""
_LIMIT = 1 << 20
_TELLING = bytes((0, 1, 2, 3, 4, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
_LONG_NUMBERS = (
    b"\x80" * 9 + b"\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x7f",
    b"\x80" * 10 + b"\x01",
    b"\x80\x00",
)


def _originals() -> list[tuple[int, bytes]]:
    """Uncompressed batches to mutate, each with its format."""
    plain = [Written(b"k%d" % n, b"v" * (30 * n), timestamp=10**12 + 700 * n, gap=n % 2) for n in range(6)]
    headers = [
        Written(value=b"x" * n, headers=[("name", b"y"), ("\u00e9", None)] * (n % 3)) for n in range(5)
    ]  # fmt: skip
    absent = [Written(value=None), Written(b"", b""), Written(None, bytes(200), timestamp=0)]
    found = [(2, Batch(records, append_time=late)) for records in (plain, headers, absent) for late in (False, True)]
    found.append((2, Batch([Written(value=b"%d" % n) for n in range(400)])))
    found += [
        (magic, Batch(records, magic=magic, append_time=late))
        for magic in (0, 1)
        for records in (plain, absent)
        for late in (False, True)
    ]
    return [(magic, batch.encode(BASE)[0]) for magic, batch in found]


def _mutated(random: Random, data: bytes, begin: int) -> bytes:
    """Return the bytes with up to four changes behind ``begin``."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        at = random.randrange(begin, max(len(changed), begin + 1))
        way = random.randrange(6)
        if way < 3 and at < len(changed):
            changed[at] = random.choice(_TELLING) if way else random.randrange(256)
        elif way == 3:
            changed[at:at] = bytes(random.choices(_TELLING, k=random.randint(1, 4)))
        elif way == 4:
            del changed[at : at + random.randint(1, 4)]
        else:
            changed[at : at + 1] = random.choice(_LONG_NUMBERS)
    return bytes(changed)


def _batch(random: Random, data: bytes) -> bytes:
    """Return a batch of format 2 with its records changed, in any codec, and perhaps its head."""
    codec = random.choice((0, 0, *CODECS))
    content = _mutated(random, data[61:], 0)
    head = bytearray(_mutated(random, data[:61], 17) if random.random() < 0.2 else data[:61])
    head = (head + bytes(61))[:61]
    if codec:
        content = CODECS[codec](content)
        if random.random() < 0.1:
            content = _mutated(random, content, 0)
        head[22] = head[22] & 0xF8 | codec
    struct.pack_into(">i", head, 8, 49 + len(content))
    return bytes(head) + content


def _wrapper(random: Random, magic: int, content: bytes) -> bytes:
    """Return messages of format 0 or 1, changed, in a wrapper."""
    codec = random.choice((GZIP, SNAPPY, LZ4))
    inner = _mutated(random, content, 0)
    if random.random() < 0.7:
        inner = _summed(inner)
    packed = CODECS[codec](inner)
    if random.random() < 0.1:
        packed = _mutated(random, packed, 0)
    body = struct.pack(">bb", magic, codec | random.choice((0, 0, 8))) + (struct.pack(">q", 5) if magic else b"")
    body += struct.pack(">ii", -1, len(packed)) + packed
    return struct.pack(">qiI", BASE + random.choice((11, 5, 400)), len(body) + 4, 0) + body


def _summed(messages: bytes) -> bytes:
    """Return messages of format 0 or 1 with right checksums, as far as their sizes lead to the next one."""
    found, at = b"", 0
    while at + 26 <= len(messages):
        end = at + 12 + max(14, int.from_bytes(messages[at + 8 : at + 12], "big", signed=True))
        found += resealed(messages[at:end]) if messages[at + 16] < 2 else messages[at:end]
        at = end
    return found + messages[at:]


def sets(seed: int) -> Iterator[tuple[bytes, bool, int]]:
    """Return message sets without end, each with whether its checksums are checked, and the offset to read from."""
    random = Random(seed)
    originals = _originals()
    good = MessageSet([Batch([Written()] * 2)], base=BASE + 1000).data
    while True:
        magic, data = random.choice(originals)
        if magic == 2:
            data = resealed(_batch(random, data))
        elif random.random() < 0.5:
            data = resealed(_wrapper(random, magic, data))
        else:
            data = _mutated(random, data, 8)
            data = _summed(data) if random.random() < 0.7 else data
        data += random.choice((b"", good, good[:70]))
        yield data, random.random() < 0.8, BASE + random.choice((0, 0, 0, 1, 4, 300))


def outcome(data: bytes, check_crc: bool, first: int, *, columns: bool = True) -> list[Any]:
    """Return all that is read of a set, as messages and as columns, up to the first error."""
    found = [_messages(data, check_crc, first)]
    if columns:
        found.append(_columns(data, check_crc, first, NAMES))
        if b"name" in data:
            found.append(_columns(data, False, first, ("offset", HEADERS)))
    return found


def _messages(data: bytes, check_crc: bool, first: int) -> list[Any]:
    found: list[Any] = []
    try:
        for batch in batches(data, check_crc=check_crc, where=WHERE, fetch_offset=first, expansion=Expansion(_LIMIT)):
            found.append((batch.base_offset, batch.next_offset, batch.wanted, batch.is_control))
            found += ((r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers) for r in batch)
    except CorruptRecordsError as failure:
        found.append((str(failure), failure.offset, failure.next_offset))
    return found


def _columns(data: bytes, check_crc: bool, first: int, names: tuple[str, ...]) -> list[Any]:
    builder = ColumnBuilder(names)
    try:
        for batch in batches(data, check_crc=check_crc, where=WHERE, fetch_offset=first, expansion=Expansion(_LIMIT)):
            builder.add_batch(batch)
        columns = builder.take()
    except CorruptRecordsError as failure:
        return [str(failure), failure.offset, failure.next_offset]
    return [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist() for column in columns
    ]


def read_blocks(seed: int, cases: int, columns: bool) -> None:
    """Print which data plane is in use, and then a digest for each block of sets."""
    print(json.dumps(data_plane.COMPILED), flush=True)
    following = sets(seed)
    for _ in range(0, cases, BLOCK):
        digest = sha256()
        for case in islice(following, BLOCK):
            digest.update(repr(outcome(*case, columns=columns)).encode())
        print(digest.hexdigest(), flush=True)


class UncompiledError(Exception):
    """The compiled modules cannot be used."""


def first_difference(*arguments: str) -> str:
    """Read the sets both ways. Returns the first set with two outcomes, empty if there is none.

    Arguments: those of the command line. Raises: UncompiledError; RuntimeError if one of the processes ends early.
    """
    with ThreadPoolExecutor(2, "mutated-batches") as pool:
        compiled, pure = pool.map(lambda pure: _run(arguments, pure=pure), (False, True))
        if json.loads(compiled[0]) is not True:
            raise UncompiledError
        assert json.loads(pure[0]) is False
        for block, (ours, other) in enumerate(zip(compiled[1:], pure[1:], strict=True)):
            if ours != other:
                shown = (*arguments, "--show", str(block))
                pairs = zip(_run(shown, pure=False), _run(shown, pure=True), strict=True)
                return next(f"compiled: {ours}\npure:     {other}" for ours, other in pairs if ours != other)
    return ""


def _run(arguments: tuple[str, ...], *, pure: bool) -> list[str]:
    environment = {**os.environ, data_plane.PURE_VARIABLE: "1" if pure else ""}
    if pure:
        environment.pop("LD_PRELOAD", None)  # there is nothing for AddressSanitizer to look at
    command = [sys.executable, "-m", __spec__.name, "--read", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process with pure={pure} ended with {done.returncode}: {done.stderr[-3000:]}")
    return done.stdout.splitlines()


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="how many sets")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other sets")
    parser.add_argument("--messages", action="store_true", help="leave out columns, which take most of the time")
    parser.add_argument("--read", action="store_true", help="read them in this process only")
    parser.add_argument("--show", type=int, help="with --read: print the outcomes of this block")
    given = parser.parse_args()
    if not given.read:
        different = first_difference(*sys.argv[1:])
        print(different or f"{given.cases} sets: the same outcome, compiled and not")
        return 1 if different else 0
    if given.show is None:
        read_blocks(given.seed, given.cases, not given.messages)
        return 0
    for case in islice(sets(given.seed), given.show * BLOCK, (given.show + 1) * BLOCK):
        print(repr((case, outcome(*case, columns=not given.messages))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
