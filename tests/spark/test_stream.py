"""``spark.readStream`` with ``membership=none``: nothing lost, nothing twice, and the group's offsets say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.faults.proxy import Proxy
from tests.spark.conftest import Reader, Sink
from tests.timing import eventually

Filled = Callable[..., Reader]


def wanted(count: int, partitions: int, first: int = 0) -> list[tuple[int, int, bytes]]:
    """The rows of messages 0, 1, ... that went to the partitions in turn."""
    return sorted((n % partitions, n // partitions, b"%d" % n) for n in range(first, count))


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


def test_available_now_reads_all_and_a_restart_the_rest(filled: Filled, zookeeper: Any, tmp_path: Path) -> None:
    of_topic, sink = filled(4, values(0, 4000)), Sink()
    sink.drain(of_topic.stream(maxOffsetsPerTrigger="1500"), tmp_path)
    assert sink.rows == wanted(4000, 4)
    assert [len(rows) for rows in sink.batches.values()] == [1500, 1500, 1000]
    # also the last batch, which Spark never reports as committed under this trigger
    assert of_topic.offsets(zookeeper) == dict.fromkeys(range(4), 1000)

    of_topic.produce(values(4000, 4400))
    sink.drain(of_topic.stream(), tmp_path)
    assert sink.rows == wanted(4400, 4)
    assert of_topic.offsets(zookeeper) == dict.fromkeys(range(4), 1100)

    sink.drain(of_topic.stream(), tmp_path)
    assert sink.rows == wanted(4400, 4)


@pytest.mark.parametrize("on_driver", ["false", "true"])
def test_a_batch_that_failed_is_read_again_and_nothing_else(
    filled: Filled, zookeeper: Any, tmp_path: Path, on_driver: str
) -> None:
    from pyspark.errors import StreamingQueryException

    of_topic, sink = filled(2, values(0, 600)), Sink()
    sink.fail_at = 1
    with pytest.raises(StreamingQueryException):
        sink.drain(of_topic.stream(maxOffsetsPerTrigger="200", readOnDriver=on_driver), tmp_path)
    seen = sink.batches[1]
    assert of_topic.offsets(zookeeper) == {0: 100, 1: 100}
    sink.fail_at = None
    of_topic.produce(values(600, 700))
    sink.drain(of_topic.stream(maxOffsetsPerTrigger="16384", readOnDriver=on_driver), tmp_path)
    assert sink.batches[1] == seen
    assert sink.rows == wanted(700, 2)
    assert of_topic.offsets(zookeeper) == {0: 350, 1: 350}


def test_offsets_of_the_last_batch_are_written_while_idle(filled: Filled, zookeeper: Any, tmp_path: Path) -> None:
    """Spark reports a batch as committed only when it plans the next one, which an idle topic never brings.

    An idle query asks ZooKeeper next to nothing, however many triggers it has: it read 5 nodes a trigger here.
    """
    of_topic, sink = filled(2), Sink()
    host, port = of_topic.options["zookeeper.connect"].split(":")
    with Proxy((host, int(port))) as link:
        of_topic.options["zookeeper.connect"] = link.address
        query = sink.start(of_topic.stream(startingOffsets="latest"), tmp_path, processingTime="0 seconds")
        try:
            eventually(lambda: of_topic.offsets(zookeeper) == {0: 0, 1: 0}, 40, "the first, empty batch")
            of_topic.produce(values(0, 40))
            ends = {0: 20, 1: 20}
            eventually(lambda: of_topic.offsets(zookeeper) == ends, 20, "the offsets of the last batch")
            assert sink.rows == wanted(40, 2)
            asked, began = link.requests, monotonic()
            eventually(lambda: monotonic() - began > 1, 20, "a second without messages")
            assert link.requests - asked <= 3 * (monotonic() - began)
            assert query.lastProgress is not None
        finally:
            query.stop()


def test_a_second_query_of_one_frame_is_refused(filled: Filled, tmp_path: Path) -> None:
    """Two queries of one frame gave (4000, 0) rows. A query that was stopped may be started again at once."""
    from pyspark.errors import StreamingQueryException

    of_topic, sink, other = filled(2, values(0, 4000)), Sink(), Sink()
    frame = of_topic.stream(membership="member")
    sink.hold_at = 0
    first = sink.start(frame, tmp_path / "first", processingTime="50 milliseconds")
    try:
        assert sink.holding.wait(60)
        with pytest.raises(StreamingQueryException, match="group.id: .* another query reads this DataFrame"):
            other.drain(frame, tmp_path / "second")
    finally:
        sink.go_on.set()
        first.stop()
    assert other.rows == []
    of_topic.produce(values(4000, 4100))
    sink.drain(frame, tmp_path / "first")
    assert sink.rows == wanted(4100, 2)


def test_a_query_begins_where_its_group_is(filled: Filled, zookeeper: Any, tmp_path: Path) -> None:
    of_topic, sink = filled(1, values(0, 100)), Sink()
    zookeeper.create(f"/consumers/{of_topic.group}/offsets/{of_topic.topic}/0", b"90", makepath=True)
    sink.drain(of_topic.stream(), tmp_path)
    assert sink.rows == wanted(100, 1, first=90)
