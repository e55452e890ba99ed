"""TLS and SASL logins on the connections to brokers.

Made once for a connector and shared by all its channels. Any thread may use it, and nothing in it changes. The original
speaks PLAINTEXT only; the properties are those of Kafka's newer clients.

A login does no I/O of its own, but for GSSAPI, which asks the Kerberos library (and that its server), and for the
function or file of an OAUTHBEARER token. ``sasl_mechanisms.py`` computes the steps. Three rules are stricter than those
of other clients. The number of hash rounds that a broker asks for has limits. A broker must extend the nonce of SCRAM
(RFC 5802). A refused OAUTHBEARER token is an error at once.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from zkconsumer.config.security_properties import PASSWORD_MECHANISMS, SecurityConfig
from zkconsumer.config.tls import PemFile, client_context
from zkconsumer.errors import BrokerAuthenticationError, ConfigException, MissingExtraError
from zkconsumer.kafka import error_codes, requests, sasl_mechanisms
from zkconsumer.kafka.broker_channel import BrokerChannel, Security
from zkconsumer.kafka.broker_schemas import SASL_AUTHENTICATE, SASL_HANDSHAKE
from zkconsumer.kafka.connection import PeerClosedError
from zkconsumer.kafka.sasl_mechanisms import LoginTokens
from zkconsumer.runtime.deadline import Deadline

_MOST_STEPS = 16  # steps of a login; the longest real one takes four

_PROVIDER = "sasl.oauthbearer.token.provider"

TokenSource = Callable[[], str]
"""Returns a token for OAUTHBEARER, a new one for each login."""


class SaslLogin:
    """The configured login. Immutable; any thread.

    Raises: ConfigException for a missing property, MissingExtraError if GSSAPI lacks its library.
    """

    def __init__(self, config: SecurityConfig) -> None:
        self.mechanism = config.sasl_mechanism
        self._credentials = config.sasl_credentials
        self._service = config.sasl_kerberos_service_name
        self._gssapi = _kerberos_library() if self.mechanism == "GSSAPI" else None
        self._token = _token_source(config) if self.mechanism == "OAUTHBEARER" else None
        if self.mechanism in PASSWORD_MECHANISMS and self._credentials is None:
            raise ConfigException("sasl.username", "is missing, or sasl.password is")

    def __str__(self) -> str:
        known = self._credentials if self.mechanism in PASSWORD_MECHANISMS else None
        return f"sasl.mechanism {self.mechanism}" + (f", user {known.username!r}" if known is not None else "")

    def begin(self, host: str) -> LoginTokens:
        """Return a new login on the broker at ``host``."""
        if self._token is not None:
            return sasl_mechanisms.bearer(self._token)
        if self._gssapi is not None:
            return sasl_mechanisms.kerberos(self._gssapi, f"{self._service}@{host}")
        assert self._credentials is not None
        name, password = self._credentials
        if self.mechanism == "PLAIN":
            return sasl_mechanisms.plain(name, password)
        return sasl_mechanisms.scram(sasl_mechanisms.HASHES[self.mechanism], name, password, secrets.token_hex())


def _kerberos_library() -> ModuleType:
    try:
        return import_module("gssapi")
    except ImportError as failure:
        raise MissingExtraError("sasl.mechanism=GSSAPI", "kerberos") from failure


def _token_source(config: SecurityConfig) -> TokenSource:
    if config.sasl_oauthbearer_token_endpoint_url is not None:
        return _from_file(config.sasl_oauthbearer_token_endpoint_url)
    module, _, name = (config.sasl_oauthbearer_token_provider or "").partition(":")
    try:
        source = import_module(module.strip())
        for part in name.strip().split("."):
            source = getattr(source, part)
    except (ImportError, AttributeError, ValueError) as failure:
        raise ConfigException(_PROVIDER, f"cannot be loaded: {failure}") from failure
    if not callable(source):
        raise ConfigException(_PROVIDER, "names something that cannot be called")
    provider: Callable[[], object] = source

    def provided() -> str:
        token = provider()
        if not isinstance(token, str) or not token:
            raise ValueError(f"{_PROVIDER} gave no token but {type(token).__name__}")
        return token

    return provided


def _from_file(url: str) -> TokenSource:
    from urllib.request import url2pathname  # here: it loads the clients of HTTP and mail

    path = Path(url2pathname(urlsplit(url).path))
    return lambda: path.read_text(encoding="ascii").strip()


def channel_security(config: SecurityConfig) -> Security | None:
    """Return the security that ``security.protocol`` asks for, to be given to each BrokerChannel; None for PLAINTEXT.

    Reads the files that the configuration names. Raises: ConfigException if one of them cannot be used,
    MissingExtraError if a mechanism needs a library.
    """
    if not config.uses_tls and not config.uses_sasl:
        return None
    return _ChannelSecurity(
        _context(config) if config.uses_tls else None,
        SaslLogin(config) if config.uses_sasl else None,
    )


def _context(config: SecurityConfig) -> ssl.SSLContext:
    either = "ssl.ca.location" if config.ssl_ca_location is not None else "ssl.truststore.location"
    own = "ssl.certificate.location" if config.ssl_certificate_location is not None else "ssl.keystore.location"
    return client_context(
        trusted=PemFile(either, config.ssl_ca_location or config.ssl_truststore_location),
        certificate=PemFile(own, config.ssl_certificate_location or config.ssl_keystore_location),
        key=PemFile("ssl.key.location", config.ssl_key_location),
        password=config.ssl_key_password,
        check_hostname=config.ssl_endpoint_identification_algorithm == "https",
    )


class _ChannelSecurity:
    def __init__(self, context: ssl.SSLContext | None, login: SaslLogin | None) -> None:
        self._context = context
        self._login = login

    def wrap(self, sock: socket.socket, host: str) -> socket.socket:
        """Return the socket with TLS over it, before the handshake."""
        if self._context is None:
            return sock
        return self._context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)

    def authenticate(self, channel: BrokerChannel, deadline: Deadline) -> float | None:
        """Log in. Return the lifetime of the login in seconds, or None if unlimited. Raises BrokerError."""
        if self._login is None:
            return None
        version = channel.versions.get(SASL_HANDSHAKE.name)
        if version is not None:
            self._choose_mechanism(self._login, channel, version, deadline)
        elif self._login.mechanism != "GSSAPI":
            raise BrokerAuthenticationError(f"{channel.name}: brokers before 0.10 know no login but GSSAPI")
        tokens = _token_in_request if version and SASL_AUTHENTICATE.name in channel.versions else _bare_token
        return self._exchange_tokens(self._login, channel, tokens, deadline)

    @staticmethod
    def _choose_mechanism(login: SaslLogin, channel: BrokerChannel, version: int, deadline: Deadline) -> None:
        answer = channel.exchange(requests.mechanism_request(version, login.mechanism), deadline)
        code = answer["error_code"]
        if code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(filter(None, answer["mechanisms"] or ())) or "none"
            raise BrokerAuthenticationError(
                f"{channel.name}: it does not know sasl.mechanism {login.mechanism}; it offers {offered}"
            )
        if code:
            raise BrokerAuthenticationError(
                f"{channel.name}: {error_codes.name(code)} to the wish to log in; is "
                f"security.protocol right for this listener?"
            )

    @staticmethod
    def _exchange_tokens(login: SaslLogin, channel: BrokerChannel, tokens: Any, deadline: Deadline) -> float | None:
        """Exchange tokens until the end. Any error of a mechanism's own code is a failed login, never more."""
        lifetime: float | None = None
        answer: bytes | None = None
        refused = f"{channel.name}: the login failed ({login}): "
        steps = login.begin(channel.endpoint.host)
        for _ in range(_MOST_STEPS):
            try:
                token, awaited = next(steps) if answer is None else steps.send(answer)
            except StopIteration:
                return lifetime
            except BrokerAuthenticationError as failure:
                raise BrokerAuthenticationError(f"{refused}{failure}") from None
            except Exception as failure:
                raise BrokerAuthenticationError(f"{refused}{str(failure) or repr(failure)}") from failure
            try:
                answer, lifetime = tokens(channel, token, awaited, deadline)
            except BrokerAuthenticationError as failure:
                raise BrokerAuthenticationError(f"{refused}{failure}") from None
        raise BrokerAuthenticationError(f"{refused}it does not come to an end")


def _token_in_request(
    channel: BrokerChannel, token: bytes, awaited: bool, deadline: Deadline
) -> tuple[bytes, float | None]:
    """Exchange one token in a request of the protocol (from 1.0 on)."""
    del awaited  # every request has its answer
    version = channel.versions[SASL_AUTHENTICATE.name]
    answer = channel.exchange(requests.token_request(version, token), deadline)
    if answer["error_code"]:
        raise BrokerAuthenticationError(answer["error_message"] or error_codes.name(answer["error_code"]))
    lifetime = answer.get("session_lifetime_ms", 0)
    return answer["auth_bytes"] or b"", lifetime / 1000 if lifetime > 0 else None


def _bare_token(channel: BrokerChannel, token: bytes, awaited: bool, deadline: Deadline) -> tuple[bytes, float | None]:
    """Exchange one token behind its length (0.9 to 0.11), where the broker refuses by closing the connection."""
    try:
        return channel.exchange_token(token, awaited, deadline), None
    except PeerClosedError:
        raise BrokerAuthenticationError("the broker closed the connection, as it does on wrong credentials") from None


__all__ = ["channel_security"]
