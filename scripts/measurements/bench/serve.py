"""The cost of ``zkconsumer serve`` beside a group of many partitions: requests to ZooKeeper and CPU time.

Run ``python -m scripts.measurements.bench.serve``. It starts its own ZooKeeper and broker, and makes the nodes of a
group whose members commit each partition every ten seconds. A proxy before ZooKeeper counts the requests of ``serve``
alone.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from kazoo.client import KazooClient

from tests.cluster.conftest import produce_to
from tests.faults.proxy import Proxy
from zkconsumer.devcluster import DevCluster

GROUP, TOPIC = "costly", "events"
MESSAGES = 10
SCRAPE_SECONDS = 15.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.measurements.bench.serve", description=__doc__)
    parser.add_argument("--partitions", type=int, default=200, metavar="N", help="default: %(default)s")
    parser.add_argument("--members", type=int, default=20, metavar="N", help="default: %(default)s")
    parser.add_argument("--interval", type=float, default=10.0, metavar="S", help="default: %(default)g")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="default: %(default)g")
    parser.add_argument("--no-time-lag", action="store_true", help="as for zkconsumer serve")
    parser.add_argument("--page", action="store_true", help="also fetch the page's document after each reading")
    return parser.parse_args()


def _populate(client: KazooClient, partitions: int, members: int) -> None:
    """Make the nodes of a settled group of Scala members, half way through each partition."""
    base = f"/consumers/{GROUP}"
    names = sorted(f"{GROUP}_host{number:02d}-1700000000000-{number:08x}" for number in range(members))
    fields = {"version": 1, "subscription": {TOPIC: 1}, "pattern": "static", "timestamp": "1700000000000"}
    for name in names:
        client.create(f"{base}/ids/{name}", json.dumps(fields).encode(), ephemeral=True, makepath=True)
    for number in range(partitions):
        owner = f"{names[number * members // partitions]}-0"
        client.create(f"{base}/owners/{TOPIC}/{number}", owner.encode(), ephemeral=True, makepath=True)
        client.create(f"{base}/offsets/{TOPIC}/{number}", str(MESSAGES // 2).encode(), makepath=True)


def _commit(client: KazooClient, partitions: int, ended: threading.Event) -> None:
    """Write every offset again each ten seconds, as committing members do."""
    while not ended.wait(10.0):
        for number in range(partitions):
            client.set_async(f"/consumers/{GROUP}/offsets/{TOPIC}/{number}", str(MESSAGES // 2).encode())


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _get(port: int, path: str) -> int:
    """Return the length of an answer."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request("GET", path)
        return len(client.getresponse().read())
    finally:
        client.close()


def _measure(arguments: argparse.Namespace, process: subprocess.Popen[str], proxy: Proxy) -> None:
    assert process.stdout is not None
    port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    while b"zkconsumer_serve_polls_total 2" not in _text(port):
        time.sleep(0.5)
    requests, cpu, began = proxy.requests, _cpu_seconds(process.pid), time.monotonic()
    scraped = 0
    while time.monotonic() - began < arguments.seconds:
        scraped = _get(port, "/metrics")
        if arguments.page:
            _get(port, f"/api/groups/{GROUP}?since={int(time.time() * 1000) - 20_000}")
        time.sleep(arguments.interval if arguments.page else SCRAPE_SECONDS)
    took = time.monotonic() - began
    asked, spent = proxy.requests - requests, _cpu_seconds(process.pid) - cpu
    samples = dict(line.rpartition(b" ")[::2] for line in _text(port).splitlines())
    poll = float(samples[b"zkconsumer_serve_poll_duration_seconds"])
    print(f"{arguments.partitions} partitions, {arguments.members} members, every {arguments.interval:g} s:")
    print(f"  requests to ZooKeeper: {asked / took:.1f} a second, {asked * arguments.interval / took:.0f} a reading")
    print(f"  CPU: {100 * spent / took:.2f} % of one core; a reading takes {poll:.3f} s")
    print(f"  memory: {_megabytes(process.pid):.0f} MB; /metrics: {scraped / 1024:.0f} KB")


def _text(port: int) -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request("GET", "/metrics")
        return client.getresponse().read()
    finally:
        client.close()


def main() -> None:
    """Measure, and print the figures."""
    arguments = _arguments()
    ended = threading.Event()
    with DevCluster() as cluster, Proxy(("127.0.0.1", cluster.zookeeper.port)) as proxy:
        cluster.create_topic(TOPIC, arguments.partitions)
        count = MESSAGES * arguments.partitions
        produce_to(cluster.bootstrap_servers, TOPIC, (b"x" for _ in range(count)), partitions=arguments.partitions)
        client = KazooClient(cluster.zookeeper_connect, timeout=30.0)
        client.start()
        _populate(client, arguments.partitions, arguments.members)
        commits = threading.Thread(target=_commit, args=(client, arguments.partitions, ended), name="commits")
        commits.start()
        command = [sys.executable, "-m", "zkconsumer", "serve", "--listen", "127.0.0.1:0", "--zookeeper", proxy.address]
        command += ["--interval", str(arguments.interval)] + ["--no-time-lag"] * arguments.no_time_lag
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            _measure(arguments, process, proxy)
        finally:
            process.terminate()
            process.wait(20)
            ended.set()
            commits.join()
            client.stop()
            client.close()


if __name__ == "__main__":
    main()
