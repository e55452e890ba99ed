"""Offsets in Kafka: finding a group's coordinator, writing and reading offsets there.

One :class:`CoordinatorChannel` wraps one connection; threads are those of ``channel.py``. Commits are "simple" ones:
generation -1 and an empty member name, which a coordinator takes from anybody as long as the group has no members of
the new protocol. Nothing fences them.

Mirrors the original, which talks FindCoordinator 0, OffsetCommit 1 or 2, OffsetFetch 1 or 2. Differs on purpose: the
version follows the broker, an error of the whole answer is looked at (from OffsetFetch 2 on an error of the group
stands only there, and the original never looks), and an error of one partition is never taken for "no offset".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aiokafka.protocol import commit, coordination

from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka.broker_channel import BrokerChannel
from zkconsumer.kafka.requests import Api
from zkconsumer.model import Endpoint, TopicPartition

OFFSET_COMMIT = Api(8, "OffsetCommit", tuple(getattr(commit, f"OffsetCommitRequest_v{v}") for v in range(4)))
OFFSET_FETCH = Api(9, "OffsetFetch", tuple(getattr(commit, f"OffsetFetchRequest_v{v}") for v in range(4)))
FIND_COORDINATOR = Api(
    10, "FindCoordinator", tuple(getattr(coordination, f"FindCoordinatorRequest_v{v}") for v in range(2))
)
COORDINATION = (FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH)

Versions = Mapping[Api, int]

_LEAST = {FIND_COORDINATOR: 0, OFFSET_COMMIT: 1, OFFSET_FETCH: 1}
"""Version 0 of the latter two means ZooKeeper, written by the broker."""

_NO_GENERATION = -1
_NO_MEMBER = ""
_BROKERS_CHOICE = -1
"""The time stamp, or how long to keep it: as the broker is configured."""

_GROUP = 0


class StoredOffset(NamedTuple):
    """The answer for one partition: -1 where nothing is stored; an error code other than 0 means that it is unknown.

    ``metadata`` and ``leader_epoch`` (-1: unknown) are what a committer may have put beside the offset; we put nothing.
    """

    offset: int
    error: int = error_codes.NONE
    metadata: str = ""
    leader_epoch: int = -1


def base_versions(generation: int) -> Versions:
    """The versions for a broker that cannot be asked, by the version of its node in ZooKeeper: 1 (0.8.2) or 2 (0.9)."""
    return {FIND_COORDINATOR: 0, OFFSET_COMMIT: 2 if generation >= 2 else 1, OFFSET_FETCH: 1}


def negotiated_versions(ranges: Mapping[int, tuple[int, int]], who: str) -> Versions:
    """The highest version of each request that both sides know. Raises BrokerError where there is none."""
    chosen = {}
    for api in COORDINATION:
        low, high = ranges.get(api.key, (0, -1))
        best = min(high, len(api.classes) - 1)
        if best < max(low, _LEAST[api]):
            raise BrokerError(f"{who} speaks {api.name} {low} to {high}, this client up to {len(api.classes) - 1}")
        chosen[api] = best
    return chosen


class CoordinatorChannel:
    """A channel to a broker that is, or knows, the coordinator of a group.

    Takes over ``channel``; like that it does nothing before ``connect()``, and ``close()`` may come from any thread.
    """

    def __init__(self, channel: BrokerChannel) -> None:
        self._channel = channel
        self._versions: Versions = {}

    @property
    def endpoint(self) -> Endpoint:
        """The broker."""
        return self._channel.endpoint

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each request on this connection, by its name."""
        return {api.name: version for api, version in self._versions.items()}

    def connect(self, deadline: Deadline) -> None:
        """Connect and agree on versions. Raises BrokerUnavailableError, BrokerError."""
        self._channel.connect(deadline)
        self._versions = base_versions(self.endpoint.generation)
        if self.endpoint.generation >= requests.ASK_FROM_GENERATION:
            request = requests.api_versions_request()
            answer = self._channel.exchange(requests.API_VERSIONS, request, deadline)
            self._versions = negotiated_versions(requests.api_ranges(answer, self._who), self._who)

    def close(self) -> None:
        """Close for good; from any thread, without waiting."""
        self._channel.close()

    @property
    def _who(self) -> str:
        return f"broker {self.endpoint.broker_id}"

    def find_coordinator(self, group: str, deadline: Deadline) -> int:
        """The id of the broker that coordinates the group.

        The very first question of a cluster makes it create the topic of offsets; it answers
        COORDINATOR_NOT_AVAILABLE until that is done. Raises BrokerResponseError, BrokerUnavailableError, BrokerError.
        """
        answer = self._exchange(FIND_COORDINATOR, find_coordinator_fields(self._versions, group), deadline)
        if answer.error_code:
            raise error_codes.error(answer.error_code, f"{self._who}, who coordinates group {group!r}")
        return int(answer.coordinator_id)

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> Mapping[TopicPartition, int]:
        """Write offsets. Returns the error code of each partition, 0 where it is written.

        Raises BrokerUnavailableError, BrokerError (also where the answer leaves a partition out).
        """
        answer = self._exchange(OFFSET_COMMIT, commit_fields(self._versions, group, offsets), deadline)
        codes = {
            TopicPartition(topic, partition): code
            for topic, partitions in answer.topics or ()
            for partition, code in partitions or ()
        }
        self._check_complete(offsets, codes, "OffsetCommit")
        return codes

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, StoredOffset]:
        """Read offsets. An error of the whole answer is raised; one of a partition stands in its entry.

        Raises BrokerResponseError, BrokerUnavailableError, BrokerError (also where the answer leaves one out).
        """
        wanted = list(partitions)
        answer = self._exchange(OFFSET_FETCH, fetch_fields(group, wanted), deadline)
        code = getattr(answer, "error_code", error_codes.NONE)
        if code:
            raise error_codes.error(code, f"{self._who}, offsets of group {group!r}")
        found = {
            TopicPartition(topic, partition): StoredOffset(offset, code)
            for topic, answered in answer.topics or ()
            for partition, offset, _, code in answered or ()
        }
        self._check_complete(wanted, found, "OffsetFetch")
        return found

    def _exchange(self, api: Api, fields: tuple[Any, ...], deadline: Deadline) -> Any:
        return self._channel.exchange(api, api.classes[self._versions[api]](*fields), deadline)

    def _check_complete(
        self, asked: Iterable[TopicPartition], told: Mapping[TopicPartition, object], what: str
    ) -> None:
        missing = [tp for tp in asked if tp not in told]
        if missing:
            raise BrokerError(f"{self._who}: its answer to {what} says nothing of {missing[0]}")


