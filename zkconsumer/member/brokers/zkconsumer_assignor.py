"""The strategy ``zkconsumer``: the strategies of groups in ZooKeeper, for a brokers' group. Pure; any thread.

A group that moves from ZooKeeper to the brokers keeps its ``partition.assignment.strategy``, and each stream gets the
same partitions as before. Members send their registration to the leader. The leader assigns partitions to threads, and
its assignment names the stream of each partition. All members must use this package. If they rebalance cooperatively, a
moving partition is given up first and assigned later, as under ``cooperative-sticky``. Strategies get no racks here.

The user data in both directions is JSON with a ``version``, now 1. Later versions only add keys, so that this version
can read the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zkconsumer.assignors import AssignmentError
from zkconsumer.assignors.group_strategy import StrategyConfig, assignment_strategy
from zkconsumer.assignors.java_consumer_assignors import COOPERATIVE, GroupAssignor, GroupMembers
from zkconsumer.core.consumer_protocol import MemberAssignment, MemberSubscription
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import MalformedMemberError
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition, thread_id, utf16_key

_VERSION = 1
_OWN_KEYS = frozenset({"version", "consumer", "streams"})


@dataclass(frozen=True, slots=True)
class _View:
    members: Mapping[ConsumerId, Registration]
    partitions: Mapping[str, tuple[int, ...]]
    racks: Mapping[TopicPartition, str]
    placement: Assignment | None = None


class ZkconsumerAssignor(GroupAssignor):
    """The strategy ``zkconsumer``.

    Arguments: ``config`` chooses the leader's strategy. ``consumer`` is the member's consumer id in ZooKeeper.
    ``streams`` returns its number of streams for a topic. ``extra`` are the advertised keys of its registration (see
    ``zkconsumer.assignors.advertisement``). Raises UnknownAssignorError and ConfigException as the strategy does.
    """

    name = "zkconsumer"
    protocols = COOPERATIVE

    def __init__(
        self,
        config: StrategyConfig,
        consumer: ConsumerId,
        streams: Callable[[str], int],
        extra: Mapping[str, object] | None = None,
    ) -> None:
        self._strategy = assignment_strategy(config)
        self._consumer = consumer
        self._streams = streams
        self._extra = dict(extra or {})

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the consumer id, the numbers of streams and the advertised keys as JSON."""
        said = {**self._extra, "version": _VERSION, "consumer": self._consumer}
        return _json({**said, "streams": {topic: self._streams(topic) for topic in topics}})

    def assign(self, partitions: Mapping[str, int], members: GroupMembers) -> dict[str, MemberAssignment]:
        """Return the assignment of each member, with the stream of each partition.

        Raises MalformedMemberError for unreadable user data, and AssignmentError as the strategy does.
        """
        told = {member: _decode_user_data(member, said) for member, said in members.items()}
        names = _consumer_ids(told)
        threads: dict[ConsumerId, dict[str, tuple[ThreadId, ...]]] = {}
        streams: dict[ThreadId, tuple[str, int]] = {}
        for member, registered in told.items():
            threads[names[member]] = {
                topic: tuple(thread_id(names[member], n) for n in range(count))
                for topic, count in registered.subscription.items()
            }
            most = max(registered.subscription.values(), default=0)
            streams.update({thread_id(names[member], n): (member, n) for n in range(most)})
        view = _View(
            {names[member]: registered for member, registered in told.items()},
            {topic: tuple(range(count)) for topic, count in partitions.items()},
            {},
        )
        given: dict[str, dict[TopicPartition, int]] = {member: {} for member in members}
        for partition, thread in self._strategy(view, threads).items():
            if thread not in streams:
                raise AssignmentError(
                    f"the strategy {self._strategy.name} gave {partition} to {thread}, which no member has"
                )
            member, number = streams[thread]
            given[member][partition] = number
        return {member: _assignment(kept) for member, kept in _without_held_by_others(given, members).items()}


def _decode_user_data(member: str, said: MemberSubscription) -> Registration:
    """Return a member's user data as its registration in ZooKeeper, with ``consumer`` in ``extra``."""
    data = _read_json(said.user_data)
    if data is None or not isinstance(data.get("version"), int) or data["version"] < 1:
        raise MalformedMemberError(member, "its user data is not that of the strategy zkconsumer")
    consumer, streams = data.get("consumer"), data.get("streams")
    if not isinstance(consumer, str) or not isinstance(streams, dict):
        raise MalformedMemberError(member, "its user data names no consumer, or no streams")
    if not all(isinstance(count, int) and 0 <= count < 1 << 16 for count in streams.values()):
        raise MalformedMemberError(member, "its user data has a bad number of streams")
    extra = {key: value for key, value in data.items() if key not in _OWN_KEYS} | {"consumer": consumer}
    return Registration(STATIC, {topic: streams.get(topic, 1) for topic in said.topics}, extra=extra)


def _consumer_ids(told: Mapping[str, Registration]) -> dict[str, ConsumerId]:
    """Return the members' consumer ids.

    Two members may have the same one, for example before and after a restart. Then the second gets its member id added.
    """
    names: dict[str, ConsumerId] = {}
    taken: set[ConsumerId] = set()
    for member in sorted(told, key=utf16_key):
        name = ConsumerId(str(told[member].extra["consumer"]))
        names[member] = ConsumerId(f"{name}@{member}") if name in taken else name
        taken.add(names[member])
    return names


def _without_held_by_others(
    given: Mapping[str, Mapping[TopicPartition, int]], members: GroupMembers
) -> dict[str, dict[TopicPartition, int]]:
    """Return the assignment without partitions that another member still owns."""
    holders: dict[TopicPartition, set[str]] = {}
    for member, said in members.items():
        for partition in said.owned:
            holders.setdefault(partition, set()).add(member)
    return {
        member: {tp: number for tp, number in wanted.items() if holders.get(tp, set()) <= {member}}
        for member, wanted in given.items()
    }


def _assignment(streams: Mapping[TopicPartition, int]) -> MemberAssignment:
    listed: dict[str, list[list[int]]] = {}
    for tp in sorted(streams):
        of_topic = listed.setdefault(tp.topic, [])
        of_topic += [[] for _ in range(len(of_topic), streams[tp] + 1)]
        of_topic[streams[tp]].append(tp.partition)
    return MemberAssignment(tuple(sorted(streams)), _json({"version": _VERSION, "streams": listed}))


def streams_by_leader(assignment: MemberAssignment) -> dict[TopicPartition, int]:
    """Return the streams in the leader's user data; empty if the data is not of this strategy or makes no sense."""
    data = _read_json(assignment.user_data) or {}
    listed = data.get("streams")
    said: dict[TopicPartition, int] = {}
    for topic, by_stream in listed.items() if isinstance(listed, dict) else ():
        for number, numbers in enumerate(by_stream) if isinstance(by_stream, list) else ():
            for partition in numbers if isinstance(numbers, list) else ():
                if isinstance(partition, int):
                    said[TopicPartition(topic, partition)] = number
    return said


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _read_json(data: bytes | None) -> dict[str, Any] | None:
    """Decode a JSON object. Return None for anything else."""
    if not data or not data.startswith(b"{"):
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
