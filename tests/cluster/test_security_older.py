"""Logins and certificates on a real broker of release 1.1. ``test_security.py`` uses a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.conftest import unique
from tests.cluster.in_process import connectors
from tests.cluster.secured import (
    Certificates,
    SecuredZooKeeper,
    older_secured_broker,
    presenting,
    sasl_ssl,
    secured_topic,
)
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import EmbeddedKafka


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
    return secured_topic(broker)


Connect = Callable[..., ZookeeperConsumerConnector]


@pytest.fixture
def connect(broker: EmbeddedKafka) -> Iterator[Connect]:
    with connectors({"zookeeper.connect": broker.zookeeper_connect, "consumer.timeout.ms": 15000}) as make:
        yield lambda properties: make({"group.id": unique("g")}, properties)


ADMITTED: dict[str, Callable[[Certificates], dict[str, str]]] = {
    "PLAIN": lambda c: sasl_ssl(c, "PLAIN") | {"offsets.storage": "kafka"},
    "SCRAM-SHA-256": lambda c: sasl_ssl(c, "SCRAM-SHA-256"),
    "SCRAM-SHA-512": lambda c: sasl_ssl(c) | {"offsets.storage": "kafka"},
    "a certificate": lambda c: presenting(c, **{"ssl.keystore.location": c.client}),
}


@pytest.mark.parametrize("how", ADMITTED)
def test_an_admitted_member_consumes_and_commits(
    connect: Connect, topic: str, certificates: Certificates, how: str
) -> None:
    connector = connect(ADMITTED[how](certificates))
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert {next(stream).value for _ in range(20)} == {b"%d" % n for n in range(20)}
    connector.commit_offsets()
