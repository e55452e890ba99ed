"""Kazoo's connection to a ZooKeeper server, its threads and its waits, where kazoo's own are not good enough.

Responsible for: the negotiated timeout; the readiness of a connection (kazoo says "connected" before it has logged in);
the reasons of failed connections; refused logins; many requests at a time; the end of a client. A connection runs on
kazoo's connection thread. Any thread may call ``cut`` and ``announce``, and read the attributes.
"""

from __future__ import annotations

import logging
import re
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, ConnectionDropped, KazooException, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler
from kazoo.protocol.serialization import Connect

from zkconsumer.errors import RegistryAuthenticationError
from zkconsumer.runtime.deadline import Deadline, backoff
from zkconsumer.runtime.interruptible_wait import WakeFlag
from zkconsumer.runtime.protocol_probe import WITHIN, instead_of_zookeeper

log = logging.getLogger(__name__)

Files = Sequence[Any]

AT_ONCE = 128
"""Requests in one write: answers are read in between."""

READ_AHEAD = 64 * 1024
"""Bytes to take from the socket at once."""

_LENGTH = 4

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
PATIENCE = 0.25
PATIENCE_MOST = 1.5
"""Limits of the wait for the first answer on a connection: a part of kazoo's limit (a session's timeout, shared by the
servers), and at most so many seconds. It doubles after each try in vain. Otherwise a starting server that takes a
connection and never answers on it would cost the session.
"""
_REFUSAL = re.compile("ALERT.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")
"""OpenSSL's name of the alert of a server that wants another certificate. With TLS 1.3 it follows the handshake."""
FORCED_CLOSE = 0.5
"""Seconds before the deadline of a close at which the wire is cut."""
LONGEST_CLOSE = 10.0
"""Seconds after which the wire is cut though no deadline is near."""


