"""The rules of a group that moves from ZooKeeper to the brokers, or back: its coordinator and its assignment. Pure.

A bridge is a member in ZooKeeper that can also join the brokers' group. The brokers coordinate if all members are
bridges; otherwise ZooKeeper does. Then no bridge is in the brokers' group, because its coordinator would refuse the
commits of all members outside. Every bridge decides this by itself from the nodes under ``ids``. A late decision does
no harm, because all members consume only the partitions that they own in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from zkconsumer.member.zookeeper.claim_plan import GroupView, Threads
from zkconsumer.model import Assignment, ConsumerId, TopicPartition

ADVERTISED = "coordination"
"""The extra key in a bridge's registration. Scala members ignore it."""
BY_BROKERS = "kafka"


def non_bridges(view: GroupView) -> list[str]:
    """Return the members that are not bridges or cannot be read. While there are any, ZooKeeper coordinates."""
    others = [consumer for consumer, one in view.members.items() if one.extra.get(ADVERTISED) != BY_BROKERS]
    unreadable = [path.rpartition("/")[2] for path in view.unreadable if "/ids/" in path]
    return sorted({*others, *unreadable})


def brokers_coordinate(others: Sequence[str], *, joined: bool, may_leave: Callable[[], bool]) -> bool:
    """Return whether the brokers coordinate. They do if there are no ``others``, the members that are not bridges.

    A bridge that has ``joined`` the brokers' group stays there with others until it may leave: while that group has
    members which are no bridges, they would take every partition.
    """
    return not others or (joined and not may_leave())


def assigned_by_brokers(
    streams: Mapping[TopicPartition, int], me: ConsumerId, view: GroupView, threads: Threads
) -> Assignment:
    """Return the brokers' assignment to the streams of ``me``, without partitions that ZooKeeper does not show yet."""
    ours = threads.get(me, {})
    return {
        tp: ours[tp.topic][number]
        for tp, number in streams.items()
        if tp.partition in view.partitions.get(tp.topic, ()) and number < len(ours.get(tp.topic, ()))
    }


def still_assignable(owned: Assignment, me: ConsumerId, view: GroupView, threads: Threads) -> Assignment:
    """Return the owned partitions that ``me`` can keep until the brokers' group has assigned some."""
    ours = threads.get(me, {})
    return {
        tp: thread
        for tp, thread in owned.items()
        if tp.partition in view.partitions.get(tp.topic, ()) and thread in ours.get(tp.topic, ())
    }


def brokers_only_members(clients: Collection[str], members: Collection[str]) -> list[str]:
    """Return the members of the brokers' group that are not bridges. A bridge's client id is its name under ``ids``."""
    return sorted(set(clients) - set(members))
