"""A small HTTP server over the standard library's, with bounds on threads, times and sizes.

One connection carries one request, GET or HEAD. The accepting thread is ``<name>-accept``; each connection has a thread
``<name>-request``. :meth:`BoundedServer.end` ends them all.
"""

from __future__ import annotations

import io
import ipaddress
import logging
import re
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain
from typing import Any

from zkconsumer.errors import ConfigException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.version import VERSION

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:/@\s]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address to listen on. ``port`` 0 takes a free one."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return _loopback(self.host)

    @property
    def is_v6(self) -> bool:
        """Whether it is an IPv6 address."""
        return ":" in self.host


def listen_address(text: str, option: str = "--listen") -> ListenAddress:
    """Return the address that an option names: ``127.0.0.1:8089``, ``[::1]:8089``, ``localhost:0``.

    Raises: ConfigException, which names the option.
    """
    found = _HOST.fullmatch(text)
    if found is None or found["port"] is None or int(found["port"]) > 65535:
        raise ConfigException(option, f"{text!a} is no HOST:PORT, such as 127.0.0.1:8089 or [::1]:8089")
    return ListenAddress(found["v6"] or found["name"], int(found["port"]))


def names_loopback(host: str | None) -> bool:
    """Return whether a ``Host`` header names a loopback address."""
    found = _HOST.fullmatch(host or "")
    return found is not None and _loopback(found["v6"] or found["name"])


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


log = logging.getLogger(__name__)

TEXT = "text/plain; charset=utf-8"
MOST_CONNECTIONS = 64
"""The most requests that are answered at once, apart from :data:`HEALTH_PATHS`."""
MOST_WAITING = 64
"""The most connections whose request has not arrived. The oldest one gives way to a new one."""
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
"""Answered beyond :data:`MOST_CONNECTIONS`: otherwise a scheduler restarts a service because others ask it much."""
RETRY_SECONDS = 5
"""The time after which a refused client may come back, in its ``Retry-After``."""
MOST_REQUEST_BYTES = 64 * 1024
READ_SECONDS = 10.0
"""The time in which a whole request must arrive."""
WRITE_SECONDS = 20.0
"""The time in which a client must take a whole answer, or one event."""
_PATIENCE = 10.0

