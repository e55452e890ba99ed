"""A client of a group coordinator that says exactly what a test wants, for the contract suite of coordinators.

One connection for each member, no thread: a request is sent, and its answer is looked at when the test wants it.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.timing import eventually, scaled
from zkconsumer.testing.request_schemas import APIS
from zkconsumer.testing.wire_types import Api, Body, WireReader

IN_TIME = 10.0


def subscription(*topics: str) -> bytes:
    """Return the subscription of a member. 3.9 reads it: a group with malformed ones never completes a join again."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


ME = subscription("t")
OTHER = subscription("t", "u")
RANGE = (("range", ME),)
_numbers = itertools.count(1)

OLD = {
    "JoinGroup": 2,
    "SyncGroup": 1,
    "Heartbeat": 1,
    "LeaveGroup": 1,
    "OffsetCommit": 3,
    "OffsetFetch": 3,
    "DescribeGroups": 1,
    "ListGroups": 1,
    "DeleteGroups": 0,
    "FindCoordinator": 1,
}
"""What 1.1 speaks at most."""

PLAIN = OLD | {
    "JoinGroup": 5,
    "SyncGroup": 3,
    "Heartbeat": 3,
    "LeaveGroup": 3,
    "OffsetCommit": 7,
    "OffsetFetch": 5,
    "DescribeGroups": 4,
    "ListGroups": 2,
    "DeleteGroups": 1,
    "FindCoordinator": 2,
}
"""The last versions before compact fields."""

NEWEST = {name: api.new[1] for name, api in APIS.items()}


class Pending:
    """A request whose answer is still to come."""

    def __init__(self, connection: Connection, api: Api, version: int, correlation: int) -> None:
        self._connection = connection
        self._api = api
        self._version = version
        self._correlation = correlation

    def answer(self) -> Body:
        """Wait for the answer and return it."""
        return self._connection.receive(self._api, self._version, self._correlation)

    def waits(self) -> bool:
        """Return whether there is no answer yet. Only for requests that are answered at once or late."""
        return not self._connection.readable()


