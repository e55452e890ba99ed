"""``zkconsumer timeline --follow`` beside a real group of a Scala member and of ours: joins, a clean leave, a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.our_member import OurMember
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

PARTITIONS = 4


class Follower:
    """The command in a process of its own; ``seen`` are the objects that it has printed."""

    def __init__(self, cluster: DevCluster, group: str) -> None:
        command = [sys.executable, "-m", "zkconsumer", "timeline", group, "--zookeeper", cluster.zookeeper_connect]
        self.process = subprocess.Popen(
            [*command, "--follow", "--format", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.seen: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, name="timeline-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(json.loads(line))

    def events(self, kind: str, member: str = "") -> list[dict[str, Any]]:
        return [one for one in self.seen if one.get("event") == kind and str(one["member"]).startswith(member)]

    def rebalance(self, *words: str) -> dict[str, Any]:
        """Wait for the summary of a rebalance whose cause has these words."""

        def found() -> dict[str, Any] | None:
            known = [one for one in self.seen if one["type"] == "rebalance"]
            return next((one for one in known if all(word in (one["cause"] or "") for word in words)), None)

        return eventually(found, 30, lambda: f"a rebalance with {words} in {self.seen[-12:]}") or {}

    def end(self, number: int) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(scaled(20))
        self._reader.join(scaled(20))
        return code


@contextmanager
def following(cluster: DevCluster, group: str) -> Iterator[Follower]:
    follower = Follower(cluster, group)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.wait()
        for stream in (follower.process.stdout, follower.process.stderr):
            if stream is not None:
                stream.close()


def test_a_mixed_group_is_followed_through_join_leave_and_kill(
    cluster: DevCluster,
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    zookeeper: KazooClient,
) -> None:
    topic, group = new_topic(PARTITIONS), new_group()

    def owned(number: int, members: int) -> bool:
        owners = owners_of(zookeeper, group, topic)
        return len(owners) == number and len({thread.rpartition("-")[0] for thread in owners.values()}) == members

    with following(cluster, group) as follower:
        scala = legacy_member("1.1.1", group, {topic: 1}, properties={"consumer.id": "scala"})
        ours = our_member(group, {topic: 1}, properties={"consumer.id": "ours"})
        killed = our_member(
            group, {topic: 1}, properties={"consumer.id": "victim", "zookeeper.session.timeout.ms": "2000"}
        )
        for member in (scala, ours, killed):
            member.wait_ready()
        eventually(lambda: owned(PARTITIONS, 3), 30, "an owner for each partition")
        names = {f"{group}_{suffix}" for suffix in ("scala", "ours", "victim")}
        eventually(lambda: names <= {one["member"] for one in follower.events("joined")}, 20, "three joins")
        eventually(lambda: [one for one in follower.seen if one["type"] == "rebalance"], 20, "the first summary")

        killed.kill()
        eventually(lambda: owned(PARTITIONS, 2), 30, "two owners")
        death = follower.rebalance(f"{group}_victim left")
        assert {f"{one['topic']}:{one['partition']}" for one in death["moved"]} & {f"{topic}:{n}" for n in range(4)}
        assert all(move["before"] != move["after"] for move in death["moved"])
        ids = zookeeper.get(f"/consumers/{group}/ids")[1]
        (left,) = follower.events("left", f"{group}_victim")
        assert left["zxid"] == ids.pzxid, "the last change under ids is this leave, and it is known exactly"

        scala.stop()
        eventually(lambda: owned(PARTITIONS, 1), 30, "one owner")
        leave = follower.rebalance(f"{group}_scala left")
        assert leave["last"] == f"{group}_ours-0"
        assert (leave["duration"] or 0) >= 0
        czxids = [zookeeper.get(f"/consumers/{group}/owners/{topic}/{n}")[1].czxid for n in range(PARTITIONS)]
        assert {one["zxid"] for one in follower.events("claimed", f"{group}_ours")} >= set(czxids)
        assert follower.end(signal.SIGTERM) == 130
    known = [
        one["zxid"] for one in follower.seen if one["type"] == "event" and one["zxid"] and one["event"] == "claimed"
    ]
    assert known == sorted(known)

    once = subprocess.run(
        [sys.executable, "-m", "zkconsumer", "timeline", group, "--zookeeper", cluster.zookeeper_connect],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=True,
    )
    assert f"{group}_ours-0 {topic}:0-3" in once.stdout or f"{group}_ours-0 {topic}:" in once.stdout
    assert "cause: " in once.stdout


def test_a_closed_pipe_ends_the_follower(cluster: DevCluster, new_group: Callable[[], str]) -> None:
    """Nothing happens in the group, so the command writes nothing, and must notice all the same."""
    group = new_group()
    command = [sys.executable, "-m", "zkconsumer", "timeline", group, "--zookeeper", cluster.zookeeper_connect]
    reading, writing = os.pipe()
    process = subprocess.Popen([*command, "--follow"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    try:
        assert process.wait(scaled(30)) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