def find_coordinator_fields(versions: Versions, group: str) -> tuple[Any, ...]:
    """What FindCoordinator asks."""
    return (group,) if versions[FIND_COORDINATOR] == 0 else (group, _GROUP)


def commit_fields(versions: Versions, group: str, offsets: Mapping[TopicPartition, int]) -> tuple[Any, ...]:
    """What OffsetCommit says: no metadata, and to be kept as long as the broker keeps offsets."""
    old = versions[OFFSET_COMMIT] == 1
    parts = ((tp, (tp.partition, offset, *((_BROKERS_CHOICE,) if old else ()), "")) for tp, offset in offsets.items())
    topics = _by_topic(parts)
    who = (group, _NO_GENERATION, _NO_MEMBER)
    return (*who, topics) if old else (*who, _BROKERS_CHOICE, topics)


def fetch_fields(group: str, partitions: Iterable[TopicPartition]) -> tuple[Any, ...]:
    """What OffsetFetch asks."""
    return (group, _by_topic((tp, tp.partition) for tp in partitions))


def _by_topic(parts: Iterable[tuple[TopicPartition, Any]]) -> list[tuple[str, list[Any]]]:
    topics: dict[str, list[Any]] = {}
    for tp, part in parts:
        topics.setdefault(tp.topic, []).append(part)
    return list(topics.items())
