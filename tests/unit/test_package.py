"""The effects of importing and installing the package."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.programs import run_python
from zkconsumer.version import refuse_free_threaded_builds

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

    assert "zkconsumer.connector.zookeeper_connector" in loaded
    assert not loaded & (OPTIONAL | APART | SPARED)


def test_importing_the_package_starts_no_thread(tmp_path: Path) -> None:
    program = "import threading, zkconsumer; print([t.name for t in threading.enumerate()])"

    assert run_python("-W", "error", "-c", program, folder=tmp_path).stdout.strip() == "['MainThread']"


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
    assert "zkconsumer/member/DECISIONS.md" in packed
    page = {path.relative_to(source).as_posix() for path in (source / "zkconsumer").rglob("page/*") if path.is_file()}
    assert len(page) >= 3
    assert page <= packed


# ---- builds of Python that the package refuses ----

_FREE_THREADED = """
import sys
sys.version = "3.14.0 free-threading build (main, Oct  7 2025, 15:34:55) [GCC 14.2.0]"
import zkconsumer
"""


@pytest.mark.parametrize("build", ["experimental free-threading build", "free-threading build"])
def test_a_free_threaded_build_is_refused(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 calls it experimental."""
    monkeypatch.setattr(sys, "version", f"3.14.0 {build} (main, Oct  7 2025, 15:34:55) [GCC 14.2.0]")

    with pytest.raises(ImportError, match=r"free-threaded builds.*\(GIL\).*use the ordinary build"):
        refuse_free_threaded_builds()


def test_importing_in_a_free_threaded_build_fails(tmp_path: Path) -> None:
    done = run_python("-c", _FREE_THREADED, code=1, folder=tmp_path)
    assert "ImportError: zkconsumer does not support free-threaded builds" in done.stderr
