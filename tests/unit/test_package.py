"""The effects of importing and installing the package."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.programs import run_python

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = {"confluent_kafka", "numpy", "opentelemetry", "pandas", "prometheus_client", "pyarrow", "pyspark", "rich"}
APART = {
    "zkconsumer.cli",
    "zkconsumer.devcluster",
    "zkconsumer.prometheus",
    "zkconsumer.spark",
    "zkconsumer.testing",
    "zkconsumer.tracing",
}
SPARED = {"asyncio", "email", "http", "importlib.metadata", "multiprocessing", "sysconfig", "urllib.request"}
"""Modules of the standard library that few members need. Together they take 6 MiB of each process."""


def test_importing_the_package_loads_nothing_optional(tmp_path: Path) -> None:
    program = "import sys; before = set(sys.modules); import zkconsumer; print(*(sys.modules.keys() - before))"
    loaded = set(run_python("-c", program, folder=tmp_path).stdout.split())

    assert "zkconsumer.connector" in loaded
    assert not loaded & (OPTIONAL | APART | SPARED)


def test_importing_the_package_starts_no_thread(tmp_path: Path) -> None:
    program = "import threading, zkconsumer; print([t.name for t in threading.enumerate()])"

    assert run_python("-W", "error", "-c", program, folder=tmp_path).stdout.strip() == "['MainThread']"


def test_the_public_names_are_there() -> None:
    import zkconsumer

    assert set(zkconsumer.__all__) >= {
        "Blacklist",
        "ConsumerConfig",
        "ConsumerTimeoutException",
        "KafkaStream",
        "Phase",
        "TopicPartition",
        "Whitelist",
        "ZookeeperConsumerConnector",
        "shutdown_on_signal",
    }
    assert all(hasattr(zkconsumer, name) for name in zkconsumer.__all__)


@pytest.mark.tier("standard")
@pytest.mark.timeout(300)
def test_a_wheel_holds_every_module_and_the_typing_marker(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    products = shutil.ignore_patterns("__pycache__", "compiled_*", "generated")
    for name in ("zkconsumer", "scripts"):
        shutil.copytree(ROOT / name, source / name, ignore=products)

    # pure, since tests/contract/test_installations.py compiles wheels, which takes a minute of the processor
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(source)]
    run_python(*command, folder=tmp_path, variables={"ZKCONSUMER_BUILD": "pure"}, seconds=120)

    (wheel,) = tmp_path.glob("zkconsumer-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    modules = {path.relative_to(source) for path in (source / "zkconsumer").rglob("*.py")}
    # what Spark looks for lies in the package's folder and becomes a module of its own
    wanted = {path.name if "discovered" in path.parts else path.as_posix() for path in modules}
    assert wanted <= packed
    assert "pyspark_zkconsumer.py" in wanted
    assert "zkconsumer/py.typed" in packed
    page = {path.relative_to(source).as_posix() for path in (source / "zkconsumer").rglob("page/*") if path.is_file()}
    assert len(page) >= 3
    assert page <= packed
