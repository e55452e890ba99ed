"""Two queries of one DataFrame: the second is refused, unless the first had begun to leave before."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from time import time
from uuid import uuid4

import pytest

from zkconsumer.errors import ConfigException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark import stream_reader
from zkconsumer.spark.data_source import ZkConsumerDataSource
from zkconsumer.spark.options import parse
from zkconsumer.spark.schema import source_schema
from zkconsumer.spark.stream_reader import FrameLock, StreamReader

NOW, SOON = Deadline(0.0), 20.0
OPTIONS = {"zookeeper.connect": "zk:2181", "group.id": "g", "subscribe": "t"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def first() -> Iterator[FrameLock]:
    lock = FrameLock("frame", time())
    assert lock.acquire(NOW)
    yield lock
    lock.release()


def test_a_second_query_is_refused_at_once(first: FrameLock) -> None:
    assert not FrameLock("frame", time()).acquire(Deadline(SOON))
    other = FrameLock("another", time())
    assert other.acquire(NOW)
    other.release()


def test_a_query_that_ends_meanwhile_is_not_waited_for(first: FrameLock) -> None:
    """It read messages after the second one had begun, which the second would miss."""
    second = FrameLock("frame", time() - 1)
    first.leaving()
    assert not second.acquire(Deadline(SOON))
    first.release()


def test_a_query_that_is_stopped_is_waited_for(first: FrameLock, tmp_path: Path) -> None:
    """``stop()`` returns before the process of the query has left its group."""
    first.leaving()
    second = FrameLock("frame", time() + 1)
    assert not second.acquire(NOW)
    taken: list[bool] = []
    waiting = Thread(target=lambda: taken.append(second.acquire(Deadline(SOON))), name="waiting")
    waiting.start()
    first.release()
    waiting.join(SOON)
    assert taken == [True]
    assert len(list(tmp_path.iterdir())) == 1
    second.release()
    second.release()
    assert not list(tmp_path.iterdir())


def test_a_query_that_was_killed_holds_nothing(first: FrameLock) -> None:
    first.leaving()
    assert first.file is not None
    os.close(first.file)
    first.file = None
    second = FrameLock("frame", time())
    assert second.acquire(NOW)
    assert not FrameLock("frame", time()).acquire(NOW), "what the killed query wrote is not the second one's"
    second.release()


def test_without_a_place_for_files_nobody_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", f"/nonexistent/{uuid4()}")
    lock = FrameLock("frame", time())
    assert lock.acquire(NOW)
    lock.leaving()
    lock.release()
    assert "whether other queries read the same DataFrame cannot be seen" in caplog.text


def test_all_copies_of_a_data_source_are_one_frame() -> None:
    """Each query of a DataFrame gets a copy in a process of its own; a second ``load()`` makes another one."""
    source = ZkConsumerDataSource(OPTIONS)
    copies = [pickle.loads(pickle.dumps(source)).streamReader(source.schema()) for _ in range(2)]
    assert copies[0].lock.path == copies[1].lock.path
    assert ZkConsumerDataSource(OPTIONS).streamReader(source.schema()).lock.path != copies[0].lock.path


class _Run:
    """A run that does nothing."""

    def __init__(self, *_: object) -> None:
        self.closed = False

    def open(self) -> None: ...

    def plan(self, end: object) -> list[object]:
        return []

    def close(self) -> None:
        self.closed = True


def test_the_reader_of_a_second_query_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "QueryRun", _Run)
    monkeypatch.setattr(stream_reader, "end_cleanly_on_sigterm", lambda: None)
    monkeypatch.setattr(stream_reader, "leave_sigterm_alone", lambda: None)
    readers = [StreamReader(parse(OPTIONS), source_schema(include_headers=False), "frame") for _ in range(2)]
    assert readers[0].partitions({}, {}) == []
    with pytest.raises(
        ConfigException, match=r"^group.id: 'g': another query reads this DataFrame, .* load\(\) a Data"
    ):
        readers[1].prepareForTriggerAvailableNow()
    readers[1].stop()
    readers[0].stop()
    assert readers[1].partitions({}, {}) == []
    readers[1].stop()


def test_the_wait_for_a_stopped_query_is_longer_than_its_leave() -> None:
    from zkconsumer.spark.membership import CLOSE_WITHIN

    assert stream_reader.LEAVES_WITHIN > 2 * CLOSE_WITHIN
