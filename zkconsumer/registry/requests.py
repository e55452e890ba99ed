"""What can be asked of ZooKeeper, each with a deadline; lists of paths are sent in one go and answered in one round
trip (pipelined).

Any thread may call the operations; nothing is kept here but the watches' form. Each sends at once, waits no longer than
its deadline, and raises one of this package's errors. Kazoo's callback thread runs the watches, which must not block.

The original (zkclient) retries every operation without limit across connection loss and even expiry, so that a claim
begun in one session could be executed in the next. Here an operation fails, and who owns the group's state looks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

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
from kazoo.protocol.states import EventType, WatchedEvent

from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    NotPermittedError,
    RegistryAuthenticationError,
    RegistryError,
    RegistryUnavailableError,
    SessionLostError,
)
from zkconsumer.registry.codecs import UNREADABLE
from zkconsumer.registry.security import RegistrySecurity
from zkconsumer.registry.transaction import NodeFailure, Transaction, failure_of

PARENT_DATA = b""


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


class Requests(ABC):
    """The operations on one ZooKeeper, over whatever client there is at the time.

    Arguments: ``hosts`` names the servers in errors; ``security`` tells the rights on what is created.
    """

    def __init__(self, hosts: str, security: RegistrySecurity) -> None:
        self.hosts = hosts
        self._security = security
        self._watchers: dict[Watch, Callable[[WatchedEvent], None]] = {}

    @abstractmethod
    def _connected_client(self) -> KazooClient:
        """The client to ask. Raises RegistryError where there is none that could answer."""

    def read(
        self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None, *, watch_missing: bool = True
    ) -> list[Node | None]:
        """The nodes at ``paths``, None for each that does not exist; pipelined. A watch is left on each, on the
        missing ones only with ``watch_missing``. One whose rights forbid us to read it is :data:`FORBIDDEN`, and not
        watched: it is not to keep anybody from reading the others.
        """
        client = self._connected_client()
        watcher = self._watcher(watch)
        pending = _together([client.get_async(path, watcher) for path in paths], deadline)
        found: list[Any] = []
        for path, result in zip(paths, pending, strict=True):
            try:
                found.append(self._await(result, deadline, path))
            except NotPermittedError:
                found.append(FORBIDDEN)
        if watch is not None and watch_missing:
            # a missing node takes no data watch: leave one for its creation, and look again where it just came
            missing = [index for index, node in enumerate(found) if node is None]
            armed = _together([client.exists_async(paths[index], watcher) for index in missing], deadline)
            for index, result in zip(missing, armed, strict=True):
                if self._await(result, deadline, paths[index]) is not None:
                    found[index] = self._await(client.get_async(paths[index], watcher), deadline, paths[index])
        return [node if node is None or node is FORBIDDEN else _node(node[0], node[1]) for node in found]

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
        found: list[Node | None] = []
        for path, result in zip(paths, pending, strict=True):
            try:
                stat = self._await(result, deadline, path)
                found.append(None if stat is None else _node(b"", stat))
            except NotPermittedError:
                found.append(FORBIDDEN)
        return found

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
                    if self.stat([path], deadline)[0] in (None, FORBIDDEN):
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


def _node(data: bytes, stat: Any) -> Node:
    return Node(data, stat.version, stat.czxid, stat.mzxid, signed(stat.ephemeralOwner))


def signed(session_id: int) -> int:
    """A session's id as ``ephemeralOwner`` shows it: signed, where kazoo shows some unsigned."""
    return session_id - (1 << 64) if session_id >= 1 << 63 else session_id
