"""The effects of importing and installing the package."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

import zkconsumer
from tests.programs import run_python
from zkconsumer.testing import FakeCluster
from zkconsumer.version import refuse_free_threaded_builds

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = {"confluent_kafka", "numpy", "opentelemetry", "pandas", "prometheus_client", "pyarrow", "pyspark", "rich"}
SPARED = {"asyncio", "email", "http", "importlib.metadata", "multiprocessing", "sysconfig", "urllib.request"}
"""Modules of the standard library that few members need. Together they take 6 MiB of each process."""
APART = {
    "cli",
    "devcluster",
    "member.brokers",
    "operations",
    "prometheus",
    "service",
    "spark",
    "testing",
    "tracing",
}
APART |= {"balance.balanced_run", "kafka.arrow_columns", "kafka.channel_security", "offsets.database_store"}
"""Rooms and modules of ours that a plain loop over a group in ZooKeeper does without."""

PLAIN_LOOP = """
import json, sys
from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector

seen = [list(sys.modules)]
config = ConsumerConfig(zookeeper_connect=sys.argv[1], group_id="g", auto_offset_reset="smallest")
with ZookeeperConsumerConnector(config) as connector:
    seen.append(list(sys.modules))
    for message in connector.create_message_streams({"t": 1})["t"][0]:
        break
print(json.dumps([*seen, list(sys.modules)]))
"""


def ours(modules: set[str]) -> set[str]:
    """Modules of the package. Those of the data plane have two names if they are compiled, and count as one room."""
    return {name for name in modules if name.startswith("zkconsumer") and not name.startswith("zkconsumer.data_plane.")}


def test_a_plain_loop_loads_few_modules_and_none_while_it_runs(tmp_path: Path) -> None:
    """At most 90 with the import. The constructor loads the rest, so that no rebalance waits for an import."""
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        cluster.append("t", 0, [b"a"])
        done = run_python("-c", PLAIN_LOOP, cluster.zookeeper_connect, folder=tmp_path)
    imported, built, ended = map(set, json.loads(done.stdout))

    assert len(ours(imported)) == 33, sorted(ours(imported))
    assert not imported & (SPARED | OPTIONAL | {"cramjam", "kazoo", "regex"})
    assert len(ours(built)) == 144, sorted(ours(built))
    assert not built & (SPARED | OPTIONAL | {f"zkconsumer.{name}" for name in APART})
    assert not ours(ended) - ours(built)


def test_every_public_name_is_there_and_no_other_is_listed() -> None:
    assert dir(zkconsumer) == sorted(zkconsumer.__all__)
    for name in zkconsumer.__all__:
        assert getattr(zkconsumer, name) is getattr(zkconsumer, name), name
    kinds = [one for name in zkconsumer.__all__ if isinstance(one := getattr(zkconsumer, name), type)]
    assert pickle.loads(pickle.dumps(kinds)) == kinds


def test_threads_load_public_names_at_the_same_time(tmp_path: Path) -> None:
    """Each begins with another name, and Python refuses imports that wait for each other."""
    program = """
import sys, threading, zkconsumer
names, errors, together = zkconsumer.__all__, [], threading.Barrier(8)
sys.setswitchinterval(1e-5)
def load(first):
    together.wait()
    try:
        if first % 2:
            zkconsumer.ZookeeperConsumerConnector(zookeeper_connect="a:1", group_id="g")
        for number in range(len(names)):
            getattr(zkconsumer, names[(first * 7 + number) % len(names)])
    except BaseException as error:
        errors.append(repr(error))
threads = [threading.Thread(target=load, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors)
"""
    assert run_python("-c", program, folder=tmp_path).stdout.strip() == "[]"


def test_every_public_name_begins_with_the_same_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health, imported beside the connector, began with another module of its package, and Python refused one."""
    begun: set[str] = set()

    def begin(module: str) -> None:
        begun.add(module)
        raise InterruptedError

    monkeypatch.setattr(zkconsumer, "import_module", begin)
    for name in zkconsumer.__all__:
        with suppress(InterruptedError, AttributeError):  # the latter for a name that is there without an import
            zkconsumer.__getattr__(name)
    assert begun == {"zkconsumer.connector"}


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
    for pattern, fewest in {"page/*": 3, "monitoring/*.*": 2, "docs/*.md": 35}.items():  # "zkconsumer help" reads docs
        files = {path.relative_to(source).as_posix() for path in (source / "zkconsumer").rglob(pattern)}
        assert len(files) >= fewest
        assert files <= packed


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
