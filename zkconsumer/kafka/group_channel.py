"""A connection to a group's coordinator: one method for each request.

One thread at a time asks; any thread may close, and a waiting call raises. A broker answers the requests of a
connection in order, and JoinGroup only when the whole group has joined. A member that must commit or leave meanwhile
uses another connection.

Mirrors the requests of the Java consumer of 3.9. Differs on purpose: an error code is raised as an exception of its own
class, also an error of the group that a commit's response repeats for each partition. A response that leaves out a
partition is an error and never "nothing there".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from zkconsumer.core.consumer_protocol import PROTOCOL_TYPE, JoinedMember
from zkconsumer.errors import BrokerError, MemberIdRequiredError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka import group_schemas as schemas
from zkconsumer.kafka.api_schema import ApiRequest, ApiSchema, Values
from zkconsumer.kafka.broker_channel import BrokerChannel
from zkconsumer.kafka.cluster_metadata import TopicsSeen, topics_of
from zkconsumer.kafka.group_schemas import DescribedMember, GroupDescription, Joined, Membership, OffsetAndMetadata
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

__all__ = ["DescribedMember", "GroupChannel", "GroupDescription", "Joined", "Membership", "OffsetAndMetadata"]

_OF_THE_GROUP: Final = frozenset(
    {
        *(error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.COORDINATOR_NOT_AVAILABLE, error_codes.NOT_COORDINATOR),
        *(error_codes.ILLEGAL_GENERATION, error_codes.INVALID_GROUP_ID, error_codes.UNKNOWN_MEMBER_ID),
        *(error_codes.REBALANCE_IN_PROGRESS, error_codes.GROUP_AUTHORIZATION_FAILED, error_codes.FENCED_INSTANCE_ID),
    }
)
"""Codes that concern the whole group, never one partition."""

_NO_SUCH_GROUP: Final = frozenset({error_codes.GROUP_ID_NOT_FOUND, error_codes.UNSUPPORTED_VERSION})
"""Codes for a group that is none of KIP-848's protocol, and from brokers on which that is not enabled."""

_LEAST_GENERATION: Final = 2  # of 0.9
_INT32_MAX: Final = 2**31 - 1
_UNTIL_DEADLINE: Final = 1e7  # seconds that the broker may be silent: only the deadline ends such a wait