class PipeliningConnection(ConnectionHandler):  # type: ignore[misc]
    """A connection that writes all queued requests at once and reads all arrived answers at once.

    Kazoo sends and receives one request after the other, in some twenty system calls each. At each call another thread
    may take the interpreter. A rebalance sends hundreds of requests at once while the application's threads are busy.
    500 reads take a quarter of kazoo's CPU time here.

    It reads ahead only in kazoo's main loop, which handles all read answers before it waits for the socket again. The
    beginning of a connection, with the login, is read as kazoo does. Only kazoo's connection thread touches its state.
    """

    _arrived = b""
    _taken = 0  # of the arrived bytes: to cut off each answer would copy the others
    _reads_ahead = False
    _outgoing: bytearray | None = None
    _read_sock: Any

    def _connect(self, *args: Any, **keywords: Any) -> Any:
        self._arrived, self._taken = b"", 0  # by the connection before
        return super()._connect(*args, **keywords)

    # ---- sending ----

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        # each request is announced by a byte after it was queued; kazoo would take one byte away for each request
        announcements = self._read_sock
        announced = len(announcements.recv(AT_ONCE))
        outgoing = self._outgoing = bytearray()
        self._read_sock = _NoBytes()
        try:
            for _ in range(announced):
                super()._send_request(read_timeout, connect_timeout)
        finally:
            self._outgoing, self._read_sock = None, announcements
        # kazoo counts these requests as sent. If the write fails, the connection is dropped, and all requests fail.
        if outgoing:
            self._write(outgoing, connect_timeout)

    def announce(self) -> None:
        """Announce all queued requests once more. Any thread may call it.

        An interrupt may have come between the queueing of a request and its byte. Then the last request in the queue,
        the end of the session, would never be sent.
        """
        sock = self._write_sock
        if sock is not None:
            sock.send(bytes(len(self.client._queue)))

    def _write(self, msg: Any, timeout: float) -> None:
        if self._outgoing is None:
            super()._write(msg, timeout)
        else:
            self._outgoing += msg

    # ---- receiving ----

    def _read_socket(self, read_timeout: float) -> Any:
        self._reads_ahead = True
        try:
            response = super()._read_socket(read_timeout)
            while response != CLOSE_RESPONSE and self._more():
                response = super()._read_socket(read_timeout)
        finally:
            self._reads_ahead = False
        return response

    def _more(self) -> bool:
        """Return whether another whole answer has arrived, or TLS holds decrypted data outside of the socket."""
        begin, have = self._taken + _LENGTH, len(self._arrived)
        if have >= begin and have - begin >= int.from_bytes(self._arrived[self._taken : begin], "big"):
            return True
        return self._decrypted()

    def _decrypted(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _read(self, length: int, timeout: float) -> bytes:
        if not self._reads_ahead:
            return bytes(super()._read(length, timeout))
        if len(self._arrived) - self._taken < length:
            parts = [self._arrived[self._taken :]]
            lacking = length - len(parts[0])
            while lacking > 0:  # joined once: an answer of megabytes comes in many parts
                parts.append(self._receive(timeout))
                lacking -= len(parts[-1])
            self._arrived, self._taken = b"".join(parts), 0
        begin = self._taken
        self._taken = end = begin + length
        return self._arrived[begin:end]

    def _receive(self, timeout: float) -> bytes:
        """Wait for bytes and return them. Raises the errors of kazoo's own reading."""
        with self._socket_error_handling():
            while True:
                if not self._decrypted() and not self.handler.select([self._socket], [], [], timeout)[0]:
                    raise self.handler.timeout_exception("socket time-out during read")
                try:
                    data = bytes(self._socket.recv(READ_AHEAD))
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                if not data:
                    raise ConnectionDropped("socket connection broken")
                return data


class WatchersByPath(dict[str, tuple[Any, ...]]):
    """The watchers of kazoo's client by path. Kazoo has a set for each path, which takes half the memory of a watch."""

    def __init__(self) -> None:
        super().__init__()
        self._alone: dict[Any, tuple[Any, ...]] = {}

    def __getitem__(self, path: str) -> Any:
        """Return what takes another watcher of a path."""
        return _Adding(self, path)

    def add(self, path: str, watcher: Any) -> None:
        """Add a watcher of a path."""
        known = self.get(path)
        if known is None:
            self[path] = self._alone.setdefault(watcher, (watcher,))  # one tuple for all paths
        elif watcher not in known:
            self[path] = (*known, watcher)


class _Adding:
    __slots__ = ("_path", "_watchers")

    def __init__(self, watchers: WatchersByPath, path: str) -> None:
        self._watchers = watchers
        self._path = path

    def add(self, watcher: Any) -> None:
        self._watchers.add(self._path, watcher)


class WatchingClient(KazooClient):  # type: ignore[misc]
    """A client for a hundred thousand watches.

    When kazoo loses a connection, it calls every watcher to tell of that, one after the other. The session tells.
    """

    def _reset_watchers(self) -> None:
        self._child_watchers, self._data_watchers = WatchersByPath(), WatchersByPath()


class _NoBytes:
    """Stands in for the announcements while requests are sent whose announcements were taken away together."""

    def recv(self, size: int) -> bytes:
        """Return no byte."""
        del size
        return b""


class QueuedAnswer:
    """The answer to a request of :func:`queued_together` but the last one.

    Kazoo's connection thread sets it. Its results cost kazoo a lock and a condition each.
    """

    __slots__ = ("_error", "_value", "ready")

    def __init__(self) -> None:
        self.ready = False
        self._value: Any = None
        self._error: BaseException | None = None

    def set(self, value: Any = None) -> None:
        """Take the answer."""
        self._value, self.ready = value, True

    def set_exception(self, error: BaseException) -> None:
        """Take the error in place of an answer."""
        self._error, self.ready = error, True

    def get(self, timeout: float | None = None) -> Any:
        """Return the answer, or raise its error. Raises KazooTimeoutError, without waiting, while there is none."""
        del timeout
        if not self.ready:
            raise KazooTimeoutError
        if self._error is not None:
            raise self._error
        return self._value


def queued_together(client: KazooClient, requests: Sequence[Any]) -> list[Any]:
    """Queue requests, at least one, and announce them at once. Return their results, in order.

    Wait for the last one only: the server answers in order. Kazoo announces each request by a system call of its own,
    and at each the connection thread may take the interpreter.
    """
    last = client.handler.async_result()
    results: list[Any] = [*(QueuedAnswer() for _ in requests[1:]), last]
    first = results[0]
    if client._call(requests[0], first) is False:
        for result in results[1:]:
            result.set_exception(first._error)
        return results
    if len(requests) > 1:
        client._queue.extend(zip(requests[1:], results[1:], strict=True))
        try:
            client._connection._write_sock.send(bytes(len(requests) - 1))
        except (AttributeError, OSError):  # it was closed meanwhile
            for result in results[1:]:
                result.set_exception(ConnectionClosedError("Connection has been closed"))
    return results


class ServerConnection(PipeliningConnection):
    """A connection to a ZooKeeper server. It reconnects until the client is stopped.

    - ``negotiated``: the session timeout that the server granted, in seconds;
    - ``ready``: whether requests can be answered;
    - ``settled``: set once a first connection is ready or refused; one thread waits for it, which may be interrupted;
    - ``trouble``: why there is no connection, empty while there is one;
    - ``failures``: the number of failed tries;
    - ``unanswered``: the number of connections that a server took and did not answer, since the last good one;
    - ``refusal``: the error of a refused login or certificate.
    """

    negotiated: float = 0.0
    ready: bool = False
    trouble: str = ""
    failures: int = 0
    unanswered: int = 0
    refusal: RegistryAuthenticationError | None = None

    def prepare(self, who: str, on_ready: Callable[[], None] | None) -> None:
        """Call this before the client is started.

        Arguments: ``who`` names us and the servers in a refusal; ``on_ready`` is told of each successful login, None if
        there is no login (kazoo's own event is enough then).
        """
        self.settled = WakeFlag()
        self._who = who
        self._on_ready = on_ready
        self._dropped = False
        self._probed: dict[tuple[str, int], str] = {}
        self._refusals = 0

    def _expand_client_hosts(self) -> Any:
        addresses = super()._expand_client_hosts()
        if not addresses:  # kazoo only logs it
            self.trouble = f"no address is known for {', '.join(sorted({host for host, _ in self.client.hosts}))}"
        return addresses

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self.ready = self._on_ready is None
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except SessionExpiredError:
            raise
        except (ConnectionDropped, KazooTimeoutError) as failure:
            self.failures += 1
            self.unanswered += isinstance(failure, KazooTimeoutError)
            self.trouble = self._wrong_port(hostip, int(port)) or str(failure)
            why = _certificate_trouble(failure.__context__)
            if why is not None:
                self._refused(why)
            raise
        except KazooException as failure:
            # kazoo would give up for good, even if the server was only stopped in the middle of the login
            cut_off = isinstance(failure.__cause__, ConnectionDropped)
            if self._dropped or not cut_off:
                self._refused(str(failure.__cause__ or failure) or type(failure).__name__)
            self._dropped = cut_off
            raise ConnectionDropped(f"the login failed: {failure!r}") from failure
        # kazoo returns two thirds of the granted timeout, in milliseconds
        self.negotiated = read_timeout * 1.5 / 1000.0
        self.ready, self.trouble, self.refusal = True, "", None
        self._dropped, self._refusals, self.unanswered = False, 0, 0
        self.settled.set()
        if self._on_ready is not None:
            self._on_ready()
        return read_timeout, connect_timeout

    def _wrong_port(self, host: str, port: int) -> str:
        """Return what answers in place of ZooKeeper, if that is known. A server is asked once, and not after a session.

        Otherwise each try of a restarting ZooKeeper would have a second connection.
        """
        if self.negotiated or self._socket is None:  # ZooKeeper has answered before, or nobody listens now
            return ""
        where = host, port
        if where not in self._probed:
            self._probed[where] = instead_of_zookeeper(host, port, Deadline(2 * WITHIN))
        return self._probed[where]

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        if isinstance(request, Connect):
            timeout = backoff(self.unanswered + 1, min(timeout * PATIENCE, PATIENCE_MOST), timeout)
        return super()._invoke(timeout, request, xid)

    def _refused(self, why: str) -> None:
        """Note a refusal, which only an operator can cure: log it once, and try ever more seldom."""
        self._refusals += 1
        self.trouble = f"{self._who}: {why}"
        self.refusal = RegistryAuthenticationError(self.trouble)
        if self._refusals == 1:
            log.error("%s; it is tried again, ever more seldom", self.trouble)
        self.settled.set()
        self.client._stopped.wait(backoff(self._refusals, FIRST_PAUSE, LONGEST_PAUSE))

    @property
    def local_address(self) -> str | None:
        """Our own IP address on this connection, None while not connected."""
        sock = self._socket
        try:
            return str(sock.getsockname()[0]) if sock is not None else None
        except OSError:
            return None

    def cut(self) -> None:
        """End the connection under a waiting call. Kazoo must close the socket: without it its thread dies."""
        sock = self._socket
        if sock is not None:
            try:
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's own: that one changes the object
            except OSError:
                log.debug("cutting the connection to ZooKeeper failed", exc_info=True)


def _certificate_trouble(failure: BaseException | None) -> str | None:
    """Return the fault of the server's certificate or of ours; None if a failure is about neither."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return str(failure)
    if isinstance(failure, ssl.SSLError) and _REFUSAL.search(failure.reason or ""):
        return f"the server refuses our certificate (zookeeper.ssl.keystore.location), or that we have none: {failure}"
    return None


class Retired:
    """Stops a client on a thread of its own. Its session ends at once if a server is reachable.

    Several may stop the same client.
    """

    def __init__(self, client: KazooClient, connection: ServerConnection) -> None:
        self._client = client
        self._connection = connection
        self._thread = Thread(target=self._stop, name="zkconsumer-zookeeper-close", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread is to be had, so nobody could cut the wire later
            connection.cut()
            self._stop()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def join(self, deadline: Deadline) -> None:
        """Wait for its end, not beyond the deadline. Shortly before that the wire is cut, since kazoo waits for an
        answer of a silent server.
        """
        if self.alive:
            self._thread.join(deadline.earlier(FORCED_CLOSE).bounded(LONGEST_CLOSE))
        if self.alive:
            self._connection.cut()
            self._thread.join(deadline.bounded(FORCED_CLOSE))
            if self.alive:
                log.warning("the ZooKeeper client did not stop in time; the session ends by its timeout")

    def _stop(self) -> None:
        # client.stop() does nothing for a client that is marked as stopped, even if its start went on after that
        handler, connection = self._client.handler, self._connection
        for end in (connection.announce, self._client.stop, handler.stop, connection.stop, self._client.close):
            try:
                end()
            except Exception:
                log.debug("stopping the ZooKeeper client failed", exc_info=True)


class NamedHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's handler with named threads and a cheaper wait. The session owns the threads; they end with its close."""

    def start(self) -> None:
        """Start the two threads for callbacks, or none. Raises RuntimeError where the system gives no more threads."""
        try:
            super().start()
        except BaseException:  # also an interrupt: it waits for each thread to begin
            self._running = True  # or stop() would leave the thread that was started
            self.stop()
            raise

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Thread:
        """Start a thread for one of kazoo's loops."""
        role = "connection" if getattr(func, "__name__", "") == "zk_loop" else "callbacks"
        thread = Thread(target=func, args=args, kwargs=kwargs, name=f"zkconsumer-zookeeper-{role}", daemon=True)
        thread.start()
        return thread

    def select(
        self, rlist: Files, wlist: Files, xlist: Files, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until one of these can be read or written, at most ``timeout`` seconds, as ``select.select`` does.

        It takes one system call; kazoo opens and closes an ``epoll`` object for each wait. Raises ValueError for a
        closed file.
        """
        del xlist  # never used by kazoo
        wanted: dict[int, int] = {}
        for files, kind in ((rlist, select.POLLIN), (wlist, select.POLLOUT)):
            for file in files:
                wanted[_number(file)] = wanted.get(_number(file), 0) | kind
        poller = select.poll()
        for number, kinds in wanted.items():
            poller.register(number, kinds)
        # an error or a hang-up counts as both, since reading and writing report it
        ready = dict(poller.poll(None if timeout is None else timeout * 1000))
        return (
            [file for file in rlist if ready.get(_number(file), 0) & ~select.POLLOUT],
            [file for file in wlist if ready.get(_number(file), 0) & ~select.POLLIN],
            [],
        )


def _number(file: Any) -> int:
    number = file if isinstance(file, int) else file.fileno()
    if number < 0:
        raise ValueError("the file is closed")
    return int(number)
