"""A member between ZooKeeper and the brokers: who coordinates, what is ours then, and what is waited for."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import BrokerUnavailableError
from zkconsumer.member import migration_bridge as module
from zkconsumer.member.events import LookAgain
from zkconsumer.member.migration_bridge import Bridge, BrokersWish, Lookout, WishedPartitions, members_beside
from zkconsumer.member.zookeeper.claim_plan import GroupView, threads_of
from zkconsumer.model import Assignment, ConsumerId, TopicPartition, thread_id
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import node_codecs

ME, OTHER = ConsumerId("g_me"), ConsumerId("g_other")
T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
BRIDGE = Registration(STATIC, {"t": 1}, extra={"coordination": "kafka"})
OLD = Registration(STATIC, {"t": 1})
MINE = thread_id(ME, 0)


class World:
    """One bridge; ``owned`` is what it owns in ZooKeeper, ``clients`` who is in the brokers' group."""

    def __init__(self, patience: float = scaled(30)) -> None:
        self.told: SimpleQueue[LookAgain] = SimpleQueue()
        self.kafka: SimpleQueue[Any] = SimpleQueue()
        self.owned: dict[TopicPartition, PartitionPosition] = {}
        self.clients: Collection[str] | Exception = []
        self.failure: Exception | None = None
        self.wish, self.lookout = BrokersWish(self.told.put, patience), Lookout(ME, self.ask, self.told.put)
        self.bridge = Bridge(ME, self.zookeepers, self.kafka, self.wish, self.lookout)
        self.bridge.attach(self.positions)
        self.wished = WishedPartitions(self.wish)

    def zookeepers(self, view: GroupView, threads: object) -> Assignment:
        if self.failure is not None:
            raise self.failure
        return {T0: MINE, T1: thread_id(OTHER, 0)}

    def ask(self) -> Collection[str]:
        if isinstance(self.clients, Exception):
            raise self.clients
        return self.clients

    def positions(self) -> dict[TopicPartition, PartitionPosition]:
        return dict(self.owned)

    def own(self, *partitions: TopicPartition) -> None:
        self.owned = {tp: PartitionPosition(tp, MINE, 0) for tp in partitions}

    def own_by_brokers(self, *partitions: TopicPartition) -> None:
        """Own what the coordinator gave us, after a round that has carried that out."""
        self.plan(BRIDGE)
        self.wished.partitions = dict.fromkeys(partitions, 0)
        self.wish.given(self.wished.partitions)
        self.plan(BRIDGE)
        self.bridge.concluded()
        self.own(*partitions)

    def plan(self, *others: Registration, me: bool = True) -> Assignment:
        members = {ConsumerId(f"g_{number}"): other for number, other in enumerate(others)}
        if me:
            members[ME] = BRIDGE
        view = GroupView(members, {"t": (0, 1, 2)})
        return self.bridge(view, threads_of(view, exclude_internal_topics=True))

    def asked(self) -> list[dict[str, int]]:
        """The subscriptions that the brokers' side was told."""
        found = []
        while not self.kafka.empty():
            found.append(dict(self.kafka.get().revise({})))
        return found

    def looks(self) -> int:
        count = 0
        while not self.told.empty():
            self.told.get()
            count += 1
        return count


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.bridge.close()


def test_zookeeper_coordinates_while_one_member_is_no_bridge(world: World) -> None:
    assert world.plan(OLD, BRIDGE) == world.zookeepers(GroupView({}, {}), None)
    assert world.asked() == []


def test_the_brokers_coordinate_if_all_members_are_bridges(world: World) -> None:
    """The brokers coordinate where all are bridges and until they have what is owned is kept."""
    world.own(T0)
    assert world.plan(BRIDGE) == {T0: MINE}
    assert world.asked() == [{"t": 1}]
    assert world.plan(BRIDGE) == {T0: MINE}
    assert world.asked() == [], "once is enough"
    world.wish.given({T1: 0, T2: 0})
    assert world.looks() == 1
    assert world.plan(BRIDGE) == {T1: MINE, T2: MINE}


def test_a_new_bridge_claims_nothing_before_the_brokers_say_so(world: World) -> None:
    assert world.plan() == {}  # members that the brokers alone know may own it
    world.wish.given({})
    assert world.plan() == {}


def test_what_the_brokers_took_is_released_before_a_claim(world: World) -> None:
    """Another member may have owned the partition meanwhile. Going on with it would repeat that member's messages."""
    world.own_by_brokers(T0, T1)
    world.plan(BRIDGE)  # a round that begins before the loss and ends after it
    world.wished.lose("removed")
    world.wish.given({T0: 0, T2: 0})
    world.bridge.concluded()
    assert world.plan(BRIDGE) == {T2: MINE}
    world.own(T2)
    world.looks()
    world.bridge.concluded()
    assert world.looks() == 1
    assert world.plan(BRIDGE) == {T0: MINE, T2: MINE}
    world.bridge.concluded()
    assert world.looks() == 0


