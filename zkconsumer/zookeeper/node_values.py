"""What is asked of ZooKeeper's nodes, and what is told of them. Plain values; any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from zkconsumer.zookeeper.node_codecs import UNREADABLE


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


@dataclass(frozen=True, slots=True)
class Node:
    """A node's content and those parts of its stat that decisions need."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int


FORBIDDEN: Final = Node(UNREADABLE, -2, -2, -2, 0)
"""A node that is there, and of which ZooKeeper tells us nothing: its rights forbid us to read it. (Servers since 3.8.4
refuse its stat too.) No node has its version; -1 would mean any.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be read in one round trip, as paths, each in one list.

    Contents: ``nodes`` are watched, also where they are missing; ``existing`` only where they exist; ``plain`` not at
    all, and neither are ``stats``, of which no content is told. Names below a node: ``children``, watched, also where
    the node is missing; ``rare`` are the same of nodes that hardly ever exist, which costs less where they do not.
    """

    nodes: Sequence[str] = ()
    existing: Sequence[str] = ()
    plain: Sequence[str] = ()
    stats: Sequence[str] = ()
    children: Sequence[str] = ()
    rare: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to be read."""
        return any((self.nodes, self.existing, self.plain, self.stats, self.children, self.rare))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a :class:`Look` showed: nodes, and the names of children, by path; None for each that does not exist."""

    nodes: Mapping[str, Node | None] = field(default_factory=dict)
    children: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
