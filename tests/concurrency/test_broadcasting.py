"""Broadcasting members, each with all partitions: several at once, restarted ones, and beside clustering members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.concurrency.group import GROUP, TOPIC, SteppedMember, new_server, node_at, owners, settle, settled
from zkconsumer.errors import MessageModelConflictError
from zkconsumer.member.connector_state import Phase
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths

P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
SCALA = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(2)


def broadcasting(server: FakeZooKeeper, name: str, **options: Any) -> SteppedMember:
    """A broadcasting member whose partitions begin at 10 unless its offsets are stored."""
    for tp in (P0, P1):
        path = paths.offset(paths.broadcast_group(GROUP, name), tp)
        if server.node(path) is None:
            server.put(path, b"10")
    return SteppedMember(server, name, broadcasting=True, **options)


def offset(server: FakeZooKeeper, name: str, tp: TopicPartition) -> int:
    return int(node_at(server, paths.offset(paths.broadcast_group(GROUP, name), tp)).data)


def shown(server: FakeZooKeeper) -> set[str]:
    """Return the consumer ids of the broadcasting members in ZooKeeper."""
    return {path.rpartition("/")[2] for path in server.tree(paths.broadcast_members(GROUP))}


def registered(server: FakeZooKeeper, group: str = GROUP) -> set[str]:
    return {path.rpartition("/")[2] for path in server.tree(paths.ids(group))}


def before_creating(member: SteppedMember, path: str, act: Callable[[], object]) -> None:
    """Have something happen right before the member creates a node, once."""
    create, left = member.session.create, [act]

    def creating(where: str, *arguments: Any, **options: Any) -> bool:
        if where == path and left:
            left.pop()()
        return create(where, *arguments, **options)

    member.session.create = creating  # type: ignore[method-assign, assignment]


# ---- each for itself ----


def test_each_member_owns_everything_and_commits_for_itself(server: FakeZooKeeper) -> None:
    a, b = broadcasting(server, "a"), broadcasting(server, "b")
    settle([a, b])
    assert set(a.owned) == set(b.owned) == {P0, P1}
    a.finish(P0, 3)
    a.commit()
    b.finish(P0, 1)
    b.commit()
    assert (offset(server, "a", P0), offset(server, "b", P0)) == (13, 11)
    assert shown(server) == {a.consumer, b.consumer}


def test_its_streams_share_its_partitions(server: FakeZooKeeper) -> None:
    a = broadcasting(server, "a", streams=2)
    settle([a])
    assert {tp: position.thread for tp, position in a.owned.items()} == {P0: f"{GROUP}_a-0", P1: f"{GROUP}_a-1"}


def test_another_consumer_id_makes_another_member(server: FakeZooKeeper) -> None:
    """Its offsets are found by its name alone. Those of the former name wait for the next member of that name."""
    a = broadcasting(server, "a")
    settle([a])
    a.finish(P1, 5)
    a.stop()
    renamed = settled(server, "b", broadcasting=True)
    assert renamed.owned[P1].consumed is None, "auto.offset.reset decides"
    renamed.stop()
    assert offset(server, "a", P1) == 15
    back = settled(server, "a", broadcasting=True)
    assert back.owned[P1].consumed == 15


def test_its_nodes_stand_apart_from_the_groups_members(server: FakeZooKeeper) -> None:
    a = broadcasting(server, "a")
    settle([a])
    a.finish(P0)
    a.commit()
    below = set(server.tree(paths.consumers_group(GROUP)))
    announced = paths.broadcast_member(GROUP, a.consumer)
    assert below == {paths.offsets(GROUP), paths.broadcast_members(GROUP), announced}


# ---- one consumer.id twice ----


def test_a_second_process_with_its_name_waits_and_never_shares(server: FakeZooKeeper) -> None:
    first = broadcasting(server, "a")
    settle([first])
    second = broadcasting(server, "a")
    settle([first, second])
    assert set(first.owned) == {P0, P1}
    assert not second.owned
    assert "another live member has this consumer.id" in second.rebalancer.state.detail
    first.finish(P0, 2)
    first.stop()
    settle([second])
    assert second.owned[P0].consumed == 12


def test_deleted_nodes_are_made_again(server: FakeZooKeeper) -> None:
    a = broadcasting(server, "a")
    settle([a])
    server.remove(paths.consumers_group(GROUP))
    settle([a])
    assert shown(server) == {a.consumer}
    assert set(a.owned) == {P0, P1}
    own = paths.broadcast_group(GROUP, "a")
    server.remove(paths.ids(own))
    server.remove(paths.owners(own))
    settle([a])
    assert registered(server, own) == {a.consumer}
    assert set(a.owned) == {P0, P1}
    assert all(server.node(paths.owner(own, tp)) is not None for tp in (P0, P1))


# ---- beside members that share ----


def test_it_refuses_a_group_with_clustering_members(server: FakeZooKeeper) -> None:
    c = settled(server, "c")
    a = broadcasting(server, "a")
    settle([a, c])
    assert isinstance(a.membership.refusal, MessageModelConflictError)
    assert (
        f"clustering members, so message.model=broadcasting would consume everything once more beside them: {GROUP}_c"
        in (a.rebalancer.state.detail)
    )
    assert not a.owned
    assert not shown(server)
    assert not registered(server, paths.broadcast_group(GROUP, "a"))
    c.stop()
    settle([a])
    assert a.membership.refusal is None
    assert set(a.owned) == {P0, P1}
    assert a.rebalancer.state.detail == ""


def test_a_clustering_member_refuses_broadcasting_members(server: FakeZooKeeper) -> None:
    a = broadcasting(server, "a")
    settle([a])
    c = settled(server, "c", beside=[a])
    assert isinstance(c.membership.refusal, MessageModelConflictError)
    assert f"broadcasting members, each of which takes all partitions already: {GROUP}_a" in c.rebalancer.state.detail
    assert not c.owned
    assert not registered(server)
    assert a.membership.concern == ""
    a.stop()
    settle([c])
    assert c.membership.refusal is None
    assert set(c.owned) == {P0, P1}


@pytest.mark.parametrize("later", ["broadcasting", "clustering"])
def test_of_two_that_come_at_once_the_later_gives_way(server: FakeZooKeeper, later: str) -> None:
    """Each has looked before the other showed itself."""
    a, c = broadcasting(server, "a"), SteppedMember(server, "c")
    if later == "broadcasting":
        before_creating(a, paths.broadcast_member(GROUP, a.consumer), lambda: settle([c]))
    else:
        before_creating(c, c.membership.path, lambda: settle([a]))
    first, second = (c, a) if later == "broadcasting" else (a, c)
    settle([second])
    assert set(first.owned) == {P0, P1}
    assert second.membership.refusal is not None
    assert not second.owned
    assert bool(shown(server)) is (later == "clustering")
    assert bool(registered(server)) is bool(owners(server)) is (later == "broadcasting")


def test_of_two_that_see_each_other_the_earlier_stays(server: FakeZooKeeper) -> None:
    c = SteppedMember(server, "c")
    later = paths.broadcast_member(GROUP, "g_later")
    children = c.session.children

    def looking(path: str, *arguments: Any) -> tuple[str, ...] | None:
        if path == paths.broadcast_members(GROUP) and registered(server):
            server.put(later, b"", ephemeral_owner=99)
        return children(path, *arguments)

    c.session.children = looking  # type: ignore[method-assign, assignment]
    settle([c])
    assert c.membership.refusal is None
    assert set(c.owned) == {P0, P1}
    assert "g_later" in c.membership.concern


def test_who_came_first_reports_who_came_after_and_goes_on(server: FakeZooKeeper) -> None:
    """A Scala member cannot be stopped: it does not know that there is anybody."""
    a = broadcasting(server, "a")
    settle([a])
    where = paths.member(GROUP, "g_scala")
    server.put(where, SCALA, ephemeral_owner=99)
    settle([a])
    assert a.rebalancer.state.phase is Phase.OWNING
    assert set(a.owned) == {P0, P1}
    assert a.membership.concern == f"the group {GROUP!r} has clustering members as well: g_scala"
    a.session.expire()
    settle([a])
    assert set(a.owned) == {P0, P1}, "who was let in stays"
    server.remove(where)
    settle([a])
    assert a.membership.concern == ""
