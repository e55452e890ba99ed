"""Connections to a server that takes them and says nothing, and clients that end where no thread is to be had."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest
from kazoo.client import KazooClient

from tests.timing import eventually, scaled
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeperServer
from zkconsumer.zookeeper import session as session_module
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.server_connection import NamedHandler, Retired, ServerConnection
from zkconsumer.zookeeper.session import Session


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
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(-2, "Name or service not known")))
    session = Session("zk-typo.example:2181/kafka", timeout=6.0, on_change=lambda _: None)

    with pytest.raises(RegistryUnavailableError, match=r"The last try: no address is known for zk-typo\.example$"):
        session.open(Deadline(1.0))


def _open(session: Session) -> None:
    with pytest.raises(RegistryUnavailableError):
        session.open(Deadline(60.0))


def refuse_threads(
    monkeypatch: pytest.MonkeyPatch, *, after: int, of: str = "zkconsumer-zookeeper", error: type = RuntimeError
) -> list[str]:
    """From the so-many-th thread of ours on none can be started. Returns the names of those that were."""
    start = threading.Thread.start
    started: list[str] = []

    def refusing(thread: threading.Thread) -> None:
        if thread.name.startswith(of):
            if len(started) >= after:
                raise error("can't start new thread")
            started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    return started


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [0, 1])
def test_if_a_callback_thread_cannot_start_none_stays(
    monkeypatch: pytest.MonkeyPatch, after: int, error: type[BaseException]
) -> None:
    before = our_threads()
    started = refuse_threads(monkeypatch, after=after, error=error)
    handler = NamedHandler()
    with pytest.raises(error, match="can't start new thread"):
        handler.start()
    assert len(started) == after
    monkeypatch.undo()
    eventually(lambda: our_threads() == before, 30, "the end of what was started")
    handler.start()  # and it can be started when there are threads again
    assert len(our_threads()) == len(before) + 2
    handler.stop()
    eventually(lambda: our_threads() == before, 30, "the end of both")


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


def _at(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: str, do: Callable[[], object]) -> None:
    """Once, before or after the next call of a method, do something else."""
    real = getattr(owner, name)

    def staged(*args: Any, **keywords: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        if when == "before":
            do()
        result = real(*args, **keywords)
        if when == "after":
            do()
        return result

    monkeypatch.setattr(owner, name, staged)


@pytest.mark.parametrize("begin", ["open", "abandon", "look_for_replacement"])
@pytest.mark.parametrize(
    ("owner", "name", "when"),
    [
        (KazooClient, "start_async", "before"),
        (NamedHandler, "start", "before"),
        (NamedHandler, "start", "after"),
        (ServerConnection, "start", "before"),
        (NamedHandler, "create_socket_pair", "after"),
        (KazooClient, "start_async", "after"),
    ],
)
def test_a_close_amid_the_start_of_a_client_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, silent: SilentServer, begin: str, owner: type, name: str, when: str
) -> None:
    """Bug: the client was stopped before it ran, and then started. Sockets or threads stayed for ever."""
    before = our_threads()
    pairs: list[Any] = []
    make_pair = NamedHandler.create_socket_pair

    def remember(handler: NamedHandler) -> Any:
        pairs.extend(pair := make_pair(handler))
        return pair

    loop = ServerConnection.zk_loop

    @functools.wraps(loop)
    def zk_loop(connection: ServerConnection) -> None:
        connection.connection_stopped.clear()
        time.sleep(0.2)  # a close that does not wait for this loop cannot close the sockets
        loop(connection)

    monkeypatch.setattr(ServerConnection, "zk_loop", zk_loop)
    monkeypatch.setattr(NamedHandler, "create_socket_pair", remember)
    session: Any = Session(silent.address, timeout=3600.0, on_change=lambda _: None)
    opening = threading.Thread(target=_open, args=(session,), name="opening")
    if begin != "open":
        opening.start()
        eventually(lambda: silent.taken, 30, "the connection of the first client")
    _at(monkeypatch, owner, name, when, lambda: session.close(Deadline(1.0)))
    if begin == "open":
        _open(session)
    else:
        getattr(session, begin)()
        opening.join(scaled(30))
    eventually(lambda: our_threads() == before, 30, "the end of all threads")
    assert pairs
    assert [sock for sock in pairs if sock.fileno() != -1] == []


@pytest.fixture
def served() -> Iterator[FakeZooKeeperServer]:
    with FakeZooKeeperServer() as server:
        yield server


@pytest.fixture
def opened(served: FakeZooKeeperServer) -> Iterator[Session]:
    """A session with that server. When the test ends, all its threads must."""
    before = our_threads()
    session = Session(served.connect, timeout=3600.0, on_change=lambda _: None)
    session.open(Deadline(scaled(10)))
    yield session
    eventually(lambda: our_threads() == before, 30, "the end of all threads")
    assert served.sessions == []


def _interrupt() -> None:
    raise KeyboardInterrupt


def _takes_another_client(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the session looks as if it had no connection, and the next client replaces its own at once."""
    monkeypatch.setattr(Session, "connected", False)
    monkeypatch.setattr(session_module, "HEAD_START", 0.0)


