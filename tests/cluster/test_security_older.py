"""Logins and certificates on a real broker of release 1.1. ``test_security.py`` uses a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.conftest import produce_to, unique
from tests.cluster.in_process import connectors
from tests.cluster.secured import (
    PASSWORD,
    USER,
    Certificates,
    SecuredZooKeeper,
    older_secured_broker,
)
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import EmbeddedKafka
from zkconsumer.errors import BrokerAuthenticationError
from zkconsumer.zookeeper.cluster_admin import Admin


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with (
        SecuredZooKeeper(tmp_path_factory.mktemp("secured"), certificates) as zookeeper,
        older_secured_broker(zookeeper, certificates) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def topic(broker: EmbeddedKafka) -> str:
    name = unique("secured")
    with Admin(broker.zookeeper_connect) as administrator:
        administrator.create_topic(name, 2)
    produce_to(broker.address, name, [b"%d" % n for n in range(20)], partitions=2)
    return name


Connect = Callable[..., ZookeeperConsumerConnector]


@pytest.fixture
def connect(broker: EmbeddedKafka) -> Iterator[Connect]:
    with connectors({"zookeeper.connect": broker.zookeeper_connect, "consumer.timeout.ms": 15000}) as make:
        yield lambda properties: make({"group.id": unique("g")}, properties)


def login(certificates: Certificates, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "ssl.ca.location": certificates.ca,
    }


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_consuming_with_tls_and_a_login(
    connect: Connect, topic: str, certificates: Certificates, mechanism: str, storage: str
) -> None:
    connector = connect({**login(certificates, mechanism), "offsets.storage": storage})
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert {next(stream).value for _ in range(20)} == {b"%d" % n for n in range(20)}
    connector.commit_offsets()


def test_consuming_with_a_certificate(connect: Connect, topic: str, certificates: Certificates) -> None:
    connector = connect(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": certificates.ca,
            "ssl.keystore.location": certificates.client,
        }
    )
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert {next(stream).value for _ in range(20)} == {b"%d" % n for n in range(20)}


@pytest.mark.parametrize("which", ["none", "stranger", "expired"])
def test_a_refused_client_certificate_is_one_clear_error(
    which: str, connect: Connect, topic: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker requires a certificate and gets none, a foreign one, or an expired one."""
    properties = {"security.protocol": "SSL", "ssl.truststore.location": certificates.ca}
    if which != "none":
        properties["ssl.keystore.location"] = getattr(certificates, which)
    connector = connect(properties)
    stream = connector.create_message_streams({topic: 1})[topic][0]
    with pytest.raises(BrokerAuthenticationError, match="TLS failed"):
        next(stream)
    assert "TLS failed" in str(connector.state)
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_one_clear_error(
    mechanism: str, connect: Connect, topic: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    connector = connect(login(certificates, mechanism, "wrong-password"))
    stream = connector.create_message_streams({topic: 1})[topic][0]
    with pytest.raises(BrokerAuthenticationError, match=f"{mechanism}, user '{USER}'") as caught:
        next(stream)
    assert "wrong-password" not in str(caught.value) + caplog.text
