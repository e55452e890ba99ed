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
from functools import partial
from queue import SimpleQueue
from struct import Struct
from threading import Lock, RLock
from time import monotonic
from types import TracebackType
from typing import Any, Self

from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.testing.loopback_server import LoopbackServer, ServedConnection, framed
from zkconsumer.testing.node_tree import CHILD_WATCH, DATA_WATCH, RefusedOperation
from zkconsumer.testing.wire_types import (
    BOOLEAN,
    BYTES,
    INT32,
    INT64,
    TEXT,
    MalformedRequestError,
    WireReader,
    WireWriter,
)
from zkconsumer.zookeeper.node_requests import NodeFailure
from zkconsumer.zookeeper.node_values import Node, NodeEvent, NodeEventKind

_OK, _NO_NODE, _BAD_VERSION, _NODE_EXISTS, _NOT_EMPTY, _UNIMPLEMENTED = (0, -101, -103, -110, -111, -6)
_NO_CHILDREN_OF_EPHEMERALS, _INCONSISTENT, _NO_AUTH = -108, -2, -102
_CODES = {
    NodeFailure.NO_NODE: _NO_NODE,
    NodeFailure.NODE_EXISTS: _NODE_EXISTS,
    NodeFailure.BAD_VERSION: _BAD_VERSION,
    NodeFailure.NO_AUTH: _NO_AUTH,
}
_EVENTS = {NodeEventKind.CREATED: 1, NodeEventKind.DELETED: 2, NodeEventKind.CHANGED: 3, NodeEventKind.CHILDREN: 4}
_CREATE, _DELETE, _EXISTS, _GET, _SET, _GET_ACL, _SET_ACL = 1, 2, 3, 4, 5, 6, 7
_CHILDREN, _SYNC, _PING, _CHILDREN2, _CHECK, _MULTI, _CREATE2, _MULTI_READ, _AUTH = 8, 9, 11, 12, 13, 14, 15, 22, 100
_EPHEMERAL, _SEQUENTIAL = 1, 2
_READ, _ALL_RIGHTS = 1, 31
_CONNECTED, _EVENT_XID = 3, -1
_HEAD = Struct(">iqi")
"""The head of an answer: xid, zxid, error code."""
_MULTI_HEAD = Struct(">i?i")
"""The head of one result in a transaction: kind, whether it is the end, error code."""
_STAT = Struct(">qqqqiiiqiiq")


