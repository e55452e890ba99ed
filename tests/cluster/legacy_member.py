"""A member of the original Scala connector, as a peer in a group.

``LegacyMember`` starts ``legacy/GroupMember.java`` with the jars of one Kafka release.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.cluster.member_process import MemberProcess
from zkconsumer.devcluster import cache_directory, java, kafka_jars, resolve
from zkconsumer.devcluster.download_cache import locked
from zkconsumer.runtime.deadline import Deadline

VERSIONS = ("1.1.1", "0.8.2.2")
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


def class_path(version: str, source: Path = _SOURCE) -> list[Path]:
    """Return the class path for a Kafka release: its jars and our class, which is compiled once into the cache."""
    jars = kafka_jars(version)
    key = hashlib.sha256(source.read_bytes() + version.encode()).hexdigest()[:10]
    target = cache_directory() / "legacy" / f"{version}-{key}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / ".lock", Deadline(_COMPILE_TIMEOUT_S)):
            if not target.is_dir():
                _compile(source, jars, target)
    return [*jars, target]


def _compile(source: Path, jars: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".compiling-") as name:
        classes = Path(name) / "classes"
        command = [*_compiler(), "-nowarn", "-proc:none", "-cp", os.pathsep.join(map(str, jars)), "-d", str(classes)]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        (classes / "log4j.properties").write_text(_LOGGING)
        classes.rename(target)


def _compiler() -> list[str]:
    """Return the command of the JDK's compiler. A Java runtime has none; then it is Eclipse's, from a jar."""
    modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, timeout=30, check=True).stdout
    if "jdk.compiler@" in modules:
        return [str(java()), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    (ecj,) = resolve(_COMPILER)
    return [str(java()), "-jar", str(ecj), "-source", "17", "-target", "17"]


class LegacyMember(MemberProcess):
    """One member of a group, in the original connector."""

    _BEGIN = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) .* begin rebalancing consumer ")
    _START = re.compile(r"[ ,]([a-zA-Z0-9._-]+):(\d+): fetched offset = (-?\d+)")

    who = "legacy"

    def __init__(
        self,
        version: str,
        *arguments: Any,
        mode: str = "lines",
        stop_after: int | None = None,
        heap_mb: int = 128,
        **options: Any,
    ) -> None:
        """Arguments: those of any member; ``mode`` "lines" reports each message, "count" only totals at a clean end;
        after ``stop_after`` messages the member leaves.
        """
        own: dict[str, object] = {"member.mode": mode}
        if stop_after is not None:
            own["member.stop.after"] = stop_after
        super().__init__(*arguments, own=own, **options)
        self.version = version
        self._heap_mb = heap_mb

    def attempts(self) -> list[tuple[float, dict[tuple[str, int], int]]]:
        """Return its successful rebalance attempts from its log.

        Each has the time of its begin in seconds, and the start offset of each partition that the member then owns.
        """
        found, began = [], 0.0
        for line in self.log_text().splitlines():
            if match := self._BEGIN.match(line):
                began = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007 (local time)
            elif " selected partitions :" in line:
                starts = {(topic, int(number)): int(offset) for topic, number, offset in self._START.findall(line)}
                found.append((began, starts))
        return found

    def command(self) -> list[str]:
        return [
            str(java()),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            *("-cp", os.pathsep.join(map(str, class_path(self.version)))),
            "GroupMember",
        ]
