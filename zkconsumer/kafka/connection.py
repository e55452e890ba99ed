"""One TCP connection whose every wait ends: by its deadline, by the peer, or by ``close()`` from another thread.

Threads: one thread at a time connects, sends and receives (the owner); any thread may call ``close()``. Guard:
``_lock`` (``_changed`` is its condition) guards ``_closed`` and ``socket``. The owner takes it only to give the socket
up, since each small response has several uses of the socket. The owner writes ``busy`` and then reads ``_closed``;
``close()`` writes ``_closed`` and then reads ``busy``. So the owner sees ``_closed``, or ``close()`` sees ``busy``
(under CPython's GIL).

The file descriptor is closed only when no call is inside the socket. ``close()`` shuts the connection down, which wakes
the owner out of a blocked system call, and the owner closes the descriptor on its way out. Otherwise its number could
go to another file while the owner still reads from it.

Mirrors the original's BlockingChannel (blocking socket, TCP_NODELAY, receive buffer). Differs in that connecting, name
look-up and sending are bounded too. A blocked call can be woken portably; the original interrupts threads.

:func:`choose_endpoint` chooses the address of a broker among those that it registered. The original knows PLAINTEXT
only and takes a broker's first such endpoint. It fails its whole leader search if any live broker has none (spec:
BrokerEndPointNotAvailableException). Here the choice is made for one broker at a time, so a broker without a usable
endpoint harms only its own partitions.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError, NoReachableEndpointError
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock


def address(host: str, port: int) -> str:
    """Return ``host:port`` as text, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return (host, port) of ``host:port``, ``[v6]:port`` or, with a default port, ``host`` alone.

    Raises: ValueError for anything else.
    """
    rest = text.strip()
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket:
            raise ValueError(f"{text!r}: the bracket is not closed")
        colon, port = rest[:1], rest[1:]
    elif rest.count(":") > 1:
        raise ValueError(f"{text!r}: put an IPv6 host into brackets")
    else:
        host, colon, port = rest.partition(":")
    if not colon and not port and default_port is not None:
        return host, default_port
    if colon != ":" or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def choose_endpoint(
    endpoints: Iterable[Endpoint], security_protocol: str, address_map: Mapping[str, str] | None = None
) -> Endpoint:
    """Return the address of one broker: its first endpoint of the wanted protocol, mapped by ``address_map``.

    Arguments: ``endpoints`` as the broker registered them; ``security_protocol`` as in ``security.protocol``.
    ``address_map`` (``broker.address.map``) is for brokers in containers or behind tunnels. It maps a registered
    ``host:port``, or a ``host`` alone, to ``host:port``, or to a ``host`` that keeps the port. Its keys are in lower
    case and IPv6 hosts in brackets, as ``config.broker_addresses`` has them. The longer key wins. Raises:
    NoReachableEndpointError with the broker and its endpoints; ValueError for a target that is no address.
    """
    offered = tuple(endpoints)
    wanted = security_protocol.upper()
    for endpoint in offered:
        if endpoint.protocol.upper() == wanted:
            return _mapped(endpoint, address_map or {})
    who = f"broker {offered[0].broker_id}" if offered else "the broker"
    offers = ", ".join(f"{e.protocol}://{address(e.host, e.port)}" for e in offered) or "no endpoint at all"
    raise NoReachableEndpointError(f"{who} offers {offers}; security.protocol={security_protocol} is wanted")


def _mapped(endpoint: Endpoint, address_map: Mapping[str, str]) -> Endpoint:
    registered = address(endpoint.host, endpoint.port).lower()
    target = address_map.get(registered, address_map.get(registered.rpartition(":")[0]))
    if target is None:
        return endpoint
    host, port = parse_address(target, endpoint.port)
    return replace(endpoint, host=host, port=port)


Wrap = Callable[[socket.socket, str], socket.socket]
"""Puts a layer such as TLS over a connected socket, without any exchange yet: (socket, host name) -> socket."""

_CUT_SHORT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)  # count as a closed connection
_TIMEVAL = struct.Struct("@ll").pack  # struct timeval: seconds, microseconds
_SLICE_SECONDS = 0.25  # how often a connect looks for close(), which does not wake poll() on a half-open socket


class PeerClosedError(BrokerUnavailableError):
    """The peer closed the connection, which is how old brokers answer an unknown request."""


class Connection:
    """A connection to one address. ``close()`` is final; after an error ``connect()`` may be called again.

    Arguments: ``name`` is the peer's, for errors; ``receive_buffer`` in bytes, 0 leaves it to the system.
    """

    def __init__(self, name: str, host: str, port: int, receive_buffer: int = 0) -> None:
        self.name = f"{name} at {address(host, port)}"
        self._host = host
        self._port = port
        self._receive_buffer = receive_buffer
        self._lock = InterruptibleLock()  # code enters the lock itself, not the condition; see streams.stream_queue
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self.busy = False
        self.socket: socket.socket | None = None
        self._allowed: dict[int, float] = {}
        self._secured = False  # by TLS
        self._reached = False

    def connect(self, deadline: Deadline, limit: float, wrap: Wrap | None = None) -> None:
        """Connect, dropping an older connection first.

        The name's addresses are tried in turn, each with its share of the time.

        Arguments: the whole takes no longer than ``deadline`` and ``limit`` seconds; ``wrap`` adds TLS. Raises:
        BrokerUnavailableError.
        """
        self.drop()
        self._reached = False
        deadline = Deadline(deadline.bounded(limit))
        found = self._resolve(deadline)
        reason = "no address"
        for number, (family, kind, protocol, _, target) in enumerate(found):
            share = deadline.bounded(limit) / (len(found) - number)
            try:
                self._connect_one((family, kind, protocol), target, Deadline(share))
                break
            except OSError as failure:
                reason = str(failure) or type(failure).__name__
        else:
            raise self._unavailable(f"cannot be reached: {reason}")
        self._reached = True
        if wrap is not None:
            self._wrap(wrap, deadline, limit)

    @property
    def reached(self) -> bool:
        """Whether the last :meth:`connect` reached the peer, and nobody has closed this since."""
        return self._reached and not self._closed

    def send(self, data: bytes, deadline: Deadline, limit: float) -> None:
        """Send all of ``data`` within the deadline and ``limit`` seconds. Raises BrokerUnavailableError."""
        seconds = deadline.bounded(limit)
        end = monotonic() + seconds
        rest: bytes | memoryview = data
        self.busy = True  # first: see the module's docstring
        sock = self.socket
        if sock is None or self._closed:
            raise self._unusable()
        try:
            while True:
                if seconds <= 0:
                    raise self._unavailable("no time was left to send the request")
                if not seconds <= self._allowed.get(socket.SO_SNDTIMEO, 0.0) <= seconds * 1.02:
                    self.set_time_limit(sock, socket.SO_SNDTIMEO, seconds)
                sent = sock.send(rest)
                if sent == len(rest):
                    break
                rest = memoryview(rest)[sent:]
                seconds = end - monotonic()
        except BaseException as failure:
            self._failed(failure)
            raise
        self.busy = False
        if self._closed:
            raise self._unusable()

    def receive(self, view: memoryview, deadline: Deadline, limit: float) -> None:
        """Fill ``view``. Each read may wait for ``limit`` seconds, all of them for the deadline.

        A plain socket is read in one call that lets other threads run until the view is full. More calls would each
        wait for a thread that computes meanwhile, up to five milliseconds. Raises: BrokerUnavailableError, also when
        the peer closes the connection before the view is full.
        """
        self.receive_some(view, len(view), deadline, limit, socket.MSG_WAITALL)

    def receive_some(self, view: memoryview, least: int, deadline: Deadline, limit: float, flags: int = 0) -> int:
        """Receive the first ``least`` bytes of ``view``, and the bytes that have come with them; returns their number.

        Otherwise as :meth:`receive`. Arguments: ``flags`` are those of the system call, for a plain socket.
        """
        have = 0
        self.busy = True  # first: see the module's docstring
        sock = self.socket
        if sock is None or self._closed:
            raise self._unusable()
        try:
            while have < least:
                seconds = deadline.bounded(limit)
                if seconds <= 0:
                    raise TimeoutError
                if not seconds <= self._allowed.get(socket.SO_RCVTIMEO, 0.0) <= seconds * 1.02:
                    self.set_time_limit(sock, socket.SO_RCVTIMEO, seconds)
                part = view[have:] if have else view
                count = sock.recv_into(part) if self._secured else sock.recv_into(part, 0, flags)
                if not count:
                    raise ConnectionResetError("closed the connection")
                have += count
        except BaseException as failure:
            self._failed(failure)
            raise
        self.busy = False
        if self._closed:
            raise self._unusable()
        return have

    def set_time_limit(self, sock: socket.socket, option: int, seconds: float) -> None:
        """Set the time limit of the next system call to ``seconds``, or a fiftieth more.

        So most calls need not set it anew.
        """
        if self._secured:
            option = 0  # one time limit for both ways
        if seconds <= self._allowed.get(option, 0.0) <= seconds * 1.02:
            return
        seconds *= 1.01
        if self._secured:
            sock.settimeout(seconds)
        else:
            sock.setsockopt(socket.SOL_SOCKET, option, _timeval(seconds))
        self._allowed[option] = seconds

    def drop(self) -> None:
        """Give the socket up, by the owner; ``connect()`` may make a new one."""
        with self._lock:
            sock, self.socket, self.busy = self.socket, None, False
        if sock is not None:
            _close_quietly(sock)

    def close(self) -> None:
        """Close for good, from any thread, without waiting. A blocked call raises BrokerUnavailableError."""
        with self._lock:
            self._closed = True
            sock = self.socket
            if sock is not None:
                if self.busy:
                    with suppress(OSError):
                        socket.socket.shutdown(
                            sock, socket.SHUT_RDWR
                        )  # not TLS's own shutdown, which changes the object
                else:
                    self.socket = None
                    _close_quietly(sock)
            self._changed.notify_all()

    # -- inside

    @contextmanager
    def using(self) -> Iterator[socket.socket]:
        """Return the socket, marked as in use; any failure drops it and leaves as BrokerUnavailableError."""
        self.busy = True  # first: see the module's docstring
        sock = self.socket
        if sock is None or self._closed:
            raise self._unusable()
        try:
            yield sock
        except BaseException as failure:
            self._failed(failure)
            raise
        self.busy = False
        if self._closed:
            raise self._unusable()

    # ``send`` and ``receive_some`` do the same in place: a small response has one of each, and calls take longer.

    def _unusable(self) -> BrokerUnavailableError:
        """Return why the socket cannot be used, which was marked as in use. A closed one is given up."""
        if self._closed:
            self.drop()
            return self._unavailable("the channel was closed")
        self.busy = False
        return self._unavailable("not connected")

    def _failed(self, failure: BaseException) -> None:
        """Drop the socket after a failure while it was in use, and raise what the failure means."""
        self.drop()
        if isinstance(failure, (OSError, BrokerUnavailableError, ValueError)):
            raise self._explained(failure) from failure

    def _explained(self, failure: Exception) -> BrokerError:
        if self._closed:
            return self._unavailable("the channel was closed")
        if isinstance(failure, BrokerUnavailableError):
            return failure
        if isinstance(failure, (TimeoutError, BlockingIOError)):
            return self._unavailable("did not answer in time")
        if isinstance(failure, (ConnectionResetError, BrokenPipeError)):
            return PeerClosedError(f"{self.name}: closed the connection")
        if isinstance(failure, ssl.SSLError) and not isinstance(failure, _CUT_SHORT):
            return BrokerAuthenticationError(f"{self.name}: TLS failed: {failure}")
        return self._unavailable(str(failure) or type(failure).__name__)

    def _unavailable(self, reason: str) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"{self.name}: {reason}")

    def _resolve(self, deadline: Deadline) -> list[tuple[Any, ...]]:
        """Return the addresses of the host name. A number needs no look-up. A name is looked up on a thread of its own,
        because the system's look-up has no time limit. The thread ends when the system gives up, and is waited for only
        until the deadline.
        """
        host = self._host or None  # an empty host in the broker's node: Java connects to the loopback address then
        with suppress(socket.gaierror):
            return socket.getaddrinfo(host, self._port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
        answer: list[list[tuple[Any, ...]] | OSError | UnicodeError] = []

        def look_up() -> None:
            found: list[tuple[Any, ...]] | OSError | UnicodeError
            try:
                found = list(socket.getaddrinfo(host, self._port, 0, socket.SOCK_STREAM))
            except (OSError, UnicodeError) as failure:
                found = failure
            with self._lock:
                answer.append(found)
                self._changed.notify_all()

        threading.Thread(target=look_up, name=f"zkconsumer-resolve-{self._host}", daemon=True).start()
        with self._lock:
            self._changed.wait_for(lambda: answer or self._closed, deadline.remaining())
            if self._closed:
                raise self._unavailable("the channel was closed")
        if not answer:
            raise self._unavailable("its name was not resolved in time")
        if isinstance(answer[0], list):
            return answer[0]
        raise self._unavailable(f"its name cannot be resolved: {answer[0]}") from answer[0]

    def _connect_one(self, way: tuple[int, int, int], target: Any, deadline: Deadline) -> None:
        self._allowed, self._secured = {}, False
        try:
            with self._lock:
                if self._closed:
                    raise self._unavailable("the channel was closed")
                sock, self.busy = socket.socket(*way), True
                self.socket = sock
            sock.setblocking(False)
            if self._receive_buffer > 0:  # before connecting, so that the window is offered in the handshake
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._await_connected(sock, sock.connect_ex(target), deadline)
            # From here on the system itself ends a call in time. A timeout of Python's would poll before each call, and
            # let other threads run, which lasts until a computing thread has had its turn.
            sock.setblocking(True)
            if sock.getsockname() == sock.getpeername():  # a free local port may connect to itself
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            with self._lock:
                self.busy = False
                if self._closed:
                    raise self._unavailable("the channel was closed")
        except BaseException as failure:  # also an interrupt: close() leaves a socket in use to its user
            self.drop()
            if self._closed and isinstance(failure, OSError):
                raise self._unavailable("the channel was closed") from None
            raise

    def _await_connected(self, sock: socket.socket, code: int, deadline: Deadline) -> None:
        if code == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            while not self._closed and not poll.poll(1000 * deadline.bounded(_SLICE_SECONDS)):
                if deadline.expired:
                    raise TimeoutError(errno.ETIMEDOUT, "no answer in time")
            code = errno.ECONNABORTED if self._closed else sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _wrap(self, wrap: Wrap, deadline: Deadline, limit: float) -> None:
        with self.using() as sock:
            wrapped = wrap(sock, self._host)
            with self._lock:  # before the handshake, so that close() finds the socket that is waited on
                self.socket = wrapped
            if isinstance(wrapped, ssl.SSLSocket):
                self._allowed, self._secured = {}, True
                wrapped.settimeout(max(deadline.bounded(limit), 0.001))
                wrapped.do_handshake()


def _timeval(seconds: float) -> bytes:
    """Return the system's form of a time limit; never 0, which would be no limit."""
    return _TIMEVAL(*divmod(max(1, round(seconds * 1_000_000)), 1_000_000))


def _close_quietly(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.close()
