"""The original Scala connector as a process of our own: a peer to share a group with.

``LegacyMember`` starts ``legacy/GroupMember.java`` with the jars of one Kafka release. One thread calls it; a thread
named ``legacy-<group>`` reads what the process prints and ends when the process does. The process also ends when we do.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tests.timing import eventually, scaled
from zkconsumer.deadline import Deadline
from zkconsumer.devcluster import cache_directory, java, kafka_jars, resolve
from zkconsumer.devcluster.cache import locked
from zkconsumer.devcluster.process import Launched

VERSIONS = ("1.1.1", "0.8.2.2")
READY_S = 30.0
END_S = 20.0
_SOURCE = Path(__file__).parent / "legacy" / "GroupMember.java"
_COMPILER = "org.eclipse.jdt:ecj:3.33.0"
_COMPILE_TIMEOUT_S = 120.0
_LOGGING = """\
log4j.rootLogger=WARN, out
log4j.logger.kafka.consumer.ZookeeperConsumerConnector=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
"""
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


class LegacyMessage(NamedTuple):
    """One message as the original connector handed it out."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Totals(NamedTuple):
    """What a member says at a clean end; ``seconds`` from its first message to its last."""

    messages: int
    bytes: int
    seconds: float


def class_path(version: str) -> list[Path]:
    """What a member of that Kafka release runs with: its jars and our class, compiled once into the cache."""
    jars = kafka_jars(version)
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(source + version.encode()).hexdigest()[:10]
    target = cache_directory() / "legacy" / f"{version}-{key}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / ".lock", Deadline(_COMPILE_TIMEOUT_S)):
            if not target.is_dir():
                _compile(jars, target)
    return [*jars, target]


