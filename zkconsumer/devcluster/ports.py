"""The choice of free ports on the loopback interface.

Another program can take a chosen port before the server binds it. The choice makes that unlikely, and
``ServerProcess`` tries again with another port.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 20000
_HIGHEST = 32768
_TRIES = 200


def _first_ephemeral_port() -> int:
    """Return the first port of outgoing connections. Such a port could be taken when a server restarts on it."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST


def is_free(port: int) -> bool:
    """Return whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def accepts(port: int, timeout: float = 1.0) -> bool:
    """Return whether a program listens on the port. ``timeout`` is in seconds."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Return a port that is free now, if possible outside the range of outgoing connections. Raises OSError."""
    highest = min(_HIGHEST, _first_ephemeral_port())
    if highest - _LOWEST >= 1000:
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, highest)
            if is_free(port):
                return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