_COMPRESSED_FROM = 1024
_GZIP = 31  # zlib's number for the format of gzip
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


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. ``events`` is the group whose events to stream in place of a body, None for a body.

    ``more`` make further parts of the body, each once. So a large body is not in memory as a whole.
    """

    status: int
    body: bytes = b""
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)
    events: str | None = None
    more: Sequence[Callable[[], bytes]] = ()


def text(status: int, message: str) -> Response:
    """Return a line of plain text."""
    return Response(status, f"{message}\n".encode("utf-8", "backslashreplace"))


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


class RequestHandler(BaseHTTPRequestHandler):
    """Answers the one request of a connection."""

    server: BoundedServer
    protocol_version = "HTTP/1.1"
    server_version = f"zkconsumer/{VERSION}"
    sys_version = ""

    def setup(self) -> None:
        """Bound the time and the size of the request."""
        super().setup()
        self.rfile = io.BufferedReader(_RequestReader(self.connection))

    def handle(self) -> None:
        """Answer one request, and no more on this connection."""
        self.close_connection = True
        self.handle_one_request()

    def do_GET(self) -> None:
        """Answer GET and HEAD."""
        self.close_connection = True
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not self.server.admit(self.connection, self.path):
            self.respond(Response(503, b"too many requests\n", TEXT, {"Retry-After": str(RETRY_SECONDS)}))
            return
        try:
            with self.server.making():
                answer = self.server.answer(self.path, headers)
        except ValueError as error:
            answer = text(400, str(error))
        self.respond(answer, packed="gzip" in headers.get("accept-encoding", ""))

    do_HEAD = do_GET  # noqa: N815 (likewise)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the standard library refuses, without repeating what the client sent."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        allow = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self.respond(Response(status, f"{status.phrase}\n".encode(), TEXT, allow))

    def begin(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        """Send the status and the headers."""
        self.connection.settimeout(WRITE_SECONDS)
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def respond(self, answer: Response, *, packed: bool = False) -> None:
        """Send an answer, compressed if the client takes that. Each of its parts is sent as soon as it is made."""
        made: Iterable[bytes] = chain([answer.body], map(self._made, answer.more))
        headers = {**answer.headers, "Vary": "Accept-Encoding"}
        if packed and (answer.more or len(answer.body) >= _COMPRESSED_FROM):
            packing = zlib.compressobj(1, wbits=_GZIP)
            made = [*map(packing.compress, made), packing.flush()]
            headers["Content-Encoding"] = "gzip"
        elif not answer.more or self.request_version != "HTTP/1.1":  # the others know no chunks
            made = list(made)
        chunked = not isinstance(made, list)
        headers |= {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(sum(map(len, made)))}
        self.begin(answer.status, answer.content_type, headers)
        if self.command == "HEAD":
            return
        deadline = Deadline(WRITE_SECONDS)
        for part in filter(None, made):
            self.connection.settimeout(deadline.bounded(WRITE_SECONDS) or 0.001)
            # in one call: after each call the thread waits for the interpreter, up to 5 ms beside a busy thread
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _made(self, make: Callable[[], bytes]) -> bytes:
        with self.server.making():
            return make()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the standard library's name)
        """Log a request, at DEBUG."""
        log.debug("%s %a", self.client_address[0], format % arguments)


class BoundedServer(HTTPServer):
    """Accepts connections, each served in a thread of its own.

    At most :data:`MOST_CONNECTIONS` requests are answered at once, and :data:`MOST_WAITING` connections may be without
    a request. Requests for the health are answered in any case.

    Arguments: ``address`` to listen on; ``name`` begins the names of the threads; ``answer`` gets the target of a
    request and its headers, with lower-case names, in the thread of the connection. A ValueError of it is the client's
    fault. ``handler`` sends the answers. ``making`` is entered while an answer, or a part of it, is made.
    Raises: OSError if the port cannot be had.
    """

    request_queue_size = 64
    allow_reuse_address = True

    def __init__(
        self,
        address: ListenAddress,
        name: str,
        answer: Callable[[str, Mapping[str, str]], Response],
        handler: type[RequestHandler] = RequestHandler,
        making: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.making = making
        self.address_family = socket.AF_INET6 if address.is_v6 else socket.AF_INET
        self.answer = answer
        self._name = name
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._waiting: dict[socket.socket, None] = {}  # in the order of their arrival
        self._answering: set[socket.socket] = set()
        self._lock = InterruptibleLock()
        super().__init__((address.host, address.port), handler)
        self._accepting = threading.Thread(target=self.serve_forever, args=(0.2,), name=f"{name}-accept", daemon=True)

    @property
    def url(self) -> str:
        """The address of the server, with a slash at the end."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}/"

    def start(self) -> None:
        """Start the accepting thread."""
        self._accepting.start()

    def end(self, deadline: Deadline) -> bool:
        """End the server and its connections. Return whether the accepting thread ended before the deadline."""
        if self._accepting.is_alive():
            self.shutdown()
            self._accepting.join(deadline.bounded(_PATIENCE))
        self._end_connections(deadline)
        self.server_close()
        return not self._accepting.is_alive()

    def server_bind(self) -> None:
        """Bind without the standard library's look-up of the host's name, which can take seconds."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread. It takes the place of the oldest one without a request if there are many."""
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name=f"{self._name}-request", daemon=True
        )
        with self._lock:
            oldest = next(iter(self._waiting)) if len(self._waiting) >= MOST_WAITING else None
            if oldest is not None:
                del self._waiting[oldest]
            self._connections[request] = thread
            self._waiting[request] = None
        if oldest is not None:
            _cut(oldest)  # its thread ends, since it waits for the request
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._forget(request)
            raise

    def admit(self, request: socket.socket, target: str) -> bool:
        """Return whether a request that has arrived may be answered, and count it as one that is."""
        with self._lock:
            self._waiting.pop(request, None)
            if len(self._answering) < MOST_CONNECTIONS:
                self._answering.add(request)
                return True
        return target.partition("?")[0] in HEALTH_PATHS

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
            self._waiting.pop(request, None)
            self._answering.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a failed connection; a client that went away or was too slow is no error."""
        quiet = isinstance(sys.exc_info()[1], OSError | HTTPException)
        log.log(logging.DEBUG if quiet else logging.ERROR, "a connection of %s failed", client_address, exc_info=True)

    def _end_connections(self, deadline: Deadline) -> None:
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
