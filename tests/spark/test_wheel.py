"""The installed wheel: Spark finds the data source by itself, from the module at its top level."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import NewTopic
from tests.spark.installing import pure_wheel
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark

_QUERY = """
import importlib.util, json, sys
from pyspark.sql import SparkSession

folder, options = sys.argv[1], json.loads(sys.argv[2])
for name in ("zkconsumer", "pyspark_zkconsumer"):
    assert importlib.util.find_spec(name).origin.startswith(folder), name
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.warehouse.dir", folder + "/warehouse").getOrCreate()
frame = spark.read.format("zkconsumer").options(**options).load()
assert not importlib.util.find_spec("tests"), "the repository itself is found here"
print("rows", frame.count())
spark.stop()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the wheel, which is built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(pure_wheel(folder)) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def test_a_wheel_has_the_module_that_spark_looks_for(installed: Path) -> None:
    assert sorted(module.name for module in pkgutil.iter_modules([str(installed)])) == [
        "pyspark_zkconsumer",
        "zkconsumer",
    ]
    assert not list((installed / "zkconsumer").rglob("pyspark_*"))


def test_spark_finds_the_data_source_of_a_wheel_by_itself(
    installed: Path, cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], produce: Callable[..., int]
) -> None:
    topic = new_topic(2)
    produce(topic, [b"x"] * 30, partitions=2)
    options = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": new_group(), "subscribe": topic}
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home_for_spark()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(installed),
    }
    done = subprocess.run(
        [sys.executable, "-c", _QUERY, str(installed), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=scaled(180),
        check=False,
        env=environment,
        cwd=installed,
    )
    assert done.stdout.endswith("rows 30\n"), done.stdout + done.stderr
