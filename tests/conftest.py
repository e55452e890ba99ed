"""Fixtures and rules for every test. Each folder adds its own fixtures."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from threading import enumerate as living
from typing import Any

import pytest
from hypothesis import settings

from tests.distribution import FilesByServers, start_order
from tests.tiers import Tier, left_out, marks_of, one_way_only, tier_of_item
from tests.timing import eventually
from zkconsumer.version import DATA_PLANE

# How long an example takes says nothing on a busy machine. CI tries the same examples each time: what it says is
# about the change, and new examples are found where somebody looks at them.
settings.register_profile("zkconsumer", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("quick", settings.get_profile("zkconsumer"), max_examples=30)
settings.load_profile("zkconsumer")

_ROOT = Path(__file__).resolve().parent.parent

# The optimizing compiler takes more processor time than it saves: half of that of a Spark session.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData")

# Python processes that tests start need the ``tests`` package as well, whatever folder they are started in.
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
).rstrip(os.pathsep)


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [tier.name.lower() for tier in Tier]
    parser.addoption("--tier", choices=names, help="run the tests of this tier of tests/tiers.py (default: all tests)")
    parser.addoption("--both-ways", action="store_true", help="run only the tests that ZKCONSUMER_PURE=1 is for")


def pytest_configure(config: pytest.Config) -> None:
    """The quick tier tries fewer examples, where a test does not give their number. Every other tier tries all."""
    if _chosen(config) is Tier.QUICK:
        settings.load_profile("quick")


def pytest_report_header() -> str:
    return f"data plane: {DATA_PLANE}"


def _chosen(config: pytest.Config) -> Tier | None:
    name = config.getoption("tier")
    return None if name is None else Tier[name.upper()]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files of other tiers, and those that need no second run. None lets pytest decide."""
    chosen, second_run = _chosen(config), config.getoption("both_ways")
    if chosen is not None and left_out(collection_path, chosen):
        return True
    return True if second_run and one_way_only(collection_path, chosen or Tier.CI) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out single tests of other tiers and of the second run. Mark the others by their folder."""
    chosen, second_run = _chosen(config) or Tier.CAMPAIGNS, config.getoption("both_ways")
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        leaves = tier_of_item(item) > chosen or (second_run and "one_way" in item.keywords)
        (left if leaves else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
    items[:] = sorted(kept, key=lambda item: start_order(item.path))
    for item in items:
        for mark in marks_of(item.path):
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the modules and tests out of every garbage collection: they stay until the end.

    Else each full collection of a test looks at a million objects, and so do those during the collection of the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Give files that share servers to one worker. None leaves the distribution to xdist."""
    return FilesByServers(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument, not by their content. gzip writes the time into its output, so the processes that
    share the tests would name one test differently.
    """
    return argname if isinstance(val, bytes) else None


def _ours(thread: Thread) -> bool:
    """Return whether the thread belongs to a member or a ZooKeeper client. Threads of shared servers may stay."""
    if thread.name.startswith("zkconsumer-resolve-"):  # the system looks a name up, for as long as it likes
        return False
    module = getattr(getattr(thread, "_target", None), "__module__", None) or ""
    shared = module.startswith(("zkconsumer.testing", "zkconsumer.devcluster"))
    return thread.name.startswith("zkconsumer-") or (module.startswith("zkconsumer.") and not shared)


@pytest.fixture(autouse=True)
def _every_thread_ends() -> Iterator[None]:
    """Fail if a test leaves a thread of a member or a client, which would disturb the tests after it."""
    before = set(living())
    yield

    def ended() -> bool:
        assert [thread.name for thread in living() if thread not in before and _ours(thread)] == []
        return True

    eventually(ended, 10, "all threads to end")


@pytest.fixture(autouse=True)
def _no_exception_is_left() -> Iterator[None]:
    """A test that interrupts code where Python never does can leave an exception in hand, for all tests after it."""
    yield
    assert sys.exc_info() == (None, None, None)
