"""Groups whose members are many, or register what is large: the lease lives on, and nothing stays behind."""

from __future__ import annotations

import json
from itertools import pairwise
from time import monotonic

import pytest

from tests.timing import eventually, scaled
from tests.unit.fetch.member_stream import add, reading, take
from zkconsumer.core.java_regex import translate_with_size
from zkconsumer.core.topic_filter import Whitelist
from zkconsumer.member.zookeeper.group_registration import GroupReader
from zkconsumer.model import ConsumerId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster, FakeZooKeeper
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import Look, Seen, Watch
from zkconsumer.zookeeper.session import Session


def registered(subscription: dict[str, int], pattern: str = "static") -> bytes:
    return json.dumps({"version": 1, "subscription": subscription, "pattern": pattern, "timestamp": "1"}).encode()


def test_a_registration_of_650_kb_holds_nobody_up() -> None:
    """Bug: the topics of the registration were read and watched in turn, and the memory was not given back."""
    topics = {f"topic-{number:07}": 1 for number in range(30_000)}
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        add(cluster, "ab")
        cluster.zookeeper.put("/consumers/g/offsets/t/0", b"0")
        with reading(cluster) as (connector, stream):
            take(stream, 1)
            reads = cluster.zookeeper.operations.copy()
            cluster.zookeeper.put("/consumers/g/ids/g_huge", registered(topics), ephemeral_owner=7)
            eventually(lambda: "unreadable: /consumers/g/ids/g_huge" in str(connector.state), 10, "it to be seen")
            assert sum(cluster.zookeeper.operations.values()) - sum(reads.values()) < 100
            assert take(stream, 1) == [(1, "b")]
            assert connector.state.owned == 1


def test_the_lease_is_renewed_while_a_large_group_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's thread renews it, and streams stood still while that read 10,000 members for 8 s."""
    zookeeper = FakeZooKeeper()
    zookeeper.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}')
    for number in range(50):
        content = registered({f"t|x{number}": 1}, "white_list")
        zookeeper.put(f"/consumers/g/ids/g_{number:02}", content, ephemeral_owner=7)
    session = zookeeper.session()
    session.open(deadline())
    touched: list[float] = []
    now = [monotonic()]
    monkeypatch.setattr(session, "touch", lambda: touched.append(now[0]))

    def slowly() -> float:
        now[0] += 0.1
        return now[0]

    monkeypatch.setattr("zkconsumer.member.zookeeper.group_registration.monotonic", slowly)
    cache = NodeCache(session, lambda _: None)
    assert len(reader(session, cache).view(deadline()).members) == 50
    pauses = [after - before for before, after in pairwise(touched)]
    assert len(touched) > 5
    assert max(pauses) < session.timeout / 4


def test_nothing_stays_of_members_that_left() -> None:
    zookeeper = FakeZooKeeper()
    for number in range(50):
        zookeeper.put(f"/consumers/g/ids/g_{number:02}", registered({"t": 1}), ephemeral_owner=7)
    session = zookeeper.session()
    session.open(deadline())
    cache = NodeCache(session, lambda _: None)
    members = reader(session, cache)
    assert len(members.view(deadline()).members) == 50
    for number in range(1, 50):
        zookeeper.remove(f"/consumers/g/ids/g_{number:02}")
    assert list(members.view(deadline()).members) == ["g_00"]
    assert list(cache.known([paths.member("g", f"g_{number:02}") for number in range(50)])) == [
        paths.member("g", "g_00")
    ]


def test_no_watch_stays_on_a_member_that_has_just_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member left between the listing and the reading, and a watch waited for its node until the session's end.

    Members have new names each time. Of 8,000 rebalances 507 left such a watch in one member.
    """
    zookeeper, told = FakeZooKeeper(), list[str]()
    gone = paths.member("g", "g_01")
    for number in range(2):
        zookeeper.put(f"/consumers/g/ids/g_{number:02}", registered({"t": 1}), ephemeral_owner=7)
    session = zookeeper.session()
    session.open(deadline())
    look = session.look

    def leaves_before(wanted: Look, deadline: Deadline, watch: Watch | None = None) -> Seen:
        if gone in (*wanted.nodes, *wanted.existing) and zookeeper.node(gone) is not None:
            zookeeper.remove(gone)
        return look(wanted, deadline, watch)

    monkeypatch.setattr(session, "look", leaves_before)
    members = reader(session, NodeCache(session, told.append))

    assert list(members.view(deadline()).members) == ["g_00"]
    assert told == [paths.ids("g")], "which makes another round"
    assert list(members.view(deadline()).members) == ["g_00"]

    told.clear()
    zookeeper.put(gone, registered({"t": 1}), ephemeral_owner=7)
    assert told == [paths.ids("g")]


def test_few_large_expressions_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regex package caches 500 patterns, however large they are."""
    compiled: list[str] = []

    def translate(text: str) -> tuple[str, int]:
        compiled.append(text)
        return translate_with_size(text)

    monkeypatch.setattr("zkconsumer.core.topic_filter.translate_with_size", translate)
    expressions = [f"{number}|" + "(a{4096})" * 8 for number in range(20)]
    for expression in expressions:
        Whitelist(expression)
    assert compiled == expressions
    for expression in reversed(expressions):
        Whitelist(expression)
    assert 16 <= len(compiled) - 20 < 20, "the last few are cached, and no more than these"


def reader(session: Session, cache: NodeCache) -> GroupReader:
    return GroupReader(session, cache, "g", ConsumerId("g_00"), exclude_internal_topics=True)


def deadline() -> Deadline:
    return Deadline(scaled(10))
