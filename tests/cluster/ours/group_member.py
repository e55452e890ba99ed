"""A process that joins a group with our connector and reports the messages that it consumes.

It has the arguments and the output of ``legacy/GroupMember.java``. The main thread reads the first stream, and each
other stream has its own thread. SIGTERM is a clean end: the signal handler itself calls ``shutdown`` in the main
thread. With ``member.commit=each`` a message's thread commits it before it prints its line. With ``member.columns`` the
process reads batches.
"""

from __future__ import annotations

import base64
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from zkconsumer import (
    Blacklist,
    ConsumerTimeoutException,
    KafkaStream,
    MessageAndMetadata,
    Whitelist,
    ZookeeperConsumerConnector,
)


class GroupMember:
    def __init__(self, own: dict[str, str], properties: dict[str, str]) -> None:
        self.own = own
        self.pause = int(own.get("pause.ms", "0")) / 1000
        self.stop_after = int(own.get("stop.after", "0"))
        self.commit_each = own.get("commit") == "each"
        self.columns = "columns" in own
        self.connector = ZookeeperConsumerConnector(properties)
        self.lock = threading.Lock()
        self.messages = self.bytes = 0
        self.first = self.last = 0.0

    def streams(self) -> list[KafkaStream[Any, Any]]:
        count = int(self.own.get("streams", "1"))
        if "whitelist" in self.own:
            return self.connector.create_message_streams_by_filter(Whitelist(self.own["whitelist"]), count)
        if "blacklist" in self.own:
            return self.connector.create_message_streams_by_filter(Blacklist(self.own["blacklist"]), count)
        topics = dict(entry.rsplit(":", 1) for entry in self.own["topics"].split(","))
        by_topic = self.connector.create_message_streams({topic: int(count) for topic, count in topics.items()})
        return [stream for streams in by_topic.values() for stream in streams]

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.connector.shutdown())
        streams = self.streams()
        self.say("ready")
        threads = [threading.Thread(target=self.read, args=(stream,)) for stream in streams[1:]]
        for thread in threads:
            thread.start()
        self.read(streams[0])
        for thread in threads:
            thread.join()
        self.connector.shutdown()
        self.say(f"end {self.messages} {self.bytes} {self.last - self.first:f}")

    def read(self, stream: KafkaStream[Any, Any]) -> None:
        try:
            for rows in self.columns_of(stream) if self.columns else ([of_message(m)] for m in stream):
                if self.commit_each:
                    self.connector.commit_offsets()
                self.say("\n".join(line for line, _ in rows))
                with self.lock:
                    self.last = time.monotonic()
                    self.first = self.first or self.last
                    before, self.messages = self.messages, self.messages + len(rows)
                    self.bytes += sum(size for _, size in rows)
                    done = before < self.stop_after <= self.messages
                if self.pause:
                    time.sleep(self.pause)
                if done:
                    self.connector.shutdown()
        except ConsumerTimeoutException:
            pass  # consumer.timeout.ms was set: this stream is read to its end

    @staticmethod
    def columns_of(stream: KafkaStream[Any, Any]) -> Iterator[list[tuple[str, int]]]:
        for batch in stream.batches():
            yield [of_row(*row) for row in zip(*(column.to_pylist() for column in batch.columns[:5]), strict=True)]

    def say(self, line: str) -> None:
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def of_message(message: MessageAndMetadata[Any, Any]) -> tuple[str, int]:
    """Return the line about a message, and its size."""
    return of_row(message.key, message.value, message.topic, message.partition, message.offset)


def of_row(key: bytes | None, value: bytes | None, topic: str, partition: int, offset: int) -> tuple[str, int]:
    return f"m {topic} {partition} {offset} {text(key)} {text(value)}", len(value or b"")


def text(data: bytes | None) -> str:
    return "-" if data is None else "=" + base64.b64encode(data).decode().rstrip("=")


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    pairs = dict(argument.split("=", 1) for argument in arguments)
    own = {name.removeprefix("member."): value for name, value in pairs.items() if name.startswith("member.")}
    GroupMember(own, {name: value for name, value in pairs.items() if not name.startswith("member.")}).run()


if __name__ == "__main__":
    main(sys.argv[1:])
