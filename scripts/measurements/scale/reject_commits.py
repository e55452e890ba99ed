"""Commits of a balanced run whose handler rejects every message, on a busy machine: a real ZooKeeper and a real broker.

The command is ``python -m scripts.measurements.scale.reject_commits --busy 1``. A member process handles 100 partitions
of 1,000 messages. So many processes burn the processor meanwhile. The member is killed, and the figures tell when its
first commit came, and which part of the handled messages was committed at the kill.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any

from kazoo.client import KazooClient

from tests.cluster.conftest import TICK_MS, unique
from tests.timing import eventually
from zkconsumer import Reject, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

TELL_S = 0.1
LOOK_S = 0.1
BURN = "import time\nend = time.time() + 600\nwhile time.time() < end: pass"
"""A busy process, which ends whatever becomes of this one."""


def member(task: dict[str, Any]) -> None:
    """Reject every message, and tell how many were handled."""
    lock, handled = threading.Lock(), 0

    def reject(_: Any) -> Reject:
        nonlocal handled
        with lock:
            handled += 1
        return Reject("no")

    def tell() -> None:
        while True:
            print(json.dumps({"handled": handled, "at": monotonic()}), flush=True)
            sleep(TELL_S)

    threading.Thread(target=tell, daemon=True).start()
    properties = {"zookeeper.connect": task["zookeeper"], "group.id": task["group"], "auto.offset.reset": "smallest"}
    connector = ZookeeperConsumerConnector(properties)
    threading.Thread(target=lambda: _tell_state(connector), daemon=True).start()
    connector.run(reject, task["topic"], concurrency=8, failure_limit=None)


def _tell_state(connector: ZookeeperConsumerConnector) -> None:
    seen = ""
    while True:
        problems = "; ".join(connector.health().not_ready)
        if problems != seen:
            seen = problems
            print(json.dumps({"health": problems[:200]}), flush=True)
        sleep(TELL_S)


def committed(client: Any, group: str, topic: str) -> int:
    """Return the number of messages before the committed offsets."""
    root = f"/consumers/{group}/offsets/{topic}"
    if client.exists(root) is None:
        return 0
    return sum(int(client.get(f"{root}/{partition}")[0]) for partition in client.get_children(root))


def run(partitions: int, messages: int, busy: int, seconds: float) -> None:
    """Measure, and print the figures."""
    from confluent_kafka import Producer

    with ExitStack() as ends:
        cluster = ends.enter_context(DevCluster(tick_ms=TICK_MS))
        topic, group = unique("reject"), unique("reject")
        cluster.create_topic(topic, partitions)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "queue.buffering.max.messages": 1_000_000})
        for number in range(partitions * messages):
            producer.produce(topic, b"v", key=b"%d" % number, partition=number % partitions)
        assert producer.flush(60) == 0
        for _ in range(busy):
            burner = subprocess.Popen([sys.executable, "-c", BURN])
            ends.callback(burner.wait)
            ends.callback(burner.kill)
        client = KazooClient(cluster.zookeeper_connect)
        client.start()
        ends.callback(client.stop)
        task = {"zookeeper": cluster.zookeeper_connect, "group": group, "topic": topic}
        command = [sys.executable, "-m", __spec__.name, "--member", json.dumps(task)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ends.callback(process.kill)
        told: list[dict[str, Any]] = []
        assert process.stdout is not None
        lines = process.stdout
        listener = threading.Thread(target=lambda: told.extend(map(json.loads, lines)), daemon=True)
        listener.start()
        eventually(lambda: process.poll() is not None or _handled(told), 120, "the first message")
        assert process.poll() is None, "the member ended"
        began, first = monotonic(), None
        while monotonic() < began + seconds and (last := _handled(told)) < partitions * messages:
            if first is None and committed(client, group, topic):
                first = monotonic() - began
            sleep(LOOK_S)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        listener.join()
        done, last = committed(client, group, topic), _handled(told)
        problems = [one["health"] for one in told if one.get("health")]
    print(
        f"{busy} busy processes, load {os.getloadavg()[0]:.0f}: the first commit came "
        f"{'never' if first is None else f'{first:.1f} s'} after the first message; killed after "
        f"{monotonic() - began:.0f} s with {last} handled and {done} committed ({100 * done / max(last, 1):.0f} %)"
    )
    for problem in dict.fromkeys(problems):
        print(f"  not ready: {problem}")


def _handled(told: list[dict[str, Any]]) -> int:
    return max((one["handled"] for one in told.copy() if "handled" in one), default=0)


def main() -> None:
    """Run the measurement of the command line, or its member."""
    parser = argparse.ArgumentParser(prog="python -m scripts.measurements.scale.reject_commits", description=__doc__)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--messages", type=int, default=1000, help="of each partition")
    parser.add_argument("--busy", type=int, default=1, help="processes that burn the processor meanwhile")
    parser.add_argument("--seconds", type=float, default=20.0, help="until the kill, from the first message on")
    parser.add_argument("--member", metavar="TASK", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.member:
        member(json.loads(arguments.member))
    else:
        run(arguments.partitions, arguments.messages, arguments.busy, arguments.seconds)


if __name__ == "__main__":
    main()