class GroupChannel:
    """A connection to a broker that is, or knows, the coordinator of a group.

    Takes over ``channel``; like that it does nothing before ``connect()``, and ``close()`` may come from any thread.
    Every method raises BrokerUnavailableError, BrokerError, and for an error code its class (GroupError or
    BrokerResponseError).

    Arguments: ``offsets_only`` limits it to the requests of offsets, which brokers from 0.8.2 on know.
    """

    def __init__(self, channel: BrokerChannel, *, offsets_only: bool = False) -> None:
        self._channel = channel
        self._offsets_only = offsets_only
        self._versions: schemas.Versions = {}

    @property
    def endpoint(self) -> Endpoint:
        """The broker."""
        return self._channel.endpoint

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each request on this connection, by the name of the request."""
        return {message.name: version for message, version in self._versions.items()}

    def connect(self, deadline: Deadline) -> None:
        """Connect and agree on versions. A broker older than 0.9 is refused, unless with ``offsets_only``."""
        generation, name = self.endpoint.generation, self._channel.name
        if generation < _LEAST_GENERATION and not self._offsets_only:
            raise BrokerError(f"{name} is older than 0.9, it coordinates no groups of consumers")
        self._channel.connect(deadline)
        self._versions = schemas.OF_0_9 if generation >= _LEAST_GENERATION else schemas.OF_0_8
        if generation >= requests.ASK_FROM_GENERATION:
            answer = self._channel.exchange(requests.api_versions_request(), deadline)
            wanted = schemas.OFFSET_MESSAGES if self._offsets_only else schemas.TOOL_MESSAGES
            self._versions = schemas.negotiated_versions(requests.api_ranges(answer, name), name, wanted)

    def close(self) -> None:
        """Close for good; from any thread, without waiting."""
        self._channel.close()

    def find_coordinator(self, group: str, deadline: Deadline) -> Endpoint:
        """Return the broker that coordinates the group, at the address that the asked broker knows.

        The first such request makes a cluster create its topic of offsets. Until the topic exists, brokers answer
        COORDINATOR_NOT_AVAILABLE.
        """
        answer = self._ask(schemas.FIND_COORDINATOR, {"key": group}, deadline)
        self._check(answer["error_code"], f"who coordinates group {group!r}")
        address = answer["node_id"], answer["host"] or "", answer["port"]
        return Endpoint(*address, protocol=self.endpoint.protocol)

    def join(
        self,
        who: Membership,
        protocols: Sequence[tuple[str, bytes]],
        *,
        session_timeout: float,
        rebalance_timeout: float,
        deadline: Deadline,
        reason: str = "",
    ) -> Joined:
        """Join the group, and wait until all members have joined, or the broker has given up slow ones.

        Arguments: ``protocols`` are the strategies' names and subscriptions, the preferred one first; timeouts are in
        seconds. ``deadline`` alone ends the wait for others. Raises MemberIdRequiredError with the id to use.
        """
        values = {
            **self._values(who),
            "session_timeout_ms": _ms(session_timeout),
            "rebalance_timeout_ms": _ms(rebalance_timeout),
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
            "reason": reason or None,
        }
        answer = self._ask(schemas.JOIN_GROUP, values, deadline, _UNTIL_DEADLINE)
        try:
            self._check(answer["error_code"], f"joining group {who.group!r}")
        except MemberIdRequiredError as required:
            required.member_id = answer["member_id"] or ""
            raise
        return Joined(
            answer["generation_id"],
            answer["protocol_name"] or "",
            answer["leader"] or "",
            answer["member_id"] or "",
            tuple(
                JoinedMember(one["member_id"] or "", one["metadata"] or b"", one.get("group_instance_id"))
                for one in answer["members"] or ()
            ),
            answer.get("skip_assignment", False),
        )

    def sync(
        self, who: Membership, *, protocol: str, deadline: Deadline, assignments: Mapping[str, bytes] | None = None
    ) -> bytes:
        """Wait for the leader's assignment, or send it as the leader. Returns our part, for ``decode_assignment``.

        Arguments: ``protocol`` is the strategy that the join named; ``assignments`` is the leader's, by member.
        """
        values = {
            **self._values(who),
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": protocol,
            "assignments": [
                {"member_id": member, "assignment": assignment} for member, assignment in (assignments or {}).items()
            ],
        }
        answer = self._ask(schemas.SYNC_GROUP, values, deadline, _UNTIL_DEADLINE)
        self._check(answer["error_code"], f"the assignment of group {who.group!r}")
        return bytes(answer["assignment"] or b"")

    def heartbeat(self, who: Membership, deadline: Deadline) -> None:
        """Send a heartbeat. Raises RebalanceInProgressError if the group rebalances."""
        answer = self._ask(schemas.HEARTBEAT, self._values(who), deadline)
        self._check(answer["error_code"], f"a heartbeat in group {who.group!r}")

    def leave(self, who: Membership, deadline: Deadline, *, reason: str = "") -> None:
        """Leave the group, so that the other members rebalance at once.

        A static member leaves too. The request names its ``instance_id``; otherwise a broker would not remove the
        member.
        """
        one = {"member_id": who.member_id, "group_instance_id": who.instance_id, "reason": reason or None}
        values = {"group_id": who.group, "member_id": who.member_id, "members": [one]}
        answer = self._ask(schemas.LEAVE_GROUP, values, deadline)
        for code in (answer["error_code"], *(one["error_code"] for one in answer.get("members") or ())):
            self._check(code, f"leaving group {who.group!r}")

    def commit(
        self,
        who: Membership,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        deadline: Deadline,
        answer: float | None = None,
    ) -> Mapping[TopicPartition, int]:
        """Write offsets, as a member, or without a member id while the group has no members.

        Arguments: ``answer`` is the time limit of the answer in seconds after sending (default: ``deadline``).
        A :class:`OffsetAndMetadata` is written with its metadata and leader epoch. Returns the error code of each
        partition, 0 if it is written. An error of the group, which the answer repeats for each partition, is raised:
        nothing is written then.
        """
        topics = _by_topic("partitions", {tp: _committed(tp, offset) for tp, offset in offsets.items()})
        values = {**self._values(who), "topics": topics}
        codes = _codes(self._ask(schemas.OFFSET_COMMIT, values, deadline, answer=answer))
        self._check_complete(offsets, codes, "OffsetCommit")
        for code in codes.values():
            if code in _OF_THE_GROUP:
                self._check(code, f"an offset commit in group {who.group!r}")
        return codes

    def offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None, deadline: Deadline
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Read offsets of these partitions, or of all with an offset (None, brokers from 0.10.2 on).

        An offset is -1 if none is stored. The entry of a partition has its own error, UNSTABLE_OFFSET_COMMIT if a
        transaction may still change it (brokers from 2.5 on).
        """
        wanted = None if partitions is None else list(partitions)
        if wanted is None and self._versions.get(schemas.OFFSET_FETCH, 0) < 2:
            raise BrokerError(f"{self._channel.name} cannot tell all offsets of a group: it is older than 0.10.2")
        topics = None if wanted is None else _by_topic("partition_indexes", {tp: tp.partition for tp in wanted})
        values = {"group_id": group, "topics": topics, "require_stable": True}
        found = self._stored(group, self._ask(schemas.OFFSET_FETCH, values, deadline))
        self._check_complete(wanted or (), found, "OffsetFetch")
        return found

    def offsets_of(
        self, groups: Collection[str], deadline: Deadline
    ) -> dict[str, Mapping[TopicPartition, OffsetAndMetadata]]:
        """Read all offsets of several groups: in one request, from brokers before 3.0 in one a group.

        Raises the error of any of them.
        """
        if schemas.OFFSET_FETCH_OF_GROUPS not in self._versions:
            return {group: self.offsets(group, None, deadline) for group in groups}
        wanted = [{"group_id": group, "topics": None} for group in groups]
        answer = self._ask(schemas.OFFSET_FETCH_OF_GROUPS, {"groups": wanted, "require_stable": True}, deadline)
        found = {one["group_id"]: self._stored(one["group_id"], one) for one in answer["groups"] or ()}
        for missing in (group for group in groups if group not in found):
            raise BrokerError(f"{self._channel.name}: its answer to OffsetFetch says nothing of {missing!r}")
        return found

    def _stored(self, group: str, answer: Values) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self._check(answer.get("error_code", error_codes.NONE), f"offsets of group {group!r}")
        found = {
            TopicPartition(topic["name"], one["partition_index"]): OffsetAndMetadata(
                one["committed_offset"], one["error_code"], one["metadata"] or "", one.get("committed_leader_epoch", -1)
            )
            for topic in answer["topics"] or ()
            for one in topic["partitions"] or ()
        }
        for stored in found.values():
            if stored.error in _OF_THE_GROUP:
                self._check(stored.error, f"offsets of group {group!r}")
        return found

    def topics(self, topics: Collection[str] | None, deadline: Deadline) -> TopicsSeen:
        """Return the partitions of these topics, or of all (None), as :func:`topics_of` does."""
        return topics_of(self._channel, topics, deadline)

    def describe(self, groups: Iterable[str], deadline: Deadline) -> Mapping[str, GroupDescription]:
        """Return groups as this broker, their coordinator, sees them. Raises the error of any of them."""
        wanted = list(groups)
        answer = self._ask(schemas.DESCRIBE_GROUPS, {"groups": wanted}, deadline)
        found: dict[str, GroupDescription] = {}
        for one in answer["groups"] or ():
            self._check(one["error_code"], f"describing group {one['group_id']!r}")
            found[one["group_id"]] = GroupDescription(
                one["group_state"] or "",
                one["protocol_type"] or "",
                one["protocol_data"] or "",
                tuple(map(_described, one["members"] or ())),
            )
        for missing in (group for group in wanted if group not in found):
            raise BrokerError(f"{self._channel.name}: its answer to DescribeGroups says nothing of {missing!r}")
        return found

    def describe_assigned(self, group: str, deadline: Deadline) -> schemas.AssignedGroup | None:
        """Return a group of KIP-848's protocol; None if there is none of this name, or the broker has no such groups.

        Raises: BrokerError.
        """
        if schemas.CONSUMER_GROUP_DESCRIBE not in self._versions:
            return None
        answer = self._ask(schemas.CONSUMER_GROUP_DESCRIBE, {"group_ids": [group]}, deadline)
        for one in answer["groups"] or ():
            if one["group_id"] == group:
                if one["error_code"] in _NO_SUCH_GROUP:
                    return None
                self._check(one["error_code"], f"describing group {group!r}")
                members = tuple(map(_assigned, one["members"] or ()))
                return schemas.AssignedGroup(one["group_state"] or "", one["assignor_name"] or "", members)
        raise BrokerError(f"{self._channel.name}: its answer to ConsumerGroupDescribe says nothing of {group!r}")

    def list_groups(self, deadline: Deadline) -> Sequence[schemas.ListedGroup]:
        """Return the groups that this broker coordinates. Raises an error while it loads some of them."""
        answer = self._ask(schemas.LIST_GROUPS, {}, deadline)
        self._check(answer["error_code"], "listing its groups")
        return [
            schemas.ListedGroup(one["group_id"] or "", one["protocol_type"] or "", one.get("group_state") or "")
            for one in answer["groups"] or ()
        ]

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> Mapping[TopicPartition, int]:
        """Delete offsets of a group (brokers from 2.4 on). Returns the error code of each partition."""
        wanted = list(partitions)
        topics = _by_topic("partitions", {tp: {"partition_index": tp.partition} for tp in wanted})
        answer = self._ask(schemas.OFFSET_DELETE, {"group_id": group, "topics": topics}, deadline)
        self._check(answer["error_code"], f"deleting offsets of group {group!r}")
        codes = _codes(answer)
        self._check_complete(wanted, codes, "OffsetDelete")
        return codes

    def delete_group(self, group: str, deadline: Deadline) -> None:
        """Delete a group without members, and its offsets (brokers from 1.1 on)."""
        answer = self._ask(schemas.DELETE_GROUPS, {"groups_names": [group]}, deadline)
        for one in answer["results"] or ():
            self._check(one["error_code"], f"deleting group {one['group_id']!r}")

    # -- inside

    def _ask(
        self, message: ApiSchema, values: Values, deadline: Deadline, max_wait: float = 0.0, answer: float | None = None
    ) -> dict[str, Any]:
        version = self._versions.get(message)
        if version is None:
            reason = f"does not know {message.name}" if self._versions else "not connected"
            raise BrokerError(f"{self._channel.name}: {reason}")
        return self._channel.exchange(ApiRequest(message, version, values), deadline, max_wait, answer)

    def _values(self, who: Membership) -> dict[str, Any]:
        return {
            "group_id": who.group,
            "generation_id": who.generation,
            "member_id": who.member_id,
            "group_instance_id": who.instance_id,
        }

    def _check(self, code: int, asked: str) -> None:
        if code:
            raise error_codes.error(code, f"{self._channel.name}, {asked}")

    def _check_complete(
        self, asked: Iterable[TopicPartition], told: Mapping[TopicPartition, object], what: str
    ) -> None:
        missing = [tp for tp in asked if tp not in told]
        if missing:
            raise BrokerError(f"{self._channel.name}: its answer to {what} says nothing of {missing[0]}")


