"""A member of the demo: the process that consumes, and the object that starts, reads and ends it.

``python -m scripts.demonstration.member_process '<task as JSON>'`` is the process. It uses the connector as an
application does: a thread for each stream, and ``shutdown`` on SIGTERM. For each message the process writes 16 bytes to
standard output at once, so that the message is known even after SIGKILL.

``MemberProcess`` is used by the main thread. Its thread ``demo-reports-<name>`` adds the reports to the account and
ends with the process. A member process also ends when the demo does, even by SIGKILL.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import struct
import sys
from pathlib import Path
from threading import Thread
from typing import Any
from zlib import crc32

from scripts.demonstration import command
from scripts.demonstration.message_account import MessageAccount
from zkconsumer import KafkaStream, ZookeeperConsumerConnector
from zkconsumer.devcluster.server_process import Launched, tail
from zkconsumer.errors import ZkConsumerError

REPORT = struct.Struct("<IIQ")
"""Partition, checksum of the value, offset."""

_OUTPUT = 1
_READ_BYTES = REPORT.size * 4096
_END_S = 15.0


def main(arguments: list[str]) -> None:
    """Consume until SIGTERM. The argument is JSON: ``topic``, ``streams`` and the connector's ``properties``."""
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
    """Process the messages of one stream until the connector is shut down."""
    for message in stream:
        # a write of so few bytes is atomic, even if another thread writes or the process is killed
        os.write(_OUTPUT, REPORT.pack(message.partition, crc32(message.value or b""), message.offset))


class MemberProcess:
    """One member process, which :meth:`start` starts."""

    def __init__(
        self,
        name: str,
        zookeeper_connect: str,
        group: str,
        topic: str,
        session_timeout_ms: int,
        folder: Path,
        *,
        per_second: int = 0,
    ) -> None:
        self.name = name
        self.gone = False
        self._log = folder / f"{name}.log"
        self._folder = folder
        self._task = {
            "topic": topic,
            "streams": 2,
            "properties": {
                "zookeeper.connect": zookeeper_connect,
                "group.id": group,
                "consumer.id": name,
                "auto.offset.reset": "smallest",
                "auto.commit.interval.ms": "1000",
                "zookeeper.session.timeout.ms": str(session_timeout_ms),
                "consumed.max.per.second": str(per_second),
            },
        }
        self._process: Launched | None = None
        self._reader: Thread | None = None

    def start(self, account: MessageAccount) -> None:
        """Start the process, and read its reports. Note first who closes this: an interrupt may come at once."""
        reading, writing = os.pipe()
        try:
            task = command("member_process", self._task)
            self._process = Launched(task, self._log, remove=[self._folder], output=writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._reader = Thread(target=self._read, args=(reading, account), name=f"demo-reports-{self.name}", daemon=True)
        self._reader.start()

    def _read(self, reports: int, account: MessageAccount) -> None:
        rest = b""
        try:
            while data := os.read(reports, _READ_BYTES):
                data = rest + data
                whole = len(data) - len(data) % REPORT.size
                rest = data[whole:]
                account.consumed(self.name, [((p, offset), crc) for p, crc, offset in REPORT.iter_unpack(data[:whole])])
        finally:
            os.close(reports)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started.pid

    @property
    def _started(self) -> Launched:
        assert self._process is not None, "it was not started"
        return self._process

    def check(self) -> None:
        """Raise ZkConsumerError if the process ended by itself."""
        if not self.gone and not self._started.running:
            raise ZkConsumerError(f"the member {self.name} ended by itself:\n{tail(self._log)}")

    def leave(self) -> None:
        """Send SIGTERM: the member finishes its present message, commits and leaves the group. Does not wait."""
        self.gone = True
        self._started.send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: the member cannot commit, and ZooKeeper notices when the session times out."""
        self.gone = True
        self._started.send(signal.SIGKILL)

    def join(self) -> None:
        """Wait until the process has ended and all its reports are in the account."""
        if not self._started.wait(_END_S):
            self.kill()
            self._started.wait(_END_S)
            raise ZkConsumerError(f"the member {self.name} did not leave in time:\n{tail(self._log)}")
        if self._reader is not None and self._reader.ident is not None:
            self._reader.join(_END_S)

    def close(self) -> None:
        """Kill the process if it runs, and wait for its end. Nothing is to do for one that was not started."""
        if self._process is None:
            return
        if self._process.running:
            self.kill()
        self.join()


if __name__ == "__main__":
    main(sys.argv[1:])
