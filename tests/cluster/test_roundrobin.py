"""Round robin beside the original, in both of its forms: the group settles and stays settled.

Releases up to 0.11 and from 1.0 on order partitions by the hashes of different texts. A group that mixes them never
settles. Our member uses the form of its Scala peers (``scala.compat.version``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.our_member import OurMember
from tests.timing import eventually

PARTITIONS = 12
FORMS = {"1.1.1": "{topic}-{number}", "0.8.2.2": "[{topic},{number}]"}


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (31 * value + ord(character)) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def by_round_robin(topic: str, threads: list[str], form: str) -> dict[int, str]:
    """Return the round-robin assignment, computed here: the sorted threads take partitions by the order of hashes."""
    ordered = sorted(range(PARTITIONS), key=lambda number: java_hash(form.format(topic=topic, number=number)))
    return dict(zip(ordered, cycle(sorted(threads)), strict=False))


@pytest.mark.parametrize("version", FORMS)
def test_a_mixed_round_robin_group_settles(
    version: str,
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    topic, name = new_topic(PARTITIONS), new_group()
    strategy = {"partition.assignment.strategy": "roundrobin"}
    compat = {**strategy, "scala.compat.version": version.rsplit(".", 1)[0]}
    one = our_member(name, {topic: 1}, properties={**compat, "consumer.id": "m"}).wait_ready()
    old = legacy_member(version, name, {topic: 1}, properties={**strategy, "consumer.id": "c"}).wait_ready()
    two = our_member(name, {topic: 1}, properties={**compat, "consumer.id": "b"}).wait_ready()

    def settled(*members: LegacyMember | OurMember) -> None:
        threads = [f"{member.consumer_id}-0" for member in members]
        expected = by_round_robin(topic, threads, FORMS[version])
        eventually(lambda: owners_of(zookeeper, name, topic) == expected, 25, f"round robin over {threads}")

    settled(one, old, two)
    produce(topic, [b"%d" % number for number in range(600)], partitions=PARTITIONS)
    places = {(partition, offset) for partition in range(PARTITIONS) for offset in range(50)}
    members = (one, old, two)
    eventually(
        lambda: {(m.partition, m.offset) for member in members for m in member.messages} == places, 20, "every message"
    )
    assert sum(len(member.messages) for member in members) == len(places), "nobody consumes what is another's"
    two.stop()
    settled(one, old)
    old.stop()
    settled(one)
