"""Groups that watches hold are what a fresh reading finds, whatever happens in between, and cost what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.timing import scaled
from zkconsumer.errors import RegistryError
from zkconsumer.operations import watched_groups
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.watched_groups import WatchedGroups, group_of
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper
from zkconsumer.zookeeper import node_cache
from zkconsumer.zookeeper.node_cache import WatchedReadings
from zkconsumer.zookeeper.node_values import Node, NodeEvent, NodeEventKind, NodePart, Reading, Wanted

STATIC = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
WILD = b'{"version":1,"subscription":{"t.*":1},"pattern":"white_list","timestamp":"1"}'
PATHS = [
    *(f"/consumers/{g}/{below}" for g in ("a", "b") for below in ("ids/x", "owners/t/0", "offsets/t/0", "offsets/u/1")),
    *("/consumers/a", "/consumers/b/offsets/t", "/consumers/a/placement", "/consumers/a/loans/t/0/x/report"),
    *(
        "/consumers/a/acks/t/0",
        "/consumers/a/other/x",
        "/brokers/ids/1",
        "/brokers/topics/t",
        "/brokers/topics/__consumer_offsets",
    ),
]
BROKER = b'{"version":1,"host":"h","port":1,"jmx_port":-1,"timestamp":"1"}'
CONTENTS = [b"5", b"6", b"x-0", STATIC, WILD, BROKER, b'{"version":1,"partitions":{"0":[1]}}', b"x" * 70_000]


def soon() -> Deadline:
    return Deadline(scaled(10.0))


class Groups:
    """A ZooKeeper with groups, and a session that holds them."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.session = FakeSession(self.server, lambda _: None)
        self.session.open(soon())
        self.held = WatchedGroups(self.session)

    def look(self, *more: str) -> dict[str, GroupSnapshot]:
        self.held.begin()
        names = [*self.held.names(soon()), *more]
        self.held.prefetch(names, soon())
        found = {name: self.held.read(GroupSnapshot(name, 1), soon())[1] for name in names}
        self.held.leave(names)
        return found

    def fresh(self) -> dict[str, GroupSnapshot]:
        found = {}
        for name in self.session.children("/consumers", soon()) or ():
            found[name] = GroupSnapshot(name, 1)
            assert ZooKeeperReader(self.session, found[name], soon()).read()
        return found

    @property
    def requests(self) -> int:
        return sum(self.server.operations.values())


def settled(found: dict[str, GroupSnapshot]) -> dict[str, GroupSnapshot]:
    """Without what no event tells: the numbers of a parent's own content."""
    return {
        name: replace(one, zxid=0, group_node=None, ids_node=None, other_nodes=dict.fromkeys(one.other_nodes))
        for name, one in found.items()
    }


CHANGES = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(PATHS), st.sampled_from(CONTENTS)),
    st.tuples(st.just("remove"), st.sampled_from(PATHS), st.none()),
    st.tuples(
        st.sampled_from(["look", "suspend", "resume", "expire", "unnoticed", "refuse", "permit"]), st.none(), st.none()
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(CHANGES, max_size=40))
def test_any_order_of_changes_settles_to_a_fresh_reading(changes: list[tuple[str, Any, Any]]) -> None:
    groups = Groups()
    groups.server.put("/consumers")
    for kind, path, data in changes:
        if kind == "put":
            groups.server.put(path, data)
        elif kind == "remove":
            groups.server.remove(path)
        elif kind == "look":
            with suppress(RegistryError):  # there may be no connection, or no session any more
                groups.look()
        elif kind in ("refuse", "permit"):
            groups.server.refuse("/consumers/a/offsets/t/0", *(["read"] if kind == "refuse" else []))
            groups.session.suspend()  # rights have no events
            groups.session.resume()
        else:
            {"suspend": groups.session.suspend, "resume": groups.session.resume, "expire": groups.session.expire}.get(
                kind, groups.session.expire_unnoticed
            )()
    groups.session.suspend()
    groups.session.resume()
    for _ in range(2):
        assert settled(groups.look()) == settled(groups.fresh())
    for path in PATHS[:8]:
        groups.server.put(path, b"7")
    assert settled(groups.look()) == settled(groups.fresh())


