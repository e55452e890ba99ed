"""Message sets of real brokers of three generations are read as librdkafka read them, in three ways.

These are messages, columns, and both by turns. So does the slow reader that generated sets are compared with.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.unit.kafka import reference
from tests.unit.kafka.column_ways import WAYS, choose
from tests.unit.kafka.reference import Plain
from tests.unit.streams.read_ways import Sent, bare, by_batches, by_both, by_messages
from tests.vectors.cases import Case
from zkconsumer.kafka.fetched_batches import extent
from zkconsumer.model import TopicPartition

FILES = ("brokers_message_sets",)


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def sent_of(data: dict[str, Any]) -> Sent:
    aborted = tuple((producer, first) for producer, first in data["aborted"])
    return Sent(bytes.fromhex(data["hex"]), data["fetch_offset"], data["next_offset"], aborted)


def expected(data: dict[str, Any]) -> list[Plain]:
    return [
        Plain(offset, stamp, kind, bytes_of(key), bytes_of(value), tuple((name, bytes_of(it)) for name, it in headers))
        for offset, stamp, kind, key, value, headers in data["messages"]
    ]


@pytest.mark.parametrize("way", WAYS)
def test_what_brokers_send_is_read_as_librdkafka_reads_it(
    case: Case, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    choose(way, monkeypatch)
    sent, right = sent_of(case.data), expected(case.data)
    assert right
    assert extent(sent.data, TopicPartition("t", 0), sent.fetch_offset).next_offset == sent.next_offset
    assert reference.without_aborted(sent.data, sent.aborted, sent.fetch_offset) == right
    assert by_messages(sent) == (right, "", sent.next_offset)
    assert by_batches(sent, {"headers": True}) == (right, "", sent.next_offset)
    assert by_batches(sent, {"max_rows": 7}) == (bare(right), "", sent.next_offset)
    assert by_both(sent, [0, 2, 0, 6, 1]) == (right, "", sent.next_offset)


def test_every_kind_of_set_was_recorded(pytestconfig: pytest.Config) -> None:
    from tests.vectors.cases import DATA, load

    if pytestconfig.getoption("vectors", default=None):
        pytest.skip("another folder's cases")
    cases = [case.data for case in load(DATA, FILES)]
    kinds = {(data["format"], data["note"].split("-", 2)[2].partition("-from")[0]) for data in cases}
    assert kinds >= {
        *((number, codec) for number in (0, 1, 2) for codec in ("none", "gzip", "snappy", "lz4")),
        *((2, "zstd"), (2, "transactions"), (1, "compacted"), (2, "compacted")),
        *((number, "LogAppendTime") for number in (1, 2)),
    }
    assert any(data["aborted"] for data in cases)
    offsets = [[message[0] for message in data["messages"]] for data in cases]
    assert any(after - before > 2 for listed in offsets for before, after in pairwise(listed)), "gaps of compaction"