def _ends_once_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no client ends before a close waits for one. One that has ended at once is not waited for."""
    asked, join, stop = threading.Event(), Retired.join, KazooClient.stop

    def asked_for(retired: Retired, deadline: Deadline) -> None:
        asked.set()
        join(retired, deadline)

    def stop_then(client: KazooClient) -> None:
        asked.wait(scaled(30))
        stop(client)

    monkeypatch.setattr(Retired, "join", asked_for)
    monkeypatch.setattr(KazooClient, "stop", stop_then)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name"), [(Lease, "void"), (Retired, "__init__"), (Retired, "join")])
@pytest.mark.parametrize("candidate", [False, True])
def test_a_second_close_ends_what_an_interrupted_one_left(
    opened: Session, monkeypatch: pytest.MonkeyPatch, candidate: bool, owner: type, name: str, when: str
) -> None:
    """The interrupted close had forgotten the client, so its session lived on, with the member's ephemeral nodes."""
    if candidate:
        _takes_another_client(opened, monkeypatch)
        assert not opened.look_for_replacement()
    if name == "join":
        _ends_once_it_is_waited_for(monkeypatch)
    _at(monkeypatch, owner, name, when, _interrupt)
    with pytest.raises(KeyboardInterrupt):
        opened.close(Deadline(scaled(5)))
    opened.close(Deadline(scaled(5)))


def test_a_close_amid_a_replacement_leaves_nothing(opened: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new client became the session's after the close had ended the old one."""
    _takes_another_client(opened, monkeypatch)
    opened.look_for_replacement()
    _at(monkeypatch, Lease, "void", "before", lambda: opened.close(Deadline(scaled(5))))
    eventually(opened.look_for_replacement, 30, "the other client to replace the first one")


def test_a_close_waits_for_its_client_beside_another(
    served: FakeZooKeeperServer, opened: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that another thread gave up meanwhile took its place in the list of those to wait for."""
    stop, session_id = KazooClient.stop, opened.session_id

    def slow(client: KazooClient) -> None:
        time.sleep(0.3)  # as a server that answers late
        stop(client)

    monkeypatch.setattr(KazooClient, "stop", slow)
    monkeypatch.setattr(Session, "connected", False)
    _at(monkeypatch, Retired, "__init__", "before", opened.look_for_replacement)
    opened.close(Deadline(scaled(10)))
    assert session_id not in served.sessions


def test_a_close_after_an_interrupted_request_ends_the_session(
    monkeypatch: pytest.MonkeyPatch, served: FakeZooKeeperServer
) -> None:
    """Bug: a request was queued and not announced. Each later request was sent one too late, and the last never."""
    armed = threading.Event()

    class Interrupting(socket.socket):
        def send(self, data: Any, flags: int = 0) -> int:
            if armed.is_set():
                armed.clear()
                raise KeyboardInterrupt
            return super().send(data, flags)

    make_pair = NamedHandler.create_socket_pair

    def staged(handler: NamedHandler) -> Any:
        reading, writing = make_pair(handler)
        return reading, Interrupting(fileno=writing.detach())

    monkeypatch.setattr(NamedHandler, "create_socket_pair", staged)
    session = Session(served.connect, timeout=3600.0, on_change=lambda _: None)
    session.open(Deadline(scaled(10)))
    armed.set()
    with suppress(KeyboardInterrupt):
        session.touch()
    assert not armed.is_set()
    session.close(Deadline(scaled(10)))
    assert served.sessions == []
