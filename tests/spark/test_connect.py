"""Spark Connect: the client only sends names and options; server and executors have the package.

Skipped where PySpark's extra ``connect`` is not installed. The client is a process of its own, because a process with a
classic Spark session can have no other session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic
from tests.spark.conftest import offsets_of
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark

for _needed in ("grpc", "grpc_status", "google.rpc", "zstandard", "pandas"):
    pytest.importorskip(_needed, reason="Spark Connect needs pyspark[connect]")

_CLIENT = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession
import zkconsumer.spark

folder, options = sys.argv[1], json.loads(sys.argv[2])
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert isinstance(spark, ConnectSession), type(spark)
zkconsumer.spark.register(spark)
zkconsumer.spark.register(spark)
frame = spark.read.format("zkconsumer").options(**options).load()
found = {"batch": [frame.count(), frame.where("partition = 1").count()]}
part = zkconsumer.spark.snapshot({**options, "group.id": options["group.id"] + "-batch"})
found["snapshot"] = part.load(spark, "offset bigint").count()
part.commit()
stream = spark.readStream.format("zkconsumer").options(startingOffsets="earliest", **options).load()
writer = stream.writeStream.format("parquet").option("path", folder + "/out")
query = writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
found["ended"] = [query.awaitTermination(150), str(query.exception())]
out = spark.read.parquet(folder + "/out")
found["stream"] = [out.count(), out.select("partition", "offset").distinct().count()]
print("found " + json.dumps(found))
spark.stop()
"""


def test_batches_snapshots_and_streams_run_over_spark_connect(
    cluster: DevCluster,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: Any,
    tmp_path: Path,
) -> None:
    topic, group = new_topic(2), new_group()
    produce(topic, [b"%d" % n for n in range(2000)], partitions=2)
    options = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": group, "subscribe": topic}
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home_for_spark()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, str(tmp_path), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    (found,) = [line for line in done.stdout.splitlines() if line.startswith("found ")] or [done.stdout + done.stderr]
    assert json.loads(found.removeprefix("found ")) == {
        "batch": [2000, 1000],
        "snapshot": 2000,
        "ended": [True, "None"],
        "stream": [2000, 2000],
    }
    for name in (group, f"{group}-batch"):
        assert offsets_of(zookeeper, name, topic) == {0: 1000, 1: 1000}
    eventually(lambda: zookeeper.get_children(f"/consumers/{group}/ids") == [], 20, "the query's member to leave")
