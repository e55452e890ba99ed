"""Logins to ZooKeeper, TLS, and the rights on nodes that we create.

Made once for a connector; any thread may use it. The rights are the original's (``ZkUtils``): everybody may change the
registration and the parents it creates. Owner and offset nodes and their parents belong to the login of their creator,
and everybody may read them.

Differs from kazoo on purpose. Its TLS trusts the system's authorities beside the given one, checks no host name unless
told to, and reads all files again at each connection. After a refused login kazoo gives up for good, even if a server
was only stopped at that moment; here the login is tried again, ever more seldom.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kazoo.protocol.serialization import SASL, Auth
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from zkconsumer.config.security_properties import Credentials, PemFile, SecurityConfig, client_context
from zkconsumer.errors import MissingExtraError
from zkconsumer.zookeeper.server_connection import NamedHandler

_OURS: Sequence[ACL] = (*CREATOR_ALL_ACL, *READ_ACL_UNSAFE)
_OPEN: Sequence[ACL] = tuple(OPEN_ACL_UNSAFE)
_OWNED = frozenset({"owners", "offsets", "placement", "loads"})


def acl_of(path: str) -> Sequence[ACL]:
    """Return the rights on a node that we create, if ``zookeeper.set.acl`` is on.

    ``/consumers/<group>`` is always open, so that members without a login can join. In the original it is open only if
    a registration creates it, and owned if a tool writes offsets first.
    """
    parts = path.strip("/").split("/")
    return _OURS if len(parts) > 2 and parts[0] == "consumers" and parts[2] in _OWNED else _OPEN


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """Logins, TLS and rights of a connector; by default no login and no TLS."""

    digest: Credentials | None = None
    sasl: Mapping[str, str] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    set_acl: bool = False

    def options(self) -> dict[str, Any]:
        """Return the options for kazoo's client."""
        given: dict[str, Any] = {}
        if self.digest is not None:
            given["auth_data"] = [("digest", f"{self.digest.username}:{self.digest.password}")]
        if self.sasl is not None:
            given["sasl_options"] = dict(self.sasl)
        if self.tls is not None:
            given["handler"] = _TlsHandler(self.tls)
        return given

    def acl(self, path: str) -> list[ACL] | None:
        """Return the rights on a node to create; None: open to all."""
        return list(acl_of(path)) if self.set_acl else None

    def __str__(self) -> str:
        """Return the names we log in with, for messages."""
        names = []
        if self.digest is not None:
            names.append(f"zookeeper.digest.username {self.digest.username!r}")
        if self.sasl is not None:
            names.append(f"zookeeper.sasl.mechanism {self.sasl['mechanism']}, user {self.sasl.get('username', '')!r}")
        return "; ".join(names) or "no login"


def zookeeper_security(config: SecurityConfig) -> ZooKeeperSecurity:
    """Return the security of ZooKeeper by the configuration. Reads the configured files.

    Raises ConfigException if a file cannot be used, MissingExtraError if SASL lacks its library.
    """
    digest = None
    if config.zookeeper_digest_username is not None:
        digest = Credentials(config.zookeeper_digest_username, config.zookeeper_digest_password or "")
    return ZooKeeperSecurity(
        digest,
        _sasl(config),
        _context(config) if config.zookeeper_ssl_client_enable else None,
        config.zookeeper_set_acl,
    )


def _sasl(config: SecurityConfig) -> Mapping[str, str] | None:
    mechanism = config.zookeeper_sasl_mechanism
    if mechanism is None:
        return None
    extra = "sasl" if mechanism == "DIGEST-MD5" else "kerberos"
    try:
        from puresasl.mechanisms import mechanisms  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("SASL to ZooKeeper", extra) from None
    if mechanism not in mechanisms:
        raise MissingExtraError(f"zookeeper.sasl.mechanism={mechanism}", extra)
    options = {"mechanism": mechanism, "service": config.zookeeper_sasl_kerberos_service_name}
    if mechanism == "DIGEST-MD5":
        options["username"] = config.zookeeper_sasl_username or ""
        options["password"] = config.zookeeper_sasl_password or ""
    return options


def _context(config: SecurityConfig) -> ssl.SSLContext:
    name = "zookeeper.ssl.keystore.location"
    return client_context(
        trusted=PemFile("zookeeper.ssl.truststore.location", config.zookeeper_ssl_truststore_location),
        certificate=PemFile(name, config.zookeeper_ssl_keystore_location),
        key=PemFile(name, None),
        password=config.zookeeper_ssl_keystore_password,
        check_hostname=config.zookeeper_ssl_endpoint_identification_algorithm == "https",
    )


class _TlsHandler(NamedHandler):
    """Kazoo's threads, with connections that speak TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", timeout: float | None = None, **_: object
    ) -> ssl.SSLSocket:
        """Connect to a server and do the handshake, each within ``timeout`` seconds."""
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._context.wrap_socket(plain, server_hostname=hostname or address[0])
        except BaseException:
            plain.close()
            raise

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], errors: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the ready connections, also those with decrypted data.

        An answer that was decrypted together with the one before it is in no socket any more. If only the sockets were
        asked, it would wait for the next heartbeat.
        """
        buffered = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        others = [reader for reader in readers if reader not in buffered]
        ready = super().select(others, writers, errors, 0 if buffered else timeout)
        return [*buffered, *ready[0]], ready[1], ready[2]


class NoSecrets(logging.Filter):
    """A log filter that hides the content of logins. Without it kazoo would log passwords with its requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, with the names of such requests in place of their contents."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                f"{type(argument).__name__}(***)" if isinstance(argument, (Auth, SASL)) else argument
                for argument in record.args
            )
        return True
