"""The TCP server of the fakes on the loopback interface: it accepts connections, and ends their threads.

Threads: ``<name>-acceptor`` accepts connections. Each connection has its own threads, ``<name>-<role>-<n>``. One lock
guards the list of connections. No thread sends or receives under it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from struct import Struct
from threading import Event, Lock, Thread, current_thread
from typing import Generic, TypeVar

from zkconsumer.testing.wire_types import MalformedRequestError

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_SIZE = Struct(">i")
_SLICE = 0.05
_JOIN_S = 10.0


def framed(data: bytes) -> bytes:
    """Return data with its length in front."""
    return _SIZE.pack(len(data)) + data


class ServedConnection:
    """One connection. Subclasses provide its threads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def roles(self) -> dict[str, Callable[[], None]]:
        """Return the functions of its threads by role. The connection ends with the first of them."""
        raise NotImplementedError

    def cut(self) -> None:
        """Shut the connection down, even while a thread waits on it. Any thread may call this."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("a connection was closed already", exc_info=True)

    def _receive(self, lowest: int, highest: int) -> bytes | None:
        """Receive data with its length in front, None if the client has closed. Raises MalformedRequestError."""
        head = self._exactly(_SIZE.size)
        if head is None:
            return None
        size = _SIZE.unpack(head)[0]
        if not lowest <= size <= highest:
            raise MalformedRequestError(f"a request of {size} bytes")
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            more = self._sock.recv(count - len(data))
            if not more:
                return None
            data += more
        return bytes(data)


C = TypeVar("C", bound=ServedConnection)


class LoopbackServer(Generic[C]):
    """The base of the fake servers. It may stop and start again, on the same port."""

    def __init__(self, name: str) -> None:
        self.host = HOST
        self.port = 0
        self._name = name
        self._stop = Event()
        self._listener: socket.socket | None = None
        self._threads: list[Thread] = []
        self._connections: dict[C, list[Thread]] = {}
        self._connections_lock = Lock()
        self._count = 0

    @property
    def running(self) -> bool:
        """Whether the server accepts connections."""
        return self._listener is not None

    def _connection(self, sock: socket.socket) -> C:
        """Return the connection on a socket."""
        raise NotImplementedError

    def _listen(self, **roles: Callable[[], None]) -> None:
        """Start the acceptor and a thread for each of the ``roles``. Raises OSError if the port is taken."""
        self._stop = Event()
        self._listener = socket.create_server((self.host, self.port))
        self._listener.settimeout(_SLICE)
        self.port = int(self._listener.getsockname()[1])
        self._threads = self._made({"acceptor": self._accept, **roles})
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # also an interrupt: the caller does not know that there is something to stop
            self._close()
            raise

    def _close(self, wake: Callable[[], None] = lambda: None) -> None:
        """Close all connections and end all threads. ``wake`` wakes the threads that wait for other things."""
        if self._listener is None:
            return
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:  # an interrupted start leaves some that have not begun
                thread.join(_JOIN_S)
        self._listener.close()
        self._listener = None
        wake()
        with self._connections_lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.cut()
        for thread in (thread for threads in connections.values() for thread in threads):
            if thread.ident is not None and thread is not current_thread():
                thread.join(_JOIN_S)

    def _cut(self, chosen: Callable[[C], bool] = lambda _: True) -> int:
        """Shut chosen connections down. Return their number."""
        with self._connections_lock:
            connections = [connection for connection in self._connections if chosen(connection)]
        for connection in connections:
            connection.cut()
        return len(connections)

    def _accept(self) -> None:
        listener, stop = self._listener, self._stop
        assert listener is not None
        while not stop.is_set():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                log.warning("%r takes no connections any more", self, exc_info=True)
                return
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._count += 1
            self._serve(self._connection(sock))

    def _serve(self, connection: C) -> None:
        main, *others = connection.roles().items()

        def serve() -> None:
            try:
                main[1]()
            finally:
                with self._connections_lock:
                    self._connections.pop(connection, None)

        with self._connections_lock:  # the first thread cannot remove the connection before it is in the list
            roles = {f"{role}-{self._count}": target for role, target in ((main[0], serve), *others)}
            threads = self._connections[connection] = self._made(roles)
            for thread in threads:
                thread.start()

    def _made(self, roles: dict[str, Callable[[], None]]) -> list[Thread]:
        return [Thread(target=target, name=f"{self._name}-{role}", daemon=True) for role, target in roles.items()]
