"""Ill groups that were once shown as healthy, on real servers: every command, page and metric must say the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.conftest import NewTopic, owners_of, produce_to, unique
from tests.cluster.in_process import client_of, live_source, offsets_of
from tests.cluster.operator_commands import run_command
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.serving.bounded_http import ListenAddress
from zkconsumer.operations.serving.http_server import AccessRules, Routes, ServeOptions, request_of
from zkconsumer.operations.serving.poller import Poller
from zkconsumer.operations.snapshot_file import FileSource, write_snapshots

LEVELS = {"ok": 0, "note": 1, "warn": 2, "error": 3}


@dataclass
class Views:
    """The answers of each command, page and metric about one group."""

    doctor: Any
    explained: Any
    described: str
    warned: str
    row: Any
    document: Any
    metrics: dict[tuple[str, str, str], float]

    def agree(self, severity: str, check: str, partitions: dict[tuple[str, int], str]) -> None:
        """Fail unless all views have this severity, name this check, and agree on the verdicts of partitions."""
        assert {one["check"] for one in self.doctor["findings"] if one["level"] == severity} >= {check}
        told = [self.doctor["level"], self.explained["severity"], self.row["severity"], self.document["severity"]]
        assert told == [severity] * 4
        assert self.metrics["zkconsumer_group_severity", "", ""] == LEVELS[severity]
        assert (severity in ("warn", "error")) == ("zkconsumer doctor" in self.warned)
        found = [one["text"] for one in self.doctor["findings"] if one["check"] == check and one["level"] == severity]
        assert any(text in self.warned for text in found), self.warned
        assert [one["text"] for one in self.document["findings"]] == [
            one["text"] for one in self.doctor["findings"] if one["level"] != "ok"
        ]
        assert {tp: self.of(*tp)["severity"] for tp in partitions} == partitions
        for (topic, number), level in partitions.items():
            assert self.metrics["zkconsumer_partition_severity", topic, str(number)] == LEVELS[level]
            said = self.explanation(topic, number)
            assert said is None or said["verdict"]["level"] == level

    def of(self, topic: str, number: int) -> Any:
        (one,) = [p for p in self.document["partitions"] if (p["topic"], p["partition"]) == (topic, number)]
        return one

    def explanation(self, topic: str, number: int) -> Any:
        return next((p for p in self.explained["partitions"] if (p["topic"], p["partition"]) == (topic, number)), None)


@contextmanager
def watching(source: Callable[[], SnapshotSource], *, as_taken: bool) -> Iterator[tuple[Poller, Routes]]:
    """A poller and the answers of ``zkconsumer serve``."""
    poller = Poller(lambda: nullcontext(source()), 1.0, histories=as_taken)
    rules = AccessRules(ListenAddress("127.0.0.1", 8089))
    routes = Routes(lambda: poller.board, rules, ServeOptions("c", "h", 1.0, {}, as_taken=as_taken))
    poller.start()
    try:
        assert poller.wait(lambda board: board.polls, 0, scaled(30)).polls
        yield poller, routes
    finally:
        assert poller.stop(scaled(30))


def answer(routes: Routes, path: str) -> bytes:
    found = routes.answer(request_of(path, {"host": "127.0.0.1:8089"}))
    assert found.status == 200, found.body
    return b"".join([found.body, *(make() for make in found.more)])


def samples(routes: Routes, group: str) -> dict[tuple[str, str, str], float]:
    return {
        (sample.name, sample.labels.get("topic", ""), sample.labels.get("partition", "")): sample.value
        for family in text_string_to_metric_families(answer(routes, "/metrics").decode())
        for sample in family.samples
        if sample.labels.get("consumergroup") == group and "level" not in sample.labels
    }


def views(tmp_path: Path, snapshot: GroupSnapshot) -> Views:
    """Return the answers about a snapshot of a group."""
    file, group = tmp_path / "group.jsonl", snapshot.group
    write_snapshots(str(file), [snapshot])
    where = ("--from", str(file))
    described = run_command("groups", "describe", group, *where)
    with watching(lambda: FileSource([str(file)]), as_taken=True) as (_, routes):
        return Views(
            json.loads(run_command("doctor", group, "--format", "json", *where).out)[0],
            json.loads(run_command("explain", group, "--format", "json", *where).out),
            described.out,
            described.err,
            json.loads(answer(routes, "/api/groups"))["groups"][0],
            json.loads(answer(routes, f"/api/groups/{group}")),
            samples(routes, group),
        )


@pytest.fixture
def look(cluster: DevCluster) -> Iterator[Callable[[str], GroupSnapshot]]:
    with live_source(cluster.zookeeper_connect) as source:
        yield lambda group: source.snapshot(group, message_times=True)


def offsets_are(zookeeper: KazooClient, group: str, topic: str, offsets: Sequence[object]) -> None:
    for number, offset in enumerate(offsets):
        zookeeper.create(f"/consumers/{group}/offsets/{topic}/{number}", str(offset).encode(), makepath=True)


def test_findings_of_a_group_are_in_the_overview(
    zookeeper: KazooClient, new_topic: NewTopic, new_group: Callable[[], str], look: Any, tmp_path: Path
) -> None:
    """Five errors stood on the group's own page, and the overview had a green tick."""
    topic, group = new_topic(5), new_group()
    for number in range(5):
        path = f"/consumers/{group}/owners/{topic}/{number}"
        zookeeper.create(path, f"{group}_old-0".encode(), makepath=True)
    found = views(tmp_path, look(group))
    found.agree("error", "persistent-owner", {(topic, number): "error" for number in range(5)})
    assert (found.row["finding_counts"]["error"], found.row["status"]) == (5, "ERR")


