"""The text of ``zookeeper.connect``: ``host1:port1,host2:port2/chroot``. Pure; any thread."""

from __future__ import annotations

import re

from zkconsumer.config.secrets import NOT_SHOWN, OWN_PROPERTIES, address_may_hold_credentials
from zkconsumer.errors import ConfigException

KEY = "zookeeper.connect"
DEFAULT_PORT = 2181
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]/,@]+)(?::(?P<port>.*))?")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://")
_PARAMETER = re.compile(r"\?.*=")  # as in URLs; ZooKeeper takes none, so it would be a part of the chroot
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f]")


def parse_connect(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    """Servers as (host, port) and the chroot, which is empty or begins with ``/``.

    Blanks around a server are dropped, a missing port is 2181, an IPv6 address stands in brackets, and a lone ``/`` is
    no chroot: all as ZooKeeper's own client has it.
    Raises :class:`ConfigException` that quotes the part which is wrong, unless the text may hold a password.
    """
    scheme = _SCHEME.search(text)
    if scheme is not None:
        # no more of it is quoted: such an address may hold a password
        more = f"; {OWN_PROPERTIES}" if address_may_hold_credentials(text) else ""
        raise ConfigException(KEY, f"is no URL: leave out {scheme[0]!r} and write host1:port1,host2:port2/chroot{more}")
    try:
        return _parse(text)
    except ConfigException:
        if not address_may_hold_credentials(text):
            raise
    raise ConfigException(KEY, NOT_SHOWN)  # not inside the handler: the quoting error would be its context


def _parse(text: str) -> tuple[tuple[tuple[str, int], ...], str]:
    servers, slash, rest = text.partition("/")
    hosts = tuple(_host(server.strip()) for server in servers.split(","))
    return hosts, _chroot(slash + rest)


def format_connect(hosts: tuple[tuple[str, int], ...], chroot: str) -> str:
    """The text for these servers and this chroot, in its shortest unambiguous form."""
    return ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in hosts) + chroot


def _host(server: str) -> tuple[str, int]:
    if not server:
        raise ConfigException(KEY, "a server is missing; write host1:port1,host2:port2/chroot")
    match = _HOST.fullmatch(server)
    if match is None:
        advice = "; an IPv6 address needs brackets, as in [::1]:2181" if server.count(":") > 1 else ""
        raise ConfigException(KEY, f"{server!r} is not host:port{advice}")
    port = match["port"]
    if port is None:
        return match["host"].strip("[]"), DEFAULT_PORT
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ConfigException(KEY, f"the port in {server!r} must be a number from 1 to 65535")
    return match["host"].strip("[]"), int(port)


def _chroot(chroot: str) -> str:
    if chroot in ("", "/"):
        return ""
    if "," in chroot:
        raise ConfigException(KEY, f"the chroot stands once, after the last server; {chroot!r} contains a comma")
    if chroot.endswith("/"):
        raise ConfigException(KEY, f"the chroot {chroot!r} must not end with '/'; write {chroot.rstrip('/') or '/'!r}")
    for element in chroot[1:].split("/"):
        if element in ("", ".", ".."):
            raise ConfigException(KEY, f"the chroot {chroot!r} has the element {element!r}, which is not a name")
    if _PARAMETER.search(chroot):
        raise ConfigException(KEY, NOT_SHOWN)
    if _UNPRINTABLE.search(chroot):
        raise ConfigException(KEY, f"the chroot {chroot!a} contains a control character")
    return chroot
