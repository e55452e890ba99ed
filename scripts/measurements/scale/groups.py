"""``scripts/scale --groups N``: what N groups cost ``zkconsumer serve`` and the commands, on real servers.

Each group has five members that own the four partitions of five topics and commit to ZooKeeper. One more group has
10,000 partitions. The members' nodes are made by this process, with a session for each of five members. Packets are
those that ZooKeeper itself counts for the connection of ``serve`` (``cons``).
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from kazoo.client import KazooClient

from tests.cluster.conftest import produce_to
from zkconsumer.devcluster.kafka_server import EmbeddedKafka
from zkconsumer.devcluster.zookeeper_server import EmbeddedZooKeeper
from zkconsumer.zookeeper.cluster_admin import Admin

TOPICS, PARTITIONS, MEMBERS = 5, 4, 5
MESSAGES = 2000
LARGE = "large"
INTERVAL = 10.0
_BOTH_COMPILERS = ("-XX:TieredStopAtLevel=4",)  # as a server has them that runs for days; ours in tests start sooner
_LAST = 120.0
_AT_ONCE = 500
_FURTHER = 5
_CONNECTION = re.compile(r"recved=(\d+),sent=(\d+),sid=0x([0-9a-f]+)")


class Staged:
    """The servers, the groups' nodes and the sessions of their members."""

    def __init__(self, stack: ExitStack, groups: int, partitions: int, zookeeper: str | None) -> None:
        self.names = [f"g{number:04d}" for number in range(groups)]
        self.large = partitions
        server = EmbeddedZooKeeper(tick_ms=3000, version=zookeeper, heap_mb=512, java_options=_BOTH_COMPILERS)
        self.zookeeper = stack.enter_context(server)
        self.kafka = EmbeddedKafka(self.zookeeper.connect, heap_mb=1024)
        stack.enter_context(self.kafka)
        self.sessions = [KazooClient(self.zookeeper.connect, timeout=60.0) for _ in range(MEMBERS)]
        for session in self.sessions:
            session.start()
            stack.callback(session.stop)
        self.places = [(f"topic{t}", p) for t in range(TOPICS) for p in range(PARTITIONS)]
        self.committed: dict[tuple[str, str, int], int] = {}

    def fill(self) -> None:
        """Make topics, messages and nodes."""
        with Admin(self.zookeeper.connect) as admin:
            for number in range(TOPICS):
                admin.create_topic(f"topic{number}", PARTITIONS)
            if self.large:
                admin.create_topic(LARGE, self.large)
        for number in range(TOPICS):
            count = MESSAGES * PARTITIONS
            produce_to(
                self.kafka.address,
                f"topic{number}",
                (b"x" * 50 for _ in range(count)),
                partitions=PARTITIONS,
                batch_size=16384,
            )
        if self.large:
            self._fill_large()
        self.sessions[0].ensure_path("/consumers")
        for group in self.names:
            offsets = {(topic, p): random.randrange(MESSAGES // 2) for topic, p in self.places}
            self._group(group, dict.fromkeys((topic for topic, _ in self.places), 1), offsets)
        if self.large:
            self._group(LARGE, {LARGE: 1}, {(LARGE, p): 1 for p in range(self.large)})

    def _fill_large(self) -> None:
        """Write two messages to each partition, once the broker knows them all."""
        for left in reversed(range(30)):
            try:
                produce_to(self.kafka.address, LARGE, (b"x" for _ in range(2 * self.large)), partitions=self.large)
                return
            except (AssertionError, KafkaException):  # it waits for 20 s
                if not left:
                    raise

    def _group(self, group: str, subscription: dict[str, int], offsets: dict[tuple[str, int], int]) -> None:
        base = f"/consumers/{group}"
        ids = [f"{group}_host{member}-1700000000000-{member:08x}" for member in range(MEMBERS)]
        parents = [base, *(f"{base}/{kind}" for kind in ("ids", "owners", "offsets"))]
        parents += [f"{base}/{kind}/{topic}" for kind in ("owners", "offsets") for topic in subscription]
        self._make(self.sessions[0], [(path, b"") for path in parents])
        fields = {"version": 1, "subscription": subscription, "pattern": "static", "timestamp": "1700000000000"}
        share = max(1, self.large // MEMBERS) if group == LARGE else 1
        owned: list[list[tuple[str, bytes]]] = [[(f"{base}/ids/{name}", json.dumps(fields).encode())] for name in ids]
        for topic, p in offsets:
            member = min(p // share, MEMBERS - 1)
            owned[member].append((f"{base}/owners/{topic}/{p}", f"{ids[member]}-0".encode()))
        committed = [(f"{base}/offsets/{topic}/{p}", str(offset).encode()) for (topic, p), offset in offsets.items()]
        self._make(self.sessions[0], committed)
        for session, nodes in zip(self.sessions, owned, strict=True):
            self._make(session, nodes, ephemeral=True)
        self.committed |= {(group, topic, p): offset for (topic, p), offset in offsets.items()}

    @staticmethod
    def _make(session: KazooClient, nodes: list[tuple[str, bytes]], *, ephemeral: bool = False) -> None:
        """Create nodes, many in one transaction: one request a node takes minutes."""
        for begin in range(0, len(nodes), _AT_ONCE):
            transaction = session.transaction()
            for path, data in nodes[begin : begin + _AT_ONCE]:
                transaction.create(path, data, ephemeral=ephemeral)
            results = transaction.commit()
            assert not any(isinstance(one, Exception) for one in results), results

    def commit(self, group: str, topic: str, partition: int, session: KazooClient) -> Any:
        """Commit the next offset."""
        offset = self.committed[group, topic, partition] = (self.committed[group, topic, partition] + 1) % MESSAGES
        return session.set_async(f"/consumers/{group}/offsets/{topic}/{partition}", str(offset).encode())

    def packets(self) -> tuple[int, int]:
        """The packets from and to all clients but this process and the broker: received, sent."""
        ours = {session.client_id[0] for session in self.sessions} | self._brokers
        received = sent = 0
        for found in _CONNECTION.finditer(self.zookeeper.ask("cons", 10.0)):
            if int(found[3], 16) not in ours and int(found[3], 16):
                received, sent = received + int(found[1]), sent + int(found[2])
        return received, sent

    _brokers: frozenset[int] = frozenset()

    def settle(self) -> None:
        """Remember the sessions that are not those of ``serve``, which begins after this."""
        found = _CONNECTION.finditer(self.zookeeper.ask("cons", 10.0))
        self._brokers = frozenset(int(one[3], 16) for one in found)


class Committing(threading.Thread):
    """Commits each partition of each group once a minute, evenly."""

    def __init__(self, staged: Staged) -> None:
        super().__init__(name="commits", daemon=True)
        self._staged = staged
        self.ended = threading.Event()
        self.count = 0

    def run(self) -> None:
        """Commit until the end."""
        staged, places = self._staged, [(g, *place) for place in self._staged.places for g in self._staged.names]
        pause, due = 60.0 / len(places), time.monotonic()
        while not self.ended.is_set():
            for group, topic, partition in places:
                staged.commit(group, topic, partition, staged.sessions[self.count % MEMBERS])
                self.count += 1
                due += pause
                if due > time.monotonic() and self.ended.wait(due - time.monotonic()):
                    return


class Serve:
    """A ``zkconsumer serve`` in a process of its own."""

    def __init__(self, connect: str) -> None:
        command = [sys.executable, "-m", "zkconsumer", "serve", "--listen", "127.0.0.1:0", "--zookeeper", connect]
        self.begun = time.monotonic()
        self.process = subprocess.Popen([*command, "--interval", str(INTERVAL)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def get(self, path: str) -> tuple[float, bytes]:
        """The seconds that an answer takes, and the answer."""
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        begun = time.perf_counter()
        try:
            client.request("GET", path)
            body = client.getresponse().read()
        finally:
            client.close()
        return time.perf_counter() - begun, body

    def groups(self) -> dict[str, Any]:
        """The overview."""
        found: dict[str, Any] = json.loads(self.get("/api/groups")[1])
        return found

    def samples(self) -> dict[str, float]:
        """The samples of the metrics."""
        lines = self.get("/metrics")[1].decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def wait(self, polls: int) -> None:
        """Wait for so many polls."""
        while self.groups()["polls"] < polls:
            time.sleep(0.2)

    @property
    def cpu(self) -> float:
        """The CPU time so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self, field: str) -> float:
        """A field of the process's memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def _first(serve: Serve) -> dict[str, Any]:
    told: list[tuple[float, int, int | None]] = []
    while True:
        found = serve.groups()
        seconds = round(time.monotonic() - serve.begun, 1)
        told.append((seconds, len(found["groups"]), found["missing"]))
        if found["polls"]:
            return {"first_full_answer_s": seconds, "cpu_s": serve.cpu, "told_before": told[:: max(1, len(told) // 8)]}
        time.sleep(0.5)


def _over(staged: Staged, serve: Serve, seconds: float, changes: Callable[[], int]) -> dict[str, Any]:
    """What a poll costs over some time."""
    polls, (received, sent), cpu, made = serve.groups()["polls"], staged.packets(), serve.cpu, changes()
    begun = time.monotonic()
    time.sleep(seconds)
    later, took = staged.packets(), time.monotonic() - begun
    count = max(1, serve.groups()["polls"] - polls)
    return {
        "polls": count,
        "packets_received_a_poll": round((later[0] - received) / count),
        "packets_sent_a_poll": round((later[1] - sent) / count),
        "changes_a_poll": round((changes() - made) / count),
        "cpu_percent": round(100 * (serve.cpu - cpu) / took, 1),
        "poll_s": serve.samples()["zkconsumer_serve_poll_duration_seconds"],
    }


def _answers(serve: Serve, staged: Staged) -> dict[str, float]:
    paths = [
        "/api/groups",
        f"/api/groups/{staged.names[0]}",
        "/metrics",
        *([f"/api/groups/{LARGE}"] if staged.large else []),
    ]
    return {path: round(max(serve.get(path)[0] for _ in range(3)), 2) for path in paths}


def _delays(serve: Serve, staged: Staged, count: int) -> list[float]:
    """The seconds until a new offset shows, at moments that are spread over the interval."""
    found = []
    for _ in range(count):
        time.sleep(random.uniform(0, INTERVAL))
        group, (topic, p) = random.choice(staged.names), random.choice(staged.places)
        wanted, begun = random.randrange(MESSAGES), time.monotonic()
        staged.sessions[0].set(f"/consumers/{group}/offsets/{topic}/{p}", str(wanted).encode())
        staged.committed[group, topic, p] = wanted
        while True:
            document = json.loads(serve.get(f"/api/groups/{group}")[1])
            (found_at,) = [o for o in document["partitions"] if (o["topic"], o["partition"]) == (topic, p)]
            if ((found_at["offset"] or 0) - wanted) % MESSAGES < _FURTHER:  # the group goes on committing
                break
            time.sleep(0.1)
        found.append(round(time.monotonic() - begun, 1))
    return found


def _wrong(serve: Serve, staged: Staged) -> int:
    """How many offsets of the metrics are not those in ZooKeeper, after all has settled."""
    serve.wait(serve.groups()["polls"] + 2)
    samples = serve.samples()
    label = 'kafka_consumergroup_current_offset{{consumergroup="{}",topic="{}",partition="{}"}}'
    return sum(samples.get(label.format(*place)) != offset for place, offset in staged.committed.items())


def _memory(serve: Serve) -> dict[str, int]:
    return {"now": round(serve.megabytes("VmRSS")), "most": round(serve.megabytes("VmHWM"))}


def _commands(staged: Staged) -> Iterator[tuple[str, dict[str, float]]]:
    """What the commands take: seconds of wall time and of CPU time, and their exit codes."""
    for words in (
        ["groups", "--list"],
        ["groups", "--describe", "--group", staged.names[0]],
        *([["groups", "--describe", "--group", LARGE]] if staged.large else []),
        ["doctor"],
    ):
        command = [sys.executable, "-m", "zkconsumer", *words, "--zookeeper", staged.zookeeper.connect]
        begun, before = time.perf_counter(), os.times()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=600)
        took, after = time.perf_counter() - begun, os.times()
        cpu = after.children_user - before.children_user + after.children_system - before.children_system
        yield " ".join(words), {"s": round(took, 1), "cpu_s": round(cpu, 1), "exit": done.returncode}


def measure(groups: int, partitions: int, seconds: float, zookeeper: str | None) -> dict[str, Any]:
    """Stage the groups, and measure. Print each part as it comes."""
    results: dict[str, Any] = {"groups": groups, "large": partitions, "zookeeper": zookeeper or "pyspark's"}

    def told(name: str, found: Any) -> None:
        results[name] = found
        print(f"  {name}: {found}", flush=True)

    with ExitStack() as stack:
        staged = Staged(stack, groups, partitions, zookeeper)
        begun = time.monotonic()
        staged.fill()
        staged.settle()
        told("staged_s", round(time.monotonic() - begun))
        told("commands", dict(_commands(staged)))
        staged.settle()
        serve = Serve(staged.zookeeper.connect)
        committing = Committing(staged)
        try:
            told("first", _first(serve))
            serve.wait(2)
            told("idle", _over(staged, serve, seconds, lambda: 0))
            told("answers_idle", _answers(serve, staged))
            committing.start()
            time.sleep(INTERVAL)
            told("committing", _over(staged, serve, seconds, lambda: committing.count))
            told("answers_committing", _answers(serve, staged))
            told("megabytes_so_far", _memory(serve))
            told("seconds_until_shown", sorted(_delays(serve, staged, 20)))
            committing.ended.set()
            committing.join(_LAST)
            told("wrong_offsets", _wrong(serve, staged))
            told("served_s", round(time.monotonic() - serve.begun))  # in 600 s each node is compared once
            told("differences", serve.samples()["zkconsumer_serve_differences_total"])
            told("megabytes", _memory(serve))
        finally:
            committing.ended.set()
            serve.process.terminate()
            serve.process.wait(60)
    return results
