"""A process that joins a consumer group with our connector and reports what it consumes: what
``legacy/GroupMember.java`` is for the original, with the same arguments and the same lines.

The first stream is read by the main thread, every other by a thread of its own. SIGTERM is a clean end: the signal
handler itself, which runs in the main thread wherever that is, calls ``shutdown``. With ``member.commit=each`` a
message is committed by the thread that holds it before its line is printed.
"""

from __future__ import annotations

import base64
import logging
import signal
import sys
import threading
import time
from typing import Any

from zkconsumer import Blacklist, ConsumerTimeoutException, KafkaStream, Whitelist, ZookeeperConsumerConnector


class Member:
    def __init__(self, own: dict[str, str], properties: dict[str, str]) -> None:
        self.own = own
        self.pause = int(own.get("pause.ms", "0")) / 1000
        self.stop_after = int(own.get("stop.after", "0"))
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
                value = message.value
                self.say(f"m {message.topic} {message.partition} {message.offset} {text(message.key)} {text(value)}")
                with self.lock:
                    self.last = time.monotonic()
                    self.first = self.first or self.last
                    self.messages += 1
                    self.bytes += len(value or b"")
                    done = self.messages == self.stop_after
                if self.pause:
                    time.sleep(self.pause)
                if done:
                    self.connector.shutdown()
        except ConsumerTimeoutException:
            pass  # consumer.timeout.ms was set: this stream is read to its end

    def say(self, line: str) -> None:
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def text(data: bytes | None) -> str:
    return "-" if data is None else "=" + base64.b64encode(data).decode().rstrip("=")


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    pairs = dict(argument.split("=", 1) for argument in arguments)
    own = {name.removeprefix("member."): value for name, value in pairs.items() if name.startswith("member.")}
    Member(own, {name: value for name, value in pairs.items() if not name.startswith("member.")}).run()


if __name__ == "__main__":
    main(sys.argv[1:])
