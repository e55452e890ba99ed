"""The installed wheel: Spark finds the data source by itself, from the module at its top level."""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import NewTopic
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster, java_home_for_spark

ROOT = Path(__file__).resolve().parents[2]

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
    source, out, installed = folder / "source", folder / "out", folder / "installed"
    products = shutil.ignore_patterns("__pycache__", "compiled_*", "generated")
    for name in ("zkconsumer", "scripts"):
        shutil.copytree(ROOT / name, source / name, ignore=products)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source)]
    pure = {**os.environ, "ZKCONSUMER_BUILD": "pure"}  # compiled ones: tests/contract/test_installations.py
    built = subprocess.run(command, env=pure, capture_output=True, text=True, timeout=scaled(120), check=False)
    assert built.returncode == 0, built.stderr
    assert not list((source / "zkconsumer").rglob("*.egg-info"))
    (wheel,) = out.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    return installed


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
