"""Many requests to ZooKeeper at a time: sent in one write, read in one go, and none lost or waited for in vain."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trustme
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Exists
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from zkconsumer.zookeeper import server_connection
from zkconsumer.zookeeper.server_connection import (
    NamedHandler,
    ServerConnection,
    WatchersByPath,
    WatchingClient,
    queued_together,
)

SOON = 10.0
NO_NODE = -101


class Wire:
    """Our end of the connection, counting how often it is used."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.sends = self.receives = 0

    def fileno(self) -> int:
        return self.end.fileno()

    def send(self, data: bytes) -> int:
        self.sends += 1
        return self.end.send(data)

    def recv(self, size: int) -> bytes:
        self.receives += 1
        return self.end.recv(size)


class QueuedRequests(KazooClient):  # type: ignore[misc]
    """A client of kazoo whose queues the tests fill and look at."""

    def add(self, request: Any, result: Any) -> None:
        self._queue.append((request, result))

    def use(self, connection: ConnectionHandler) -> None:
        self._connection, self._state = connection, KeeperState.CONNECTED

    def end(self) -> None:
        self._state = KeeperState.CLOSED

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def pending(self) -> int:
        return len(self._pending)


class StartedConnection(ServerConnection):
    """A connection in its main loop, as kazoo leaves it after a login, of which the tests take single steps."""

    def __init__(self, client: KazooClient, wire: Any) -> None:
        super().__init__(client, KazooRetry())
        self._read_sock, self._write_sock = socket.socketpair()
        self._socket = wire
        self._xid = 0

    def announce_requests(self, count: int) -> None:
        self._write_sock.send(b"\0" * count)

    @property
    def announced(self) -> bool:
        return bool(self.handler.select([self._read_sock], [], [], 0)[0])

    def send(self) -> None:
        self._send_request(SOON, SOON)

    def read(self) -> Any:
        return self._read_socket(SOON)

    def connect_again(self) -> None:
        self.prepare("test", None)
        self._connect("host", "127.0.0.1", 1)

    def use(self, wire: Any) -> None:
        self._socket = wire

    def close_announcements(self) -> None:
        self._read_sock.close()
        self._write_sock.close()


class Line:
    """A started connection, and the server's end."""

    def __init__(self) -> None:
        self.handler = NamedHandler()
        self.client = QueuedRequests(hosts="127.0.0.1:1", handler=self.handler)
        ours, self.server = socket.socketpair()
        self.server.settimeout(SOON)
        self.wire = Wire(ours)
        self.connection = StartedConnection(self.client, self.wire)
        self.client.use(self.connection)

    def queue(self, count: int, *, announced: int | None = None) -> list[Any]:
        results = [self.handler.async_result() for _ in range(count)]
        for number, result in enumerate(results):
            self.client.add(Exists(f"/{number}", None), result)
        self.connection.announce_requests(count if announced is None else announced)
        return results

    def queue_together(self, count: int) -> list[Any]:
        return queued_together(self.client, [Exists(f"/{number}", None) for number in range(count)])

    def arrived_at_server(self) -> list[int]:
        """The numbers of the requests that the server has."""
        self.server.setblocking(False)
        data = b""
        try:
            while True:
                data += self.server.recv(1 << 20)
        except BlockingIOError:
            pass
        numbers = []
        while data:
            (length,) = struct.unpack_from(">i", data)
            numbers.append(struct.unpack_from(">i", data, 4)[0])
            data = data[4 + length :]
        return numbers

    def close(self) -> None:
        self.wire.end.close()
        self.server.close()
        self.connection.close_announcements()


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def answer(number: int) -> bytes:
    """The server's "no such node"."""
    return struct.pack(">iiqi", 16, number, 7, NO_NODE)


def test_what_is_queued_goes_out_in_one_write(line: Line) -> None:
    line.queue(50)
    line.connection.send()
    assert line.wire.sends == 1
    assert line.arrived_at_server() == list(range(1, 51))
    assert line.client.pending == 50
    assert line.client.queued == 0


def test_answers_are_looked_at_between_writes(line: Line) -> None:
    line.queue(server_connection.AT_ONCE + 10)
    line.connection.send()
    assert len(line.arrived_at_server()) == server_connection.AT_ONCE
    line.connection.send()
    assert len(line.arrived_at_server()) == 10