def _compile(jars: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".compiling-") as name:
        classes = Path(name) / "classes"
        command = [*_compiler(), "-nowarn", "-proc:none", "-cp", os.pathsep.join(map(str, jars)), "-d", str(classes)]
        done = subprocess.run([*command, str(_SOURCE)], capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        (classes / "log4j.properties").write_text(_LOGGING)
        classes.rename(target)


def _compiler() -> list[str]:
    """The JDK's compiler; a mere Java runtime has none, so there it is Eclipse's, which is a jar like any other."""
    modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, timeout=30, check=True).stdout
    if "jdk.compiler@" in modules:
        return [str(java()), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    (ecj,) = resolve(_COMPILER)
    return [str(java()), "-jar", str(ecj), "-source", "17", "-target", "17"]


class LegacyMember:
    """One member of a group, played by the original connector. A context manager that leaves cleanly at its end."""

    def __init__(
        self,
        version: str,
        zookeeper_connect: str,
        group: str,
        topics: Mapping[str, int] | None = None,
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        streams: int = 1,
        mode: str = "lines",
        pause_ms: int = 0,
        stop_after: int | None = None,
        properties: Mapping[str, object] | None = None,
        heap_mb: int = 128,
    ) -> None:
        """Arguments: ``topics`` name -> streams, or a filter and the number of ``streams``; ``mode`` "lines" reports
        each message, "count" only totals at a clean end; any of the connector's ``properties``, over ``QUICK``.
        """
        assert sum(wanted is not None for wanted in (topics, whitelist, blacklist)) == 1
        self.version = version
        self.group = group
        own: dict[str, object] = {"member.mode": mode, "member.pause.ms": pause_ms}
        if topics is not None:
            own["member.topics"] = ",".join(f"{topic}:{count}" for topic, count in topics.items())
        else:
            kind, text = ("whitelist", whitelist) if whitelist is not None else ("blacklist", blacklist)
            own |= {f"member.{kind}": text, "member.streams": streams}
        if stop_after is not None:
            own["member.stop.after"] = stop_after
        base = {"zookeeper.connect": zookeeper_connect, "group.id": group}
        self._arguments = {**QUICK, **base, **(properties or {}), **own}
        self._heap_mb = heap_mb
        self._process: Launched | None = None
        self._reader: threading.Thread | None = None
        self._directory: Path | None = None
        self._ready = threading.Event()
        self._messages: list[LegacyMessage] = []  # appended to by the reader only
        self.totals: Totals | None = None

    def start(self) -> Self:
        """Starts the process; ``wait_ready`` waits for its streams."""
        self._directory = Path(tempfile.mkdtemp(prefix="zkconsumer-legacy-"))
        reading, writing = os.pipe()
        try:
            self._process = Launched(
                [
                    str(java()),
                    f"-Xmx{self._heap_mb}m",
                    "-XX:+UseSerialGC",
                    "-XX:-UsePerfData",
                    *("-cp", os.pathsep.join(map(str, class_path(self.version)))),
                    "GroupMember",
                    *(f"{key}={value}" for key, value in self._arguments.items()),
                ],
                self.log,
                remove=[self._directory],
                output=writing,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,), name=f"legacy-{self.group}", daemon=True)
        self._reader.start()
        return self

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="ascii") as lines:
            for line in lines:
                word, *rest = line.split()
                if word == "m":
                    topic, partition, offset, key, value = rest
                    self._messages.append(LegacyMessage(topic, int(partition), int(offset), _bytes(key), _bytes(value)))
                elif word == "ready":
                    self._ready.set()
                elif word == "end":
                    self.totals = Totals(int(rest[0]), int(rest[1]), float(rest[2]))

    @property
    def log(self) -> Path:
        """What the process says on its standard error."""
        assert self._directory is not None, "the member was not started"
        return self._directory / "member.log"

    def log_text(self) -> str:
        """The whole log, for a failure's message."""
        return self.log.read_text(errors="replace") if self._directory and self.log.exists() else ""

    @property
    def pid(self) -> int | None:
        """The process id, None while it does not run."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """Whether the process exists; a suspended one does."""
        return self._process is not None and self._process.running

    @property
    def messages(self) -> list[LegacyMessage]:
        """A copy of what was consumed so far, in the order of printing (that of offsets within a partition)."""
        return self._messages.copy()

    def wait_ready(self, seconds: float = READY_S) -> Self:
        """Waits until the member's streams exist; it is registered then, but need not own anything yet."""
        eventually(lambda: self._ready.is_set() or not self.running, seconds, f"a ready member:\n{self.log_text()}")
        assert self._ready.is_set(), f"the member ended:\n{self.log_text()}"
        return self

    def wait_messages(self, count: int, seconds: float = READY_S) -> list[LegacyMessage]:
        """Waits until at least ``count`` messages were consumed, and returns all of them."""
        eventually(lambda: len(self._messages) >= count, seconds, f"{count} messages, {len(self._messages)} so far")
        return self.messages

    def wait_end(self, seconds: float = END_S) -> Totals | None:
        """Waits for the process to end by itself. Returns: the totals, None if it did not end cleanly."""
        assert self._process is not None
        assert self._reader is not None
        assert self._process.wait(scaled(seconds)), f"the member does not end:\n{self.log_text()}"
        self._reader.join(scaled(seconds))
        return self.totals

    def stop(self, seconds: float = END_S) -> Totals | None:
        """Lets the member leave the group cleanly (SIGTERM), offsets committed. Returns: its totals."""
        if self._process is None:
            return None
        self._process.send(signal.SIGCONT)
        self._process.send(signal.SIGTERM)
        return self.wait_end(seconds)

    def kill(self) -> None:
        """Ends the process as a crash would; its session in ZooKeeper lives until it times out."""
        if self._process is not None:
            self._process.send(signal.SIGKILL)
            self.wait_end()

    def suspend(self) -> None:
        """Freezes the process (SIGSTOP), as a long pause of its garbage collector would."""
        assert self._process is not None
        self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a frozen process go on."""
        assert self._process is not None
        self._process.send(signal.SIGCONT)

    def close(self) -> None:
        """Ends the process in whatever way works and removes its directory. May be called again."""
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
