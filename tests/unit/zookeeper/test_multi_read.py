"""One request reads the contents of many nodes. Readings are those of single requests; wrong answers are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.exceptions import ConnectionLoss, MarshallingError, NoNodeError
from kazoo.protocol.serialization import GetData, int_struct, multiheader_struct, stat_struct

from tests.timing import scaled
from tests.values import present
from zkconsumer.errors import RegistryError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper_server import ConnectionRequests, FakeZooKeeperServer
from zkconsumer.zookeeper import node_requests, server_connection
from zkconsumer.zookeeper.node_requests import MultiRead
from zkconsumer.zookeeper.node_values import NodePart, Wanted, ZooKeeperServer
from zkconsumer.zookeeper.session import Session

ZERO = (1, 1, 0, 0, 3, 0, 0, 0, 4, 0, 1)
"""The fields of a stat: version 3, length 4."""


def soon() -> Deadline:
    return Deadline(scaled(10))


@pytest.fixture
def served() -> Iterator[FakeZooKeeperServer]:
    with FakeZooKeeperServer() as server:
        for number in range(150):
            server.zookeeper.put(f"/n/{number}", b"x" * (number % 7))
        server.zookeeper.put("/n/secret", b"?")
        server.zookeeper.refuse("/n/secret", "read")
        yield server


@pytest.fixture(params=["", "/n"])
def session(served: FakeZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Session]:
    opened = Session(served.connect + request.param, timeout=scaled(10), on_change=lambda _: None)
    opened.open(soon())
    yield opened
    opened.close(soon())


def mixed(session: Session) -> list[Wanted]:
    base = "" if session.hosts.endswith("/n") else "/n"
    paths = [f"{base}/{name}" for name in (*range(150), "none", "secret")]
    wanted = [Wanted(NodePart.CONTENT, path) for path in paths]
    for part in (NodePart.STAT, NodePart.CHILDREN, NodePart.RIGHTS):
        wanted[20:20] = [Wanted(part, path) for path in (base or "/", *paths[:3], *paths[-2:])]
    return wanted


def test_readings_are_those_of_single_reads(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = list(session.read_each(mixed(session), soon()))
    sizes = []
    queued = server_connection.queued_together

    def counted(client: Any, requests: Any) -> Any:
        sizes.append(len(requests))
        return queued(client, requests)

    monkeypatch.setattr(node_requests, "queued_together", counted)
    session.multi_read.set()
    assert list(session.read_each(mixed(session), soon())) == alone
    assert sum(one.forbidden for one in alone) >= 1
    assert sum(one.node is None for one in alone) >= 3
    assert sum(sizes) == 18 + 10, "152 contents, 16 in a request before the first answer"
    sizes.clear()
    names = [one for one in mixed(session) if one.part is NodePart.CONTENT] * 6
    assert len(list(session.read_each(names, soon()))) == len(names)
    assert sum(sizes) < len(names) / 20, "64 in a request after it"


def test_large_nodes_are_not_read_together(
    served: FakeZooKeeperServer, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 nodes of 1 MB in one answer would keep the connection's thread, and no ping would be sent meanwhile."""
    served.zookeeper.put("/n/large", b"x" * 900_000)
    sizes: list[int] = []

    def counted(paths: list[str]) -> MultiRead:
        sizes.append(len(paths))
        return MultiRead(paths)

    monkeypatch.setattr(node_requests, "MultiRead", counted)
    session.multi_read.set()
    large = Wanted(NodePart.CONTENT, "/large" if session.hosts.endswith("/n") else "/n/large")
    assert all(present(one.node).length == 900_000 for one in session.read_each([large] * 600, soon()))
    assert (max(sizes), sizes[-1]) == (16, 1)


def test_watched_nodes_are_read_one_by_one(session: Session) -> None:
    session.multi_read.set()
    wanted = mixed(session)
    assert [one.wanted for one in session.read_each(wanted, soon(), lambda _: None)] == wanted


