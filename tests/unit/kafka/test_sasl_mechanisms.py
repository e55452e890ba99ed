"""Mechanisms of logins against the examples of their RFCs, and against brokers that send anything."""

from __future__ import annotations

import base64
import hashlib
import hmac
from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.errors import BrokerAuthenticationError
from zkconsumer.kafka.channel_security import LoginTokens, bearer, plain, scram


class Example(NamedTuple):
    """A login from an RFC. User and password are those of both."""

    algorithm: str
    nonce: str
    first: str
    challenge: str
    final: str
    signature: str

    def begin(self) -> LoginTokens:
        """A login that has sent its first token."""
        login = scram(self.algorithm, "user", "pencil", self.nonce)
        assert next(login) == (self.first.encode(), True)
        return login


RFC_5802 = Example(
    "sha1",
    "fyko+d2lbbFgONRv9qkxdawL",
    "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = Example(
    "sha256",
    "rOprNGfwEbeRWgbNEkqO",
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)
EXAMPLES = pytest.mark.parametrize("example", [RFC_5802, RFC_7677], ids=["rfc5802", "rfc7677"])


@EXAMPLES
def test_scram_logs_in_as_its_rfc_does(example: Example) -> None:
    login = example.begin()
    assert login.send(example.challenge.encode()) == (example.final.encode(), True)
    with pytest.raises(StopIteration):
        login.send(example.signature.encode())


@EXAMPLES
@pytest.mark.parametrize(
    "last", ["", "v=", "e=invalid-proof", "v=AAAA", "v=!!!!", "{signature}=", "x{signature}", "{signature}AAAA"]
)
def test_scram_believes_no_other_signature(example: Example, last: str) -> None:
    login = example.begin()
    login.send(example.challenge.encode())
    with pytest.raises(ValueError, match=r"\S"):
        login.send(last.replace("{signature}", example.signature).encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", ""), "added nothing to the nonce"),
        (("r=rOpr", "r=other"), "another login"),
        (("4096", "4095"), "4095 rounds"),
        (("4096", "1000001"), "1000001 rounds"),
        (("4096", "9" * 10), "rounds"),
        (("4096", "9" * 5000), "not of SCRAM"),
        (("4096", "04096"), "not of SCRAM"),
        (("4096", "٤٠٩٦"), "not of SCRAM"),
        (("r=rOpr", "m=new,r=rOpr"), "not of SCRAM"),
        (("s=W22", "s=!22"), "not of SCRAM"),
        (("gQ==", "gQ="), "(?i)padding"),
        (("%", " "), "not of SCRAM"),
    ],
)
def test_scram_refuses_an_unsafe_challenge(change: tuple[str, str], words: str) -> None:
    login = RFC_7677.begin()
    with pytest.raises(ValueError, match=words):
        login.send(RFC_7677.challenge.replace(*change).encode())


def test_scram_passes_over_extensions_of_a_challenge() -> None:
    login = RFC_7677.begin()
    token, awaited = login.send(RFC_7677.challenge.encode() + b",x=later")
    assert awaited
    assert token.startswith(RFC_7677.final.partition(",p=")[0].encode())


def test_scram_takes_a_password_as_kafka_does() -> None:
    """SASLprep would make an a of the ª and drop the soft hyphen, but Kafka's brokers hash the bytes as they are."""
    login = scram("sha256", "user", "\u00aa\u00ad", "ours")
    next(login)
    token, _ = login.send(b"r=oursandtheirs,s=c2FsdA==,i=4096")
    salted = hashlib.pbkdf2_hmac("sha256", "\u00aa\u00ad".encode(), b"salt", 4096)
    message = b"n=user,r=ours,r=oursandtheirs,s=c2FsdA==,i=4096,c=biws,r=oursandtheirs"
    assert _proof(salted, message) == base64.b64decode(token.rpartition(b",p=")[2])


def _proof(salted: bytes, message: bytes) -> bytes:
    key = hmac.new(salted, b"Client Key", "sha256").digest()
    mask = hmac.new(hashlib.sha256(key).digest(), message, "sha256").digest()
    return bytes(one ^ other for one, other in zip(key, mask, strict=True))


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3))
def test_no_answer_of_a_broker_is_another_error(answers: list[bytes]) -> None:
    for login in (scram("sha256", "u", "p", "nonce"), plain("u", "p"), bearer(lambda: "token")):
        next(login)
        with suppress(ValueError, BrokerAuthenticationError, StopIteration):
            for answer in answers:
                login.send(answer)


def test_plain_ends_with_an_empty_answer() -> None:
    login = plain("ann", "pü")
    assert next(login) == ("ann\0ann\0pü".encode(), True)
    with pytest.raises(StopIteration):
        login.send(b"")
    login = plain("ann", "p")
    next(login)
    with pytest.raises(ValueError, match="3 bytes"):
        login.send(b"huh")


def test_bearer_confirms_a_refusal_before_it_fails() -> None:
    """RFC 7628, 3.2.3."""
    login = bearer(lambda: "vF9dft4qmT")
    assert next(login) == (b"n,,\x01auth=Bearer vF9dft4qmT\x01\x01", True)
    assert login.send(b'{"status":"invalid_token"}') == (b"\x01", True)
    with pytest.raises(BrokerAuthenticationError, match="invalid_token"):
        login.send(b"")
