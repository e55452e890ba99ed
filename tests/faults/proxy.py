"""A TCP proxy on the loopback interface that can break a link in the ways networks do.

One thread of each proxy moves all bytes (``selectors``); the driver's thread changes the mode. Modes: ``pass``;
``drop`` resets all connections and refuses new ones; ``blackhole`` accepts connections and drops all bytes, in one
direction or both. A delay holds all bytes back, in both directions. The proxy counts the frames to the server, each of
which has a length of four bytes in front (in ZooKeeper's and Kafka's protocol).
"""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading
from collections import deque
from time import monotonic
from typing import Any, Self

_CHUNK = 65536
_LINGER_RESET = struct.pack("ii", 1, 0)
_IDLE_S = 0.5
_FULL = 1 << 20


class _Frames:
    """A counter of the frames in a stream of bytes."""

    def __init__(self) -> None:
        self.count = 0
        self._head = b""
        self._body = 0

    def feed(self, data: bytes) -> None:
        while data:
            if self._body:
                taken = min(self._body, len(data))
                self._body -= taken
                data = data[taken:]
                continue
            wanted = 4 - len(self._head)
            self._head, data = self._head + data[:wanted], data[wanted:]
            if len(self._head) == 4:
                self._body = max(0, struct.unpack(">i", self._head)[0])
                self._head = b""
                self.count += 1


class _Side:
    """One end of a connection, with the bytes to write and their times."""

    def __init__(self, sock: socket.socket, to_server: bool) -> None:
        self.sock = sock
        self.to_server = to_server  # whether bytes from this side go to the server
        self.pending: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.other: _Side
        self.frames: _Frames | None = None
        self.reading = True
        self.ending = False


class Proxy:
    """A proxy from ``port`` to ``target``, until ``close``."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.requests = 0
        """Frames that went to the server."""
        self.connections = 0
        """Connections that were made through it."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._mode, self._swallow, self._delay, self._jitter = "pass", frozenset[str](), 0.0, 0.0
        self._sides: set[_Side] = set()
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._cut = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return f"127.0.0.1:{self.port}"

    # ---- the driver's ----

    def carry(self, delay: float = 0.0, jitter: float = 0.0) -> None:
        """Pass all bytes on with a ``delay`` in seconds, and up to ``jitter`` more."""
        self._set("pass", frozenset(), delay, jitter)

    def drop(self) -> None:
        """Reset every connection and refuse new ones."""
        self._cut = True
        self._set("drop", frozenset())

    def swallow(self, *directions: str) -> None:
        """Accept, and carry nothing ``up`` (to the server), ``down`` (to the client), or, by default, in either
        direction.
        """
        self._set("blackhole", frozenset(directions or ("up", "down")))

    def _set(self, mode: str, swallow: frozenset[str], delay: float = 0.0, jitter: float = 0.0) -> None:
        self._mode, self._swallow, self._delay, self._jitter = mode, swallow, delay, jitter
        self._nudge()

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def close(self) -> None:
        """End the proxy and its connections."""
        self._ended = True
        self._nudge()
        self._thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the proxy's thread ----

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.data in self._sides:
                    self._read(key.data)
            if self._cut:
                self._cut = False
                for side in list(self._sides):
                    self._end(side, reset=True)
            for side in list(self._sides):
                if side in self._sides:
                    self._watch(side)
                    self._write(side)
        for side in list(self._sides):
            self._end(side, reset=True)
        for sock in (self._listener, self._woken, self._wake):
            sock.close()
        self._selector.close()

    def _patience(self) -> float:
        due = min((side.pending[0][0] for side in self._sides if side.pending), default=monotonic() + _IDLE_S)
        # a peer that accepts no bytes is tried again soon; held bytes wait for a change of the mode
        held = any(self._held(side.other) for side in self._sides if side.pending)
        return max(0.005 if held else 0.0005, min(_IDLE_S, due - monotonic()))

    def _held(self, source: _Side) -> bool:
        return ("up" if source.to_server else "down") in self._swallow

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        if self._mode == "drop":
            self._reset(client)
            return
        try:
            server = socket.create_connection(self.target, 2.0)
        except OSError:
            self._reset(client)
            return
        self.connections += 1
        near, far = _Side(client, True), _Side(server, False)
        near.other, far.other, near.frames = far, near, _Frames()
        for side in (near, far):
            side.sock.setblocking(False)
            side.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sides.add(side)
            self._selector.register(side.sock, selectors.EVENT_READ, side)

    def _watch(self, side: _Side) -> None:
        """Read from a side only while its bytes can be passed on. Otherwise the sender's buffers fill up."""
        wanted = not self._held(side) and side.other.size < _FULL and not side.ending
        if wanted != side.reading:
            side.reading = wanted
            if wanted:
                self._selector.register(side.sock, selectors.EVENT_READ, side)
            else:
                self._selector.unregister(side.sock)

    def _read(self, side: _Side) -> None:
        if self._held(side):
            return
        try:
            data = side.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._end(side, reset=True)
            return
        if not data:
            if side.other.pending:
                side.ending = True  # the earlier bytes are still passed on
            else:
                self._end(side)
            return
        if side.frames is not None:
            before = side.frames.count
            side.frames.feed(data)
            self.requests += side.frames.count - before
        last = side.other.pending[-1][0] if side.other.pending else 0.0
        due = max(last, monotonic() + self._delay + random.random() * self._jitter)
        side.other.pending.append((due, data))
        side.other.size += len(data)

    def _write(self, side: _Side) -> None:
        while side.pending and side.pending[0][0] <= monotonic() and not self._held(side.other):
            due, data = side.pending.popleft()
            side.size -= len(data)
            try:
                sent = side.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._end(side, reset=True)
                return
            if sent < len(data):
                side.pending.appendleft((due, data[sent:]))
                side.size += len(data) - sent
                return
        if side.other.ending and not side.pending:
            self._end(side)

    def _end(self, side: _Side, *, reset: bool = False) -> None:
        for one in (side, side.other):
            self._sides.discard(one)
            if one.reading:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(one.sock)
                one.reading = False
            if reset:
                self._reset(one.sock)
            else:
                one.sock.close()

    @staticmethod
    def _reset(sock: Any) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        sock.close()
