"""``broker.address.map``: accepted and refused values, and that name and port of a broker are replaced."""

from __future__ import annotations

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConfigException
from zkconsumer.kafka import choose_endpoint
from zkconsumer.model import Endpoint

LEAST = {"zookeeper.connect": "zk", "group.id": "g"}


def mapped(text: str, host: str, port: int = 9092) -> tuple[str, int]:
    config = ConsumerConfig(LEAST, broker_address_map=text)
    chosen = choose_endpoint([Endpoint(1, host, port)], "PLAINTEXT", config.broker_addresses)
    return chosen.host, chosen.port


@pytest.mark.parametrize(
    ("text", "host", "expected"),
    [
        ("", "kafka-1", ("kafka-1", 9092)),
        ("kafka-1:9092=localhost:19092", "kafka-1", ("localhost", 19092)),
        (" kafka-0 = 10.0.0.1 , kafka-1 = 10.0.0.2:1 ,", "kafka-1", ("10.0.0.2", 1)),
        ("kafka-1=10.0.0.2", "kafka-1", ("10.0.0.2", 9092)),
        ("kafka-1=a,kafka-1:9092=b:2", "kafka-1", ("b", 2)),
        ("kafka-1:9093=a", "kafka-1", ("kafka-1", 9092)),
        ("Kafka-1=a", "kAFKA-1", ("a", 9092)),
        ("[FE80::1]:9092=[::1]:2", "fe80::1", ("::1", 2)),
        ("[::1]=localhost", "::1", ("localhost", 9092)),
    ],
)
def test_an_address_is_mapped(text: str, host: str, expected: tuple[str, int]) -> None:
    assert mapped(text, host) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kafka-1", "not registered=reachable"),
        ("kafka-1=", "'' is neither"),
        ("=localhost", "'' is neither"),
        ("kafka-1:x=localhost", "'kafka-1:x' is neither"),
        ("kafka-1=localhost:0", "from 1 to 65535"),
        ("kafka-1=localhost:65536", "from 1 to 65535"),
        ("kafka-1=::1", "needs brackets"),
        ("kafka-1=a=b", "'a=b' is neither"),
        ("kafka-1=a,KAFKA-1=b", "mapped twice"),
        ("PLAINTEXT://kafka-1:9092=localhost", "neither"),
    ],
)
def test_what_is_no_map_is_refused_at_once(text: str, complaint: str) -> None:
    with pytest.raises(ConfigException, match=rf"^broker\.address\.map: .*{complaint}"):
        ConsumerConfig(LEAST, broker_address_map=text)


def test_the_map_survives_a_round_trip() -> None:
    config = ConsumerConfig(LEAST, broker_address_map=" A:1 = b:01 ")
    assert config.broker_address_map == "a:1=b:1"
    assert ConsumerConfig(config.as_dict()) == config
