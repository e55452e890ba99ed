"""A broker that serves Kafka's protocol on a loopback socket, with everything in memory.

Threads: ``fake-broker-<id>-acceptor`` accepts connections, and ``fake-broker-<id>-connection-<n>`` serves each of them,
one request after the other as a real broker does. ``stop()`` ends and joins them all. One lock guards the list of
connections. No thread sends or receives under it.
"""

from __future__ import annotations

import logging
import socket
from struct import Struct
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING

from zkconsumer.testing.fake_coordinator import GroupCoordinator
from zkconsumer.testing.faults import Fate, Forged, Recorded
from zkconsumer.testing.group_handlers import GROUP_HANDLERS
from zkconsumer.testing.log_handlers import LOG_HANDLERS
from zkconsumer.testing.pending_requests import BrokerStopped, PendingRequest
from zkconsumer.testing.request_schemas import APIS, supported
from zkconsumer.testing.wire_types import INT16, INT32, STRING, Api, Body, MalformedRequestError, WireReader

if TYPE_CHECKING:
    from zkconsumer.testing.fake_cluster import FakeCluster

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_SIZE = Struct(">i")
_LARGEST = 64 * 1024 * 1024
_ACCEPT_SLICE = 0.1
_UNSUPPORTED_VERSION = 35
_JOIN_S = 10.0
_APIS = {api.key: api for api in APIS.values()}
_API_VERSIONS = APIS["ApiVersions"]
_HANDLERS = {**GROUP_HANDLERS, **LOG_HANDLERS}


class FakeBroker:
    """One broker of a :class:`FakeCluster`, which makes and starts it. ``groups`` is its group coordinator."""

    def __init__(self, broker_id: int, cluster: FakeCluster, groups: GroupCoordinator) -> None:
        self.id = broker_id
        self.host = HOST
        self.port = 0
        self.groups = groups
        self._cluster = cluster
        self._lock = Lock()
        self._connections: dict[_Connection, Thread] = {}
        self._listener: socket.socket | None = None
        self._acceptor: Thread | None = None
        self._stop = Event()
        self._count = 0

    def __repr__(self) -> str:
        return f"<FakeBroker {self.id} at {self.host}:{self.port}>"

    @property
    def running(self) -> bool:
        """Whether the broker accepts connections."""
        return self._listener is not None

    def start(self) -> None:
        """Listen on the same port as before. Raises OSError if another program took the port."""
        if self.running:
            return
        self._stop = Event()
        self._listener = socket.create_server((self.host, self.port))
        self._listener.settimeout(_ACCEPT_SLICE)
        self.port = int(self._listener.getsockname()[1])
        self._acceptor = Thread(target=self._accept, name=f"fake-broker-{self.id}-acceptor", daemon=True)
        self._acceptor.start()

    def stop(self) -> None:
        """Close all connections and end all threads. The broker may be started again."""
        listener, acceptor = self._listener, self._acceptor
        if listener is None or acceptor is None:
            return
        self._stop.set()
        acceptor.join(_JOIN_S)
        listener.close()
        self._listener = self._acceptor = None
        self._cluster.arrived()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            connection.cut()
        for thread in connections.values():
            if thread is not current_thread():
                thread.join(_JOIN_S)

    def drop_connections(self, client_id: str | None = None) -> int:
        """Close the connections of a client id, or all. Return their number."""
        with self._lock:
            connections = [c for c in self._connections if client_id is None or c.client_id == client_id]
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
            self._serve(sock, stop)

    def _serve(self, sock: socket.socket, stop: Event) -> None:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock, self, self._cluster, stop)
        self._count += 1
        name = f"fake-broker-{self.id}-connection-{self._count}"
        thread = Thread(target=self._run, args=(connection,), name=name, daemon=True)
        with self._lock:
            self._connections[connection] = thread
        thread.start()

    def _run(self, connection: _Connection) -> None:
        try:
            connection.serve()
        finally:
            with self._lock:
                self._connections.pop(connection, None)


