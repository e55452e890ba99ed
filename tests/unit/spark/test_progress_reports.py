"""Reports about queries, and the names of readers and snapshots: a person and a monitoring system read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark import source_reports
from zkconsumer.spark.batch_reader import BatchReader, Snapshot
from zkconsumer.spark.offset_ranges import in_words
from zkconsumer.spark.options import parse
from zkconsumer.spark.schema import source_schema
from zkconsumer.spark.stream_reader import StreamReader

BASE = {"zookeeper.connect": "zk", "group.id": "g"}
END = {"v": 1, "topics": {"t": {"0": {"from": 0, "to": 200}, "1": {"from": 5, "to": 5}, "2": {"from": 0, "to": 100}}}}
LATEST = {"t": {"0": 212, "1": 5, "2": 90}}


def progress(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"batchId": 7, "sources": list(sources)}


@pytest.mark.parametrize("as_text", [True, False])
def test_a_report_has_the_batch_and_what_is_left(as_text: bool) -> None:
    """PySpark has offsets as texts, the JSON of a progress as objects."""
    source = {name: json.dumps(at) if as_text else at for name, at in (("endOffset", END), ("latestOffset", LATEST))}
    (report,) = source_reports(progress(source))
    assert (report.batch, report.ranges) == (7, (OffsetRange("t", 0, 0, 200), OffsetRange("t", 2, 0, 100)))
    assert report.behind == {TopicPartition("t", 0): 12, TopicPartition("t", 1): 0, TopicPartition("t", 2): 0}
    assert str(report) == "batch 7 read 300 offsets: t-0 [0, 200), t-2 [0, 100); 12 more are there"
    assert report.metrics == {
        "avgOffsetsBehindLatest": "4.0",
        "maxOffsetsBehindLatest": "12",
        "minOffsetsBehindLatest": "0",
    }


@pytest.mark.parametrize("latest", ["null", "None", None, [], {"t": 5}, {"t": {"x": 5, "0": "5"}}, {"u": {"0": 5}}])
def test_a_report_without_ends_has_no_metrics(latest: object) -> None:
    (report,) = source_reports(progress({"endOffset": END, "latestOffset": latest}))
    assert report.behind == {}
    assert report.metrics == {}
    assert str(report) == "batch 7 read 300 offsets: t-0 [0, 200), t-2 [0, 100)"


@pytest.mark.parametrize(
    "end", ["null", "None", {}, {"t": {"0": 5}}, '{"t":{"0":5}}', 7, "7", {"v": 2, "topics": {}}, "[" * 20_000]
)
def test_other_sources_are_left_out(end: object) -> None:
    ours = {"endOffset": {"v": 1, "topics": {"t": {"0": {"from": 3, "to": 3}}}}, "latestOffset": {"t": {"0": 3}}}
    found = source_reports(progress({"endOffset": end, "latestOffset": LATEST}, ours))
    assert [str(report) for report in found] == ["batch 7 read 0 offsets; 0 more are there"]


@pytest.mark.parametrize("as_text", [True, False])
def test_a_batch_without_messages_of_the_source_reads_none(as_text: bool) -> None:
    """Spark runs such a batch to move a watermark, or for another source of the query. The offsets stay the same."""
    source = {"startOffset": END, "endOffset": END, "latestOffset": LATEST}
    (report,) = source_reports(progress({name: json.dumps(at) if as_text else at for name, at in source.items()}))
    assert report.ranges == ()
    assert str(report) == "batch 7 read 0 offsets; 12 more are there"


def test_a_query_without_progress_has_no_reports() -> None:
    """``lastProgress`` is None until the first batch has ended."""
    assert source_reports(None) == []


def test_many_ranges_are_named_in_part() -> None:
    ranges = [OffsetRange("t", number, 0, number + 1) for number in range(7)]
    assert in_words(ranges[:2]) == "t-0 [0, 1), t-1 [0, 2)"
    assert in_words(ranges) == "t-0 [0, 1), t-1 [0, 2), t-2 [0, 3), t-3 [0, 4), t-4 [0, 5) and 2 more"
    assert in_words([]) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "t"}, "topic t in group 'g'"),
        ({"subscribe": "b,a"}, "topics a, b in group 'g'"),
        ({"subscribePattern": "fl.*"}, "topics like 'fl.*' in group 'g'"),
        ({"assign": '{"t":[2,0]}'}, "partitions t-0, t-2 in group 'g'"),
    ],
)
def test_readers_and_snapshots_say_what_they_read(given: dict[str, str], words: str) -> None:
    options, schema = parse({**BASE, **given, "sasl.password": "hidden"}), source_schema(include_headers=False)
    assert repr(BatchReader(options, schema)) == f"<BatchReader of {words}>"
    assert repr(StreamReader(options, schema, "frame")) == f"<StreamReader of {words}>"
    part = Snapshot(given, options, [OffsetRange("t", 0, 5, 9)], {})
    assert repr(part) == f"<Snapshot of {words}: 4 offsets, t-0 [5, 9)>"
    assert repr(Snapshot(given, options, [], {})) == f"<Snapshot of {words}: 0 offsets, no partition>"
