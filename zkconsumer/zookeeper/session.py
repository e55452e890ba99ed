"""A ZooKeeper session: connecting, the lease, the session's changes as events, and the replacement of a stuck client.

The session's requests are in ``zookeeper.node_requests``. ``member.zookeeper.session_monitor`` decides when a member
gives a session up. Any thread may call the operations. Kazoo's own threads run our two callbacks, which only pass an
event on or renew the lease: they block on nothing and decide nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from zkconsumer.errors import ChrootMissingError, RegistryError, RegistryUnavailableError, SessionLostError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.lease import Lease
from zkconsumer.zookeeper.node_requests import Requests, signed
from zkconsumer.zookeeper.server_connection import NamedHandler, Retired, ServerConnection, WatchingClient
from zkconsumer.zookeeper.zookeeper_security import NoSecrets, ZooKeeperSecurity

log = logging.getLogger(__name__)

RECONNECT_DELAY = 0.05
RECONNECT_DELAY_MAX = 1.0
NEVER = float("inf")
TELL_AFTER = 8.0
"""Seconds of waiting for the first connection after which that is logged."""
HEAD_START = 2 * RECONNECT_DELAY_MAX
"""Seconds that the old client has to connect after a server has accepted a new one."""
CONTESTED_WITHIN = 5.0
CONTESTED_AFTER = 4
"""Another client has our session if so many connections are granted and lost again within so many seconds."""


class SessionState(Enum):
    """The state of the session as ZooKeeper's client knows it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """An event: the session's state changed. ``session_id`` (0: none) and the lease's ``epoch`` are as of then."""

    state: SessionState
    session_id: int
    epoch: int


