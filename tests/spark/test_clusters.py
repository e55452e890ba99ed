"""The program and the commands of docs/spark-clusters.md, on a standalone master and on ``local-cluster``.

The libraries come from the environment that runs the tests, so that nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NewTopic
from tests.documents import DOCS, example
from tests.spark.conftest import offsets_of
from tests.spark.installing import LIBRARIES, ROOT, environment, pure_wheel
from tests.spark.standalone import SPARK_HOME, StandaloneCluster, plain_environment
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

_SETTINGS = """\
spark.ui.enabled false
spark.driver.memory 512m
spark.executor.memory 512m
spark.driver.host 127.0.0.1
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.sql.shuffle.partitions 2
spark.log.level ERROR
"""
_JOB_S = 240.0
pytestmark = pytest.mark.timeout(scaled(480))  # all deadlines of a test end before it
MESSAGES = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the commands run. The folder goes at the end, because its environments are large."""
    folder = tmp_path_factory.mktemp("clusters")
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(_SETTINGS)
    # local-cluster unpacks archives below SPARK_HOME
    (folder / "spark").mkdir()
    for part in SPARK_HOME.iterdir():
        if part.name != "work":
            (folder / "spark" / part.name).symlink_to(part)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def master(_java: None, folder: Path) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(folder)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def commands(text: str) -> str:
    """Return the commands of the page's only block with this text, without downloads and installs."""
    page = (DOCS / "spark-clusters.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if text in block]
    return "\n".join(line for line in block.splitlines() if " venv " not in line and not re.search(r"\bpip ", line))


class Commands:
    """Runs commands of the page on the test's cluster, with the page's program."""

    def __init__(self, folder: Path, cluster: DevCluster, topic: str, group: str) -> None:
        self.folder, self.group = folder, group
        program = example("cluster")
        for written, there in (
            ("127.0.0.1:2181", cluster.zookeeper_connect),
            ("cluster-readers", group),
            # a query fails if it loses its session, which a machine with much to do may bring about
            ('"subscribe": "events"', f'"subscribe": "{topic}", "zookeeper.session.timeout.ms": "30000"'),
        ):
            assert written in program
            program = program.replace(written, there)
        for path in ("events-parquet", "events-checkpoint"):
            shutil.rmtree(folder / path, ignore_errors=True)
        (folder / "events.py").write_text(program)

    def __call__(self, text: str, **variables: str) -> str:
        given = {**plain_environment(), "SPARK_HOME": str(self.folder / "spark")}
        with subprocess.Popen(
            ["bash", "-ec", text],
            cwd=self.folder,
            env={**given, "SPARK_CONF_DIR": str(self.folder / "conf"), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, error = process.communicate(timeout=scaled(_JOB_S))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # bash alone would leave Spark behind
                raise AssertionError(f"too slow:\n{''.join(process.communicate())[-6000:]}") from None
        assert process.returncode == 0, out + error[error.find("Traceback") :][:6000]
        return out


@pytest.fixture
def run(
    folder: Path, cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], produce: Callable[..., int]
) -> Commands:
    topic = new_topic(2)
    produce(topic, [b"%d" % n for n in range(MESSAGES)], partitions=2)
    return Commands(folder, cluster, topic, new_group())


def assert_all_read(printed: str, run: Commands, zookeeper: Any) -> None:
    """Both reads had everything. The query was a member, which left and had its offsets committed."""
    assert [line for line in printed.splitlines() if line.startswith(("batch", "stream"))] == [
        f"batch {MESSAGES}",
        f"stream {MESSAGES}",
    ]
    (topic,) = zookeeper.get_children(f"/consumers/{run.group}/offsets")
    assert sum(offsets_of(zookeeper, run.group, topic).values()) == MESSAGES
    eventually(lambda: zookeeper.get_children(f"/consumers/{run.group}/ids") == [], 20, "the member to leave")


@pytest.fixture(scope="module")
def archive(folder: Path) -> None:
    pytest.importorskip("venv_pack")
    packages = environment(folder / "environment", *LIBRARIES, "venv-pack")
    shutil.copytree(ROOT / "zkconsumer", packages / "zkconsumer", ignore=shutil.ignore_patterns("__pycache__"))
    pack = commands("venv_pack")
    assert pack.startswith("environment/bin/python -m venv_pack")
    subprocess.run(["bash", "-ec", pack], cwd=folder, stdout=subprocess.DEVNULL, timeout=scaled(200), check=True)


def test_a_standalone_cluster_gets_the_package_in_an_archive(
    archive: None, master: StandaloneCluster, run: Commands, zookeeper: Any
) -> None:
    printed = run(commands("spark://master:7077 --archives").replace("spark://master:7077", master.address))
    assert_all_read(printed, run, zookeeper)
    assert list(master.folder.glob("work/*/*/environment/bin/python")), "the executor had no environment of its own"


def test_local_cluster_gets_the_package_in_an_archive(archive: None, run: Commands, zookeeper: Any) -> None:
    assert_all_read(run(commands("local-cluster[2,1,1024]")), run, zookeeper)


def test_a_py_file_is_enough_for_batches_and_streams(
    folder: Path, master: StandaloneCluster, run: Commands, zookeeper: Any
) -> None:
    """On nodes that have the libraries. Before, the stream failed: its source did not find the package."""
    environment(folder / "nodes", *LIBRARIES)
    pure_wheel(folder)
    python = str(folder / "nodes" / "bin" / "python")
    text = commands("--py-files").replace("spark://master:7077", master.address)
    printed = run(text, PYSPARK_PYTHON=python)
    assert_all_read(printed, run, zookeeper)
