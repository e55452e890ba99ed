"""The properties of TLS and of logins, to ZooKeeper and to the brokers. Immutable; any thread.

Names are Kafka's and ZooKeeper's: a broker's names for a connection to ZooKeeper, a Java client's names for a
connection to Kafka. Names that Python users know better from librdkafka are librdkafka's (``ssl.ca.location``,
``sasl.username``). New names have librdkafka's style. The original has no such properties; it takes logins from Java's
JAAS file, and knows no TLS.

:func:`client_context` reads PEM files, the only format, once, when a connector starts. Any thread may use a context
that was made. Differs from Kafka's and ZooKeeper's Java clients on purpose: where a file of trusted certificates is
given, only those count, never the system's as well.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from zkconsumer.config.config_definition import boolean, choice, not_empty, text
from zkconsumer.errors import ConfigException

PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = (*PASSWORD_MECHANISMS, "GSSAPI", "OAUTHBEARER")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PEM = {"pem": "PEM"}
_HOST_CHECK = {"https": "https", "": ""}
_ENTRY = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*)\Z", re.S | re.I
)
_OPTION = re.compile(
    r"""\s*(?P<name>[\w.\-]+)\s*=\s*(?:"(?P<text>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<bare>[^\s;"']+))"""
)
_ESCAPED = re.compile(r"\\(.)")


class Credentials(NamedTuple):
    """A user name and its password, which the text of this object never shows."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r}, password='***')"


class JaasEntry(NamedTuple):
    """A login module's class name and its options."""

    module: str
    options: Mapping[str, str]


def parse_jaas(text: str) -> JaasEntry:
    """Parse ``sasl.jaas.config``: a login in the form of Java clients, ``<module> required name="value" ...;``.

    Raises ValueError, which never quotes the text, because it holds a password.
    """
    entry = _ENTRY.match(text)
    if entry is None:
        raise ValueError('must look like: <login module> required username="..." password="...";')
    rest, position = entry["options"], 0
    options: dict[str, str] = {}
    while option := _OPTION.match(rest, position):
        quoted = option["text"]
        value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else option["single"]
        options[option["name"]] = value if value is not None else option["bare"]
        position = option.end()
    if rest[position:].strip() != ";":
        raise ValueError('must end with ";" after options of the form name="value"')
    return JaasEntry(entry["module"], MappingProxyType(options))


def validated_jaas(text: str) -> str:
    """Return the text unchanged if it can be parsed. Raises ValueError."""
    parse_jaas(text)
    return text


@dataclass(frozen=True, init=False, repr=False)
class SecurityConfig:
    """The security part of :class:`~zkconsumer.config.ConsumerConfig`."""

    security_protocol: str = choice(
        "a broker's listener to use: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`, in upper or lower case",
        {name.lower(): name for name in _PROTOCOLS},
        any_case=True,
        default="PLAINTEXT",
    )
    ssl_ca_location: str | None = text(
        "PEM file of the authorities to trust, and only those; also given as `ssl.truststore.location`",
        check=not_empty,
        default_text="the system's",
    )
    ssl_truststore_location: str | None = text("the same as `ssl.ca.location`", check=not_empty, default_text="unset")
    ssl_truststore_type: str = choice("only `PEM`", _PEM, any_case=True, default="PEM")
    ssl_certificate_location: str | None = text(
        "PEM file of our certificate and its chain, if brokers ask for one", check=not_empty, default_text="unset"
    )
    ssl_key_location: str | None = text(
        "PEM file of its private key", check=not_empty, default_text="`ssl.certificate.location`"
    )
    ssl_key_password: str | None = text("password of the private key", default_text="unset")
    ssl_keystore_location: str | None = text(
        "PEM file of certificate, chain and private key together", check=not_empty, default_text="unset"
    )
    ssl_keystore_type: str = choice("only `PEM`", _PEM, any_case=True, default="PEM")
    ssl_endpoint_identification_algorithm: str = choice(
        "`https`: a broker's certificate must name its host. Empty: any name is accepted",
        _HOST_CHECK,
        any_case=True,
        default="https",
    )
    sasl_mechanism: str = choice(
        "how to log in to brokers: " + ", ".join(f"`{name}`" for name in _MECHANISMS),
        {name.lower(): name for name in _MECHANISMS},
        any_case=True,
        default="GSSAPI",
    )
    sasl_jaas_config: str | None = text(
        'the login as Java clients have it: `<module> required username="..." password="...";`',
        check=validated_jaas,
        default_text="unset",
    )
    sasl_username: str | None = text(
        "for `PLAIN` and `SCRAM-*`", check=not_empty, default_text="that of `sasl.jaas.config`"
    )
    sasl_password: str | None = text("for `PLAIN` and `SCRAM-*`", default_text="that of `sasl.jaas.config`")
    sasl_kerberos_service_name: str = text("for `GSSAPI`: the brokers' service", check=not_empty, default="kafka")
    sasl_oauthbearer_token_provider: str | None = text(
        "for `OAUTHBEARER`: `module:function`, called at each login for a token", default_text="unset"
    )
    sasl_oauthbearer_token_endpoint_url: str | None = text(
        "for `OAUTHBEARER`: a `file:` URL that is read at each login, in place of a provider", default_text="unset"
    )

    zookeeper_ssl_client_enable: bool = boolean("speak TLS to ZooKeeper", default=False)
    zookeeper_ssl_truststore_location: str | None = text(
        "PEM file of the authorities to trust, and only those", check=not_empty, default_text="the system's"
    )
    zookeeper_ssl_truststore_type: str = choice("only `PEM`", _PEM, any_case=True, default="PEM")
    zookeeper_ssl_keystore_location: str | None = text(
        "PEM file of our certificate, its chain and private key, if ZooKeeper asks for one (by default it does)",
        check=not_empty,
        default_text="unset",
    )
    zookeeper_ssl_keystore_type: str = choice("only `PEM`", _PEM, any_case=True, default="PEM")
    zookeeper_ssl_keystore_password: str | None = text("password of the private key", default_text="unset")
    zookeeper_ssl_endpoint_identification_algorithm: str = choice(
        "`https`: a server's certificate must name its host. Empty: any name is accepted",
        _HOST_CHECK,
        any_case=True,
        default="https",
    )
    zookeeper_digest_username: str | None = text(
        "log in with ZooKeeper's scheme `digest`", check=not_empty, default_text="unset"
    )
    zookeeper_digest_password: str | None = text("the password for it", default_text="unset")
    zookeeper_sasl_username: str | None = text("log in by SASL `DIGEST-MD5`", check=not_empty, default_text="unset")
    zookeeper_sasl_password: str | None = text("the password for it", default_text="unset")
    zookeeper_sasl_mechanism: str | None = choice(
        "`DIGEST-MD5` or `GSSAPI`",
        {"digest-md5": "DIGEST-MD5", "gssapi": "GSSAPI"},
        any_case=True,
        derive=lambda values: "DIGEST-MD5" if values["zookeeper.sasl.username"] is not None else None,
        default_text="`DIGEST-MD5` if `zookeeper.sasl.username` is given",
    )
    zookeeper_sasl_kerberos_service_name: str = text(
        "for `GSSAPI`: the servers' service", check=not_empty, default="zookeeper"
    )
    zookeeper_set_acl: bool = boolean(
        "only members with the same login may change this group's owners, offsets and plan; others can read them",
        default=False,
    )

    @property
    def uses_tls(self) -> bool:
        """Whether connections to brokers use TLS."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections to brokers need a login."""
        return self.security_protocol.startswith("SASL_")

    @property
    def sasl_credentials(self) -> Credentials | None:
        """User name and password for the brokers: of ``sasl.username`` and its password, or ``sasl.jaas.config``."""
        return _credentials(self.sasl_username, self.sasl_password, self.sasl_jaas_config)


