"""The mechanisms of SASL logins: PLAIN, SCRAM, GSSAPI and OAUTHBEARER, from the client's side.

A mechanism is a generator. It yields the next token for the broker, and whether an answer is due, and is sent the
answer. It returns at the end of a good login, and raises any error for a wrong answer. Only GSSAPI does I/O: it asks
the Kerberos library, and that its server. One thread drives a generator.

No library was taken for SCRAM. scramp, the one that is well kept, prepares names and passwords by SASLprep (RFC 4013).
Kafka's brokers and its Java client do not, so users with some passwords could not log in.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator
from typing import Any, Final

from zkconsumer.errors import BrokerAuthenticationError

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
