"""A process that joins a consumer group with librdkafka and reports the messages that it consumes.

It has the arguments and the output of ``JavaConsumer.java``, without generations, which librdkafka does not show.
"""

from __future__ import annotations

import base64
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

COMMIT_S = 0.2


class LibrdkafkaConsumer:
    def __init__(self, topics: Sequence[str], properties: dict[str, str]) -> None:
        self.topics = list(topics)
        self.consumer = Consumer({**properties, "enable.auto.commit": False})
        self.cooperative = properties["partition.assignment.strategy"] == "cooperative-sticky"
        self.done: dict[tuple[str, int], int] = {}
        self.committed = time.monotonic()
        self.messages = self.bytes = 0
        self.ending = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.end)
        self.consumer.subscribe(self.topics, on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost)
        say("ready")
        while not self.ending:
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.consumed(message)
            if time.monotonic() > self.committed + COMMIT_S:
                self.commit()
        self.consumer.close()  # revokes, and so commits
        say(f"end {self.messages} {self.bytes} 0")

    def end(self, *_: object) -> None:
        self.ending = True

    def consumed(self, message: Any) -> None:
        topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        say(f"m {topic} {partition} {offset} {text(message.key())} {text(value)}")
        self.done[topic, partition] = offset + 1
        self.messages += 1
        self.bytes += len(value or b"")

    def commit(self) -> None:
        self.committed = time.monotonic()
        if not self.done:
            return
        try:
            self.consumer.commit(
                offsets=[TopicPartition(*tp, offset) for tp, offset in self.done.items()], asynchronous=False
            )
            self.done.clear()
        except KafkaException as refused:  # in a rebalance: committed after it, or before what is taken is given up
            print(f"not committed: {refused}", file=sys.stderr, flush=True)

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        owned = [*(consumer.assignment() if self.cooperative else ()), *partitions]
        say("owns - - " + " ".join(sorted(f"{tp.topic}-{tp.partition}" for tp in owned)))

    def revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.commit()
        self.forget(partitions)

    def lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.forget(partitions)
        say("lost " + " ".join(sorted(f"{tp.topic}-{tp.partition}" for tp in partitions)))

    def forget(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self.done.pop((tp.topic, tp.partition), None)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def text(data: bytes | None) -> str:
    return "-" if data is None else "=" + base64.b64encode(data).decode().rstrip("=")


def main(arguments: list[str]) -> None:
    pairs = dict(argument.split("=", 1) for argument in arguments)
    topics = pairs.pop("member.topics").split(",")
    LibrdkafkaConsumer(topics, pairs).run()


if __name__ == "__main__":
    main(sys.argv[1:])
