"""Which address of a broker is used."""

from __future__ import annotations

import pytest

from zkconsumer.errors import NoReachableEndpointError
from zkconsumer.kafka import choose_endpoint
from zkconsumer.kafka.connection import address, parse_address
from zkconsumer.model import Endpoint

TLS = Endpoint(4, "tls.example", 9093, protocol="SSL")
INSIDE = Endpoint(4, "inside", 9092)
OUTSIDE = Endpoint(4, "outside", 9094)


def test_the_first_endpoint_of_the_wanted_protocol_is_taken() -> None:
    assert choose_endpoint([TLS, INSIDE, OUTSIDE], "PLAINTEXT") is INSIDE
    assert choose_endpoint(iter([INSIDE, TLS]), "ssl") is TLS


def test_a_broker_without_one_is_named_with_what_it_offers() -> None:
    offer = r"broker 4 offers SSL://tls.example:9093, PLAINTEXT://\[::1\]:9092; security.protocol=SASL_SSL is wanted"
    with pytest.raises(NoReachableEndpointError, match=offer):
        choose_endpoint([TLS, Endpoint(4, "::1", 9092)], "SASL_SSL")
    with pytest.raises(NoReachableEndpointError, match="no endpoint at all"):
        choose_endpoint([], "PLAINTEXT")


@pytest.mark.parametrize(
    ("mapping", "host", "port"),
    [
        ({}, "inside", 9092),
        ({"inside:9092": "localhost:19092"}, "localhost", 19092),
        ({"inside": "10.0.0.1"}, "10.0.0.1", 9092),
        ({"inside": "10.0.0.1:5", "inside:9092": "[::1]:6"}, "::1", 6),
        ({"inside:1": "other:1"}, "inside", 9092),
    ],
)
def test_addresses_can_be_mapped(mapping: dict[str, str], host: str, port: int) -> None:
    chosen = choose_endpoint([INSIDE], "PLAINTEXT", mapping)
    assert (chosen.host, chosen.port, chosen.broker_id) == (host, port, 4)


@pytest.mark.parametrize(
    "text", ["h", "h:", "h:x", "h:0", "h:65536", "h:-1", "::1", "[::1", "[::1]9", ":", "h:1:2", "h:²"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_address(text)


def test_addresses_as_text() -> None:
    assert address("h", 1) == "h:1"
    assert address("::1", 1) == "[::1]:1"
    assert parse_address(" [::1]:1 ") == ("::1", 1)
    assert parse_address("[::1]", 7) == ("::1", 7)
