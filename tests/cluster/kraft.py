"""A real Kafka broker without ZooKeeper (KRaft, 4.0), which is its own controller, on the loopback interface."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.timing import scaled
from zkconsumer.devcluster import ServerProcess, java, resolve, server_process
from zkconsumer.devcluster.server_process import LOOPBACK, START_TIMEOUT_S, free_port
from zkconsumer.runtime.deadline import Deadline

VERSION = "4.0.1"
_CLUSTER_ID = "emtjb25zdW1lci1rcmFmdA"


def jars() -> list[Path]:
    """Return the class path of a KRaft broker. Fetched once."""
    return resolve(f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-reload4j:1.7.36")


class KraftBroker(ServerProcess):
    """One broker that is its own controller."""

    kind = "kafka"

    @property
    def address(self) -> str:
        """``host:port``, as in ``bootstrap.servers``."""
        return f"{LOOPBACK}:{self.port}"

    def start(self, deadline: Deadline | float = START_TIMEOUT_S) -> Self:
        """Start the broker unless it runs. The deadline does not include the first download of its jars."""
        jars()
        return super().start(deadline)

    def _configure(self, directory: Path, port: int) -> Sequence[str]:
        controller = free_port()
        settings = directory / "server.properties"
        server_process.write_properties(
            settings,
            {
                "process.roles": "broker,controller",
                "node.id": 0,
                "controller.quorum.voters": f"0@{LOOPBACK}:{controller}",
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
                "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
                "log.dirs": directory / "data",
                "auto.create.topics.enable": "false",
                "offsets.topic.replication.factor": 1,
                "offsets.topic.num.partitions": 3,
                "group.initial.rebalance.delay.ms": 0,
                "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
                "log.cleaner.io.buffer.size": 128 * 1024,
                "log.index.size.max.bytes": 1024 * 1024,
            },
        )
        options = ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xms64m", *server_process.log4j_options(directory, {})]
        run = [str(java()), "-Xmx384m", *options, "-cp", os.pathsep.join(map(str, jars()))]
        format_it = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", _CLUSTER_ID, "-c", str(settings)]
        done = subprocess.run([*run, *format_it], capture_output=True, text=True, timeout=scaled(60), check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [*run, "kafka.Kafka", str(settings)]

    def _is_ready(self, deadline: Deadline) -> bool:
        return server_process.accepts(self.port, deadline.bounded(1.0) or 0.001)