def test_a_deleted_topic_is_a_finding_everywhere(
    cluster: DevCluster,
    zookeeper: KazooClient,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Any,
    our_member: Callable[..., Any],
    look: Callable[[str], GroupSnapshot],
    tmp_path: Path,
) -> None:
    """The overview was green, with "4 of 8 owned"."""
    kept, gone, group = new_topic(4), new_topic(4), new_group()
    for topic in (kept, gone):
        produce(topic, [b"x"] * 40, partitions=4)
    our_member(group, {kept: 1, gone: 1}).wait_ready()

    def consumed() -> bool:
        return all(offsets_of(zookeeper, group, topic) == dict.fromkeys(range(4), 10) for topic in (kept, gone))

    eventually(consumed, 30, "all is consumed")
    cluster.delete_topic(gone)
    eventually(lambda: gone not in look(group).topics, 30, "the topic is gone")
    eventually(lambda: not owners_of(zookeeper, group, gone), 60, "its owner nodes are gone")
    found = views(tmp_path, look(group))
    wanted = {(kept, n): "ok" for n in range(4)} | {(gone, n): "warn" for n in range(4)}
    found.agree("warn", "dead-offsets", wanted)
    assert found.row["headline"] == f"topic {gone} does not exist, but has 4 offsets"
    assert found.row["status"] == "WARN"


def test_old_numbers_look_old_while_the_only_replica_is_away() -> None:
    """Three minutes after the broker's end it was still Stable, OK and lag 0."""
    with DevCluster() as mortal, live_source(mortal.zookeeper_connect) as source:
        topic, group = unique("mortal"), unique("group")
        mortal.create_topic(topic, 2)
        produce_to(mortal.bootstrap_servers, topic, [b"x"] * 20, partitions=2)
        with client_of(mortal.zookeeper_connect) as client:
            offsets_are(client, group, topic, [10, 10])
        with watching(lambda: source, as_taken=False) as (_, routes):

            def row() -> Any:
                return next(one for one in json.loads(answer(routes, "/api/groups"))["groups"] if one["group"] == group)

            eventually(lambda: row()["lag"] == 0 and row()["status"] == "OK", 30, "the healthy group")
            mortal.kafka.kill()
            eventually(lambda: row()["status"] == "ERR", 60, "the group is not OK")
            assert row()["finding_counts"]["error"] >= 1
            eventually(lambda: row()["lag_age"] > 3, 30, "the lag is old")
            assert row()["lag"] == 0
            assert row()["lag_taken"] < row()["taken"] or row()["failure"]
            seen = samples(routes, group)
            assert seen["zkconsumer_group_severity", "", ""] == LEVELS["error"]
            assert seen["zkconsumer_group_status", "", ""] == 3
            document = json.loads(answer(routes, f"/api/groups/{group}"))
            assert min(one["lag_age"] for one in document["partitions"]) > 3
        where = ("--zookeeper", mortal.zookeeper_connect)
        assert "error brokers" in run_command("doctor", group, *where).out
        assert f"Error: Consumer group '{group}'" in run_command("groups", "describe", group, *where).err
