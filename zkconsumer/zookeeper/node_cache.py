"""Caches watched nodes: a cached node is current, because its watch has not fired.

A node is read once and then only again after its watch fired, so a change costs what changed and not the size of the
group. ZooKeeper's watches fire once: reading again arms them again. The owner of a :class:`NodeCache` is one thread
(the group's); kazoo's callback thread only marks a path as stale and passes its name on. :class:`WatchedReadings`
serves a thread that reads many groups and only reads: it keeps stats and rights as well, and knows which group changed.

The original lists and reads everything again for every event; zkclient keeps the watches armed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from zkconsumer.errors import MalformedNodeError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.node_values import OUTDATED, Look, Node, NodeEvent, NodeEventKind, Reading, Seen, Wanted
from zkconsumer.zookeeper.session import Session

T = TypeVar("T")

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
        self._deleted: set[str] = set()

    def look(self, wanted: Look, deadline: Deadline, *, believing: bool = False) -> Seen:
        """Return the wanted nodes in one round trip; read watched nodes only if they are unknown or have changed.

        Missing ``existing`` nodes are not remembered: the caller is about to create them, and a watch would only tell
        of that. With ``believing`` an ``existing`` node that was deleted, as a watch told, is not read. Only for
        callers that find out otherwise if it exists again: watches fire on another thread than answers arrive on.
        """
        nodes = [path for path in dict.fromkeys(wanted.nodes) if path not in self._nodes or path in self._stale_nodes]
        gone = {path for path in wanted.existing if believing and path in self._deleted}
        existing = [path for path in dict.fromkeys(wanted.existing) if path not in gone and not self.stands(path)]
        children = [path for path in wanted.children if not self._lists(path)]
        rare = [path for path in wanted.rare if not self._lists(path)]
        asked = Look(nodes, existing, wanted.plain, wanted.stats, children, rare)
        # a mark that is set while we read must survive, so it is removed before the request is sent
        self._stale_nodes.difference_update(nodes, existing)
        self._stale_children.difference_update(children, rare)
        self._deleted.difference_update(nodes, existing)
        self.forget(existing)
        try:
            seen = self._session.look(asked, deadline, self._fired) if asked else Seen()
        except BaseException:
            self._stale_nodes.update(nodes)
            self._stale_children.update((*children, *rare))
            raise
        self._nodes.update((path, seen.nodes[path]) for path in nodes)
        self._nodes.update((path, node) for path in existing if (node := seen.nodes[path]) is not None)
        self._children.update((path, seen.children[path]) for path in (*children, *rare))
        found = {path: self._nodes[path] for path in wanted.nodes}
        found |= {path: None if path in gone else self._nodes.get(path) for path in wanted.existing}
        found |= {path: seen.nodes[path] for path in (*wanted.plain, *wanted.stats)}
        return Seen(found, {path: self._children[path] for path in (*wanted.children, *wanted.rare)})

    def nodes(self, paths: Iterable[str], deadline: Deadline) -> Mapping[str, Node | None]:
        """Return the nodes at ``paths`` (None: missing); read only unknown and changed ones."""
        return self.look(Look(nodes=list(dict.fromkeys(paths))), deadline).nodes

    def stands(self, path: str) -> bool:
        """Return whether a node exists as far as the cache knows. Asks nothing."""
        return self._nodes.get(path) is not None and path not in self._stale_nodes

    def _lists(self, path: str) -> bool:
        return path in self._children and path not in self._stale_children

    def known(self, paths: Iterable[str]) -> Mapping[str, Node | None]:
        """Return the cached nodes at these paths, without asking; unknown ones are left out."""
        return {path: self._nodes[path] for path in paths if path in self._nodes}

    def children(self, path: str, deadline: Deadline) -> tuple[str, ...] | None:
        """Return the names of a node's children, or None if it is missing."""
        return self.look(Look(children=[path]), deadline).children[path]

    def refresh(self, but: Collection[str] = ()) -> None:
        """Forget all ``but`` these nodes: the connection was away, or a reconciliation is due."""
        self._nodes = {path: node for path in but if (node := self._nodes.get(path, _UNKNOWN)) is not _UNKNOWN}
        self._children.clear()
        # in this order: a mark that is set meanwhile stays, or its node is read anyway. Without this the marks of nodes
        # that are never read again, as those of members that left, would be kept for ever
        self._stale_nodes.intersection_update(but)
        self._stale_children.clear()
        self._deleted.clear()

    def forget(self, paths: Iterable[str]) -> None:
        """Forget these nodes, so that the next request reads them."""
        for path in paths:
            self._nodes.pop(path, None)
            self._children.pop(path, None)
            self._deleted.discard(path)

    def _fired(self, event: NodeEvent) -> None:
        if event.kind is not NodeEventKind.CHANGED:
            self._stale_children.add(event.path)
        if event.kind is not NodeEventKind.CHILDREN:
            self._stale_nodes.add(event.path)
        if event.kind is NodeEventKind.DELETED:
            self._deleted.add(event.path)
        elif event.kind is NodeEventKind.CREATED:
            self._deleted.discard(event.path)
        self._notify(event.path)


