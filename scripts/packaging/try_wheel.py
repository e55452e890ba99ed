"""Tries the installed package: it is compiled, and a member reads and commits on a cluster in memory.

Cibuildwheel and ``scripts/wheels`` run this file in an environment that has the wheel and its requirements alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector, version
from zkconsumer.testing import FakeCluster

VALUES = [b"%d" % number for number in range(1000)]


def main() -> int:
    """Return the exit code."""
    if Path(version.__file__).parent == Path(__file__).resolve().parents[2] / "zkconsumer":
        raise SystemExit(f"this is not the installed package: {version.__file__}")
    if not version.COMPILED:
        raise SystemExit(f"the wheel is not compiled: {version.DATA_PLANE}")
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", partitions=1)
        cluster.append("t", 0, VALUES)
        properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
        with ZookeeperConsumerConnector(ConsumerConfig(properties)) as connector:
            (stream,) = connector.create_message_streams({"t": 1}, until="end")["t"]
            read = [message.value for message in stream]
        committed = cluster.zookeeper.tree("/consumers/g/offsets/t")
    if read != VALUES or set(committed.values()) != {b"1000"}:
        raise SystemExit(f"{len(read)} messages were read, and {committed} was committed")
    python = sys.version.split()[0]
    print(f"zkconsumer {version.VERSION}, Python {python}: compiled, {len(read)} messages read and committed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
