"""Failures of the original outside of groups and fetching, and the list of all such reports.

The name of a test is the name of its report. The docstring tells the failure and the cause.
"""

from __future__ import annotations

import re
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import zkconsumer
from tests.simulation.known_bugs import HERE as KNOWN_BUGS
from tests.streams import new_stream
from tests.timing import scaled
from zkconsumer import KafkaStream, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.errors import OffsetCommitError
from zkconsumer.model import ConsumerId, ThreadId
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.member_streams import ANY_TOPIC, MemberStreams
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.zookeeper.lease import Lease

ROOT = Path(__file__).parent.parent.parent
TABLE = Path(zkconsumer.__file__).parent / "REGRESSIONS.md"
CONSUMER = ConsumerId("g_c")


def delivery(streams: int) -> tuple[MemberStreams, list[KafkaStream[Any, Any]]]:
    """So many streams over all topics."""
    lease = Lease()
    made = MemberStreams(CONSUMER, lease)
    all_streams: list[KafkaStream[Any, Any]] = [
        new_stream(f"g_c-{n}", StreamQueue(1, lambda: None), lease, timeout=None) for n in range(streams)
    ]
    made.add(ANY_TOPIC, all_streams)
    return made, all_streams


def test_kafka_550_a_partition_has_the_stream_of_its_thread() -> None:
    """Streams by filter were paired with threads in the order of a hash set: partitions flowed into the wrong ones, or
    into none. Twelve threads also tell ``-10`` from ``-1``.
    """
    made, streams = delivery(12)
    for number in range(12):
        position = PartitionPosition(TopicPartition("t", number), ThreadId(f"g_c-{number}"), 0)
        assert made.stream_of(position) is streams[number]


def test_kafka_1743_the_forms_of_commit_stay() -> None:
    """A release changed the parameters of ``commitOffsets``, and programs written before it failed when they ran."""
    connector = ZookeeperConsumerConnector(zookeeper_connect="zk", group_id="g")
    connector.commit_offsets()
    connector.commit_offsets({})
    connector.commit_offsets(timeout=1.0)
    with pytest.raises(OffsetCommitError, match="not connected"):
        connector.commit_offsets({TopicPartition("t", 0): 1}, 1.0)
    connector.shutdown()


def test_kafka_1764_full_queues_close_at_once_and_repeatedly() -> None:
    """The marker of the end was put into the queue, and so waited for room where nobody took anything any more; shared
    queues were given several, of which readers saw the first.
    """
    made, streams = delivery(3)
    for stream in streams:
        stream.queue.jump(PartitionPosition(TopicPartition("t", 0), ThreadId("g_c-0"), 0), 5)
        assert not stream.queue.has_room()
    began = monotonic()
    made.end()
    made.end()
    assert monotonic() - began < scaled(1)
    assert [list(stream) for stream in streams] == [[], [], []]


# ---- the list ----

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_KNOWN_BUG = re.compile(r"`simulation: (\w+)`")
_JIRA = re.compile(r"KAFKA-\d+")

# Section by section the reports of the original's connector, its fetching and its tools that were fixed, written out a
# second time on purpose.
REPORTS = """
    89 101 154 160 225 228 256 262 265 286 379 546 550 618 693 832 880 914 916 919 937 969 987 989 992 994 1010 1030
    1062 1075 1087 1103 1139 1140 1146 1147 1178 1179 1180 1387 1461 1510 1567 1648 1650 1743 1764 1848 1886 1890 2032
    2056 2169 2241 2434 2678 3100 4319 4384 4409 4521 4735
"""


def test_every_report_is_in_the_list_once() -> None:
    reports = {f"KAFKA-{number}" for number in REPORTS.split()}
    first_cells = [line.split("|")[1] for line in TABLE.read_text().splitlines() if line.startswith("| KAFKA")]
    listed = [report for cell in first_cells for report in _JIRA.findall(cell)]
    assert len(listed) == len(set(listed))
    assert reports - set(listed) == set()


def test_every_test_in_the_list_exists() -> None:
    named = _TEST.findall(TABLE.read_text())
    assert len(named) > 50
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^ *(?:async )?def {name}\(", _text(ROOT / file), re.MULTILINE)
    ]
    assert missing == []


def test_every_known_bug_in_the_list_has_its_patch() -> None:
    named = set(_KNOWN_BUG.findall(TABLE.read_text()))
    assert sorted(name for name in named if not (KNOWN_BUGS / f"{name}.patch").exists()) == []


def test_every_row_says_what_looks_for_its_bug() -> None:
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| what")]
    found = (_TEST, _KNOWN_BUG, re.compile("no test:"))
    assert [row for row in rows if not any(one.search(row) for one in found)] == []


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
