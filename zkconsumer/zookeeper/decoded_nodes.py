"""What nodes say, decoded once for each content: whoever looks at a group of a thousand members decodes what changed.

Owned by one thread. The original parses every registration and every topic again for every event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from zkconsumer.errors import MalformedNodeError
from zkconsumer.zookeeper.node_values import Node

T = TypeVar("T")


class Decoded(Generic[T]):
    """Nodes of one kind.

    Arguments: ``decode`` makes a value of bytes and a path, or raises MalformedNodeError; ``meanwhile`` is called
    before each, for there may be thousands.
    """

    def __init__(self, decode: Callable[[bytes, str], T], meanwhile: Callable[[], None] = lambda: None) -> None:
        self._decode = decode
        self._meanwhile = meanwhile
        self._known: dict[str, tuple[Node, T | MalformedNodeError]] = {}

    def of(self, nodes: Mapping[str, Node | None]) -> tuple[dict[str, T], dict[str, str]]:
        """The values of the nodes that exist, by path, and of those that cannot be read the reasons. What is known of
        any other path is forgotten.
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
        # the content too: a ZooKeeper that lost its data numbers its transactions from the start again
        if known is not None and (known[0] is node or known[0] == node):
            return known
        self._meanwhile()
        try:
            return node, self._decode(node.data, path)
        except MalformedNodeError as e:
            return node, e
