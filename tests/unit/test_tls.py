"""Contexts for TLS from files: what is trusted, and errors that name the property."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from zkconsumer.config.security_properties import PemFile, client_context
from zkconsumer.errors import ConfigException

UNSET = PemFile("unset", None)


def made(
    trusted: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    password: str | None = None,
    check_hostname: bool = True,
) -> ssl.SSLContext:
    return client_context(
        trusted=PemFile("the.ca", trusted),
        certificate=PemFile("the.certificate", certificate),
        key=PemFile("the.key", key),
        password=password,
        check_hostname=check_hostname,
    )


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pem(authority: trustme.CA, tmp_path: Path) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization

    issued = authority.issue_cert("client")
    files = {
        "ca": authority.cert_pem.bytes(),
        "chain": b"".join(blob.bytes() for blob in issued.cert_chain_pems),
        "key": issued.private_key_pem.bytes(),
        "both": issued.private_key_and_cert_chain_pem.bytes(),
        "none": b"\x00\x01 no PEM at all",
        "locked": serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        ),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return {name: str(tmp_path / name) for name in files}


def test_only_the_given_authorities_are_trusted(pem: dict[str, str]) -> None:
    context = made(pem["ca"])
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_the_chain_is_verified_even_where_any_host_name_will_do() -> None:
    context = made(check_hostname=False)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.check_hostname


def test_certificate_and_key_may_be_one_file_or_two(pem: dict[str, str]) -> None:
    made(certificate=pem["both"])
    made(certificate=pem["chain"], key=pem["key"])
    made(certificate=pem["chain"], key=pem["locked"], password="hunter2")


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        ({"trusted": "absent"}, "the.ca", "does not exist"),
        ({"trusted": "none"}, "the.ca", "as PEM"),
        ({"trusted": "key"}, "the.ca", "PEM"),
        ({"certificate": "absent"}, "the.certificate", "does not exist"),
        ({"certificate": "chain", "key": "absent"}, "the.key", "does not exist"),
        ({"certificate": "chain"}, "the.certificate", "private key"),
        ({"certificate": "none"}, "the.certificate", "as PEM"),
        ({"certificate": "chain", "key": "locked", "password": "wrong"}, "the.certificate", "password"),
        ({"certificate": "chain", "key": "locked"}, "the.certificate", "password"),
        ({"key": "key"}, "the.key", "without a certificate"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_property(
    pem: dict[str, str], arguments: dict[str, str], key: str, words: str
) -> None:
    """Also: a key that is locked and no password given must not ask for one on the terminal."""
    with pytest.raises(ConfigException, match=words) as caught:
        made(**{name: pem.get(value, value) for name, value in arguments.items()})  # type: ignore[arg-type]
    assert caught.value.key == key
