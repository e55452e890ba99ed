"""The fake broker's handlers of group requests: they convert between request bodies and ``GroupCoordinator``.

Each function runs on the connection's thread. It may block there until the broker stops.
"""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.testing import group_states as errors
from zkconsumer.testing.group_states import FakeGroupView, JoinAnswer, JoinRequest, MemberView, SyncAnswer, SyncRequest
from zkconsumer.testing.pending_requests import Handler, PendingAnswer, PendingRequest
from zkconsumer.testing.wire_types import Body

_UNKNOWN_TOPIC_OR_PARTITION = 3
_NEEDS_MEMBER_ID = 4  # JoinGroup from this version on
_SKIPS_ASSIGNMENT = 9
_PROTOCOL_MAY_BE_NULL = 7
_MANY_LEAVE = 3
_NAMES_PROTOCOL = 5  # SyncGroup from this version on
_ERROR_AT_TOP = 2  # of an OffsetFetch
_OLD_RETENTION = -1
_NOW = -1  # the timestamp of a commit that carries no time


def find_coordinator(call: PendingRequest) -> Body:
    """Answer the coordinator of a group."""
    if call.body["key_type"] != 0:  # transactions have no coordinator here
        return {"error_code": errors.NOT_AVAILABLE}
    found = call.cluster.coordinator(call.body["key"])
    if found is None:
        return {"error_code": errors.NOT_AVAILABLE}
    host, port = call.cluster.address(found)
    return {"node_id": found, "host": host, "port": port}


def join_group(call: PendingRequest) -> Body:
    """Answer a JoinGroup; wait for the other members."""
    body = call.body
    if error := call.cluster.group_error(call.broker_id, body["group_id"]):
        return _joined(call, JoinAnswer(error, body["member_id"], -1 if call.cluster.rules.modern else 0))
    session = body["session_timeout_ms"] / 1000
    rebalance = session if body["rebalance_timeout_ms"] < 0 else body["rebalance_timeout_ms"] / 1000
    request = JoinRequest(
        body["member_id"],
        body["group_instance_id"],
        call.client_id,
        call.client_host,
        session,
        rebalance,
        body["protocol_type"],
        tuple((offered["name"], offered["metadata"]) for offered in body["protocols"]),
        needs_member_id=call.version >= _NEEDS_MEMBER_ID,
        skips_assignment=call.version >= _SKIPS_ASSIGNMENT,
    )
    answer = PendingAnswer()
    call.groups.join(body["group_id"], request, answer)
    return _joined(call, answer.wait(call.stop))


def _joined(call: PendingRequest, answer: JoinAnswer) -> Body:
    null = call.version >= _PROTOCOL_MAY_BE_NULL
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol if null else answer.protocol or "",
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in answer.members
        ],
    }


def sync_group(call: PendingRequest) -> Body:
    """Answer a SyncGroup; wait for the leader."""
    body = call.body
    error = call.cluster.group_error(call.broker_id, body["group_id"])
    if error:
        if error == errors.LOADING:  # the old coordinator took the rebalance with it
            error = errors.REBALANCING if call.cluster.rules.modern else errors.UNKNOWN_MEMBER
        return _synced(SyncAnswer(error))
    if call.version >= _NAMES_PROTOCOL and None in (body["protocol_type"], body["protocol_name"]):
        return _synced(SyncAnswer(errors.INCONSISTENT_PROTOCOL))
    request = SyncRequest(
        body["member_id"],
        body["group_instance_id"],
        body["generation_id"],
        {assigned["member_id"]: assigned["assignment"] for assigned in body["assignments"]},
        body["protocol_type"],
        body["protocol_name"],
    )
    answer = PendingAnswer()
    call.groups.sync(body["group_id"], request, answer)
    return _synced(answer.wait(call.stop))


def _synced(answer: SyncAnswer) -> Body:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


def heartbeat(call: PendingRequest) -> Body:
    """Answer a Heartbeat. While the group is loading, every heartbeat succeeds."""
    body = call.body
    error = call.cluster.group_error(call.broker_id, body["group_id"])
    if error == errors.LOADING:
        error = errors.NONE
    elif not error:
        error = call.groups.heartbeat(
            body["group_id"], body["member_id"], body["group_instance_id"], body["generation_id"]
        )
    return {"error_code": error}


def leave_group(call: PendingRequest) -> Body:
    """Answer a LeaveGroup of one member or several."""
    body = call.body
    group_id = body["group_id"]
    if error := call.cluster.group_error(call.broker_id, group_id):
        return {"error_code": error}
    if call.version < _MANY_LEAVE:
        return {"error_code": call.groups.leave(group_id, body["member_id"], None)}
    members = []
    for leaving in body["members"]:
        error = call.groups.leave(group_id, leaving["member_id"], leaving["group_instance_id"])
        members.append({**leaving, "error_code": error})
    return {"members": members}


def describe_groups(call: PendingRequest) -> Body:
    """Answer a DescribeGroups. Only a stable group shows its members' metadata and assignments."""
    groups = []
    for group_id in call.body["groups"]:
        error = call.cluster.group_error(call.broker_id, group_id)
        if error:
            groups.append({"group_id": group_id, "error_code": error})
        else:
            groups.append(_described(call.groups.view(group_id, everything=False)))
    return {"groups": groups}


def _described(view: FakeGroupView) -> Body:
    return {
        "group_id": view.group_id,
        "group_state": view.state,
        "protocol_type": view.protocol_type,
        "protocol_data": view.protocol,
        "members": [_described_member(member) for member in view.members.values()],
    }