def test_an_older_server_is_asked_once_only(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older server may stand behind the name of a newer one, which told its release."""
    monkeypatch.setattr(ConnectionRequests, "perform", _without(22, ConnectionRequests.perform))
    session.multi_read.set()
    wanted = [Wanted(NodePart.CONTENT, one.path) for one in mixed(session)[:3]]
    with pytest.raises(RegistryError, match="UnimplementedError"):
        list(session.read_each(wanted, soon()))
    assert not session.multi_read.is_set()
    assert [one.wanted for one in session.read_each(wanted, soon())] == wanted


class _Lost:
    """The result of a request on a lost connection."""

    def wait(self, timeout: float | None = None) -> None:
        """It is there."""

    def get(self, timeout: float | None = None) -> Any:
        raise ConnectionLoss


def test_a_lost_connection_amid_other_reads_counts(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reads before those of contents failed first, and the next reading met the same server in the same way."""
    monkeypatch.setattr(node_requests, "queued_together", lambda _, requests: [_Lost() for _ in requests])
    session.multi_read.set()
    paths = [f"/{number}" for number in range(200)]
    wanted = [Wanted(part, path) for part in (NodePart.RIGHTS, NodePart.CONTENT) for path in paths]
    with pytest.raises(RegistryError):
        list(session.read_each(wanted, soon()))
    assert not session.multi_read.is_set()


def _without(refused: int, perform: Any) -> Any:
    def performed(self: ConnectionRequests, xid: int, kind: int, reader: Any) -> None:
        perform(self, xid, 99 if kind == refused else kind, reader)

    return performed


def _answer(*results: bytes | int) -> bytes:
    body = b""
    for one in results:
        if isinstance(one, int):
            body += multiheader_struct.pack(-1, False, one) + int_struct.pack(one)
        else:
            body += multiheader_struct.pack(GetData.type, False, 0) + int_struct.pack(len(one)) + one
            body += stat_struct.pack(*ZERO)
    return body + bytes(multiheader_struct.pack(-1, True, -1))


def test_an_answer_has_contents_and_errors() -> None:
    first, second, third = MultiRead(["/a", "/b", "/c"]).deserialize(b"head" + _answer(b"data", -101, b""), 4)
    assert (first[0], first[1].version, third[0]) == (b"data", 3, b"")
    assert second is NoNodeError


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_answer(b"data"), id="too few"),
        pytest.param(_answer(), id="none"),
        pytest.param(b"", id="nothing"),
        pytest.param(_answer(b"data", b"data", b"data"), id="too many"),
        pytest.param(_answer(b"data", b"data")[:-9], id="no end"),
        pytest.param(_answer(b"data", -12345), id="unknown error"),
        pytest.param(_answer(b"data", b"data")[:-20], id="cut"),
        pytest.param(multiheader_struct.pack(GetData.type, False, 0) + int_struct.pack(1 << 30) + b"x", id="length"),
        pytest.param(multiheader_struct.pack(8, False, 0) + int_struct.pack(0) * 30, id="another kind"),
    ],
)
def test_an_answer_for_other_nodes_is_refused(answer: bytes) -> None:
    with pytest.raises(MarshallingError):
        MultiRead(["/a", "/b"]).deserialize(answer, 0)


@given(st.binary(max_size=300))
def test_junk_is_refused(junk: bytes) -> None:
    try:
        found = MultiRead(["/a", "/b"]).deserialize(junk, 0)
    except MarshallingError:
        return
    assert len(found) == 2


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("3.9.5-1f4c3aa", True),
        ("3.6.0--b4c89dc7f6083829e18fae6e446907ae0b1f22d7", True),
        ("10.0", True),
        ("3.5.10-3a5cf", False),
        ("3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_the_release_tells_what_a_server_knows(version: str, known: bool) -> None:
    assert ZooKeeperServer("h:1", version).multi_read is known
