"""Several operations in one request to ZooKeeper, done all or none, and why one of them failed.

Used by whoever holds a session (:meth:`zkconsumer.zookeeper.session.Session.transact`); no state of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)


class NodeFailure(Enum):
    """Why one operation of a transaction failed."""

    NO_NODE = "no such node"
    NODE_EXISTS = "the node exists"
    BAD_VERSION = "the node's version is another"
    NO_AUTH = "not permitted"
    OTHER = "refused"


class Transaction:
    """The operations of one all-or-nothing request, in order."""

    def __init__(self, request: Any, acl: Callable[[str], Any] = lambda _: None) -> None:
        self._request = request
        self._acl = acl

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node, with the rights that its path asks for."""
        self._request.create(path, data, acl=self._acl(path), ephemeral=ephemeral)

    def check(self, path: str, version: int) -> None:
        """Fail unless the node's version is ``version``."""
        self._request.check(path, version)

    def write(self, path: str, data: bytes, version: int = -1) -> None:
        """Set a node's content if its version is ``version``."""
        self._request.set_data(path, data, version)

    def delete(self, path: str, version: int = -1) -> None:
        """Delete a node if its version is ``version``."""
        self._request.delete(path, version)


def failure_of(result: Any) -> NodeFailure | None:
    """What kazoo's result of one operation means; None: it was done, or rolled back for another's failure."""
    if isinstance(result, RolledBackError | RuntimeInconsistency) or not isinstance(result, Exception):
        return None
    if isinstance(result, NoNodeError):
        return NodeFailure.NO_NODE
    if isinstance(result, NodeExistsError):
        return NodeFailure.NODE_EXISTS
    if isinstance(result, BadVersionError):
        return NodeFailure.BAD_VERSION
    if isinstance(result, NoAuthError):
        return NodeFailure.NO_AUTH
    return NodeFailure.OTHER