def test_a_look_costs_what_has_changed() -> None:
    groups = Groups()
    for name in ("a", "b"):
        groups.server.put(f"/consumers/{name}/ids/x", STATIC)
        for number in range(20):
            groups.server.put(f"/consumers/{name}/offsets/t/{number}", b"1")
    groups.look()
    for changed, most in ((0, 0), (1, 1), (5, 5), (20, 20)):
        for number in range(changed):
            groups.server.put(f"/consumers/a/offsets/t/{number}", b"2")
        before = groups.requests
        found = groups.look()
        assert groups.requests - before <= most
        assert sum(node.offset == 2 for node in found["a"].offsets.values()) == changed or not changed
    groups.server.remove("/consumers/b")
    assert set(groups.look()) == {"a"}


def test_a_node_that_comes_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer says that the topic is missing, and the watch is set on a topic that exists."""
    groups = Groups()
    groups.server.put("/consumers/a/offsets/t/0", b"1")
    read_each = groups.session.read_each

    def late(wanted: Iterable[Wanted], *more: Any) -> Iterator[Reading]:
        for one in wanted:
            if one == Wanted(NodePart.STAT, "/brokers/topics/t"):
                groups.server.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}')
            yield from read_each([one], *more)

    monkeypatch.setattr(groups.session, "read_each", late)
    assert not groups.look()["a"].topics
    assert groups.look()["a"].topics["t"].partitions == (0,)


def test_a_brokers_group_without_a_name_leaves_the_watches() -> None:
    groups = Groups()
    groups.server.put("/consumers/a/offsets/t/0", b"1")
    groups.server.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}')
    groups.look()
    groups.look("")
    groups.server.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    assert groups.look("")["a"].topics["t"].partitions == (0, 1)


def test_all_groups_are_read_together_after_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, calls = Groups(), list[int]()
    for number in range(20):
        groups.server.put(f"/consumers/g{number}/offsets/t/0", b"1")
    groups.look()
    groups.session.suspend()
    groups.session.resume()
    read_each = groups.session.read_each

    def counted(wanted: Iterable[Wanted], *more: Any) -> Iterator[Reading]:
        asked = list(wanted)
        calls.extend([len(asked)] if asked else [])
        return read_each(asked, *more)

    monkeypatch.setattr(groups.session, "read_each", counted)
    assert len(groups.look()) == 20
    assert len(calls) < 40, "a round trip for each level of each group"


@pytest.mark.parametrize("error", [ValueError("relative paths not allowed"), RegistryError("away")])
def test_reading_in_advance_leaves_errors_to_each_group(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    groups.server.put("/consumers/a/offsets/t/0", b"1")

    def failing(*_: object) -> Iterator[Reading]:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(groups.session, "read_each", failing)
        groups.held.prefetch(["a"], soon())
    assert groups.look()["a"].offsets


def test_a_change_without_an_event_is_found_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server keeps the event from a session that may not read the node any more."""
    monkeypatch.setattr(watched_groups, "COMPARED_WITHIN", 1.0)
    groups = Groups()
    groups.server.put("/consumers/a/offsets/t/0", b"1")
    groups.look()
    groups.held.compare(2.0, soon())
    groups.look()
    assert (groups.held.differences, groups.held.comparisons) == (0, 1)
    groups.session.lose_watches("/consumers/a/offsets/t/0")
    groups.server.put("/consumers/a/offsets/t/0", b"2")
    assert [node.offset for node in groups.look()["a"].offsets.values()] == [1]
    groups.held.compare(2.0, soon())
    assert [node.offset for node in groups.look()["a"].offsets.values()] == [2]
    assert groups.held.differences == 1
    groups.server.put("/consumers/a/offsets/t/0", b"3")  # an event that comes after the comparison is no difference
    groups.held.compare(2.0, soon())
    assert settled(groups.look()) == settled(groups.fresh())
    assert groups.held.differences == 1


