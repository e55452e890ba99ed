"""Paths of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

TP = TopicPartition("logs", 7)


def test_a_broadcasting_members_group_is_no_valid_group_id() -> None:
    own = paths.broadcast_group("g", "host-1")
    assert paths.offset(own, TP) == "/consumers/g@host-1/offsets/logs/7"
    with pytest.raises(ConfigException, match="'@'"):
        ConsumerConfig(zookeeper_connect="zk", group_id=own)
    assert paths.broadcast_member("g", "g_host-1") == "/consumers/g/broadcast/g_host-1"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/", "a\x00", "a\n", "\x7f", "\x9f", "\ud800", "\ue000", "\uffff", "\U0001f600"]
)
def test_a_text_that_cannot_be_a_name_is_refused(name: str) -> None:
    for make in (
        paths.consumers_group,
        paths.ids,
        paths.topic,
        lambda name: paths.member("g", name),
        lambda name: paths.owner("g", TopicPartition(name, 0)),
        lambda name: paths.offset(name, TP),
        lambda name: paths.partition_state(TopicPartition(name, 0)),
    ):
        with pytest.raises(ValueError):
            make(name)


@pytest.mark.parametrize("name", ["...", "a.b", "a b", "é", "%", "名", "_-", "owners"])
def test_an_unusual_name_is_accepted(name: str) -> None:
    assert paths.topic(name) == f"/brokers/topics/{name}"


@given(st.integers(0, 2**31 - 1))
def test_the_id_of_a_broker_is_read_back(number: int) -> None:
    assert paths.parse_broker(paths.broker(number)) == number


@pytest.mark.parametrize("path", ["", "/", "/brokers/ids", "/brokers/ids/x", "/brokers/ids/-1", "/brokers/ids/1/2"])
def test_a_path_of_something_else_is_no_broker(path: str) -> None:
    with pytest.raises(ValueError, match="not the path"):
        paths.parse_broker(path)
