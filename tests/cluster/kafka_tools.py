"""Kafka's own tools, for comparisons with ours: those of any release, and ``kafka-consumer-groups.sh`` of 3.9.1."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.cluster.legacy_member import class_path
from tests.timing import scaled
from zkconsumer.devcluster import java, kafka_jars, resolve

VERSION = "3.9.1"
COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_RUNNER = Path(__file__).parent / "legacy" / "ToolRunner.java"
_ALREADY_THERE = (
    *(f"org.apache.kafka:kafka-{name}" for name in ("clients", "metadata", "storage", "server", "server-common")),
    *(f"org.apache.kafka:kafka-{name}" for name in ("tools-api", "transaction-coordinator", "group-coordinator")),
    *("org.apache.kafka:connect-runtime", "org.apache.kafka:connect-json", "org.apache.kafka:kafka-log4j-appender"),
    *("com.fasterxml.jackson.core:jackson-databind", "com.fasterxml.jackson.dataformat:jackson-dataformat-csv"),
    *("com.fasterxml.jackson.datatype:jackson-datatype-jdk8", "org.slf4j:slf4j-api", "org.slf4j:slf4j-reload4j"),
    *("net.sourceforge.argparse4j:argparse4j", "net.sf.jopt-simple:jopt-simple", "org.bitbucket.b_c:jose4j"),
    "com.fasterxml.jackson.jaxrs:jackson-jaxrs-json-provider",
)
"""What the tools need comes with the broker's jars, and Kafka Connect is not needed."""


def tool(version: str, name: str, *arguments: str) -> list[str]:
    """Return the output lines of a tool of that release."""
    done = subprocess.run(tool_command(version, name, *arguments), capture_output=True, text=True, timeout=scaled(60))
    assert "Exception in thread" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def tool_command(version: str, name: str, *arguments: str) -> list[str]:
    """Return the command that runs a class of that release."""
    return [str(java()), "-Xmx128m", "-cp", os.pathsep.join(map(str, kafka_jars(version))), name, *arguments]


def zookeeper_shell(*words: str) -> None:
    """Run Kafka's ``zookeeper-shell.sh`` by its class: the server, and a command."""
    command = [str(java()), "-Xmx64m", "-cp", os.pathsep.join(map(str, kafka_jars()))]
    command += ["org.apache.zookeeper.ZooKeeperMain", "-server", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr


def table(lines: Sequence[str], first: str) -> list[dict[str, str]]:
    """Return the rows of a printed table by the names in its head, which begins with ``first``."""
    start = next(n for n, line in enumerate(lines) if line.startswith(first))
    names = lines[start].split()
    return [dict(zip(names, line.split(), strict=True)) for line in lines[start + 1 :] if line.strip()]


def tools_jars() -> list[Path]:
    """Return the class path of the tools of :data:`VERSION`. Fetched once."""
    tools = resolve(f"org.apache.kafka:kafka-tools:{VERSION}", exclude=_ALREADY_THERE)
    return [*class_path(VERSION, _RUNNER), *(jar for jar in tools if jar not in kafka_jars(VERSION))]


@dataclass(frozen=True, slots=True)
class Printed:
    """The output and the exit code of a tool."""

    code: int
    out: str
    err: str


class ConsumerGroupsTool:
    """The tool in a JVM that runs it as often as wanted. A context manager; one thread at a time."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap = bootstrap_servers
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [
            *(str(java()), "-Xmx192m"),
            *("-cp", os.pathsep.join(map(str, tools_jars())), "ToolRunner", COMMAND),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def run(self, *arguments: str) -> Printed:
        """Run the tool once on the brokers."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(scaled(60), process.kill)
        watchdog.start()
        try:
            process.stdin.write(
                "\x1f".join(["--bootstrap-server", self._bootstrap, "--timeout", "60000", *arguments]) + "\n"
            )
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, "the tool ended"
        code, out, err = line.rstrip("\n").split(" ")
        return Printed(int(code), _text(out), _text(err))


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def lines_of(text: str) -> Sequence[str]:
    """Return the lines without the blanks at their ends."""
    return [line.rstrip() for line in text.splitlines()]
