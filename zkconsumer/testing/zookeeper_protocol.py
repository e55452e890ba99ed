"""ZooKeeper's protocol: decodes requests, performs them on a :class:`FakeZooKeeper`, and encodes answers and events.

No socket, no thread. The server passes one request at a time, under the server's lock ``_order``. Answers and events go
to ``send`` in the order in which the client has to see them.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.testing.node_tree import CHILD_WATCH, DATA_WATCH, RefusedOperation
from zkconsumer.testing.wire_types import (
    BOOLEAN,
    BYTES,
    INT32,
    TEXT,
    MalformedRequestError,
    WireReader,
    WireWriter,
)
from zkconsumer.zookeeper.node_requests import NodeFailure
from zkconsumer.zookeeper.node_values import Node, NodeEvent, NodeEventKind

_OK, _NO_NODE, _BAD_VERSION, _NODE_EXISTS, _NOT_EMPTY, _UNIMPLEMENTED = (0, -101, -103, -110, -111, -6)
_NO_CHILDREN_OF_EPHEMERALS, _INCONSISTENT, _NO_AUTH = -108, -2, -102
_CODES = {
    NodeFailure.NO_NODE: _NO_NODE,
    NodeFailure.NODE_EXISTS: _NODE_EXISTS,
    NodeFailure.BAD_VERSION: _BAD_VERSION,
    NodeFailure.NO_AUTH: _NO_AUTH,
}
_EVENTS = {NodeEventKind.CREATED: 1, NodeEventKind.DELETED: 2, NodeEventKind.CHANGED: 3, NodeEventKind.CHILDREN: 4}
_CREATE, _DELETE, _EXISTS, _GET, _SET, _GET_ACL, _SET_ACL = 1, 2, 3, 4, 5, 6, 7
_CHILDREN, _SYNC, _PING, _CHILDREN2, _CHECK, _MULTI, _CREATE2, _AUTH = (8, 9, 11, 12, 13, 14, 15, 100)
_EPHEMERAL, _SEQUENTIAL = 1, 2
_READ, _ALL_RIGHTS = 1, 31
_CONNECTED = 3
_EVENT_XID = -1
_HEAD = Struct(">iqi")
"""The head of an answer: xid, zxid, error code."""
_MULTI_HEAD = Struct(">i?i")
"""The head of one result in a transaction: kind, whether it is the end, error code."""
_STAT = Struct(">qqqqiiiqiiq")


class ZooKeeperError(Exception):
    """A request failed with an error code that only the protocol has."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}")
        self.code = code


def _code(error: ZooKeeperError | RefusedOperation) -> int:
    return error.code if isinstance(error, ZooKeeperError) else _CODES.get(error.failure, _NOT_EMPTY)


