"""The requests of the driver's side to a cluster that is only just coming back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import NoBrokersError
from zkconsumer.kafka.requests import ListedOffset
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.spark import query_cluster
from zkconsumer.spark.query_cluster import NoTimesError
from zkconsumer.spark.zookeeper_cluster import ZooKeeperQueryCluster

TP = TopicPartition("t", 0)
HERE = Endpoint(1, "h", 9092)


class Returning(ZooKeeperQueryCluster):
    """A cluster whose broker is registered again after so many looks, and whose log ends at 7."""

    def __init__(self, looks: int, *, patience: float) -> None:
        super().__init__(
            ConsumerConfig(
                zookeeper_connect="zk",
                group_id="g",
                refresh_leader_backoff_ms=1,
                socket_timeout_ms=int(patience * 1000),
                fetch_wait_max_ms=10,
            )
        )
        self.looks = looks

    def leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Endpoint]:
        self.looks -= 1
        if self.looks >= 0:
            raise NoBrokersError("no broker is registered")
        return dict.fromkeys(partitions, HERE)

    def _channel(self, endpoint: Endpoint) -> Answering:  # type: ignore[override]
        return Answering()


class Answering:
    def list_offsets(
        self, asked: object, deadline: object, *, isolation_level: int, written: bool
    ) -> dict[TopicPartition, ListedOffset]:
        return {TP: ListedOffset(7, -1, 0)}


def test_brokers_that_lost_their_sessions_are_waited_for() -> None:
    # After an outage of ZooKeeper brokers register later than clients come back: a query failed in between.
    assert Returning(3, patience=60).log_ends([TP]) == {TP: 7}


def test_a_broker_that_knows_no_times_is_not_asked_for_one() -> None:
    # what brokers before 0.10.1 tell is up to a segment off: an offset is never guessed
    with pytest.raises(NoTimesError, match="broker 1 is older than 0.10.1"):
        Returning(0, patience=60).offsets_at({TP: 1_700_000_000_000})


def test_brokers_that_do_not_come_back_are_told_of() -> None:
    with pytest.raises(NoBrokersError, match="no broker is registered"):
        Returning(10**9, patience=0.05).log_ends([TP])


def test_renewed_certificates_are_read_for_each_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The files of TLS were read once, when the query began, and later a half written file ended the query."""
    file = tmp_path / "ca.pem"
    file.write_bytes(trustme.CA().cert_pem.bytes())
    config = ConsumerConfig(
        {"zookeeper.connect": "zk", "group.id": "g", "security.protocol": "SSL", "ssl.ca.location": str(file)}
    )
    clients: list[ClusterClient] = []

    def seen(*arguments: Any, **named: Any) -> ClusterClient:
        clients.append(ClusterClient(*arguments, **named))
        return clients[0]

    monkeypatch.setattr(query_cluster, "ClusterClient", seen)
    with ZooKeeperQueryCluster(config):
        channels = clients[0].channels
        first = channels.security
        file.write_bytes(b"half a file")
        channels(HERE)
        assert channels.security is first
        assert "ssl.ca.location" in caplog.text
        file.write_bytes(trustme.CA().cert_pem.bytes())
        channels(HERE)
        assert channels.security is not first
