"""A member of the demo of message balance: the process that handles flights, and the object that starts and ends it.

``python -m scripts.demonstration.balanced_member '<task as JSON>'`` is the process. It calls ``connector.run`` as an
application does. At each attempt at a message the process appends 40 bytes to its file at once, so that the attempt is
known even after SIGKILL.

``BalancedMember`` is used by the main thread. A member process also ends when the demo does, even by SIGKILL.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any, NamedTuple
from zlib import crc32

from scripts.demonstration import command
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.balance.retry_policy import Retry
from zkconsumer.devcluster.server_process import Launched, tail
from zkconsumer.errors import ZkConsumerError

RECORD = struct.Struct("<QQQIIB3s4x")
"""Begin and end of the attempt in ns, offset, partition, checksum of the value, whether it failed, carrier."""
ATTEMPTS = 3
FAILING = 100
"""One flight in so many fails, by the checksum of its value."""
FAILURES = 2
"""Number of failures of such a flight."""

_DELAYS = (0.01,)
_END_S = 20.0


class Attempt(NamedTuple):
    """One attempt at a flight, on the clock of the machine in nanoseconds."""

    begun: int
    ended: int
    offset: int
    partition: int
    checksum: int
    failed: bool
    carrier: bytes


def main(arguments: list[str]) -> None:
    """Handle flights until SIGTERM. The argument is JSON: ``topic``, ``workers``, ``file``, ``properties``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    task = json.loads(arguments[0])
    file = os.open(task["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    ZookeeperConsumerConnector(task["properties"]).run(
        partial(handle, partial(os.write, file)),
        task["topic"],
        concurrency=task["workers"],
        order="key",
        retry=Retry(attempts=ATTEMPTS, delays=_DELAYS),
        stop_on=(signal.SIGTERM,),
    )


def handle(write: Callable[[bytes], object], message: Any) -> None:
    """Handle one flight. One that is damaged fails every time, one in a hundred fails twice."""
    begun, value = monotonic_ns(), message.value or b""
    checksum, failed = crc32(value), True
    try:
        json.loads(value)
        if checksum % FAILING == 0 and message.attempt <= FAILURES:
            raise ConnectionError("the service that the demo does not have is away")
        failed = False
    finally:
        place = (message.offset, message.partition, checksum, failed, message.key)
        # a write of so few bytes is atomic, even if another thread writes or the process is killed
        write(RECORD.pack(begun, monotonic_ns(), *place))


def attempts_in(file: Path) -> list[Attempt]:
    """Return the attempts that a member has recorded."""
    data = file.read_bytes() if file.exists() else b""
    whole = len(data) - len(data) % RECORD.size
    return [
        Attempt(begun, ended, offset, partition, checksum, bool(failed), carrier.rstrip(b"\0"))
        for begun, ended, offset, partition, checksum, failed, carrier in RECORD.iter_unpack(data[:whole])
    ]


class BalancedMember:
    """One member process, which :meth:`start` starts.

    Arguments: ``workers`` handle flights at the same time; ``folder`` takes its log and its file.
    """

    def __init__(
        self, name: str, zookeeper: str, group: str, topic: str, workers: int, session_timeout_ms: int, folder: Path
    ) -> None:
        self.name = name
        self.workers = workers
        self.gone = False
        self._log, self.file = folder / f"{name}.log", folder / f"{name}.attempts"
        self._folder = folder
        self._task = {
            "topic": topic,
            "workers": workers,
            "file": str(self.file),
            "properties": {
                "zookeeper.connect": zookeeper,
                "group.id": group,
                "consumer.id": name,
                "auto.offset.reset": "smallest",
                "auto.commit.interval.ms": "1000",
                "zookeeper.session.timeout.ms": str(session_timeout_ms),
                "share.partitions": "true",
            },
        }
        self._process: Launched | None = None

    def start(self) -> None:
        """Start the process. Note first who closes this: an interrupt may come at once."""
        self._process = Launched(command("balanced_member", self._task), self._log, remove=[self._folder])

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started.pid

    @property
    def _started(self) -> Launched:
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def recorded(self) -> int:
        """The number of attempts that it has recorded."""
        return self.file.stat().st_size // RECORD.size if self.file.exists() else 0

    def check(self) -> None:
        """Raise ZkConsumerError if the process ended by itself."""
        if not self.gone and not self._started.running:
            raise ZkConsumerError(f"the member {self.name} ended by itself:\n{tail(self._log)}")

    def leave(self) -> None:
        """Send SIGTERM: the member finishes what is in hand, commits and leaves the group. Does not wait."""
        self.gone = True
        self._started.send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL: the member cannot commit, and ZooKeeper notices when the session times out."""
        self.gone = True
        self._started.send(signal.SIGKILL)

    def join(self) -> None:
        """Wait until the process has ended. Raises: ZkConsumerError if it does not leave in time."""
        if not self._started.wait(_END_S):
            self.kill()
            self._started.wait(_END_S)
            raise ZkConsumerError(f"the member {self.name} did not leave in time:\n{tail(self._log)}")

    def close(self) -> None:
        """Kill the process if it runs, and wait for its end. Nothing is to do for one that was not started."""
        if self._process is None:
            return
        if self._process.running:
            self.kill()
        self.join()


if __name__ == "__main__":
    main(sys.argv[1:])
