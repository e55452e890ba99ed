"""The HTTP server of ``zkconsumer serve``, and its streams of events.

:class:`~zkconsumer.operations.serving.bounded_http.BoundedServer` bounds its threads, times and sizes. Its threads are
``zkconsumer-serve-accept`` and ``zkconsumer-serve-request``. :meth:`GroupServer.close` ends them all.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from zkconsumer.errors import ConfigException
from zkconsumer.operations.serving.access import ListenAddress
from zkconsumer.operations.serving.bounded_http import TEXT, WRITE_SECONDS, BoundedServer, RequestHandler, Response
from zkconsumer.operations.serving.poller import Poller
from zkconsumer.operations.serving.routes import Routes, request_of
from zkconsumer.runtime.deadline import Deadline

MOST_LISTENERS = 32
"""Event streams. Fewer than connections, so that open pages do not keep Prometheus out."""
HEARTBEAT_SECONDS = 15.0


class _Handler(RequestHandler):
    """Sends answers, and events."""

    server: _Server

    def respond(self, answer: Response, *, packed: bool = False) -> None:
        """Send an answer, or the events of a group."""
        if answer.events is not None:
            self._stream(answer.events)
        else:
            super().respond(answer, packed=packed)

    def _stream(self, group: str) -> None:
        """Send an event after each poll, until the client or the poller ends."""
        if self.command == "HEAD":
            self.begin(200, "text/event-stream", {})
            return
        if not self.server.listeners.acquire(blocking=False):
            self.respond(Response(503, b"too many event streams\n", TEXT, {"Retry-After": "30"}))
            return
        try:
            self.begin(200, "text/event-stream", {"X-Accel-Buffering": "no"})
            self.wfile.write(b"retry: 3000\n\n")
            polls = -1
            while True:
                board = self.server.poller.wait(polls, HEARTBEAT_SECONDS)
                if board.ended:
                    return
                self.connection.settimeout(WRITE_SECONDS)
                self.wfile.write(_event(board, group) if board.polls > polls else b": still here\n\n")
                polls = board.polls
        finally:
            self.server.listeners.release()


def _event(board: Any, group: str) -> bytes:
    """Return the event ``changed`` after a poll: of one group, or of all with an empty name."""
    watched = board.groups.get(group)
    told: dict[str, object] = {"polls": board.polls, "completed": board.completed, "failure": board.failure or None}
    if group:
        told |= {"group": group, "serial": None if watched is None else watched.serial}
        told["taken"] = None if watched is None else watched.snapshot.taken
    return f"event: changed\ndata: {json.dumps(told)}\n\n".encode()


class _Server(BoundedServer):
    """The server, with the poller and the listeners' bound for its handlers."""

    def __init__(self, address: ListenAddress, routes: Routes, poller: Poller) -> None:
        self.poller = poller
        self.listeners = threading.BoundedSemaphore(MOST_LISTENERS)

        def answer(target: str, headers: Mapping[str, str]) -> Response:
            return routes.answer(request_of(target, headers))

        super().__init__(address, "zkconsumer-serve", answer, _Handler)


class GroupServer:
    """The HTTP server over a poller: opens the port, answers, and ends. A context manager around both.

    Arguments: ``address`` to listen on, ``routes`` and ``poller``. Raises: ConfigException if the port cannot be had.
    """

    def __init__(self, address: ListenAddress, routes: Routes, poller: Poller) -> None:
        self._poller = poller
        try:
            self._server = _Server(address, routes, poller)
        except OSError as error:
            raise ConfigException("--listen", f"{address.host}:{address.port} cannot be used: {error}") from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return self._server.url

    def start(self) -> None:
        """Start the poller and the accepting thread."""
        self._poller.start()
        self._server.start()

    def close(self, timeout: float = 5.0) -> bool:
        """End the poller, the listeners and the server. Return whether all threads ended within ``timeout`` seconds."""
        deadline = Deadline(timeout)
        ended = self._poller.stop(timeout * 0.6)
        return self._server.end(deadline) and ended
