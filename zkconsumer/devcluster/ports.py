"""Choosing free ports on the loopback interface.

A chosen port can be taken by somebody else before the server binds it; nothing but the server's own bind decides. So
the choice only makes that unlikely and whoever starts a server tries again (``process.ServerProcess``).
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
    """Ports from here on are given to outgoing connections, so one could be gone when a server is restarted on it."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST


def is_free(port: int) -> bool:
    """Whether a server could bind the port right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def accepts(port: int, timeout: float = 1.0) -> bool:
    """Whether something listens on the port. Argument ``timeout`` in seconds."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout):
            return True
    except OSError:
        return False


def free_port() -> int:
    """A port that is free now, outside the range that outgoing connections use where that leaves room.

    Raises: OSError where none is found.
    """
    highest = min(_HIGHEST, _first_ephemeral_port())
    if highest - _LOWEST >= 1000:
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, highest)
            if is_free(port):
                return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
