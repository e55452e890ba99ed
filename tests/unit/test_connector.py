"""What a connector refuses before it touches anything."""

from __future__ import annotations

from typing import Any

import pytest

from zkconsumer import Whitelist, ZookeeperConsumerConnector


@pytest.fixture
def connector() -> ZookeeperConsumerConnector:
    return ZookeeperConsumerConnector(zookeeper_connect="127.0.0.1:1", group_id="g")


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        (None, "a mapping"),
        (["t"], "a mapping"),
        ({"t": 0}, "at least 1"),
        ({"t": True}, "whole number"),
        ({"t": "2"}, "whole number"),
        ({"": 1}, "non-empty"),
        ({"a/b": 1}, "cannot be a topic"),
        ({"..": 1}, "cannot be a topic"),
    ],
)
def test_a_bad_subscription_is_named_and_the_connector_stays_usable(
    connector: ZookeeperConsumerConnector, topics: Any, reason: str
) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match=reason):
            connector.create_message_streams(topics)


def test_a_bad_filter_is_named(connector: ZookeeperConsumerConnector) -> None:
    with pytest.raises(ValueError, match="Whitelist"):
        connector.create_message_streams_by_filter("a.*")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        connector.create_message_streams_by_filter(Whitelist("a.*"), 0)


def test_a_connector_that_never_began_can_be_shut_down_twice(connector: ZookeeperConsumerConnector) -> None:
    connector.shutdown()
    connector.shutdown()
