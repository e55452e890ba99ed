"""The server at a wrong port is named: real sockets that answer as the servers do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Thread

import pytest
import trustme

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.protocol_probe import instead_of_broker, instead_of_zookeeper

Serve = Callable[[socket.socket], None]


@contextmanager
def server(serve: Serve) -> Iterator[int]:
    """Serve each connection on a free port, one after the other."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def run() -> None:
            with suppress(OSError):  # the listener is shut down at the end
                while True:
                    with listener.accept()[0] as connection, suppress(OSError):
                        connection.settimeout(5)
                        serve(connection)

        thread = Thread(target=run, name="port-probe-server", daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def kafka(connection: socket.socket) -> None:
    asked = connection.recv(100)
    if asked[4:6] == b"\0\x12":
        connection.sendall(b"\x7f\xff\xff\xff" + asked[8:12] + bytes(6))  # the length is a lie that nobody believes


def zookeeper(connection: socket.socket) -> None:
    if connection.recv(4) == b"srvr":
        connection.sendall(b"srvr is not executed because it is not in the whitelist.\n")


def silent(connection: socket.socket) -> None:
    connection.recv(1)


def tls(connection: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with context.wrap_socket(connection, server_side=True):
        pass


@pytest.mark.parametrize(
    ("serve", "encrypted", "told"),
    [
        (zookeeper, False, "answers like ZooKeeper"),
        (zookeeper, True, "answers like ZooKeeper"),
        (kafka, True, "without TLS"),
        (kafka, False, ""),
        (tls, False, "answers with TLS"),
        (tls, True, ""),
        (silent, False, ""),
    ],
)
def test_what_answers_in_place_of_a_broker(serve: Serve, encrypted: bool, told: str) -> None:
    with server(serve) as port:
        found = instead_of_broker("127.0.0.1", port, Deadline(10), tls=encrypted)
    assert told in found
    assert bool(told) == bool(found)


@pytest.mark.parametrize(("serve", "named"), [(kafka, True), (zookeeper, False), (silent, False)])
def test_what_answers_in_place_of_zookeeper(serve: Serve, named: bool) -> None:
    with server(serve) as port:
        found = instead_of_zookeeper("127.0.0.1", port, Deadline(10))
    assert (f"127.0.0.1:{port} answers like a Kafka broker" in found) is named


def test_a_probe_loads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each failed connection to a broker took 50 ms of CPU to load authorities that nobody asks."""
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: pytest.fail("nothing is to be verified"))
    with server(tls) as port:
        assert "answers with TLS" in instead_of_broker("127.0.0.1", port, Deadline(10), tls=False)