def test_a_request_waits_for_its_announcement(line: Line) -> None:
    """It is queued first and announced then: to wait for the announcement here would keep all answers waiting."""
    line.queue(2, announced=1)
    line.connection.send()
    assert line.arrived_at_server() == [1]
    assert line.client.queued == 1


def test_requests_queued_together_are_announced_at_once(line: Line) -> None:
    """The last result alone can be waited for; the answers before are there then."""
    results = line.queue_together(3)
    line.connection.send()
    assert line.arrived_at_server() == [1, 2, 3]
    line.server.sendall(answer(1) + answer(2))
    line.connection.read()
    assert [result.get(0) for result in results[:2]] == [None, None]
    with pytest.raises(KazooTimeoutError):
        results[2].get(0)
    line.server.sendall(answer(3))
    line.connection.read()
    assert results[2].wait(0)


def test_requests_queued_after_the_end_fail(line: Line) -> None:
    def failures(count: int) -> list[type]:
        found = []
        for result in line.queue_together(count):
            with pytest.raises(ConnectionClosedError) as failure:
                result.get(timeout=0)
            found.append(failure.type)
        return found

    line.connection.close_announcements()
    assert failures(3) == [ConnectionClosedError] * 3
    line.client.end()
    assert failures(1) == [ConnectionClosedError]
    assert failures(3) == [ConnectionClosedError] * 3


def test_an_announcement_without_a_request_is_taken_away(line: Line) -> None:
    line.queue(0, announced=1)
    line.connection.send()
    assert line.arrived_at_server() == []
    assert not line.connection.announced


def test_what_has_arrived_is_read_in_one_go(line: Line) -> None:
    results = line.queue(4)
    line.connection.send()
    fourth = answer(4)
    line.server.sendall(answer(1) + answer(2) + answer(3) + fourth[:9])
    line.connection.read()
    assert [result.ready() for result in results] == [True, True, True, False]
    assert line.wire.receives == 1
    line.server.sendall(fourth[9:])
    line.connection.read()
    assert [result.get_nowait() for result in results] == [None] * 4


def test_a_new_connection_forgets_bytes_of_the_one_before(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    line.queue(1)
    line.connection.send()
    line.server.sendall(answer(1) + answer(2)[:7])
    line.connection.read()
    seen = []
    monkeypatch.setattr(ConnectionHandler, "_connect", lambda self, *_: seen.append(self._arrived) or (6000.0, 1000.0))
    line.connection.connect_again()
    assert seen == [b""]


def test_what_tls_has_decrypted_is_not_left_lying(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole record is decrypted at once, and no wait for the socket tells of the part that was not taken."""
    authority = trustme.CA()
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("localhost").configure_cert(server_side)
    authority.configure_trust(client_side)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(server_side.wrap_socket, line.server, server_side=True)
        ours = client_side.wrap_socket(line.wire.end, server_hostname="localhost")
        line.server = accepting.result(SOON)
    line.wire.end = ours
    line.connection.use(ours)
    results = line.queue(3)
    line.connection.send()
    monkeypatch.setattr(server_connection, "READ_AHEAD", 20)
    line.server.sendall(answer(1) + answer(2) + answer(3))
    line.connection.read()
    assert all(result.ready() for result in results)


def test_sockets_are_waited_for_by_what_is_wanted_of_them(line: Line) -> None:
    near, far = socket.socketpair()
    with near:
        assert line.handler.select([near], [], [], 0.0) == ([], [], [])
        assert line.handler.select([], [near], [], SOON) == ([], [near], [])
        assert line.handler.select([near], [near], [], SOON) == ([], [near], [])
        far.send(b"x")
        assert line.handler.select([near.fileno()], [], [], None) == ([near.fileno()], [], [])
        assert near.recv(1) == b"x"
        far.close()
        assert line.handler.select([near], [], [], SOON) == ([near], [], [])
    with pytest.raises(ValueError, match="closed"):
        line.handler.select([near], [], [], 0.0)


def test_watchers_of_a_path_are_called_once_each() -> None:
    watchers = WatchersByPath()
    for path in ("/a", "/b", "/a"):
        watchers[path].add("first")
    watchers["/a"].add("second")
    assert watchers["/a"] is not None
    assert (watchers.pop("/a", ()), watchers.pop("/b", ()), watchers.pop("/c", ())) == (
        ("first", "second"),
        ("first",),
        (),
    )
    client = WatchingClient(hosts="127.0.0.1:1")
    assert isinstance(vars(client)["_data_watchers"], WatchersByPath)
