"""TLS and SASL logins on the connections to brokers: PLAIN, SCRAM, GSSAPI and OAUTHBEARER.

Made once for a connector and shared by all its channels. Any thread may use it, and nothing in it changes. The original
speaks PLAINTEXT only; the properties are those of Kafka's newer clients.

A mechanism of SASL is a generator. It yields the next token for the broker, and whether an answer is due, and is sent
the answer. It returns at the end of a good login, and raises any error for a wrong answer. One thread drives a
generator. A login does no I/O of its own, but for GSSAPI, which asks the Kerberos library (and that its server), and
for the function or file of an OAUTHBEARER token.

Three rules are stricter than those of other clients. The number of hash rounds that a broker asks for has limits. A
broker must extend the nonce of SCRAM (RFC 5802). A refused OAUTHBEARER token is an error at once.

No library was taken for SCRAM. scramp, the one that is well kept, prepares names and passwords by SASLprep (RFC 4013).
Kafka's brokers and its Java client do not, so users with some passwords could not log in.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socket
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from zkconsumer.config.security_properties import PASSWORD_MECHANISMS, PemFile, SecurityConfig, client_context
from zkconsumer.errors import BrokerAuthenticationError, ConfigException, MissingExtraError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka.broker_channel import BrokerChannel, Security
from zkconsumer.kafka.broker_schemas import SASL_AUTHENTICATE, SASL_HANDSHAKE
from zkconsumer.kafka.connection import PeerClosedError
from zkconsumer.runtime.deadline import Deadline

LoginTokens = Generator[tuple[bytes, bool], bytes, None]

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each SCRAM mechanism, by its name in ``hashlib``."""

ROUNDS: Final = range(4096, 1_000_001)
"""Fewer would let a false broker guess the password soon (RFC 7677); more would only keep this thread busy."""

_SERVER_FIRST = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,.*)?", re.DOTALL)
_SERVER_FINAL = re.compile(r"v=([A-Za-z0-9+/=]+)(?:,.*)?", re.DOTALL)
_NO_BINDING = "n,,"  # the login is not bound to a TLS connection
_NO_LAYER = 1  # GSSAPI: messages after the login are neither signed nor encrypted


def plain(username: str, password: str) -> LoginTokens:
    """Log in by a password in clear text (RFC 4616)."""
    answer = yield f"{username}\0{username}\0{password}".encode(), True
    if answer:
        raise ValueError(f"it answers a password with {len(answer)} bytes")


def scram(algorithm: str, username: str, password: str, nonce: str) -> LoginTokens:
    """Prove a password without sending it, and check that the broker knows it too (RFC 5802).

    Arguments: ``algorithm`` names a function of ``hashlib``; ``nonce`` is a text that no other login has.
    """
    name = username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}"
    server_first = (yield f"{_NO_BINDING}{client_first}".encode(), True).decode()
    common, salt, rounds = _challenge(server_first, nonce)
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, rounds)
    client_final = f"c={b64encode(_NO_BINDING.encode()).decode()},r={common}"
    exchange = f"{client_first},{server_first},{client_final}".encode()
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), exchange, algorithm)
    proof = bytes(key ^ mask for key, mask in zip(client_key, signature, strict=True))
    server_final = (yield f"{client_final},p={b64encode(proof).decode()}".encode(), True).decode()
    found = _SERVER_FINAL.fullmatch(server_final)
    if found is None:
        raise ValueError(f"its last word is not of SCRAM: {server_final[:100]!r}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), exchange, algorithm)
    if not hmac.compare_digest(b64decode(found[1], validate=True), expected):
        raise ValueError("its wrong signature shows that it does not know the password")


def _challenge(server_first: str, nonce: str) -> tuple[str, bytes, int]:
    """Return the common nonce, the salt and the rounds of hashing. Raises ValueError for unsafe ones."""
    found = _SERVER_FIRST.fullmatch(server_first)
    if found is None:
        raise ValueError(f"its challenge is not of SCRAM: {server_first[:100]!r}")
    common, salt, rounds = found[1], b64decode(found[2], validate=True), int(found[3])
    if not common.startswith(nonce):
        raise ValueError("it answers another login: its nonce does not begin with ours")
    # with a nonce of ours alone, a false broker could replay the proof of another login
    if common == nonce:
        raise ValueError("it added nothing to the nonce of this login")
    if rounds not in ROUNDS:
        raise ValueError(f"it asks for {rounds} rounds of hashing; {ROUNDS[0]} to {ROUNDS[-1]} are allowed")
    return common, salt, rounds


def kerberos(gssapi: Any, principal: str) -> LoginTokens:
    """Log in by a Kerberos ticket (RFC 4752).

    Arguments: ``gssapi`` is the module of that name; ``principal`` is the broker's, as ``service@host``.
    """
    name = gssapi.Name(principal, name_type=gssapi.NameType.hostbased_service)
    context = gssapi.SecurityContext(name=name.canonicalize(gssapi.MechType.kerberos), usage="initiate")
    answer: bytes | None = None
    while not context.complete:
        answer = yield context.step(answer) or b"", True
    offer = context.unwrap(answer).message
    if len(offer) != 4 or not offer[0] & _NO_LAYER:
        raise ValueError("it wants to sign or encrypt messages itself; use TLS for that")
    chosen = bytes([_NO_LAYER]) + offer[1:] + principal.encode()
    yield context.wrap(chosen, False).message, False


def bearer(token: Callable[[], str]) -> LoginTokens:
    """Log in by a token (RFC 7628), which ``token`` returns."""
    refusal = yield f"n,,\x01auth=Bearer {token()}\x01\x01".encode(), True
    if refusal:
        # a refusal comes as an answer, which the client must confirm before the error itself comes
        yield b"\x01", True
        raise BrokerAuthenticationError(refusal.decode("utf-8", "replace"))


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
            return bearer(self._token)
        if self._gssapi is not None:
            return kerberos(self._gssapi, f"{self._service}@{host}")
        assert self._credentials is not None
        name, password = self._credentials
        if self.mechanism == "PLAIN":
            return plain(name, password)
        return scram(HASHES[self.mechanism], name, password, secrets.token_hex())


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
        _context(config) if config.uses_tls else None, SaslLogin(config) if config.uses_sasl else None
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
