"""A launched process ends when its owner does, however the owner went. The processes here are ordinary small ones."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timing import eventually, scaled
from tests.values import present
from zkconsumer.devcluster.server_process import Launched

# Starts one sleeping child under a launcher, says its process id, and waits for input that never comes.
_OWNER = """
import os, sys
from pathlib import Path
from zkconsumer.devcluster.server_process import Launched
directory = Path(sys.argv[1])
launched = Launched(["sleep", "300"], directory / "log", remove=[directory])
if "fork" in sys.argv:
    if os.fork() == 0:
        while os.getppid() != 1 and sys.stdin.read(1):
            pass
        os._exit(0)
print(launched.pid, flush=True)
sys.stdin.read()
"""


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Launched]:
    launched = Launched(["sleep", "300"], tmp_path / "log")
    yield launched
    launched.send(signal.SIGKILL)
    assert launched.wait(scaled(10))


@pytest.mark.parametrize(
    ("options", "suspended"),
    [([], False), ([], True), (["fork"], False)],
    ids=["alone", "suspended", "with a forked child that holds the pipe open"],
)
def test_a_killed_owner_takes_process_and_directory_along(tmp_path: Path, options: list[str], suspended: bool) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(directory), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        child = int(present(owner.stdout).readline())
        assert exists(child)
        if suspended:
            os.kill(child, signal.SIGSTOP)
        owner.kill()
        owner.wait(scaled(10))
        eventually(lambda: not exists(child), 10, "the end of the child")
        eventually(lambda: not directory.exists(), 10, "the removal of its directory")


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_an_interrupted_launch_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller has no object by which to end it."""
    original = subprocess.Popen.wait
    ended: list[int] = []

    def waited(launcher: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        ended.append(launcher.pid)
        return original(launcher, timeout)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", waited)
    monkeypatch.setattr(selectors, "DefaultSelector", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Launched(["sleep", "300"], tmp_path / "log")
    assert len(ended) == 1
    assert not exists(ended[0])


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_process_ends_when_its_launcher_is_killed(sleeper: Launched) -> None:
    status = Path(f"/proc/{sleeper.pid}/stat").read_text()
    launcher = int(status.rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGKILL)
    # Its new parent may leave it as a zombie for a while; that is over all the same.
    path = Path(f"/proc/{sleeper.pid}/stat")
    eventually(lambda: not path.exists() or path.read_text().rpartition(")")[2].split()[0] in "ZX", 10, "its end")


def test_signals_reach_the_process(sleeper: Launched) -> None:
    assert sleeper.running
    sleeper.send(signal.SIGTERM)
    assert sleeper.wait(scaled(10))
    assert not sleeper.running
    sleeper.send(signal.SIGTERM)  # nothing happens to one that has ended


def test_output_to_a_descriptor_ends_with_the_process(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    launched = Launched(["sh", "-c", "echo out; echo error >&2"], tmp_path / "log", output=writing)
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read() == "out\n"
    assert launched.wait(scaled(10))
    assert (tmp_path / "log").read_text() == "error\n"


def test_what_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-program"):
        Launched(["no-such-program"], tmp_path / "log")


_BUSY = """
import sys, threading, time
def work():
    while True:
        time.sleep(0.0001)
threads = [threading.Thread(target=work, daemon=True) for _ in range(60)]
for thread in threads:
    thread.start()
print("busy", flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_suspended_process_stands_still_at_once(tmp_path: Path) -> None:
    """The signal was sent, and a thread of the server still answered a request."""
    log = tmp_path / "log"
    launched = Launched([sys.executable, "-c", _BUSY], log)
    try:
        eventually(lambda: "busy" in log.read_text(), 30, "the threads")
        for _ in range(100):
            launched.send(signal.SIGSTOP)
            states = [
                task.read_text().rpartition(")")[2].split()[0]
                for task in Path("/proc").glob(f"{launched.pid}/task/*/stat")
            ]
            assert set(states) == {"T"}
            assert len(states) == 61
            launched.send(signal.SIGCONT)
    finally:
        launched.send(signal.SIGKILL)
        assert launched.wait(scaled(10))
