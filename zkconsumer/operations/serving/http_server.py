"""The HTTP server of ``zkconsumer serve``: the standard library's, with bounds on threads, times and sizes.

One connection carries one request. The accepting thread is ``zkconsumer-serve-accept``; each connection has a thread
``zkconsumer-serve-request``. :meth:`GroupServer.close` ends them all.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import socket
import sys
import threading
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConfigException
from zkconsumer.operations.serving.access import ListenAddress
from zkconsumer.operations.serving.poller import Poller
from zkconsumer.operations.serving.routes import TEXT, Response, Routes, request_of, text
from zkconsumer.version import VERSION

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
MOST_LISTENERS = 32
"""Event streams. Fewer than connections, so that open pages do not keep Prometheus out."""
MOST_REQUEST_BYTES = 64 * 1024
READ_SECONDS = 10.0
"""The time in which a whole request must arrive."""
WRITE_SECONDS = 20.0
"""The time in which a client must take a whole answer, or one event."""
HEARTBEAT_SECONDS = 15.0
_PATIENCE = 10.0

_COMPRESSED_FROM = 1024
_HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _RequestReader(io.RawIOBase):
    """Reads a request from a socket, within a total time and size. A client cannot hold a thread by its slowness."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = Deadline(READ_SECONDS)
        self._left = MOST_REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._deadline.expired:
            raise TimeoutError("the request did not arrive in time")
        if self._left <= 0:
            raise HTTPException("the request is too large")
        self._connection.settimeout(self._deadline.bounded(READ_SECONDS) or 0.001)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count


class _Handler(BaseHTTPRequestHandler):
    """Answers the one request of a connection."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = f"zkconsumer/{VERSION}"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_RequestReader(self.connection))

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()

    def do_GET(self) -> None:
        self.close_connection = True
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            answer = self.server.routes.answer(request_of(self.path, headers))
        except ValueError as error:
            answer = text(400, str(error))
        if answer.events is not None:
            self._stream(answer.events)
        else:
            self._send(answer, packed="gzip" in headers.get("accept-encoding", ""))

    do_HEAD = do_GET  # noqa: N815 (likewise)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the standard library refuses, without repeating what the client sent."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        allow = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._send(Response(status, f"{status.phrase}\n".encode(), TEXT, allow))

    def _start(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.connection.settimeout(WRITE_SECONDS)
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, answer: Response, *, packed: bool = False) -> None:
        body, headers = answer.body, dict(answer.headers)
        if packed and len(body) >= _COMPRESSED_FROM:
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        headers |= {"Content-Length": str(len(body)), "Vary": "Accept-Encoding"}
        self._start(answer.status, answer.content_type, headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _stream(self, group: str) -> None:
        """Send an event after each poll, until the client or the poller ends."""
        if self.command == "HEAD":
            self._start(200, "text/event-stream", {})
            return
        if not self.server.listeners.acquire(blocking=False):
            self._send(Response(503, b"too many event streams\n", TEXT, {"Retry-After": "30"}))
            return
        try:
            self._start(200, "text/event-stream", {"X-Accel-Buffering": "no"})
            self.wfile.write(b"retry: 3000\n\n")
            polls = -1
            while True:
                board = self.server.poller.wait(polls, HEARTBEAT_SECONDS)
                if board.ended:
                    return
                self.connection.settimeout(WRITE_SECONDS)
                self.wfile.write(_event(board, group) if board.polls > polls else b": still here\n\n")
                polls = board.polls
        finally:
            self.server.listeners.release()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the standard library's name)
        log.debug("%s %a", self.client_address[0], format % arguments)


def _event(board: Any, group: str) -> bytes:
    """Return the event ``changed`` after a poll: of one group, or of all with an empty name."""
    watched = board.groups.get(group)
    told: dict[str, object] = {"polls": board.polls, "completed": board.completed, "failure": board.failure or None}
    if group:
        told |= {"group": group, "serial": None if watched is None else watched.serial}
        told["taken"] = None if watched is None else watched.snapshot.taken
    return f"event: changed\ndata: {json.dumps(told)}\n\n".encode()


class _Server(HTTPServer):
    """Accepts connections, each served in a thread of its own, at most :data:`MOST_CONNECTIONS`."""

    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, address: ListenAddress, routes: Routes, poller: Poller) -> None:
        self.address_family = socket.AF_INET6 if address.is_v6 else socket.AF_INET
        self.routes = routes
        self.poller = poller
        self.listeners = threading.BoundedSemaphore(MOST_LISTENERS)
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind without the standard library's look-up of the host's name, which can take seconds."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or refuse it where too many are open."""
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="zkconsumer-serve-request", daemon=True
        )
        with self._lock:
            full = len(self._connections) >= MOST_CONNECTIONS
            if not full:
                self._connections[request] = thread
        if full:
            self._refuse(request)
            return
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._forget(request)
            raise

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # noqa: BLE001 (one connection must not end the server)
            self.handle_error(request, client_address)
        finally:
            self._forget(request)
            self.shutdown_request(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._connections.pop(request, None)

    def _refuse(self, request: socket.socket) -> None:
        try:
            request.settimeout(0.5)
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        except OSError:
            log.debug("a refused client had gone")
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed connection; a client that went away or was too slow is no error."""
        quiet = isinstance(sys.exc_info()[1], OSError | HTTPException)
        log.log(logging.DEBUG if quiet else logging.ERROR, "a connection of %s failed", client_address, exc_info=True)

    def end_connections(self, deadline: Deadline) -> None:
        """Wait for the connections' threads; half-way cut their sockets off."""
        half = Deadline(deadline.bounded(_PATIENCE) / 2)
        for limit in (half, deadline):
            with self._lock:
                open_now = list(self._connections.items())
            for request, thread in open_now:
                if limit is deadline:
                    _cut(request)
                thread.join(limit.bounded(_PATIENCE))


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection had ended already")


class GroupServer:
    """The HTTP server over a poller: opens the port, answers, and ends. A context manager around both.

    Arguments: ``address`` to listen on, ``routes`` and ``poller``. Raises: ConfigException if the port cannot be had.
    """

    def __init__(self, address: ListenAddress, routes: Routes, poller: Poller) -> None:
        self._poller = poller
        try:
            self._server = _Server(address, routes, poller)
        except OSError as error:
            raise ConfigException("--listen", f"{address.host}:{address.port} cannot be used: {error}") from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="zkconsumer-serve-accept", daemon=True
        )

    @property
    def url(self) -> str:
        """The address of the page."""
        host = f"[{self._server.server_name}]" if ":" in self._server.server_name else self._server.server_name
        return f"http://{host}:{self._server.server_port}/"

    def start(self) -> None:
        """Start the poller and the accepting thread."""
        self._poller.start()
        self._thread.start()

    def close(self, timeout: float = 5.0) -> bool:
        """End the poller, the listeners and the server. Return whether all threads ended within ``timeout`` seconds."""
        deadline = Deadline(timeout)
        ended = self._poller.stop(timeout * 0.6)
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(deadline.bounded(timeout))
        self._server.end_connections(deadline)
        self._server.server_close()
        return ended and not self._thread.is_alive()
