"""A ZooKeeper in memory: a tree of nodes and its sessions.

``node_tree`` says which thread calls the watches. A session behaves like :class:`zkconsumer.zookeeper.session.Session`;
a test can suspend, resume and expire it. The contract tests run the same suite on this and on a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

from zkconsumer.errors import NotPermittedError, RegistryError, RegistryUnavailableError, SessionLostError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.node_tree import CHILD_WATCH, DATA_WATCH, NodeTree, RefusedOperation
from zkconsumer.zookeeper.node_requests import NodeFailure, Transaction
from zkconsumer.zookeeper.node_values import FORBIDDEN, Look, Node, NodePart, Reading, Seen, Wanted, Watch
from zkconsumer.zookeeper.session import Session, SessionChanged, SessionState


class FakeZooKeeper(NodeTree):
    """The fake server. ``operations`` counts requests by kind."""

    def __init__(self, *, session_timeout: float = 6.0) -> None:
        super().__init__()
        self.session_timeout = session_timeout
        self.operations: dict[str, int] = {}
        self._next_session = 1

    def session(self, on_change: Callable[[SessionChanged], None] = lambda _: None) -> FakeSession:
        """Return a new session that is not open yet."""
        return FakeSession(self, on_change)

    def node(self, path: str) -> Node | None:
        """Return a node, or None."""
        with self.lock:
            return self.nodes.get(path)

    def tree(self, below: str = "/") -> dict[str, bytes]:
        """Return all nodes below a path, with their data."""
        with self.lock:
            prefix = below.rstrip("/") + "/"
            return {path: node.data for path, node in sorted(self.nodes.items()) if path.startswith(prefix)}

    def put(self, path: str, data: bytes = b"", *, ephemeral_owner: int = 0) -> None:
        """Make or change a node and its parents, as an operator or another program does."""
        with self.at_once():
            parent = path.rsplit("/", 1)[0]
            if parent and parent not in self.nodes:
                self.put(parent)
            if path in self.nodes:
                self.write(path, data, -1)
            else:
                self.create(path, data, ephemeral_owner)

    def remove(self, path: str) -> None:
        """Delete a node and all nodes below it, as an operator or another program does."""
        with self.at_once():
            for below in sorted((p for p in self.nodes if p == path or p.startswith(path + "/")), reverse=True):
                self.delete(below, -1)

    def refuse(self, path: str, *operations: str) -> None:
        """Refuse these operations on ``path`` to all sessions from now on, or none if none is given.

        Operations are "read" (content and children), "create", "write" and "delete". In ZooKeeper the rights to create
        and delete belong to the parent; here they belong to the path.
        """
        with self.lock:
            self._refused[path] = frozenset(operations)

    # ---- for sessions ----

    def new_session_id(self) -> int:
        """Return the id of a new session."""
        with self.lock:
            self._next_session += 1
            return self._next_session - 1

    def end_session(self, session_id: int) -> None:
        """Delete the ephemeral nodes of a session."""
        with self.at_once():
            for path in sorted(p for p, node in self.nodes.items() if node.ephemeral_owner == session_id):
                self.delete(path, -1)


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
        self._server.drop_watches(self)
        self.lease.suspend()
        self._on_change(SessionChanged(SessionState.SUSPENDED, self._id, self.lease.epoch))

    def lose_watches(self, *nodes: str) -> None:
        """Forget the watches of this session on these nodes, by default on all.

        The session's client does not know and waits for events that never come.
        """
        self._server.drop_watches(self, nodes)

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
                self._server.end_session(ended)

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
            self._server.end_session(session_id)

    def contest(self) -> None:
        """Let another client take the session over."""
        self._contested = True
        self.suspend()

    def _connect(self) -> None:
        self._id = self._server.new_session_id()
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
        with self._server.lock:
            return self._server.zxid

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
                if watch_missing or path in server.nodes:
                    server.watch(DATA_WATCH, path, watch, self)
            return [server.shown(path) for path in paths]

    def children(self, path: str, deadline: Deadline, watch: Watch | None = None) -> tuple[str, ...] | None:
        """Return the names of a node's children."""
        with self.request("children") as server:
            if server.node(path) is None:
                server.watch(DATA_WATCH, path, watch, self)
                return None
            try:
                server.permit("read", path)
            except RefusedOperation as e:
                raise _raised(path, e) from e
            server.watch(CHILD_WATCH, path, watch, self)
            return tuple(server.children(path))

    def read_each(self, wanted: Iterable[Wanted], deadline: Deadline, watch: Watch | None = None) -> Iterator[Reading]:
        """Yield the answer to each read. Rights are not kept here."""
        for one in wanted:
            watched = watch if one.part in (NodePart.CONTENT, NodePart.STAT) else None
            (node,) = self.read([one.path], deadline, watched, watch_missing=one.part is NodePart.STAT)
            if node is None or node is FORBIDDEN:
                yield Reading(one, forbidden=node is FORBIDDEN)
            elif one.part is NodePart.CHILDREN:
                yield Reading(one, replace(node, data=b""), names=self.children(one.path, deadline, watch) or ())
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
        return self._change("create", path, lambda: self._server.create(path, data, self._id if ephemeral else 0))

    def ensure_each(self, paths: Sequence[str], deadline: Deadline) -> dict[str, NotPermittedError]:
        """Make missing persistent nodes with their parents. Return the refused ones."""
        refused: dict[str, NotPermittedError] = {}
        with self.request("create", len(paths)) as server:
            for path in paths:
                names = path.strip("/").split("/")
                for made in ("/" + "/".join(names[: depth + 1]) for depth in range(len(names))):
                    if server.node(made) is None:
                        try:
                            server.permit("create", made)
                        except RefusedOperation as e:
                            refused[path] = NotPermittedError(f"{made}: {e}")
                            break
                        server.put(made)
        return refused

    def write(self, path: str, data: bytes, deadline: Deadline, version: int = -1) -> bool:
        """Set a node's content. Return whether it existed in this version."""
        return self._change("write", path, lambda: self._server.write(path, data, version))

    def delete(self, path: str, deadline: Deadline, version: int = -1) -> bool:
        """Delete a node. Return whether it existed in this version."""
        return self._change("delete", path, lambda: self._server.delete(path, version))

    def _change(self, kind: str, path: str, change: Callable[[], object]) -> bool:
        with self.request(kind) as server:
            try:
                server.permit(kind, path)
                change()
            except RefusedOperation as e:
                # only an existing node keeps a create from its work; any other refusal of a create is an error
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
            results: list[NodeFailure | None] = [None] * len(recorded.operations)
            with server.transaction() as undo:
                for index, operation in enumerate(recorded.operations):
                    try:
                        operation()
                    except RefusedOperation as e:
                        undo()
                        results[index] = e.failure
                        break
            return results


def _raised(path: str, refused: RefusedOperation) -> RegistryError:
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
        self._add("create", path, lambda: self._server.create(path, data, self._session_id() if ephemeral else 0))

    def check(self, path: str, version: int) -> None:
        """Fail unless the node's version is ``version``."""
        self.operations.append(lambda: self._server.expect(path, version))

    def write(self, path: str, data: bytes, version: int = -1) -> None:
        """Set a node's content."""
        self._add("write", path, lambda: self._server.write(path, data, version))

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a node."""
        self._add("delete", path, lambda: self._server.delete(path, version))

    def _add(self, right: str, path: str, operation: Callable[[], Any]) -> None:
        def permitted() -> Any:
            self._server.permit(right, path)
            return operation()

        self.operations.append(permitted)
