"""A real Kafka broker in ZooKeeper mode on the loopback interface, of any version from 0.8.2 to 3.9.

One thread at a time may use it. A broker is ready when it is registered in ZooKeeper with its port and accepts
connections there. An old client can see no more than that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, Unpack

from zkconsumer.devcluster import server_process
from zkconsumer.devcluster.cluster_errors import ServerStartError
from zkconsumer.devcluster.jars import Progress, resolve
from zkconsumer.devcluster.java_home import java
from zkconsumer.devcluster.server_process import LOOPBACK, ProcessOptions, ServerProcess, as_deadline
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.cluster_admin import Admin

DEFAULT_KAFKA = "3.9.1"
_SESSION_TIMEOUT_MS = 6000
_GONE_TIMEOUT_S = 30.0


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def kafka_coordinates(version: str) -> list[str]:
    """Return the Maven coordinates of a broker and of a logging back end that fits its version.

    The Scala version is the newest for which every release of that range exists. Raises: ValueError for a version
    without a supported ZooKeeper mode.
    """
    try:
        release = _release(version)
    except ValueError:
        raise ValueError(f"not a Kafka version: {version!r}") from None
    if not (0, 8, 2) <= release < (4,):
        raise ValueError(f"Kafka {version} has no ZooKeeper mode that is supported here (0.8.2 to 3.9)")
    scala = "2.11" if release < (1,) else "2.12" if release < (2, 5) else "2.13"
    # these releases use a class that Java no longer contains since 11
    more = ["javax.xml.bind:jaxb-api:2.3.1"] if (0, 10) <= release < (1, 1) else []
    return [f"org.apache.kafka:kafka_{scala}:{version}", "org.slf4j:slf4j-reload4j:1.7.36", *more]


def kafka_jars(version: str = DEFAULT_KAFKA, progress: Progress | None = None) -> list[Path]:
    """Return the class path of a broker, which up to 1.1 contains the Scala consumer. Fetched once."""
    # Releases before 3.2 depend on log4j 1. reload4j is its maintained copy, and only one may be present.
    exclude = ("log4j:log4j", "org.slf4j:slf4j-log4j12") if _release(version) < (3, 2) else ()
    return resolve(*kafka_coordinates(version), exclude=exclude, progress=progress)


class EmbeddedKafka(ServerProcess):
    """One broker. See ``ServerProcess`` for its start, stop and faults."""

    kind = "kafka"
    heap_mb = 384

    def __init__(
        self,
        zookeeper_connect: str,
        broker_id: int = 0,
        version: str = DEFAULT_KAFKA,
        properties: Mapping[str, object] | None = None,
        *,
        directory: Path | str | None = None,
        **options: Unpack[ProcessOptions],
    ) -> None:
        """Arguments: ``zookeeper_connect`` with or without a chroot, which the broker makes; ``properties`` for
        ``server.properties``, which override ours; ``directory`` for its data (temporary unless given).
        """
        super().__init__(directory, **options)
        kafka_coordinates(version)  # a wrong version fails here, and not at the start
        self.zookeeper_connect = zookeeper_connect
        self.broker_id = broker_id
        self.version = version
        self.properties = dict(properties or {})
        self._admin = Admin(zookeeper_connect)

    @property
    def address(self) -> str:
        """``host:port``, as in ``bootstrap.servers``."""
        return f"{LOOPBACK}:{self.port}"

    def _settings(self, directory: Path, port: int) -> dict[str, object]:
        release = _release(self.version)
        if release < (0, 9):
            where: dict[str, object] = {"host.name": LOOPBACK, "port": port, "advertised.host.name": LOOPBACK}
        else:
            where = {"listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
        return {
            "broker.id": self.broker_id,
            **where,
            "zookeeper.connect": self.zookeeper_connect,
            "zookeeper.session.timeout.ms": _SESSION_TIMEOUT_MS,
            "zookeeper.connection.timeout.ms": 30000,
            "log.dirs": directory / "data",
            "num.partitions": 1,
            "auto.create.topics.enable": "false",
            "delete.topic.enable": "true",
            "default.replication.factor": 1,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 3,  # the default of fifty would slow the first group down
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,  # the default is larger than the whole heap
            "log.cleaner.io.buffer.size": 128 * 1024,
            "log.index.size.max.bytes": 1024 * 1024,  # reserved on disk for each partition, twice
            "controlled.shutdown.max.retries": 1,
            "controlled.shutdown.retry.backoff.ms": 200,
            **self.properties,
        }

    def _configure(self, directory: Path, port: int) -> Sequence[str]:
        server_process.write_properties(directory / "server.properties", self._settings(directory, port))
        levels = {"kafka.server.KafkaServer": "INFO", "kafka.utils.Log4jControllerRegistration$": "WARN"}
        return [
            str(java()),
            f"-Xmx{self._heap_mb}m",
            "-Xms64m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            *server_process.log4j_options(directory, levels),
            *("-cp", os.pathsep.join(map(str, kafka_jars(self.version, self._progress)))),
            "kafka.Kafka",
            str(directory / "server.properties"),
        ]

    def start(self, deadline: Deadline | float = server_process.START_TIMEOUT_S) -> Self:
        """Start the broker unless it runs, and return once it is registered and accepts connections.

        Raises: ServerStartError with the tail of the log, RegistryUnavailableError, JavaNotFoundError,
        JarResolutionError.
        """
        if self.running:
            return self
        kafka_jars(self.version, self._progress)  # outside the deadline: the first time this takes a minute
        deadline = as_deadline(deadline)
        self._admin = Admin(self.zookeeper_connect)
        try:
            self._admin.open(deadline)
            return super().start(deadline)
        finally:
            self._admin.close()

    def _before_start(self, deadline: Deadline) -> None:
        # A killed broker stays registered until its session ends. A new broker with the same id refuses to start
        # while the old node exists.
        if not self._admin.wait_until_unregistered(self.broker_id, Deadline(deadline.bounded(_GONE_TIMEOUT_S))):
            raise ServerStartError(f"broker id {self.broker_id} is registered by another broker")

    def _is_ready(self, deadline: Deadline) -> bool:
        return server_process.accepts(self.port, deadline.bounded(1.0) or 0.001) and (
            self._admin.registered_port(self.broker_id) == self.port
        )
