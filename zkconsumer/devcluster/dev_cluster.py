"""The embedded cluster: ZooKeeper and Kafka together, for tests, the demo and ``zkconsumer dev``.

One thread at a time may use ``DevCluster``. ``create_topic`` and ``delete_topic`` may be called by any thread, because
each call has its own session. It starts no thread.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypedDict, Unpack

from zkconsumer.devcluster.jars import Progress
from zkconsumer.devcluster.kafka_server import DEFAULT_KAFKA, EmbeddedKafka, kafka_jars
from zkconsumer.devcluster.server_process import START_TIMEOUT_S, STOP_TIMEOUT_S, as_deadline, check_options
from zkconsumer.devcluster.zookeeper_server import DEFAULT_TICK_MS, EmbeddedZooKeeper, zookeeper_jars
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.cluster_admin import Admin


class StartOptions(TypedDict, total=False):
    """The arguments of a cluster's start."""

    zookeeper_port: int | None
    broker_port: int | None
    """Default: free ones. Further brokers take the ports after ``broker_port``."""
    progress: Progress | None
    """Called with short texts during downloads."""


class DevCluster:
    """A real ZooKeeper and real brokers in ZooKeeper mode, on free ports of 127.0.0.1.

    ::

        with DevCluster() as cluster:
            cluster.create_topic("flights", 8)
            print(cluster.zookeeper_connect, cluster.bootstrap_servers)

    All servers end with the ``with`` block, and also when this process crashes or is killed.
    """

    def __init__(
        self,
        *,
        directory: Path | str | None = None,
        kafka_version: str = DEFAULT_KAFKA,
        zookeeper_version: str | None = None,
        brokers: int = 1,
        broker_properties: Mapping[str, object] | None = None,
        zookeeper_properties: Mapping[str, object] | None = None,
        tick_ms: int = DEFAULT_TICK_MS,
        chroot: str = "",
        **start: Unpack[StartOptions],
    ) -> None:
        """Make a cluster that is not started. Raises: ValueError.

        Arguments:
        - ``directory``: for data and logs, kept at the end (default: a temporary one, removed at the end).
        - ``kafka_version``: from 0.8.2 to 3.9. ``zookeeper_version``: default "3.9.5".
        - ``brokers``: the number of brokers. Their ids begin with 0.
        - ``broker_properties``, ``zookeeper_properties``: override ours.
        - ``tick_ms``: ZooKeeper's tick. A session timeout is 2 to 20 ticks.
        - ``chroot``: such as "/kafka"; the broker makes it.
        - ``start``: those of :class:`StartOptions`, such as ``zookeeper_port=2181``.
        """
        check_options(self, start, StartOptions.__optional_keys__)
        if brokers < 1:
            raise ValueError("a cluster needs at least one broker")
        if chroot and (not chroot.startswith("/") or chroot.endswith("/")):
            raise ValueError(f"not a chroot: {chroot!r}")
        self._given_directory = Path(directory).absolute() if directory is not None else None
        self._directory: Path | None = None
        self._kafka_version = kafka_version
        self._zookeeper_version = zookeeper_version
        self._broker_count = brokers
        self._broker_properties = dict(broker_properties or {})
        self._zookeeper_properties = dict(zookeeper_properties or {})
        self._tick_ms = tick_ms
        self._chroot = chroot
        self._zookeeper_port, self._broker_port = start.get("zookeeper_port"), start.get("broker_port")
        self._progress = start.get("progress")
        self._zookeeper: EmbeddedZooKeeper | None = None
        self._brokers: tuple[EmbeddedKafka, ...] = ()

    @property
    def zookeeper(self) -> EmbeddedZooKeeper:
        """The ZooKeeper server. Raises: RuntimeError before ``start``."""
        if self._zookeeper is None:
            raise RuntimeError("the cluster is not started")
        return self._zookeeper

    @property
    def brokers(self) -> tuple[EmbeddedKafka, ...]:
        """The brokers, by id from 0."""
        return self._brokers

    @property
    def kafka(self) -> EmbeddedKafka:
        """The first broker. Raises: RuntimeError before ``start``."""
        if not self._brokers:
            raise RuntimeError("the cluster is not started")
        return self._brokers[0]

    @property
    def directory(self) -> Path:
        """The directory of all data and logs. Raises: RuntimeError before ``start``."""
        if self._directory is None:
            raise RuntimeError("the cluster is not started")
        return self._directory

    @property
    def zookeeper_connect(self) -> str:
        """The value for ``zookeeper.connect``, with the chroot. Raises: RuntimeError before ``start``."""
        return self.zookeeper.connect + self._chroot

    @property
    def bootstrap_servers(self) -> str:
        """The value for ``bootstrap.servers``."""
        return ",".join(broker.address for broker in self._brokers)

    def start(self, deadline: Deadline | float = START_TIMEOUT_S) -> Self:
        """Start the servers that do not run, and return once all of them serve.

        ``deadline`` (seconds) does not include the first download of the jars.
        Raises: ServerStartError with the tail of a log, JavaNotFoundError, JarResolutionError.
        """
        zookeeper_jars(self._zookeeper_version, self._progress)
        kafka_jars(self._kafka_version, self._progress)
        deadline = as_deadline(deadline)
        try:
            if self._zookeeper is None:
                self._make_servers()
            self.zookeeper.start(deadline)
            for broker in self._brokers or self._make_brokers():
                broker.start(deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def _make_servers(self) -> None:
        if self._given_directory is not None:
            self._given_directory.mkdir(parents=True, exist_ok=True)
        self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix="zkconsumer-cluster-"))
        self._zookeeper = EmbeddedZooKeeper(
            self._directory / "zookeeper",
            tick_ms=self._tick_ms,
            version=self._zookeeper_version,
            port=self._zookeeper_port,
            properties=self._zookeeper_properties,
            keep=True,
            progress=self._progress,
        )
        self._zookeeper.removed_after_crash = self._doomed

    @property
    def _doomed(self) -> Path | None:
        """The directory that must not outlive this process, or None."""
        return self._directory if self._given_directory is None else None

    def _make_brokers(self) -> tuple[EmbeddedKafka, ...]:
        self._brokers = tuple(
            EmbeddedKafka(
                self.zookeeper_connect,
                number,
                self._kafka_version,
                self._broker_properties,
                directory=self.directory / f"kafka-{number}",
                port=None if self._broker_port is None else self._broker_port + number,
                keep=True,
                progress=self._progress,
            )
            for number in range(self._broker_count)
        )
        for broker in self._brokers:
            broker.removed_after_crash = self._doomed
        return self._brokers

    def stop(self, deadline: Deadline | float = STOP_TIMEOUT_S) -> None:
        """Stop every server and remove a temporary directory. May be called again; ``start`` makes a new cluster."""
        deadline = as_deadline(deadline)
        with contextlib.ExitStack() as last:  # a failed step does not prevent the others
            if self._directory is not None and self._given_directory is None:
                last.callback(shutil.rmtree, self._directory, ignore_errors=True)
            if self._zookeeper is not None:
                last.callback(self._zookeeper.close, deadline)
            for broker in self._brokers:
                last.callback(broker.close, deadline)
            self._zookeeper, self._brokers, self._directory = None, (), None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        replication: int = 1,
        assignment: Mapping[int, list[int]] | None = None,
    ) -> None:
        """Create a topic and wait for its leaders. See ``zkconsumer.zookeeper.cluster_admin.Admin.create_topic``."""
        with Admin(self.zookeeper_connect) as admin:
            admin.create_topic(name, partitions, config=config, replication=replication, assignment=assignment)

    def add_partitions(self, name: str, total: int) -> None:
        """Enlarge a topic to ``total`` partitions and wait for their leaders."""
        with Admin(self.zookeeper_connect) as admin:
            admin.add_partitions(name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        with Admin(self.zookeeper_connect) as admin:
            admin.delete_topic(name)
