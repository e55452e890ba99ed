"""The memory that a Spark worker sets aside: each time in a process of its own, because it does so once in a life."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.timing import scaled
from zkconsumer.spark.range_reader import REUSED

PROGRAM = """
import gc
from tests.unit.spark.test_worker_memory import read_in_vain, read_nothing
print(gc.get_freeze_count() > 1000)  # CPython 3.12 itself sets some 400 aside
{first}()
frozen = gc.get_freeze_count()
print(frozen > 1000, gc.isenabled())
later = [[] for _ in range(1000)]
read_nothing()
print(gc.get_freeze_count() <= frozen)
"""


def read_nothing() -> None:
    """A task, as a worker runs it, that has no ranges."""
    from zkconsumer.spark import range_reader
    from zkconsumer.spark.options import parse
    from zkconsumer.spark.schema import arrow_schema, source_schema

    options = parse({"zookeeper.connect": "127.0.0.1:1", "group.id": "g", "subscribe": "t"})
    assert list(range_reader.read(options, [], {}, arrow_schema(source_schema(include_headers=False)))) == []


def read_in_vain() -> None:
    """A task that fails: nobody is there."""
    from zkconsumer.errors import RegistryUnavailableError
    from zkconsumer.model import OffsetRange
    from zkconsumer.spark import range_reader
    from zkconsumer.spark.options import parse
    from zkconsumer.spark.schema import arrow_schema, source_schema

    nobody = {"zookeeper.connect": "127.0.0.1:1", "zookeeper.connection.timeout.ms": "100"}
    options = parse({**nobody, "group.id": "g", "subscribe": "t"})
    with pytest.raises(RegistryUnavailableError):
        list(
            range_reader.read(
                options, [OffsetRange("t", 0, 0, 1)], {}, arrow_schema(source_schema(include_headers=False))
            )
        )


def run(first: str, *, worker: bool) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != REUSED}
    if worker:
        environment[REUSED] = "1"
    arguments = [sys.executable, "-c", PROGRAM.format(first=first)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("first", ["read_nothing", "read_in_vain"])
def test_a_worker_sets_aside_the_objects_of_its_first_task(first: str) -> None:
    """It does so once."""
    assert run(first, worker=True) == ["False", "True", "True", "True"]


def test_any_other_process_is_left_alone() -> None:
    assert run("read_nothing", worker=False) == ["False", "False", "True", "True"]
