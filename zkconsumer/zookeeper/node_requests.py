"""Requests to ZooKeeper, each with a deadline. Lists of paths are sent at once and answered in one round trip.

Any thread may call the operations. Each sends at once, waits no longer than its deadline, and raises an error of this
package. Kazoo's callback thread runs the watches, which must not block.

The original (zkclient) repeats every operation without limit, across connection loss and even expiry. So a claim that
began in one session could be performed in the next. Here an operation fails, and the group's thread looks again.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from threading import Event
from typing import Any, NamedTuple

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization
from kazoo.protocol.serialization import Exists, GetACL, GetChildren2, GetData
from kazoo.protocol.states import EventType, WatchedEvent

from zkconsumer.errors import (
    NotPermittedError,
    RegistryAuthenticationError,
    RegistryError,
    RegistryUnavailableError,
    SessionLostError,
)
from zkconsumer.runtime.deadline import Deadline
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
from zkconsumer.zookeeper.server_connection import queued_together
from zkconsumer.zookeeper.zookeeper_security import ZooKeeperSecurity

PARENT_DATA = b""

_KINDS = {
    EventType.CREATED: NodeEventKind.CREATED,
    EventType.DELETED: NodeEventKind.DELETED,
    EventType.CHANGED: NodeEventKind.CHANGED,
    EventType.CHILD: NodeEventKind.CHILDREN,
}


_PERMISSIONS = ((4, "c"), (8, "d"), (1, "r"), (2, "w"), (16, "a"))

AT_ONCE = 512
"""Reads of :meth:`Requests.read_each` that are under way at first. A level of most groups is one round trip."""
AT_ONCE_MOST = 4096
PARTS = 4
"""The parts in which they are sent: while one is handled, the others are under way."""
BYTES_AT_ONCE = 16 * 1024 * 1024
"""Answers of about so many bytes may be under way: large nodes are read fewer at a time."""
MULTI_READ, FIRST_MULTI_READ, MULTI_READ_BYTES = 64, 16, 1024 * 1024
"""The most contents in one ``multiRead``, those in one before any size is known, and the bytes of an answer, about."""


class NodeFailure(Enum):
    """Why one operation of a transaction failed."""

    NO_NODE = "no such node"
    NODE_EXISTS = "the node exists"
    BAD_VERSION = "the node's version is another"
    NO_AUTH = "not permitted"
    OTHER = "refused"


_FAILURES = {
    exceptions.NoNodeError: NodeFailure.NO_NODE,
    exceptions.NodeExistsError: NodeFailure.NODE_EXISTS,
    exceptions.BadVersionError: NodeFailure.BAD_VERSION,
    exceptions.NoAuthError: NodeFailure.NO_AUTH,
}


class Transaction:
    """The operations of one all-or-nothing request, in order."""

    def __init__(self, request: Any, acl: Callable[[str], Any] = lambda _: None) -> None:
        self._request = request
        self._acl = acl

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node, with the rights of its path."""
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


_HEAD, _INT = serialization.multiheader_struct, serialization.int_struct
_STAT_SIZE = serialization.stat_struct.size


class MultiRead:
    """The request ``multiRead`` (ZOOKEEPER-3402), which kazoo lacks: contents, or classes of errors."""

    type = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        """Return the request's body."""
        begin, end = _HEAD.pack(GetData.type, False, -1), _HEAD.pack(-1, True, -1)
        return b"".join([*(begin + GetData(path, None).serialize() for path in self._paths), end])

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """Return the answers. Raises kazoo's MarshallingError if there are not as many as paths."""
        found: list[Any] = []
        try:
            for _ in self._paths:
                kind, done, code = _HEAD.unpack_from(data, offset)
                offset += _HEAD.size
                (length,) = _INT.unpack_from(data, offset)
                if done or (kind != GetData.type and (kind != -1 or code not in exceptions.EXCEPTIONS)):
                    raise exceptions.MarshallingError(f"{len(found)} answers for {len(self._paths)} nodes")
                found.append(exceptions.EXCEPTIONS[code] if kind == -1 else GetData.deserialize(data, offset))
                offset += _INT.size + (0 if kind == -1 else max(0, length) + _STAT_SIZE)
            if not _HEAD.unpack_from(data, offset)[1]:
                raise exceptions.MarshallingError(f"more than {len(found)} answers for so many nodes")
        except struct.error as e:
            raise exceptions.MarshallingError(f"an answer for {len(self._paths)} nodes is cut off") from e
        return found