class Session(Requests):
    """A connection to ZooKeeper that lives as long as the connector.

    Arguments: ``hosts`` is ``h1:p1,h2:p2/chroot``; ``timeout`` the session timeout to ask for, in seconds;
    ``on_change`` is called with :class:`SessionChanged` from kazoo's connection thread and must not block;
    ``security`` has the logins, and the rights on created nodes.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout: float,
        on_change: Callable[[SessionChanged], None],
        security: ZooKeeperSecurity | None = None,
    ) -> None:
        super().__init__(hosts, security or ZooKeeperSecurity())
        self.lease = Lease()
        self._requested = timeout
        self._on_change = on_change
        self._client: KazooClient | None = None
        self._connection: ServerConnection | None = None
        self._closed = False
        self._told: SessionState | None = None
        self._candidate: tuple[KazooClient, ServerConnection] | None = None
        self._accepted = NEVER
        self._retired: list[Retired] = []
        self._former: set[int] = set()
        self._last_id = 0
        self._evictions: deque[tuple[float, int]] = deque(maxlen=64)

    # ---- life ----

    def open(self, deadline: Deadline) -> None:
        """Connect, and check that the chroot exists. A session that could not be opened is closed.

        Raises :class:`RegistryUnavailableError` if no server answered in time, :class:`ChrootMissingError`,
        :class:`RegistryAuthenticationError`.
        """
        try:
            client = self._start_and_wait(deadline)
            if self._await(client.exists_async("/"), deadline) is None:
                raise ChrootMissingError(
                    f"the chroot of zookeeper.connect {self.hosts!r} does not exist; "
                    "it is created by the brokers, so this is probably not their ZooKeeper path"
                )
        except BaseException:  # also an interrupt: the caller may not hold the session yet
            self.close(Deadline(1.0))
            raise
        self.touch()

    def _start_and_wait(self, deadline: Deadline) -> KazooClient:
        client, connection = self._make_client()
        self._client, self._connection = client, connection
        self._start(client, connection)
        told = Deadline(TELL_AFTER)
        # in slices: a signal handler may close us meanwhile, and must not touch the event
        while not connection.settled.wait(deadline.bounded(0.1)) and not deadline.expired and not self._closed:
            if told.expired:  # no other thread runs yet that could say it
                told = Deadline(None)
                log.warning(
                    "no ZooKeeper server of %r has answered for %.0f s: %s", self.hosts, TELL_AFTER, self.trouble
                )
        if self._closed:
            raise RegistryUnavailableError(f"the session with ZooKeeper at {self.hosts!r} was closed while it began")
        if connection.refusal is not None or not client.connected:
            raise connection.refusal or RegistryUnavailableError(
                f"no ZooKeeper server of {self.hosts!r} answered within the connection timeout "
                "(zookeeper.connection.timeout.ms); is the address right and the server up?"
                + (f" The last try: {connection.trouble}" if connection.trouble else "")
            )
        return client

    def _make_client(self) -> tuple[KazooClient, ServerConnection]:
        """Make a client of kazoo and its connection, not yet started. Its events count once it is ours."""
        options = self._security.options()
        retry = KazooRetry(max_tries=-1, delay=RECONNECT_DELAY, backoff=2, max_delay=RECONNECT_DELAY_MAX)
        try:
            client = WatchingClient(
                hosts=self.hosts,
                timeout=self._requested,
                read_only=False,
                connection_retry=retry,
                command_retry=KazooRetry(max_tries=0),
                logger=_kazoo_log(),
                **{"handler": NamedHandler(), **options},
            )
        except (ValueError, KazooException) as e:
            raise RegistryError(f"zookeeper.connect {self.hosts!r} is not usable: {e}") from e

        def changed(state: str) -> None:
            if self._client is client:
                self._changed(state)

        connection = ServerConnection(
            client, retry.copy(), logger=client.logger, sasl_options=options.get("sasl_options")
        )
        logs_in = bool(options.get("sasl_options") or options.get("auth_data"))
        connection.prepare(
            f"ZooKeeper at {self.hosts!r}, {self._security}",
            (lambda: changed(KazooState.CONNECTED)) if logs_in else None,
        )
        client._connection = connection
        client.add_listener(changed)
        return client, connection

    def _start(self, client: KazooClient, connection: ServerConnection) -> None:
        """Start a client, unless the session is closed. A close in the meantime ends it all the same."""
        try:
            if not self._closed:
                client.start_async()
        finally:
            self._retire_if_closed(client, connection)

    def _retire_if_closed(self, client: KazooClient, connection: ServerConnection) -> None:
        """Call this after a client was started or became ours.

        Otherwise it stays: a close before this stopped a client that did not run yet, or another client.
        """
        if self._closed:
            self._retire(client, connection)

    def close(self, deadline: Deadline) -> None:
        """End the session; its ephemeral nodes vanish at once if ZooKeeper is reachable.

        It does not wait beyond the deadline, unless the system gives no more threads. A second close ends what an
        interrupted one has left.
        """
        self._closed = True
        self.lease.void()
        self._drop_candidate()
        self._retire(self._client, self._connection)  # before it is forgotten, or an interrupt here would lose it
        self._client = None
        # our client first: the sessions of earlier ones have been given up
        for retired in self._retired[::-1]:
            retired.join(deadline)

    @property
    def session_id(self) -> int:
        """The current session's id as the servers show it (``ephemeralOwner``); 0 without one."""
        client = self._client
        identity = client.client_id if client is not None else None
        return signed(identity[0]) if identity is not None else 0

    def require_id(self) -> int:
        """Return the current session's id.

        Raises :class:`RegistryUnavailableError` without one, as while the connection is away. Ask before you read nodes
        to compare their owners. Otherwise no node is ours if the connection is lost in between.
        """
        if not (session_id := self.session_id):
            raise RegistryUnavailableError(f"there is no connection to ZooKeeper ({self.hosts})")
        return session_id

    @property
    def timeout(self) -> float:
        """The negotiated session timeout in seconds (the requested one before the first connection)."""
        return (self._connection.negotiated if self._connection is not None else 0.0) or self._requested

    @property
    def last_zxid(self) -> int:
        """The last transaction that an answer told us of; 0 without a connection."""
        client = self._client
        return int(client.last_zxid) if client is not None else 0

    @property
    def connected(self) -> bool:
        """Whether requests can be answered now, by a server that also takes writes."""
        client = self._client
        connection = self._connection
        ready = connection is not None and connection.ready
        return ready and client is not None and client.client_state == KeeperState.CONNECTED

    # ---- another client in place of one that is of no use ----

    @property
    def contested(self) -> bool:
        """Whether another client uses our session: many connections are granted and lost again in a few seconds.

        With a bad network many connections fail; here hardly any does.
        """
        since = monotonic() - CONTESTED_WITHIN
        recent = [failures for at, failures in self._evictions if at >= since]
        return len(recent) >= CONTESTED_AFTER and recent[-1] - recent[0] < len(recent) / 2

    @property
    def unanswered(self) -> bool:
        """Whether servers take our connections and do not answer on them.

        The connections alone keep the session alive at a server whose answers do not reach us.
        """
        return self._connection is not None and self._connection.unanswered > 0

    def is_former(self, session_id: int) -> bool:
        """Return whether we had and gave up this session, so that nobody uses its nodes any more."""
        return session_id in self._former

    def look_for_replacement(self) -> bool:
        """While our client gets no connection, try another one beside it. Returns whether it replaced our client.

        Call it every now and then. The other client replaces ours once a server has accepted it and still not ours.
        Servers whose data was wiped or set back never again accept a client that has seen later data, and kazoo never
        says so. If servers were only away, the old client has the first chance, since its session may live on.
        """
        if self._client is None or self.connected:
            self._drop_candidate()
            return False
        candidate = self._candidate  # another thread's close may drop it meanwhile
        if candidate is None:
            client, connection = self._make_client()
            self._candidate, self._accepted = (client, connection), NEVER
            self._start(client, connection)
            return False
        client, connection = candidate
        if not (client.connected and connection.ready):
            self._accepted = NEVER
        elif self._accepted == NEVER:
            self._accepted = monotonic()
        elif monotonic() >= self._accepted + HEAD_START:
            log.warning(
                "ZooKeeper accepts a new client and not ours (was its data set back?): going on with the new one"
            )
            self._candidate = None
            self._take(client, connection)
            return True
        return False

    def abandon(self) -> None:
        """Abandon the session and begin a new one. Returns at once; the usual events report the change."""
        if self._client is None:
            return
        self._drop_candidate()
        client, connection = self._make_client()
        self._take(client, connection)
        self._start(client, connection)

    def _take(self, client: KazooClient, connection: ServerConnection) -> None:
        self.lease.void()
        old = self._client, self._connection
        if self._last_id:
            self._former.add(self._last_id)  # kazoo knows no id while it is not connected
        self._evictions.clear()
        self._told = SessionState.LOST
        self._client, self._connection = client, connection
        self._retire(*old)
        self._retire_if_closed(client, connection)
        if client.connected:
            self._changed(KazooState.CONNECTED)

    def _drop_candidate(self) -> None:
        candidate = self._candidate
        if candidate is not None:
            self._retire(*candidate)
            self._candidate = None

    def _retire(self, client: KazooClient | None, connection: ServerConnection | None) -> None:
        if client is None or connection is None:
            return
        retired = Retired(client, connection)
        self._retired.append(retired)  # in place: a close of another thread waits for all clients in this list
        for ended in [one for one in self._retired if not one.alive]:
            with suppress(ValueError):  # another thread was first
                self._retired.remove(ended)

    @property
    def trouble(self) -> str:
        """Why there is no connection, if that is known; empty while there is one."""
        return self._connection.trouble if self._connection is not None else ""

    @property
    def local_address(self) -> str | None:
        """Our own IP address on the way to ZooKeeper, None while not connected."""
        return self._connection.local_address if self._connection is not None else None

    def touch(self) -> None:
        """Send a cheap request, whose answer renews the lease. Returns at once."""
        client = self._client
        if client is None or not self.connected:
            return
        sent_at = monotonic()
        session_id = self.session_id

        def answered(result: Any) -> None:
            if result.successful() and not self._closed and self.session_id == session_id:
                self.lease.renew(sent_at, self.timeout)

        client.exists_async("/").rawlink(answered)

    def _changed(self, state: str) -> None:
        # kazoo's connection thread: pass it on, decide nothing
        if state == KazooState.CONNECTED:
            if self._client is not None and self._client.client_state == KeeperState.CONNECTED_RO:
                return  # a server without a quorum, with old reads and no writes: this is no connection
            if self._connection is not None and not self._connection.ready:
                return  # the login is still to come
            event = SessionState.CONNECTED
            self._last_id = self.session_id
        elif state == KazooState.SUSPENDED:
            self.lease.suspend()
            if self._connection is not None:
                self._evictions.append((monotonic(), self._connection.failures))
            if self._told is SessionState.SUSPENDED:
                return  # a login failed: still suspended
            event = SessionState.SUSPENDED
        else:
            self.lease.void()
            event = SessionState.LOST
        self._told = event
        if not self._closed:
            self._on_change(SessionChanged(event, self.session_id, self.lease.epoch))

    def _connected_client(self) -> KazooClient:
        client = self._client
        if client is None:
            raise SessionLostError("the ZooKeeper session is closed")
        if not self.connected:
            raise RegistryUnavailableError(f"not connected to ZooKeeper ({self.hosts}); the client keeps trying")
        return client


def _kazoo_log() -> logging.Logger:
    """Return kazoo's log, with a filter against secrets. Its warnings are news: the session's owner tells troubles."""
    kazoo_log = logging.getLogger("zkconsumer.zookeeper.kazoo")
    if not any(isinstance(present, NoSecrets) for present in kazoo_log.filters):
        kazoo_log.addFilter(NoSecrets())
        kazoo_log.addFilter(_as_news)
    return kazoo_log


def _as_news(record: logging.LogRecord) -> bool:
    """Make a warning an INFO. Otherwise each try of a connection would be printed by programs without logging."""
    if record.levelno == logging.WARNING:
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True
