"""A member process of any connector, which the test starts, freezes, ends or kills, and whose output the test reads.

One thread calls it. A thread named after the group reads the output and ends with the process. The process also ends
with the test process.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from time import time
from typing import NamedTuple, Self

from tests.timing import eventually, scaled
from zkconsumer.devcluster.server_process import Launched

READY_S = 30.0
END_S = 20.0
# The original's defaults are for a data centre; these let a group settle within a second or two. A rebalance backs off
# for zookeeper.sync.time.ms unless told otherwise.
QUICK = {
    "zookeeper.session.timeout.ms": "4000",
    "zookeeper.connection.timeout.ms": "10000",
    "zookeeper.sync.time.ms": "200",
    "rebalance.backoff.ms": "300",
    "rebalance.max.retries": "30",
    "refresh.leader.backoff.ms": "100",
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": "500",
}


class Consumed(NamedTuple):
    """One message that a member handed out. ``at`` is the time at which the test read of it, in seconds."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    at: float = 0.0


class Totals(NamedTuple):
    """The totals of a member at a clean end. ``seconds`` is the time from its first message to its last."""

    messages: int
    bytes: int
    seconds: float


class MemberProcess:
    """One member of a group. A context manager that leaves cleanly at its end.

    The process prints lines: ``ready``, ``m TOPIC PARTITION OFFSET KEY VALUE`` (key and value in base64 after an equals
    sign, or ``-`` for null), ``end MESSAGES BYTES SECONDS``.
    """

    who = "member"

    def __init__(
        self,
        zookeeper_connect: str,
        group: str,
        topics: Mapping[str, int] | None = None,
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        streams: int = 1,
        pause_ms: int = 0,
        properties: Mapping[str, object] | None = None,
        own: Mapping[str, object] | None = None,
    ) -> None:
        """Arguments: ``topics`` name -> streams, or a filter and the number of ``streams``; ``pause_ms`` after each
        message; ``properties`` of the connector, which override ``QUICK``; ``own``, further arguments of the process.
        """
        assert sum(wanted is not None for wanted in (topics, whitelist, blacklist)) == 1
        self.group = group
        self.streams = streams if topics is None else sum(topics.values())
        told: dict[str, object] = {"member.pause.ms": pause_ms}
        if topics is not None:
            told["member.topics"] = ",".join(f"{topic}:{count}" for topic, count in topics.items())
        else:
            kind, text = ("whitelist", whitelist) if whitelist is not None else ("blacklist", blacklist)
            told |= {f"member.{kind}": text, "member.streams": streams}
        base = {"zookeeper.connect": zookeeper_connect, "group.id": group}
        self.arguments: dict[str, object] = {**QUICK, **base, **(properties or {}), **told, **(own or {})}
        self._process: Launched | None = None
        self._reader: threading.Thread | None = None
        self._directory: Path | None = None
        self._ready = threading.Event()
        self._messages: list[Consumed] = []  # appended to by the reader only
        self.totals: Totals | None = None

    def command(self) -> list[str]:
        """Return the command without its arguments."""
        raise NotImplementedError

    def start(self) -> Self:
        """Start the process. ``wait_ready`` waits for its streams."""
        self._directory = Path(tempfile.mkdtemp(prefix=f"zkconsumer-{self.who}-"))
        reading, writing = os.pipe()
        try:
            self._process = Launched(
                [*self.command(), *(f"{key}={value}" for key, value in self.arguments.items())],
                self.log,
                remove=[self._directory],
                output=writing,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._reader = threading.Thread(
            target=self._read, args=(reading,), name=f"{self.who}-{self.group}", daemon=True
        )
        self._reader.start()
        return self

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="ascii") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return  # killed in the middle of a line
                word, *rest = line.split()
                if word == "m":
                    topic, partition, offset, key, value = rest
                    place = (topic, int(partition), int(offset))
                    self._messages.append(Consumed(*place, _bytes(key), _bytes(value), time()))
                elif word == "ready":
                    self._ready.set()
                elif word == "end":
                    self.totals = Totals(int(rest[0]), int(rest[1]), float(rest[2]))
                else:
                    self.heard(word, rest)

    def heard(self, word: str, rest: list[str]) -> None:
        """Handle every other line. Runs on the reader's thread."""

    @property
    def consumer_id(self) -> str:
        """The consumer id, if ``consumer.id`` was given."""
        return f"{self.group}_{self.arguments['consumer.id']}"

    @property
    def log(self) -> Path:
        """The file of its standard error."""
        assert self._directory is not None, "the member was not started"
        return self._directory / "member.log"

    def log_text(self) -> str:
        """Return the whole log, for the message of a failure."""
        return self.log.read_text(errors="replace") if self._directory and self.log.exists() else ""

    @property
    def pid(self) -> int | None:
        """The process id, None if it does not run."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the process exists. A suspended process does."""
        return self._process is not None and self._process.running

    @property
    def messages(self) -> list[Consumed]:
        """Return the consumed messages so far, in the order of printing. Within a partition it is that of offsets."""
        return self._messages.copy()

    def wait_ready(self, seconds: float = READY_S) -> Self:
        """Wait until the member's streams exist. Then it is registered, but may not own a partition yet."""
        eventually(lambda: self._ready.is_set() or not self.running, seconds, f"a ready member:\n{self.log_text()}")
        assert self._ready.is_set(), f"the member ended:\n{self.log_text()}"
        return self

    def wait_messages(self, count: int, seconds: float = READY_S) -> list[Consumed]:
        """Wait until at least ``count`` messages are consumed, and return all of them."""
        try:
            eventually(lambda: len(self._messages) >= count, seconds, f"{count} messages")
        except AssertionError as failure:
            raise AssertionError(f"{failure}: {len(self._messages)} so far\n{self.log_text()}") from None
        return self.messages

    def wait_end(self, seconds: float = END_S) -> Totals | None:
        """Wait until the process ends by itself. Return the totals, None if it did not end cleanly."""
        assert self._process is not None
        assert self._reader is not None
        assert self._process.wait(scaled(seconds)), f"the member does not end:\n{self.log_text()}"
        self._reader.join(scaled(seconds))
        return self.totals

    def stop(self, seconds: float = END_S) -> Totals | None:
        """Let the member commit and leave the group cleanly (SIGTERM). Return its totals."""
        if self._process is None:
            return None
        self._process.send(signal.SIGCONT)
        self._process.send(signal.SIGTERM)
        return self.wait_end(seconds)

    def kill(self) -> None:
        """Kill the process. Its session in ZooKeeper lives until it times out."""
        if self._process is not None:
            self._process.send(signal.SIGKILL)
            self.wait_end()

    def suspend(self) -> None:
        """Freeze the process (SIGSTOP), as a long garbage collection does."""
        assert self._process is not None
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen process."""
        assert self._process is not None
        self._process.send(signal.SIGCONT)

    def close(self) -> None:
        """End the process, by SIGKILL if needed, and remove its directory. May be called again."""
        try:
            if self.running:
                self.stop()
        finally:
            self.kill()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def __enter__(self) -> Self:
        return self.start().wait_ready()

    def __exit__(self, *_: object) -> None:
        self.close()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text[1:] + "=" * (-len(text[1:]) % 4))
