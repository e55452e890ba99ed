"""Kazoo's connection, but for many requests at a time.

Kazoo sends and receives one request after the other, in some twenty system calls each, and every one of them is an
occasion for another thread to take the interpreter. A rebalance sends hundreds of requests at once, while the
application's threads are busy; so here whatever is queued goes out in one write, and whatever has arrived is read in
one go. 500 reads then take a quarter of the CPU time.

Everything here runs on kazoo's connection thread, and nothing else touches what is kept here.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import CLOSE_RESPONSE, ConnectionHandler

AT_ONCE = 128
"""Requests in one write: answers are looked at in between."""

READ_AHEAD = 64 * 1024
"""Bytes to take from the socket at once."""

_LENGTH = 4


class PipeliningConnection(ConnectionHandler):  # type: ignore[misc]
    """A connection that sends together what is queued together, and reads together what has arrived.

    It reads ahead only in kazoo's main loop, where it deals with all that was read before it waits for the socket
    again; the beginning of a connection, with the login, is read as kazoo does.
    """

    _arrived = b""
    _reads_ahead = False
    _outgoing: bytearray | None = None

    def _connect(self, *args: Any, **keywords: Any) -> Any:
        self._arrived = b""  # by the connection before
        return super()._connect(*args, **keywords)

    # ---- sending ----

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        # each request is announced by a byte after it was queued, so there are at least as many requests as bytes
        announced = len(self._read_sock.recv(AT_ONCE, socket.MSG_PEEK))
        outgoing = self._outgoing = bytearray()
        try:
            for _ in range(announced):
                super()._send_request(read_timeout, connect_timeout)
        finally:
            self._outgoing = None
        # kazoo counts them as sent already; where this fails the connection is dropped, and they all fail with it
        if outgoing:
            self._write(outgoing, connect_timeout)

    def _write(self, msg: Any, timeout: float) -> None:
        if self._outgoing is None:
            super()._write(msg, timeout)
        else:
            self._outgoing += msg

    # ---- receiving ----

    def _read_socket(self, read_timeout: float) -> Any:
        self._reads_ahead = True
        try:
            response = super()._read_socket(read_timeout)
            while response != CLOSE_RESPONSE and self._more():
                response = super()._read_socket(read_timeout)
        finally:
            self._reads_ahead = False
        return response

    def _more(self) -> bool:
        """Whether there is another whole answer, or something that waiting for the socket would not tell of (TLS)."""
        have = len(self._arrived)
        if have >= _LENGTH and have - _LENGTH >= int.from_bytes(self._arrived[:_LENGTH], "big"):
            return True
        return self._decrypted()

    def _decrypted(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _read(self, length: int, timeout: float) -> bytes:
        if not self._reads_ahead:
            return bytes(super()._read(length, timeout))
        while len(self._arrived) < length:
            self._arrived += self._receive(timeout)
        data, self._arrived = self._arrived[:length], self._arrived[length:]
        return data

    def _receive(self, timeout: float) -> bytes:
        """What has arrived; waits for some. Raises what kazoo's own reading raises."""
        with self._socket_error_handling():
            while True:
                if not self._decrypted() and not self.handler.select([self._socket], [], [], timeout)[0]:
                    raise self.handler.timeout_exception("socket time-out during read")
                try:
                    data = bytes(self._socket.recv(READ_AHEAD))
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                if not data:
                    raise ConnectionDropped("socket connection broken")
                return data
