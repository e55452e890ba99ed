"""Records what brokers of three generations keep and send: ``python -m tests.vectors.recording.message_sets``.

Real brokers, librdkafka as the producer, and what librdkafka's consumer makes of the same logs as the answer: neither
shares anything with our readers, nor with the slow one of ``tests/unit/kafka/reference.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import confluent_kafka

from zkconsumer.devcluster import DevCluster
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.fetched_batches import extent
from zkconsumer.kafka.requests import FetchPosition, FetchRequest
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

FILE = Path(__file__).parents[1] / "data" / "brokers_message_sets.jsonl"
GENERATIONS: Mapping[str, tuple[str | None, Mapping[int, str | None]]] = {
    "0.8.2.2": ("3.4.6", {0: None}),
    "1.1.1": ("3.4.10", {0: "0.9.0", 1: "0.10.2", 2: "1.1"}),
    "3.9.1": (None, {2: None}),
}
"""By the broker's version: the ZooKeeper's, and for each message format the topic's ``message.format.version``."""
OLD = {"api.version.request": False, "broker.version.fallback": "0.8.2.2"}
CLEANING = {"log.cleaner.backoff.ms": 200, "log.segment.delete.delay.ms": 100}
WAIT_S = 30.0
_numbers = count(1)


def record() -> Iterator[dict[str, Any]]:
    """Every case."""
    for broker, (zookeeper, formats) in GENERATIONS.items():
        with DevCluster(kafka_version=broker, zookeeper_version=zookeeper, broker_properties=CLEANING) as cluster:
            log = Log(cluster, broker)
            for number, release in formats.items():
                yield from of_format(log, number, {"message.format.version": release} if release else {})
            if 2 in formats:
                yield log.case("transactions", 2, transactions(log))
                yield log.case("transactions, from within an aborted one", 2, log.topic, 6)
                yield log.case("compacted", 2, compacted(log, {}))
            if 1 in formats:
                yield log.case("compacted", 1, compacted(log, {"message.format.version": formats[1]}))


