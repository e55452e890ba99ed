"""Why a brokers' group gives a partition to a member, in words. Pure; any thread.

The group's leader, a member, computes the assignment. ``range`` and ``roundrobin`` can be computed again from the
coordinator's description of the group. ``sticky`` depends on earlier assignments, which nobody keeps. Mirrors the Java
consumer's strategies without racks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zkconsumer.assignors.java_sticky import SubscribedMember, in_java_order
from zkconsumer.model import ThreadId, TopicPartition, utf16_key
from zkconsumer.operations.group_snapshot import BrokersGroup
from zkconsumer.operations.strategy_reasons import Arithmetic, count_of, in_block

_STICKY = ("sticky", "cooperative-sticky")


def brokers_arithmetic(
    group: BrokersGroup, partitions: Mapping[str, Sequence[int]], partition: TopicPartition
) -> Arithmetic:
    """Return how the leader came to the member of a partition; ``thread`` is the member id, None if words cannot tell.

    ``partitions`` has the numbers of each existing topic.
    """
    members = {one.member_id: SubscribedMember(one.topics, instance=one.instance_id) for one in group.members}
    order = [ThreadId(member) for member in in_java_order(members)]
    takers = [member for member in order if partition.topic in members[member].topics]
    leader = f"the leader of the brokers' group computed it with {group.strategy or 'an unknown strategy'}"
    if group.strategy in _STICKY:
        kept = "each member keeps what it had, and only as many partitions move as an even share needs"
        return Arithmetic(None, (f"{leader}: {kept}",))
    if not takers or partition.partition not in partitions.get(partition.topic, ()):
        return Arithmetic(None, (leader,))
    if group.strategy == "range":
        return in_block("range", partition, partitions[partition.topic], takers, "member")
    if group.strategy == "roundrobin":
        return _in_turn(members, order, partitions, partition)
    return Arithmetic(None, (leader,))


def _in_turn(
    members: Mapping[str, SubscribedMember],
    order: Sequence[ThreadId],
    partitions: Mapping[str, Sequence[int]],
    partition: TopicPartition,
) -> Arithmetic:
    wanted = {topic for member in members.values() for topic in member.topics if topic in partitions}
    every = [TopicPartition(t, n) for t in sorted(wanted, key=utf16_key) for n in partitions[t]]
    place = every.index(partition)
    at, skipped = -1, 0
    for tp in every[: place + 1]:
        steps = 1
        while tp.topic not in members[order[(at + steps) % len(order)]].topics:
            steps += 1
        at, skipped = (at + steps) % len(order), steps - 1
    whose = f"member {at + 1} of {len(order)}, {order[at]}"
    turn = (
        f"the turn passes over {count_of(skipped, 'member')} without {partition.topic} to"
        if skipped
        else "the turn is at"
    )
    return Arithmetic(
        order[at],
        (
            f"roundrobin: {count_of(len(every), 'partition')} by topic and number, of which {partition} is number "
            f"{place + 1}; {count_of(len(order), 'member')} take one each in turn",
            f"{turn} {whose}",
        ),
    )
