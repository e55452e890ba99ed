"""``zkconsumer serve`` as a process beside a live group of a Scala member and one of ours."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.legacy_member import VERSIONS, LegacyMember
from tests.cluster.our_member import OurMember
from tests.faults.proxy import Proxy
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

PARTITIONS = 4
MESSAGES = 40


class ServeProcess:
    """A running ``zkconsumer serve`` that reads every second."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        said = process.stdout.readline()
        assert said.startswith("Serving on http://127.0.0.1:"), said
        self.port = int(said.strip().rstrip("/").rpartition(":")[2])

    def ask(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=scaled(10))
        try:
            client.request("GET", path)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def document(self, path: str) -> Any:
        status, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def samples(self, name: str, group: str) -> dict[tuple[str, ...], float]:
        """The samples of one metric by all labels but the group's."""
        status, body = self.ask("/metrics")
        assert status == 200
        return {
            tuple(text for label, text in sample.labels.items() if label != "consumergroup"): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
            if sample.name == name and sample.labels.get("consumergroup") == group
        }


@contextmanager
def serving(zookeeper: str, group: str, *more: str) -> Iterator[ServeProcess]:
    command = [
        *(sys.executable, "-m", "zkconsumer", "serve", "--listen", "127.0.0.1:0", "--interval", "1"),
        *("--zookeeper", zookeeper, "--group", group, "--timeout", "3000"),
        *more,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield ServeProcess(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(20)) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_live_group_and_zookeeper_away_and_back(
    cluster: DevCluster,
    zookeeper: KazooClient,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
) -> None:
    """The answers are those of ZooKeeper and the brokers, stay while ZooKeeper is away, and survive the members."""
    topic, group = new_topic(PARTITIONS), new_group()
    produce(topic, (b"x" for _ in range(MESSAGES)), partitions=PARTITIONS)
    scala, ours = legacy_member(VERSIONS[-1], group, {topic: 1}), our_member(group, {topic: 1})
    with Proxy(("127.0.0.1", cluster.zookeeper.port)) as proxy, serving(proxy.address, group) as server:
        scala.wait_ready()
        ours.wait_ready()

        def settled() -> bool:
            found = server.document(f"/api/groups/{group}")
            assert found["state"] == "Stable", found["reason"]
            offsets = [one["offset"] for one in found["partitions"]]
            assert offsets == [MESSAGES // PARTITIONS] * PARTITIONS, offsets
            assert (found["lag"], found["unknown_lags"]) == (0, 0)
            assert found["member_count"] == 2
            return True

        eventually(settled, 30, "a stable group without lag")
        eventually(lambda: _matches_zookeeper(server, zookeeper, group, topic), 20, "the answers of the nodes")

        proxy.drop()

        def away() -> bool:
            assert server.ask("/readyz")[0] == 503
            found = server.document(f"/api/groups/{group}")
            assert found["failure"]
            assert found["partition_count"] == PARTITIONS
            assert server.samples("zkconsumer_group_read_success", group) == {(): 0}
            assert server.samples("kafka_consumergroup_lag_sum", group) == {(topic,): 0}
            return True

        eventually(away, 30, "the old values without ZooKeeper")
        proxy.carry()
        eventually(lambda: server.ask("/readyz")[0] == 200, 30, "ready with ZooKeeper")

        scala.stop()
        ours.stop()
        produce(topic, (b"y" for _ in range(MESSAGES)), partitions=PARTITIONS)

        def dead() -> bool:
            assert server.samples("kafka_consumergroup_lag_sum", group) == {(topic,): MESSAGES}
            assert server.samples("kafka_consumergroup_members", group) == {(): 0}
            late = server.samples("kafka_consumergroup_group_lag_seconds", group)
            assert len(late) == PARTITIONS
            assert all(seconds >= 0 for seconds in late.values())
            return True

        eventually(dead, 30, "a dead group's lag")


def _matches_zookeeper(server: ServeProcess, zookeeper: KazooClient, group: str, topic: str) -> bool:
    """The offsets, times and owners of Burrow's answer and of the metrics are those of the nodes."""
    offsets = server.samples("kafka_consumergroup_current_offset", group)
    told = server.document(f"/v3/kafka/local/consumer/{group}/lag")["status"]
    assert (told["status"], told["partition_count"], told["totallag"]) == ("OK", PARTITIONS, 0)
    owners = owners_of(zookeeper, group, topic)
    for one in told["partitions"]:
        number = one["partition"]
        content, stat = zookeeper.get(f"/consumers/{group}/offsets/{topic}/{number}")
        assert one["end"]["offset"] == int(content) == offsets[topic, str(number)] == MESSAGES // PARTITIONS
        assert one["end"]["timestamp"] == stat.mtime
        assert one["owner"] == owners[number]
    assert set(server.samples("zkconsumer_partition_owned_as_expected", group).values()) == {1}
    page = server.document(f"/api/groups/{group}")
    assert {member["kind"] for member in page["members"]} == {"Scala", "zkconsumer"}
    assert all(one["explanation"] for one in page["partitions"])
    return True
