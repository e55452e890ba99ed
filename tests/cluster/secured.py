"""A ZooKeeper and a broker with security: our own certificates, names and passwords."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from tests.cluster.conftest import produce_to, unique
from tests.cluster.in_process import client_of
from zkconsumer.devcluster import EmbeddedKafka, EmbeddedZooKeeper
from zkconsumer.devcluster.kafka_server import DEFAULT_KAFKA
from zkconsumer.devcluster.maven_repository import key_store
from zkconsumer.devcluster.server_process import LOOPBACK, free_port
from zkconsumer.zookeeper.cluster_admin import Admin

USER, PASSWORD = "ann", 'hunter2 "é'
ZOOKEEPER_PASSWORD = "hunter3"
"""Plain, because ZooKeeper's DIGEST-MD5 reads it from a file of Java's own syntax."""

STORE_PASSWORD = "changeit"
LOGIN_GOOD_FOR_MS = 2000
_ITERATIONS = 4096


class Certificates:
    """The files of a certificate authority and of its certificates. No server or client trusts ``other_ca``."""

    def __init__(self, directory: Path) -> None:
        authority, other = trustme.CA(), trustme.CA()
        self.ca = self._write(directory / "ca.pem", authority.cert_pem.bytes())
        self.other_ca = self._write(directory / "other.pem", other.cert_pem.bytes())
        self.server = self._write(directory / "server.pem", self._bundle(authority.issue_cert(LOOPBACK, "localhost")))
        self.client = self._write(directory / "client.pem", self._bundle(authority.issue_cert("client")))
        past = datetime(2001, 1, 1, tzinfo=UTC)
        self.expired = self._write(
            directory / "expired.pem", self._bundle(authority.issue_cert("client", not_before=past, not_after=past))
        )
        self.stranger = self._write(directory / "stranger.pem", self._bundle(other.issue_cert("client")))
        self.server_store = self._write(directory / "server.p12", self._store(authority.issue_cert(LOOPBACK)))
        trusted = ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())
        self.trust_store = self._write(directory / "trusted.jks", key_store([trusted]))

    @staticmethod
    def _store(issued: trustme.LeafCert) -> bytes:
        """The key as PKCS 12 with a password, which brokers before 2.7 read."""
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        certificates = [x509.load_pem_x509_certificate(blob.bytes()) for blob in issued.cert_chain_pems]
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        return pkcs12.serialize_key_and_certificates(
            b"server",
            key,  # type: ignore[arg-type]
            certificates[0],
            certificates[1:],
            encryption,
        )

    @staticmethod
    def _bundle(issued: trustme.LeafCert) -> bytes:
        # Java reads private keys as PKCS 8 only
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key + b"".join(blob.bytes() for blob in issued.cert_chain_pems)

    @staticmethod
    def _write(path: Path, content: bytes) -> str:
        path.write_bytes(content)
        return str(path)


class SecuredZooKeeper(EmbeddedZooKeeper):
    """A ZooKeeper with TLS on ``secure_connect``, where client certificates are optional, and SASL for ``USER``."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        self.secure_port = free_port()
        self._jaas = directory / "jaas.conf"
        self.admit(ZOOKEEPER_PASSWORD)
        super().__init__(
            tick_ms=500,
            properties={
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPort": self.secure_port,
                "secureClientPortAddress": LOOPBACK,
                "ssl.keyStore.location": certificates.server,
                "ssl.keyStore.type": "PEM",
                "ssl.trustStore.location": certificates.ca,
                "ssl.trustStore.type": "PEM",
                "ssl.clientAuth": "want",
                "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            },
            java_options=[f"-Djava.security.auth.login.config={self._jaas}"],
        )

    def admit(self, password: str) -> None:
        """Set the user's password from the next start on."""
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        self._jaas.write_text(f'Server {{ {module} required user_{USER}="{password}"; }};\n')

    @property
    def secure_connect(self) -> str:
        return f"{LOOPBACK}:{self.secure_port}"


def secured_broker(zookeeper: SecuredZooKeeper, certificates: Certificates) -> EmbeddedKafka:
    """A broker with a listener for TLS and logins, and a PLAINTEXT listener for the tests' helpers."""
    stores = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.ca,
        "listener.name.sasl_ssl.connections.max.reauth.ms": LOGIN_GOOD_FOR_MS,
    }
    return _broker(zookeeper, stores, DEFAULT_KAFKA)


def older_secured_broker(zookeeper: SecuredZooKeeper, certificates: Certificates) -> EmbeddedKafka:
    """A broker as :func:`secured_broker`, but of release 1.1, where logins have no limit and PEM files are unknown."""
    stores = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": certificates.server_store,
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.key.password": STORE_PASSWORD,
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": certificates.trust_store,
        "ssl.truststore.password": STORE_PASSWORD,
    }
    return _broker(zookeeper, stores, "1.1.1")


def _broker(zookeeper: SecuredZooKeeper, stores: Mapping[str, object], version: str) -> EmbeddedKafka:
    with_scram(zookeeper.connect)
    listener = "listener.name.sasl_ssl"
    module = "org.apache.kafka.common.security"
    escaped = PASSWORD.replace('"', '\\"')
    plain_port = free_port()
    return EmbeddedKafka(
        zookeeper.connect,
        version=version,
        port=plain_port,
        properties={
            "listeners": f"PLAINTEXT://{LOOPBACK}:{plain_port},SASL_SSL://{LOOPBACK}:0,SSL://{LOOPBACK}:0",
            "security.inter.broker.protocol": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            **stores,
            "listener.name.ssl.ssl.client.auth": "required",
            f"{listener}.plain.sasl.jaas.config": (
                f'{module}.plain.PlainLoginModule required user_{USER}="{escaped}";'
            ),
            f"{listener}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
            f"{listener}.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        },
    )


def with_scram(connect: str, user: str = USER, password: str = PASSWORD) -> None:
    """Add a SCRAM user in ZooKeeper before the brokers start, as kafka-configs does."""
    config = {}
    for mechanism, name in (("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")):
        salt = b"salt of a test"
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, _ITERATIONS)
        client = hmac.new(salted, b"Client Key", name).digest()
        parts = {
            "salt": base64.b64encode(salt),
            "stored_key": base64.b64encode(hashlib.new(name, client).digest()),
            "server_key": base64.b64encode(hmac.new(salted, b"Server Key", name).digest()),
            "iterations": b"%d" % _ITERATIONS,
        }
        config[mechanism] = ",".join(f"{key}={value.decode()}" for key, value in parts.items())
    node = json.dumps({"version": 1, "config": config}).encode()
    with client_of(connect) as admin:
        admin.create(f"/config/users/{user}", node, makepath=True)


def secured_topic(broker: EmbeddedKafka) -> str:
    """Make a topic of two partitions with the messages 0 to 19."""
    name = unique("secured")
    with Admin(broker.zookeeper_connect) as administrator:
        administrator.create_topic(name, 2)
    produce_to(broker.address, name, [b"%d" % n for n in range(20)], partitions=2)
    return name


def sasl_ssl(certificates: Certificates, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, str]:
    """Return the properties of a member that logs in to the broker."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "ssl.ca.location": certificates.ca,
    }


def presenting(certificates: Certificates, **own: str) -> dict[str, str]:
    """Return the properties of a member that trusts the broker, and presents this certificate of its own, if any."""
    return {"security.protocol": "SSL", "ssl.truststore.location": certificates.ca, **own}