class ConnectionRequests:
    """The requests of one connection. ``send`` takes an answer or event and must not block."""

    def __init__(self, zookeeper: FakeZooKeeper, session_id: int, send: Callable[[bytes], None]) -> None:
        self._zookeeper = zookeeper
        self._session_id = session_id
        self._send = send
        self._open = True
        self._kinds: dict[int, Callable[[WireReader, WireWriter], None]] = {
            _CREATE: self._create,
            _CREATE2: self._create2,
            _DELETE: self._delete,
            _EXISTS: self._exists,
            _GET: self._get,
            _SET: self._set,
            _GET_ACL: self._get_acl,
            _SET_ACL: self._set_acl,
            _CHILDREN: self._get_children,
            _CHILDREN2: self._get_children2,
            _SYNC: self._sync,
            _MULTI: self._multi,
            _PING: self._nothing,
            _AUTH: self._nothing,
        }

    def perform(self, xid: int, kind: int, reader: WireReader) -> None:
        """Perform a request. Send its events, then its answer. Raises MalformedRequestError."""
        body = WireWriter()
        code = _OK
        try:
            with self._zookeeper.at_once():
                self._kinds.get(kind, self._unknown)(reader, body)
        except (ZooKeeperError, RefusedOperation) as error:
            code, body = _code(error), WireWriter()
        self._send(_HEAD.pack(xid, self._zookeeper.zxid, code) + body.data)

    def forget_watches(self) -> None:
        """Drop the watches of a closed connection."""
        self._open = False
        self._zookeeper.drop_watches(self)

    def _event(self, event: NodeEvent) -> None:
        if self._open:
            writer = WireWriter()
            INT32.write(writer, _EVENTS[event.kind])
            INT32.write(writer, _CONNECTED)
            TEXT.write(writer, event.path)
            self._send(_HEAD.pack(_EVENT_XID, -1, _OK) + writer.data)

    def _watch(self, kind: str, path: str, wanted: bool) -> None:
        if wanted:
            self._zookeeper.watch(kind, path, self._event, self)

    def _read(self, path: str) -> Node:
        """Return a node that the session may read."""
        node = self._zookeeper.expect(path)
        self._zookeeper.permit("read", path)
        return node

    # ---- requests ----

    def _unknown(self, reader: WireReader, body: WireWriter) -> None:
        del reader, body
        raise ZooKeeperError(_UNIMPLEMENTED)

    def _nothing(self, reader: WireReader, body: WireWriter) -> None:
        del reader, body

    def _create(self, reader: WireReader, body: WireWriter) -> None:
        TEXT.write(body, self._created(reader))

    def _create2(self, reader: WireReader, body: WireWriter) -> None:
        path = self._created(reader)
        TEXT.write(body, path)
        self._stat(body, path)

    def _created(self, reader: WireReader) -> str:
        """Make a node. Return the path, with the number of a sequential node."""
        zookeeper, path, data = self._zookeeper, _path(reader), BYTES.read(reader) or b""
        _acl(reader)
        flags, parent = INT32.read(reader), path.rsplit("/", 1)[0] or "/"
        if flags & _SEQUENTIAL:
            path = f"{path}{zookeeper.children_made.get(parent, 0):010d}"
        above = zookeeper.node(parent)
        if above is not None and above.ephemeral_owner:
            raise ZooKeeperError(_NO_CHILDREN_OF_EPHEMERALS)
        zookeeper.permit("create", path)
        zookeeper.create(path, data, self._session_id if flags & _EPHEMERAL else 0)
        return path

    def _delete(self, reader: WireReader, body: WireWriter) -> None:
        del body
        path, version = _path(reader), INT32.read(reader)
        self._zookeeper.permit("delete", path)
        self._zookeeper.delete(path, version)

    def _exists(self, reader: WireReader, body: WireWriter) -> None:
        path = _path(reader)
        self._watch(DATA_WATCH, path, BOOLEAN.read(reader))
        self._read(path)  # since ZooKeeper 3.9, exists needs the right to read
        self._stat(body, path)

    def _get(self, reader: WireReader, body: WireWriter) -> None:
        path, watched = _path(reader), BOOLEAN.read(reader)
        node = self._read(path)
        self._watch(DATA_WATCH, path, watched)
        BYTES.write(body, node.data)
        self._stat(body, path)

    def _set(self, reader: WireReader, body: WireWriter) -> None:
        path, data, version = _path(reader), BYTES.read(reader) or b"", INT32.read(reader)
        self._zookeeper.permit("write", path)  # only now: a transaction reads on after a refusal
        self._zookeeper.write(path, data, version)
        self._stat(body, path)

    def _get_acl(self, reader: WireReader, body: WireWriter) -> None:
        path = _path(reader)
        self._zookeeper.expect(path)
        INT32.write(body, 1)
        INT32.write(body, _ALL_RIGHTS)
        TEXT.write(body, "world")
        TEXT.write(body, "anyone")
        self._stat(body, path)

    def _set_acl(self, reader: WireReader, body: WireWriter) -> None:
        path = _path(reader)
        for_all = [permissions for permissions, scheme in _acl(reader) if scheme == "world"]
        if not any(permissions & _READ for permissions in for_all):
            self._zookeeper.refuse(path, "read")
        self._stat(body, path)

    def _get_children(self, reader: WireReader, body: WireWriter) -> None:
        path, watched = _path(reader), BOOLEAN.read(reader)
        self._read(path)
        self._watch(CHILD_WATCH, path, watched)
        names = self._zookeeper.children(path)
        INT32.write(body, len(names))
        for name in names:
            TEXT.write(body, name)

    def _get_children2(self, reader: WireReader, body: WireWriter) -> None:
        path = _path(WireReader(reader.rest))
        self._get_children(reader, body)
        self._stat(body, path)

    def _sync(self, reader: WireReader, body: WireWriter) -> None:
        TEXT.write(body, _path(reader))

    def _multi(self, reader: WireReader, body: WireWriter) -> None:
        """Perform a transaction. If one operation fails, the tree stays unchanged and each result is an error."""
        codes: list[int] = []
        results: list[tuple[int, bytes]] = []
        with self._zookeeper.transaction() as undo:
            while True:
                kind, done = INT32.read(reader), BOOLEAN.read(reader)
                INT32.read(reader)
                if done:
                    break
                result = WireWriter()
                failed = bool(codes and codes[-1])
                codes.append(_INCONSISTENT if failed else _OK)
                try:
                    self._one(kind, reader, result, failed)
                except (ZooKeeperError, RefusedOperation) as error:
                    codes[-1] = _code(error)
                results.append((kind, bytes(result.data)))
            if any(codes):
                undo()
                results = [(-1, code.to_bytes(4, "big", signed=True)) for code in codes]
        for (kind, data), code in zip(results, codes, strict=True):
            body.data += _MULTI_HEAD.pack(kind, False, code) + data
        body.data += _MULTI_HEAD.pack(-1, True, -1)

    def _one(self, kind: int, reader: WireReader, result: WireWriter, skip: bool) -> None:
        """Perform one operation of a transaction. After a failure (``skip``) only read it."""
        if kind == _CHECK:
            path, version = _path(reader), INT32.read(reader)
            if not skip:
                self._zookeeper.expect(path, version)
        elif kind not in (_CREATE, _DELETE, _SET):
            raise MalformedRequestError(f"operation {kind} in a transaction")
        elif skip:
            _skip(kind, reader)
        else:
            self._kinds[kind](reader, result)

    def _stat(self, body: WireWriter, path: str) -> None:
        node = self._zookeeper.expect(path)
        body.data += _STAT.pack(
            *(node.czxid, node.mzxid, node.ctime, node.mtime, node.version, node.cversion, 0, node.ephemeral_owner),
            *(len(node.data), node.children, node.pzxid),
        )


def _path(reader: WireReader) -> str:
    path: Any = TEXT.read(reader)
    if not path or not path.startswith("/"):
        raise MalformedRequestError(f"not a path: {path!r}")
    return str(path)


def _acl(reader: WireReader) -> list[tuple[int, str]]:
    """Read an access list: permissions and scheme of each entry."""
    found = []
    for _ in range(INT32.read(reader)):
        found.append((int(INT32.read(reader)), str(TEXT.read(reader))))
        TEXT.read(reader)
    return found


def _skip(kind: int, reader: WireReader) -> None:
    TEXT.read(reader)
    if kind != _DELETE:
        BYTES.read(reader)
    if kind == _CREATE:
        _acl(reader)
    INT32.read(reader)
