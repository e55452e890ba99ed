"""Recorded checkpoints: the present code understands them, and would write the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.recorded import EACH, FOLDER, KINDS, TOPIC, recordings
from tests.unit.spark.dictionary_cluster import FakeCluster
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark.checkpoint import Checkpoint
from zkconsumer.spark.membership import Bystander
from zkconsumer.spark.offset_ranges import Span, decode_progress, encode_progress
from zkconsumer.spark.options import parse
from zkconsumer.spark.streaming_query import QueryRun
from zkconsumer.version import VERSION

PARTITIONS = tuple(TopicPartition(TOPIC, number) for number in (0, 1))
BATCHES = ((0, 100), (100, 200), (200, EACH))


@pytest.fixture(params=recordings(), ids=lambda path: str(path.relative_to(FOLDER)))
def recorded(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def end_of(recorded: Path, number: int) -> dict[str, Any]:
    """The source's part of a batch: the only line after two of Spark's own."""
    (line,) = (recorded / "offsets" / str(number)).read_text().splitlines()[2:]
    end: dict[str, Any] = json.loads(line)
    return end


def test_each_kind_is_recorded_for_this_version() -> None:
    assert {path.name for path in recordings() if path.parent.name == VERSION} == set(KINDS), (
        "run `python -m tests.spark.recorded`"
    )


def test_a_recorded_batch_is_read_and_written_as_it_was(recorded: Path) -> None:
    for number, (start, end) in enumerate(BATCHES):
        progress = decode_progress(end_of(recorded, number))
        assert progress == dict.fromkeys(PARTITIONS, Span(start, end))
        assert encode_progress(progress) == end_of(recorded, number)


def test_a_recorded_batch_has_ended_if_its_commit_is_there(recorded: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(recorded))
    assert [checkpoint.has_ended(end_of(recorded, number)) for number in range(3)] == [False, True, False]
    shutil.copytree(recorded, tmp_path / "ended")
    shutil.copy(recorded / "commits" / "1", tmp_path / "ended" / "commits" / "2")
    assert Checkpoint(str(tmp_path / "ended")).has_ended(end_of(recorded, 2))


def test_the_unfinished_batch_is_planned_as_it_was(recorded: Path) -> None:
    """The next batch follows it."""
    servers = {"kafka.bootstrap.servers": "h:1"} if recorded.name == "coordinated" else {"zookeeper.connect": "h:1"}
    options = parse({**servers, "group.id": "g", "subscribe": TOPIC, **KINDS[recorded.name]})
    cluster = FakeCluster(dict.fromkeys(PARTITIONS, (0, 280)))
    run = QueryRun(options, cluster, Bystander(cluster, "g", allow_live_members=False))
    run.open()
    unfinished = end_of(recorded, 2)
    again = [range_ for task in run.plan(unfinished) for range_ in task.ranges]
    assert again == [OffsetRange(*tp, 200, EACH) for tp in PARTITIONS]
    assert cluster.offsets == {}, "what is not finished is not told to the group"
    assert decode_progress(run.latest(unfinished, None)) == dict.fromkeys(PARTITIONS, Span(EACH, 280))
    assert cluster.offsets == dict.fromkeys(PARTITIONS, EACH)
