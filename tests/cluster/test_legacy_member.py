"""The original connector as a peer: tests can start, read, stop and kill it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.legacy_member import VERSIONS, LegacyMember


@pytest.mark.parametrize("version", VERSIONS)
def test_a_legacy_member_consumes_everything_and_leaves_cleanly(
    version: str,
    legacy_member: Callable[..., LegacyMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    topic, group = new_topic(4), new_group()
    values = [None if n == 7 else f"{n} \u00fc\n".encode() for n in range(200)]
    produce(topic, values, partitions=4, key=lambda n: None if n % 3 else str(n))
    member = legacy_member(version, group, {topic: 2}, properties={"consumer.id": "old"}).wait_ready()
    got = member.wait_messages(200)
    assert sorted(m.value or b"" for m in got) == sorted(v or b"" for v in values)
    assert sorted((m.partition, m.offset) for m in got) == [(p, o) for p in range(4) for o in range(50)]
    assert {m.key for m in got if m.value and m.value.startswith(b"3 ")} == {b"3"}
    owners = owners_of(zookeeper, group, topic)
    assert owners == {p: f"{group}_old-{p // 2}" for p in range(4)}
    totals = member.stop()
    assert totals is not None
    assert totals.messages == 200
    assert owners_of(zookeeper, group, topic) == {}
    assert zookeeper.get(f"/consumers/{group}/offsets/{topic}/0")[0] == b"50"
