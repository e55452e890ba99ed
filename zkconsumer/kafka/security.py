"""TLS and a login on the connections to brokers, as the configuration says.

Made once for a connector and shared by all its channels: any thread may use it, nothing in it changes. The original
speaks PLAINTEXT only; the properties are those of Kafka's newer clients.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerAuthenticationError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka.broker_channel import BrokerChannel, Security
from zkconsumer.kafka.connection import PeerClosedError
from zkconsumer.kafka.sasl import Login
from zkconsumer.tls import PemFile, client_context

_MOST_STEPS = 16  # of a login; the longest real one takes four


def channel_security(config: SecurityConfig) -> Security | None:
    """What ``security.protocol`` asks for, to be given to each BrokerChannel; None for PLAINTEXT.

    Reads the files that the configuration names. Raises ConfigException where one of them cannot be used,
    MissingExtraError where a mechanism needs a library.
    """
    if not config.uses_tls and not config.uses_sasl:
        return None
    return _ChannelSecurity(
        _context(config) if config.uses_tls else None,
        Login(config) if config.uses_sasl else None,
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
    def __init__(self, context: ssl.SSLContext | None, login: Login | None) -> None:
        self._context = context
        self._login = login

    def wrap(self, sock: socket.socket, host: str) -> socket.socket:
        """The socket with TLS over it, the handshake still to come."""
        if self._context is None:
            return sock
        return self._context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)

    def authenticate(self, channel: BrokerChannel, deadline: Deadline) -> float | None:
        """Log in; returns for how many seconds, None without a limit. Raises BrokerError."""
        if self._login is None:
            return None
        version = channel.versions.get(requests.SASL_HANDSHAKE.name)
        if version is not None:
            self._choose_mechanism(self._login, channel, version, deadline)
        elif self._login.mechanism != "GSSAPI":
            raise BrokerAuthenticationError(f"{channel.name}: brokers before 0.10 know no login but GSSAPI")
        tokens = _framed if version and requests.SASL_AUTHENTICATE.name in channel.versions else _bare
        return self._converse(self._login, channel, tokens, deadline)

    @staticmethod
    def _choose_mechanism(login: Login, channel: BrokerChannel, version: int, deadline: Deadline) -> None:
        request = requests.SASL_HANDSHAKE.classes[version](login.mechanism)
        answer = channel.exchange(requests.SASL_HANDSHAKE, request, deadline)
        if answer.error_code == error_codes.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.enabled_mechanisms or ()) or "none"
            raise BrokerAuthenticationError(
                f"{channel.name}: it does not know sasl.mechanism {login.mechanism}; it offers {offered}"
            )
        if answer.error_code:
            raise BrokerAuthenticationError(
                f"{channel.name}: {error_codes.name(answer.error_code)} to the wish to log in; is "
                f"security.protocol right for this listener?"
            )

    @staticmethod
    def _converse(login: Login, channel: BrokerChannel, tokens: Any, deadline: Deadline) -> float | None:
        """Token for token. Whatever goes wrong in a mechanism's own code is a failed login, never more."""
        lifetime: float | None = None
        answer: bytes | None = None
        refused = f"{channel.name}: the login failed ({login}): "
        conversation = login.begin(channel.endpoint.host)
        for _ in range(_MOST_STEPS):
            try:
                step = conversation.step(answer)
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


def _framed(channel: BrokerChannel, token: bytes, awaited: bool, deadline: Deadline) -> tuple[bytes, float | None]:
    """One token in a request of the protocol (from 1.0 on)."""
    del awaited  # every request has its answer
    version = channel.versions[requests.SASL_AUTHENTICATE.name]
    answer = channel.exchange(requests.SASL_AUTHENTICATE, requests.SASL_AUTHENTICATE.classes[version](token), deadline)
    if answer.error_code:
        raise BrokerAuthenticationError(answer.error_message or error_codes.name(answer.error_code))
    lifetime = getattr(answer, "session_lifetime_ms", 0)
    return bytes(answer.sasl_auth_bytes or b""), lifetime / 1000 if lifetime > 0 else None


def _bare(channel: BrokerChannel, token: bytes, awaited: bool, deadline: Deadline) -> tuple[bytes, float | None]:
    """One token as it is, behind its length (0.9 to 0.11), where a refusal is that the connection is closed."""
    try:
        return channel.exchange_token(token, awaited, deadline), None
    except PeerClosedError:
        raise BrokerAuthenticationError("the broker closed the connection, as it does on wrong credentials") from None


__all__ = ["channel_security"]
