"""The properties of strategies: texts in, what strategies are constructed with out."""

from __future__ import annotations

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.extension_properties import parse_assignment_table, parse_rooms
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.wiring import consumer_id


def test_a_table_lists_the_partitions_of_members() -> None:
    assert parse_assignment_table("g_a = t:0, a.b-c:12 ;g_b-1=t:1;") == {
        "g_a": (TopicPartition("t", 0), TopicPartition("a.b-c", 12)),
        "g_b-1": (TopicPartition("t", 1),),
    }


def test_rooms_are_listed() -> None:
    assert parse_rooms(" a , b,") == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("assignment.table", "g_a"),
        ("assignment.table", "g_a=t"),
        ("assignment.table", "g_a=t:x"),
        ("assignment.table", "g_a=:1"),
        ("assignment.table", "g_a=t:1;g_a=t:2"),
        ("assignment.table", " ; "),
        ("assignment.rooms", " , "),
        ("assignment.mixed.group", "maybe"),
        ("machine.room", ""),
        ("rebalance.listener.timeout.ms", "0"),
        ("consumer.timeout.action", "stop"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigException, match=name):
        ConsumerConfig({"zookeeper.connect": "z", "group.id": "g", name: value})


PLANNED = {"zookeeper.connect": "z", "group.id": "g", "partition.assignment.strategy": "sticky"}


def test_a_name_that_lasts_is_the_consumer_id() -> None:
    """Only with a strategy that follows a plan, which alone knows what is kept for it."""
    assert consumer_id(ConsumerConfig({**PLANNED, "group.instance.id": "i"})) == "g_i"
    assert consumer_id(ConsumerConfig({**PLANNED, "group.instance.id": "i", "consumer.id": "i"})) == "g_i"
    assert consumer_id(ConsumerConfig({**PLANNED, "consumer.id": "c"})) == "g_c"
    with pytest.warns(UserWarning, match=r"'group.instance.id' has no effect.*strategy=sticky"):
        without = ConsumerConfig({**PLANNED, "partition.assignment.strategy": "range", "group.instance.id": "i"})
    assert consumer_id(without) != "g_i"


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"group.instance.id": "i", "consumer.id": "c"}, "group.instance.id"),
        ({"group.instance.id": "a/b"}, "group.instance.id"),
        ({"group.instance.id": ".."}, "group.instance.id"),
        ({"group.instance.grace.ms": "-1"}, "group.instance.grace.ms"),
        ({"message.model": "broadcasting", "consumer.id": "c"}, "partition.assignment.strategy"),
        (
            {"group.coordination": "kafka", "partition.assignment.strategy": "range,lag-aware"},
            "partition.assignment.strategy",
        ),
    ],
)
def test_what_a_plan_cannot_follow_is_refused_by_name(properties: dict[str, str], name: str) -> None:
    more = {"offsets.storage": "kafka", "dual.commit.enabled": "false"} if "group.coordination" in properties else {}
    with pytest.raises(ConfigException, match=name):
        ConsumerConfig({**PLANNED, **more, **properties})
