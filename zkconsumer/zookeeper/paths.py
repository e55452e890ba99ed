"""Paths of the group and of the cluster in ZooKeeper. Pure; any thread.

Paths are relative to the chroot of ``zookeeper.connect``. They are those of the original (section "Paths" of Kafka's
own "data structures in ZooKeeper"); partition nodes are bare decimal numbers. The original builds an invalid or a wrong
path from an odd name. Here such a name raises ValueError before anything is sent.
"""

from __future__ import annotations

import re

from zkconsumer.core.names import name_problem
from zkconsumer.model import TopicPartition

CONSUMERS = "/consumers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"

_BROKER = re.compile(r"/brokers/ids/([0-9]+)", re.ASCII)


def element(name: str) -> str:
    """Return ``name`` if it can be one element of a path. Raises ValueError otherwise."""
    problem = name_problem(name)
    if problem is not None:
        raise ValueError(problem)
    return name


def consumers_group(group: str) -> str:
    """``/consumers/<group>``: everything of one group. Raises ValueError for a name that cannot be a path element."""
    return f"{CONSUMERS}/{element(group)}"


def ids(group: str) -> str:
    """The parent of the members' registrations."""
    return f"{consumers_group(group)}/ids"


def member(group: str, consumer_id: str) -> str:
    """The ephemeral registration of one member."""
    return f"{ids(group)}/{element(consumer_id)}"


def owners(group: str) -> str:
    """The parent of all owner nodes (plural, although the original's class comment says "owner")."""
    return f"{consumers_group(group)}/owners"


def owner_topic(group: str, topic_name: str) -> str:
    """The parent of one topic's owner nodes."""
    return f"{owners(group)}/{element(topic_name)}"


def owner(group: str, partition: TopicPartition) -> str:
    """The ephemeral claim on one partition; its content is a thread id."""
    return f"{owner_topic(group, partition.topic)}/{partition.partition:d}"


def broadcast_group(group: str, suffix: str) -> str:
    """The group that a broadcasting member has for itself: ``<group>@<consumer.id>``.

    ``@`` is invalid in a ``group.id``, also for the original. So nobody else can join this group, and both parts can
    be read from the group's name. Readers of ``/consumers`` see a group of one member that owns everything.
    """
    return element(f"{group}@{suffix}")


def broadcast_members(group: str) -> str:
    """The parent of the nodes of live broadcasting members; not a path of the original."""
    return f"{consumers_group(group)}/broadcast"


def broadcast_member(group: str, consumer_id: str) -> str:
    """The ephemeral node of one live broadcasting member."""
    return f"{broadcast_members(group)}/{element(consumer_id)}"


def offsets(group: str) -> str:
    """The parent of all committed offsets."""
    return f"{consumers_group(group)}/offsets"


def offset_topic(group: str, topic_name: str) -> str:
    """The parent of one topic's committed offsets."""
    return f"{offsets(group)}/{element(topic_name)}"


def offset(group: str, partition: TopicPartition) -> str:
    """The committed offset of one partition: the next offset to consume."""
    return f"{offset_topic(group, partition.topic)}/{partition.partition:d}"


def acks(group: str) -> str:
    """The parent of the notes on finished messages beyond the committed offsets; no node of the original."""
    return f"{consumers_group(group)}/acks"


def ack(group: str, partition: TopicPartition) -> str:
    """The note on finished messages of a partition beyond the committed offset; see ``core.finished_note``."""
    return f"{acks(group)}/{element(partition.topic)}/{partition.partition:d}"


def parked(group: str) -> str:
    """The parent of the pointers to parked messages and dead letters; no node of the original."""
    return f"{consumers_group(group)}/parked"


def pointers(group: str, partition: TopicPartition) -> str:
    """The pointers of one partition to parked messages and dead letters; see ``core.message_pointers``."""
    return f"{parked(group)}/{element(partition.topic)}/{partition.partition:d}"


def placement(group: str) -> str:
    """The group's plan, for a strategy that needs one; no node of the original. See ``core.placement_plan``."""
    return f"{consumers_group(group)}/placement"


def loads(group: str) -> str:
    """The parent of the loads that members publish for ``lag-aware``; no node of the original."""
    return f"{consumers_group(group)}/loads"


def member_loads(group: str, consumer_id: str) -> str:
    """The ephemeral node with the loads of one member's partitions."""
    return f"{loads(group)}/{element(consumer_id)}"


def loans(group: str) -> str:
    """The parent of the loans of slots; no node of the original."""
    return f"{consumers_group(group)}/loans"


def partition_loans(group: str, partition: TopicPartition) -> str:
    """The parent of the loans of one partition's slots."""
    return f"{loans(group)}/{element(partition.topic)}/{partition.partition:d}"


def loan(group: str, partition: TopicPartition, consumer_id: str) -> str:
    """The slots of one partition that a member has on loan, written by the owner of the partition."""
    return f"{partition_loans(group, partition)}/{element(consumer_id)}"


def broker(broker_id: int) -> str:
    """The ephemeral registration of one broker."""
    return f"{BROKER_IDS}/{broker_id:d}"


def topic(name: str) -> str:
    """The node that lists a topic's partitions."""
    return f"{TOPICS}/{element(name)}"


def partition_state(partition: TopicPartition) -> str:
    """The node with a partition's leader and in-sync replicas."""
    return f"{topic(partition.topic)}/partitions/{partition.partition:d}/state"


def parse_broker(path: str) -> int:
    """Return the id in a broker node's path. Raises ValueError if it is none."""
    found = _BROKER.fullmatch(path)
    if found is None:
        raise ValueError(f"{path!r} is not the path of a broker's registration")
    return int(found[1])
