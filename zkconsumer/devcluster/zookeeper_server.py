"""A real ZooKeeper server on the loopback interface.

The server is the one inside PySpark's jars, or any version from Maven. One thread at a time may use it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from zkconsumer.devcluster.jars import Progress, jars_of_pyspark, resolve
from zkconsumer.devcluster.java_home import java
from zkconsumer.devcluster.ports import LOOPBACK
from zkconsumer.devcluster.server_process import ProcessOptions, ServerProcess, log4j_options, write_properties
from zkconsumer.runtime.deadline import Deadline

DEFAULT_TICK_MS = 2000
_ANSWER_TIMEOUT_S = 2.0
_NEEDED_FROM_PYSPARK = ("zookeeper-", "slf4j-api-", "log4j-", "netty-", "metrics-core-", "snappy-java-", "commons-io-")
# ZooKeeper 3.5 to 3.9 need these two to start, but do not declare them as dependencies.
_UNDECLARED = ("io.dropwizard.metrics:metrics-core:4.1.12.1", "org.xerial.snappy:snappy-java:1.1.10.5")


def four_letter_word(word: str, port: int, deadline: Deadline) -> str:
    """Return a ZooKeeper server's answer to a four-letter command, empty if none comes in time."""
    answer = b""
    timeout = deadline.bounded(_ANSWER_TIMEOUT_S) or 0.001
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout) as connection:
        connection.sendall(word.encode())
        while part := connection.recv(4096):
            answer += part
    return answer.decode(errors="replace")


def zookeeper_jars(version: str | None, progress: Progress | None = None) -> list[Path]:
    """Return the class path of a ZooKeeper server: PySpark's own (None), or a version such as "3.4.14"."""
    if version is None:
        return jars_of_pyspark(*_NEEDED_FROM_PYSPARK)
    also = () if version.startswith("3.4.") else _UNDECLARED
    return resolve(f"org.apache.zookeeper:zookeeper:{version}", *also, progress=progress)


class EmbeddedZooKeeper(ServerProcess):
    """A single ZooKeeper server. See ``ServerProcess`` for its start, stop and faults."""

    kind = "zookeeper"

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        tick_ms: int = DEFAULT_TICK_MS,
        version: str | None = None,
        properties: Mapping[str, object] | None = None,
        java_options: Sequence[str] = (),
        **options: Unpack[ProcessOptions],
    ) -> None:
        """Arguments: ``directory`` for its data (temporary unless given); ``tick_ms``, where a session timeout is 2 to
        20 ticks; ``version`` (PySpark's own unless given); ``properties`` for ``zoo.cfg``, which override ours;
        ``java_options`` such as ``-Djava.security.auth.login.config=...``.
        """
        super().__init__(directory, **options)
        self.tick_ms = tick_ms
        self.version = version
        self.properties = dict(properties or {})
        self._java_options = tuple(java_options)

    @property
    def connect(self) -> str:
        """``host:port``, as in ``zookeeper.connect``."""
        return f"{LOOPBACK}:{self.port}"

    def ask(self, word: str, timeout: float = _ANSWER_TIMEOUT_S) -> str:
        """Return the answer to a four-letter command such as ``srvr`` or ``dump``, empty if none comes in time."""
        return four_letter_word(word, self.port, Deadline(timeout))

    def _configure(self, directory: Path, port: int) -> Sequence[str]:
        settings: dict[str, object] = {
            "dataDir": directory / "data",
            "clientPort": port,
            "clientPortAddress": LOOPBACK,
            "tickTime": self.tick_ms,
            "initLimit": 10,
            "syncLimit": 5,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **self.properties,
        }
        write_properties(directory / "zoo.cfg", settings)
        return [
            str(java()),
            f"-Xmx{self._heap_mb}m",
            "-Xms16m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # starts sooner; this load never needs the second compiler
            "-XX:-UsePerfData",
            "-Dzookeeper.forceSync=no",  # a power cut may lose data; a crash of the process does not
            "-Dzookeeper.preAllocSize=1024",  # kB; the default reserves 64 MB at the first write
            *log4j_options(directory, {"org.apache.zookeeper.server.quorum.QuorumPeerConfig": "ERROR"}),
            *self._java_options,
            *("-cp", os.pathsep.join(map(str, zookeeper_jars(self.version, self._progress)))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(directory / "zoo.cfg"),
        ]

    def _is_ready(self, deadline: Deadline) -> bool:
        port = self.port
        # The data directory distinguishes our server from another server that took the port first.
        return "Mode: " in four_letter_word("srvr", port, deadline) and (
            f"dataDir={self.directory / 'data'}" in four_letter_word("conf", port, deadline)
        )
