"""A server of ZooKeeper's protocol on a loopback socket, with a :class:`FakeZooKeeper` behind it, for kazoo clients.

Each connection has a thread that reads and one that writes. ``fake-zookeeper-clock`` ends silent sessions.
A thread holds ``order`` while it performs a request and puts the answer and the events on the connections' queues.
Otherwise a client could see a change before its event, which ZooKeeper rules out. No thread sends under ``order``. It
is taken before the tree's lock, never after it.
Differs on purpose: no logins, no quorum, no ``setWatches`` (kazoo sends none).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from queue import SimpleQueue
from struct import Struct
from threading import Lock, RLock
from time import monotonic
from types import TracebackType
from typing import Self

from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.testing.loopback_server import LoopbackServer, ServedConnection, framed
from zkconsumer.testing.wire_types import INT32, INT64, MalformedRequestError, WireReader
from zkconsumer.testing.zookeeper_protocol import ConnectionRequests

log = logging.getLogger(__name__)

_LARGEST = 4 * 1024 * 1024
_SLICE = 0.05
_PASSWORD = b"\1" * 16
_GREETING = Struct(">iiqi16s?")
"""Protocol version, session timeout, session id, password with its length, whether the server is read-only."""
_PING, _CLOSE = 11, -11


class _ServedSession:
    """A session. It lives on without a connection until its timeout."""

    def __init__(self, session_id: int, timeout: float) -> None:
        self.id = session_id
        self.timeout = timeout
        self.heard = monotonic()
        self.connection: _ZooKeeperConnection | None = None


class FakeZooKeeperServer(LoopbackServer["_ZooKeeperConnection"]):
    """A server for a FakeZooKeeper. A context manager.

    Arguments: ``zookeeper`` is the tree to serve (a new one unless given). ``min_session_timeout`` and
    ``max_session_timeout`` are the limits of the clients' session timeouts in seconds.
    """

    def __init__(
        self,
        zookeeper: FakeZooKeeper | None = None,
        *,
        min_session_timeout: float = 0.2,
        max_session_timeout: float = 60.0,
    ) -> None:
        super().__init__("fake-zookeeper")
        self.zookeeper = zookeeper or FakeZooKeeper()
        self._limits = (min_session_timeout, max_session_timeout)
        self.order = RLock()
        self._lock = Lock()
        self._sessions: dict[int, _ServedSession] = {}

    @property
    def connect(self) -> str:
        """``host:port``, as in ``zookeeper.connect``."""
        return f"{self.host}:{self.port}"

    @property
    def sessions(self) -> list[int]:
        """The ids of the live sessions."""
        with self._lock:
            return sorted(self._sessions)

    def start(self) -> Self:
        """Listen on the same port as before. The sessions are still alive."""
        if not self.running:
            self._listen(clock=self._keep_time)
        return self

    def stop(self) -> None:
        """Close all connections and end all threads. Sessions and nodes stay until the next start."""
        if self.running:
            self._close()
            now = monotonic()
            with self._lock:
                for session in self._sessions.values():
                    session.heard = now

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # ---- faults ----

    def drop_connections(self) -> int:
        """Close all connections. The sessions live on. Return the number of connections."""
        return self._cut()

    def expire(self, session_id: int | None = None) -> int:
        """End one session, or all, and delete its ephemeral nodes. The client learns of the end at its next connection.

        Return the number of sessions that ended.
        """
        with self._lock:
            ended = [s for s in self._sessions.values() if session_id in (None, s.id)]
        for session in ended:
            self.end(session)
        return len(ended)

    # ---- inside ----

    def _connection(self, sock: socket.socket) -> _ZooKeeperConnection:
        return _ZooKeeperConnection(sock, self)

    def _keep_time(self) -> None:
        while not self._stop.wait(_SLICE):
            now = monotonic()
            with self._lock:
                late = [session for session in self._sessions.values() if now >= session.heard + session.timeout]
            for session in late:
                self.end(session)

    def end(self, session: _ServedSession) -> None:
        """End a session, and close its connection."""
        with self._lock:
            if self._sessions.pop(session.id, None) is None:
                return
        with self.order:
            self.zookeeper.end_session(session.id)
        if session.connection is not None:
            session.connection.cut()

    def open_session(self, connection: _ZooKeeperConnection, wanted: int, timeout: float) -> _ServedSession | None:
        """Return the session that a client asks for, or a new one. None if the session has ended."""
        with self.order, self._lock:
            if wanted:
                session = self._sessions.get(wanted)
                if session is None:
                    return None
            else:
                low, high = self._limits
                session_id = self.zookeeper.new_session_id()
                session = self._sessions[session_id] = _ServedSession(session_id, min(max(timeout, low), high))
            before, session.connection, session.heard = (session.connection, connection, monotonic())
        if before is not None and before is not connection:
            before.cut()
        return session

    def lives(self, session: _ServedSession) -> bool:
        """Return whether the session has not ended."""
        with self._lock:
            return self._sessions.get(session.id) is session


class _ZooKeeperConnection(ServedConnection):
    """One connection. One thread reads and performs requests, another sends the queued answers."""

    def __init__(self, sock: socket.socket, server: FakeZooKeeperServer) -> None:
        super().__init__(sock)
        self._server = server
        self._out: SimpleQueue[bytes | None] = SimpleQueue()

    def roles(self) -> dict[str, Callable[[], None]]:
        """Return the functions of its two threads."""
        return {"reader": self.read, "writer": self.write}

    def write(self) -> None:
        """Send the queued answers until the queue ends."""
        with self._sock:
            while (data := self._out.get()) is not None:
                try:
                    self._sock.sendall(framed(data))
                except OSError:
                    log.debug("a connection to the fake ZooKeeper broke", exc_info=True)
            self.cut()

    def read(self) -> None:
        """Handle requests until either side closes."""
        operations: ConnectionRequests | None = None
        try:
            session = self._greet()
            if session is not None:
                operations = ConnectionRequests(self._server.zookeeper, session.id, self._out.put)
                while self._deal(session, operations):
                    pass
        except OSError:
            log.debug("a connection to the fake ZooKeeper broke", exc_info=True)
        except MalformedRequestError:
            log.warning("the fake ZooKeeper got a malformed request", exc_info=True)
        finally:
            if operations is not None:
                with self._server.order:
                    operations.forget_watches()
            self._out.put(None)

    def _greet(self) -> _ServedSession | None:
        data = self._receive(0, _LARGEST)
        if data is None:
            return None
        reader = WireReader(data)
        INT32.read(reader)
        INT64.read(reader)
        timeout, wanted = INT32.read(reader) / 1000, INT64.read(reader)
        session = self._server.open_session(self, wanted, timeout)
        timeout_ms, session_id = (0, 0) if session is None else (round(session.timeout * 1000), session.id)
        self._out.put(_GREETING.pack(0, timeout_ms, session_id, len(_PASSWORD), _PASSWORD, False))
        return session

    def _deal(self, session: _ServedSession, operations: ConnectionRequests) -> bool:
        """Handle one request. Return whether the connection stays open."""
        data = self._receive(0, _LARGEST)
        if data is None:
            return False
        session.heard = monotonic()
        reader = WireReader(data)
        xid, kind = int(INT32.read(reader)), int(INT32.read(reader))
        if kind == _CLOSE:
            session.connection = None
            self._server.end(session)
        with self._server.order:
            if kind != _CLOSE and not self._server.lives(session):
                return False  # no session would ever delete an ephemeral node that this request makes
            operations.perform(xid, _PING if kind == _CLOSE else kind, reader)
        return kind != _CLOSE
