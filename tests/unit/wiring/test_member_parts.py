"""Which registered brokers a member uses."""

from __future__ import annotations

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.deadline import Deadline
from zkconsumer.errors import NoReachableEndpointError
from zkconsumer.model import ConsumerId
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.wiring import Outside, build_member
from zkconsumer.zookeeper import paths


def node(endpoint: str) -> bytes:
    return (
        f'{{"version":4,"host":null,"port":-1,"jmx_port":-1,"timestamp":"1","endpoints":["{endpoint}"],'
        f'"listener_security_protocol_map":{{"PLAINTEXT":"PLAINTEXT","SSL":"SSL"}}}}'
    ).encode()


def test_an_unreachable_broker_harms_only_its_partitions() -> None:
    """One live broker without a plaintext endpoint made the original give up on all of them."""
    server = FakeZooKeeper()
    server.put(paths.broker(1), node("SSL://one:9093"))
    session = server.session()
    session.open(Deadline(1))
    config = ConsumerConfig(zookeeper_connect="zk", group_id="g")
    brokers = build_member(config, ConsumerId("g_c"), outside=Outside(session=lambda *_: session)).parts.brokers
    with pytest.raises(NoReachableEndpointError, match="broker 1 offers SSL://one:9093"):
        brokers(Deadline(1))
    server.put(paths.broker(2), node("PLAINTEXT://two:9092"))
    assert [(endpoint.broker_id, endpoint.host) for endpoint in brokers(Deadline(1))] == [(2, "two")]