MOST_KEPT_BYTES = 64 * 1024
"""The longest content that :class:`WatchedReadings` keeps. A longer one is read again with the rest of its group."""


class WatchedReadings:
    """The readings of watched nodes by area: an area is a part of the tree that is read together.

    Pure; one thread. A reading is kept from its read, which armed the watch, to the event of the watch. The event
    forgets the reading and notes its area in ``changed``. So a reading that is kept is current. An area that was never
    read to the end stays in ``changed`` as well. The area None has the nodes that others share; an event there changes
    the areas that used the node.

    Arguments: ``area_of`` returns the area of a path.
    """

    def __init__(self, area_of: Callable[[str], str | None]) -> None:
        self._area_of = area_of
        self._kept: dict[str | None, dict[Wanted, Reading | None]] = {None: {}}
        self._shared: dict[str, set[Wanted]] = {}
        self._own: dict[Wanted, Reading | None] = {}
        self._others: set[Wanted] = set()  # shared nodes that were used outside of an area since the last leave()
        self._foreign = self._others
        self.changed: set[str] = set()
        self.written: dict[Wanted, None] = {}
        """What was forgotten because a node was written or its children changed, so that it can be read again."""

    def begin(self, area: str) -> None:
        """Begin to read an area."""
        self.changed.add(area)
        self._kept.setdefault(area, {})
        self._own, self._foreign = {}, set()

    def end(self, area: str, *, complete: bool) -> None:
        """Note that the area was read. If it is ``complete``, its readings that were not used now are forgotten."""
        if complete:
            self._kept[area], self._shared[area] = self._own, self._foreign
            self.changed.discard(area)
        else:
            self._others |= self._foreign
        self._own, self._foreign = {}, self._others

    def current(self, wanted: Wanted) -> Reading | None:
        """Return the kept reading, None if the node must be read."""
        area = self._area_of(wanted.path)
        kept = self._kept.get(area, {})
        if wanted not in kept:
            return None
        self._use(area, wanted, kept[wanted])
        return kept[wanted]

    def keep(self, reading: Reading) -> None:
        """Keep a reading whose watch is armed. Of a long content only the watch is kept."""
        wanted, node = reading.wanted, reading.node
        area = self._area_of(wanted.path)
        kept = None if node is not None and len(node.data) > MOST_KEPT_BYTES else reading
        self._kept.setdefault(area, {})[wanted] = kept
        self._use(area, wanted, kept)

    def _use(self, area: str | None, wanted: Wanted, kept: Reading | None) -> None:
        if kept is not None:
            wanted = kept.wanted  # one object for a node, not one for each time that somebody wanted it
        if area is not None:
            self._own[wanted] = kept
        else:
            self._foreign.add(wanted)

    def fired(self, event: NodeEvent) -> None:
        """Take in the event of a watch."""
        stands = event.kind in (NodeEventKind.CHANGED, NodeEventKind.CHILDREN)
        for wanted in (Wanted(part, event.path) for part in OUTDATED[event.kind]):
            if stands and wanted in self:
                self.written[wanted] = None
            self.forget(wanted)

    def forget(self, wanted: Wanted) -> None:
        """Forget one reading. Areas that used it have changed."""
        area = self._area_of(wanted.path)
        kept = self._kept.get(area, {})
        if wanted in kept:
            del kept[wanted]
            self._own.pop(wanted, None)
            self.changed.update(
                [area] if area is not None else [name for name, used in self._shared.items() if wanted in used]
            )

    def lost(self) -> None:
        """Forget all readings: the watches ended with their connection."""
        self.changed.update(area for area in self._kept if area is not None)
        self._kept = {area: {} for area in self._kept}
        self.written.clear()

    def leave(self, areas: Collection[str]) -> None:
        """Forget all areas but these, and what no area shares any more. ``changed`` keeps only these areas."""
        for area in [area for area in self._kept if area is not None and area not in areas]:
            del self._kept[area]
            self._shared.pop(area, None)
        self.changed.intersection_update(areas)
        used = self._others.union(*self._shared.values())
        self._kept[None] = {wanted: kept for wanted, kept in self._kept[None].items() if wanted in used}
        self._foreign = self._others = set()

    def holds(self, reading: Reading) -> bool:
        """Return whether this very reading is kept."""
        return self._kept.get(self._area_of(reading.wanted.path), {}).get(reading.wanted) is reading

    def __contains__(self, wanted: Wanted) -> bool:
        """Return whether the watch of this part of a node is armed."""
        return wanted in self._kept.get(self._area_of(wanted.path), {})

    def readings(self) -> Iterator[Reading]:
        """Yield what is kept, area by area. It may change meanwhile."""
        for area in list(self._kept):
            yield from [one for one in self._kept.get(area, {}).values() if one is not None]

    def __len__(self) -> int:
        """The number of nodes' parts whose watches are armed."""
        return sum(map(len, self._kept.values()))


