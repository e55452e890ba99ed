"""The rules by which a group moves from ZooKeeper to the brokers, or back. Pure.

A bridge is a member in ZooKeeper that can also be one of the brokers' group. As long as one member is no bridge,
ZooKeeper coordinates, and no bridge is in the brokers' group: its coordinator would refuse the commits of all members
outside it. If all members are bridges, the brokers coordinate. Every bridge decides this by itself from the nodes under
``ids``. Some see a change later, which harms nothing: all of them consume only what they own in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zkconsumer.member.zookeeper.planner import GroupView, Threads
from zkconsumer.model import Assignment, ConsumerId, TopicPartition

ADVERTISED = "coordination"
"""The extra key of a bridge's registration; Scala members ignore it."""
BY_BROKERS = "kafka"


def non_bridges(view: GroupView) -> list[str]:
    """Return the members that are no bridges, or cannot be read. ZooKeeper coordinates while there are any."""
    others = [consumer for consumer, one in view.members.items() if one.extra.get(ADVERTISED) != BY_BROKERS]
    unreadable = [path.rpartition("/")[2] for path in view.unreadable if "/ids/" in path]
    return sorted({*others, *unreadable})


def assigned_by_brokers(
    streams: Mapping[TopicPartition, int], me: ConsumerId, view: GroupView, threads: Threads
) -> Assignment:
    """Return what the brokers' group gave to our streams, as far as ZooKeeper shows those partitions already."""
    ours = threads.get(me, {})
    return {
        tp: ours[tp.topic][number]
        for tp, number in streams.items()
        if tp.partition in view.partitions.get(tp.topic, ()) and number < len(ours.get(tp.topic, ()))
    }


def still_assignable(owned: Assignment, me: ConsumerId, view: GroupView, threads: Threads) -> Assignment:
    """Return what we own and still can own: all that is ours until the brokers' group has given us a share."""
    ours = threads.get(me, {})
    return {
        tp: thread
        for tp, thread in owned.items()
        if tp.partition in view.partitions.get(tp.topic, ()) and thread in ours.get(tp.topic, ())
    }


def brokers_only_members(clients: Collection[str], members: Collection[str]) -> list[str]:
    """Return the brokers' members that are no bridges: a bridge's ``client.id`` is its name in ZooKeeper."""
    return sorted(set(clients) - set(members))
