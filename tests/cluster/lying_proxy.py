"""A proxy to a real broker that changes some of the answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

from tests.timing import eventually
from zkconsumer.devcluster.server_process import LOOPBACK
from zkconsumer.testing.request_schemas import APIS

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")  # the kind of request, its version, the correlation id
_TIMEOUT_S = 60.0

Answer = dict[str, Any]


class Lie(NamedTuple):
    """A change of an answer to ``api``: ``body`` changes its fields, then ``frame`` changes its bytes.

    ``body`` returns False if the lie does not fit the answer, which is then unchanged. ``frame`` gets the answer with
    its length in front.
    """

    name: str
    api: str
    body: Callable[[Answer], object] = lambda answer: None
    frame: Callable[[bytes], bytes] = lambda data: data

    def __str__(self) -> str:
        return f"{self.api} {self.name}"


class LyingProxy:
    """A proxy from ``port`` to the broker at ``target``, until ``close``. Each connection has a thread."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._lies: list[Lie] = []
        self._lock = threading.Lock()
        self._ended = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, name="liar-accept", daemon=True)]
        self._threads[0].start()

    def tell(self, *lies: Lie) -> None:
        """Apply each lie once, in this order, to the next answer that it fits."""
        with self._lock:
            self._lies.extend(lies)

    def forget(self) -> None:
        """Remove all lies."""
        with self._lock:
            self._lies.clear()

    def wait_told(self) -> None:
        """Wait until all lies were told."""
        eventually(lambda: not self._lies, 20, lambda: f"still to be told: {', '.join(map(str, self._lies))}")

    def close(self) -> None:
        """End all connections and their threads."""
        self._ended = True
        with self._lock:
            sockets = [self._listener, *self._sockets]
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), name="liar", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target, _TIMEOUT_S) as server:
            with self._lock:
                self._sockets += [client, server]
            while not self._ended and (request := _frame(client)) is not None:
                server.sendall(request)
                answer = _frame(server)
                if answer is None:
                    return
                changed = self._changed(request, answer)
                client.sendall(changed)
                if not _whole(changed):  # the client cannot find the next answer
                    self._hold(client, changed)
                    return

    def _hold(self, client: socket.socket, said: bytes) -> None:
        """Let the client wait for missing bytes until it closes. If it got too many bytes, close the connection."""
        if len(said) >= _SIZE.size and _SIZE.unpack_from(said)[0] > len(said):
            client.settimeout(_TIMEOUT_S)
            while client.recv(4096):
                pass

    def _changed(self, request: bytes, answer: bytes) -> bytes:
        key, version, _ = _REQUEST.unpack_from(request, _SIZE.size)
        with self._lock:
            lie = self._lies[0] if self._lies else None
            api = None if lie is None else APIS[lie.api]
            if lie is None or api is None or api.key != key:
                return answer
            head = _SIZE.size + 4
            body = api.read_response(version, answer[head:])
            if lie.body(body) is False:
                return answer
            self._lies.pop(0)
        content = answer[_SIZE.size : head] + api.write_response(version, body)
        return lie.frame(_SIZE.pack(len(content)) + content)


def _whole(data: bytes) -> bool:
    return len(data) >= _SIZE.size and _SIZE.unpack_from(data)[0] == len(data) - _SIZE.size


def _frame(sock: socket.socket) -> bytes | None:
    """Return a request or an answer with its length, None if the other side has closed."""
    head = _exactly(sock, _SIZE.size)
    body = head and _exactly(sock, _SIZE.unpack(head)[0])
    return None if not head or body is None else head + body


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            return None
        data += more
    return bytes(data)


def partitions(answer: Answer) -> Iterator[Answer]:
    """Return the partitions with records in the answer to a fetch."""
    for topic in answer["responses"] or ():
        for partition in topic["partitions"] or ():
            if partition["records"]:
                yield partition
