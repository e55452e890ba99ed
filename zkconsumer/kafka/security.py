"""TLS and SASL logins on the connections to brokers.

Made once for a connector and shared by all its channels. Any thread may use it, and nothing in it changes. The original
speaks PLAINTEXT only; the properties are those of Kafka's newer clients.

A login does no I/O of its own, but for GSSAPI, which asks the Kerberos library (and that its server), and for the
function or file of an OAUTHBEARER token. The client library computes the steps of the mechanisms. aiokafka's
authenticators are generators that know no loop, and are driven here by hand;
``tests/contract/test_protocol_classes.py`` tests the parts that are used. Three differences are on purpose. The number
of hash rounds that a broker asks for has limits. A broker must extend the nonce of SCRAM (RFC 5802). A refused
OAUTHBEARER token is an error at once.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from aiokafka import conn

from zkconsumer.config.security_properties import PASSWORD_MECHANISMS, SecurityConfig
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerAuthenticationError, ConfigException, MissingExtraError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka.broker_channel import BrokerChannel, Security
from zkconsumer.kafka.broker_schemas import SASL_AUTHENTICATE, SASL_HANDSHAKE
from zkconsumer.kafka.connection import PeerClosedError
from zkconsumer.tls import PemFile, client_context

_MOST_STEPS = 16  # steps of a login; the longest real one takes four
_ROUNDS = range(4096, 1_000_001)
"""Fewer would let a false broker guess the password soon (RFC 7677); more would only keep this thread busy."""

_PROVIDER = "sasl.oauthbearer.token.provider"

TokenSource = Callable[[], str]
"""Returns a token for OAUTHBEARER, a new one for each login."""

LoginStep = Callable[[bytes | None], tuple[bytes, bool] | None]
"""Returns the next token and whether an answer is due, or None at the end; takes the last answer, None at first.

Raises any error for a wrong answer.
"""


class SaslLogin:
    """The configured login. Immutable; any thread.

    Raises: ConfigException for a missing property, MissingExtraError if GSSAPI lacks its library.
    """

    def __init__(self, config: SecurityConfig) -> None:
        self.mechanism = config.sasl_mechanism
        self._credentials = config.sasl_credentials
        self._service = config.sasl_kerberos_service_name
        self._token: TokenSource | None = None
        if self.mechanism in PASSWORD_MECHANISMS and self._credentials is None:
            raise ConfigException("sasl.username", "is missing, or sasl.password is")
        if self.mechanism == "GSSAPI" and conn.gssapi is None:
            raise MissingExtraError("sasl.mechanism=GSSAPI", "kerberos")
        if self.mechanism == "OAUTHBEARER":
            self._token = _token_source(config)

    def __str__(self) -> str:
        known = self._credentials if self.mechanism in PASSWORD_MECHANISMS else None
        return f"sasl.mechanism {self.mechanism}" + (f", user {known.username!r}" if known is not None else "")

    def begin(self, host: str) -> LoginStep:
        """Return a new login on the broker at ``host``."""
        if self._token is not None:
            return _BearerMechanism(self._token).step
        authenticator: Any
        if self.mechanism == "GSSAPI":
            authenticator = conn.SaslGSSAPIAuthenticator(loop=None, principal=f"{self._service}@{host}")
        else:
            assert self._credentials is not None
            name, password = self._credentials
            given = {"loop": None, "sasl_plain_username": name, "sasl_plain_password": password}
            if self.mechanism == "PLAIN":
                authenticator = conn.SaslPlainAuthenticator(**given)
            else:
                authenticator = _ScramMechanism(**given, sasl_mechanism=self.mechanism)
        step: LoginStep = authenticator._step  # without the library's event loop
        return step


class _ScramMechanism(conn.ScramAuthenticator):  # type: ignore[misc]
    def first_message(self) -> str:
        message: str = super().first_message()
        self._first = message
        return message

    def process_server_first_message(self, server_first: str) -> None:
        nonce = server_first.partition("r=")[2].partition(",")[0]
        # with a nonce of ours alone, a false broker could replay the proof of another login
        if self._first.endswith(f",r={nonce}"):
            raise ValueError("it added nothing to the nonce of this login")
        super().process_server_first_message(server_first)

    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        if iterations not in _ROUNDS:
            raise ValueError(f"it asks for {iterations} rounds of hashing; {_ROUNDS[0]} to {_ROUNDS[-1]} are allowed")
        super().create_salted_password(salt, iterations)


class _BearerMechanism:
    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._refused = ""

    def step(self, answer: bytes | None) -> tuple[bytes, bool] | None:
        if answer is None:
            return f"n,,\x01auth=Bearer {self._source()}\x01\x01".encode(), True
        if self._refused:
            raise BrokerAuthenticationError(self._refused)
        if not answer:
            return None
        # a refusal comes as an answer, which the client must confirm before the error itself comes
        self._refused = answer.decode("utf-8", "replace")
        return b"\x01", True


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
        next_token = login.begin(channel.endpoint.host)
        for _ in range(_MOST_STEPS):
            try:
                step = next_token(answer)
            except BrokerAuthenticationError as failure:
                raise BrokerAuthenticationError(f"{refused}{failure}") from None
            except Exception as failure:
                raise BrokerAuthenticationError(f"{refused}{str(failure) or repr(failure)}") from failure
            if step is None:
                return lifetime
            token, awaited = step
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