class _Connection:
    """One connection, served by one thread. ``cut`` may come from any."""

    def __init__(self, sock: socket.socket, broker: FakeBroker, cluster: FakeCluster, stop: Event) -> None:
        self.client_id: str | None = None
        self._sock = sock
        self._broker = broker
        self._cluster = cluster
        self._stop = stop

    def is_set(self) -> bool:
        """Return whether the broker stops or the client has closed the connection."""
        if self._stop.is_set():
            return True
        try:
            return not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def cut(self) -> None:
        """Shut the connection down, even while a thread waits on it."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("a connection was closed already", exc_info=True)

    def serve(self) -> None:
        """Answer requests until either side closes."""
        with self._sock:
            try:
                host = f"/{self._sock.getpeername()[0]}"
                while not self._stop.is_set() and self._answer_one(host):
                    pass
            except (OSError, BrokerStopped):
                log.debug("a connection to %r ended", self._broker, exc_info=True)
            except MalformedRequestError:
                log.warning("%r got what it cannot read", self._broker, exc_info=True)

    def _answer_one(self, host: str) -> bool:
        """Handle one request. Return whether the connection stays open."""
        head = self._receive(_SIZE.size)
        if not head:
            return False
        size = _SIZE.unpack(head)[0]
        if not 0 < size <= _LARGEST:
            raise MalformedRequestError(f"a request of {size} bytes")
        data = self._receive(size)
        reader = WireReader(data)
        key, version, correlation = INT16.read(reader), INT16.read(reader), INT32.read(reader)
        self.client_id = STRING.read(reader)
        api = _APIS.get(key)
        lowest, highest = (1, 0) if api is None else api.versions(self._cluster.modern)
        if api is None or not lowest <= version <= highest:
            if api is _API_VERSIONS:  # the client may not know our versions yet: answer in version 0
                unsupported = {"error_code": _UNSUPPORTED_VERSION, "api_keys": supported(self._cluster.modern)}
                self._send(_API_VERSIONS, 0, correlation, unsupported)
                return True
            log.warning("%r does not know request %d of version %d", self._broker, key, version)
            return False
        if version >= api.flexible:
            reader.tags()
        body = api.read_request(version, reader.rest)
        return self._deal(Recorded(self._broker.id, api.name, version, self.client_id, body), correlation, host)

    def _deal(self, request: Recorded, correlation: int, host: str) -> bool:
        faults = self._cluster.faults
        faults.record(request)
        if not self._pass(request, "request"):
            return False
        handler = _HANDLERS[request.api]
        call = PendingRequest(
            self._cluster,
            self._broker.id,
            self._broker.groups,
            request.version,
            request.client_id or "",
            host,
            request.body,
            self,
        )
        code = faults.code_for(request)
        answer = handler.refusal(call, code) if code else handler.answer(call)
        if not self._pass(request, "answer"):
            return False
        if answer is not None:
            self._send(APIS[request.api], request.version, correlation, answer, faults.forged_for(request))
        return True

    def _pass(self, request: Recorded, at: str) -> bool:
        """Wait if a test has parked this request. Return whether the connection stays open."""
        place = self._cluster.faults.place_for(request, at)
        return place is None or place.hold(request, self._stop) is Fate.RELEASED

    def _send(self, api: Api, version: int, correlation: int, answer: Body, forged: Forged | None = None) -> None:
        # the answer to ApiVersions has the old header, because the client does not know our versions yet
        tags = b"\0" if version >= api.flexible and api is not _API_VERSIONS else b""
        header = correlation.to_bytes(4, "big", signed=True) + tags
        body = api.write_response(version, answer)
        if forged is not None:
            chosen = forged.of(_framed(header, body) if forged.whole else body)
            self._sock.sendall(chosen if forged.whole else _framed(header, chosen))
            return
        self._sock.sendall(_framed(header, body))

    def _receive(self, count: int) -> bytes:
        """Receive ``count`` bytes, or none if the client has closed."""
        data = bytearray()
        while len(data) < count:
            more = self._sock.recv(count - len(data))
            if not more:
                return b""
            data += more
        return bytes(data)


def _framed(header: bytes, body: bytes) -> bytes:
    return _SIZE.pack(len(header) + len(body)) + header + body
