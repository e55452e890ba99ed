"""Read by mypy and never run: what type checkers make of the public interface."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from signal import SIGINT, SIGTERM
from typing import Literal, assert_type

from zkconsumer import (
    AsyncConsumerRebalanceListener,
    AsyncStream,
    AsyncZookeeperConsumerConnector,
    BalancedMessage,
    BalanceState,
    ConsumerConfig,
    ConsumerRebalanceListener,
    DeadLetterTopic,
    FailureLimit,
    Health,
    IntDecoder,
    KafkaStream,
    Later,
    LongDecoder,
    MessageAndMetadata,
    PartitionStream,
    Phase,
    Reject,
    Retry,
    RunSummary,
    StringDecoder,
    TopicPartition,
    Whitelist,
    ZookeeperConsumerConnector,
    shutdown_on_signal,
)


def without_decoders(connector: ZookeeperConsumerConnector) -> None:
    streams = connector.create_message_streams({"t": 1})
    assert_type(streams, dict[str, list[KafkaStream[bytes | None, bytes | None]]])
    for message in streams["t"][0]:
        assert_type(message, MessageAndMetadata[bytes | None, bytes | None])
        assert_type(message.value, bytes | None)
        assert_type(message.offset, int)
        assert_type(message.headers, list[tuple[str, bytes | None]])


def up_to_an_end(connector: ZookeeperConsumerConnector) -> None:
    for streams in connector.create_message_streams({"t": 1}, until="end").values():
        assert_type(streams, list[KafkaStream[bytes | None, bytes | None]])


def without_a_group(connector: ZookeeperConsumerConnector) -> None:
    with connector.read("t", value_decoder=StringDecoder()) as stream:
        assert_type(stream, PartitionStream[bytes | None, str | None])
        assert_type([message.value for message in stream], list[str | None])
    assert_type(connector.read([("t", 0)], {("t", 0): 5}, None).take(1)[0].value, bytes | None)


class AsyncListener(AsyncConsumerRebalanceListener):
    async def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(assignment, 0)


async def on_a_loop() -> None:
    async with AsyncZookeeperConsumerConnector(zookeeper_connect="z", group_id="g") as connector:
        connector.set_consumer_rebalance_listener(AsyncListener())
        streams = await connector.create_message_streams({"t": 1}, value_decoder=StringDecoder())
        stream = streams["t"][0]
        assert_type(stream, AsyncStream[bytes | None, str | None])
        async for message in stream:
            assert_type(message, MessageAndMetadata[bytes | None, str | None])
        assert_type((await stream.getone()).value, str | None)
        many = await stream.getmany(timeout_ms=100, max_records=5)
        assert_type(many, dict[TopicPartition, list[MessageAndMetadata[bytes | None, str | None]]])
        await connector.commit({("t", 0): 5})
        await connector.seek(("t", 0), "earliest")
        assert_type(await connector.committed(("t", 0)), int | None)


def with_decoders(connector: ZookeeperConsumerConnector) -> None:
    streams = connector.create_message_streams({"t": 1}, StringDecoder(), LongDecoder())
    assert_type(streams, dict[str, list[KafkaStream[str | None, int | None]]])
    assert_type(streams["t"][0].get(timeout=1).key, str | None)
    assert_type(streams["t"][0].take(5, timeout=1), list[MessageAndMetadata[str | None, int | None]])
    assert_type(connector.add_topics({"u": 1}, value_decoder=IntDecoder())["u"][0].get().value, int | None)
    assert_type(connector.add_topics({"u": 1}, value_decoder=IntDecoder())["u"][0].get().key, bytes | None)
    by_filter = connector.create_message_streams_by_filter(Whitelist("a.*"), 2, value_decoder=bytes.decode)
    assert_type(by_filter, list[KafkaStream[bytes | None, str | None]])


def one_loop(connector: ZookeeperConsumerConnector) -> None:
    def handle(message: MessageAndMetadata[str, bytes]) -> int:
        return len(message.key)

    connector.run(handle, "t", workers=2, key_decoder=StringDecoder())
    connector.run(handle, Whitelist("a.*"))
    connector.run(handle, {"t": 2}, stop_on=(SIGTERM, SIGINT), shutdown_timeout=20)
    connector.run(handle, ["t"], tracer=True)
    connector.run(lambda message: print(message.value), ["t"])
    connector.run(lambda: None, ["t"])  # type: ignore[arg-type, misc]
    for message in connector.messages(connector.create_message_streams_by_filter(Whitelist("a"), 1, StringDecoder())):
        assert_type(message.key, str | None)


def balanced(connector: ZookeeperConsumerConnector, letters: DeadLetterTopic) -> None:
    def handle(message: MessageAndMetadata[str, bytes]) -> Later | Reject | None:
        return Later(5) if message.key else Reject("no key")

    retry = Retry(attempts=3, delays=(1.0, 10.0), reject=(KeyError,))

    def handle_balanced(message: BalancedMessage[str, bytes | None]) -> Later | None:
        assert_type(message.attempt, int)
        assert_type(message.last_failure, str)
        assert_type(message.key, str)
        message.ack()
        message.nack(ValueError("no"))
        print(message.attempts)  # type: ignore[attr-defined]
        return Later(30 * message.attempt, failure="busy") if message.attempt < 5 else None

    async def handle_coroutine(message: BalancedMessage[bytes, bytes]) -> None:
        assert_type(message.value, bytes)

    async def handle_batch(messages: list[BalancedMessage[bytes, bytes]]) -> list[Later | None]:
        return [Later(5) if message.key else None for message in messages]

    summary = connector.run(handle_balanced, "t", concurrency=64, key_decoder=StringDecoder())
    assert_type(summary, RunSummary)
    assert_type((summary.handled, summary.failed, summary.parked, summary.dead), tuple[int, int, int, int])
    assert_type(summary.ended, Literal["until", "timeout", "shutdown", "signal"])
    summary.handled = 5  # type: ignore[misc]
    connector.run(handle_coroutine, "t", concurrency=64, executor="asyncio")
    connector.run(handle, "t", concurrency=64, key_decoder=StringDecoder())
    connector.run(handle, "t", concurrency=8, order="none", executor="processes", retry=retry, dead_letter=letters)
    connector.run(handle, "t", concurrency=8, failure_limit=FailureLimit(consecutive=10), until="end")
    connector.run(handle_batch, "t", concurrency=8, batch=100, executor="asyncio")
    connector.run(lambda message: message.ack(), "t", concurrency=8)
    connector.run(lambda message: print(message.attempt), "t")  # type: ignore[attr-defined]
    connector.run(handle_balanced, "t")  # type: ignore[arg-type]
    connector.run(handle, "t", retry=retry)  # type: ignore[call-overload]
    connector.run(handle, "t", concurrency=8, executor="asyncio")  # type: ignore[call-overload]
    connector.run(handle, "t", concurrency=8, batch=100)  # type: ignore[arg-type]
    connector.run(handle_batch, "t", concurrency=8)  # type: ignore[arg-type]
    connector.run(handle, "t", concurrency=8, order="any")  # type: ignore[call-overload]
    assert_type(connector.balance, BalanceState | None)
    assert_type(connector.state.balance, tuple[str, ...])


def telemetry(connector: ZookeeperConsumerConnector) -> None:
    assert_type(connector.health(), Health)
    assert_type((connector.health().ready, connector.health().reasons), tuple[bool, tuple[str, ...]])
    connector.run(print, "t", tracer="yes")  # type: ignore[call-overload]


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
        assert_type(connector.topics(), frozenset[str])
        assert_type(connector.partitions_for("t"), list[TopicPartition])
        assert_type(connector.beginning_offsets([tp, ("t", 1)]), dict[TopicPartition, int])
        assert_type(connector.end_offsets(connector.assignment()), dict[TopicPartition, int])
        assert_type(connector.lag(), dict[TopicPartition, int | None])
        assert_type(connector.offsets_for_times({tp: 0}), dict[TopicPartition, int | None])
        connector.pause([tp])
        connector.seek(tp, "earliest")
        connector.seek(tp, "begin")  # type: ignore[arg-type]
        connector.seek("t", 0)  # type: ignore[arg-type]
        pair = ("t", 0)
        connector.seek(pair, 5)
        connector.pause([pair])
        connector.pause([tp, pair])
        connector.pause(connector.assignment())
        connector.resume("t")  # type: ignore[arg-type]
        connector.commit_offsets({pair: 5})
        connector.commit_offsets({tp: 5})
        assert_type(connector.commit_offsets_async({tp: 5}, lambda error: print(error)), Future[None])
        connector.commit_offsets({tp: 5.0})  # type: ignore[arg-type]
        assert_type(connector.position(pair), int | None)
        assert_type(connector.seek_to_timestamp(0, [pair]), dict[TopicPartition, int])
        assert_type(connector.offsets_for_times({pair: 0}), dict[TopicPartition, int | None])
        assert_type(connector.state.phase, Phase)


def ending(connector: ZookeeperConsumerConnector) -> None:
    with connector, shutdown_on_signal(connector, SIGTERM, timeout=20) as guard:
        assert_type(guard.received, int | None)
    connector.shutdown(timeout=1.5)
    connector.shutdown("5")  # type: ignore[arg-type]
    shutdown_on_signal(connector, "SIGTERM")  # type: ignore[arg-type]
