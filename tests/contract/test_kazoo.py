"""Private parts of kazoo on which zkconsumer.zookeeper relies, beyond kazoo's public API.

Fails when the pinned version is raised and one of them is gone or is called in another way.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler

from zkconsumer.zookeeper.server_connection import NamedHandler, PipeliningConnection, ServerConnection


def source(function: object) -> str:
    return inspect.getsource(function)  # type: ignore[arg-type]


def test_the_library_is_the_pinned_one() -> None:
    assert version("kazoo").startswith("2.11.")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_connect", ["host", "hostip", "port"]),
        ("_expand_client_hosts", []),
        ("_invoke", ["timeout", "request", "xid"]),
        ("_read", ["length", "timeout"]),
        ("_read_socket", ["read_timeout"]),
        ("_send_request", ["read_timeout", "connect_timeout"]),
        ("_socket_error_handling", []),
        ("_write", ["msg", "timeout"]),
    ],
)
def test_methods_of_the_connection_take_these_parameters(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(ConnectionHandler, name)).parameters)[1:] == parameters


def test_no_other_private_method_is_overridden() -> None:
    """A method that kazoo adds under a name of ours would be overridden unnoticed."""
    ours = {name for kind in (PipeliningConnection, ServerConnection) for name in vars(kind)}
    both = {name for name in ours & set(vars(ConnectionHandler)) if not name.startswith("__")}
    assert both == {"_connect", "_expand_client_hosts", "_invoke", "_read", "_read_socket", "_send_request", "_write"}
    overridden = {name for name in vars(NamedHandler) if name in vars(SequentialThreadingHandler)}
    assert overridden - {"__module__", "__doc__"} == {"start", "spawn", "select"}


def test_the_main_loop_reads_and_sends_by_these_methods() -> None:
    """It waits for the socket and for a byte that announces each queued request."""
    loop = source(ConnectionHandler._connect_attempt)
    assert "self._read_socket(read_timeout)" in loop
    assert "self._send_request(read_timeout, connect_timeout)" in loop
    assert "self._read_sock.recv(1)" in source(ConnectionHandler._send_request)
    assert "_write_sock" in source(KazooClient._call)
    assert "return CLOSE_RESPONSE" in source(ConnectionHandler._read_response)


def test_a_client_has_the_parts_that_we_replace_or_wait_for() -> None:
    client = KazooClient(hosts="127.0.0.1:1")
    assert isinstance(client._connection, ConnectionHandler)
    assert client._stopped.wait(0)
    assert client.handler._running is False
