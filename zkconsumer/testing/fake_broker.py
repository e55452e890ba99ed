"""A broker that serves Kafka's protocol on a loopback socket, and the nodes that register brokers and topics.

Everything is in memory. Each connection has a thread, which handles requests in turn, as in a real broker. The thread
that changes a fake cluster writes the nodes into the cluster's fake ZooKeeper. The nodes are those of Kafka 1.1 and 3.9
in ZooKeeper mode.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Sequence
from threading import Event
from typing import TYPE_CHECKING

from zkconsumer.testing.fake_coordinator import GroupCoordinator
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.testing.faults import AnswerFate, Forged, Recorded
from zkconsumer.testing.group_request_handlers import GROUP_HANDLERS
from zkconsumer.testing.loopback_server import LoopbackServer, ServedConnection, framed
from zkconsumer.testing.partition_log import PartitionLog
from zkconsumer.testing.pending_requests import BrokerStopped, PendingRequest
from zkconsumer.testing.request_schemas import APIS, supported
from zkconsumer.testing.topic_request_handlers import LOG_HANDLERS
from zkconsumer.testing.wire_types import INT16, INT32, STRING, Api, Body, MalformedRequestError, WireReader
from zkconsumer.zookeeper import paths

if TYPE_CHECKING:
    from zkconsumer.testing.fake_cluster import FakeCluster


class BrokerRegistration:
    """Writes the nodes of one cluster's brokers and topics into a FakeZooKeeper."""

    def __init__(self, zookeeper: FakeZooKeeper, modern: bool) -> None:
        self._zookeeper = zookeeper
        self._version = 5 if modern else 4

    def prepare(self) -> None:
        """Make the directories that the first broker of a cluster makes."""
        for path in ("/consumers", "/brokers/ids", "/brokers/topics", "/config/topics", "/admin/delete_topics"):
            if self._zookeeper.node(path) is None:
                self._zookeeper.put(path)

    def broker_started(self, broker_id: int, host: str, port: int) -> None:
        """Write a broker's node."""
        node: dict[str, object] = {
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "endpoints": [f"PLAINTEXT://{host}:{port}"],
            "jmx_port": -1,
            "host": host,
            "timestamp": "1700000000000",
            "port": port,
            "version": self._version,
        }
        if self._version >= 5:
            node["features"] = {}
        self._put(paths.broker(broker_id), node)

    def broker_stopped(self, broker_id: int) -> None:
        """Delete a broker's node."""
        self._zookeeper.remove(paths.broker(broker_id))

    def topic(self, name: str, logs: Sequence[PartitionLog]) -> None:
        """Write a topic's node with all its partitions."""
        partitions = {str(log.where.partition): [max(log.leader, 0)] for log in logs}
        for log in logs:
            self.leader(log)
        self._put(paths.topic(name), {"version": 1, "partitions": partitions})

    def topic_deleted(self, name: str) -> None:
        """Delete a topic's nodes."""
        self._zookeeper.remove(paths.topic(name))

    def leader(self, log: PartitionLog) -> None:
        """Write a partition's leader."""
        state = {
            "controller_epoch": 1,
            "leader": log.leader,
            "version": 1,
            "leader_epoch": log.epoch,
            "isr": [max(log.leader, 0)],
        }
        self._put(paths.partition_state(log.where), state)

    def _put(self, path: str, content: object) -> None:
        self._zookeeper.put(path, json.dumps(content, separators=(",", ":")).encode())


log = logging.getLogger(__name__)

_LARGEST = 64 * 1024 * 1024
_UNSUPPORTED_VERSION = 35
_APIS = {api.key: api for api in APIS.values()}
_API_VERSIONS = APIS["ApiVersions"]
_HANDLERS = {**GROUP_HANDLERS, **LOG_HANDLERS}
_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)


