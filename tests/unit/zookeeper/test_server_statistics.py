"""The statistics of ZooKeeper's servers: answers of real servers, answers of hostile servers, and no answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from tests.timing import scaled
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.server_statistics import parse_answers, server_statistics

SRVR = """Zookeeper version: 3.9.4-7246445ec281f3dbf53dc54e970c914f39713903, built on 2025-08-19 19:53 UTC
Latency min/avg/max: 0/0.5/12
Received: 33
Sent: 32
Connections: 2
Outstanding: 0
Zxid: 0x1b
Mode: standalone
Node count: 28
"""
CONF = "clientPort=2181\ndataDir=/data/version-2\ntickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout=40000\n"
CONS = (
    " /127.0.0.1:54098[1](queued=0,recved=25,sent=25,sid=0x1000a1b2c3d0001,lop=PING,est=1700000000000,to=6000,"
    "lcxid=0x17,lzxid=0x1b,lresp=1,llat=0,minlat=0,avglat=0,maxlat=3)\n"
    " /127.0.0.1:54100[0](queued=0,recved=1,sent=0)\n"
    " /[0:0:0:0:0:0:0:1]:5[1](sid=0xff00000000000001,to=4000)\n"
)


def test_answers_of_a_server() -> None:
    found = parse_answers("h:1", {"srvr": SRVR, "conf": CONF, "cons": CONS})
    assert found.version == "3.9.4-7246445ec281f3dbf53dc54e970c914f39713903"
    assert found.mode == "standalone"
    assert (found.tick_time, found.min_session_timeout, found.max_session_timeout) == (2000, 4000, 40_000)
    assert found.statistics["Node count"] == "28"
    assert found.statistics["Latency min/avg/max"] == "0/0.5/12"
    assert found.sessions == {
        0x1000A1B2C3D0001: ("127.0.0.1:54098", 6000),
        0xFF00000000000001 - (1 << 64): ("[0:0:0:0:0:0:0:1]:5", 4000),
    }


@pytest.mark.parametrize("junk", ["", "\x1b[31m", "(" * 5000, "a=" + "9" * 5000, "tickTime=1e9\n", "\n" * 10_000])
def test_junk_is_left_out(junk: str) -> None:
    found = parse_answers("h:1", {"srvr": junk, "conf": junk, "cons": junk})
    assert (found.version, found.tick_time, dict(found.sessions)) == ("", None, {})


@contextmanager
def server(answer: Callable[[str], bytes]) -> Iterator[tuple[str, int]]:
    """A server that answers each command and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(answer(connection.recv(4).decode()))

        thread = Thread(target=serve, name="four-letter-words", daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(scaled(5.0))


def test_a_command_that_is_switched_off() -> None:
    def answer(command: str) -> bytes:
        off = f"{command} is not executed because it is not in the whitelist.\n"
        return (SRVR if command == "srvr" else off).encode()

    with server(answer) as where:
        (found,) = server_statistics([where], Deadline(scaled(5.0)))
    assert found.mode == "standalone"
    assert found.tick_time is None
    assert found.problem == "conf: switched off on this server; cons: switched off on this server"


def test_a_server_that_is_away_has_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        where = gone.getsockname()[:2]
    with server(lambda _: SRVR.encode()) as there:
        away, answers = server_statistics([where, there], Deadline(scaled(5.0)))
    assert away.problem.startswith("srvr: ")
    assert away.mode == ""
    assert answers.mode == "standalone"
