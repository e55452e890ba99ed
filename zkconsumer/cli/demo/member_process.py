"""One consuming process of the demo: ``python -m zkconsumer.cli.demo.member_process '<task as JSON>'``.

This is how an application uses the connector: a thread for each stream, ``shutdown`` on SIGTERM. Its "work" is to
write 16 bytes about each message to standard output, at once, so that also of a process that is killed it is known
what it had done.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import struct
import sys
from threading import Thread
from typing import Any
from zlib import crc32

from zkconsumer import KafkaStream, ZookeeperConsumerConnector

REPORT = struct.Struct("<IIQ")
"""Partition, checksum of the value, offset."""

_OUTPUT = 1


def main(arguments: list[str]) -> None:
    """Consumes until SIGTERM. Its argument: ``topic``, ``streams`` and the connector's ``properties``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    task = json.loads(arguments[0])
    with ZookeeperConsumerConnector(task["properties"]) as connector:
        signal.signal(signal.SIGTERM, lambda *_: connector.shutdown())
        streams = connector.create_message_streams({task["topic"]: task["streams"]})[task["topic"]]
        threads = [
            Thread(target=read, args=(stream,), name=f"reader-{number}") for number, stream in enumerate(streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def read(stream: KafkaStream[Any, Any]) -> None:
    """Processes the messages of one stream until the connector is shut down."""
    for message in stream:
        # one write of so few bytes is whole or not at all, also when another thread writes or we are killed
        os.write(_OUTPUT, REPORT.pack(message.partition, crc32(message.value or b""), message.offset))


if __name__ == "__main__":
    main(sys.argv[1:])
