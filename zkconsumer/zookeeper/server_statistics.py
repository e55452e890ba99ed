"""Asks the servers of a ZooKeeper ensemble what they say of themselves, by the four-letter commands.

A server that does not answer, or has a command switched off (``4lw.commands.whitelist``; by default only ``srvr`` is
on), leaves fields empty. Each command is a connection of its own, without a login. Several servers are asked at the
same time, by threads that end with the call.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.node_requests import signed
from zkconsumer.zookeeper.node_values import ZooKeeperServer

LARGEST_ANSWER = 8 * 1024 * 1024
"""The most bytes of one answer: ``cons`` has some 200 for each session."""
MOST_SESSIONS = 50_000
WITHIN = 1.0
"""Seconds for all servers. One of them may be down while the others answer."""

_AT_ONCE = 8
_OFF = "is not executed because it is not in the whitelist"
_LINE = re.compile(r"([A-Za-z][\w ./-]{0,40}?)\s*[:=]\s?(.{0,200})")
_SESSION = re.compile(r"\s*/(\S{1,100}?)\[\d+\]\((.{0,2000})\)")


def server_statistics(
    servers: Sequence[tuple[str, int]], deadline: Deadline, tls: ssl.SSLContext | None = None
) -> tuple[ZooKeeperServer, ...]:
    """Return what each server says. Raises nothing: a server's ``problem`` says why it is unknown.

    Arguments: ``servers`` as (host, port); ``tls`` for ports that speak it.
    """
    if not servers:
        return ()
    soon = Deadline(deadline.bounded(WITHIN))
    with ThreadPoolExecutor(min(_AT_ONCE, len(servers)), "zkconsumer-4lw") as pool:
        return tuple(pool.map(lambda server: _ask_server(server, soon, tls), servers))


def _ask_server(server: tuple[str, int], deadline: Deadline, tls: ssl.SSLContext | None) -> ZooKeeperServer:
    host, port = server
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    answers: dict[str, str] = {}
    problems: list[str] = []
    for command in ("srvr", "conf", "cons"):
        try:
            answer = _ask(host, port, command, deadline, tls)
        except OSError as error:
            reason = str(error) or type(error).__name__
            return parse_answers(name, answers, f"{command}: {reason}")
        if _OFF in answer or not answer:
            problems.append(f"{command}: {'switched off on this server' if answer else 'no answer'}")
        else:
            answers[command] = answer
    return parse_answers(name, answers, "; ".join(problems))


def parse_answers(name: str, answers: Mapping[str, str], problem: str = "") -> ZooKeeperServer:
    """Return the statistics in a server's answers by command, without unreadable ones."""
    said = _lines(answers.get("srvr", ""))
    configured = _lines(answers.get("conf", ""))
    return ZooKeeperServer(
        name,
        version=said.pop("Zookeeper version", "").partition(",")[0],
        mode=said.get("Mode", ""),
        tick_time=_number(configured.get("tickTime")),
        min_session_timeout=_number(configured.get("minSessionTimeout")),
        max_session_timeout=_number(configured.get("maxSessionTimeout")),
        statistics=said,
        sessions=_sessions(answers.get("cons", "")),
        problem=problem,
    )


def _ask(host: str, port: int, command: str, deadline: Deadline, tls: ssl.SSLContext | None) -> str:
    with socket.create_connection((host, port), timeout=_left(deadline)) as plain:
        sock = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        with sock:
            sock.settimeout(_left(deadline))
            sock.sendall(command.encode())
            found = bytearray()
            while part := sock.recv(65536):
                found += part
                if len(found) > LARGEST_ANSWER:
                    break
                sock.settimeout(_left(deadline))
    return found.decode("ascii", "replace")


def _left(deadline: Deadline) -> float:
    left = deadline.bounded(WITHIN)
    if left <= 0:
        raise TimeoutError("no answer in time")
    return left


def _lines(text: str) -> dict[str, str]:
    """Return ``name: value`` and ``name=value`` lines."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines()[:100])
    return {one[1]: one[2].strip() for one in found if one is not None}


def _sessions(text: str) -> dict[int, tuple[str, int]]:
    sessions: dict[int, tuple[str, int]] = {}
    for line in text.splitlines()[:MOST_SESSIONS]:
        found = _SESSION.fullmatch(line)
        if found is None:
            continue
        fields = dict(part.partition("=")[::2] for part in found[2].split(","))
        timeout = _number(fields.get("to"))
        try:
            session = int(fields.get("sid", ""), 16)
        except ValueError:
            continue
        if timeout is not None and 0 < session < 1 << 64:
            sessions[signed(session)] = (found[1], timeout)
    return sessions


def _number(text: str | None) -> int | None:
    digits = (text or "").removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdecimal() and len(digits) < 12 else None
