"""Sockets in memory and in virtual time: pairs of byte pipes with a delay, which a fault cuts or silences."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from typing import Any, Self

from tests.simulation.scheduler import Process, Task, world

_TIMEVAL = struct.Struct("@ll")
_WAIT_FOR_ALL, _PEEK, _DO_NOT_WAIT = map(int, (socket.MSG_WAITALL, socket.MSG_PEEK, socket.MSG_DONTWAIT))
"""As plain numbers, because operations on members of an enum are slow."""
_ACCEPT = 30.0
"""Seconds between two looks of an acceptor for the end of its server. It asks for shorter ones, which cost turns."""


class Network:
    """The listeners by port, and the connections there are."""

    def __init__(self) -> None:
        self.listeners: dict[int, Listener] = {}
        self.connections: list[Socket] = []
        self.ports = itertools.count(20001)
        self.slow = 0.0  # the probability that bytes are late by up to two seconds

    def cut(self, process: Process) -> None:
        """Reset all connections of a process."""
        for one in self.connections:
            if one.process is process:
                one.broken()


def network() -> Network:
    found: Network = world().network
    return found


class Socket:
    """One end of a connection, of the standard library's form as far as the package and the kit use it."""

    ended = False  # whether no more bytes come after those that are there
    reset = closed = False
    last = 0.0  # when the last bytes that are under way arrive
    names = (("127.0.0.1", 0), ("127.0.0.1", 0))
    _peer: Socket | None = None
    _timeout: float | None = None

    def __init__(self, family: int = -1, kind: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        self.incoming: list[tuple[float, bytes]] = []
        self.readers: list[Task] = []
        self.process = world().current.process

    # ---- connecting

    def connect_ex(self, target: Any) -> int:
        """Connect at once. Return an error number."""
        world().sleep(0.0005)
        listener = network().listeners.get(target[1])
        if listener is None or self.closed:
            return errno.ECONNREFUSED
        other = Socket()
        other.process = listener.process
        self.names = (("127.0.0.1", next(network().ports)), ("127.0.0.1", target[1]))
        other.names = self.names[::-1]
        self._peer, other._peer = other, self
        network().connections.extend((self, other))
        listener.arrived(other)
        return 0

    def getsockname(self) -> tuple[str, int]:
        return self.names[0]

    def getpeername(self) -> tuple[str, int]:
        return self.names[1]

    def setblocking(self, _: bool) -> None:
        """Nothing: a connect is done at once."""

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Set the limit of a read; other options mean nothing here."""
        if option == socket.SO_RCVTIMEO and level == socket.SOL_SOCKET:
            seconds, micros = _TIMEVAL.unpack(value)
            self._timeout = seconds + micros / 1e6

    def getsockopt(self, *_: Any) -> int:
        return 0

    # ---- bytes

    def send(self, data: Any) -> int:
        """Send all bytes; they arrive after a delay. Raises OSError if the connection ended."""
        self._usable()
        peer = self._peer
        if self.reset or peer is None or peer.closed:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        here = world()
        late = here.random.random() * (2.0 if here.random.random() < network().slow else 0.002)
        peer.last = max(peer.last, here.now + late)
        peer.incoming.append((peer.last, bytes(data)))
        here.wake_all(peer.readers)
        here.pause()
        return len(data)

    sendall = send

    def recv_into(self, view: Any, size: int = 0, flags: int = 0) -> int:
        """Receive into a buffer: some bytes, or all of it with MSG_WAITALL. Returns 0 at the end."""
        want, have = len(view), 0
        while have < want:
            data = self.recv(want - have)
            if not data:
                return have
            view[have : have + len(data)] = data
            have += len(data)
            if not int(flags) & _WAIT_FOR_ALL:
                break
        return have

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Receive some bytes; none at the end. Raises BlockingIOError after the limit, OSError after a reset."""
        here, flags = world(), int(flags)
        end = None if self._timeout is None else here.now + self._timeout
        while True:
            self._usable()
            if self.reset:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            due = self.incoming[0][0] if self.incoming else None
            if due is not None and due <= here.now:
                return self._take(size, bool(flags & _PEEK))
            if self.ended and due is None:
                return b""
            left = None if end is None else end - here.now
            if flags & _DO_NOT_WAIT or (left is not None and left <= 0):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            until = [each for each in (left, None if due is None else due - here.now) if each is not None]
            here.wait("bytes", min(until, default=None), self.readers)

    def _take(self, size: int, peek: bool) -> bytes:
        due, data = self.incoming[0]
        if peek:
            return data[:size]
        if len(data) > size:
            self.incoming[0] = (due, data[size:])
        else:
            self.incoming.pop(0)
        return data[:size]

    # ---- the end

    def _usable(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def shutdown(self, _: int) -> None:
        """End both directions. Raises OSError if there is no connection."""
        if self._peer is None or self.closed:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        self.incoming.clear()
        for end in (self, self._peer):
            end.ended = True
            world().wake_all(end.readers)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._peer is not None:
            self._peer.ended = True
            world().wake_all(self._peer.readers)
        world().wake_all(self.readers)
        if self in network().connections:
            network().connections.remove(self)

    def broken(self) -> None:
        """Reset both ends, as a cable or a firewall does. Bytes under way are lost."""
        for end in (self, self._peer):
            if end is not None:
                end.reset = True
                end.incoming.clear()
                world().wake_all(end.readers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listener:
    """A listening socket, made as by ``socket.create_server``."""

    def __init__(self, address: tuple[str, int], **_: Any) -> None:
        self.port = address[1] or next(network().ports)
        self.process = world().current.process
        self._waiting: list[Socket] = []
        self._acceptors: list[Task] = []
        network().listeners[self.port] = self

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def settimeout(self, _: float | None) -> None:
        """Nothing: an acceptor looks up every ``_ACCEPT`` seconds."""

    def arrived(self, made: Socket) -> None:
        self._waiting.append(made)
        world().wake_all(self._acceptors)

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        here = world()
        if not self._waiting:
            here.wait("a connection", _ACCEPT, self._acceptors)
        if not self._waiting:
            raise TimeoutError
        made = self._waiting.pop(0)
        return made, made.getpeername()

    def close(self) -> None:
        network().listeners.pop(self.port, None)
