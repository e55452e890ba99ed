"""Which registered brokers a member uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import (
    CONFLICT_KEY,
    SHARE_KEY,
    STATIC,
    AdvertisedShare,
    Registration,
    advertised_share,
)
from zkconsumer.errors import NoReachableEndpointError
from zkconsumer.model import ConsumerId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.query_member import stamped_query
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.wiring import MemberEnvironment, build_member
from zkconsumer.wiring.member_parts import stamped
from zkconsumer.zookeeper import node_codecs, paths


@pytest.mark.parametrize(
    ("stamp", "advertised"), [(stamped, "overwrite"), (stamped_query, "checkpoint")], ids=["member", "query"]
)
def test_members_say_what_they_do_about_other_offsets(stamp: Callable[..., Registration], advertised: str) -> None:
    """A command that resets offsets must know it. A query of Spark goes on from its checkpoint in any case."""
    session = FakeZooKeeper().session()
    config = ConsumerConfig({"zookeeper.connect": "zk", "group.id": "g", "offset.conflict": "overwrite"})
    made = stamp(config, session, Registration(STATIC, {"t": 1}))
    assert made.extra[CONFLICT_KEY] == advertised
    assert node_codecs.decode_registration(node_codecs.encode_registration(made), "/x").extra == made.extra


def test_what_a_run_advertises_stays_in_the_registration() -> None:
    config = ConsumerConfig({"zookeeper.connect": "zk", "group.id": "g"})
    made = stamped(config, FakeZooKeeper().session(), Registration(STATIC, {"t": 1}, extra={SHARE_KEY: "key:10"}))
    assert advertised_share(made) == AdvertisedShare("key", 10)
    assert str(advertised_share(made)) == "key:10"


@pytest.mark.parametrize(
    "value", [None, 7, "", "key", "key:", "key:0", "key:-1", "key:x", "key:٣", "partition:4", "none:1000001", "key:1:1"]
)
def test_other_texts_advertise_no_share(value: object) -> None:
    assert advertised_share(Registration(STATIC, {}, extra={SHARE_KEY: value})) is None


def node(endpoint: str) -> bytes:
    return (
        f'{{"version":4,"host":null,"port":-1,"jmx_port":-1,"timestamp":"1","endpoints":["{endpoint}"],'
        f'"listener_security_protocol_map":{{"PLAINTEXT":"PLAINTEXT","SSL":"SSL"}}}}'
    ).encode()


def test_an_unreachable_broker_harms_only_its_partitions() -> None:
    """A live broker without a plaintext endpoint made the original give up on all brokers."""
    server = FakeZooKeeper()
    server.put(paths.broker(1), node("SSL://one:9093"))
    session = server.session()
    session.open(Deadline(1))
    config = ConsumerConfig(zookeeper_connect="zk", group_id="g")
    brokers = build_member(
        config, ConsumerId("g_c"), environment=MemberEnvironment(session=lambda *_: session)
    ).parts.brokers
    with pytest.raises(NoReachableEndpointError, match="broker 1 offers SSL://one:9093"):
        brokers(Deadline(1))
    server.put(paths.broker(2), node("PLAINTEXT://two:9092"))
    assert [(endpoint.broker_id, endpoint.host) for endpoint in brokers(Deadline(1))] == [(2, "two")]
