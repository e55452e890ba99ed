"""Exactly once in the query, whatever is killed in the middle of a batch; and nothing of it lingers in ZooKeeper."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic, owners_of
from tests.spark.conftest import offsets_of
from tests.spark.query_process import QueryProcess
from tests.timing import eventually
from zkconsumer.devcluster import DevCluster

SESSION_MS = "3000"


class Driver:
    """Runs queries in processes of their own, one after the other on the same checkpoint."""

    def __init__(self, cluster: DevCluster, zookeeper: Any, group: str, topic: str, folder: Path) -> None:
        self.zookeeper, self.group, self.topic, self.folder = zookeeper, group, topic, folder
        self.options = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": group,
            "subscribe": topic,
            "zookeeper.session.timeout.ms": SESSION_MS,
        }
        self.made: list[QueryProcess] = []

    def __call__(self, options: dict[str, str] | None = None, **details: Any) -> QueryProcess:
        self.made.append(QueryProcess(self.folder, {**self.options, **(options or {})}, **details))
        return self.made[-1]

    @property
    def ids(self) -> list[str]:
        path = f"/consumers/{self.group}/ids"
        return list(self.zookeeper.get_children(path)) if self.zookeeper.exists(path) else []

    def at(self, partitions: int, offset: int) -> bool:
        return offsets_of(self.zookeeper, self.group, self.topic) == dict.fromkeys(range(partitions), offset)

    def assert_gone(self) -> None:
        assert self.ids == []
        assert owners_of(self.zookeeper, self.group, self.topic) == {}


@pytest.fixture
def driver(
    cluster: DevCluster, zookeeper: Any, new_group: Callable[[], str], tmp_path: Path
) -> Iterator[Callable[[str], Driver]]:
    made: list[Driver] = []

    def make(topic: str) -> Driver:
        made.append(Driver(cluster, zookeeper, new_group(), topic, tmp_path))
        return made[-1]

    yield make
    for one in made:
        for process in one.made:
            process.close()


def everything(partitions: int, each: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(each)]


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


def test_a_batch_whose_driver_dies_is_repeated_exactly(
    driver: Callable[[str], Driver], new_topic: NewTopic, produce: Callable[..., int]
) -> None:
    topic = new_topic(4)
    produce(topic, values(0, 4000), partitions=4)
    of_topic = driver(topic)
    one = of_topic({"maxOffsetsPerTrigger": "1600"})
    one.hold()
    one.start().wait_held()
    (java,) = one.processes("org.apache.spark.deploy.SparkSubmit")
    os.kill(java, signal.SIGKILL)
    eventually(lambda: of_topic.ids == [], 2, "the member to leave when Spark is gone, before its session ends")
    one.close()

    one = of_topic({"maxOffsetsPerTrigger": "1600"})
    (one.out / "held").unlink()
    one.start().wait_held()
    one.kill_all()  # as if the machine had died: nobody can tell ZooKeeper
    assert of_topic.ids, "a member that is killed stays until its session ends"
    assert one.rows == []
    one.go_on()
    produce(topic, values(4000, 4400), partitions=4)  # which the repeated batch must not have

    one = of_topic({"maxOffsetsPerTrigger": "1600"}).start()
    one.wait_end()
    assert one.rows == everything(4, 1100), one.log_text()
    assert len(one.batches[0]) == 1600
    eventually(lambda: of_topic.ids == [], 20, "all to be gone")
    of_topic.assert_gone()
    assert of_topic.at(4, 1100)


def test_a_killed_worker_and_a_stopped_session(
    driver: Callable[[str], Driver], new_topic: NewTopic, produce: Callable[..., int]
) -> None:
    topic = new_topic(2)
    produce(topic, values(0, 2000), partitions=2)
    of_topic = driver(topic)
    one = of_topic(
        {"zookeeper.session.timeout.ms": "10000"},
        master="local[2,4]",
        trigger={"processingTime": "100 milliseconds"},
    )
    one.hold()
    one.start().wait_held()
    members = of_topic.ids
    workers = one.processes("pyspark.daemon")
    assert workers
    (one.out / "held").unlink()
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    one.wait_held()  # the task is tried again
    assert of_topic.ids == members
    one.go_on()
    eventually(lambda: of_topic.at(2, 1000), 60, "all to be read")
    assert one.rows == everything(2, 1000), one.log_text()
    (one.out / "end").touch()
    eventually(lambda: of_topic.ids == [], 8, "the member to leave, before its session ends")
    of_topic.assert_gone()
    one.wait_end()
