"""The pipeline of docs/pipelines.md, killed at several points: its Parquet is the topic, with nothing lost or twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from scripts.demonstration.flight_producer import flights
from tests.cluster.conftest import NewTopic
from tests.documents import example
from tests.spark.query_process import START_S, DriverProcess
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

PARTITIONS = 4
FLIGHTS = 2000
BATCH = 800
BATCHES = 3
NO_FLIGHTS: list[tuple[bytes | None, str]] = [
    (None, "no value"),
    (b"", "not one JSON value"),
    (b'{"year":2013,"month":', "not one JSON value"),
    (b'{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z"} {"carrier":"B6"}', "not one JSON value"),
    (b'{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z"},{"carrier":"B6"}', "not one JSON value"),
    (b'{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z"}]', "not one JSON value"),
    (b'{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z"}],[{"carrier":"B6"}', "not one JSON value"),
    (b'{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z"}}', "not one JSON value"),
    (b'{"carrier":"\xff","time_hour":"2013-01-01T10:00:00Z"}', "not UTF-8"),
    (b"5", "a field has another type"),
    (b"null", "a field has another type"),
    (b'[{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z"}]', "a field has another type"),
    (b'{"carrier":"UA","time_hour":"2013-01-01T10:00:00Z","dep_delay":"late"}', "a field has another type"),
    (b'{"carrier":"UA","time_hour":"soon"}', "a field has another type"),
    (b'{"carrier":"UA"}', "no carrier or no time_hour"),
    (b'{"time_hour":"2013-01-01T10:00:00Z"}', "no carrier or no time_hour"),
]
"""Values that are no flights, and the reasons that the pipeline gives."""

Place = tuple[int, int]


def messages() -> list[bytes | None]:
    """Return the flights, with other values among them."""
    values: list[bytes | None] = [flight.json for flight in flights(FLIGHTS)]
    for number, (value, _) in enumerate(NO_FLIGHTS * 10):
        values.insert(number * 17, value)
    return values


class Pipeline:
    """The script of the docs on a topic. Each start is a new process with the same folders."""

    def __init__(self, cluster: DevCluster, topic: str, group: str, folder: Path) -> None:
        self.folder, self.target = folder, folder / "flights"
        self._held = folder / "held"
        self._script = folder / "pipeline.py"
        self._started: list[DriverProcess] = []
        code = example("pipeline")
        for written, there in (
            ('"127.0.0.1:2181"', repr(cluster.zookeeper_connect)),
            ('"events"', repr(topic)),
            ('"flights-to-parquet"', repr(group)),
            ('"flights"', repr(str(self.target))),
            ('"flights-checkpoint"', repr(str(folder / "checkpoint"))),
            ('"100000"', repr(str(BATCH))),
            ('"10 seconds"', '"100 milliseconds"'),
        ):
            assert written in code
            code = code.replace(written, there)
        self._script.write_text(code)

    def change(self, written: str, there: str) -> None:
        """Change the code that the next start runs."""
        code = self._script.read_text()
        assert written in code
        self._script.write_text(code.replace(written, there))

    def start(self, *arguments: str, hold: int | None = None, where: str = "before") -> DriverProcess:
        """Start the pipeline. With ``hold`` the pipeline waits before or after the write of this number."""
        self._held.unlink(missing_ok=True)
        task: dict[str, Any] = {"script": str(self._script), "arguments": arguments, "hold": hold, "where": where}
        task["held"] = str(self._held)
        conf = {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.sources.partitionOverwriteMode": "dynamic",  # which some clusters have as their default
        }
        self._started.append(DriverProcess("stopping_pipeline.py", task, self.folder, conf=conf))
        return self._started[-1].start()

    def killed_at(self, write: int, where: str) -> None:
        """Start the pipeline, and kill all its processes while it waits before or after a write."""
        process = self.start(hold=write, where=where)
        self.kill_when(process, self._held.exists)

    def kill_when(self, process: DriverProcess, ready: Callable[[], bool]) -> None:
        eventually(lambda: ready() or not process.running, START_S, "the moment to kill the pipeline")
        assert process.running, process.log_text()
        process.kill_all()

    @property
    def is_writing(self) -> bool:
        """Whether tasks write a file, or the files are being moved to their folders."""
        return any(self.target.glob("*/*/_temporary"))

    @property
    def batches_written(self) -> int:
        return sum(1 for _ in self.target.glob("bad/*/_SUCCESS"))

    def close(self) -> None:
        for process in self._started:
            process.close()

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return what any reader of Parquet finds in a folder, which is no table of Spark's."""
        found: list[dict[str, Any]] = pq.read_table(self.target / kind).to_pylist()
        return found


@pytest.fixture
def pipeline(cluster: DevCluster, new_group: Callable[[], str], tmp_path: Path) -> Iterator[Callable[[str], Pipeline]]:
    made: list[Pipeline] = []

    def make(topic: str) -> Pipeline:
        made.append(Pipeline(cluster, topic, new_group(), tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


def place(row: dict[str, Any]) -> Place:
    return row["partition"], row["offset"]


def flight_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Parquet as the flight's JSON has it."""
    content = {
        name: value for name, value in row.items() if name not in {"topic", "partition", "offset", "date", "batch"}
    }
    hour = content["time_hour"]
    return {**content, "time_hour": f"{hour:%Y-%m-%dT%H:%M:%SZ}"}


@pytest.mark.timeout(scaled(600))  # Spark starts four times
def test_a_pipeline_that_is_killed_writes_the_topic_once(
    pipeline: Callable[[str], Pipeline], new_topic: NewTopic, produce: Callable[..., int]
) -> None:
    """It is killed between the two writes of a batch, after both, and while a task writes a file."""
    topic, values = new_topic(PARTITIONS, prefix="flights"), messages()
    produce(topic, values, partitions=PARTITIONS)
    sent = {(n % PARTITIONS, n // PARTITIONS): value for n, value in enumerate(values)}
    one = pipeline(topic)

    right, other = 'F.to_date("time_hour")', 'F.date_add(F.to_date("time_hour"), 400)'
    one.change(right, other)  # these days must not stay when the batch comes again
    one.killed_at(2, "before")
    one.change(other, right)
    one.killed_at(4, "after")
    one.kill_when(one.start(), lambda: one.is_writing or one.batches_written == BATCHES)
    last = one.start("--once")
    last.wait_end()

    reasons = dict(NO_FLIGHTS)
    parsed, bad = one.rows("parsed"), one.rows("bad")
    written = Counter(place(row) for row in [*parsed, *bad])
    assert max(written.values()) == 1, last.log_text()
    assert written.keys() == sent.keys(), last.log_text()
    assert len(parsed) == FLIGHTS
    assert [row for row in parsed if flight_of(row) != json.loads(sent[place(row)] or b"")] == []
    assert [row for row in parsed if str(row["date"]) != flight_of(row)["time_hour"][:10]] == []
    assert [row for row in bad if row["value"] != sent[place(row)]] == []
    assert [row for row in bad if row["reason"] != reasons[row["value"]]] == []
    assert {row["topic"] for row in [*parsed, *bad]} == {topic}
    assert len({row["batch"] for row in parsed}) == BATCHES
    assert len({row["date"] for row in parsed}) == 4
