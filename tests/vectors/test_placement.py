"""Placement: recorded chains of plans, and the groups that the Java consumer's sticky assignor was recorded with."""

from __future__ import annotations

from collections import Counter

from tests.vectors.cases import Case
from tests.vectors.recording.plans import replayed
from tests.vectors.test_kafka_client import members_of
from zkconsumer.assignors.sticky_placement import fewest_moves
from zkconsumer.model import ThreadId, TopicPartition

FILES = ("zkconsumer_plans", "kafka391_sticky")


def test_a_group_is_placed_as_recorded(case: Case) -> None:
    if case.file == "zkconsumer_plans":
        assert replayed(case.data) == case.data["results"]
    else:
        check_beside_kafka(case)


def check_beside_kafka(case: Case) -> None:
    """Kafka evens out totals only. Ours may move more partitions, as the topics need, and is never less even."""
    members = members_of(case)
    topics = case.data["topics"]
    threads = {t: [ThreadId(name) for name in sorted(members) if t in members[name].topics] for t in topics}
    claims: dict[TopicPartition, tuple[int, ThreadId]] = {}
    for name, member in members.items():
        for partition in member.owned:
            claims[partition] = max(claims.get(partition, (-9, ThreadId(""))), (member.generation, ThreadId(name)))
    before = {tp: thread for tp, (_, thread) in claims.items()}
    found = fewest_moves(threads, {t: range(count) for t, count in topics.items()}, before)
    assert set(found) == {TopicPartition(t, n) for t, listed in threads.items() if listed for n in range(topics[t])}
    if len({frozenset(member.topics) for member in members.values()}) == 1:
        counts = Counter(found.values())
        assert max(counts.values(), default=0) - min((counts[ThreadId(name)] for name in members), default=0) <= 1
    if len(topics) == 1:
        kafka = {TopicPartition(*tp): name for name, owned in case.data["result"].items() for tp in owned}
        assert sum(before[tp] == found.get(tp) for tp in before) >= sum(before[tp] == kafka.get(tp) for tp in before)