def _described_member(member: MemberView) -> Body:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }


def list_groups(call: PendingRequest) -> Body:
    """Answer a ListGroups: the groups that this broker coordinates."""
    wanted = call.body["states_filter"]
    return {
        "groups": [
            {"group_id": view.group_id, "protocol_type": view.protocol_type, "group_state": view.state}
            for view in call.groups.views()
            if not wanted or view.state in wanted
        ]
    }


def delete_groups(call: PendingRequest) -> Body:
    """Answer a DeleteGroups."""
    results = []
    for group_id in call.body["groups_names"]:
        error = call.cluster.group_error(call.broker_id, group_id) or call.groups.delete(group_id)
        results.append({"group_id": group_id, "error_code": error})
    return {"results": results}


def offset_commit(call: PendingRequest) -> Body:
    """Answer an OffsetCommit. Partitions that do not exist get an error; the others are written."""
    body = call.body
    wanted = {
        (topic["name"], partition["partition_index"]): (
            partition["committed_offset"],
            partition["committed_leader_epoch"],
            partition["committed_metadata"] or "",
        )
        for topic in body["topics"]
        for partition in topic["partitions"]
    }
    if error := call.cluster.group_error(call.broker_id, body["group_id"], may_be_empty=True):
        return _by_topic(body["topics"], dict.fromkeys(wanted, error))
    known = {place: offset for place, offset in wanted.items() if _exists(call, place)}
    wall = call.cluster.clock.wall()
    ages = {
        (topic["name"], partition["partition_index"]): wall - partition["commit_timestamp"] / 1000
        for topic in body["topics"]
        for partition in topic["partitions"]
        if partition["commit_timestamp"] != _NOW
    }
    retention = body["retention_time_ms"]
    results = call.groups.commit(
        body["group_id"],
        (body["member_id"] or "", body["group_instance_id"], body["generation_id"]),
        known,
        None if retention == _OLD_RETENTION else retention / 1000,
        ages,
    )
    return _by_topic(body["topics"], dict.fromkeys(wanted, _UNKNOWN_TOPIC_OR_PARTITION) | results)


def _exists(call: PendingRequest, place: tuple[str, int]) -> bool:
    """Return whether a partition can have offsets. Kafka 1.1 checks the topic only."""
    if call.cluster.rules.modern:
        return call.cluster.log(*place) is not None
    return call.cluster.logs(place[0]) is not None


def _by_topic(topics: Iterable[Body], results: dict[tuple[str, int], int]) -> Body:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": partition["partition_index"],
                        "error_code": results[topic["name"], partition["partition_index"]],
                    }
                    for partition in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    }


def offset_fetch(call: PendingRequest) -> Body:
    """Answer an OffsetFetch of some partitions or of all."""
    body = call.body
    if error := call.cluster.group_error(call.broker_id, body["group_id"], may_be_empty=True):
        return _refuse_offset_fetch(call, error)
    places = None
    if body["topics"] is not None:
        places = [(topic["name"], number) for topic in body["topics"] for number in topic["partition_indexes"]]
    topics: dict[str, list[Body]] = {}
    for (topic, number), committed in call.groups.committed(body["group_id"], places).items():
        entry: Body = {"partition_index": number}
        if committed is not None:
            entry |= {
                "committed_offset": committed.offset,
                "committed_leader_epoch": committed.leader_epoch,
                "metadata": committed.metadata,
            }
        topics.setdefault(topic, []).append(entry)
    return {"topics": [{"name": topic, "partitions": entries} for topic, entries in topics.items()]}


# ---- error answers that a test asked for ----


def _refuse_offset_fetch(call: PendingRequest, code: int) -> Body:
    """Answer an error of the group. Before version 2, each partition carries it."""
    if call.version >= _ERROR_AT_TOP:
        return {"error_code": code}
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [{"partition_index": n, "error_code": code} for n in topic["partition_indexes"]],
            }
            for topic in call.body["topics"] or ()
        ]
    }


def _refuse_offset_commit(call: PendingRequest, code: int) -> Body:
    topics = call.body["topics"]
    places = [(t["name"], p["partition_index"]) for t in topics for p in t["partitions"]]
    return _by_topic(topics, dict.fromkeys(places, code))


def _refuse(call: PendingRequest, code: int) -> Body:
    del call
    return {"error_code": code}


def _refuse_join(call: PendingRequest, code: int) -> Body:
    return _joined(call, JoinAnswer(code, call.body["member_id"]))


def _refuse_describe(call: PendingRequest, code: int) -> Body:
    return {"groups": [{"group_id": group_id, "error_code": code} for group_id in call.body["groups"]]}


def _refuse_delete(call: PendingRequest, code: int) -> Body:
    return {"results": [{"group_id": group_id, "error_code": code} for group_id in call.body["groups_names"]]}


GROUP_HANDLERS = {
    "FindCoordinator": Handler(find_coordinator, _refuse),
    "JoinGroup": Handler(join_group, _refuse_join),
    "SyncGroup": Handler(sync_group, _refuse),
    "Heartbeat": Handler(heartbeat, _refuse),
    "LeaveGroup": Handler(leave_group, _refuse),
    "DescribeGroups": Handler(describe_groups, _refuse_describe),
    "ListGroups": Handler(list_groups, _refuse),
    "DeleteGroups": Handler(delete_groups, _refuse_delete),
    "OffsetCommit": Handler(offset_commit, _refuse_offset_commit),
    "OffsetFetch": Handler(offset_fetch, _refuse_offset_fetch),
}
