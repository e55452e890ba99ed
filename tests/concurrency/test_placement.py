"""Changes of a group whose members follow a plan in ZooKeeper, each one staged."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import monotonic

import pytest

from tests.concurrency.group import GROUP, SteppedMember, make_topic, node_at, owners, settle
from tests.concurrency.placement import placed_member
from tests.concurrency.staging import after, unavailable
from zkconsumer.assignors.lag_aware_placement import LOOKS, PAUSE_LOOKS
from zkconsumer.assignors.placement_decision import RETRY_S
from zkconsumer.core.placement_plan import PartitionLoad, decode_plan, encode_loads
from zkconsumer.core.registration import PLAN_KEY
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import LookAgain
from zkconsumer.member.zookeeper import placement_node
from zkconsumer.member.zookeeper.placement_node import LoadReports
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import node_codecs, paths

PLAN = paths.placement(GROUP)
Pass = Callable[[float, list[SteppedMember]], None]


@pytest.fixture
def server() -> FakeZooKeeper:
    made = FakeZooKeeper(session_timeout=600.0)
    make_topic(made, 12)
    return made


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Let the clock of plans go on, and have members look again."""
    offset = 0.0
    monkeypatch.setattr(placement_node, "monotonic", lambda: monotonic() + offset)

    def passes(seconds: float, members: list[SteppedMember]) -> None:
        nonlocal offset
        offset += seconds
        for _ in range(3):
            for member in members:
                member.events.put(LookAgain("time has passed"))
            settle(members)

    return passes


def counts(server: FakeZooKeeper) -> dict[str, int]:
    found: dict[str, int] = {}
    for thread in owners(server).values():
        found[thread] = found.get(thread, 0) + 1
    return dict(sorted(found.items()))


def advertises(server: FakeZooKeeper, member: SteppedMember) -> bool:
    path = paths.member(GROUP, member.consumer)
    node = node_at(server, path)
    return PLAN_KEY in node_codecs.decode_registration(node.data, path).extra


def planned(server: FakeZooKeeper) -> dict[int, str]:
    plan = decode_plan(node_at(server, PLAN).data)
    assert not plan.reserved
    return {tp.partition: str(thread) for tp, thread in plan.assignment.items()}


def group(server: FakeZooKeeper, names: str, *, lasts: bool = True) -> list[SteppedMember]:
    members: list[SteppedMember] = []
    for name in names:
        members.append(placed_member(server, name, lasts=lasts))
        settle(members)
    return members


def test_the_oldest_member_writes_one_plan(server: FakeZooKeeper) -> None:
    members = group(server, "ba")
    node = node_at(server, PLAN)
    assert decode_plan(node.data).planner == "g_b"
    assert planned(server) == owners(server)
    assert counts(server) == {"g_a-0": 6, "g_b-0": 6}
    settle(members)
    again = node_at(server, PLAN)
    assert again.version == node.version, "a plan that fits is not written again"


@pytest.mark.parametrize(
    "extra",
    [{}, {"strategy": "sticky", PLAN_KEY: "2"}, {"strategy": "lag-aware", PLAN_KEY: "1"}],
    ids=["no strategy", "other plans", "another strategy"],
)
def test_a_member_without_such_plans_ends_the_plan(server: FakeZooKeeper, extra: dict[str, object]) -> None:
    members = group(server, "ab")
    other = SteppedMember(server, "c", extra=extra)
    settle([*members, other])
    assert server.node(PLAN) is None
    assert counts(server) == {"g_a-0": 4, "g_b-0": 4, "g_c-0": 4}
    ranges = owners(server)
    other.stop()
    settle(members)
    assert counts(server) == {"g_a-0": 6, "g_b-0": 6}
    now = owners(server)
    assert all(now[n] == thread for n, thread in ranges.items() if thread != "g_c-0"), "it begins from the owners"


@pytest.mark.parametrize("strategy", ["sticky", "lag-aware"])
def test_a_group_that_no_plan_can_name_uses_range(server: FakeZooKeeper, strategy: str) -> None:
    """The original takes "-1" for a partition. A plan with it could not be read, and was written for ever."""
    server.put(paths.topic("t"), b'{"version":1,"partitions":{"-1":[0],"0":[0],"1":[0]}}')
    members = [placed_member(server, name, strategy=strategy) for name in "ab"]
    settle(members)
    assert server.node(PLAN) is None
    assert len(owners(server)) == 3
    assert not advertises(server, members[0])


