"""The nodes of a ZooKeeper in memory: versions, ephemerals, watches, rights and transactions.

One lock guards the tree. The thread that changes the tree calls the watches in the order of the changes, after it has
released the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from time import time_ns

from zkconsumer.zookeeper.node_requests import NodeFailure
from zkconsumer.zookeeper.node_values import FORBIDDEN, Node, NodeEvent, NodeEventKind, Watch

CHILD_WATCH, DATA_WATCH = "child", "data"


class RefusedOperation(Exception):
    """An operation that the tree does not allow now."""

    def __init__(self, failure: NodeFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure


class NodeTree:
    """The nodes. Operations are called in a block of :meth:`at_once`, and raise RefusedOperation.

    ``nodes`` are by path; ``zxid`` is the number of the last change; ``children_made`` counts the children that each
    node ever had.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, 0)}
        self.zxid = 0
        self.children_made: dict[str, int] = {}
        self.lock = RLock()
        self._transacting = False
        self._watches: dict[tuple[str, str], dict[Watch, object]] = {}
        self._fired: list[tuple[Watch, NodeEvent]] = []
        self._refused: dict[str, frozenset[str]] = {}
        self._depth = 0

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Hide the changes of a block, and delay their events, until the block ends."""
        with self.lock:
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

    @contextmanager
    def transaction(self) -> Iterator[Callable[[], None]]:
        """Give all changes of a block one number. Yields a function that takes them back."""
        before = dict(self.nodes), list(self._fired), self.zxid, dict(self.children_made)
        watches = {key: dict(value) for key, value in self._watches.items()}

        def undo() -> None:
            self.nodes, self._fired, self.zxid, self.children_made = before
            self._watches = watches

        self.zxid, self._transacting = self.zxid + 1, True
        try:
            yield undo
        finally:
            self._transacting = False

    # ---- reading

    def permit(self, operation: str, path: str) -> None:
        """Raise RefusedOperation if the session has no right to do this."""
        if operation in self._refused.get(path, ()):
            raise RefusedOperation(NodeFailure.NO_AUTH)

    def shown(self, path: str) -> Node | None:
        """Return a node as sessions see it: None if it is missing, FORBIDDEN without the right to read."""
        node = self.nodes.get(path)
        hidden = node is not None and "read" in self._refused.get(path, ())
        return FORBIDDEN if hidden else node

    def expect(self, path: str, version: int = -1) -> Node:
        """Return a node, which must exist in this version; -1 stands for any."""
        node = self.nodes.get(path)
        if node is None:
            raise RefusedOperation(NodeFailure.NO_NODE)
        if version not in (-1, node.version):
            raise RefusedOperation(NodeFailure.BAD_VERSION)
        return node

    def children(self, path: str) -> list[str]:
        """Return the names of a node's children in order."""
        prefix = path.rstrip("/") + "/"
        below = (each[len(prefix) :] for each in self.nodes if each.startswith(prefix) and each != prefix)
        return sorted(name for name in below if "/" not in name)

    def watch(self, kind: str, path: str, watch: Watch | None, owner: object) -> None:
        """Call ``watch`` at the next change. Arguments: ``owner`` is the session or connection that asked."""
        if watch is not None:
            self._watches.setdefault((kind, path), {})[watch] = owner

    def drop_watches(self, owner: object, nodes: Collection[str] = ()) -> None:
        """Forget the watches of a session or connection on these nodes, by default on all."""
        with self.lock:
            for (_, path), watches in self._watches.items():
                if nodes and path not in nodes:
                    continue
                for watch in [watch for watch, other in watches.items() if other is owner]:
                    del watches[watch]

    # ---- changing

    def create(self, path: str, data: bytes, owner: int) -> None:
        """Make a node. Arguments: ``owner`` is the session of an ephemeral node, 0 for a persistent one."""
        parent = path.rsplit("/", 1)[0] or "/"
        if parent not in self.nodes:
            raise RefusedOperation(NodeFailure.NO_NODE)
        if path in self.nodes:
            raise RefusedOperation(NodeFailure.NODE_EXISTS)
        if self.nodes[parent].ephemeral_owner:
            raise RefusedOperation(NodeFailure.OTHER)
        self._advance()
        now = time_ns() // 1_000_000
        self.nodes[path] = Node(
            data, 0, self.zxid, self.zxid, owner, ctime=now, mtime=now, pzxid=self.zxid, length=len(data)
        )
        self.children_made[parent] = self.children_made.get(parent, 0) + 1
        self._count_child(parent, 1)
        self._fire(DATA_WATCH, path, NodeEventKind.CREATED)
        self._fire(CHILD_WATCH, parent, NodeEventKind.CHILDREN)

    def write(self, path: str, data: bytes, version: int) -> None:
        """Set a node's content."""
        node = self.expect(path, version)
        self._advance()
        now = time_ns() // 1_000_000
        self.nodes[path] = replace(
            node, data=data, version=node.version + 1, mzxid=self.zxid, mtime=now, length=len(data)
        )
        self._fire(DATA_WATCH, path, NodeEventKind.CHANGED)

    def delete(self, path: str, version: int) -> None:
        """Delete a node."""
        self.expect(path, version)
        if any(other.startswith(path + "/") for other in self.nodes):
            raise RefusedOperation(NodeFailure.OTHER)
        self._advance()
        del self.nodes[path]
        self._count_child(path.rsplit("/", 1)[0] or "/", -1)
        self._fire(DATA_WATCH, path, NodeEventKind.DELETED)
        self._fire(CHILD_WATCH, path, NodeEventKind.DELETED)
        self._fire(CHILD_WATCH, path.rsplit("/", 1)[0] or "/", NodeEventKind.CHILDREN)

    def _advance(self) -> None:
        if not self._transacting:
            self.zxid += 1

    def _count_child(self, parent: str, change: int) -> None:
        above = self.nodes[parent]
        count = above.children + change
        self.nodes[parent] = replace(above, cversion=above.cversion + 1, pzxid=self.zxid, children=count)

    def _fire(self, watch_kind: str, path: str, kind: NodeEventKind) -> None:
        for watch in self._watches.pop((watch_kind, path), {}):
            self._fired.append((watch, NodeEvent(kind, path)))
