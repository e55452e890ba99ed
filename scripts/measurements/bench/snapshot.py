"""Snapshots of a large group: 500 partitions of 20 members, read from ZooKeeper and a broker."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

from kazoo.client import KazooClient

from scripts.measurements.bench.plan import Plan
from tests.timing import eventually, scaled
from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.devcluster import DevCluster
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline

NAME = "snapshot"
HELP = "seconds to read a group of 500 partitions and 20 members: ZooKeeper's part, all, all with new connections"

PARTITIONS, MEMBERS = 500, 20
_TIMEOUT_S = 20.0


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    times = 3 if plan.quick else 15
    with DevCluster() as cluster:
        cluster.create_topic("t", PARTITIONS)
        client = KazooClient(cluster.zookeeper_connect)
        client.start()
        try:
            _make_group(client)
            config, _ = command_config(cluster.zookeeper_connect, None)

            def fresh() -> LiveSource:
                return LiveSource(ClusterClient(config, _TIMEOUT_S))

            seconds = _measure(fresh(), fresh, times)
        finally:
            client.stop()
            client.close()
    for name, found in seconds.items():
        print(f"{name:<22} {median(found):.3f} s  ({min(found):.3f} to {max(found):.3f}, {len(found)} times)")
    return {"scenario": NAME, "partitions": PARTITIONS, "members": MEMBERS, "seconds": seconds}


def _make_group(client: KazooClient) -> None:
    """Make the nodes of a group whose members own all partitions evenly."""
    share = PARTITIONS // MEMBERS
    ids = [f"g_host{number:02d}-1700000000000-{number:08x}" for number in range(MEMBERS)]
    content = f'{{"version":1,"subscription":{{"t":{share}}},"pattern":"static","timestamp":"1700000000000"}}'.encode()
    for path in ("ids", "owners/t", "offsets/t"):
        client.ensure_path(f"/consumers/g/{path}")
    made = [client.create_async(f"/consumers/g/ids/{name}", content, ephemeral=True) for name in ids]
    for number in range(PARTITIONS):
        thread = f"{ids[number // share]}-{number % share}".encode()
        made.append(client.create_async(f"/consumers/g/owners/t/{number}", thread, ephemeral=True))
        made.append(client.create_async(f"/consumers/g/offsets/t/{number}", b"0"))
    for one in made:
        one.get(timeout=scaled(_TIMEOUT_S))


def _measure(source: LiveSource, fresh: Any, times: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"ZooKeeper": [], "all": [], "with new connections": []}
    try:
        eventually(lambda: _complete(source.snapshot("g")), 60, "the broker knows all partitions")
        for _ in range(times):
            begun = perf_counter()
            reader = ZooKeeperReader(source.client.session, GroupSnapshot("g", 0), Deadline(_TIMEOUT_S))
            assert reader.read()
            seconds["ZooKeeper"].append(perf_counter() - begun)
            begun = perf_counter()
            assert _complete(source.snapshot("g"))
            seconds["all"].append(perf_counter() - begun)
    finally:
        source.close()
    for _ in range(times):
        begun = perf_counter()
        new = fresh()
        assert _complete(new.snapshot("g"))
        seconds["with new connections"].append(perf_counter() - begun)
        new.close()
    return seconds


def _complete(found: GroupSnapshot) -> bool:
    known = len(found.members), len(found.owners), len(found.offsets)
    ends = [log.end for log in found.logs.values()]
    return known == (MEMBERS, PARTITIONS, PARTITIONS) and ends == [0] * PARTITIONS and not found.problems
