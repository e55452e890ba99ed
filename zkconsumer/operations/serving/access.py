"""The rules of access to the server: the address it listens on, the ``Host`` header and the token. Pure; any thread.

A page of another site can make a browser on this machine send requests to 127.0.0.1. With a name of its own that
resolves to 127.0.0.1 it could even read the answers (DNS rebinding). So a server on loopback answers only requests that
name it by a loopback address. A server on another address answers only requests with the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from zkconsumer.errors import ConfigException

COOKIE = "zkconsumer_token"
LEAST_TOKEN = 16
"""The least length of a token in characters."""

_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:/@\s]+))(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address to listen on. ``port`` 0 takes a free one."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return _loopback(self.host)

    @property
    def is_v6(self) -> bool:
        """Whether it is an IPv6 address."""
        return ":" in self.host


def listen_address(text: str, option: str = "--listen") -> ListenAddress:
    """Return the address that an option names: ``127.0.0.1:8089``, ``[::1]:8089``, ``localhost:0``.

    Raises: ConfigException, which names the option.
    """
    found = _HOST.fullmatch(text)
    if found is None or found["port"] is None or int(found["port"]) > 65535:
        raise ConfigException(option, f"{text!a} is no HOST:PORT, such as 127.0.0.1:8089 or [::1]:8089")
    return ListenAddress(found["v6"] or found["name"], int(found["port"]))


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def checked_token(text: str, where: str) -> str:
    """Return the token in the content of a file. Raises ConfigException that names the file, never the token."""
    token = text.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigException(
            "--token-file", f"{where} needs one line of at least {LEAST_TOKEN} printable ASCII characters, no spaces"
        )
    return token


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of one server. ``token`` is None on loopback without a token.

    Raises: ConfigException for an address off loopback without a token.
    """

    address: ListenAddress
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is None and not self.address.loopback:
            raise ConfigException(
                "--listen",
                f"{self.address.host} is reachable from other machines, so a token is needed: --token-file FILE",
            )

    def host_allowed(self, host: str | None) -> bool:
        """Return whether a request with this ``Host`` header may be answered."""
        if not self.address.loopback:
            return True  # the token decides; the server cannot know all its names
        found = _HOST.fullmatch(host or "")
        return found is not None and _loopback(found["v6"] or found["name"])

    def token_given(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
        """Return whether a request has the token: as ``Bearer``, as ``?token=`` or as the cookie of an earlier one.

        Arguments: ``headers`` by lower-case names, ``query`` the parameters.
        """
        if self.token is None:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer.strip()] if scheme.lower() == "bearer" else []
        given += [query["token"]] if "token" in query else []
        return any(_same(one, self.token) for one in given) or _same(_cookie(headers), self.cookie)

    @property
    def cookie(self) -> str:
        """The cookie's value. It is derived from the token, so that a stolen cookie does not reveal the token."""
        return hmac.new((self.token or "").encode(), COOKIE.encode(), hashlib.sha256).hexdigest()


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time, so that the time of an answer does not tell how much of a guess is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())