class Connection:
    """One connection to a broker."""

    def __init__(self, address: tuple[str, int], versions: Mapping[str, int], client_id: str = "contract") -> None:
        self.versions = versions
        self._client_id = client_id
        self._sock = socket.create_connection(address, timeout=scaled(IN_TIME))
        self._correlations = itertools.count(1)

    def close(self) -> None:
        self._sock.close()

    def send(self, name: str, message: Mapping[str, Any], version: int | None = None) -> Pending:
        """Send a request."""
        api, correlation = APIS[name], next(self._correlations)
        number = self.versions[name] if version is None else version
        client_id = self._client_id.encode()
        head = api.key.to_bytes(2, "big") + number.to_bytes(2, "big") + correlation.to_bytes(4, "big")
        head += len(client_id).to_bytes(2, "big") + client_id + (b"\0" if number >= api.flexible else b"")
        data = head + api.write_request(number, message)
        self._sock.sendall(len(data).to_bytes(4, "big") + data)
        return Pending(self, api, number, correlation)

    def ask(self, name: str, message: Mapping[str, Any], version: int | None = None) -> Body:
        """Send a request and wait for its answer."""
        return self.send(name, message, version).answer()

    def receive(self, api: Api, version: int, correlation: int) -> Body:
        data = self.exactly(int.from_bytes(self.exactly(4), "big"))
        assert int.from_bytes(data[:4], "big") == correlation
        reader = WireReader(data[4:], version, flexible=True)
        if version >= api.flexible and api.name != "ApiVersions":
            reader.tags()
        return api.read_response(version, reader.rest)

    def readable(self) -> bool:
        self._sock.setblocking(False)
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self._sock.settimeout(scaled(IN_TIME))

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._sock.recv(count - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data


@dataclass
class Target:
    """A broker under test. ``modern``: it has 3.9's rules; ``versions`` of requests to talk in."""

    address: tuple[str, int]
    modern: bool
    versions: Mapping[str, int]
    connections: list[Connection] = field(default_factory=list)
    group: str = ""

    def fresh(self) -> Target:
        """For one test: a group of its own."""
        return Target(self.address, self.modern, self.versions, group=f"contract-{next(_numbers)}")

    def connect(self, client_id: str = "contract") -> Connection:
        connection = Connection(self.address, self.versions, client_id)
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def ask(self, name: str, message: Mapping[str, Any], version: int | None = None) -> Body:
        """Ask on a connection of its own."""
        return self.connect().ask(name, message, version)

    def member(self, **options: Any) -> ClientMember:
        """Somebody who has not joined yet."""
        return ClientMember(self, **options)

    def stable(self, *members: ClientMember, assignment: str = "") -> None:
        """Let the members join, and the leader assign ``assignment`` and a number to each member."""
        joined: list[Body] = []
        first, *others = members
        if not first.member_id:
            joined.append(first.joined())
        waiting = [other.joins() for other in others]
        if waiting:  # whoever is missing when the first joins again would need another round
            eventually(lambda: len(self.described()["members"]) == len(members), 20, "all to have joined")
            self.until("PreparingRebalance")
            waiting.insert(0, first.joins())
            joined = [member.has_joined(p) for member, p in zip(members, waiting, strict=True)]
        leader = next(member for member in members if member.leads)
        plan = {member.member_id: f"{assignment}{n}".encode() for n, member in enumerate(members)}
        syncing = [member.syncs() for member in members if member is not leader]
        assert leader.syncs(plan).answer()["error_code"] == 0
        assert [pending.answer()["error_code"] for pending in syncing] == [0] * len(syncing)
        assert len({answer["generation_id"] for answer in joined}) == 1
        assert self.state() == "Stable"

    def alone(self, **options: Any) -> ClientMember:
        """Return the only member of a stable group, in its first generation."""
        member = self.member(**options)
        self.stable(member)
        return member

    def pair(self, **options: Any) -> tuple[ClientMember, ClientMember]:
        """Return both members of a stable group, in its second generation. The options are those of the second."""
        first, second = self.alone(), self.member(**options)
        self.stable(first, second)
        return first, second

    def rebalancing(self, **options: Any) -> tuple[ClientMember, ClientMember, Pending]:
        """Return the member of a group, a second one that wants to join it, and the answer to its join, to come."""
        first, second = self.alone(), self.member(**options)
        waiting = second.joins()
        self.until("PreparingRebalance")
        return first, second, waiting

    def undecided(self) -> tuple[ClientMember, ClientMember]:
        """Return both members of a second generation before its leader, the first member, has assigned anything."""
        first, second, waiting = self.rebalancing()
        first.joined()
        second.has_joined(waiting)
        return first, second

    def described(self) -> Body:
        """Return the group in the answer to DescribeGroups."""
        (group,) = self.ask("DescribeGroups", {"groups": [self.group]})["groups"]
        return dict(group)

    def state(self) -> str:
        return str(self.described()["group_state"])

    def until(self, state: str) -> None:
        """Wait until the group is in a state."""
        eventually(lambda: self.state() == state, 20, f"{self.group} to be {state}")

    def commit(self, offsets: Mapping[tuple[str, int], int], version: int | None = None, **fields: Any) -> list[int]:
        """Commit offsets, as nobody unless ``fields`` say more. Returns: the error codes, as they were asked for."""
        topics = [
            {"name": topic, "partitions": [{"partition_index": number, "committed_offset": offset, **_of_each(fields)}]}
            for (topic, number), offset in offsets.items()
        ]
        message = {"group_id": self.group, "topics": topics, **fields}
        answer = self.ask("OffsetCommit", message, version)
        told = {(t["name"], p["partition_index"]): p["error_code"] for t in answer["topics"] for p in t["partitions"]}
        return [told[place] for place in offsets]

    def committed(self, topic: str, numbers: Iterable[int]) -> list[int]:
        """Return the committed offsets of some partitions of a topic."""
        topics = [{"name": topic, "partition_indexes": list(numbers)}]
        answer = self.ask("OffsetFetch", {"group_id": self.group, "topics": topics})
        assert answer["error_code"] == 0
        (told,) = answer["topics"]
        assert all(partition["error_code"] == 0 for partition in told["partitions"])
        return [p["committed_offset"] for p in sorted(told["partitions"], key=lambda p: p["partition_index"])]


def _of_each(fields: Mapping[str, Any]) -> Body:
    """Return the fields that stand with each partition."""
    told = {name: fields[name] for name in ("committed_metadata", "commit_timestamp") if name in fields}
    return {"committed_metadata": "", **told}


class ClientMember:
    """A member of the target's group. Times in seconds."""

    def __init__(
        self,
        target: Target,
        *,
        instance: str | None = None,
        session: float = 30.0,
        rebalance: float = 60.0,
        protocols: Iterable[tuple[str, bytes]] = RANGE,
    ) -> None:
        self.target = target
        self.instance = instance
        self.session = session
        self.rebalance = rebalance
        self.protocols = tuple(protocols)
        self.connection = target.connect()
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.protocol = ""

    @property
    def leads(self) -> bool:
        return self.member_id == self.leader != ""

    def joins(self, **fields: Any) -> Pending:
        """Send a JoinGroup; where a member id is wanted first, the second one."""
        pending = self.connection.send("JoinGroup", self.join_request(fields))
        gets_id = self.connection.versions["JoinGroup"] >= 4
        if gets_id and not self.member_id and self.instance is None and not fields:
            answer = pending.answer()
            assert answer["error_code"] == 79
            self.member_id = answer["member_id"]
            return self.connection.send("JoinGroup", self.join_request(fields))
        return pending

    def join_request(self, fields: Mapping[str, Any]) -> Body:
        return {
            "group_id": self.target.group,
            "session_timeout_ms": round(self.session * 1000),
            "rebalance_timeout_ms": round(self.rebalance * 1000),
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in self.protocols],
            **fields,
        }

    def has_joined(self, pending: Pending) -> Body:
        """Take the answer to a JoinGroup."""
        return self.is_let_in(pending.answer())

    def is_let_in(self, answer: Body) -> Body:
        """By this answer to a JoinGroup."""
        assert answer["error_code"] == 0, answer
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        self.leader, self.protocol = answer["leader"], answer["protocol_name"]
        return answer

    def joined(self) -> Body:
        return self.has_joined(self.joins())

    def syncs(self, assignments: Mapping[str, bytes] | None = None, **fields: Any) -> Pending:
        told = [{"member_id": member_id, "assignment": data} for member_id, data in (assignments or {}).items()]
        named = {"protocol_type": "consumer", "protocol_name": self.protocol}
        return self.connection.send("SyncGroup", self.identity(assignments=told, **{**named, **fields}))

    def heartbeat(self, **fields: Any) -> int:
        return int(self.connection.ask("Heartbeat", self.identity(**fields))["error_code"])

    def leave(self) -> int:
        """Leave; on a connection of its own, since this member's may have a request that waits."""
        return leave(self.target, self.member_id, self.instance)

    def commit(self, offsets: Mapping[tuple[str, int], int], **fields: Any) -> list[int]:
        return self.target.commit(offsets, **self.identity(**fields))

    def identity(self, **fields: Any) -> Body:
        return {
            "group_id": self.target.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            **fields,
        }


def leave(target: Target, member_id: str, instance: str | None = None) -> int:
    """Leave as a member of this id. Returns: the error code, wherever the version puts it."""
    message = {
        "group_id": target.group,
        "member_id": member_id,
        "members": [{"member_id": member_id, "group_instance_id": instance}],
    }
    answer = target.ask("LeaveGroup", message)
    codes = [member["error_code"] for member in answer["members"]]
    assert len(codes) <= 1
    return int(answer["error_code"] or (codes[0] if codes else 0))