class FakeBroker(LoopbackServer["_BrokerConnection"]):
    """One broker of a :class:`FakeCluster`, which makes and starts it. ``groups`` is its group coordinator."""

    def __init__(self, broker_id: int, cluster: FakeCluster, groups: GroupCoordinator) -> None:
        super().__init__(f"fake-broker-{broker_id}")
        self.id = broker_id
        self.groups = groups
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"<FakeBroker {self.id} at {self.host}:{self.port}>"

    def start(self) -> None:
        """Listen on the same port as before. Raises OSError if another program took the port."""
        if not self.running:
            self._listen()

    def stop(self) -> None:
        """Close all connections and end all threads. The broker may be started again."""
        self._close(wake=self._cluster.arrivals.add)

    def drop_connections(self, client_id: str | None = None) -> int:
        """Close the connections of a client id, or all. Return their number."""
        return self._cut(lambda connection: client_id in (None, connection.client_id))

    def _connection(self, sock: socket.socket) -> _BrokerConnection:
        return _BrokerConnection(sock, self, self._cluster, self._stop)


class _BrokerConnection(ServedConnection):
    """One connection, served by one thread. ``cut`` may come from any."""

    def __init__(self, sock: socket.socket, broker: FakeBroker, cluster: FakeCluster, stop: Event) -> None:
        super().__init__(sock)
        self.client_id: str | None = None
        self._broker = broker
        self._cluster = cluster
        self._stop = stop

    def is_set(self) -> bool:
        """Return whether the broker stops or the client has closed the connection."""
        if self._stop.is_set():
            return True
        try:
            return not self._sock.recv(1, _LOOK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def roles(self) -> dict[str, Callable[[], None]]:
        """Return the function of its only thread."""
        return {"connection": self.serve}

    def serve(self) -> None:
        """Answer requests until either side closes."""
        with self._sock:
            try:
                host = f"/{self._sock.getpeername()[0]}"
                while not self._stop.is_set() and self._answer_one(host):
                    pass
            except (OSError, BrokerStopped):
                log.debug("a connection to %r ended", self._broker, exc_info=True)
            except MalformedRequestError:
                log.warning("%r got a malformed request", self._broker, exc_info=True)

    def _answer_one(self, host: str) -> bool:
        """Handle one request. Return whether the connection stays open."""
        data = self._receive(1, _LARGEST)
        if data is None:
            return False
        reader = WireReader(data)
        key, version, correlation = INT16.read(reader), INT16.read(reader), INT32.read(reader)
        self.client_id = STRING.read(reader)
        api = _APIS.get(key)
        lowest, highest = (1, 0) if api is None else api.versions(self._cluster.rules.modern)
        if api is None or not lowest <= version <= highest:
            if api is _API_VERSIONS:  # the client may not know our versions yet: answer in version 0
                unsupported = {"error_code": _UNSUPPORTED_VERSION, "api_keys": supported(self._cluster.rules.modern)}
                self._send(_API_VERSIONS, 0, correlation, unsupported)
                return True
            log.warning("%r does not know request %d of version %d", self._broker, key, version)
            return False
        if version >= api.flexible:
            reader.tags()
        body = api.read_request(version, reader.rest)
        return self._deal(Recorded(self._broker.id, api.name, version, self.client_id, body), correlation, host)

    def _deal(self, request: Recorded, correlation: int, host: str) -> bool:
        self._cluster.record(request)
        if not self._pass(request, "request"):
            return False
        handler = _HANDLERS[request.api]
        call = PendingRequest(
            self._cluster,
            self._broker.id,
            self._broker.groups,
            request.version,
            request.client_id or "",
            host,
            request.body,
            self,
        )
        code = self._cluster.code_for(request)
        answer = handler.refusal(call, code) if code else handler.answer(call)
        if not self._pass(request, "answer"):
            return False
        if answer is not None:
            self._send(APIS[request.api], request.version, correlation, answer, self._cluster.forged_for(request))
        return True

    def _pass(self, request: Recorded, at: str) -> bool:
        """Wait if a test has parked this request. Return whether the connection stays open."""
        place = self._cluster.place_for(request, at)
        return place is None or place.hold(request, self._stop) is AnswerFate.RELEASED

    def _send(self, api: Api, version: int, correlation: int, answer: Body, forged: Forged | None = None) -> None:
        # the answer to ApiVersions has the old header, because the client does not know our versions yet
        tags = b"\0" if version >= api.flexible and api is not _API_VERSIONS else b""
        header = correlation.to_bytes(4, "big", signed=True) + tags
        body = api.write_response(version, answer)
        if forged is not None:
            chosen = forged.of(framed(header + body) if forged.whole else body)
            self._sock.sendall(chosen if forged.whole else framed(header + chosen))
            return
        self._sock.sendall(framed(header + body))
