"""The original Scala connector and ours in one group, which proves that they follow the same protocol.

After each step the test computes the owners itself (``by_range``). Every acknowledged message must be consumed. Every
message that was consumed twice needs a cause: a crash, or the original, which hands out fetched messages before it
notices a rebalance.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.even_load import EvenLoad
from tests.cluster.in_process import by_range, offsets_of
from tests.cluster.legacy_member import VERSIONS, LegacyMember
from tests.cluster.member_process import MemberProcess
from tests.cluster.our_member import OurMember
from tests.timing import eventually
from zkconsumer.devcluster import DevCluster

PARTITIONS = 12
SETTLED_S = 25.0


class MixedGroup:
    """The members of a group over its life, and the owners of the partitions after each step."""

    def __init__(self, zookeeper: KazooClient, name: str, topic: str) -> None:
        self.zookeeper, self.name, self.topic = zookeeper, name, topic
        self.members: dict[str, MemberProcess] = {}  # everybody there ever was, by consumer id
        self.present: set[str] = set()
        self.killed: set[str] = set()
        self.steps: list[dict[int, str]] = [{}]  # partition -> consumer id

    def joined(self, *members: MemberProcess) -> None:
        for member in members:
            self.members[member.consumer_id] = member.wait_ready()
            self.present.add(member.consumer_id)
        self.settle("joined: " + ", ".join(member.consumer_id for member in members))

    def leaves(self, member: MemberProcess, *, under_load: bool = True) -> None:
        assert member.stop() is not None, member.log_text()
        self.present.remove(member.consumer_id)
        self.settle(f"left: {member.consumer_id}", under_load=under_load)

    def dies(self, member: MemberProcess) -> None:
        member.kill()
        self.present.remove(member.consumer_id)
        self.killed.add(member.consumer_id)
        self.settle(f"killed: {member.consumer_id}")

    def settle(self, what: str, *, under_load: bool = True) -> None:
        """Wait until each partition has its owner by range and, under load, all members consume."""
        threads = {
            f"{consumer_id}-{number}": consumer_id
            for consumer_id in self.present
            for number in range(self.members[consumer_id].streams)
        }
        expected = by_range(threads, range(PARTITIONS)) if threads else {}

        def settled() -> bool:
            assert owners_of(self.zookeeper, self.name, self.topic) == expected
            return True

        eventually(settled, SETTLED_S, f"the right owners after {what}")
        owners = {partition: threads[thread] for partition, thread in expected.items()}
        self.steps.append(owners)
        for consumer_id in set(owners.values()) if under_load else ():
            member, seen = self.members[consumer_id], len(self.members[consumer_id].messages)
            member.wait_messages(seen + 1)

    def consumed_by(self) -> dict[tuple[int, int], list[str]]:
        found: dict[tuple[int, int], list[str]] = defaultdict(list)
        for consumer_id, member in self.members.items():
            for message in member.messages:
                found[message.partition, message.offset].append(consumer_id)
        return found

    def lost_by_the_original(self) -> set[tuple[int, int]]:
        """Return the messages that a killed member of the original may have lost.

        The original commits a message at the hand-out, and may die between the commit and the report.
        """
        lost = set()
        for consumer_id in self.killed:
            member = self.members[consumer_id]
            if isinstance(member, LegacyMember):
                last = {message.partition: message.offset for message in member.messages}
                lost |= {(partition, offset + 1) for partition, offset in last.items()}
        return lost

    def wait_for_all(self, produced: set[tuple[int, int]]) -> None:
        def nothing_missing() -> bool:
            missing = sorted(produced - self.consumed_by().keys() - self.lost_by_the_original())
            assert not missing, f"{len(missing)} not consumed: {self.circumstances(missing[0])} ... {missing[-1]}"
            return True

        eventually(nothing_missing, SETTLED_S, "the consumption of every produced message")

    def circumstances(self, place: tuple[int, int]) -> str:
        """Return the members that had the messages around a missing one, for the message of a failure."""
        partition, offset = place
        around = {
            o: consumers
            for (p, o), consumers in sorted(self.consumed_by().items())
            if p == partition and abs(o - offset) < 5
        }
        return f"{place}, around it {around}, owners {[step.get(partition) for step in self.steps]}"

    def explain(self, place: tuple[int, int], consumers: list[str]) -> str:
        """Return the cause of a repeated message."""
        ours = [c for c in consumers if isinstance(self.members[c], OurMember)]
        if self.killed.intersection(consumers):
            return "crash"
        if not ours:
            return "the original's own"
        for before, after in pairwise(self.steps):
            giver, taker = before.get(place[0]), after.get(place[0])
            if giver != taker and giver in consumers and taker in consumers:
                if giver not in ours:
                    return "given up by the original"
                return "read before its claim" if self.read_too_early(giver, taker, place) else "OURS"
        return "OURS"

    def read_too_early(self, giver: str, taker: str, place: tuple[int, int]) -> bool:
        """Return whether a member of the original read a partition's offset while one of ours still owned it.

        In an attempt the original first reads the offsets, then claims, and does not read again. If our member commits
        and releases in between, the original still begins at the previous commit. An attempt that begins later, after
        a conflict and its pause, is no such excuse.
        """
        partition, offset = place
        given_up = max(message.at for message in self.members[giver].messages if message.partition == partition)
        member = self.members[taker]
        assert isinstance(member, LegacyMember)
        began = max(
            (began for began, starts in member.attempts() if starts.get((self.topic, partition), offset + 1) <= offset),
            default=float("inf"),
        )
        return began < given_up + 0.2


@pytest.mark.parametrize("version", VERSIONS)
def test_members_of_both_kinds_join_leave_and_die_in_one_group(
    version: str,
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    cluster: DevCluster,
    zookeeper: KazooClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, name = new_topic(PARTITIONS), new_group()
    group = MixedGroup(zookeeper, name, topic)

    def ours(suffix: str, streams: int) -> OurMember:
        return our_member(name, {topic: streams}, properties={"consumer.id": suffix})

    def original(suffix: str, streams: int) -> LegacyMember:
        return legacy_member(version, name, {topic: streams}, properties={"consumer.id": suffix})

    with EvenLoad(cluster.bootstrap_servers, topic, PARTITIONS, each=1, pause_s=0.02) as producing:
        # the thread order mixes both kinds of members, and the thread of c-1 sorts between the threads of c
        first = ours("c", 3)
        group.joined(first)
        second = original("b", 2)
        group.joined(second)
        third = ours("c-1", 1)
        group.joined(third)
        fourth = original("D", 2)
        group.joined(fourth)
        group.leaves(first)
        group.dies(second)
        fifth = ours("a", 2)
        group.joined(fifth)
        group.dies(third)
        sixth = original("e", 1)
        group.joined(sixth)
        group.leaves(fourth)
        group.leaves(fifth)
    produced = set(producing.stop())
    group.wait_for_all(produced)
    group.leaves(sixth, under_load=False)
    consumed = group.consumed_by()
    lost = produced - set(consumed)
    assert len(lost) <= second.streams, "the original may lose what each of its threads had in hand when it was killed"
    assert set(consumed) <= produced
    assert offsets_of(zookeeper, name, topic) == {p: 1 + max(o for q, o in produced if q == p) for p in range(12)}
    repeated = {place: consumers for place, consumers in consumed.items() if len(consumers) > 1}
    reasons = {place: group.explain(place, consumers) for place, consumers in repeated.items()}
    counts = {reason: list(reasons.values()).count(reason) for reason in sorted(set(reasons.values()))}
    with capsys.disabled():
        print(f"\n  {version}: {len(produced)} messages, lost {len(lost)}, repeated {counts or 'none'}")
    ours_twice = {place: repeated[place] for place, reason in reasons.items() if reason == "OURS"}
    assert not ours_twice, f"repeated on a clean move of ours: {dict(list(ours_twice.items())[:5])}"
    for member in group.members.values():
        assert " ERROR " not in member.log_text() or isinstance(member, LegacyMember), member.log_text()


def form_of(data: bytes, *names: str) -> str:
    """Return a node's text with placeholders for the member's own names. All other bytes stay."""
    text = data.decode()
    for number, name in enumerate(names):
        text = text.replace(name, f"<{number}>")
    return re.sub(r'"timestamp":"\d{13}"', '"timestamp":"<ms>"', text)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["topics", "whitelist", "blacklist"])
def test_our_nodes_have_the_bytes_of_the_originals(
    version: str,
    kind: str,
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    topic = new_topic(2)
    subscriptions: dict[str, dict[str, Any]] = {
        "topics": {"topics": {topic: 2}},
        "whitelist": {"whitelist": f" {topic} , no-such-[a-z]+", "streams": 2},
        "blacklist": {"blacklist": f"(?!{topic}$).*", "streams": 2},
    }
    subscription = subscriptions[kind]
    produce(topic, [b"x"] * 10, partitions=2)
    seen = []
    members: list[MemberProcess] = [
        legacy_member(version, new_group(), **subscription, properties={"consumer.id": "one"}),
        our_member(new_group(), **subscription, properties={"consumer.id": "one"}),
    ]
    for member in members:
        member.wait_ready().wait_messages(10)
        base = f"/consumers/{member.group}"
        nodes = {}
        names = (member.group, topic)
        group = member.group
        eventually(lambda group=group: offsets_of(zookeeper, group, topic) == {0: 5, 1: 5}, 10, "commits")  # type: ignore[misc]
        for path in [f"{base}/ids/{member.consumer_id}"] + [
            f"{base}/{what}/{topic}/{p}" for what in ("owners", "offsets") for p in (0, 1)
        ]:
            data, stat = zookeeper.get(path)
            acl = zookeeper.get_acls(path)[0]
            nodes[form_of(path.encode(), *names)] = (form_of(data, *names), bool(stat.ephemeralOwner), acl)
        assert sorted(zookeeper.get_children(base)) == ["ids", "offsets", "owners"]
        seen.append(nodes)
    theirs, ours = seen
    registration = "/consumers/<0>/ids/<0>_one"
    their_text, *their_stat = theirs.pop(registration)
    our_text, *our_stat = ours.pop(registration)
    assert ours == theirs
    assert our_stat == their_stat
    # ours tells more, after all that the original tells, and no number: up to 0.11 one beyond 32 bits is deadly
    assert our_text.startswith(their_text.removesuffix("}"))
    told = json.loads(our_text)
    assert all(isinstance(told[name], str) for name in told.keys() - json.loads(their_text).keys())


@pytest.mark.parametrize("version", VERSIONS)
def test_an_expression_of_ours_is_understood_by_the_original(
    version: str,
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    zookeeper: KazooClient,
) -> None:
    """Releases 1.0.1 to 1.1.1 escape an expression twice when they write it. They read our expressions correctly."""
    topic, name = new_topic(4), new_group()
    ours = our_member(name, whitelist=re.escape(topic) + r"|a\.b/c\"\u00fc", streams=2)
    ours.wait_ready()
    old = legacy_member(version, name, {topic: 1}, properties={"consumer.id": "~"}).wait_ready()
    (our_id,) = set(zookeeper.get_children(f"/consumers/{name}/ids")) - {old.consumer_id}
    assert "\\" in json.loads(zookeeper.get(f"/consumers/{name}/ids/{our_id}")[0])["subscription"].popitem()[0]
    expected = by_range([f"{our_id}-0", f"{our_id}-1", f"{old.consumer_id}-0"], range(4))
    eventually(lambda: owners_of(zookeeper, name, topic) == expected, SETTLED_S, "a share of each")


def test_a_backslash_at_scala_1_1_1_matches_nothing(
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    zookeeper: KazooClient,
) -> None:
    """A member of Scala 1.1.1 reads its own doubled escapes, so a filter with a backslash matches no topic."""
    topic, name = new_topic(4), new_group()
    expression = topic.replace("-", r"\-")
    old = legacy_member("1.1.1", name, whitelist=expression, properties={"consumer.id": "b"}).wait_ready()
    node = json.loads(zookeeper.get(f"/consumers/{name}/ids/{old.consumer_id}")[0])
    assert list(node["subscription"]) == [expression.replace("\\", "\\\\")]
    ours = our_member(name, whitelist=expression, properties={"consumer.id": "a"}).wait_ready()
    expected = by_range([f"{ours.consumer_id}-0"], range(4))
    eventually(lambda: owners_of(zookeeper, name, topic) == expected, SETTLED_S, "all of it at ours")
    plain = legacy_member("1.1.1", name, whitelist=topic, properties={"consumer.id": "~"}).wait_ready()
    expected = by_range([f"{ours.consumer_id}-0", f"{plain.consumer_id}-0"], range(4))
    eventually(lambda: owners_of(zookeeper, name, topic) == expected, SETTLED_S, "a half for each that matches")


def test_an_expression_of_the_original_is_understood_by_us(
    legacy_member: Callable[..., LegacyMember],
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    zookeeper: KazooClient,
) -> None:
    topic, name = new_topic(5), new_group()
    old = legacy_member(
        "0.8.2.2", name, whitelist=re.escape(topic) + ", x/y", streams=2, properties={"consumer.id": "one"}
    ).wait_ready()
    our = our_member(name, {topic: 1}, properties={"consumer.id": "two"}).wait_ready()
    expected = by_range([f"{old.consumer_id}-0", f"{old.consumer_id}-1", f"{our.consumer_id}-0"], range(5))
    eventually(lambda: owners_of(zookeeper, name, topic) == expected, SETTLED_S, "a share of each")
