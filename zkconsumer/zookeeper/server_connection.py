"""Kazoo's connection to a ZooKeeper server, with what it keeps to itself or does badly.

Responsible for: the negotiated timeout; when a connection is of use (kazoo says "connected" before it has logged in);
why none comes about; refused logins. Everything here runs on kazoo's connection thread, but for ``cut``, which any
thread may call, and the attributes, which any thread may read.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, KazooException, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Connect

from zkconsumer.core.backoff import backoff
from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryAuthenticationError
from zkconsumer.zookeeper.pipelined_connection import PipeliningConnection

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
PATIENCE = 0.25
PATIENCE_MOST = 1.5
"""The first answer on a connection is waited for that part of the time that kazoo would wait (a session's timeout,
shared by the servers), and at most so many seconds; twice as long after each try in vain. A server that takes a
connection while it starts, and never answers on it, would else cost the session of whoever was sent to it.
"""
_REFUSAL = re.compile("ALERT.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")
"""How OpenSSL calls what a server says that wants another certificate. With TLS 1.3 that comes after the handshake."""
FORCED_CLOSE = 0.5
"""Seconds before the deadline of a close at which the wire is cut."""
LONGEST_CLOSE = 10.0
"""Seconds after which it is cut though no deadline is near."""


class ServerConnection(PipeliningConnection):
    """A connection that is made again and again, until the client is stopped.

    ``negotiated`` is the session timeout that the server granted, in seconds; ``ready`` whether requests can be
    answered; ``settled`` is set once a first connection is ready or is refused; ``trouble`` says why there is none,
    empty while there is one; ``failures`` counts the tries that brought none, ``unanswered`` those since the last
    connection that a server took and did not answer;
    ``refusal`` is the error where that is the fault of a login or of a certificate.
    """

    negotiated: float = 0.0
    ready: bool = False
    trouble: str = ""
    failures: int = 0
    unanswered: int = 0
    refusal: RegistryAuthenticationError | None = None

    def prepare(self, who: str, on_ready: Callable[[], None] | None) -> None:
        """Call this before the client is started.

        Arguments: ``who`` is how a refusal calls us and the servers; ``on_ready`` is told of each login that
        succeeded, None where there is none (kazoo's own event says enough then).
        """
        self.settled = Event()
        self._who = who
        self._on_ready = on_ready
        self._dropped = False
        self._refusals = 0

    def _expand_client_hosts(self) -> Any:
        addresses = super()._expand_client_hosts()
        if not addresses:  # kazoo only logs it
            self.trouble = f"no address is known for {', '.join(sorted({host for host, _ in self.client.hosts}))}"
        return addresses

    def _connect(self, *args: Any, **keywords: Any) -> Any:
        self.ready = self._on_ready is None
        try:
            read_timeout, connect_timeout = super()._connect(*args, **keywords)
        except SessionExpiredError:
            raise
        except (ConnectionDropped, KazooTimeoutError) as failure:
            self.failures += 1
            self.unanswered += isinstance(failure, KazooTimeoutError)
            self.trouble = str(failure)
            why = _certificate_trouble(failure.__context__)
            if why is not None:
                self._refused(why)
            raise
        except KazooException as failure:
            # kazoo would give up for good, also where the server was only stopped in the middle of the login
            cut_off = isinstance(failure.__cause__, ConnectionDropped)
            if self._dropped or not cut_off:
                self._refused(str(failure.__cause__ or failure) or type(failure).__name__)
            self._dropped = cut_off
            raise ConnectionDropped(f"the login failed: {failure!r}") from failure
        # kazoo returns two thirds of what the server granted, in milliseconds
        self.negotiated = read_timeout * 1.5 / 1000.0
        self.ready, self.trouble, self.refusal = True, "", None
        self._dropped, self._refusals, self.unanswered = False, 0, 0
        self.settled.set()
        if self._on_ready is not None:
            self._on_ready()
        return read_timeout, connect_timeout

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        if isinstance(request, Connect):
            timeout = backoff(self.unanswered + 1, min(timeout * PATIENCE, PATIENCE_MOST), timeout)
        return super()._invoke(timeout, request, xid)

    def _refused(self, why: str) -> None:
        """Nobody but an operator cures this: tell it once, and try ever more seldom."""
        self._refusals += 1
        self.trouble = f"{self._who}: {why}"
        self.refusal = RegistryAuthenticationError(self.trouble)
        if self._refusals == 1:
            log.error("%s; it is tried again, ever more seldom", self.trouble)
        self.settled.set()
        self.client._stopped.wait(backoff(self._refusals, FIRST_PAUSE, LONGEST_PAUSE))

    def cut(self) -> None:
        """End the connection under whoever waits on it. The socket is kazoo's to close: without it his thread dies."""
        sock = self._socket
        if sock is not None:
            try:
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not TLS's own: that one changes the object
            except OSError:
                log.debug("cutting the connection to ZooKeeper failed", exc_info=True)


def _certificate_trouble(failure: BaseException | None) -> str | None:
    """Return what is wrong with the server's certificate or with ours; None where a failure is about neither."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return str(failure)
    if isinstance(failure, ssl.SSLError) and _REFUSAL.search(failure.reason or ""):
        return f"the server refuses our certificate (zookeeper.ssl.keystore.location), or that we have none: {failure}"
    return None


class Retired:
    """A client that is being stopped, on a thread of its own: its session ends at once where a server is reachable."""

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
        """Wait for its end, not beyond the deadline; towards that the wire is cut under it, for kazoo waits for an
        answer of a server that is silent.
        """
        if self.alive:
            self._thread.join(deadline.earlier(FORCED_CLOSE).bounded(LONGEST_CLOSE))
        if self.alive:
            self._connection.cut()
            self._thread.join(deadline.bounded(FORCED_CLOSE))
            if self.alive:
                log.warning("the ZooKeeper client did not stop in time; the session ends by its timeout")

    def _stop(self) -> None:
        for end in (self._client.stop, self._client.close):
            try:
                end()
            except Exception:
                log.debug("stopping the ZooKeeper client failed", exc_info=True)
