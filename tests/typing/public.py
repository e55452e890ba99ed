"""Read by mypy and never run: what type checkers make of the public interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_type

from zkconsumer import (
    ConsumerConfig,
    ConsumerRebalanceListener,
    IntDecoder,
    KafkaStream,
    LongDecoder,
    MessageAndMetadata,
    StringDecoder,
    TopicPartition,
    Whitelist,
    ZookeeperConsumerConnector,
)


def without_decoders(connector: ZookeeperConsumerConnector) -> None:
    streams = connector.create_message_streams({"t": 1})
    assert_type(streams, dict[str, list[KafkaStream[bytes | None, bytes | None]]])
    for message in streams["t"][0]:
        assert_type(message, MessageAndMetadata[bytes | None, bytes | None])
        assert_type(message.value, bytes | None)
        assert_type(message.offset, int)
        assert_type(message.headers, list[tuple[str, bytes | None]])


def with_decoders(connector: ZookeeperConsumerConnector) -> None:
    streams = connector.create_message_streams({"t": 1}, StringDecoder(), LongDecoder())
    assert_type(streams, dict[str, list[KafkaStream[str | None, int | None]]])
    assert_type(streams["t"][0].get(timeout=1).key, str | None)
    assert_type(connector.add_topics({"u": 1}, value_decoder=IntDecoder())["u"][0].get().value, int | None)
    assert_type(connector.add_topics({"u": 1}, value_decoder=IntDecoder())["u"][0].get().key, bytes | None)
    by_filter = connector.create_message_streams_by_filter(Whitelist("a.*"), 2, value_decoder=bytes.decode)
    assert_type(by_filter, list[KafkaStream[bytes | None, str | None]])


def one_loop(connector: ZookeeperConsumerConnector) -> None:
    def handle(message: MessageAndMetadata[str, bytes]) -> int:
        return len(message.key)

    connector.run(handle, "t", workers=2, key_decoder=StringDecoder())
    connector.run(handle, Whitelist("a.*"))
    connector.run(handle, {"t": 2})
    connector.run(lambda: None, ["t"])  # type: ignore[arg-type, misc]
    for message in connector.messages(connector.create_message_streams_by_filter(Whitelist("a"), 1, StringDecoder())):
        assert_type(message.key, str | None)


class Listener(ConsumerRebalanceListener):
    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(assignment, 0)

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        for numbers in partitions.values():
            assert_type(numbers, frozenset[int])


def control() -> None:
    with ZookeeperConsumerConnector(ConsumerConfig(zookeeper_connect="z", group_id="g")) as connector:
        connector.set_consumer_rebalance_listener(Listener())
        tp = TopicPartition("t", 0)
        assert_type(connector, ZookeeperConsumerConnector)
        assert_type(connector.assignment(), frozenset[TopicPartition])
        assert_type(connector.position(tp), int | None)
        assert_type(connector.committed(tp), int | None)
        assert_type(connector.lag(), dict[TopicPartition, int | None])
        assert_type(connector.offsets_for_times({tp: 0}), dict[TopicPartition, int | None])
        connector.pause([tp])
        connector.seek(tp, "earliest")
        connector.seek(tp, "begin")  # type: ignore[arg-type]
        connector.seek("t", 0)  # type: ignore[arg-type]
