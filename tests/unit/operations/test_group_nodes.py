"""All nodes of a group are deleted, or none, while members come and offsets are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from zkconsumer.operations import group_deletion
from zkconsumer.operations.group_deletion import Removal, delete_group_nodes, read_nodes
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.zookeeper.session import Session

GROUP = "/consumers/g"


@pytest.fixture
def server() -> FakeZooKeeper:
    made = FakeZooKeeper()
    for partition in range(3):
        made.put(f"{GROUP}/offsets/t/{partition}", b"%d" % partition)
    made.put(f"{GROUP}/owners/t")
    made.put(f"{GROUP}/ids")
    made.put("/consumers/other/ids")
    return made


@pytest.fixture
def session(server: FakeZooKeeper) -> Iterator[Any]:
    made = server.session()
    made.open(Deadline(5))
    yield made
    made.close(Deadline(5))


class Disturbed:
    """A session in which something happens before the n-th transaction."""

    def __init__(self, session: Any, number: int, event: Callable[[], None]) -> None:
        self._session, self._number, self._event = session, number, event
        self.transactions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def transact(self, build: Any, deadline: Deadline) -> Any:
        self.transactions += 1
        if self.transactions == self._number:
            self._event()
        return self._session.transact(build, deadline)


def disturbed(session: Any, event: Callable[[], None] = lambda: None, number: int = 1) -> Session:
    return cast("Session", Disturbed(session, number, event))


def test_a_group_without_members_is_deleted_at_once(server: FakeZooKeeper, session: Any) -> None:
    counted = disturbed(session)
    done = delete_group_nodes(counted, "g", Deadline(5))
    assert (done.result, done.deleted, done.total) == (Removal.DONE, 9, 9)
    assert server.tree("/consumers") == {"/consumers/other": b"", "/consumers/other/ids": b""}
    assert cast("Any", counted).transactions == 1


def test_a_group_without_ids_is_deleted(server: FakeZooKeeper, session: Any) -> None:
    server.remove(f"{GROUP}/ids")
    assert delete_group_nodes(session, "g", Deadline(5)).result is Removal.DONE
    assert read_nodes(session, "g", Deadline(5)) == {}


def test_an_unknown_group_is_told(session: Any) -> None:
    assert delete_group_nodes(session, "none", Deadline(5)).result is Removal.MISSING


@pytest.mark.parametrize(
    ("path", "owner"),
    [(f"{GROUP}/ids/g_a", 7), (f"{GROUP}/ids/g_a", 0), (f"{GROUP}/owners/t/0", 7), (f"{GROUP}/broadcast/g_b", 7)],
)
def test_a_live_group_is_refused_by_name(path: str, owner: int, server: FakeZooKeeper, session: Any) -> None:
    server.put(path, ephemeral_owner=owner)
    before = server.tree()
    done = delete_group_nodes(session, "g", Deadline(5))
    assert (done.result, done.nodes) == (Removal.LIVE, (path,))
    assert server.tree() == before


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_member_that_comes_meanwhile_keeps_all(with_ids: bool, server: FakeZooKeeper, session: Any) -> None:
    if not with_ids:
        server.remove(f"{GROUP}/ids")
    path = f"{GROUP}/ids/g_a"
    done = delete_group_nodes(disturbed(session, lambda: server.put(path, ephemeral_owner=7)), "g", Deadline(5))
    assert (done.result, done.nodes, done.deleted) == (Removal.LIVE, (path,), 0)
    assert f"{GROUP}/offsets/t/2" in server.tree()


def test_an_offset_that_is_written_meanwhile_keeps_all(server: FakeZooKeeper, session: Any) -> None:
    before = set(server.tree())
    done = delete_group_nodes(disturbed(session, lambda: server.put(f"{GROUP}/offsets/t/1", b"9")), "g", Deadline(5))
    assert (done.result, done.deleted) == (Removal.CHANGED, 0)
    assert set(server.tree()) == before


def test_a_large_group_is_deleted_in_parts(
    server: FakeZooKeeper, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_deletion, "REQUEST_BYTES", 200)
    counted = disturbed(session)
    assert delete_group_nodes(counted, "g", Deadline(5)).result is Removal.DONE
    assert cast("Any", counted).transactions > 2
    assert f"{GROUP}" not in server.tree()


def test_a_member_that_comes_between_parts_ends_it(
    server: FakeZooKeeper, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_deletion, "REQUEST_BYTES", 200)
    done = delete_group_nodes(
        disturbed(session, lambda: server.put(f"{GROUP}/ids/g_a", ephemeral_owner=7), 2), "g", Deadline(5)
    )
    assert done.result is Removal.LIVE
    assert 0 < done.deleted < done.total


def test_a_group_with_too_many_nodes_is_refused(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_deletion, "MAX_NODES", 3)
    assert delete_group_nodes(session, "g", Deadline(5)).result is Removal.TOO_LARGE
