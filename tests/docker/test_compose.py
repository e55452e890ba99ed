"""docker-compose.yml keeps README's promise: the services become healthy, and a consumer on this machine reads."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import docker
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.docker.engine import COMPOSE_FILE, Compose, UnavailableError, compose_command, compose_up, need_image
from tests.timing import scaled
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector

PARTITIONS = 4
Position = tuple[int, bytes]


@pytest.fixture(scope="module")
def cluster(docker_engine: docker.DockerClient) -> Iterator[Compose]:
    try:
        compose_command()
        for image in default_images():
            need_image(docker_engine, image)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with compose_up(docker_engine) as started:
        yield started


def default_images() -> list[str]:
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE_FILE.read_text(encoding="utf-8"))
    return re.findall(r'^ *image: "(.*)"$', text, re.MULTILINE)


def produce(cluster: Compose, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(scaled(60)) == 0, "not everything was acknowledged"


def create_topic(cluster: Compose) -> str:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(scaled(60))
    return topic


def consume(cluster: Compose, topic: str, group: str, count: int) -> list[bytes]:
    """Read until ``count`` messages have come, then until nothing more comes, and leave."""
    properties = {
        "zookeeper.connect": cluster.zookeeper_connect,
        "group.id": group,
        "auto.offset.reset": "smallest",
    }
    values: list[bytes] = []
    with ZookeeperConsumerConnector(properties) as connector:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        while len(values) < count:
            values.append(stream.get(timeout=scaled(60)).value or b"")
        with pytest.raises(ConsumerTimeoutException):
            stream.get(timeout=1.0)
    return values


def test_images_are_public_and_ports_are_local() -> None:
    """The images are the public ones, and the ports are open to this machine only."""
    assert default_images() == ["zookeeper:3.9", "confluentinc/cp-kafka:7.9.2"]
    published = re.findall(r'^ *- "(\S+:\S+)"$', COMPOSE_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:${") for port in published)


def test_a_group_reads_everything_and_goes_on_where_it_left(cluster: Compose) -> None:
    topic = create_topic(cluster)
    first = [b"first %d" % number for number in range(1000)]
    produce(cluster, topic, first)
    assert sorted(consume(cluster, topic, "g", len(first))) == sorted(first)

    second = [b"second %d" % number for number in range(100)]
    produce(cluster, topic, second)
    assert sorted(consume(cluster, topic, "g", len(second))) == sorted(second)

    assert len(consume(cluster, topic, "another", 1100)) == 1100
