"""What we have read of ZooKeeper and may still believe, because a watch would have told us otherwise.

A node is read once and then only again after its watch fired, so a change costs what changed and not the size of the
group. ZooKeeper's watches fire once: reading again arms them again. The owner of a :class:`NodeCache` is one thread
(the group's); kazoo's callback thread only marks a path as stale and passes its name on.

The original lists and reads everything again for every event; zkclient keeps the watches armed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from zkconsumer.deadline import Deadline
from zkconsumer.registry.requests import Node, NodeEvent, NodeEventKind
from zkconsumer.registry.session import Session

_UNKNOWN = Node(b"", -1, -1, -1, -1)


class NodeCache:
    """Contents and children of watched nodes.

    Arguments: ``notify`` is called with a path from kazoo's callback thread when that path changed; it must not block.
    """

    def __init__(self, session: Session, notify: Callable[[str], None]) -> None:
        self._session = session
        self._notify = notify
        self._nodes: dict[str, Node | None] = {}
        self._children: dict[str, tuple[str, ...] | None] = {}
        self._stale_nodes: set[str] = set()
        self._stale_children: set[str] = set()

    def nodes(self, paths: Iterable[str], deadline: Deadline) -> Mapping[str, Node | None]:
        """The nodes at ``paths`` (None: missing); only those not known, or changed since, are read."""
        wanted = list(dict.fromkeys(paths))
        # a mark set while we read must survive, so it is taken away before the request is sent
        reading = [path for path in wanted if path not in self._nodes or path in self._stale_nodes]
        self._stale_nodes.difference_update(reading)
        if reading:
            try:
                read = self._session.read(reading, deadline, self._fired)
            except BaseException:
                self._stale_nodes.update(reading)
                raise
            self._nodes.update(zip(reading, read, strict=True))
        return {path: self._nodes[path] for path in wanted}

    def existing(self, paths: Iterable[str], deadline: Deadline) -> Mapping[str, Node]:
        """Those of the nodes at ``paths`` that exist; no watch is left on the others, which are not remembered: for
        nodes that we are about to make ourselves, whose watches would only tell us of that.
        """
        wanted = list(dict.fromkeys(paths))
        reading = [path for path in wanted if self._nodes.get(path) is None or path in self._stale_nodes]
        self._stale_nodes.difference_update(reading)
        self.forget(reading)
        if reading:
            read = self._session.read(reading, deadline, self._fired, watch_missing=False)
            self._nodes.update({path: node for path, node in zip(reading, read, strict=True) if node is not None})
        return {path: node for path in wanted if (node := self._nodes.get(path)) is not None}

    def known(self, paths: Iterable[str]) -> Mapping[str, Node | None]:
        """What is known of these without asking; those of which nothing is are left out."""
        return {path: self._nodes[path] for path in paths if path in self._nodes}

    def children(self, path: str, deadline: Deadline) -> tuple[str, ...] | None:
        """The names of a node's children, or None where it is missing."""
        if path not in self._children or path in self._stale_children:
            self._stale_children.discard(path)
            try:
                self._children[path] = self._session.children(path, deadline, self._fired)
            except BaseException:
                self._stale_children.add(path)
                raise
        return self._children[path]

    def refresh(self, but: Collection[str] = ()) -> None:
        """Believe nothing any more (the connection was away, or a reconciliation is due) ``but`` these nodes."""
        self._nodes = {path: node for path in but if (node := self._nodes.get(path, _UNKNOWN)) is not _UNKNOWN}
        self._children.clear()
        # in this order: a mark that is made meanwhile is for something to be read anyway, or stays. Without it those of
        # nodes that will never be read again, as of members that left, would be kept for ever
        self._stale_nodes.intersection_update(but)
        self._stale_children.clear()

    def forget(self, paths: Iterable[str]) -> None:
        """Read these again at the next request."""
        for path in paths:
            self._nodes.pop(path, None)
            self._children.pop(path, None)

    def _fired(self, event: NodeEvent) -> None:
        if event.kind is not NodeEventKind.CHANGED:
            self._stale_children.add(event.path)
        if event.kind is not NodeEventKind.CHILDREN:
            self._stale_nodes.add(event.path)
        self._notify(event.path)
