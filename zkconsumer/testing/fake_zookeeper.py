"""A ZooKeeper in memory: the nodes, versions, ephemerals, watches and transactions that a group needs.

One lock guards the tree. The thread that changes the tree calls the watches in the order of the changes, after it has
released the lock. A session behaves like :class:`zkconsumer.zookeeper.session.Session`; a test can suspend, resume and
expire it. The contract tests run the same suite on this and on a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from time import monotonic, time_ns
from typing import Any

from zkconsumer.errors import NotPermittedError, RegistryError, RegistryUnavailableError, SessionLostError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.node_requests import NodeFailure, Transaction
from zkconsumer.zookeeper.node_values import (
    FORBIDDEN,
    Look,
    Node,
    NodeEvent,
    NodeEventKind,
    NodePart,
    Reading,
    Seen,
    Wanted,
    Watch,
)
from zkconsumer.zookeeper.session import Session, SessionChanged, SessionState

_CHILD, _DATA = "child", "data"


class _Refused(Exception):
    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure


class FakeZooKeeper:
    """The fake server. ``operations`` counts requests by kind."""

    def __init__(self, *, session_timeout: float = 6.0) -> None:
        self.session_timeout = session_timeout
        self.operations: dict[str, int] = {}
        self._nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, 0)}
        self._zxid = 0
        self._transacting = False
        self._next_session = 1
        self._watches: dict[tuple[str, str], dict[Watch, FakeSession]] = {}
        self._fired: list[tuple[Watch, NodeEvent]] = []
        self._refused: dict[str, frozenset[str]] = {}
        self._lock = RLock()
        self._depth = 0

    def session(self, on_change: Callable[[SessionChanged], None] = lambda _: None) -> FakeSession:
        """Return a new session that is not open yet."""
        return FakeSession(self, on_change)

    def node(self, path: str) -> Node | None:
        """Return a node, or None."""
        with self._lock:
            return self._nodes.get(path)

    def tree(self, below: str = "/") -> dict[str, bytes]:
        """Return all nodes below a path, with their data."""
        with self._lock:
            prefix = below.rstrip("/") + "/"
            return {path: node.data for path, node in sorted(self._nodes.items()) if path.startswith(prefix)}

    def put(self, path: str, data: bytes = b"", *, ephemeral_owner: int = 0) -> None:
        """Make or change a node and its parents, as an operator or another program does."""
        with self.at_once():
            parent = path.rsplit("/", 1)[0]
            if parent and parent not in self._nodes:
                self.put(parent)
            if path in self._nodes:
                self._write(path, data, -1)
            else:
                self._create(path, data, ephemeral_owner)

    def remove(self, path: str) -> None:
        """Delete a node and all nodes below it, as an operator or another program does."""
        with self.at_once():
            for below in sorted((p for p in self._nodes if p == path or p.startswith(path + "/")), reverse=True):
                self._delete(below, -1)

    def refuse(self, path: str, *operations: str) -> None:
        """Refuse these operations on ``path`` to all sessions from now on, or none if none is given.

        Operations are "read" (content and children), "create", "write" and "delete". In ZooKeeper the rights to create
        and delete belong to the parent; here they belong to the path.
        """
        with self._lock:
            self._refused[path] = frozenset(operations)

    # ---- the tree, under the lock ----

    def _permit(self, operation: str, path: str) -> None:
        if operation in self._refused.get(path, ()):
            raise _Refused(NodeFailure.NO_AUTH)

    def _shown(self, path: str) -> Node | None:
        node = self._nodes.get(path)
        hidden = node is not None and "read" in self._refused.get(path, ())
        return FORBIDDEN if hidden else node

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Hide the changes of a block, and delay their events, until the block ends."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                fired = self._fired if self._depth == 0 else []
                if fired:
                    self._fired = []
        for watch, event in fired:
            watch(event)

    def _fire(self, watch_kind: str, path: str, kind: NodeEventKind) -> None:
        for watch in self._watches.pop((watch_kind, path), {}):
            self._fired.append((watch, NodeEvent(kind, path)))

    def _watch(self, kind: str, path: str, watch: Watch | None, session: FakeSession) -> None:
        if watch is not None:
            self._watches.setdefault((kind, path), {})[watch] = session

    def _drop_watches(self, session: FakeSession) -> None:
        for watches in self._watches.values():
            for watch in [watch for watch, owner in watches.items() if owner is session]:
                del watches[watch]

    def _create(self, path: str, data: bytes, owner: int) -> None:
        parent = path.rsplit("/", 1)[0] or "/"
        if parent not in self._nodes:
            raise _Refused(NodeFailure.NO_NODE)
        if path in self._nodes:
            raise _Refused(NodeFailure.NODE_EXISTS)
        if self._nodes[parent].ephemeral_owner:
            raise _Refused(NodeFailure.OTHER)
        self._next_zxid()
        now = time_ns() // 1_000_000
        self._nodes[path] = Node(
            data, 0, self._zxid, self._zxid, owner, ctime=now, mtime=now, pzxid=self._zxid, length=len(data)
        )
        self._count_child(parent, 1)
        self._fire(_DATA, path, NodeEventKind.CREATED)
        self._fire(_CHILD, parent, NodeEventKind.CHILDREN)

    def _next_zxid(self) -> None:
        if not self._transacting:
            self._zxid += 1

    @contextmanager
    def _one_zxid(self) -> Iterator[None]:
        """All changes of a transaction have one number."""
        self._zxid, self._transacting = self._zxid + 1, True
        try:
            yield
        finally:
            self._transacting = False

    def _count_child(self, parent: str, change: int) -> None:
        above = self._nodes[parent]
        count = above.children + change
        self._nodes[parent] = replace(above, cversion=above.cversion + 1, pzxid=self._zxid, children=count)

    def _write(self, path: str, data: bytes, version: int) -> None:
        node = self._expect(path, version)
        self._next_zxid()
        now = time_ns() // 1_000_000
        self._nodes[path] = replace(
            node, data=data, version=node.version + 1, mzxid=self._zxid, mtime=now, length=len(data)
        )
        self._fire(_DATA, path, NodeEventKind.CHANGED)

    def _delete(self, path: str, version: int) -> None:
        self._expect(path, version)
        if any(other.startswith(path + "/") for other in self._nodes):
            raise _Refused(NodeFailure.OTHER)
        self._next_zxid()
        del self._nodes[path]
        self._count_child(path.rsplit("/", 1)[0] or "/", -1)
        self._fire(_DATA, path, NodeEventKind.DELETED)
        self._fire(_CHILD, path, NodeEventKind.DELETED)
        self._fire(_CHILD, path.rsplit("/", 1)[0] or "/", NodeEventKind.CHILDREN)

    def _expect(self, path: str, version: int) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise _Refused(NodeFailure.NO_NODE)
        if version not in (-1, node.version):
            raise _Refused(NodeFailure.BAD_VERSION)
        return node

    def _end_session(self, session_id: int) -> None:
        with self.at_once():
            for path in sorted(p for p, node in self._nodes.items() if node.ephemeral_owner == session_id):
                self._delete(path, -1)


class FakeSession(Session):
    """A session with a :class:`FakeZooKeeper`; ``open`` connects at once."""

    def __init__(self, server: FakeZooKeeper, on_change: Callable[[SessionChanged], None]) -> None:
        super().__init__("fake", timeout=server.session_timeout, on_change=on_change)
        self._server = server
        self._id = 0
        self._up = False
        self._contested = False

    # ---- faults ----

    def suspend(self) -> None:
        """Break the connection. The server keeps the session."""
        self._up = False
        self._server._drop_watches(self)
        self.lease.suspend()
        self._on_change(SessionChanged(SessionState.SUSPENDED, self._id, self.lease.epoch))

    def lose_watches(self) -> None:
        """Forget all watches of this session. Its client does not know and waits for events that never come."""
        self._server._drop_watches(self)

    def resume(self) -> None:
        """Reconnect, with a new session if the server has ended the old one."""
        if self._id == 0:
            self.lease.void()
            self._on_change(SessionChanged(SessionState.LOST, 0, self.lease.epoch))
            self._connect()
            return
        self._up = True
        self._on_change(SessionChanged(SessionState.CONNECTED, self._id, self.lease.epoch))

    def expire_unnoticed(self) -> None:
        """End the session on the server. The client learns it when it resumes."""
        with self._server.at_once():  # not amid a request, whose ephemeral nodes would have no owner
            ended, self._id = self._id, 0
            if ended:
                self._server._end_session(ended)

    def expire(self) -> None:
        """End the session and give the client a new one."""
        if self._up:
            self.suspend()
        self.expire_unnoticed()
        self.resume()

    def freeze(self) -> None:
        """Stop the process until its lease has ended and the server has ended the session.

        The client believes that it is still connected until :meth:`suspend`.
        """
        self.lease.lapse()
        self.expire_unnoticed()

    def expire_former(self) -> None:
        """End the abandoned sessions on the server."""
        for session_id in self._former:
            self._server._end_session(session_id)

    def contest(self) -> None:
        """Let another client take the session over."""
        self._contested = True
        self.suspend()

    def _connect(self) -> None:
        with self._server._lock:
            self._id = self._server._next_session
            self._server._next_session += 1
        self._up = True
        self.lease.renew(monotonic(), self._server.session_timeout)
        self._on_change(SessionChanged(SessionState.CONNECTED, self._id, self.lease.epoch))

    # ---- the session's interface ----

    def open(self, deadline: Deadline) -> None:
        """Connect."""
        self._connect()

    def close(self, deadline: Deadline) -> None:
        """End the session."""
        self._closed = True
        self.lease.void()
        if self._id and self._up:
            self.expire_unnoticed()
        self._up = False

    @property
    def session_id(self) -> int:
        """The session's id."""
        return self._id

    @property
    def timeout(self) -> float:
        """The session timeout in seconds."""
        return self._server.session_timeout

    @property
    def last_zxid(self) -> int:
        """The server's last transaction."""
        with self._server._lock:
            return self._server._zxid

    @property
    def connected(self) -> bool:
        """Whether the client is connected."""
        return self._up

    @property
    def contested(self) -> bool:
        """Whether another client uses the session."""
        return self._contested

    def abandon(self) -> None:
        """Take a new session. The old one lives on the server until its timeout."""
        if self._id:
            self._former.add(self._id)
        self._contested = False
        self.lease.void()
        self._connect()

    def touch(self) -> None:
        """Renew the lease if the client is connected and the session lives."""
        if self._up and self._id:
            self.lease.renew(monotonic(), self._server.session_timeout)

    @contextmanager
    def request(self, kind: str, count: int = 1) -> Iterator[FakeZooKeeper]:
        """Do one request to the server, in a block; a subclass may add faults. Raises as the connection is."""
        if self._closed:
            raise SessionLostError("the session is closed")
        if not self._up:
            raise RegistryUnavailableError("the fake connection is down")
        server, session_id = self._server, self._id
        with server.at_once():
            if not session_id or session_id != self._id:  # it may have ended while the request waited for its turn
                raise SessionLostError("the session has expired")
            server.operations[kind] = server.operations.get(kind, 0) + count
            yield server

    def read(
        self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None, *, watch_missing: bool = True
    ) -> list[Node | None]:
        """Return the nodes at ``paths``."""
        with self.request("read", len(paths)) as server:
            for path in paths:
                if watch_missing or path in server._nodes:
                    server._watch(_DATA, path, watch, self)
            return [server._shown(path) for path in paths]

    def children(self, path: str, deadline: Deadline, watch: Watch | None = None) -> tuple[str, ...] | None:
        """Return the names of a node's children."""
        with self.request("children") as server:
            if server.node(path) is None:
                server._watch(_DATA, path, watch, self)
                return None
            try:
                server._permit("read", path)
            except _Refused as e:
                raise _raised(path, e) from e
            server._watch(_CHILD, path, watch, self)
            prefix = path.rstrip("/") + "/"
            return tuple(p[len(prefix) :] for p in server.tree(path) if "/" not in p[len(prefix) :])

    def read_each(self, wanted: Iterable[Wanted], deadline: Deadline) -> Iterator[Reading]:
        """Yield the answer to each read. Rights are not kept here."""
        for one in wanted:
            (node,) = self.read([one.path], deadline)
            if node is None or node is FORBIDDEN:
                yield Reading(one, forbidden=node is FORBIDDEN)
            elif one.part is NodePart.CHILDREN:
                yield Reading(one, replace(node, data=b""), names=self.children(one.path, deadline) or ())
            else:
                yield Reading(one, node if one.part is NodePart.CONTENT else replace(node, data=b""))

    def stat(self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None) -> list[Node | None]:
        """Return the nodes without their contents."""
        nodes = self.read(paths, deadline, watch)
        return [node if node is None or node is FORBIDDEN else replace(node, data=b"") for node in nodes]

    def look(self, wanted: Look, deadline: Deadline, watch: Watch | None = None) -> Seen:
        """Read several things, with no change of another session between them."""
        found: dict[str, Node | None] = {}
        for paths, watched, options in (
            (wanted.nodes, watch, {}),
            (wanted.existing, watch, {"watch_missing": False}),
            (wanted.plain, None, {}),
        ):
            if paths:
                found.update(zip(paths, self.read(paths, deadline, watched, **options), strict=True))
        if wanted.stats:
            found.update(zip(wanted.stats, self.stat(wanted.stats, deadline), strict=True))
        return Seen(found, {path: self.children(path, deadline, watch) for path in (*wanted.children, *wanted.rare)})

    def create(self, path: str, data: bytes, deadline: Deadline, *, ephemeral: bool = False) -> bool:
        """Create a node. Return whether it did not exist."""
        return self._change("create", path, lambda: self._server._create(path, data, self._id if ephemeral else 0))

    def ensure_each(self, paths: Sequence[str], deadline: Deadline) -> dict[str, NotPermittedError]:
        """Make missing persistent nodes with their parents. Return the refused ones."""
        refused: dict[str, NotPermittedError] = {}
        with self.request("create", len(paths)) as server:
            for path in paths:
                names = path.strip("/").split("/")
                for made in ("/" + "/".join(names[: depth + 1]) for depth in range(len(names))):
                    if server.node(made) is None:
                        try:
                            server._permit("create", made)
                        except _Refused as e:
                            refused[path] = NotPermittedError(f"{made}: {e}")
                            break
                        server.put(made)
        return refused

    def write(self, path: str, data: bytes, deadline: Deadline, version: int = -1) -> bool:
        """Set a node's content. Return whether it existed in this version."""
        return self._change("write", path, lambda: self._server._write(path, data, version))

    def delete(self, path: str, deadline: Deadline, version: int = -1) -> bool:
        """Delete a node. Return whether it existed in this version."""
        return self._change("delete", path, lambda: self._server._delete(path, version))

    def _change(self, kind: str, path: str, change: Callable[[], object]) -> bool:
        with self.request(kind) as server:
            try:
                server._permit(kind, path)
                change()
            except _Refused as e:
                # only an existing node keeps a create from its work; any other refusal of it is an error
                if e.failure is NodeFailure.NO_AUTH or (kind == "create" and e.failure is not NodeFailure.NODE_EXISTS):
                    raise _raised(path, e) from e
                return False
            return True

    def transact(self, build: Callable[[Transaction], None], deadline: Deadline) -> list[NodeFailure | None]:
        """Perform all operations, or none."""
        recorded = _Recorder(self._server, lambda: self._id)
        build(recorded)
        if not recorded.operations:
            return []
        with self.request("transaction") as server:
            before, fired, zxid = dict(server._nodes), list(server._fired), server._zxid
            watches = {key: dict(value) for key, value in server._watches.items()}
            results: list[NodeFailure | None] = [None] * len(recorded.operations)
            with server._one_zxid():
                for index, operation in enumerate(recorded.operations):
                    try:
                        operation()
                    except _Refused as e:
                        server._nodes, server._fired, server._watches, server._zxid = before, fired, watches, zxid
                        results[index] = e.failure
                        break
            return results


def _raised(path: str, refused: _Refused) -> RegistryError:
    kind = NotPermittedError if refused.failure is NodeFailure.NO_AUTH else RegistryError
    return kind(f"{path}: {refused}")


class _Recorder(Transaction):
    """A recorder of the operations of a transaction."""

    def __init__(self, server: Any, session_id: Callable[[], int]) -> None:
        super().__init__(None)
        self._server = server
        self._session_id = session_id
        self.operations: list[Callable[[], Any]] = []

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node."""
        self._add("create", path, lambda: self._server._create(path, data, self._session_id() if ephemeral else 0))

    def check(self, path: str, version: int) -> None:
        """Fail unless the node's version is ``version``."""
        self.operations.append(lambda: self._server._expect(path, version))

    def write(self, path: str, data: bytes, version: int = -1) -> None:
        """Set a node's content."""
        self._add("write", path, lambda: self._server._write(path, data, version))

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a node."""
        self._add("delete", path, lambda: self._server._delete(path, version))

    def _add(self, right: str, path: str, operation: Callable[[], Any]) -> None:
        def permitted() -> Any:
            self._server._permit(right, path)
            return operation()

        self.operations.append(permitted)
