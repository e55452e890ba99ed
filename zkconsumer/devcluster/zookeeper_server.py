"""A real ZooKeeper server on the loopback interface, and an ensemble of such servers.

A server is of any version that Maven Central has. Tests that stop or kill a server use an ensemble.
Servers keep their ports and data, so a stopped or killed server can start again and joins the others. One thread at a
time may use a server or an ensemble. Neither starts a thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Self, Unpack

from zkconsumer.devcluster import server_process
from zkconsumer.devcluster.cluster_errors import ServerStartError
from zkconsumer.devcluster.jars import Progress, resolve
from zkconsumer.devcluster.java_home import java
from zkconsumer.devcluster.server_process import LOOPBACK, ProcessOptions, ServerProcess, as_deadline
from zkconsumer.runtime.deadline import Deadline

DEFAULT_ZOOKEEPER = "3.9.5"
DEFAULT_TICK_MS = 2000
_ANSWER_TIMEOUT_S = 2.0
# ZooKeeper 3.5 to 3.9 need these two to start, but do not declare them as dependencies.
_UNDECLARED = ("io.dropwizard.metrics:metrics-core:4.1.12.1", "org.xerial.snappy:snappy-java:1.1.10.5")
_LOG = "org.slf4j:slf4j-reload4j:2.0.13"  # of the same version as the slf4j-api of ZooKeeper 3.9.5


def four_letter_word(word: str, port: int, deadline: Deadline) -> str:
    """Return a ZooKeeper server's answer to a four-letter command, empty if none comes in time."""
    answer = b""
    timeout = deadline.bounded(_ANSWER_TIMEOUT_S) or 0.001
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout) as connection:
        connection.sendall(word.encode())
        while part := connection.recv(4096):
            answer += part
    return answer.decode(errors="replace")


