"""Members of the Java consumer and of librdkafka, for groups that the brokers coordinate."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.legacy_member import class_path
from tests.cluster.member_process import MemberProcess
from zkconsumer.devcluster import java

_PEERS = Path(__file__).parent / "peers"
_COMMON = {"auto.offset.reset": "earliest", "session.timeout.ms": "6000", "heartbeat.interval.ms": "300"}
_CLASSES = {"range": "RangeAssignor", "cooperative-sticky": "CooperativeStickyAssignor"}


class PeerMember(MemberProcess):
    """A member that also reports its assignments.

    ``owned`` is the last assignment. ``generations`` has the generation of each assignment, if the member reports
    generations. ``lost`` says whether the member ever lost partitions without a revocation.
    """

    def __init__(self, bootstrap_servers: str, group: str, topic: str, **properties: str) -> None:
        super().__init__("-", group, {topic: 1})
        base = {"bootstrap.servers": bootstrap_servers, "group.id": group, "member.topics": topic, **_COMMON}
        self.arguments = {**base, **{name.replace("_", "."): value for name, value in properties.items()}}
        self.owned: frozenset[str] = frozenset()
        self.generations: list[int] = []
        self.lost = False

    def heard(self, word: str, rest: list[str]) -> None:
        if word == "owns":
            generation, _, *owned = rest
            self.owned = frozenset(owned)
            if generation != "-":
                self.generations.append(int(generation))
        elif word == "lost":
            self.lost = True


class JavaMember(PeerMember):
    """A member of the Java consumer.

    Arguments: ``strategy`` by its name in our properties. ``java_options`` are those of its machine, by default for a
    short life.
    """

    who = "java"

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        topic: str,
        strategy: str,
        version: str = "3.9.1",
        java_options: Sequence[str] = ("-Xmx96m", "-XX:TieredStopAtLevel=1"),
        **properties: str,
    ) -> None:
        assignor = f"org.apache.kafka.clients.consumer.{_CLASSES[strategy]}"
        super().__init__(bootstrap_servers, group, topic, partition_assignment_strategy=assignor, **properties)
        self._version = version
        self._java_options = java_options

    def command(self) -> list[str]:
        classes = class_path(self._version, _PEERS / "JavaConsumer.java")
        options = ["-XX:+UseSerialGC", "-XX:-UsePerfData", *self._java_options]
        return [str(java()), *options, "-cp", os.pathsep.join(map(str, classes)), "JavaConsumer"]


class LibrdkafkaMember(PeerMember):
    """A member of librdkafka, by its Python binding."""

    who = "librdkafka"

    def __init__(self, bootstrap_servers: str, group: str, topic: str, strategy: str) -> None:
        super().__init__(bootstrap_servers, group, topic, partition_assignment_strategy=strategy)

    def command(self) -> list[str]:
        return [sys.executable, str(_PEERS / "librdkafka_consumer.py")]
