"""The client's side of a SASL login, token by token, for every mechanism that brokers offer.

Pure but for GSSAPI, which asks the Kerberos library (and that, a server of its own) and for the function or file that
a token of OAUTHBEARER comes from. What the mechanisms compute is the Kafka client library's (aiokafka's authenticators
are generators that know no loop; they are driven here by hand); ``tests/contract/test_protocol_classes.py`` pins what
is relied on. Differs from it on purpose: the number of hash rounds that a broker asks for has limits, a broker must
extend the nonce of SCRAM (RFC 5802), and an OAUTHBEARER token that the broker refuses is an error at once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from aiokafka import conn

from zkconsumer.config.security_properties import PASSWORD_MECHANISMS, SecurityConfig
from zkconsumer.errors import BrokerAuthenticationError, ConfigException, MissingExtraError

_ROUNDS = range(4096, 1_000_001)
"""Fewer would let a false broker guess the password soon (RFC 7677); more would only keep this thread busy."""

_PROVIDER = "sasl.oauthbearer.token.provider"

TokenSource = Callable[[], str]
"""Gives a token for OAUTHBEARER, anew for each login."""


class Conversation(Protocol):
    """One login."""

    def step(self, answer: bytes | None) -> tuple[bytes, bool] | None:
        """What to send after ``answer`` (None: at first) and whether an answer is due; None: done.

        Raises anything for an answer that is wrong.
        """


class Login:
    """Who logs in, and how. Immutable; any thread.

    Raises ConfigException for what is missing, MissingExtraError where GSSAPI lacks its library.
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

    def begin(self, host: str) -> Conversation:
        """A login on the broker at ``host``."""
        if self._token is not None:
            return _Bearer(self._token)
        if self.mechanism == "GSSAPI":
            return _Driven(conn.SaslGSSAPIAuthenticator(loop=None, principal=f"{self._service}@{host}"))
        assert self._credentials is not None
        name, password = self._credentials
        if self.mechanism == "PLAIN":
            return _Driven(
                conn.SaslPlainAuthenticator(loop=None, sasl_plain_username=name, sasl_plain_password=password)
            )
        return _Driven(
            _Scram(loop=None, sasl_plain_username=name, sasl_plain_password=password, sasl_mechanism=self.mechanism)
        )


class _Driven:
    """One of the library's authenticators, without its event loop."""

    def __init__(self, authenticator: Any) -> None:
        self._step = authenticator._step

    def step(self, answer: bytes | None) -> tuple[bytes, bool] | None:
        step: tuple[bytes, bool] | None = self._step(answer)
        return step


class _Scram(conn.ScramAuthenticator):  # type: ignore[misc]
    def first_message(self) -> str:
        message: str = super().first_message()
        self._first = message
        return message

    def process_server_first_message(self, server_first: str) -> None:
        nonce = server_first.partition("r=")[2].partition(",")[0]
        # with a nonce of ours alone, what another login proved could be shown again
        if self._first.endswith(f",r={nonce}"):
            raise ValueError("it added nothing to the nonce of this login")
        super().process_server_first_message(server_first)

    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        if iterations not in _ROUNDS:
            raise ValueError(f"it asks for {iterations} rounds of hashing; {_ROUNDS[0]} to {_ROUNDS[-1]} are allowed")
        super().create_salted_password(salt, iterations)


class _Bearer:
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
        # a refusal comes as an answer, which has to be confirmed before the error itself comes
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