class _OneOfMany(NamedTuple):
    """The answer for one node of a :class:`MultiRead`."""

    result: Any
    number: int

    def get(self, timeout: float | None = None) -> Any:
        """Return the answer, or raise its error. Raises KazooTimeoutError if none came in time."""
        answer = self.result.get(timeout=timeout)[self.number]
        if isinstance(answer, type):
            raise answer
        return answer


class Requests(ABC):
    """The operations on one ZooKeeper, over whatever client there is at the time.

    ``multi_read`` is set while all servers know ``multiRead``, as they do since 3.6. An older one ends the connection.

    Arguments: ``hosts`` names the servers in errors; ``security`` has the rights on created nodes.
    """

    def __init__(self, hosts: str, security: ZooKeeperSecurity) -> None:
        self.hosts = hosts
        self.multi_read = Event()
        self._security = security
        self._watchers: dict[Watch, Callable[[WatchedEvent], None]] = {}

    @abstractmethod
    def _connected_client(self) -> KazooClient:
        """Return the client to ask. Raises RegistryError if none is connected."""

    def read(
        self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None, *, watch_missing: bool = True
    ) -> list[Node | None]:
        """Return the nodes at ``paths``, None for a missing one. Leaves a watch on each.

        Missing nodes are watched only with ``watch_missing``. A node that we may not read is :data:`FORBIDDEN` and not
        watched, so that the others can be read.
        """
        if watch is None:
            wanted = Look(plain=paths)
        else:
            wanted = Look(nodes=paths) if watch_missing else Look(existing=paths)
        found = self.look(wanted, deadline, watch).nodes
        return [found[path] for path in paths]

    def children(self, path: str, deadline: Deadline, watch: Watch | None = None) -> tuple[str, ...] | None:
        """Return the names of a node's children, None if it is missing. Leaves a watch in either case."""
        return self.look(Look(children=[path]), deadline, watch).children[path]

    def look(self, wanted: Look, deadline: Deadline, watch: Watch | None = None) -> Seen:
        """Read several lists of paths in one round trip. A second trip watches missing and reads ``rare`` nodes."""
        client = self._connected_client()
        watcher = self._watcher(watch)
        contents = [(path, client.get_async(path, watcher)) for path in (*wanted.nodes, *wanted.existing)]
        contents += [(path, client.get_async(path)) for path in wanted.plain]
        contents += [(path, client.exists_async(path)) for path in wanted.stats]
        names = [(path, client.get_children_async(path, watcher)) for path in wanted.children]
        rare = [(path, client.exists_async(path, watcher)) for path in wanted.rare]
        _last(contents + names + rare, deadline)
        found = {path: self._content(result, deadline, path) for path, result in contents}
        listed = {path: self._await(result, deadline, path) for path, result in names}
        present = [path for path, result in rare if self._await(result, deadline, path) is not None]
        listed |= {path: None for path, _ in rare if path not in present}
        # a missing node takes no data watch: leave one for its creation, and read again a node that just came
        missing = [path for path in wanted.nodes if found[path] is None] if watch is not None else []
        childless = [path for path, _ in names if listed[path] is None] if watch is not None else []
        armed = [(path, client.exists_async(path, watcher)) for path in missing]
        parents = [(path, client.exists_async(path, watcher)) for path in childless]
        late = [(path, client.get_children_async(path, watcher)) for path in present]
        _last(armed + parents + late, deadline)
        for path, result in armed:
            if self._await(result, deadline, path) is not None:
                found[path] = self._content(client.get_async(path, watcher), deadline, path)
        for path, result in parents:
            if self._await(result, deadline, path) is not None:
                listed[path] = self._await(client.get_children_async(path, watcher), deadline, path)
        listed |= {path: self._await(result, deadline, path) for path, result in late}
        return Seen(found, {path: None if known is None else tuple(known) for path, known in listed.items()})

    def read_each(self, wanted: Iterable[Wanted], deadline: Deadline, watch: Watch | None = None) -> Iterator[Reading]:
        """Yield the answer to each read, in order; some of the reads are under way at the same time.

        Leaves a ``watch`` on each node whose content, stat or children were read, and on a missing node whose stat was.

        For many nodes: what the caller drops takes no memory. The number under way starts at :data:`AT_ONCE`, grows
        with small answers, and shrinks with large ones. Contents without a watch are read many by one request if
        :attr:`multi_read`. Raises RegistryError if ZooKeeper is lost or late; the answers until then were yielded.
        """
        client, watcher = self._connected_client(), self._watcher(watch)
        waiting = iter(wanted)
        window: deque[tuple[list[Wanted], list[Any], Any]] = deque()
        room, mean, under_way = AT_ONCE, 0.0, 0
        while True:
            while under_way < room:
                part = list(islice(waiting, min(room - under_way, room // PARTS + 1)))
                if not part:
                    break
                most = min(MULTI_READ, int(MULTI_READ_BYTES / (mean + 256)) or 1) if mean else FIRST_MULTI_READ
                window.append((part, *self._queued(client, part, watcher, most)))
                under_way += len(part)
            if not window:
                return
            part, results, last = window.popleft()
            under_way -= len(part)
            last.wait(deadline.remaining())
            for one, result in zip(part, results, strict=True):
                try:
                    reading = self._reading(one, result, deadline)
                except RegistryError:
                    if any(type(lost) is _OneOfMany for sent in (results, *(w[1] for w in window)) for lost in sent):
                        self.multi_read.clear()  # perhaps an older server stands behind the same name
                    raise
                size = reading.node.length if reading.node is not None and one.part is NodePart.CONTENT else 0
                mean += (max(size, sum(map(len, reading.names))) - mean) / 8
                room = max(1, min(room + 1, AT_ONCE_MOST, int(BYTES_AT_ONCE / (mean + 256))))
                yield reading

    def _queued(self, client: KazooClient, part: Sequence[Wanted], watcher: Any, most: int) -> tuple[list[Any], Any]:
        """Queue reads, up to ``most`` contents in a request. Return their results, and the one that comes last."""
        if watcher is not None or not self.multi_read.is_set():
            results = queued_together(client, [_request(client, one, watcher) for one in part])
            return results, results[-1]
        alone = {n: _request(client, one, None) for n, one in enumerate(part) if one.part is not NodePart.CONTENT}
        contents = [n for n in range(len(part)) if n not in alone]
        many = [contents[begin : begin + most] for begin in range(0, len(contents), most)]
        reads = (MultiRead([_absolute(client, part[n].path) for n in some]) for some in many)
        results = queued_together(client, [*alone.values(), *reads])
        found = dict(zip(alone, results, strict=False))
        for some, result in zip(many, results[len(alone) :], strict=True):
            found |= {n: _OneOfMany(result, place) for place, n in enumerate(some)}
        return [found[n] for n in range(len(part))], results[-1]

    def _reading(self, one: Wanted, result: Any, deadline: Deadline) -> Reading:
        try:
            answer = self._await(result, deadline, one.path)
        except (NotPermittedError, UnicodeDecodeError):  # a name of a user in an ACL, in the server's old encoding
            return Reading(one, forbidden=True)
        if answer is None:
            return Reading(one)
        if one.part is NodePart.STAT:
            return Reading(one, _node(b"", answer))
        first, stat = answer
        if one.part is NodePart.CONTENT:
            return Reading(one, _node(first, stat))
        if one.part is NodePart.CHILDREN:
            return Reading(one, _node(b"", stat), names=tuple(first))
        return Reading(one, _node(b"", stat), rights=_rights(first))

    def _content(self, result: Any, deadline: Deadline, path: str) -> Node | None:
        """Return the node in an answer, with its content or with its stat alone."""
        try:
            answer = self._await(result, deadline, path)
        except NotPermittedError:
            return FORBIDDEN
        if answer is None:
            return None
        data, stat = (b"", answer) if hasattr(answer, "czxid") else answer
        return _node(data, stat)

    def stat(self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None) -> list[Node | None]:
        """Return the nodes as :meth:`read` does, without their contents."""
        client = self._connected_client()
        watcher = self._watcher(watch)
        pending = [(path, client.exists_async(path, watcher)) for path in paths]
        _last(pending, deadline)
        return [self._content(result, deadline, path) for path, result in pending]

    def create(self, path: str, data: bytes, deadline: Deadline, *, ephemeral: bool = False) -> bool:
        """Create a node whose parents exist; return False if it exists already."""
        client = self._connected_client()
        try:
            request = client.create_async(path, data, acl=self._security.acl(path), ephemeral=ephemeral)
            self._await(request, deadline, path, missing_is_none=False)
        except exceptions.NodeExistsError:
            return False
        except exceptions.NoNodeError as e:
            raise RegistryError(f"{path}: its parent does not exist") from e
        return True

    def ensure(self, paths: Sequence[str], deadline: Deadline) -> None:
        """Create missing persistent nodes and their parents."""
        for error in self.ensure_each(paths, deadline).values():
            raise error

    def ensure_each(self, paths: Sequence[str], deadline: Deadline) -> dict[str, NotPermittedError]:
        """Create nodes as :meth:`ensure` does, but return the ``paths`` that we may not create, with the errors."""
        client = self._connected_client()
        levels: dict[int, set[str]] = {}
        for path in paths:
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                levels.setdefault(depth, set()).add("/" + "/".join(parts[:depth]))
        missing = [p for p, node in zip(paths, self.stat(paths, deadline), strict=True) if node is None]
        refused: dict[str, NotPermittedError] = {}
        for depth in sorted(levels) if missing else ():
            for path in levels[depth]:
                if (parent := path.rpartition("/")[0]) in refused:
                    refused[path] = refused[parent]
            pending = [
                (path, client.create_async(path, PARENT_DATA, acl=self._security.acl(path)))
                for path in sorted(levels[depth] - refused.keys())
            ]
            doubtful: dict[str, NotPermittedError] = {}
            for path, result in pending:
                try:
                    self._await(result, deadline, path, missing_is_none=False)
                except exceptions.NodeExistsError:
                    continue
                except NotPermittedError as e:
                    doubtful[path] = e
                except exceptions.NoNodeError as e:
                    raise RegistryError(f"{path}: its parent vanished while it was made") from e
            # a server checks the rights on the parent before it sees that the node exists (KAFKA-5691)
            nodes = zip(doubtful, self.stat(list(doubtful), deadline), strict=True)
            refused.update((path, doubtful[path]) for path, node in nodes if node in (None, FORBIDDEN))
        return {path: refused[path] for path in paths if path in refused}

    def write(self, path: str, data: bytes, deadline: Deadline, version: int = -1) -> bool:
        """Set a node's content if its version still is ``version`` (-1: any); return False if not, or if it is gone."""
        client = self._connected_client()
        try:
            return self._await(client.set_async(path, data, version), deadline, path) is not None
        except exceptions.BadVersionError:
            return False

    def delete(self, path: str, deadline: Deadline, version: int = -1) -> bool:
        """Delete a node that still has ``version`` (-1: any). Return whether this call deleted the node."""
        client = self._connected_client()
        try:
            self._await(client.delete_async(path, version), deadline, path, missing_is_none=False)
        except (exceptions.NoNodeError, exceptions.BadVersionError, exceptions.NotEmptyError):
            return False
        return True

    def transact(self, build: Callable[[Transaction], None], deadline: Deadline) -> list[NodeFailure | None]:
        """Do all operations or none.

        Returns one entry for each operation: all None if everything was done. Otherwise the failed operation has its
        cause, and the others, which were rolled back, have None.
        """
        client = self._connected_client()
        request = client.transaction()
        build(Transaction(request, self._security.acl))
        if not request.operations:
            return []
        results = self._await(request.commit_async(), deadline)
        return [failure_of(result) for result in results]

    def _watcher(self, watch: Watch | None) -> Callable[[WatchedEvent], None] | None:
        """Return kazoo's form of a watch: the same one for the same watch, so that a watch set twice fires once."""
        if watch is None:
            return None
        known = self._watchers.get(watch)
        if known is None:

            def fired(event: WatchedEvent) -> None:
                # the other kind of event is a change of the connection, which the session reports itself
                kind = _KINDS.get(event.type)
                if kind is not None:
                    watch(NodeEvent(kind, event.path))

            known = self._watchers.setdefault(watch, fired)
        return known

    def _await(self, result: Any, deadline: Deadline, path: str = "/", *, missing_is_none: bool = True) -> Any:
        try:
            return result.get(timeout=deadline.remaining())
        except exceptions.NoNodeError:
            if missing_is_none:
                return None
            raise
        except (exceptions.NodeExistsError, exceptions.BadVersionError, exceptions.NotEmptyError):
            raise
        except (exceptions.SessionExpiredError, exceptions.ConnectionClosedError) as e:
            raise SessionLostError(f"{path}: the ZooKeeper session ended during the request") from e
        except exceptions.SessionClosedRequireSaslError as e:
            raise RegistryAuthenticationError(
                f"ZooKeeper at {self.hosts!r} demands a login of another kind than ours ({self._security})"
            ) from e
        except (exceptions.NoAuthError, exceptions.AuthFailedError) as e:
            raise NotPermittedError(
                f"{path}: ZooKeeper refused the operation ({type(e).__name__}); check the node's ACL"
            ) from e
        except (exceptions.ConnectionLoss, KazooTimeoutError) as e:
            raise RegistryUnavailableError(f"{path}: ZooKeeper did not answer in time ({type(e).__name__})") from e
        except exceptions.KazooException as e:
            raise RegistryError(f"{path}: {type(e).__name__} {e}") from e


def _last(requests: Sequence[tuple[str, Any]], deadline: Deadline) -> None:
    """Wait for the last of requests that were sent at once: they are answered in order.

    Waking up for each costs more than the answers themselves.
    """
    if requests:
        requests[-1][1].wait(deadline.remaining())


def _node(data: bytes, stat: Any) -> Node:
    # one object for equal numbers: a server of metrics keeps a hundred thousand nodes that nobody has written again
    czxid, ctime = stat.czxid, stat.ctime
    mzxid, mtime = (czxid if stat.mzxid == czxid else stat.mzxid), (ctime if stat.mtime == ctime else stat.mtime)
    return Node(
        *(data, stat.version, czxid, mzxid, signed(stat.ephemeralOwner), ctime, mtime),
        *(stat.cversion, czxid if stat.pzxid == czxid else stat.pzxid, stat.dataLength, stat.numChildren),
    )


def _request(client: KazooClient, one: Wanted, watcher: Callable[[WatchedEvent], None] | None) -> Any:
    """Return kazoo's request for a read."""
    path = _absolute(client, one.path)
    if one.part is NodePart.RIGHTS:
        return GetACL(path)
    return _READS[one.part](path, watcher)


def _absolute(client: KazooClient, path: str) -> str:
    """Return a path with the chroot. Kazoo would look at each part of it."""
    return client.chroot + path if path != "/" else client.chroot or "/"


_READS = {NodePart.CONTENT: GetData, NodePart.CHILDREN: GetChildren2, NodePart.STAT: Exists}


def _rights(acl: Sequence[Any]) -> str:
    """Return an ACL in words: ``world:anyone=cdrwa, digest:alice=r``. The hash in a digest's id is left out."""
    entries = []
    for one in acl:
        scheme, who = str(one.id.scheme), str(one.id.id)
        name = who.partition(":")[0] if scheme == "digest" else who
        entries.append(f"{scheme}:{name}={''.join(letter for bit, letter in _PERMISSIONS if one.perms & bit)}")
    return ", ".join(entries)


def signed(session_id: int) -> int:
    """Return a session's id as ``ephemeralOwner`` shows it: signed, while kazoo shows some unsigned."""
    return session_id - (1 << 64) if session_id >= 1 << 63 else session_id


def failure_of(result: Any) -> NodeFailure | None:
    """Return the failure in kazoo's result of one operation; None if it was done, or rolled back with another."""
    undone = isinstance(result, exceptions.RolledBackError | exceptions.RuntimeInconsistency)
    if undone or not isinstance(result, Exception):
        return None
    return _FAILURES.get(type(result), NodeFailure.OTHER)
