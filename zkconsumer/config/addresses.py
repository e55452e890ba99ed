"""The texts of ``broker.address.map``, ``registered=reachable,registered=reachable``, and of ``bootstrap.servers``,
``host:port,host:port``. Pure; any thread.
"""

from __future__ import annotations

import re

from zkconsumer.config.secrets import NOT_SHOWN, address_may_hold_credentials

_HOST = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]/,=@]+)"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
_ADDRESS = re.compile(rf"({_HOST})(?::([0-9]{{1,5}}))?")


def parse_address_map(text: str) -> dict[str, str]:
    """Registered address -> the one at which to reach it; each is ``host:port`` or ``host`` alone, for any port.

    A host alone as a target keeps the registered port. IPv6 hosts stand in brackets; host names are compared without
    regard to case, so those of the keys come out in lower case. An empty text is an empty map.
    Raises ValueError that quotes the part which is wrong, unless it may hold a password.
    """
    _refuse_credentials(text)
    mapping: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        registered, equals, reachable = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"{part!r} is not registered=reachable, as in kafka-1:9092=localhost:19092")
        key = _address(registered).lower()
        if key in mapping:
            raise ValueError(f"{registered!r} is mapped twice")
        mapping[key] = _address(reachable)
    return mapping


def format_address_map(mapping: dict[str, str]) -> str:
    """The text for a map."""
    return ",".join(f"{registered}={reachable}" for registered, reachable in mapping.items())


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """The (host, port) of each server of a list, IPv6 hosts without their brackets. Raises ValueError."""
    _refuse_credentials(text)
    servers = []
    scheme = _SCHEME.search(text)
    if scheme is not None:
        raise ValueError(f"holds no URLs: leave out {scheme[0]!r} (security.protocol names the protocol)")
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = _address(part).rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{part!r} is not host:port, as in kafka-1:9092")
        servers.append((host.strip("[]"), int(port)))
    if not servers:
        raise ValueError(f"must name at least one server as host:port, not {text!r}")
    return tuple(servers)


def _refuse_credentials(text: str) -> None:
    if address_may_hold_credentials(text):
        raise ValueError(NOT_SHOWN)


def _address(word: str) -> str:
    match = _ADDRESS.fullmatch(word)
    if match is None:
        advice = "; an IPv6 address needs brackets, as in [::1]:9092" if word.count(":") > 1 else ""
        raise ValueError(f"{word!r} is neither host:port nor a host{advice}")
    host, port = match.groups()
    if port is None:
        return str(host)
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"the port in {word!r} must be a number from 1 to 65535")
    return f"{host}:{int(port)}"