class ZooKeeperError(Exception):
    """A request failed with an error code that only the protocol has."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


def _code(error: ZooKeeperError | RefusedOperation) -> int:
    return error.code if isinstance(error, ZooKeeperError) else _CODES.get(error.failure, _NOT_EMPTY)


class ConnectionRequests:
    """The requests of one connection. ``send`` takes an answer or event and must not block."""

    def __init__(self, zookeeper: FakeZooKeeper, session_id: int, send: Callable[[bytes], None]) -> None:
        self._zookeeper = zookeeper
        self._session_id = session_id
        self._send = send
        self._open = True
        self._kinds: dict[int, Callable[[WireReader, WireWriter], None]] = {
            _CREATE: self._create,
            _CREATE2: self._create2,
            _DELETE: self._delete,
            _EXISTS: self._exists,
            _GET: self._get,
            _SET: self._set,
            _GET_ACL: self.get_acl,
            _SET_ACL: self._set_acl,
            _CHILDREN: self._get_children,
            _CHILDREN2: self._get_children2,
            _SYNC: self._sync,
            _MULTI: self._multi,
            _MULTI_READ: partial(self._multi, reads=True),
            _PING: self._nothing,
            _AUTH: self._nothing,
        }

    def perform(self, xid: int, kind: int, reader: WireReader) -> None:
        """Perform a request. Send its events, then its answer. Raises MalformedRequestError."""
        body = WireWriter()
        code = _OK
        try:
            with self._zookeeper.at_once():
                self._kinds.get(kind, self._unknown)(reader, body)
        except (ZooKeeperError, RefusedOperation) as error:
            code, body = _code(error), WireWriter()
        self._send(_HEAD.pack(xid, self._zookeeper.zxid, code) + body.data)

    def forget_watches(self) -> None:
        """Drop the watches of a closed connection."""
        self._open = False
        self._zookeeper.drop_watches(self)

    def _event(self, event: NodeEvent) -> None:
        if self._open:
            writer = WireWriter()
            INT32.write(writer, _EVENTS[event.kind])
            INT32.write(writer, _CONNECTED)
            TEXT.write(writer, event.path)
            self._send(_HEAD.pack(_EVENT_XID, -1, _OK) + writer.data)

    def _watch(self, kind: str, path: str, wanted: bool) -> None:
        if wanted:
            self._zookeeper.watch(kind, path, self._event, self)

    def _read(self, path: str) -> Node:
        """Return a node that the session may read."""
        node = self._zookeeper.expect(path)
        self._zookeeper.permit("read", path)
        return node

    # ---- requests ----

    def _unknown(self, reader: WireReader, body: WireWriter) -> None:
        del reader, body
        raise ZooKeeperError(_UNIMPLEMENTED)

    def _nothing(self, reader: WireReader, body: WireWriter) -> None:
        del reader, body

    def _create(self, reader: WireReader, body: WireWriter) -> None:
        TEXT.write(body, self._created(reader))

    def _create2(self, reader: WireReader, body: WireWriter) -> None:
        path = self._created(reader)
        TEXT.write(body, path)
        self._stat(body, path)

    def _created(self, reader: WireReader) -> str:
        """Make a node. Return the path, with the number of a sequential node."""
        zookeeper, path, data = self._zookeeper, _path(reader), BYTES.read(reader) or b""
        _acl(reader)
        flags, parent = INT32.read(reader), path.rsplit("/", 1)[0] or "/"
        if flags & _SEQUENTIAL:
            path = f"{path}{zookeeper.children_made.get(parent, 0):010d}"
        above = zookeeper.node(parent)
        if above is not None and above.ephemeral_owner:
            raise ZooKeeperError(_NO_CHILDREN_OF_EPHEMERALS)
        zookeeper.permit("create", path)
        zookeeper.create(path, data, self._session_id if flags & _EPHEMERAL else 0)
        return path

    def _delete(self, reader: WireReader, body: WireWriter) -> None:
        del body
        path, version = _path(reader), INT32.read(reader)
        self._zookeeper.permit("delete", path)
        self._zookeeper.delete(path, version)

    def _exists(self, reader: WireReader, body: WireWriter) -> None:
        path = _path(reader)
        self._watch(DATA_WATCH, path, BOOLEAN.read(reader))
        self._read(path)  # since ZooKeeper 3.9, exists needs the right to read
        self._stat(body, path)

    def _get(self, reader: WireReader, body: WireWriter) -> None:
        path, watched = _path(reader), BOOLEAN.read(reader)
        node = self._read(path)
        self._watch(DATA_WATCH, path, watched)
        BYTES.write(body, node.data)
        self._stat(body, path)

    def _set(self, reader: WireReader, body: WireWriter) -> None:
        path, data, version = _path(reader), BYTES.read(reader) or b"", INT32.read(reader)
        self._zookeeper.permit("write", path)  # only now: a transaction reads on after a refusal
        self._zookeeper.write(path, data, version)
        self._stat(body, path)

    def get_acl(self, reader: WireReader, body: WireWriter) -> None:
        """Answer a request for the rights of a node."""
        path = _path(reader)
        self._zookeeper.expect(path)
        INT32.write(body, 1)
        INT32.write(body, _ALL_RIGHTS)
        TEXT.write(body, "world")
        TEXT.write(body, "anyone")
        self._stat(body, path)

    def _set_acl(self, reader: WireReader, body: WireWriter) -> None:
        path = _path(reader)
        for_all = [permissions for permissions, scheme in _acl(reader) if scheme == "world"]
        if not any(permissions & _READ for permissions in for_all):
            self._zookeeper.refuse(path, "read")
        self._stat(body, path)

    def _get_children(self, reader: WireReader, body: WireWriter) -> None:
        path, watched = _path(reader), BOOLEAN.read(reader)
        self._read(path)
        self._watch(CHILD_WATCH, path, watched)
        names = self._zookeeper.children(path)
        INT32.write(body, len(names))
        for name in names:
            TEXT.write(body, name)

    def _get_children2(self, reader: WireReader, body: WireWriter) -> None:
        path = _path(WireReader(reader.rest))
        self._get_children(reader, body)
        self._stat(body, path)

    def _sync(self, reader: WireReader, body: WireWriter) -> None:
        TEXT.write(body, _path(reader))

    def _multi(self, reader: WireReader, body: WireWriter, *, reads: bool = False) -> None:
        """Perform a transaction, which changes nothing if one operation fails, or reads, which fail each alone."""
        codes: list[int] = []
        results: list[tuple[int, bytes]] = []
        with self._zookeeper.transaction() as undo:
            while True:
                kind, done = INT32.read(reader), BOOLEAN.read(reader)
                INT32.read(reader)
                if done:
                    break
                if (kind == _GET) is not reads:
                    raise MalformedRequestError(f"operation {kind} among {'reads' if reads else 'writes'}")
                result = WireWriter()
                failed = bool(codes and codes[-1]) and not reads
                codes.append(_INCONSISTENT if failed else _OK)
                try:
                    self._one(kind, reader, result, failed)
                except (ZooKeeperError, RefusedOperation) as error:
                    codes[-1] = _code(error)
                results.append((kind, bytes(result.data)))
            if undone := any(codes) and not reads:
                undo()
        for (kind, data), code in zip(results, codes, strict=True):
            if code or undone:
                kind, data = -1, code.to_bytes(4, "big", signed=True)
            body.data += _MULTI_HEAD.pack(kind, False, code) + data
        body.data += _MULTI_HEAD.pack(-1, True, -1)

    def _one(self, kind: int, reader: WireReader, result: WireWriter, skip: bool) -> None:
        """Perform one operation of a transaction. After a failure (``skip``) only read it."""
        if kind == _CHECK:
            path, version = _path(reader), INT32.read(reader)
            if not skip:
                self._zookeeper.expect(path, version)
        elif kind not in (_CREATE, _DELETE, _SET, _GET):
            raise MalformedRequestError(f"operation {kind} in a transaction")
        elif skip:
            _skip(kind, reader)
        else:
            self._kinds[kind](reader, result)

    def _stat(self, body: WireWriter, path: str) -> None:
        node = self._zookeeper.expect(path)
        body.data += _STAT.pack(
            *(node.czxid, node.mzxid, node.ctime, node.mtime, node.version, node.cversion, 0, node.ephemeral_owner),
            *(len(node.data), node.children, node.pzxid),
        )


def _path(reader: WireReader) -> str:
    path: Any = TEXT.read(reader)
    if not path or not path.startswith("/"):
        raise MalformedRequestError(f"not a path: {path!r}")
    return str(path)


def _acl(reader: WireReader) -> list[tuple[int, str]]:
    """Read an access list: permissions and scheme of each entry."""
    found = []
    for _ in range(INT32.read(reader)):
        found.append((int(INT32.read(reader)), str(TEXT.read(reader))))
        TEXT.read(reader)
    return found


def _skip(kind: int, reader: WireReader) -> None:
    TEXT.read(reader)
    if kind != _DELETE:
        BYTES.read(reader)
    if kind == _CREATE:
        _acl(reader)
    INT32.read(reader)


log = logging.getLogger(__name__)

_LARGEST = 4 * 1024 * 1024
_SLICE = 0.05
_PASSWORD = b"\1" * 16
_GREETING = Struct(">iiqi16s?")
"""Protocol version, session timeout, session id, password with its length, whether the server is read-only."""
_CLOSE = -11


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