def test_a_comparison_leaves_out_what_was_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_groups, "COMPARED_WITHIN", 1.0)
    groups, costs = Groups(), list[int]()
    for _ in range(2):
        for number in range(20):
            groups.server.put(f"/consumers/a/offsets/t/{number}", b"1")
        groups.look()
        before = groups.requests
        groups.held.compare(2.0, soon())
        costs.append(groups.requests - before)
        groups.held.compare(2.0, soon())  # nothing was written since the comparison before
        costs.append(groups.requests - before - costs[-1])
    assert groups.held.comparisons == 4
    assert costs[1] >= costs[0] + 20
    assert costs[3] >= costs[2] + 20


def test_what_has_not_changed_is_in_memory_once() -> None:
    groups = Groups()
    groups.server.put("/consumers/a/ids/x", STATIC)
    groups.server.put("/consumers/a/owners/t/0", b"x-0")
    groups.server.put("/consumers/a/offsets/t/0", b"1")
    before = groups.look()["a"]
    groups.server.put("/consumers/a/offsets/t/0", b"2")
    after = groups.look()["a"]
    assert after.offsets != before.offsets
    assert (after.members is before.members, after.owners is before.owners) == (True, True)
    assert next(iter(after.offsets)) is next(iter(after.owners)) is next(iter(before.offsets))


CONTENT = Wanted(NodePart.CONTENT, "/consumers/g/ids/x")
NAMES = Wanted(NodePart.CHILDREN, "/consumers/g/ids")
TOPIC = Wanted(NodePart.CONTENT, "/brokers/topics/t")


@pytest.mark.parametrize(
    ("kind", "path", "forgotten", "changed"),
    [
        (NodeEventKind.CHANGED, CONTENT.path, {CONTENT}, {"g"}),
        (NodeEventKind.DELETED, CONTENT.path, {CONTENT}, {"g"}),
        (NodeEventKind.CHILDREN, NAMES.path, {NAMES}, {"g"}),
        (NodeEventKind.CHANGED, NAMES.path, set(), set()),
        (NodeEventKind.CREATED, NAMES.path, {NAMES}, {"g"}),
        (NodeEventKind.CHANGED, TOPIC.path, {TOPIC}, {"g"}),
        (NodeEventKind.CHANGED, "/consumers/other/ids/x", set(), set()),
    ],
)
def test_an_event_forgets_what_it_tells_of(
    kind: NodeEventKind, path: str, forgotten: set[Wanted], changed: set[str]
) -> None:
    nodes = WatchedReadings(group_of)
    nodes.begin("g")
    for wanted in (CONTENT, NAMES, TOPIC):
        assert nodes.current(wanted) is None
        nodes.keep(Reading(wanted, Node(b"", 0, 1, 1, 0)))
    nodes.end("g", complete=True)
    nodes.leave({"g"})
    nodes.fired(NodeEvent(kind, path))
    assert {one for one in (CONTENT, NAMES, TOPIC) if nodes.current(one) is None} == forgotten
    assert nodes.changed == changed
    for _ in range(2):  # the lines above have asked for the shared node
        nodes.leave(())
    assert (len(nodes), nodes.changed) == (0, set())


def test_long_contents_are_not_kept_but_watched() -> None:
    nodes = WatchedReadings(group_of)
    nodes.begin("g")
    nodes.keep(Reading(CONTENT, Node(b"x" * (node_cache.MOST_KEPT_BYTES + 1), 0, 1, 1, 0)))
    nodes.end("g", complete=True)
    assert nodes.current(CONTENT) is None
    nodes.fired(NodeEvent(NodeEventKind.CHANGED, CONTENT.path))
    assert nodes.changed == {"g"}
