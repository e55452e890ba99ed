"""One ZooKeeper session: connecting, deadlines on every request, the lease, and what happened to the session as events.

Any thread may call the operations. Kazoo's own threads run our two callbacks, which only pass an event on or renew
the lease: nothing there blocks, nothing there decides. Each operation sends at once, waits no longer than its
deadline, and raises one of this package's errors; lists of paths are sent in one go and answered in one round trip
(pipelined).

The original (zkclient) retries every operation without limit across connection loss and even expiry, so that a claim
begun in one session could be executed in the next. Here an operation fails, and who owns the group's state looks again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    ChrootMissingError,
    NotPermittedError,
    RegistryAuthenticationError,
    RegistryError,
    RegistryUnavailableError,
    SessionLostError,
)
from zkconsumer.registry.connection import Retired, ServerConnection
from zkconsumer.registry.handler import NamedHandler
from zkconsumer.registry.lease import Lease
from zkconsumer.registry.security import NoSecrets, RegistrySecurity
from zkconsumer.registry.transaction import NodeFailure, Transaction, failure_of

log = logging.getLogger(__name__)

RECONNECT_DELAY = 0.05
RECONNECT_DELAY_MAX = 1.0
PARENT_DATA = b""
NEVER = float("inf")
HEAD_START = 2 * RECONNECT_DELAY_MAX
"""Seconds that the old client has to connect after a server has accepted a new one."""
CONTESTED_WITHIN = 5.0
CONTESTED_AFTER = 4
"""So many connections granted and taken away again within so many seconds: another client has our session."""


class NodeEventKind(Enum):
    """What happened to a watched node."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children changed"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A watch fired; it has to be set again."""

    kind: NodeEventKind
    path: str


Watch = Callable[[NodeEvent], None]

_KINDS = {
    EventType.CREATED: NodeEventKind.CREATED,
    EventType.DELETED: NodeEventKind.DELETED,
    EventType.CHANGED: NodeEventKind.CHANGED,
    EventType.CHILD: NodeEventKind.CHILDREN,
}


class SessionState(Enum):
    """What ZooKeeper's client knows of the session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The session's state changed. ``session_id`` is that of the session as of then (0: none), ``epoch`` the
    lease's.
    """

    state: SessionState
    session_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node's content and those parts of its stat that decisions need."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int


class Session:
    """A connection to ZooKeeper that lives as long as the connector.

    Arguments: ``hosts`` is ``h1:p1,h2:p2/chroot``; ``timeout`` the session timeout to ask for, in seconds;
    ``on_change`` is called with :class:`SessionChanged` from kazoo's connection thread and must not block;
    ``security`` is how to log in, and the rights on what is created.
    """

    def __init__(
        self,
        hosts: str,
        *,
        timeout: float,
        on_change: Callable[[SessionChanged], None],
        security: RegistrySecurity | None = None,
    ) -> None:
        self.hosts = hosts
        self.lease = Lease()
        self._requested = timeout
        self._on_change = on_change
        self._security = security or RegistrySecurity()
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
        self._watchers: dict[Watch, Callable[[WatchedEvent], None]] = {}

    # ---- life ----

    def open(self, deadline: Deadline) -> None:
        """Connect, and see that the chroot exists.

        Raises: :class:`RegistryUnavailableError` when no server answered in time, :class:`ChrootMissingError`,
        :class:`RegistryAuthenticationError`.
        """
        client, connection = self._start_client()
        self._client, self._connection = client, connection
        client.start_async()
        while not connection.settled.wait(deadline.bounded(0.1)) and not deadline.expired and not self._closed:
            pass  # in slices, for whoever closes us meanwhile must not touch the event: he may be a signal handler
        if connection.refusal is not None or not client.connected:
            self.close(Deadline(1.0))
            raise connection.refusal or RegistryUnavailableError(
                f"no ZooKeeper server of {self.hosts!r} answered within the connection timeout "
                "(zookeeper.connection.timeout.ms); is the address right and the server up?"
                + (f" The last try: {connection.trouble}" if connection.trouble else "")
            )
        try:
            chroot_exists = self._await(client.exists_async("/"), deadline) is not None
        except RegistryError:
            self.close(Deadline(1.0))
            raise
        if not chroot_exists:
            self.close(Deadline(1.0))
            raise ChrootMissingError(
                f"the chroot of zookeeper.connect {self.hosts!r} does not exist; "
                "it is created by the brokers, so this is probably not their ZooKeeper path"
            )
        self.touch()

    def _start_client(self) -> tuple[KazooClient, ServerConnection]:
        """A client of kazoo's and its connection, not yet started. What it has to tell counts once it is ours."""
        options = self._security.options()
        retry = KazooRetry(max_tries=-1, delay=RECONNECT_DELAY, backoff=2, max_delay=RECONNECT_DELAY_MAX)
        try:
            client = KazooClient(
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

    def close(self, deadline: Deadline) -> None:
        """End the session; its ephemeral nodes vanish at once where ZooKeeper is reachable. Never waits beyond the
        deadline.
        """
        self._closed = True
        self.lease.void()
        client, connection = self._client, self._connection
        if client is None or connection is None:
            return
        self._client = None
        self._drop_candidate()
        self._retired.append(Retired(client, connection))
        for retired in self._retired:
            retired.join(deadline)

    @property
    def session_id(self) -> int:
        """The current session's id as the servers show it (``ephemeralOwner``); 0 without one."""
        client = self._client
        identity = client.client_id if client is not None else None
        return _signed(identity[0]) if identity is not None else 0

    @property
    def timeout(self) -> float:
        """The negotiated session timeout in seconds (the requested one before the first connection)."""
        return (self._connection.negotiated if self._connection is not None else 0.0) or self._requested

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
        """Whether somebody else uses our session: connections are granted and taken away again, many in a few
        seconds, while hardly one fails to come about (as it does with a bad network).
        """
        since = monotonic() - CONTESTED_WITHIN
        recent = [failures for at, failures in self._evictions if at >= since]
        return len(recent) >= CONTESTED_AFTER and recent[-1] - recent[0] < len(recent) / 2

    def is_former(self, session_id: int) -> bool:
        """Whether this session was ours and given up by ourselves: what is left of it nobody uses any more."""
        return session_id in self._former

    def look_for_replacement(self) -> bool:
        """While our client gets no connection: try with another one beside it, and take that once a server has accepted
        it and still not ours. Call it again every now and then; returns whether the client was replaced.

        Servers whose data was wiped or set back never accept a client again that has seen later data, and kazoo never
        says so. Where they were only away, the old client has its chance first, since its session may live on.
        """
        if self._client is None or self.connected:
            self._drop_candidate()
            return False
        if self._candidate is None:
            client, connection = self._start_client()
            self._candidate, self._accepted = (client, connection), NEVER
            client.start_async()
            return False
        client, connection = self._candidate
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
        """Give the session up and go on with a new one. Returns at once; the state's change is told as always."""
        if self._client is None:
            return
        self._drop_candidate()
        client, connection = self._start_client()
        self._take(client, connection)
        client.start_async()

    def _take(self, client: KazooClient, connection: ServerConnection) -> None:
        self.lease.void()
        old = self._client, self._connection
        if self._last_id:
            self._former.add(self._last_id)  # kazoo knows of none while it is not connected
        self._evictions.clear()
        self._told = SessionState.LOST
        self._client, self._connection = client, connection
        self._retire(*old)
        if client.connected:
            self._changed(KazooState.CONNECTED)

    def _drop_candidate(self) -> None:
        if self._candidate is not None:
            candidate, self._candidate = self._candidate, None
            self._retire(*candidate)

    def _retire(self, client: KazooClient | None, connection: ServerConnection | None) -> None:
        self._retired = [retired for retired in self._retired if retired.alive]
        if client is not None and connection is not None:
            self._retired.append(Retired(client, connection))

    @property
    def trouble(self) -> str:
        """Why there is no connection, as far as it is known; empty while there is one."""
        return self._connection.trouble if self._connection is not None else ""

    @property
    def local_address(self) -> str | None:
        """Our own IP address on the way to ZooKeeper, None while not connected."""
        sock = self._connection._socket if self._connection is not None else None
        try:
            return str(sock.getsockname()[0]) if sock is not None else None
        except OSError:
            return None

    def touch(self) -> None:
        """Ask for something cheap, so that its answer renews the lease. Returns at once."""
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
                return  # a server without a quorum: reads are old and writes refused, so this is no connection
            if self._connection is not None and not self._connection.ready:
                return  # the login is still to come
            event = SessionState.CONNECTED
            self._last_id = self.session_id
        elif state == KazooState.SUSPENDED:
            self.lease.suspend()
            if self._connection is not None:
                self._evictions.append((monotonic(), self._connection.failures))
            if self._told is SessionState.SUSPENDED:
                return  # a login failed, so what was told is still so
            event = SessionState.SUSPENDED
        else:
            self.lease.void()
            event = SessionState.LOST
        self._told = event
        if not self._closed:
            self._on_change(SessionChanged(event, self.session_id, self.lease.epoch))

    # ---- requests ----

    def read(
        self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None, *, watch_missing: bool = True
    ) -> list[Node | None]:
        """The nodes at ``paths``, None for each that does not exist; pipelined. A watch is left on each, on the
        missing ones only with ``watch_missing``.
        """
        client = self._connected_client()
        watcher = self._watcher(watch)
        pending = _together([client.get_async(path, watcher) for path in paths], deadline)
        found = [self._await(result, deadline, path) for path, result in zip(paths, pending, strict=True)]
        if watch is not None and watch_missing:
            # a missing node takes no data watch: leave one for its creation, and look again where it just came
            missing = [index for index, node in enumerate(found) if node is None]
            armed = _together([client.exists_async(paths[index], watcher) for index in missing], deadline)
            for index, result in zip(missing, armed, strict=True):
                if self._await(result, deadline, paths[index]) is not None:
                    found[index] = self._await(client.get_async(paths[index], watcher), deadline, paths[index])
        return [None if node is None else _node(node[0], node[1]) for node in found]

    def children(self, path: str, deadline: Deadline, watch: Watch | None = None) -> tuple[str, ...] | None:
        """The names of a node's children, None where it does not exist; a watch is left in either case."""
        client = self._connected_client()
        watcher = self._watcher(watch)
        names = self._await(client.get_children_async(path, watcher), deadline, path)
        if (
            names is None
            and watch is not None
            and self._await(client.exists_async(path, watcher), deadline, path) is not None
        ):
            names = self._await(client.get_children_async(path, watcher), deadline, path)
        return None if names is None else tuple(names)

    def stat(self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None) -> list[Node | None]:
        """Like :meth:`read` without the contents."""
        client = self._connected_client()
        watcher = self._watcher(watch)
        pending = _together([client.exists_async(path, watcher) for path in paths], deadline)
        stats = [self._await(result, deadline, path) for path, result in zip(paths, pending, strict=True)]
        return [None if stat is None else _node(b"", stat) for stat in stats]

    def create(self, path: str, data: bytes, deadline: Deadline, *, ephemeral: bool = False) -> bool:
        """Create a node whose parents exist; returns False where it exists already."""
        client = self._connected_client()
        try:
            request = client.create_async(path, data, acl=self._security.acl(path), ephemeral=ephemeral)
            self._await(request, deadline, path, missing_is_none=False)
        except NodeExistsError:
            return False
        except NoNodeError as e:
            raise RegistryError(f"{path}: its parent does not exist") from e
        return True

    def ensure(self, paths: Sequence[str], deadline: Deadline) -> None:
        """Make persistent nodes, and their parents, where they are missing."""
        client = self._connected_client()
        levels: dict[int, set[str]] = {}
        for path in paths:
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                levels.setdefault(depth, set()).add("/" + "/".join(parts[:depth]))
        missing = [p for p, node in zip(paths, self.stat(paths, deadline), strict=True) if node is None]
        if not missing:
            return
        for depth in sorted(levels):
            pending = [
                (path, client.create_async(path, PARENT_DATA, acl=self._security.acl(path)))
                for path in sorted(levels[depth])
            ]
            for path, result in pending:
                try:
                    self._await(result, deadline, path, missing_is_none=False)
                except NodeExistsError:
                    continue
                except NotPermittedError:
                    # servers look at the rights on the parent before they see that the node exists (KAFKA-5691)
                    if self.stat([path], deadline)[0] is None:
                        raise
                except NoNodeError as e:
                    raise RegistryError(f"{path}: its parent vanished while it was made") from e

    def write(self, path: str, data: bytes, deadline: Deadline, version: int = -1) -> bool:
        """Set a node's content if its version still is ``version`` (-1: any); returns False where it is not, or the
        node is gone.
        """
        client = self._connected_client()
        try:
            return self._await(client.set_async(path, data, version), deadline, path) is not None
        except BadVersionError:
            return False

    def delete(self, path: str, deadline: Deadline, version: int = -1) -> bool:
        """Delete a node if its version still is ``version`` (-1: any); returns whether it was deleted by this call."""
        client = self._connected_client()
        try:
            self._await(client.delete_async(path, version), deadline, path, missing_is_none=False)
        except (NoNodeError, BadVersionError, NotEmptyError):
            return False
        return True

    def transact(self, build: Callable[[Transaction], None], deadline: Deadline) -> list[NodeFailure | None]:
        """Do all operations or none.

        Returns one entry an operation: all None when everything was done; otherwise the cause at the operation that
        failed, and None at the others (which were then rolled back).
        """
        client = self._connected_client()
        request = client.transaction()
        build(Transaction(request, self._security.acl))
        if not request.operations:
            return []
        results = self._await(request.commit_async(), deadline)
        return [failure_of(result) for result in results]

    def _watcher(self, watch: Watch | None) -> Callable[[WatchedEvent], None] | None:
        """Kazoo's form of a watch: always the same one for the same watch, so that setting it twice fires it once."""
        if watch is None:
            return None
        known = self._watchers.get(watch)
        if known is None:

            def fired(event: WatchedEvent) -> None:
                # the other kind of event says that the connection changed, which the session reports by itself
                kind = _KINDS.get(event.type)
                if kind is not None:
                    watch(NodeEvent(kind, event.path))

            known = self._watchers.setdefault(watch, fired)
        return known

    def _connected_client(self) -> KazooClient:
        client = self._client
        if client is None:
            raise SessionLostError("the ZooKeeper session is closed")
        if not self.connected:
            raise RegistryUnavailableError(f"not connected to ZooKeeper ({self.hosts}); the client keeps trying")
        return client

    def _await(self, result: Any, deadline: Deadline, path: str = "/", *, missing_is_none: bool = True) -> Any:
        try:
            return result.get(timeout=deadline.remaining())
        except NoNodeError:
            if missing_is_none:
                return None
            raise
        except (NodeExistsError, BadVersionError, NotEmptyError):
            raise
        except (SessionExpiredError, ConnectionClosedError) as e:
            raise SessionLostError(f"{path}: the ZooKeeper session ended during the request") from e
        except SessionClosedRequireSaslError as e:
            raise RegistryAuthenticationError(
                f"ZooKeeper at {self.hosts!r} demands a login of another kind than ours ({self._security})"
            ) from e
        except (NoAuthError, AuthFailedError) as e:
            raise NotPermittedError(
                f"{path}: ZooKeeper refused the operation ({type(e).__name__}); check the node's ACL"
            ) from e
        except (ConnectionLoss, KazooTimeoutError) as e:
            raise RegistryUnavailableError(f"{path}: ZooKeeper did not answer in time ({type(e).__name__})") from e
        except KazooException as e:
            raise RegistryError(f"{path}: {type(e).__name__} {e}") from e


def _together(results: list[Any], deadline: Deadline) -> list[Any]:
    """Requests sent at once are answered in order, so wait for the last one: waking up for each costs more than the
    answers themselves.
    """
    if results:
        results[-1].wait(deadline.remaining())
    return results


def _kazoo_log() -> logging.Logger:
    """Where kazoo writes, with a filter against secrets."""
    kazoo_log = logging.getLogger("zkconsumer.registry.kazoo")
    if not any(isinstance(present, NoSecrets) for present in kazoo_log.filters):
        kazoo_log.addFilter(NoSecrets())
    return kazoo_log


def _node(data: bytes, stat: Any) -> Node:
    return Node(data, stat.version, stat.czxid, stat.mzxid, _signed(stat.ephemeralOwner))


def _signed(session_id: int) -> int:
    # kazoo shows some ids unsigned, ephemeralOwner is signed: compare like with like
    return session_id - (1 << 64) if session_id >= 1 << 63 else session_id
