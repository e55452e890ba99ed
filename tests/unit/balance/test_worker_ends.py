"""Ends of worker processes that the parent did not choose, and starts that fail. Each test has processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.timing import eventually, scaled
from tests.unit.balance import handlers
from tests.unit.balance.work_list import WorkList, new_works
from zkconsumer.balance.outcomes import DONE, Failed
from zkconsumer.balance.process_executor import ProcessExecutor
from zkconsumer.runtime.deadline import Deadline

pytestmark = pytest.mark.tier("standard")

ROOT = Path(__file__).resolve().parents[3]

PARENT = """
import sys, time
from pathlib import Path
from tests.unit.balance import handlers
from tests.unit.balance.work_list import WorkList, new_works
from zkconsumer.balance.process_executor import ProcessExecutor

def main():
    source = WorkList(new_works([b"sleep 60", b"fine"]))
    executor = ProcessExecutor(handlers.by_value, 2, name="g_c")
    executor.start(source)
    while len(executor.running()) != 1 or source.settled != 1:
        time.sleep(0.01)
    print(*[worker.pid for worker in executor.workers], flush=True)
    time.sleep(60)

GUARD
    main()
"""


@contextmanager
def program(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a process group of its own."""
    script = folder / "script.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lives(pid: int) -> bool:
    """Whether the process is there, and no zombie that nobody has collected."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    """The idle one, and the one in a handler that would take a minute. A Ctrl-C before did nothing to them."""
    with program(tmp_path, PARENT.replace("GUARD", 'if __name__ == "__main__":')) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGINT)
            assert lives(pid)
        parent.kill()
        parent.wait(scaled(10))
        eventually(lambda: not any(map(lives, pids)), 10, "the workers' end")


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    """Each worker runs the main module again, and must not begin a run of its own there."""
    with program(tmp_path, PARENT.replace("GUARD", "if True:")) as parent:
        _, errors = parent.communicate(timeout=scaled(60))
    assert parent.returncode == 1
    assert "if __name__ == '__main__':" in errors
    assert "no worker process can run the handler tests.unit.balance.handlers.by_value" in errors


def test_a_worker_that_leaves_a_child_behind_is_seen_dead() -> None:
    """The child holds the worker's pipes open."""
    source = WorkList(new_works([b"leave 60", b"fine"]))
    executor = ProcessExecutor(handlers.by_value, 1, name="g_c")
    executor.start(source)
    try:
        eventually(source.done, 20, lambda: f"all outcomes: {source.outcomes}")
        assert isinstance(source.last()[0], Failed)
        assert source.last()[1] is DONE
    finally:
        source.end()
        executor.stop(Deadline(scaled(5)))


def test_a_worker_that_dies_again_and_again_is_seen() -> None:
    """It is started after ever longer pauses, until a trip succeeds."""
    source = WorkList(new_works([b"die"]), attempts=3)
    executor = ProcessExecutor(handlers.by_value, 1, name="g_c")
    executor.start(source)
    try:
        eventually(source.done, 20, lambda: f"all outcomes: {source.outcomes}")
        eventually(lambda: executor.workers[0].starts == 4, 20, "a fourth process")
        assert "ended with exit code 7 with events-0 at offset 0 in hand" in executor.workers[0].trouble
        source.add(new_works([b"fine"], first=1))
        eventually(lambda: source.last().get(1) is DONE, 20, "a message that can be handled")
        eventually(lambda: not executor.workers[0].trouble, 10, "the end of the trouble")
    finally:
        source.end()
        executor.stop(Deadline(scaled(5)))


def test_a_handler_that_workers_cannot_load_ends_the_start() -> None:
    """It can be imported here, and not there."""
    executor = ProcessExecutor(handlers.Unloadable(os.getpid()), 1, name="g_c")
    with pytest.raises(ImportError, match="not in this process") as raised:
        executor.start(WorkList([]))
    assert any("no worker process can run the handler" in note for note in raised.value.__notes__)


def test_an_interpreter_that_just_ends_leaves_no_worker(tmp_path: Path) -> None:
    """Its run is in a daemon thread, and nobody shuts it down."""
    text = PARENT.replace("GUARD", 'if __name__ == "__main__":').replace("    time.sleep(60)\n", "")
    with program(tmp_path, text) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert parent.wait(scaled(20)) == 0
        eventually(lambda: not any(map(lives, pids)), 10, "the workers' end")
