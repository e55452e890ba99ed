"""Missing memory is never taken for corrupt data, wherever in the reader of records it shows."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.timing import scaled
from tests.unit.kafka.sets import Batch, MessageSet, Written, listed, plain
from zkconsumer import data_plane
from zkconsumer.kafka.record_batch import DECODED_RECORDS

RECORDS = [
    Written(b"key", b"v" * 600, headers=[("name", b"x" * 600)] * (n % 3), timestamp=10**12 + n) for n in range(4)
]
MOST = 20_000
"""Allocations of one read; if there are more, something is wrong."""


@pytest.mark.skipif(find_spec("_testcapi") is None, reason="this Python has no _testcapi, which lets allocations fail")
@pytest.mark.one_way
@pytest.mark.parametrize("pure", ["", "1"], ids=["chosen", "pure"])
def test_each_failed_allocation_is_a_memory_error(pure: str) -> None:
    if sys.version_info[:2] == (3, 15) and (pure or not data_plane.COMPILED):
        pytest.skip("3.15.0 crashes in any program, after the memory for a tuple was missing")
    command = [sys.executable, "-c", f"from {__name__} import fail_each_allocation as each; each()"]
    environment = {**os.environ, data_plane.PURE_VARIABLE: pure or os.environ.get(data_plane.PURE_VARIABLE, "")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=scaled(120), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 10


def fail_each_allocation() -> None:
    """Read batches, one time for each allocation, and let that one fail. Prints how often it was a MemoryError."""
    from _testcapi import remove_mem_hooks, set_nomemory  # type: ignore[import-not-found,unused-ignore]

    failed = 0
    gc.disable()  # its callbacks may not allocate
    many = [Written(value=b"%d" % n) for n in range(DECODED_RECORDS + 3)]
    for records, step in ((RECORDS, 1), (many, 7)):  # records that are alike need only some of their allocations
        data = MessageSet([Batch(records)]).data
        expected = plain(listed(data))
        for number in range(0, MOST, step):
            (batch,) = listed(data)
            try:
                set_nomemory(number, number + 1)
                try:
                    found = list(batch)
                finally:
                    remove_mem_hooks()
            except MemoryError:
                failed += 1
                assert plain([batch]) == expected, "the next read of the batch is whole"
                continue
            assert [record.value for record in found] == [record.value for record in expected]
            break  # behind the last allocation
        else:
            raise AssertionError(f"{MOST} allocations, and no end")
    print(failed)