def test_the_report_of_the_owner_counts(server: FakeZooKeeper) -> None:
    """Another report may be of the owner before it, half a minute old, or of a foreign writer."""
    members = [placed_member(server, name, strategy="lag-aware") for name in "ab"]
    settle(members)
    reports = LoadReports(members[0].session, GROUP, ConsumerId("g_a"), publishes=True)
    mine, theirs = TopicPartition("t", 0), TopicPartition("t", 1)
    thread = {"g_a": ThreadId("g_a-0"), "g_b": ThreadId("g_b-0")}
    for name, own, other in (("g_a", mine, theirs), ("g_b", theirs, mine)):
        loads = {own: PartitionLoad(1, 1), other: PartitionLoad(9, 9), TopicPartition("t", 2): PartitionLoad(5, 5)}
        server.put(
            paths.member_loads(GROUP, name), encode_loads({**loads, TopicPartition("x", 0): PartitionLoad(7, 7)})
        )
    placed = {mine: thread["g_a"], theirs: thread["g_b"], TopicPartition("t", 2): ThreadId("g_c-0")}
    found = reports.all([ConsumerId("g_a"), ConsumerId("g_b")], placed, Deadline(5))
    assert found == {
        mine: PartitionLoad(1, 1),
        theirs: PartitionLoad(1, 1),
        TopicPartition("t", 2): PartitionLoad(5, 5),
    }


def test_a_member_that_waits_keeps_what_it_owns(server: FakeZooKeeper) -> None:
    """The planner hangs while its session lives."""
    a, b = group(server, "ab")
    flowing = dict(b.owned)
    c = placed_member(server, "c")
    settle([b, c])
    assert b.owned == flowing
    assert not c.owned
    assert b.rebalancer.state.phase is Phase.WAITING
    assert "waiting for a plan: the plan does not know g_c; g_a should write another" in b.rebalancer.state.detail
    settle([a, b, c])
    assert counts(server) == {"g_a-0": 4, "g_b-0": 4, "g_c-0": 4}
    assert b.rebalancer.state.detail == ""


def test_a_lost_answer_of_a_write_is_no_second_plan(server: FakeZooKeeper) -> None:
    a, b = group(server, "ab")
    after(a.session, "write", unavailable)
    c = placed_member(server, "c")
    settle([a, b, c])
    assert counts(server) == {"g_a-0": 4, "g_b-0": 4, "g_c-0": 4}
    node = node_at(server, PLAN)
    assert node.version == 2, "one for each of the members that joined"


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"{}", b'{"version":2}', "an old plan"])
def test_a_spoilt_plan_is_replaced(server: FakeZooKeeper, time_passes: Pass, content: bytes | str | None) -> None:
    """An operator deletes or overwrites the plan, or puts back one from before a member joined."""
    (first,) = group(server, "a")
    old = node_at(server, PLAN).data
    second = placed_member(server, "b")
    members = [first, second]
    settle(members)
    if content is None:
        server.remove(PLAN)
    else:
        server.put(PLAN, content if isinstance(content, bytes) else old)
    settle(members)
    time_passes(RETRY_S + 1, members)
    assert counts(server) == {"g_a-0": 6, "g_b-0": 6}
    assert planned(server) == owners(server)


@pytest.mark.parametrize("refused", [("write", "create"), ("read",)], ids=" and ".join)
def test_a_group_without_rights_to_its_plan_uses_range(
    server: FakeZooKeeper, time_passes: Pass, refused: tuple[str, ...]
) -> None:
    members = group(server, "ab")
    server.refuse(PLAN, *refused)
    members.append(placed_member(server, "c"))
    settle(members)
    time_passes(60.0, members)
    assert counts(server) == {"g_a-0": 4, "g_b-0": 4, "g_c-0": 4}
    assert not all(advertises(server, member) for member in members)
    server.refuse(PLAN)
    time_passes(RETRY_S + 1, members)
    assert all(advertises(server, member) for member in members)
    assert planned(server) == owners(server)


def test_a_plan_whose_watch_was_lost_is_read_in_time(server: FakeZooKeeper, time_passes: Pass) -> None:
    members = group(server, "abc")
    for member in members:
        member.session.lose_watches()
    server.remove(PLAN)
    settle(members)
    for member in members:
        member.schedule.reconcile_at = 0.0
    settle(members)
    assert planned(server) == owners(server)
    assert counts(server) == {"g_a-0": 4, "g_b-0": 4, "g_c-0": 4}


def test_loads_are_published_and_move_partitions(server: FakeZooKeeper, time_passes: Pass) -> None:
    members = [placed_member(server, name, strategy="lag-aware") for name in "ab"]
    settle(members)
    before = owners(server)
    node = node_at(server, paths.member_loads(GROUP, "g_a"))
    assert json.loads(node.data) == {"version": 1, "loads": {}}, "nothing was fetched yet"
    for _ in range(PAUSE_LOOKS + LOOKS + 3):
        for member in members:
            for position in member.owned.values():
                rate = 100 if before[position.tp.partition] == "g_a-0" else 1
                position.cursor.log_end = position.consumed = max(0, position.cursor.log_end) + 60 * rate
            member.events.put(LookAgain("a reconciliation"))
        time_passes(60.0, [])
        for member in members:
            member.step(3)
    settle(members)
    after = owners(server)
    assert sum(before[n] != after[n] for n in range(12)) == 3
    assert counts(server) == {"g_a-0": 3, "g_b-0": 9}
