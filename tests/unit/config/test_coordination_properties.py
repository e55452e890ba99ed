"""The properties of a group's coordinator: required ones, derived ones and contradictions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.programs import run_python
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.config import ConsumerConfig, UnknownPropertyWarning
from zkconsumer.core.consumer_protocol import RebalanceProtocol
from zkconsumer.errors import ConfigException, UnknownAssignorError
from zkconsumer.model import ConsumerId
from zkconsumer.wiring.brokers_member import assignors, member_settings

KAFKA: dict[str, Any] = {"group.id": "g", "group.coordination": "Kafka", "bootstrap.servers": "a:9092, [::1]:9093"}


def test_zookeeper_coordinates_unless_the_brokers_are_asked_to() -> None:
    config = ConsumerConfig(zookeeper_connect="zk", group_id="g")
    assert config.group_coordination == "zookeeper"
    assert not config.coordinated_by_brokers
    assert config.offsets_storage == "zookeeper"
    with pytest.raises(ConfigException, match="zookeeper.connect: is missing"):
        ConsumerConfig(group_id="g")


def test_with_the_brokers_no_zookeeper_is_needed() -> None:
    config = ConsumerConfig(KAFKA)
    assert config.coordinated_by_brokers
    assert config.bootstrap_addresses == (("a", 9092), ("::1", 9093))
    assert config.zookeeper_hosts == ()
    assert config.zookeeper_chroot == ""
    assert ConsumerConfig(config.as_dict()) == config
    assert ConsumerConfig({**KAFKA, "bootstrap.servers": None, "zookeeper.connect": "zk"}).bootstrap_addresses == ()


def test_all_members_but_broadcasting_ones_may_share() -> None:
    """Also a member on both sides of a migration."""
    properties: dict[str, Any] = {"zookeeper.connect": "zk", "consumer.id": "c", "share.partitions": True}
    assert ConsumerConfig({**KAFKA, **properties, "group.migration": True}).share_partitions
    properties["group.id"] = "g"
    assert ConsumerConfig(properties).share_partitions
    with pytest.raises(ConfigException, match="share.partitions: has no meaning"):
        ConsumerConfig({**properties, "message.model": "broadcasting"})


def test_what_follows_is_as_the_java_consumer_has_it() -> None:
    config = ConsumerConfig(KAFKA)
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (45_000, 300)  # Java's are 3000
    assert (config.max_poll_interval_ms, config.group_instance_id) == (300_000, None)
    assert (config.offsets_storage, config.dual_commit_enabled) == ("kafka", False)


@pytest.mark.parametrize(
    ("properties", "key", "says"),
    [
        ({"bootstrap.servers": None}, "bootstrap.servers", "zookeeper.connect"),
        ({"bootstrap.servers": "a"}, "bootstrap.servers", "host:port"),
        ({"bootstrap.servers": "a:0"}, "bootstrap.servers", "from 1 to 65535"),
        ({"bootstrap.servers": " , "}, "bootstrap.servers", "at least one server"),
        ({"message.model": "broadcasting", "consumer.id": "c"}, "message.model", "group.coordination=zookeeper"),
        ({"offsets.storage": "zookeeper"}, "offsets.storage", "group.coordination=kafka"),
        ({"dual.commit.enabled": True}, "dual.commit.enabled", "group.coordination=kafka"),
        ({"share.partitions": True}, "share.partitions", "needs a group in ZooKeeper"),
        ({"heartbeat.interval.ms": 45_000}, "heartbeat.interval.ms", "session.timeout.ms"),
        ({"max.poll.interval.ms": 300}, "heartbeat.interval.ms", "max.poll.interval.ms"),
        ({"group.coordination": "etcd"}, "group.coordination", "'zookeeper' or 'kafka'"),
        ({"group.instance.id": ""}, "group.instance.id", "empty"),
    ],
)
def test_what_contradicts_it_is_refused_and_names_both(properties: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigException) as caught:
        ConsumerConfig({**KAFKA, **properties})
    assert caught.value.key == key
    assert says in caught.value.reason


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("bootstrap.servers", "a:1", "'zookeeper.connect'"),
        ("session.timeout.ms", 10_000, "'zookeeper.session.timeout.ms'"),
        ("group.instance.id", "i", "strategy=sticky"),
        ("max.poll.interval.ms", 1000, ""),
    ],
)
def test_a_brokers_groups_property_warns_with_zookeeper(name: str, value: Any, meant: str) -> None:
    with pytest.warns(
        UnknownPropertyWarning, match=f"'{name}' has no effect with group.coordination=zookeeper"
    ) as seen:
        ConsumerConfig({"zookeeper.connect": "zk", "group.id": "g", name: value})
    assert meant in str(seen[0].message)


def test_the_longest_pause_fits_the_shortest_session() -> None:
    """Several tries fit into the shortest session that brokers allow."""
    config = ConsumerConfig({"group.id": "g", "group.coordination": "kafka", "bootstrap.servers": "h:1"})
    session_of_brokers = 6.0  # group.min.session.timeout.ms
    assert member_settings(config).backoff_max * 4 < session_of_brokers


def named(strategy: str) -> list[str]:
    config = ConsumerConfig({**KAFKA, "partition.assignment.strategy": strategy})
    return [one.name for one in assignors(config, ConsumerId("g_c"), lambda _: 1)]


def test_strategies_are_offered_in_the_order_given() -> None:
    assert named("range") == ["range"]
    assert named("cooperative-sticky, range") == ["cooperative-sticky", "range"]
    assert named("zkconsumer") == ["zkconsumer"]


def test_a_strategy_of_zookeepers_groups_is_offered_as_ours() -> None:
    assert named("consistent-hash") == ["zkconsumer"]
    config = ConsumerConfig({**KAFKA, "partition.assignment.strategy": "average"})
    assert RebalanceProtocol.COOPERATIVE in assignors(config, ConsumerId("g_c"), lambda _: 1)[0].protocols


@pytest.mark.parametrize("strategy", ["range,range", "average,consistent-hash"])
def test_two_offers_of_one_name_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigException, match="offered twice"):
        named(strategy)


def test_an_unknown_strategy_is_refused() -> None:
    known = (
        r"partition.assignment.strategy: no strategy is called 'fairest'; .*configured.*also cooperative-sticky, range"
    )
    with pytest.raises(UnknownAssignorError, match=known):
        named("fairest")


def test_a_store_of_ones_own_has_no_place() -> None:
    class Store:
        def fetch(self, partitions: Any, timeout: float) -> Any: ...
        def commit(self, offsets: Any, timeout: float) -> Any: ...
        def close(self) -> None: ...

    connector = ZookeeperConsumerConnector(KAFKA, offset_store=Store())
    with pytest.raises(ConfigException, match="offset_store"):
        connector.create_message_streams({"t": 1})
    connector.shutdown()


def test_a_zookeeper_group_imports_no_brokers_group_code() -> None:
    code = """
import sys
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.wiring import build_member
connector = ZookeeperConsumerConnector(zookeeper_connect="127.0.0.1:1", group_id="g")
build_member(connector.config, connector.consumer_id)
print([m for m in sys.modules if m.startswith(("zkconsumer.member.brokers", "zkconsumer.kafka.group_"))])
"""
    assert run_python("-c", code).stdout.strip() == "[]"
