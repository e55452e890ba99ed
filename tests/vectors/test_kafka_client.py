"""The strategies of Kafka's new consumer, as 3.9.1 computed them; the sticky ones by their promises."""

from __future__ import annotations

from tests.vectors.cases import Case
from zkconsumer.assignors import java_consumer_assignors as java
from zkconsumer.assignors.java_consumer_assignors import MemberPartitions, SubscribedMember
from zkconsumer.model import TopicPartition

FILES = ("kafka391_range", "kafka391_roundrobin", "kafka391_sticky", "kafka391_cooperative_sticky")

STRATEGIES = {
    "kafka391_range": java.range_assignment,
    "kafka391_roundrobin": java.roundrobin_assignment,
    "kafka391_sticky": java.sticky,
    "kafka391_cooperative_sticky": java.cooperative_sticky,
}


def members_of(case: Case) -> dict[str, SubscribedMember]:
    return {
        name: SubscribedMember(
            topics=member["topics"],
            owned=[TopicPartition(*partition) for partition in member["owned"]],
            generation=member["generation"],
            instance=member.get("instance"),
        )
        for name, member in case.data["members"].items()
    }


def moved(members: dict[str, SubscribedMember], result: MemberPartitions) -> int:
    """How many partitions their former owners lose."""
    return sum(partition not in result[name] for name, member in members.items() for partition in member.owned)


def test_the_group_is_assigned_as_by_the_new_consumer(case: Case) -> None:
    members = members_of(case)
    found = STRATEGIES[case.file](members, case.data["topics"])
    recorded = {
        name: [TopicPartition(*partition) for partition in owned] for name, owned in case.data["result"].items()
    }
    if "sticky" not in case.file:
        assert {name: sorted(owned) for name, owned in found.items()} == {
            name: sorted(owned) for name, owned in recorded.items()
        }
        return
    check_promises(members, case.data["topics"], found, all_at_once=case.file == "kafka391_sticky")
    if len({frozenset(member.topics) for member in members.values()}) == 1:
        if not any(member.owned for member in members.values()):
            assert {name: sorted(owned) for name, owned in found.items()} == {
                name: sorted(owned) for name, owned in recorded.items()
            }, "nothing is held, so that there is one answer"
        assert moved(members, found) <= moved(members, recorded), "it moves more than Kafka does"


def check_promises(
    members: dict[str, SubscribedMember], topics: dict[str, int], found: MemberPartitions, *, all_at_once: bool
) -> None:
    given = [partition for owned in found.values() for partition in owned]
    assert len(given) == len(set(given)), "a partition has two owners"
    for name, owned in found.items():
        assert {partition.topic for partition in owned} <= set(members[name].topics), "not subscribed"
    wanted = {topic for member in members.values() for topic in member.topics}
    everything = {TopicPartition(topic, n) for topic, count in topics.items() if topic in wanted for n in range(count)}
    held = {partition for member in members.values() for partition in member.owned}
    missing = everything - set(given)
    assert set(given) <= everything
    assert missing <= (set() if all_at_once else held), "only what still has to be released may be left out"
    if not missing and len({frozenset(member.topics) for member in members.values()}) == 1:
        counts = [len(owned) for owned in found.values()]
        assert max(counts) - min(counts) <= 1, "not balanced"
