"""Creates, enlarges and deletes topics of a Kafka cluster through ZooKeeper, and waits for its brokers.

It writes the nodes of ``kafka.admin.AdminUtils``: a topic is its replica assignment under ``/brokers/topics`` and its
configuration under ``/config/topics``; the controller does the rest. So it creates topics on brokers of every age in
ZooKeeper mode (0.8 to 3.9) without a client of that age. The consumer itself never uses this. An ``Admin`` has a
session of its own. One thread at a time may use it. An ``Admin`` waits by polling, since nothing is in a hurry.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from time import sleep
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from zkconsumer.errors import MalformedNodeError, RegistryError, RegistryUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.broker_directory import broker_ids
from zkconsumer.zookeeper.node_requests import Requests
from zkconsumer.zookeeper.zookeeper_security import ZooKeeperSecurity

_POLL_S = 0.02
_SESSION_S = 10.0
_ANSWER_S = 15.0
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")

DEFAULT_TIMEOUT_S = 30.0


class Admin(Requests):
    """A session for administration. ``open`` it, or use it as a context manager."""

    def __init__(self, connect: str) -> None:
        """Argument: ``connect`` as in ``zookeeper.connect``, with a chroot or without. No I/O happens here."""
        super().__init__(connect, ZooKeeperSecurity())
        self._client: KazooClient = KazooClient(hosts=connect, timeout=_SESSION_S, read_only=False)

    def open(self, deadline: Deadline) -> Self:
        """Connect. Raises RegistryUnavailableError if ZooKeeper does not answer in time."""
        try:
            # Not start(): it warns about a missing chroot, which the first broker is still to create here.
            if not self._client.start_async().wait(deadline.bounded(DEFAULT_TIMEOUT_S)):
                raise RegistryUnavailableError(f"ZooKeeper at {self.hosts} did not answer in time")
        except BaseException:  # also an interrupt, on which a with block does not end what it has not entered
            self.close()
            raise
        return self

    def close(self) -> None:
        """End the session. May be called again."""
        with contextlib.suppress(KazooException):
            self._client.stop()
            self._client.close()

    def __enter__(self) -> Self:
        return self.open(Deadline(DEFAULT_TIMEOUT_S))

    def __exit__(self, *_: object) -> None:
        self.close()

    # brokers

    def brokers(self) -> tuple[int, ...]:
        """Return the ids of the registered brokers, in order."""
        return tuple(broker_ids(self._names(paths.BROKER_IDS)))

    def registered_port(self, broker_id: int) -> int | None:
        """Return the port that a broker is registered with; None if it is not registered or has no plain endpoint.

        Brokers since 0.9 may register -1 as ``port`` and the truth under ``endpoints``.
        """
        path = paths.broker(broker_id)
        data = self._data(path)
        endpoints = () if data is None else node_codecs.decode_broker(data, path).endpoints
        return next((endpoint.port for endpoint in endpoints if endpoint.protocol == "PLAINTEXT"), None)

    def wait_until_unregistered(self, broker_id: int, deadline: Deadline) -> bool:
        """Wait until no broker is registered under the id. Returns False at the deadline."""
        return _until(lambda: self._data(paths.broker(broker_id)) is None, deadline)

    # topics

    def topics(self) -> tuple[str, ...]:
        """Return the names of the existing topics, sorted."""
        return tuple(sorted(self._names(paths.TOPICS)))

    def assignment(self, topic: str) -> dict[int, list[int]]:
        """Return partition -> broker ids of a topic; empty if there is no such topic."""
        node = self._json(paths.topic(topic)) or {}
        return {int(partition): list(replicas) for partition, replicas in dict(node.get("partitions", {})).items()}

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        *,
        replication: int = 1,
        config: Mapping[str, str] | None = None,
        assignment: Mapping[int, Iterable[int]] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Create a topic and wait until each of its partitions has a leader.

        Arguments: ``config`` of the topic, such as ``{"retention.ms": "1000"}``; ``assignment`` partition -> broker ids
        in place of the even spread over the registered brokers.
        Raises: ValueError for an impossible name or number, RegistryError when the topic exists or no leader appears.
        """
        if not _TOPIC.match(topic) or topic in (".", ".."):
            raise ValueError(f"not a topic name: {topic!r}")
        replicas = (
            {number: list(ids) for number, ids in assignment.items()}
            if assignment is not None
            else _spread(range(partitions), self.brokers(), replication)
        )
        if not replicas:
            raise ValueError("a topic needs at least one partition")
        # The order of AdminUtils: the controller reads the configuration when the topic's node appears.
        self._put(f"/config/topics/{topic}", {"version": 1, "config": dict(config or {})}, replace=True)
        self._put(paths.topic(topic), {"version": 1, "partitions": _named(replicas)})
        self._wait_for_leaders(topic, replicas, deadline)

    def add_partitions(self, topic: str, total: int, *, deadline: Deadline | None = None) -> None:
        """Enlarge a topic to ``total`` partitions and wait for their leaders. Unknown fields of its node stay.

        Raises: ValueError when the topic would not grow, RegistryError when it does not exist or no leader appears.
        """
        node = self._json(paths.topic(topic))
        if node is None:
            raise RegistryError(f"no topic {topic}")
        present = self.assignment(topic)
        if total <= len(present):
            raise ValueError(f"{topic} has {len(present)} partitions already")
        replication = max((len(ids) for ids in present.values()), default=1)
        added = _spread(range(len(present), total), self.brokers(), replication)
        node["partitions"] = {**node["partitions"], **_named(added)}
        if not self.write(paths.topic(topic), _encoded(node), Deadline(_ANSWER_S)):
            raise RegistryError(f"no topic {topic}")
        self._wait_for_leaders(topic, added, deadline)

    def delete_topic(self, topic: str, *, deadline: Deadline | None = None) -> None:
        """Ask the controller to delete a topic and wait until it is gone. The brokers must allow it.

        Raises: RegistryError when there is no such topic or it is still there at the deadline.
        """
        deadline = deadline or Deadline(DEFAULT_TIMEOUT_S)
        if self._data(paths.topic(topic)) is None:
            raise RegistryError(f"no topic {topic}")
        request = f"/admin/delete_topics/{topic}"
        self.ensure([request], Deadline(_ANSWER_S))
        # The controller removes its own request last; a topic created before that would be deleted again.
        gone = _until(lambda: self._data(paths.topic(topic)) is None and self._data(request) is None, deadline)
        if not gone:
            raise RegistryError(f"the controller did not delete topic {topic} in time")

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the broker id of a partition's leader; None while there is none."""
        path = paths.partition_state(TopicPartition(topic, partition))
        data = self._data(path)
        leader = -1 if data is None else node_codecs.decode_partition_state(data, path).leader
        return None if leader < 0 else leader

    def _wait_for_leaders(self, topic: str, partitions: Iterable[int], deadline: Deadline | None) -> None:
        deadline = deadline or Deadline(DEFAULT_TIMEOUT_S)
        for partition in partitions:
            if not _until(lambda wanted=partition: self.leader(topic, wanted) is not None, deadline):  # type: ignore[misc]
                raise RegistryError(f"partition {partition} of topic {topic} got no leader in time")

    # nodes

    def _connected_client(self) -> KazooClient:
        return self._client

    def _data(self, path: str) -> bytes | None:
        node = self.read([path], Deadline(_ANSWER_S))[0]
        return None if node is None else node.data

    def _names(self, path: str) -> tuple[str, ...]:
        return self.children(path, Deadline(_ANSWER_S)) or ()

    def _json(self, path: str) -> dict[str, Any] | None:
        data = self._data(path)
        if data is None:
            return None
        try:
            node = json.loads(data)
        except ValueError as error:
            raise MalformedNodeError(path, str(error)) from error
        if not isinstance(node, dict):
            raise MalformedNodeError(path, "not a JSON object")
        return node

    def _put(self, path: str, node: Mapping[str, object], *, replace: bool = False) -> None:
        data, deadline = _encoded(node), Deadline(_ANSWER_S)
        self.ensure([path.rpartition("/")[0]], deadline)
        if self.create(path, data, deadline):
            return
        if not replace:
            raise RegistryError(f"{path} exists")
        self.write(path, data, deadline)


def _encoded(node: Mapping[str, object]) -> bytes:
    return json.dumps(node, separators=(",", ":")).encode()


def _named(replicas: Mapping[int, list[int]]) -> dict[str, list[int]]:
    return {str(partition): ids for partition, ids in replicas.items()}


def _spread(partitions: Iterable[int], brokers: tuple[int, ...], replication: int) -> dict[int, list[int]]:
    """Spread replicas: those of partition p begin at the p-th broker, counted around. Raises ValueError."""
    if not 1 <= replication <= len(brokers):
        raise ValueError(f"replication {replication} with {len(brokers)} brokers registered")
    return {
        partition: [brokers[(partition + shift) % len(brokers)] for shift in range(replication)]
        for partition in partitions
    }


def _until(condition: Callable[[], bool], deadline: Deadline) -> bool:
    while not condition():
        if deadline.expired:
            return False
        sleep(deadline.bounded(_POLL_S))
    return True
