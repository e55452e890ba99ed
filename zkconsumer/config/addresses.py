"""Parsers of the properties that hold addresses. Pure; any thread.

* ``zookeeper.connect``: ``host1:port1,host2:port2/chroot``
* ``bootstrap.servers``: ``host1:port1,host2:port2``
* ``broker.address.map``: ``registered=reachable,registered=reachable``
"""

from __future__ import annotations

import re

from zkconsumer.config.config_definition import NOT_SHOWN, OWN_PROPERTIES, address_may_hold_credentials
from zkconsumer.errors import ConfigException

_HOST = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]/,=@]+)"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
_ADDRESS = re.compile(rf"({_HOST})(?::([0-9]{{1,5}}))?")
_CONNECT = "zookeeper.connect"
_ZOOKEEPER_PORT = 2181
_CONNECT_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]/,@]+)(?::(?P<port>.*))?")
_PARAMETER = re.compile(r"\?.*=")  # as in URLs; ZooKeeper takes no parameters, so it would be part of the chroot
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f]")


def parse_address_map(text: str) -> dict[str, str]:
    """Parse a map from registered to reachable addresses, each ``host:port``, or ``host`` for any port.

    A reachable ``host`` keeps the registered port. IPv6 hosts stand in brackets. The registered names come out in lower
    case, because case does not matter in host names. An empty text is an empty map.

    Raises ValueError that quotes the wrong part, unless it may hold a password.
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
    """Return the text of a map."""
    return ",".join(f"{registered}={reachable}" for registered, reachable in mapping.items())


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse a list of servers to pairs (host, port), IPv6 hosts without brackets. Raises ValueError."""
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


def parse_connect(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Parse ``zookeeper.connect`` to servers (host, port) and the chroot, which is empty or begins with ``/``.

    As in ZooKeeper's own client, blanks around a server do not count, a missing port is 2181, an IPv6 address stands in
    brackets, and ``/`` alone is no chroot.

    Raises :class:`ConfigException` that quotes the wrong part, unless the text may hold a password.
    """
    scheme = _SCHEME.search(text)
    if scheme is not None:
        # quote no more of it: such an address may hold a password
        more = f"; {OWN_PROPERTIES}" if address_may_hold_credentials(text) else ""
        raise ConfigException(
            _CONNECT, f"is no URL: leave out {scheme[0]!r} and write host1:port1,host2:port2/chroot{more}"
        )
    try:
        return _parse(text)
    except ConfigException:
        if not address_may_hold_credentials(text):
            raise
    raise ConfigException(_CONNECT, NOT_SHOWN)  # not inside the handler: the quoting error would be its context


def _parse(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    servers, slash, rest = text.partition("/")
    hosts = tuple(_host(server.strip()) for server in servers.split(","))
    return hosts, _chroot(slash + rest)


def format_connect(hosts: tuple[tuple[str, int], ...], chroot: str) -> str:
    """Return the shortest unambiguous text for these servers and this chroot."""
    return ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in hosts) + chroot


def _host(server: str) -> tuple[str, int]:
    if not server:
        raise ConfigException(_CONNECT, "a server is missing; write host1:port1,host2:port2/chroot")
    match = _CONNECT_HOST.fullmatch(server)
    if match is None:
        advice = "; an IPv6 address needs brackets, as in [::1]:2181" if server.count(":") > 1 else ""
        raise ConfigException(_CONNECT, f"{server!r} is not host:port{advice}")
    port = match["port"]
    if port is None:
        return match["host"].strip("[]"), _ZOOKEEPER_PORT
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ConfigException(_CONNECT, f"the port in {server!r} must be a number from 1 to 65535")
    return match["host"].strip("[]"), int(port)


def _chroot(chroot: str) -> str:
    if chroot in ("", "/"):
        return ""
    if "," in chroot:
        raise ConfigException(_CONNECT, f"the chroot stands once, after the last server; {chroot!r} contains a comma")
    if chroot.endswith("/"):
        raise ConfigException(
            _CONNECT, f"the chroot {chroot!r} must not end with '/'; write {chroot.rstrip('/') or '/'!r}"
        )
    for element in chroot[1:].split("/"):
        if element in ("", ".", ".."):
            raise ConfigException(_CONNECT, f"the chroot {chroot!r} has the element {element!r}, which is not a name")
    if _PARAMETER.search(chroot):
        raise ConfigException(_CONNECT, NOT_SHOWN)
    if _UNPRINTABLE.search(chroot):
        raise ConfigException(_CONNECT, f"the chroot {chroot!a} contains a control character")
    return chroot