def _by_topic(field: str, parts: Mapping[TopicPartition, Any]) -> list[dict[str, Any]]:
    topics: dict[str, list[Any]] = {}
    for tp, part in parts.items():
        topics.setdefault(tp.topic, []).append(part)
    return [{"name": topic, field: those} for topic, those in topics.items()]


def _committed(tp: TopicPartition, offset: int | OffsetAndMetadata) -> dict[str, Any]:
    if not isinstance(offset, OffsetAndMetadata):
        return {"partition_index": tp.partition, "committed_offset": offset}
    return {
        "partition_index": tp.partition,
        "committed_offset": offset.offset,
        "committed_metadata": offset.metadata,
        "committed_leader_epoch": offset.leader_epoch,
    }


def _codes(answer: Values) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic["name"], one["partition_index"]): one["error_code"]
        for topic in answer["topics"] or ()
        for one in topic["partitions"] or ()
    }


def _described(one: Values) -> DescribedMember:
    return DescribedMember(
        one["member_id"] or "",
        one.get("group_instance_id"),
        one["client_id"] or "",
        one["client_host"] or "",
        one["member_metadata"] or b"",
        one["member_assignment"] or b"",
    )


def _assigned(one: Values) -> schemas.AssignedMember:
    owned = one["assignment"]["topic_partitions"] or ()
    return schemas.AssignedMember(
        one["member_id"] or "",
        one["instance_id"],
        one["client_id"] or "",
        one["client_host"] or "",
        tuple(one["subscribed_topic_names"] or ()),
        tuple(
            TopicPartition(part["topic_name"] or "", number) for part in owned for number in part["partitions"] or ()
        ),
    )


def _ms(seconds: float) -> int:
    return min(max(round(seconds * 1000), 0), _INT32_MAX)
