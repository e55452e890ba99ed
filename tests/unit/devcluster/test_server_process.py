"""The life of a server: ports, readiness, restarts, failures. The server here is a few lines of Python."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_python
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster, EmbeddedKafka, EmbeddedZooKeeper, ServerProcess, ServerStartError
from zkconsumer.devcluster import server_process as process_module
from zkconsumer.devcluster.server_process import LOOPBACK, accepts, free_port, is_free
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster

_SERVER = """
import signal, socket, sys
if sys.argv[2] == "deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN)
with socket.socket() as server:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        sys.exit("Address already in use")
    if sys.argv[2] == "broken": sys.exit("the disk is on fire")
    if sys.argv[2] == "busy": sys.exit("KeeperException$SessionExpiredException: KeeperErrorCode = Session expired")
    if sys.argv[2] != "slow": server.listen()
    while True: signal.pause()
"""


class PythonServer(ServerProcess):
    kind = "toy"

    def __init__(self, *moods: str, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.moods = list(moods)  # of one start after the other; later ones go well

    def _configure(self, directory: Path, port: int) -> Sequence[str]:
        mood = self.moods.pop(0) if self.moods else ""
        return [sys.executable, "-I", "-S", "-c", _SERVER, str(port), mood]

    def _is_ready(self, deadline: Deadline) -> bool:
        return accepts(self.port) and self.running


@pytest.mark.parametrize("make", [DevCluster, EmbeddedZooKeeper, FakeCluster, partial(EmbeddedKafka, "localhost:1")])
def test_a_misspelt_option_is_refused(make: Any) -> None:
    """A cluster with ``zookeper_port=2181`` started on another port."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'zookeper_port'"):
        make(zookeper_port=2181)


def test_a_server_is_started_stopped_and_leaves_nothing() -> None:
    with PythonServer() as server:
        directory, port = server.directory, server.port
        assert server.pid is not None
        assert accepts(port)
        assert server.start() is server  # it runs: nothing happens
    assert not server.running
    assert server.pid is None
    assert is_free(port)
    assert not directory.exists()
    server.close()  # once more does no harm


def test_a_killed_server_starts_again_on_its_port_with_its_data() -> None:
    with PythonServer() as server:
        port, pid = server.port, server.pid
        (server.directory / "data").write_text("precious")
        server.kill()
        assert not server.running
        server.start()
        assert server.port == port
        assert server.pid != pid
        assert (server.directory / "data").read_text() == "precious"


def test_a_stopped_server_leaves_no_directory_behind() -> None:
    program = """
from tests.unit.devcluster.test_server_process import PythonServer
server = PythonServer().start()
server.stop()
server.start()
server.stop()
print(server.directory)
"""
    said = run_python("-c", program)
    assert said.stdout.startswith("/")
    assert not Path(said.stdout.strip()).exists()


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with PythonServer(directory=tmp_path / "new"):
        pass
    assert (tmp_path / "new" / "server.log").exists()


def test_a_server_that_lost_the_race_for_a_port_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as thief:
        thief.bind((LOOPBACK, 0))  # bound, not listening: nobody answers there
        stolen = thief.getsockname()[1]
        choices = iter([stolen, stolen])
        monkeypatch.setattr(process_module, "free_port", lambda: next(choices, None) or free_port())
        with PythonServer() as server:
            assert server.port != stolen
            assert next(choices, None) is None


def test_a_broker_that_loses_its_session_early_is_tried_again() -> None:
    with PythonServer("busy") as server:
        assert accepts(server.port)


def test_a_given_port_that_is_taken_is_said_so() -> None:
    with socket.socket() as thief:
        thief.bind((LOOPBACK, 0))
        server = PythonServer(port=thief.getsockname()[1])
        with pytest.raises(ServerStartError, match=rf"cannot have port {server.port}, .*Address already in use\): end"):
            server.start(scaled(10))
        server.close()


@pytest.mark.parametrize(
    ("mood", "seconds", "words"), [("broken", scaled(10), "the disk is on fire"), ("slow", 0.5, "not ready in time")]
)
def test_a_server_that_fails_to_start_does_not_stay(mood: str, seconds: float, words: str) -> None:
    """The error quotes the server's log."""
    server = PythonServer(mood)
    with pytest.raises(ServerStartError, match=words):
        server.start(seconds)
    assert not server.running
    server.close()


def test_a_server_that_ignores_a_polite_request_is_killed() -> None:
    with PythonServer("deaf") as server:
        server.stop(0.2)
        assert not server.running


def test_a_suspended_server_can_be_resumed_and_stopped() -> None:
    with PythonServer() as server:
        server.suspend()
        server.resume()
        eventually(lambda: accepts(server.port), 10, "an answer")
        server.suspend()
        assert server.running
        server.stop(scaled(10))
        assert not server.running
        with pytest.raises(RuntimeError):
            server.suspend()


def test_a_forked_child_that_exits_leaves_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with PythonServer() as server:
        with monkeypatch.context() as child:
            ours = os.getpid()
            child.setattr(os, "getpid", lambda: ours + 1)
            server.close_at_exit(ours)
        assert server.running
        assert accepts(server.port)


def test_before_the_start_there_is_no_port_and_no_directory() -> None:
    server = PythonServer()
    with pytest.raises(RuntimeError):
        _ = server.port
    with pytest.raises(RuntimeError):
        _ = server.directory
    server.kill()  # nothing to end
    server.stop()
