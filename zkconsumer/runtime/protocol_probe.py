"""Finds out what answers at an address after a connection failed there: Kafka, ZooKeeper or TLS.

Any thread may call. Each question is a connection of its own. At most some bytes of an answer are read, and no length
in it is believed.
"""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress

from zkconsumer.runtime.deadline import Deadline

WITHIN = 1.0
"""Seconds for each question."""
_CORRELATION = 0x7A6B
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)
"""The request ApiVersions of version 0, which each broker since 0.10 answers without a login."""
_HEAD = struct.Struct(">ii")


def instead_of_zookeeper(host: str, port: int, deadline: Deadline) -> str:
    """Return what answers at an address of ``zookeeper.connect`` if it is a Kafka broker; otherwise an empty text."""
    if not _is_kafka(host, port, deadline):
        return ""
    return (
        f"{_name(host, port)} answers like a Kafka broker, not like ZooKeeper: zookeeper.connect wants ZooKeeper's port"
        " (2181 by default)"
    )


def instead_of_broker(host: str, port: int, deadline: Deadline, *, tls: bool) -> str:
    """Return what answers at a broker's address, if it is ZooKeeper, or another security protocol; else an empty text.

    Arguments: ``tls``: whether the broker was asked with TLS.
    """
    where = _name(host, port)
    if b"ookeeper" in (told := _ask(host, port, b"srvr", deadline)) or b"is not executed because" in told:
        return f"{where} answers like ZooKeeper, not like a Kafka broker: a broker's port is wanted (9092 by default)"
    if tls and _is_kafka(host, port, deadline):
        return f"{where} answers like a Kafka broker without TLS: security.protocol wants PLAINTEXT or SASL_PLAINTEXT"
    if not tls and _speaks_tls(host, port, deadline):
        return f"{where} answers with TLS: security.protocol wants SSL or SASL_SSL, or another port is meant"
    return ""


def _is_kafka(host: str, port: int, deadline: Deadline) -> bool:
    told = _ask(host, port, _API_VERSIONS, deadline)
    return len(told) >= _HEAD.size and _HEAD.unpack_from(told)[1] == _CORRELATION


def _ask(host: str, port: int, question: bytes, deadline: Deadline) -> bytes:
    """Return the first bytes of the answer; none if there is no answer in time."""
    with suppress(OSError), _connected(host, port, deadline) as sock:
        sock.sendall(question)
        return sock.recv(256)
    return b""


def _speaks_tls(host: str, port: int, deadline: Deadline) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the CAs, which take 50 ms to load at each failure
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent to it
    try:
        with _connected(host, port, deadline) as sock, context.wrap_socket(sock, server_hostname=host or None):
            return True
    except OSError:
        return False


def _connected(host: str, port: int, deadline: Deadline) -> socket.socket:
    seconds = deadline.bounded(WITHIN)
    if seconds <= 0:
        raise TimeoutError("no time is left")
    return socket.create_connection((host, port), timeout=seconds)


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
