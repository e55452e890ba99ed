"""Values of requests to ZooKeeper: nodes, watch events, reads of many nodes at once, and servers. Any thread."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from zkconsumer.zookeeper.node_codecs import UNREADABLE


class NodeEventKind(Enum):
    """The kind of change of a watched node."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children changed"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event of a watch. The watch has fired and must be set again."""

    kind: NodeEventKind
    path: str


Watch = Callable[[NodeEvent], None]


class NodePart(Enum):
    """A part of a node to read."""

    CONTENT = "content and stat"
    STAT = "stat"
    CHILDREN = "names of the children, and the stat"
    RIGHTS = "ACL"

    __hash__ = object.__hash__  # that of Enum is written in Python, and takes a tenth of the look for a kept reading


OUTDATED: Final = {
    NodeEventKind.CREATED: tuple(NodePart),
    NodeEventKind.DELETED: tuple(NodePart),
    NodeEventKind.CHANGED: (NodePart.CONTENT, NodePart.STAT),
    NodeEventKind.CHILDREN: (NodePart.CHILDREN,),
}
"""The parts of a node that are no longer known after an event. A change of rights has no event."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's content and stat.

    ``ctime`` and ``mtime`` are milliseconds since 1970 by ZooKeeper's clock; ``pzxid`` is the transaction that last
    changed the children, ``length`` the size of the content in bytes, which is known without the content too.
    """

    data: bytes
    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int
    ctime: int = 0
    mtime: int = 0
    cversion: int = 0
    pzxid: int = 0
    length: int = 0
    children: int = 0


FORBIDDEN: Final = Node(UNREADABLE, -2, -2, -2, 0)
"""Stands for an existing node whose rights forbid us to read it. (Servers since 3.8.4 refuse its stat too.)

No node has its version; -1 would mean any version.
"""


class Wanted(NamedTuple):
    """One read of :meth:`~zkconsumer.zookeeper.node_requests.Requests.read_each`."""

    part: NodePart
    path: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to a :class:`Wanted`. ``node`` is None if it is missing or we may not read it (``forbidden``).

    ``names`` are the children's, without an order. ``rights`` is the ACL in words, without secrets.
    """

    wanted: Wanted
    node: Node | None = None
    names: tuple[str, ...] = ()
    rights: str = ""
    forbidden: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Paths to read in one round trip, each in one list.

    - ``nodes``: contents, with a watch, also on missing nodes;
    - ``existing``: contents, with a watch only on nodes that exist;
    - ``plain``: contents without a watch;
    - ``stats``: stats without contents and without a watch;
    - ``children``: names of the children, with a watch, also on missing nodes;
    - ``rare``: the same for nodes that hardly ever exist; it costs less if they do not.
    """

    nodes: Sequence[str] = ()
    existing: Sequence[str] = ()
    plain: Sequence[str] = ()
    stats: Sequence[str] = ()
    children: Sequence[str] = ()
    rare: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Return whether there is anything to read."""
        return any((self.nodes, self.existing, self.plain, self.stats, self.children, self.rare))


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a :class:`Look`: nodes, and names of children, by path; None for a missing node."""

    nodes: Mapping[str, Node | None] = field(default_factory=dict)
    children: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)


_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """What a server of the ensemble says by four-letter commands. None or empty is what it does not say.

    ``sessions`` maps a session's id, as nodes show it, to (client address, negotiated timeout), of the clients that are
    connected to this server. Timeouts and ticks are in milliseconds. ``problem`` says why something is unknown.
    """

    address: str
    version: str = ""
    mode: str = ""
    tick_time: int | None = None
    min_session_timeout: int | None = None
    max_session_timeout: int | None = None
    statistics: Mapping[str, str] = field(default_factory=dict)
    sessions: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    problem: str = ""

    @property
    def multi_read(self) -> bool:
        """Whether it knows ``multiRead``, as servers do since 3.6."""
        found = _RELEASE.match(self.version)
        return found is not None and (int(found[1]), int(found[2])) >= (3, 6)
