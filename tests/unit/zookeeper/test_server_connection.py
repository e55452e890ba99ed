"""Connections to a server that takes them and says nothing, and clients that end where no thread is to be had."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tests.timing import eventually
from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.zookeeper.server_connection import NamedHandler, Retired, ServerConnection
from zkconsumer.zookeeper.session import Session

CALLBACKS = "zkconsumer-zookeeper-callbacks"


class SilentServer:
    """Takes connections, and whatever is said on them, and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, name="silent server", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for taken in self.taken:
            taken.close()


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    server.close()


def our_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("zkconsumer-zookeeper"))


def test_an_unanswered_connection_does_not_cost_the_session(silent: SilentServer) -> None:
    """Kazoo waits a whole session timeout for the first answer, which a server that was just starting never gave."""
    session = Session(silent.address, timeout=3600.0, on_change=lambda _: None)
    opening = threading.Thread(target=_open, args=(session,), name="opening")
    opening.start()
    try:
        eventually(lambda: len(silent.taken) >= 2, 30, "another connection")
        assert session.unanswered
    finally:
        session.close(Deadline(2.0))
        opening.join(30)


def test_a_name_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    session = Session("zk-typo.example:2181/kafka", timeout=6.0, on_change=lambda _: None)

    with pytest.raises(RegistryUnavailableError, match=r"The last try: no address is known for zk-typo\.example$"):
        session.open(Deadline(1.0))


def _open(session: Session) -> None:
    with pytest.raises(RegistryUnavailableError):
        session.open(Deadline(60.0))


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *, after: int, of: str = "zkconsumer-zookeeper") -> list[str]:
    """From the so-many-th thread of ours on none can be started. Returns the names of those that were."""
    start = threading.Thread.start
    started: list[str] = []

    def refusing(thread: threading.Thread) -> None:
        if thread.name.startswith(of):
            if len(started) >= after:
                raise RuntimeError("can't start new thread")
            started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    return started


@pytest.mark.parametrize("after", [0, 1])
def test_if_a_callback_thread_cannot_start_none_stays(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    before = our_threads()
    started = refuse_threads(monkeypatch, after=after)
    handler = NamedHandler()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        handler.start()
    assert len(started) == after
    monkeypatch.undo()
    eventually(lambda: our_threads() == before, 30, "the end of what was started")
    handler.start()  # and it can be started when there are threads again
    assert len(our_threads()) == len(before) + 2
    handler.stop()
    eventually(lambda: our_threads() == before, 30, "the end of both")


def test_a_client_is_stopped_without_a_thread_if_none_can_start(
    monkeypatch: pytest.MonkeyPatch, silent: SilentServer
) -> None:
    before = our_threads()
    client = KazooClient(silent.address, timeout=3600.0, handler=NamedHandler())
    connection = ServerConnection(client, KazooRetry(max_tries=-1), logger=client.logger)
    connection.prepare("test", None)
    client._connection = connection
    client.start_async()
    eventually(lambda: connection._socket is not None, 30, "a connection")
    refuse_threads(monkeypatch, after=0)
    retired = Retired(client, connection)
    assert not retired.alive
    retired.join(Deadline(1.0))
    monkeypatch.undo()
    eventually(lambda: our_threads() == before, 30, "the end of all of the client's threads")


def test_a_session_that_could_not_start_its_threads_leaves_none(
    monkeypatch: pytest.MonkeyPatch, silent: SilentServer
) -> None:
    before = our_threads()
    for after in range(3):
        session: Any = Session(silent.address, timeout=3600.0, on_change=lambda _: None)
        with monkeypatch.context() as patched:
            refuse_threads(patched, after=after)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                session.open(Deadline(1.0))
            session.close(Deadline(1.0))
        eventually(lambda: our_threads() == before, 30, f"the end of the first {after}")