def zookeeper_jars(version: str | None = None, progress: Progress | None = None) -> list[Path]:
    """Return the class path of a ZooKeeper server of a version such as "3.4.14" (default: "3.9.5"). Fetched once."""
    version = version or DEFAULT_ZOOKEEPER
    also = () if version.startswith("3.4.") else (*_UNDECLARED, _LOG) if version.startswith("3.9.") else _UNDECLARED
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
        20 ticks; ``version`` ("3.9.5" unless given); ``properties`` for ``zoo.cfg``, which override ours;
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
        server_process.write_properties(directory / "zoo.cfg", settings)
        return [
            str(java()),
            f"-Xmx{self._heap_mb}m",
            "-Xms16m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # starts sooner; this load never needs the second compiler
            "-XX:-UsePerfData",
            "-Dzookeeper.forceSync=no",  # a power cut may lose data; a crash of the process does not
            "-Dzookeeper.preAllocSize=1024",  # kB; the default reserves 64 MB at the first write
            *server_process.log4j_options(directory, {"org.apache.zookeeper.server.quorum.QuorumPeerConfig": "ERROR"}),
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


_TRIES = 3
_TRY_S = 20.0
_POLL_S = 0.05


class EnsembleServer(EmbeddedZooKeeper):
    """One server of an ensemble. It is ready once it answers, even before there is a quorum."""

    kind = "zookeeper"

    def __init__(
        self, number: int, *, port: int, tick_ms: int, properties: Mapping[str, object], options: Sequence[str]
    ) -> None:
        """Arguments: ``number`` is its id in the ensemble, from 1; ``properties`` name all servers."""
        super().__init__(port=port, tick_ms=tick_ms, properties=properties, java_options=options, heap_mb=96)
        self.number = number

    def _configure(self, directory: Path, port: int) -> Sequence[str]:
        data = directory / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{self.number}\n")
        return super()._configure(directory, port)

    def _is_ready(self, deadline: Deadline) -> bool:
        return bool(self.ask("srvr", deadline.bounded(1.0)))

    @property
    def mode(self) -> str:
        """``leader``, ``follower`` or ``read-only``; empty if it does not serve."""
        lines = self.ask("srvr").splitlines() if self.running else []
        return next((line.partition(": ")[2] for line in lines if line.startswith("Mode: ")), "")


class ZooKeeperEnsemble:
    """An ensemble, by default of three servers. It serves while more than half of them run.

    ::

        with ZooKeeperEnsemble() as ensemble:
            ensemble.leader.kill()
            ensemble.wait_for_leader()

    All servers end with the ``with`` block, and also when this process ends in any other way.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        tick_ms: int = DEFAULT_TICK_MS,
        properties: Mapping[str, object] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        """Arguments: ``size``, the number of servers; the others as in ``EmbeddedZooKeeper``. Raises: ValueError."""
        if size < 1:
            raise ValueError("an ensemble needs at least one server")
        self._size = size
        self._tick_ms = tick_ms
        self._properties = dict(properties or {})
        self._java_options = tuple(java_options)
        self.servers: tuple[EnsembleServer, ...] = ()

    @property
    def connect(self) -> str:
        """All servers, as in ``zookeeper.connect``. Raises: RuntimeError before ``start``."""
        if not self.servers:
            raise RuntimeError("the ensemble is not started")
        return ",".join(server.connect for server in self.servers)

    @property
    def leader(self) -> EnsembleServer:
        """The server that leads now. Raises: RuntimeError if none does."""
        found = self._leader()
        if found is None:
            raise RuntimeError("no server of the ensemble leads: there is no quorum, or an election is going on")
        return found

    def _leader(self) -> EnsembleServer | None:
        # the mode of a single server is standalone
        return next((server for server in self.servers if server.mode in ("leader", "standalone")), None)

    @property
    def followers(self) -> tuple[EnsembleServer, ...]:
        """The servers that follow the leader now."""
        return tuple(server for server in self.servers if server.mode == "follower")

    def start(self, deadline: Deadline | float = server_process.START_TIMEOUT_S) -> Self:
        """Start the servers that do not run, and return once all of them serve.

        Raises: ServerStartError with the tail of a log, JavaNotFoundError, JarResolutionError.
        """
        deadline = as_deadline(deadline)
        for attempt in range(_TRIES):
            fresh = not self.servers
            if fresh:
                self.servers = self._make()
            try:
                self._start(deadline if not fresh else Deadline(deadline.bounded(_TRY_S)))
            except BaseException as failure:
                if not fresh or not isinstance(failure, ServerStartError) or attempt == _TRIES - 1:
                    if fresh:
                        self.close()
                    raise
                self.close()  # another program may have taken one of the ports
            else:
                break
        return self

    def _start(self, deadline: Deadline) -> None:
        for server in self.servers:
            server.start(deadline)
        while not all(server.mode for server in self.servers):
            if deadline.expired:
                tails = "\n".join(server_process.tail(server.log) for server in self.servers)
                raise ServerStartError(f"the ensemble was not ready in time:\n{tails}")
            sleep(deadline.bounded(_POLL_S))

    def _make(self) -> tuple[EnsembleServer, ...]:
        ports = _distinct_ports()
        numbers = range(1, self._size + 1)
        lines = {f"server.{number}": f"{LOOPBACK}:{next(ports)}:{next(ports)}" for number in numbers}
        properties = {**(lines if self._size > 1 else {}), **self._properties}
        return tuple(
            EnsembleServer(
                number, port=next(ports), tick_ms=self._tick_ms, properties=properties, options=self._java_options
            )
            for number in numbers
        )

    def wait_for_leader(self, deadline: Deadline | float = server_process.START_TIMEOUT_S) -> EnsembleServer:
        """Wait for the end of an election and return the leader. Raises: ServerStartError."""
        deadline = as_deadline(deadline)
        while (found := self._leader()) is None:
            if deadline.expired:
                raise ServerStartError("the ensemble elected no leader in time")
            sleep(deadline.bounded(_POLL_S))
        return found

    def close(self, deadline: Deadline | float = server_process.STOP_TIMEOUT_S) -> None:
        """Stop every server and remove its data. May be called again; ``start`` makes a new ensemble."""
        deadline = as_deadline(deadline)
        with contextlib.ExitStack() as last:  # a failed step does not prevent the others
            for server in self.servers:
                last.callback(server.close, deadline)
            self.servers = ()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _distinct_ports() -> Iterator[int]:
    given: set[int] = set()
    while True:
        port = server_process.free_port()
        if port not in given:
            given.add(port)
            yield port
