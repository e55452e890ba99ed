"""Which registered brokers a member uses."""

from __future__ import annotations

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.deadline import Deadline
from zkconsumer.errors import NoReachableEndpointError
from zkconsumer.model import ConsumerId
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.wiring import Member
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.broker_directory import BrokerDirectory


def node(endpoint: str) -> bytes:
    return (
        f'{{"version":4,"host":null,"port":-1,"jmx_port":-1,"timestamp":"1","endpoints":["{endpoint}"],'
        f'"listener_security_protocol_map":{{"PLAINTEXT":"PLAINTEXT","SSL":"SSL"}}}}'
    ).encode()


def test_a_broker_that_cannot_be_reached_harms_only_its_own_partitions() -> None:
    """One live broker without a plaintext endpoint made the original give up on all of them."""
    server = FakeZooKeeper()
    server.put(paths.broker(1), node("SSL://one:9093"))
    member = Member(ConsumerConfig(zookeeper_connect="zk", group_id="g"), ConsumerId("g_c"))
    session = server.session()
    session.open(Deadline(1))
    member.session, member._directory = session, BrokerDirectory(session)
    with pytest.raises(NoReachableEndpointError, match="broker 1 offers SSL://one:9093"):
        member._brokers(Deadline(1))
    server.put(paths.broker(2), node("PLAINTEXT://two:9092"))
    assert [(endpoint.broker_id, endpoint.host) for endpoint in member._brokers(Deadline(1))] == [(2, "two")]
