"""The end of a batch, as its checkpoint tells it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from zkconsumer.errors import ConfigException
from zkconsumer.spark.checkpoint import Checkpoint


def end(offset: int) -> dict[str, Any]:
    return {"v": 1, "topics": {"t": {"0": {"from": 0, "to": offset}}}}


def batch(folder: Path, number: int, *ends: dict[str, Any], ended: bool) -> None:
    """Write a batch as Spark does: two lines of Spark's own, then a line for each source of the query."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    lines = ["v1", "{}", *map(json.dumps, ends)]
    (folder / "offsets" / str(number)).write_text("\n".join(lines))
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc\0")
    if ended:
        (folder / "commits" / str(number)).write_text("v1\n{}")
        (folder / "commits" / f".{number}.crc").write_bytes(b"crc\0")


@pytest.mark.parametrize("name", ["plain", "a b", "a%20b", "a:b"])
@pytest.mark.parametrize("prefix", ["", "file:", "file://", "FILE:"])
def test_a_batch_has_ended_once_its_commit_is_there(tmp_path: Path, prefix: str, name: str) -> None:
    tmp_path /= name  # Hadoop takes it literally
    tmp_path.mkdir()
    checkpoint = Checkpoint(f"{prefix}{tmp_path}/")
    assert not checkpoint.has_ended(end(5))
    batch(tmp_path, 9, end(5), ended=True)
    assert checkpoint.has_ended(end(5))
    batch(tmp_path, 10, end(7), ended=False)
    assert checkpoint.has_ended(end(5))
    assert not checkpoint.has_ended(end(7))
    batch(tmp_path, 10, end(7), ended=True)
    assert checkpoint.has_ended(end(7))
    assert not checkpoint.has_ended(end(5))


def test_a_query_may_have_other_sources_as_well(tmp_path: Path) -> None:
    batch(tmp_path, 0, {"logOffset": 3}, end(5), ended=True)
    with (tmp_path / "offsets" / "0").open("a") as file:
        file.write("\n-\nno JSON")
    assert Checkpoint(str(tmp_path)).has_ended(end(5))


def test_what_cannot_be_read_is_no_end_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batch(tmp_path, 0, end(5), ended=True)
    (tmp_path / "offsets" / "0").unlink()
    checkpoint = Checkpoint(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert not checkpoint.has_ended(end(5))
        assert not checkpoint.has_ended(end(5))
    assert [record.message.split(":")[0] for record in caplog.records] == ["the checkpoint cannot be read"]


@pytest.mark.parametrize("location", ["nowhere://x/y", "nowhere:/y"])
def test_a_place_that_cannot_be_opened_is_refused(location: str) -> None:
    with pytest.raises(ConfigException, match=f"checkpointLocation: '{location}': cannot be opened from here"):
        Checkpoint(location)


@pytest.mark.parametrize(
    ("location", "address"),
    [
        ("s3a://bucket/a b", "s3://bucket/a%20b"),
        ("s3n://bucket/x", "s3://bucket/x"),
        ("hdfs://name:8020/x", "hdfs://name:8020/x"),
        ("hdfs:/x", "hdfs:///x"),
        ("gs://bucket/100%", "gs://bucket/100%25"),
    ],
)
def test_a_location_of_hadoop_has_an_address_for_pyarrow(
    location: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import fs

    asked = []

    class Files:
        @staticmethod
        def from_uri(uri: str) -> tuple[object, str]:
            asked.append(uri)
            return object(), "/"

    monkeypatch.setattr(fs, "FileSystem", Files)
    Checkpoint(location)
    assert asked == [address]
