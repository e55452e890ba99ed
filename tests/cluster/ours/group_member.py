"""A process that joins a group with our connector and reports the messages that it consumes.

It has the arguments and the output of ``legacy/GroupMember.java``. The main thread reads the first stream, and each
other stream has its own thread. SIGTERM is a clean end: the signal handler itself calls ``shutdown`` in the main
thread. With ``member.commit=each`` a thread commits each message before it prints the message's line.
"""

from __future__ import annotations

import base64
import logging
import signal
import sys
import threading
import time
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
        self.commit_each = own.get("commit") == "each"
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
            for message in stream:
                if self.commit_each:
                    self.connector.commit_offsets()
                self.say(line_of(message))
                with self.lock:
                    self.last = time.monotonic()
                    self.first = self.first or self.last
                    self.messages += 1
                    self.bytes += len(message.value or b"")
                if self.pause:
                    time.sleep(self.pause)
        except ConsumerTimeoutException:
            pass  # consumer.timeout.ms was set: this stream is read to its end

    def say(self, line: str) -> None:
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def line_of(message: MessageAndMetadata[Any, Any]) -> str:
    place = f"{message.topic} {message.partition} {message.offset}"
    return f"m {place} {text(message.key)} {text(message.value)}"


def text(data: bytes | None) -> str:
    return "-" if data is None else "=" + base64.b64encode(data).decode().rstrip("=")


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    pairs = dict(argument.split("=", 1) for argument in arguments)
    own = {name.removeprefix("member."): value for name, value in pairs.items() if name.startswith("member.")}
    GroupMember(own, {name: value for name, value in pairs.items() if not name.startswith("member.")}).run()


if __name__ == "__main__":
    main(sys.argv[1:])