def _credentials(username: str | None, password: str | None, jaas: str | None) -> Credentials | None:
    options = parse_jaas(jaas).options if jaas is not None else {}
    username = username if username is not None else options.get("username")
    password = password if password is not None else options.get("password")
    return None if username is None or password is None else Credentials(username, password)


def check_security(values: Mapping[str, Any]) -> None:
    """Check the properties of security against each other. Raises :class:`ConfigException`."""
    _check_brokers(values)
    _check_zookeeper(values)


def _check_brokers(values: Mapping[str, Any]) -> None:
    _refuse_both(values, "ssl.ca.location", "ssl.truststore.location")
    _refuse_both(values, "ssl.certificate.location", "ssl.keystore.location")
    _refuse_both(values, "sasl.oauthbearer.token.provider", "sasl.oauthbearer.token.endpoint.url")
    if not values["security.protocol"].startswith("SASL_"):
        return
    mechanism = values["sasl.mechanism"]
    if mechanism in PASSWORD_MECHANISMS:
        found = _credentials(values["sasl.username"], values["sasl.password"], values["sasl.jaas.config"])
        if found is None:
            reason = f"is missing: {mechanism} needs sasl.username and sasl.password, or both in sasl.jaas.config"
            raise ConfigException("sasl.username" if values["sasl.username"] is None else "sasl.password", reason)
    if mechanism == "OAUTHBEARER":
        provider, url = (values[f"sasl.oauthbearer.token.{name}"] for name in ("provider", "endpoint.url"))
        if provider is None and url is None:
            reason = "is missing: OAUTHBEARER needs it, or sasl.oauthbearer.token.endpoint.url with a file: URL"
            raise ConfigException("sasl.oauthbearer.token.provider", reason)
        if provider is not None and not all(part.strip() for part in provider.partition(":")):
            raise ConfigException("sasl.oauthbearer.token.provider", f"must be module:function, not {provider!r}")
        if url is not None and not url.startswith("file:"):
            reason = "only file: URLs are read; for a server, write a function and name it as the token provider"
            raise ConfigException("sasl.oauthbearer.token.endpoint.url", reason)


def _check_zookeeper(values: Mapping[str, Any]) -> None:
    for scheme in ("digest", "sasl"):
        names = [f"zookeeper.{scheme}.{part}" for part in ("username", "password")]
        for name, other in (names, names[::-1]):
            if values[name] is not None and values[other] is None:
                raise ConfigException(other, f"is missing: {name} is given")
    if values["zookeeper.sasl.mechanism"] == "DIGEST-MD5" and values["zookeeper.sasl.username"] is None:
        raise ConfigException("zookeeper.sasl.username", "is missing: zookeeper.sasl.mechanism=DIGEST-MD5 needs it")
    known = values["zookeeper.digest.username"] or values["zookeeper.sasl.mechanism"]
    certified = values["zookeeper.ssl.client.enable"] and values["zookeeper.ssl.keystore.location"]
    if values["zookeeper.set.acl"] and not known and not certified:
        reason = "needs a login to ZooKeeper: zookeeper.digest.*, zookeeper.sasl.*, or TLS with a certificate of ours"
        raise ConfigException("zookeeper.set.acl", reason)


def _refuse_both(values: Mapping[str, Any], first: str, second: str) -> None:
    if values[first] is not None and values[second] is not None:
        raise ConfigException(second, f"{first} is given as well; give one of them")


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
