"""``group.migration``: what it needs, and which strategy each side takes."""

from __future__ import annotations

from typing import Any

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConfigException
from zkconsumer.model import ConsumerId
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.wiring import build_member
from zkconsumer.wiring.bridge_member import BridgeCoordination, zookeepers_strategy

BRIDGE: dict[str, Any] = {
    "group.id": "g",
    "zookeeper.connect": "zk",
    "group.coordination": "kafka",
    "group.migration": True,
}


def test_offsets_are_in_both_stores() -> None:
    config = ConsumerConfig(BRIDGE)
    assert (config.offsets_storage, config.dual_commit_enabled) == ("kafka", True)
    assert not ConsumerConfig({**BRIDGE, "group.migration": False}).dual_commit_enabled


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"group.coordination": "zookeeper"}, "group.migration"),
        ({"zookeeper.connect": None, "bootstrap.servers": "a:9092"}, "zookeeper.connect"),
        ({"dual.commit.enabled": False}, "dual.commit.enabled"),
        ({"offsets.storage": "zookeeper"}, "offsets.storage"),
        ({"message.model": "broadcasting", "consumer.id": "c"}, "message.model"),
    ],
)
def test_what_contradicts_it_is_refused(properties: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigException) as refused:
        ConsumerConfig({**BRIDGE, **properties})
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("strategies", "zookeepers"),
    [
        ("range", "range"),
        ("roundrobin", "roundrobin"),
        ("cooperative-sticky", "range"),
        ("cooperative-sticky, roundrobin", "roundrobin"),
        ("zkconsumer", "range"),
        ("average", "average"),
    ],
)
def test_zookeepers_side_takes_the_first_strategy_that_it_knows(strategies: str, zookeepers: str) -> None:
    assert zookeepers_strategy(ConsumerConfig({**BRIDGE, "partition.assignment.strategy": strategies})) == zookeepers


def test_a_migrating_member_is_made_and_takes_no_store() -> None:
    config = ConsumerConfig({**BRIDGE, "partition.assignment.strategy": "cooperative-sticky"})
    coordination = build_member(config, ConsumerId("g_me")).coordination
    assert isinstance(coordination, BridgeCoordination)
    assert (coordination.trouble, coordination.concern) == ("", "")
    store: OffsetStore = object()  # type: ignore[assignment]
    with pytest.raises(ConfigException, match="offset_store"):
        build_member(config, ConsumerId("g_me"), offset_store=store)
