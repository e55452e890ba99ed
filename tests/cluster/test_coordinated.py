"""Our member processes in a group that the brokers coordinate: killed, suspended and restarted under load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

from tests.cluster.conftest import NewTopic
from tests.cluster.our_member import OurMember
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

SESSION_MS = 6000  # the least that a broker allows by default


def properties(cluster: DevCluster, **more: Any) -> dict[str, object]:
    return {
        "group.coordination": "kafka",
        "bootstrap.servers": cluster.bootstrap_servers,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 200,
        "auto.commit.interval.ms": 200,
        "auto.offset.reset": "smallest",
        "partition.assignment.strategy": "cooperative-sticky",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def places(*members: OurMember) -> Counter[tuple[int, int]]:
    return Counter((m.partition, m.offset) for member in members for m in member.messages)


def partitions_since(member: OurMember, count: int) -> set[int]:
    return {m.partition for m in member.messages[count:]}


def test_what_a_killed_member_owned_goes_on_at_its_last_commit(
    cluster: DevCluster,
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
) -> None:
    topic, group = new_topic(4), new_group()
    stays = our_member(group, {topic: 1}, properties=properties(cluster)).wait_ready()
    dies = our_member(group, {topic: 1}, properties=properties(cluster)).wait_ready()
    sent = 0

    def send(count: int = 40) -> None:
        nonlocal sent
        produce(topic, [b"%d" % n for n in range(sent, sent + count)], partitions=4)
        sent += count

    def both_read() -> bool:
        send()
        return len(partitions_since(stays, 0)) >= 2 and len({m.partition for m in dies.messages}) == 2

    eventually(both_read, 30, "both to own partitions")
    dies.kill()
    killed_at, before = monotonic(), len(stays.messages)

    def all_here() -> bool:
        send(4)
        return partitions_since(stays, before) == {0, 1, 2, 3}

    eventually(all_here, 30, "the other one to own everything")
    took = monotonic() - killed_at
    print(f"{took:.2f} s after the kill (session.timeout.ms={SESSION_MS})")
    eventually(lambda: len(places(stays, dies)) == sent, 20, "every message")
    found = places(stays, dies)
    repeated = {place for place, times in found.items() if times > 1}
    print(f"{sent} messages, lost {sent - len(found)}, repeated {len(repeated)}")
    ours = {(m.partition, m.offset) for m in dies.messages}
    assert repeated <= ours  # what it had not committed yet
    assert max(found.values()) <= 2


def test_a_resumed_member_hands_out_nothing_after_its_session(
    cluster: DevCluster,
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
) -> None:
    """A stale owner: it has messages in its queues and a lease that ended while it could not look."""
    topic, group = new_topic(2), new_group()
    produce(topic, [b"%d" % n for n in range(400)], partitions=2)
    slow = our_member(group, {topic: 1}, pause_ms=20, properties=properties(cluster)).wait_ready()
    slow.wait_messages(20)
    slow.suspend()
    other = our_member(group, {topic: 1}, properties=properties(cluster)).wait_ready(scaled(60))
    eventually(lambda: len(places(slow, other)) == 400, 60, "the other one to read the rest")
    had = len(slow.messages)
    slow.resume()
    produce(topic, [b"%d" % n for n in range(400, 500)], partitions=2)
    eventually(lambda: len(places(slow, other)) == 500, 30, "the rest")
    again = places(slow, other)
    stale = [(m.partition, m.offset) for m in slow.messages[had:] if m.offset < 200]
    print(f"handed out after the session's end: {len(stale)}; in all {sum(again.values()) - 500} repeated")
    assert len(stale) <= 1  # the message that was on its way to the application when it was suspended


def test_a_rolling_restart_repeats_nothing(
    cluster: DevCluster,
    our_member: Callable[..., OurMember],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
) -> None:
    """Members that restart one after the other repeat no message."""
    topic, group = new_topic(4), new_group()
    members = [our_member(group, {topic: 1}, properties=properties(cluster)).wait_ready() for _ in range(3)]
    ended: list[OurMember] = []
    sent = 0
    for number in range(3):
        produce(topic, [b"%d" % n for n in range(200)], partitions=4)
        sent += 200
        assert members[number].stop() is not None, members[number].log_text()
        ended.append(members[number])
        members[number] = our_member(group, {topic: 1}, properties=properties(cluster)).wait_ready()
    eventually(lambda: len(places(*members, *ended)) == sent, 30, "every message")
    assert set(places(*members, *ended).values()) == {1}
