"""A member as a service: its health for the probes of a scheduler, for systemd, and in the log.

:func:`report_health` is the context manager around a connector. ``docs/services.md`` has a program, a systemd unit and
a Kubernetes manifest that use it.

Threads: ``<consumer id>-health`` looks at the health once a second, logs its changes and tells systemd. Probes are
answered by the threads of :mod:`zkconsumer.operations.serving.bounded_http`, each of which asks for the health itself.
So a probe answers while the connector hangs. All of them end with the context manager. Only the thread of the health
writes the fields of :class:`_HealthWatch`.

Not imported by ``zkconsumer`` itself: an HTTP server takes 40 ms and some memory to import.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol

from zkconsumer.connector.health import Health
from zkconsumer.operations.serving.bounded_http import BoundedServer, Response, listen_address, text
from zkconsumer.runtime.deadline import Deadline

__all__ = ["HasHealth", "report_health"]

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks at the health; a quarter of systemd's watchdog time if that is shorter."""
START_MORE = 30
"""Seconds by which a live member that was never ready extends systemd's limit of a start, with each look."""
LOG_AGAIN = 30.0
"""Seconds after which another reason for the same state is logged."""
END_WITHIN = 2.0
"""Seconds that the end waits for the threads."""
_MOST_STATUS = 1000


class HasHealth(Protocol):
    """A connector: :class:`zkconsumer.ZookeeperConsumerConnector`, or the one for asyncio."""

    @property
    def consumer_id(self) -> Any:
        """The name of the member."""

    def health(self) -> Health:
        """Return the health. Any thread."""


class Systemd:
    """The socket on which systemd wants to hear of this service, as in ``sd_notify(3)``."""

    def __init__(self, address: str, watchdog: float | None) -> None:
        # a leading @ stands for a zero byte: a name that is no file
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog = watchdog
        self._ready = False
        self._failed = False

    @classmethod
    def of(cls, environment: Mapping[str, str], process: int) -> Systemd | None:
        """Return the socket that the environment of this process names, None outside of a unit of ``Type=notify``."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        micros = environment.get("WATCHDOG_USEC", "")
        # WATCHDOG_PID names another process where this one inherited the variables
        ours = environment.get("WATCHDOG_PID", str(process)) == str(process)
        watchdog = int(micros) / 1e6 if ours and micros.isascii() and micros.isdigit() and int(micros) > 0 else None
        return cls(address, watchdog)

    def tell(self, health: Health) -> None:
        """Send the health. While the member is not live, systemd's watchdog gets nothing, and ends the process."""
        words = ["STATUS=" + " ".join(str(health).split())[:_MOST_STATUS]]
        if health.live:
            words.append("WATCHDOG=1")
        if not self._ready:
            if health.ready:
                words.append("READY=1")
            elif health.live:
                # ZooKeeper may be away for long: a restart would not bring it back
                words.append(f"EXTEND_TIMEOUT_USEC={START_MORE * 1_000_000}")
        sent = self._send(words)
        # said again if systemd did not hear it, else it would end a ready service when the limit of the start is over
        self._ready = self._ready or (sent and health.ready)

    def stopping(self) -> None:
        """Send that the service ends by itself, or by our signal handler."""
        self._send(["STOPPING=1"])

    def _send(self, words: list[str]) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as to:
                to.sendto("\n".join(words).encode("utf-8", "backslashreplace"), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("systemd cannot be told of the health, on NOTIFY_SOCKET: %s", error)
            self._failed = True
            return False
        return True


class _HealthWatch:
    """Looks at the health again and again, logs changes and tells systemd."""

    def __init__(self, name: str, health: Callable[[], Health], systemd: Systemd | None) -> None:
        self._name = name
        self._health = health
        self._systemd = systemd
        self._interval = min([INTERVAL] + ([systemd.watchdog / 4] if systemd and systemd.watchdog else []))
        self._end = Event()
        self._told: Health | None = None
        self._logged = float("-inf")
        self._thread = Thread(target=self._run, name=f"{name}-health", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self, deadline: Deadline) -> None:
        """End the thread, and tell systemd that the service ends."""
        self._end.set()
        self._thread.join(deadline.bounded(END_WITHIN))
        if self._systemd is not None:
            self._systemd.stopping()

    def _run(self) -> None:
        while not self._end.is_set():
            self.step()
            self._end.wait(self._interval)

    def step(self) -> None:
        """Look once."""
        health = self._health()
        if self._systemd is not None:
            self._systemd.tell(health)
        told = self._told
        changed = told is None or (health.live, health.ready) != (told.live, told.ready)
        if changed or (health != told and monotonic() - self._logged >= LOG_AGAIN):
            log.log(logging.INFO if health.live else logging.ERROR, "%s is %s", self._name, health)
            self._told, self._logged = health, monotonic()


@contextmanager
def report_health(connector: HasHealth, listen: str | None = None) -> Iterator[str | None]:
    """Report the health of a connector while the block runs: to probes over HTTP, to systemd, and in the log.

    ``with report_health(connector, "0.0.0.0:8080"), connector: connector.run(...)``

    Probes: ``GET /healthz`` answers 200 while the member is live, ``GET /readyz`` while it is ready, otherwise both
    answer 503. The text of each answer has all reasons. See ``docs/services.md`` for the states.

    Under a unit of ``Type=notify`` systemd is told when the member is ready for the first time, and the reasons. With
    ``WatchdogSec=`` it hears of a live member every second. The logger ``zkconsumer.service`` gets each change.

    Arguments: ``listen`` is ``HOST:PORT``, with port 0 for a free one; None: no HTTP.
    Returns: a context manager, whose value is the address as ``http://HOST:PORT/``, or None.
    Raises: :class:`ConfigException` for an address that is none; OSError if the port cannot be had.
    Threads: enter and leave it in any one thread. Its own threads end within 2 s.
    """
    server = None
    if listen is not None:
        address = listen_address(listen, "listen")
        server = BoundedServer(address, f"{connector.consumer_id}-probes", _answers(connector.health))
    systemd = Systemd.of(os.environ, os.getpid())
    watch = _HealthWatch(str(connector.consumer_id), connector.health, systemd)
    if server is not None:
        server.start()
        log.info("%s answers probes at %s", connector.consumer_id, server.url)
    watch.start()
    try:
        yield None if server is None else server.url
    finally:
        deadline = Deadline(END_WITHIN)
        watch.end(deadline)
        if server is not None:
            server.end(deadline)


def _answers(health: Callable[[], Health]) -> Callable[[str, Mapping[str, str]], Response]:
    def answer(target: str, headers: Mapping[str, str]) -> Response:
        path = target.partition("?")[0]
        if path not in ("/healthz", "/readyz"):
            return text(404, "/healthz and /readyz are answered here")
        found = health()
        return text(200 if (found.ready if path == "/readyz" else found.live) else 503, str(found))

    return answer
