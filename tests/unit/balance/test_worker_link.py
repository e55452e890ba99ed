"""The start of a worker process, in a program that has started none before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_python

_FIRST_PROCESS = """
import pickle, re, signal
from pathlib import Path
from zkconsumer.balance.worker_link import WorkerLink
from zkconsumer.balance.worker_process import WorkerSetup
from zkconsumer.streams.chunk_reader import ReadSettings

link = WorkerLink("first", WorkerSetup(pickle.dumps(print), pickle.dumps((None, None)), 1, ReadSettings()))
masks = re.findall(r"^Sig(?:Blk|Cgt):\\s*(\\w+)", Path(f"/proc/{link.pid}/status").read_text(), re.MULTILINE)
link.end(0.0)
safe = int(masks[0], 16) | int(masks[1], 16)
print(*(number.name for number in (signal.SIGINT, signal.SIGTERM) if safe >> number - 1 & 1))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the masks of signals from /proc")
def test_no_signal_ends_a_process_that_is_not_ready() -> None:
    """A SIGTERM to the whole group, as by a service manager, is the parent's matter from the first moment on."""
    done = run_python("-c", _FIRST_PROCESS)
    assert done.stdout.split() == ["SIGINT", "SIGTERM"], done.stderr
