"""What holds for every test; each folder adds its own fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from threading import enumerate as living

import pytest
from hypothesis import settings

from tests.timing import eventually

# How long an example takes says nothing on a busy machine. CI tries the same examples each time: what it says is
# about the change, and new examples are found where somebody looks at them.
settings.register_profile("zkconsumer", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("zkconsumer")

_ROOT = Path(__file__).resolve().parent.parent

# Python processes that tests start need the ``tests`` package as well, whatever folder they are started in.
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
).rstrip(os.pathsep)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument, not by what they hold: gzip writes the time into what it compresses, and the
    processes that share the tests would name one test differently.
    """
    return argname if isinstance(val, bytes) else None


def _ours(thread: Thread) -> bool:
    """Whether it belongs to a member or a ZooKeeper client; what tests share may start threads as it likes."""
    if thread.name.startswith("zkconsumer-resolve-"):  # the system looks a name up, for as long as it likes
        return False
    module = getattr(getattr(thread, "_target", None), "__module__", None) or ""
    shared = module.startswith(("zkconsumer.testing", "zkconsumer.devcluster"))
    return thread.name.startswith("zkconsumer-") or (module.startswith("zkconsumer.") and not shared)


@pytest.fixture(autouse=True)
def _every_thread_ends() -> Iterator[None]:
    """What a test starts ends with it: a member or a client that is left would disturb the tests after it."""
    before = set(living())
    yield

    def ended() -> bool:
        assert [thread.name for thread in living() if thread not in before and _ours(thread)] == []
        return True

    eventually(ended, 10, "all threads to end")
