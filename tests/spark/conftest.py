"""The Spark session and the cluster of all tests here. Each test has its own topics, groups and folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

import zkconsumer.spark
from tests.cluster.conftest import (
    NewTopic,
    _java,
    cluster,
    legacy_member,
    new_group,
    new_topic,
    our_member,
    produce,
    unique,
    zookeeper,
)
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "_java",
    "cluster",
    "legacy_member",
    "new_group",
    "new_topic",
    "our_member",
    "produce",
    "unique",
    "zookeeper",
]

DISCOVERED = Path(zkconsumer.spark.__file__).parent / "discovered"


def pytest_report_header() -> str:
    """Which PySpark is tested."""
    return f"PySpark {version('pyspark')}"


@pytest.fixture(scope="session")
def spark(_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that finds the data source by itself: the folder stands in for the top level of an installed wheel."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home_for_spark()))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(DISCOVERED), os.environ.get("PYTHONPATH", "")]))
        session = (
            SparkSession.builder.master("local[2]")
            .appName("zkconsumer tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.memory", "1g")
            .config("spark.local.dir", str(folder))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        assert session.version == version("pyspark"), "another Spark runs than is installed here; is SPARK_HOME set?"
        yield session
        session.stop()


class Reader:
    """Reads one topic in one group."""

    produce: Callable[..., int]
    """Produces values to the partitions in turn; of a reader that ``filled`` made."""

    def __init__(self, spark: SparkSession, connect: str, group: str, topic: str) -> None:
        self.spark, self.topic, self.group = spark, topic, group
        self.options = {"zookeeper.connect": connect, "group.id": group, "subscribe": topic}

    def batch(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("zkconsumer").options(**{**self.options, **options})
        return (reader.schema(schema) if schema else reader).load()

    def offsets(self, client: KazooClient) -> dict[int, int]:
        """Partition -> the group's offset as written in ZooKeeper."""
        return offsets_of(client, self.group, self.topic)

    def stream(self, **options: str) -> DataFrame:
        """With ``membership=none`` unless told otherwise."""
        given = {**self.options, "membership": "none", "startingOffsets": "earliest", **options}
        return self.spark.readStream.format("zkconsumer").options(**given).load()


@pytest.fixture
def reader(spark: SparkSession, cluster: DevCluster, new_group: Callable[[], str]) -> Callable[[str], Reader]:
    """``reader(topic)``: reads a topic in a group of its own."""
    return lambda topic: Reader(spark, cluster.zookeeper_connect, new_group(), topic)


@pytest.fixture
def filled(reader: Callable[[str], Reader], new_topic: NewTopic, produce: Callable[..., int]) -> Callable[..., Reader]:
    """``filled(2, values)``: reads a new topic of two partitions that has these values in turn."""

    def make(partitions: int = 1, values: Sequence[bytes | None] = (), **options: Any) -> Reader:
        one = reader(new_topic(partitions))
        one.produce = partial(produce, one.topic, partitions=partitions)
        if values:
            one.produce(values, **options)
        return one

    return make


def child_processes(parent: int) -> dict[int, str]:
    """The processes below one, as process id -> command line."""
    found: dict[int, str] = {}
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    below = {parent}
    for _ in range(10):
        below |= {pid for pid, of in parents.items() if of in below}
    for pid in below - {parent}:
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def runners(parent: int) -> list[int]:
    """The driver processes of streaming sources below a process."""
    return [pid for pid, command in child_processes(parent).items() if "python_streaming_source_runner" in command]


class Sink:
    """Where a query writes: the values of each batch, so that a batch that comes again replaces itself. It is held up
    in the batch ``hold_at``, or in the first that reads of partition ``hold_with``.
    """

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.fail_at: int | None = None
        self.hold_at: int | None = None
        self.hold_with: int | None = None
        self.holding = Event()
        self.go_on = Event()

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [tuple(row) for row in frame.select("partition", "offset", "value").collect()]
        if number == self.hold_at or self.hold_with in {partition for partition, *_ in self.batches[number]}:
            self.hold_with = None
            self.holding.set()
            assert self.go_on.wait(scaled(180)), "the test left the sink waiting"
        if number == self.fail_at:
            raise RuntimeError("the sink fails here, as the test wants")

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for rows in list(self.batches.values()) for row in rows)  # Spark's thread adds to them

    @property
    def places(self) -> list[tuple[int, int]]:
        """(partition, offset) of every row, in order; twice what was read twice."""
        return [row[:2] for row in self.rows]

    def start(self, frame: DataFrame, checkpoint: Path, **trigger: Any) -> Any:
        writer = frame.writeStream.foreachBatch(self).option("checkpointLocation", str(checkpoint))
        return writer.trigger(**trigger or {"availableNow": True}).start()

    def drain(self, frame: DataFrame, checkpoint: Path) -> None:
        """Run a query over all that is there now."""
        query = self.start(frame, checkpoint)
        try:
            assert query.awaitTermination(scaled(120)), "the query did not end in time"
        finally:
            query.stop()


def offsets_of(client: KazooClient, group: str, topic: str) -> dict[int, int]:
    """Partition -> the group's offset as written in ZooKeeper."""
    path = f"/consumers/{group}/offsets/{topic}"
    if client.exists(path) is None:
        return {}
    return {int(name): int(client.get(f"{path}/{name}")[0]) for name in client.get_children(path)}