def test_zookeeper_goes_on_with_nothing_that_the_brokers_took(world: World) -> None:
    world.own_by_brokers(T0)
    world.wished.lose("removed")
    world.looks()
    world.plan(BRIDGE, OLD)
    eventually(world.looks, 10, "the look to be over")
    assert world.plan(BRIDGE, OLD) == {T1: thread_id(OTHER, 0)}
    world.own()
    world.bridge.concluded()
    assert world.looks() == 1
    assert world.plan(BRIDGE, OLD) == world.zookeepers(GroupView({}, {}), None)


def test_a_plan_that_fails_releases_nothing(world: World) -> None:
    world.own_by_brokers(T0)
    world.looks()
    world.plan(BRIDGE, OLD)
    eventually(world.looks, 10, "the look to be over")
    world.wished.lose("removed")
    world.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        world.plan(BRIDGE, OLD)
    world.bridge.concluded()
    world.failure = None
    assert world.plan(BRIDGE, OLD) == {T1: thread_id(OTHER, 0)}


def test_an_empty_brokers_group_is_left_for_a_foreign_member(world: World) -> None:
    world.clients = [ME, "g_0"]
    world.plan(BRIDGE)
    world.wish.given({T2: 0})
    world.asked(), world.looks()
    assert world.plan(BRIDGE, OLD) == {T2: MINE}, "nothing is done before it is known who is there"
    eventually(world.looks, 10, "the look to be over")
    assert world.plan(BRIDGE, OLD) == world.zookeepers(GroupView({}, {}), None)
    assert world.asked() == [{}]
    world.wish.given({T2: 0})  # what comes too late
    assert world.plan(BRIDGE, OLD) == world.zookeepers(GroupView({}, {}), None)


def test_it_is_not_left_to_members_that_the_brokers_alone_know(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN", 0.01)
    world.clients = [ME, "java"]
    world.plan()
    world.wish.given({T2: 0})
    world.asked(), world.looks()
    assert world.plan(OLD) == {T2: MINE}
    eventually(lambda: "java with the brokers alone" in world.lookout.concern, 10, "a word about it")
    world.clients = BrokerUnavailableError("no answer")
    eventually(lambda: "cannot be seen: no answer" in world.lookout.concern, 10, "a word about that")
    assert world.plan(OLD) == {T2: MINE}
    assert (world.looks(), world.asked()) == (0, [])
    world.clients = [ME]
    eventually(world.looks, 10, "the other one to be gone")
    assert world.lookout.concern == ""
    world.plan(OLD)
    assert world.asked() == [{}]


def test_a_look_that_ends_too_late_is_not_heeded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: SimpleQueue[threading.Thread] = SimpleQueue()
    answer = threading.Event()

    def slow() -> Collection[str]:
        asked.put(threading.current_thread())
        answer.wait(scaled(10))
        return [ME]

    monkeypatch.setattr(world.lookout, "_clients", slow)
    world.plan()
    world.wish.given({T2: 0})
    world.plan(OLD)
    look = asked.get(timeout=scaled(10))
    world.plan()
    answer.set()
    look.join(scaled(10))
    world.asked()
    monkeypatch.setattr(world.lookout, "_clients", lambda: [ME, "java"])
    assert world.plan(OLD) == {T2: MINE}
    assert world.asked() == [], "java came after that look"


def test_a_view_without_us_changes_nothing_on_the_brokers_side(world: World) -> None:
    world.plan(BRIDGE)
    world.asked()
    world.plan(OLD, me=False)
    assert world.asked() == []


@pytest.mark.parametrize("ending", ["close", "leave"])
def test_nobody_waits_for_a_release_that_will_not_be(world: World, ending: str) -> None:
    world.plan()
    world.wish.given({T0: 0})
    waiting = threading.Thread(target=world.wish.released, daemon=True)
    waiting.start()
    if ending == "close":
        world.bridge.close()
    else:
        world.looks()
        world.plan(OLD)
        eventually(world.looks, 10, "the look")
        world.plan(OLD)
    waiting.join(scaled(10))
    assert not waiting.is_alive()


def test_a_release_that_takes_too_long_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    world = World(patience=0.01)
    world.plan()
    world.wish.given({T0: 0})
    world.wish.released()
    assert "are not released after" in caplog.text


def test_what_the_brokers_refuse_is_shown_and_stops_nothing(world: World) -> None:
    world.wished.refuse(BrokerUnavailableError("no"))
    assert "no" in world.wished.trouble
    world.wished.refuse(None)
    assert world.wished.trouble == ""


def test_members_that_are_no_bridges_are_found_before_a_join() -> None:
    server = FakeZooKeeper()
    session = server.session()
    session.open(Deadline(scaled(5)))
    assert members_beside(session, "g", Deadline(scaled(5))) == []
    server.put("/consumers/g/ids/g_me", node_codecs.encode_registration(BRIDGE), ephemeral_owner=7)
    assert members_beside(session, "g", Deadline(scaled(5))) == []
    server.put("/consumers/g/ids/g_old", node_codecs.encode_registration(OLD), ephemeral_owner=7)
    server.put("/consumers/g/ids/g_odd", b"rubbish", ephemeral_owner=7)
    assert members_beside(session, "g", Deadline(scaled(5))) == ["g_odd", "g_old"]
    session.close(Deadline(scaled(5)))
