"""TLS from our side: whom we trust and who we are, read from PEM files once, when a connector starts.

Used for ZooKeeper and for Kafka. Any thread may use a context that was made. The original knows no TLS; the meaning of
the properties is that of Kafka's and ZooKeeper's Java clients, with PEM as the only format. Differs on purpose: where
a file of trusted certificates is given, only those count, never the system's as well.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from zkconsumer.errors import ConfigException


class PemFile(NamedTuple):
    """A file that a property names. ``path`` None: the property was not given."""

    property: str
    path: str | None


def client_context(
    *, trusted: PemFile, certificate: PemFile, key: PemFile, password: str | None, check_hostname: bool
) -> ssl.SSLContext:
    """Return a context for connections to servers, whose certificates it always verifies."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    if trusted.path is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(context, trusted.property, trusted.path)
    if certificate.path is not None:
        _identify(context, certificate.property, certificate.path, key, password)
    elif key.path is not None:
        raise ConfigException(key.property, f"names a private key without a certificate: give {certificate.property}")
    return context


def _trust(context: ssl.SSLContext, name: str, path: str) -> None:
    try:
        if Path(path).is_dir():
            context.load_verify_locations(capath=path)
            return
        context.load_verify_locations(cafile=path)
    except OSError as failure:
        raise ConfigException(name, f"{path!r} {_why(failure)}") from None
    if not context.get_ca_certs():
        raise ConfigException(name, f"{path!r} holds no certificate of an authority")


def _identify(context: ssl.SSLContext, name: str, path: str, key: PemFile, password: str | None) -> None:
    # without a callback OpenSSL would ask for a missing password on the terminal, and wait there
    def told() -> str:
        return password or ""

    for file, which in ((path, name), (key.path, key.property)):
        if file is not None and not Path(file).is_file():
            raise ConfigException(which, f"{file!r} does not exist")
    try:
        context.load_cert_chain(path, key.path, told)
    except OSError as failure:
        reason = f"{_why(failure)} (its private key included), or the password of the key is wrong"
        raise ConfigException(name, f"{path!r} {reason}") from None


def _why(failure: OSError) -> str:
    if isinstance(failure, FileNotFoundError):
        return "does not exist"
    if isinstance(failure, ssl.SSLError):
        return "cannot be read as PEM; other formats, such as JKS and PKCS12, must be converted"
    return f"cannot be read: {failure.strerror or failure}"
