"""Recorded checkpoints: ``checkpoints/<version>/<kind>`` has what a query of that version and kind left.

Each one is of 2 partitions with 250 messages each, message n in partition n modulo 2 with n as its value. Of its three
batches the first two, of 100 messages a partition, have ended; the last one, of 50, was planned and not finished.
``before-membership`` is of a version that had only ``membership=none``, the others of the version that they are named
after.

``python -m tests.spark.recorded`` records all kinds with the code as it is, on a cluster of its own, as checkpoints of
the present version: before each release, and whenever what is in a checkpoint changes. Tests take every one they find.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.conftest import produce_to
from tests.spark.conftest import DISCOVERED, Sink
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark
from zkconsumer.version import VERSION

FOLDER = Path(__file__).parent / "checkpoints"
TOPIC = "recorded-checkpoint"
"""Its name stands in the checkpoints; nothing else of the topic does."""
KINDS: Mapping[str, Mapping[str, str]] = {
    "member": {"membership": "member"},
    "none": {"membership": "none"},
    "coordinated": {"membership": "member", "group.coordination": "kafka"},
}
EACH = 250
"""Messages in each partition at the time of the recording."""
_BATCH = 200
_NEEDED = ("metadata", "offsets", "commits", "sources")


def recordings() -> list[Path]:
    """The folders of all recorded checkpoints."""
    return sorted(path.parent for path in FOLDER.glob("*/*/metadata"))


def options_of(kind: str, cluster: DevCluster, group: str) -> dict[str, str]:
    """Return the options of a query of a kind."""
    common = {"group.id": group, "subscribe": TOPIC, "startingOffsets": "earliest", **KINDS[kind]}
    if "group.coordination" in common:  # which knows nothing of ZooKeeper
        return {**common, "kafka.bootstrap.servers": cluster.bootstrap_servers}
    return {**common, "zookeeper.connect": cluster.zookeeper_connect}


def fill(cluster: DevCluster, first: int, end: int) -> None:
    """Writes messages first to end - 1; makes the topic with the first one."""
    if not first:
        cluster.create_topic(TOPIC, 2)
    produce_to(cluster.bootstrap_servers, TOPIC, [b"%d" % n for n in range(first, end)], partitions=2)


def expected(partition: int, first: int, end: int) -> list[tuple[int, int, bytes]]:
    """The rows of a range: partition, offset, value."""
    return [(partition, offset, b"%d" % (2 * offset + partition)) for offset in range(first, end)]


def record(spark: Any, cluster: DevCluster, kind: str, target: Path) -> None:
    """Runs a query whose third batch fails, and keeps of its checkpoint what a query goes on from."""
    options = {**options_of(kind, cluster, f"recorded-{kind}"), "maxOffsetsPerTrigger": str(_BATCH)}
    sink = Sink()
    sink.fail_at = 2
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch, "checkpoint")
        query = sink.start(spark.readStream.format("zkconsumer").options(**options).load(), checkpoint)
        try:
            query.awaitTermination(scaled(120))
        except Exception as failure:
            if "the sink fails here" not in str(failure):
                raise
        finally:
            query.stop()
        assert sorted(sink.batches) == [0, 1, 2]
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in _NEEDED:
            if (checkpoint / name).is_dir():
                shutil.copytree(checkpoint / name, target / name, ignore=shutil.ignore_patterns(".*"))
            elif (checkpoint / name).exists():
                shutil.copy(checkpoint / name, target / name)


def main() -> None:
    """Records all kinds."""
    os.environ |= {"JAVA_HOME": str(java_home_for_spark()), "PYSPARK_PYTHON": sys.executable}
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": os.pathsep.join([str(DISCOVERED), *sys.path])}
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as folder, DevCluster() as cluster:
        fill(cluster, 0, 2 * EACH)
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
        try:
            for kind in KINDS:
                record(spark, cluster, kind, FOLDER / VERSION / kind)
                print("recorded", FOLDER / VERSION / kind)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
