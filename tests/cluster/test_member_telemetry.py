"""A member beside a Scala one on a real cluster: its health, its metrics over HTTP, and spans from the producer on."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable

from confluent_kafka import Producer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.conftest import NewTopic
from tests.cluster.legacy_member import LegacyMember
from tests.timing import eventually, scaled
from zkconsumer import MessageAndMetadata, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.prometheus import Collector

TRACE, SENDER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def metrics_at(port: int) -> dict[str, float]:
    """Scrape; returns ``name topic partition`` -> value, without what is absent."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=scaled(10)) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [sample.labels[name] for name in ("topic", "partition") if name in sample.labels]
            found[" ".join([sample.name, *labels])] = sample.value
    return found


def test_health_and_metrics_follow_a_scala_member(
    connector: Callable[..., ZookeeperConsumerConnector],
    legacy_member: Callable[..., LegacyMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
) -> None:
    """The member exports everything, then half of it beside the Scala member, and is ready each time."""
    topic, group = new_topic(partitions=2), new_group()
    produce(topic, [b"%d" % number for number in range(10)], partitions=2)
    member = connector(group, auto_offset_reset="smallest")
    registry = CollectorRegistry()
    registry.register(Collector(member))
    server, _ = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        assert not member.health().ready
        stream = member.create_message_streams({topic: 1})[topic][0]
        eventually(lambda: member.health().ready, 20, lambda: f"a ready member: {member.health()}")
        for _ in range(10):
            stream.get(timeout=scaled(20))
        member.commit_offsets()
        found = metrics_at(server.server_port)
        assert {found[f"zkconsumer_partition_owned {topic} {number}"] for number in (0, 1)} == {1}
        assert {found[f"kafka_consumergroup_current_offset {topic} {number}"] for number in (0, 1)} == {5}
        eventually(
            lambda: metrics_at(server.server_port)[f"kafka_consumergroup_lag {topic} 1"] == 0, 20, "the end of the log"
        )
        legacy_member("1.1.1", group, {topic: 1})
        eventually(lambda: len(member.assignment()) == 1, 60, "the Scala member to take its half")
        eventually(lambda: member.health().ready, 20, lambda: f"a ready member: {member.health()}")
        owned = [name for name in metrics_at(server.server_port) if name.startswith("zkconsumer_partition_owned")]
        assert len(owned) == 1
    finally:
        server.shutdown()
        server.server_close()


def test_a_trace_goes_on_from_the_producer_into_the_handler(
    cluster: DevCluster,
    connector: Callable[..., ZookeeperConsumerConnector],
    new_topic: NewTopic,
    new_group: Callable[[], str],
) -> None:
    topic = new_topic(partitions=1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    sent: list[tuple[str, str | bytes | None]] = [("traceparent", f"00-{TRACE}-{SENDER}-01".encode())]
    producer.produce(topic, b"one", b"key-1", headers=sent)
    assert producer.flush(scaled(20)) == 0
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    member = connector(new_group(), auto_offset_reset="smallest")

    def handle(message: MessageAndMetadata[bytes, bytes]) -> None:
        assert message.value == b"one"
        member.shutdown()

    member.run(handle, topic, tracer=provider.get_tracer("tests"))
    (span,) = exporter.get_finished_spans()
    assert span.name == f"process {topic}"
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SENDER)
