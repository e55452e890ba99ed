"""Strategies in a group: the advertised names, the warnings, and the limits of the harm by a raising strategy."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest

from tests.concurrency.group import GROUP, TOPIC, SteppedMember, make_topic, owners, settle, settled
from zkconsumer import ConsumerConfig
from zkconsumer.assignors import NO_RACKS, Members, Partitions, Racks, assignment_strategy
from zkconsumer.assignors.assignor import assignor
from zkconsumer.assignors.group_strategy import GroupStrategy
from zkconsumer.errors import UnknownAssignorError
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import NodeChanged
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths


def config(strategy: str, **properties: str) -> ConsumerConfig:
    return ConsumerConfig(zookeeper_connect="z", group_id=GROUP, partition_assignment_strategy=strategy, **properties)


def strategy(name: str, **properties: str) -> GroupStrategy:
    return assignment_strategy(config(name, **properties))


def lead(server: FakeZooKeeper, leaders: Mapping[int, int], racks: Mapping[int, str]) -> None:
    for partition, leader in leaders.items():
        state = {"controller_epoch": 1, "leader": leader, "version": 1, "leader_epoch": 0, "isr": [leader]}
        server.put(paths.partition_state(TopicPartition(TOPIC, partition)), json.dumps(state).encode())
    for broker, rack in racks.items():
        node = {
            "version": 5,
            "host": "h",
            "port": 9092,
            "jmx_port": -1,
            "timestamp": "1",
            "endpoints": ["PLAINTEXT://h:9092"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "rack": rack,
        }
        server.put(paths.broker(broker), json.dumps(node).encode())


class Failing:
    """A strategy that fails where it is told to."""

    def __init__(self) -> None:
        self.fails: BaseException | None = None
        self.inner = assignor("range")

    def assign(
        self, members: Members, partitions: Partitions, racks: Racks = NO_RACKS
    ) -> Mapping[TopicPartition, ThreadId]:
        if self.fails is not None:
            raise self.fails
        return self.inner.assign(members, partitions)


def failing(monkeypatch: pytest.MonkeyPatch) -> tuple[GroupStrategy, Failing]:
    made = strategy("range")
    chosen = Failing()
    monkeypatch.setattr(made, "_chosen", chosen)
    return made, chosen


CIRCLE = {"strategy": "average-by-circle"}


def test_our_strategy_needs_the_advertisement_of_the_whole_group(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zkconsumer.member.zookeeper.rebalance_round")
    first = settled(server, "a", strategy=strategy("average-by-circle"), extra=CIRCLE)
    old = settled(server, "b", beside=[first])
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}, "range while one member does not say"
    said = [r for r in caplog.records if "average-by-circle" in r.message]
    assert [r.levelname for r in said] == ["WARNING"], "said once, not in each round"
    assert "g_b do not advertise the strategy" in said[0].message
    assert "range is in effect" in said[0].message
    old.stop()
    settled(server, "b", strategy=strategy("average-by-circle"), extra=CIRCLE, beside=[first])
    assert owners(server) == {0: "g_a-0", 1: "g_b-0", 2: "g_a-0", 3: "g_b-0"}
    assert "the whole group agrees now" in caplog.text


@pytest.mark.parametrize("error", [ValueError("no room"), KeyError("x"), RuntimeError()])
def test_a_strategy_that_raises_leaves_the_assignment_in_force(
    server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    made, chosen = failing(monkeypatch)
    member = settled(server, "a", strategy=made)
    before = dict(member.owned)
    chosen.fails = error
    make_topic(server, 6)
    settle([member])
    assert dict(member.owned) == before
    assert all(not position.revoked for position in before.values())
    state = member.rebalancer.state
    assert (state.phase, state.owned) == (Phase.OWNING, 4)
    assert f"the strategy range failed ({type(error).__name__}" in str(state)
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    chosen.fails = None
    member.events.put(NodeChanged("/"))
    settle([member])
    assert len(member.owned) == 6
    assert member.rebalancer.state.detail == ""


def test_lost_partitions_come_back_while_the_strategy_fails(
    server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, chosen = failing(monkeypatch)
    member = settled(server, "a", strategy=made)
    chosen.fails = ValueError("no")
    member.session.expire()
    settle([member])
    assert len(member.owned) == 4
    assert owners(server) == dict.fromkeys(range(4), "g_a-0")


@pytest.mark.parametrize("error", [ValueError("no room"), SystemExit(3)])
def test_a_member_whose_strategy_fails_at_once_joins_and_says_so(
    server: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    made, chosen = failing(monkeypatch)
    chosen.fails = error
    member = settled(server, "a", strategy=made)
    assert member.rebalancer.first_round.done()
    assert server.node(paths.member(GROUP, "g_a")) is not None
    assert type(error).__name__ in str(member.rebalancer.state)


def test_racks_are_read_for_strategies_that_want_them(server: FakeZooKeeper) -> None:
    """A moved leader counts."""
    lead(server, {0: 1, 1: 2, 2: 1, 3: 2}, {1: "east", 2: "west"})
    members = [
        SteppedMember(
            server,
            name,
            strategy=strategy("machine-room-nearby"),
            extra={"strategy": "machine-room-nearby", "room": room},
        )
        for name, room in (("a", "east"), ("b", "west"))
    ]
    settle(members)
    assert owners(server) == {0: "g_a-0", 1: "g_b-0", 2: "g_a-0", 3: "g_b-0"}
    lead(server, {0: 2}, {})
    settle(members)
    assert owners(server) == {0: "g_b-0", 1: "g_b-0", 2: "g_a-0", 3: "g_b-0"}
    lead(server, {0: -1}, {})
    settle(members)
    assert owners(server) == {0: "g_b-0", 1: "g_b-0", 2: "g_a-0", 3: "g_b-0"}, "nobody leads it: as before"
    assert "Machine room is null" in str(members[0].rebalancer.state)


def test_strategies_that_ask_for_no_racks_read_no_leader(server: FakeZooKeeper) -> None:
    lead(server, {0: 1, 1: 1, 2: 1, 3: 1}, {1: "east"})
    member = settled(server, "a", strategy=strategy("roundrobin"))
    server.operations.clear()
    lead(server, {0: 2}, {2: "west"})
    settle([member])
    assert server.operations == {}


def test_the_rooms_and_the_table_are_properties(server: FakeZooKeeper) -> None:
    lead(server, {0: 1, 1: 2, 2: 1, 3: 2}, {1: "east", 2: "west"})
    member = SteppedMember(
        server,
        "a",
        strategy=strategy("machine-room", assignment_rooms=" west , north"),
        extra={"strategy": "machine-room"},
    )
    settle([member])
    assert owners(server) == {1: "g_a-0", 3: "g_a-0"}
    member.stop()
    table = "g_a = t:3, t:0; g_b=t:1"
    member = SteppedMember(
        server, "a", strategy=strategy("configured", assignment_table=table), extra={"strategy": "configured"}
    )
    settle([member])
    assert owners(server) == {0: "g_a-0", 3: "g_a-0"}


def test_members_that_subscribe_differently_are_reported_once(
    server: FakeZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zkconsumer.member.zookeeper.rebalance_round")
    make_topic(server, 2, "other")
    first, second = SteppedMember(server, "a"), SteppedMember(server, "b", topic="other")
    settle([first, second])
    third = SteppedMember(server, "c", streams=2)
    settle([first, second, third])
    said = [r for r in caplog.records if "subscribe differently" in r.message]
    assert [r.levelname for r in said] == ["INFO"] * 3, "once by each member"
    assert "g_a to static t and g_b to static other" in said[0].message


def test_an_unknown_strategy_names_the_known_ones() -> None:
    with pytest.raises(UnknownAssignorError, match="average-by-circle.*range"):
        strategy("only-green")