class DecodedNodes(Generic[T]):
    """The decoded contents of nodes of one kind, each decoded once. Used by one thread.

    In a group of a thousand members only changed nodes are decoded again. The original parses every registration and
    every topic for every event.

    Arguments: ``decode`` makes a value of bytes and a path, or raises MalformedNodeError; ``meanwhile`` is called
    before each, since there may be thousands.
    """

    def __init__(self, decode: Callable[[bytes, str], T], meanwhile: Callable[[], None] = lambda: None) -> None:
        self._decode = decode
        self._meanwhile = meanwhile
        self._known: dict[str, tuple[Node, T | MalformedNodeError]] = {}

    def of(self, nodes: Mapping[str, Node | None]) -> tuple[dict[str, T], dict[str, str]]:
        """Return the values of existing nodes by path, and the reasons of nodes that cannot be read.

        Nodes of other paths are forgotten.
        """
        self._known = {path: self._decoded(path, node) for path, node in nodes.items() if node is not None}
        values: dict[str, T] = {}
        reasons: dict[str, str] = {}
        for path, (_, found) in self._known.items():
            if isinstance(found, MalformedNodeError):
                reasons[path] = found.reason
            else:
                values[path] = found
        return values, reasons

    def _decoded(self, path: str, node: Node) -> tuple[Node, T | MalformedNodeError]:
        known = self._known.get(path)
        # compare the content too: a ZooKeeper that lost its data numbers its transactions from the start again
        if known is not None and (known[0] is node or known[0] == node):
            return known
        self._meanwhile()
        try:
            return node, self._decode(node.data, path)
        except MalformedNodeError as e:
            return node, e