class Log:
    """The servers, and the topic that was written last."""

    def __init__(self, cluster: DevCluster, broker: str) -> None:
        self.cluster = cluster
        self.broker = broker
        self.old = OLD if broker.startswith("0.8") else {}
        self.topic = ""

    def make(self, config: Mapping[str, str | None]) -> str:
        """A topic of one partition."""
        self.topic = f"t{next(_numbers)}"
        self.cluster.create_topic(self.topic, 1, {name: value for name, value in config.items() if value})
        return self.topic

    def producer(self, **config: object) -> confluent_kafka.Producer:
        """Properties with underscores."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        base = {"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0, "linger.ms": 200}
        return confluent_kafka.Producer({**base, **self.old, **named})

    def fetched(self, topic: str, offset: int) -> tuple[bytes, list[tuple[int, int]], int]:
        """Return the broker's bytes, the aborted transactions, and the log's end."""
        host, _, port = self.cluster.bootstrap_servers.rpartition(":")
        channel = BrokerChannel(Endpoint(0, host, int(port)), client_id="recorder", socket_timeout=WAIT_S)
        deadline = Deadline(WAIT_S)
        channel.connect(deadline)
        try:
            request = FetchRequest([FetchPosition(topic, 0, offset, 1 << 20)], 0.1, 1, 1 << 22, isolation_level=1)
            (answer,) = channel.receive_fetch(channel.send_fetch(request, deadline), deadline).partitions
        finally:
            channel.close()
        assert not answer.error, answer.error
        return answer.records, list(answer.aborted), answer.high_watermark

    def case(self, what: str, number: int, topic: str, offset: int = 0) -> dict[str, Any]:
        """Return the case of a fetch at an offset, with the messages that librdkafka reads."""
        records, aborted, end = self.fetched(topic, offset)
        reached = extent(records, TopicPartition(topic, 0), offset).next_offset
        while reached is not None and reached < end:  # an answer holds what one segment has
            more, others, end = self.fetched(topic, reached)
            records, aborted = records + more, aborted + others
            reached = extent(more, TopicPartition(topic, 0), reached).next_offset
        place = f" from {offset}" if offset else ""
        return {
            "note": f"{self.broker}-format{number}-{what.replace(',', '').replace(' ', '-')}{place.replace(' ', '-')}",
            "broker": self.broker,
            "format": number,
            "fetch_offset": offset,
            "next_offset": end,
            "aborted": aborted,
            "messages": self.read(topic, offset, end),
            "hex": records.hex(),
        }

    def read(self, topic: str, offset: int, end: int) -> list[Any]:
        """The messages as librdkafka tells them: offset, timestamp, its type, key, value, headers; bytes in hex."""
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers, "group.id": "recorder", "log_level": 0}
        more = {"enable.partition.eof": True, "check.crcs": True, "isolation.level": "read_committed"}
        consumer = confluent_kafka.Consumer({**settings, **more, **self.old, "enable.auto.commit": False})
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        found: list[Any] = []
        limit = monotonic() + WAIT_S
        try:
            while monotonic() < limit:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    if error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        return found
                    raise RuntimeError(str(error))
                found.append(told(message))
        finally:
            consumer.close()
        raise RuntimeError(f"{topic}: no end at {end}: {len(found)} messages")


def told(message: Any) -> list[Any]:
    """One message."""
    kind, stamp = message.timestamp()
    headers = [[name, value if value is None else value.hex()] for name, value in message.headers() or ()]
    return [message.offset(), stamp if kind else -1, kind - 1, *map(_hex, (message.key(), message.value())), headers]


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def of_format(log: Log, number: int, config: Mapping[str, str | None]) -> Iterator[dict[str, Any]]:
    """All codecs, and both kinds of timestamps."""
    codecs = ["none", "gzip", "snappy", "lz4", *(["zstd"] if log.broker.startswith("3") else [])]
    for codec in codecs:
        topic = log.make(config)
        write(log, topic, codec, headers=number == 2)
        yield log.case(codec, number, topic)
        yield log.case(codec, number, topic, 13)
    if number:
        topic = log.make({**config, "message.timestamp.type": "LogAppendTime"})
        write(log, topic, "gzip", headers=number == 2)
        yield log.case("LogAppendTime", number, topic)


def write(log: Log, topic: str, codec: str, *, headers: bool) -> None:
    """Two sets of messages: with and without keys, values and headers, empty, equal and of different lengths."""
    producer = log.producer(compression_codec=codec)
    settle(producer, topic)
    for number in range(40):
        value = None if number == 3 else b"" if number == 4 else b"%d " % number * (number % 9)
        key = None if number % 3 else b"key %d" % number if number else b""
        more: dict[str, Any] = {}
        if headers and number % 5 == 1:
            more["headers"] = [("a", b"1"), ("a", None), ("\u00fc", b"")][: number % 4]
        if log.broker != "0.8.2.2":
            more["timestamp"] = 1_500_000_000_000 + number * 7
        producer.produce(topic, value, key, partition=0, **more)
        if number == 19:
            flush(producer)
    flush(producer)


def settle(producer: confluent_kafka.Producer, topic: str) -> None:
    """Waits until brokers know the topic."""
    limit = monotonic() + WAIT_S
    while monotonic() < limit:
        try:
            if producer.list_topics(topic, 5).topics[topic].partitions:
                return
        except confluent_kafka.KafkaException:
            pass  # 0.8.2 answers what librdkafka cannot read until there is a leader
        sleep(0.1)
    raise RuntimeError(f"nobody leads {topic}")


def flush(producer: confluent_kafka.Producer) -> None:
    """All is acknowledged."""
    if producer.flush(WAIT_S):
        raise RuntimeError("not everything was produced")


def transactions(log: Log) -> str:
    """Committed and aborted transactions of two producers, which overlap, and plain messages in between."""
    topic = log.make({})
    plain = log.producer()
    settle(plain, topic)
    one, two = (log.producer(transactional_id=f"{topic}-{n}", enable_idempotence=True) for n in (1, 2))
    for each in (one, two):
        each.init_transactions(WAIT_S)
    one.begin_transaction()
    say(one, topic, "committed", 2)
    one.commit_transaction(WAIT_S)
    two.begin_transaction()
    say(two, topic, "aborted", 2)
    one.begin_transaction()
    say(one, topic, "committed too", 3)
    say(plain, topic, "plain", 2)
    say(two, topic, "aborted", 3)
    two.abort_transaction(WAIT_S)
    one.commit_transaction(WAIT_S)
    say(plain, topic, "last", 1)
    return topic


def say(producer: confluent_kafka.Producer, topic: str, text: str, times: int) -> None:
    """Writes a text so many times, as one batch."""
    for number in range(times):
        producer.produce(topic, f"{text} {number}".encode(), str(number).encode(), partition=0)
    flush(producer)


def compacted(log: Log, config: Mapping[str, str | None]) -> str:
    """Batches of which the cleaner has taken messages."""
    cleaned = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "2000"}
    topic = log.make({**config, **cleaned})
    producer = log.producer()
    settle(producer, topic)
    for turn in range(8):
        for number in range(10):
            if turn % 2 == 0 or number % 3:
                producer.produce(topic, b"%d of turn %d" % (number, turn) + b"." * 30, b"%d" % number, partition=0)
        flush(producer)
    written = 8 * 10 - 4 * 4
    limit = monotonic() + WAIT_S
    while len(log.read(topic, 0, written)) > written * 0.75:
        if monotonic() > limit:
            raise RuntimeError(f"{topic} is not cleaned")
        sleep(0.5)
    return topic


def main(cases: Sequence[dict[str, Any]]) -> None:
    """Writes the file."""
    FILE.write_text("".join(json.dumps(case, ensure_ascii=True) + "\n" for case in cases), encoding="utf-8")
    print(f"{len(cases)} cases, {FILE.stat().st_size} bytes: {FILE}")


if __name__ == "__main__":
    main(list(record()))
