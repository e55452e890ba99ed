"""The fake broker's handlers of all other requests: metadata, produce, fetch, offsets by time, and topics.

Each function runs on the connection's thread. It may block there until the broker stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.partition_log import Appended, PartitionLog
from zkconsumer.testing.pending_requests import BrokerStopped, Handler, PendingRequest
from zkconsumer.testing.request_schemas import supported
from zkconsumer.testing.wire_types import Body

_UNKNOWN_TOPIC_OR_PARTITION = 3
_LEADER_NOT_AVAILABLE = 5
_NOT_LEADER = 6
_INVALID_TOPIC = 17
_TOPIC_EXISTS = 36
_INVALID_PARTITIONS = 37
_UNSUPPORTED_VERSION = 35
_FENCED_EPOCH = 74
_UNKNOWN_EPOCH = 75
_NO_TRANSACTIONS = 53
_FROM_FOLLOWERS = 11
"""The first version of Fetch in which a consumer may read from a follower."""
_LATEST, _EARLIEST = -1, -2


def api_versions(call: PendingRequest) -> Body:
    """Answer the versions of each request."""
    return {"api_keys": supported(call.cluster.rules.modern)}


def metadata(call: PendingRequest) -> Body:
    """Answer the brokers, topics and leaders."""
    cluster = call.cluster
    wanted = call.body["topics"]
    everything = wanted is None or (call.version == 0 and not wanted)
    names = cluster.topics() if everything else [topic["name"] for topic in wanted]
    return {
        "brokers": [
            {"node_id": broker_id, "host": host, "port": port} for broker_id, host, port in cluster.addresses()
        ],
        "cluster_id": "fake-cluster",
        "controller_id": min((broker_id for broker_id, *_ in cluster.addresses()), default=-1),
        "topics": [_topic(cluster.logs(name), name, [b for b, *_ in cluster.addresses()]) for name in names],
    }


def _topic(logs: list[PartitionLog] | None, name: str, alive: list[int]) -> Body:
    if logs is None:
        return {"name": name, "error_code": _UNKNOWN_TOPIC_OR_PARTITION}
    partitions = []
    for number, log in enumerate(logs):
        replicas = alive or [log.leader]
        partitions.append(
            {
                "partition_index": number,
                "error_code": 0 if log.leader >= 0 else _LEADER_NOT_AVAILABLE,
                "leader_id": log.leader,
                "leader_epoch": log.epoch,
                "replica_nodes": replicas,
                "isr_nodes": replicas,
            }
        )
    return {"name": name, "partitions": partitions}


def produce(call: PendingRequest) -> Body | None:
    """Append messages. With acks 0 there is no answer."""

    def one(topic: str, partition: Body) -> Body:
        log, error = _led(call, topic, partition["index"])
        done = Appended(error)
        if log is not None and not error:
            done = log.append(partition["records"] or b"")
        return {
            "index": partition["index"],
            "error_code": done.error,
            "base_offset": done.offset,
            "log_start_offset": 0,
        }

    answer = {"responses": _each(call.body["topics"], "name", one)}
    call.cluster.arrivals.add()
    return answer if call.body["acks"] else None


def fetch(call: PendingRequest) -> Body:
    """Answer messages; wait in real time if there are none. The answer says that there are no fetch sessions."""
    deadline = Deadline(max(call.body["max_wait_ms"], 0) / 1000)
    while True:
        mark = call.cluster.arrivals.count()
        size, urgent, answer = _fetched(call)
        if urgent or size >= call.body["min_bytes"] or deadline.expired:
            return answer
        if call.stop.is_set():
            raise BrokerStopped
        call.cluster.arrivals.wait(mark, deadline)


def _fetched(call: PendingRequest) -> tuple[int, bool, Body]:
    """Return the number of bytes, whether the answer must not wait because of an error, and the answer."""
    left = call.body["max_bytes"]
    size, urgent = 0, False

    def one(topic: str, partition: Body) -> Body:
        nonlocal size, urgent
        number = partition["partition"]
        log, error = _led(call, topic, number, partition["current_leader_epoch"])
        leads = error != _NOT_LEADER
        if not leads and log is not None and call.version >= _FROM_FOLLOWERS and call.broker_id in log.followers:
            error = 0
        entry: Body = {"partition_index": number, "error_code": error}
        if log is not None and not error:
            offset, room = partition["fetch_offset"], min(partition["partition_max_bytes"], left - size)
            replica = read_replica(log, call.body.get("rack_id", ""), offset) if leads else -1
            records, end = b"", _end_at(log, call.broker_id)
            if replica < 0 and (room > 0 or not size):
                entry["error_code"], records = log.read(offset, room, end)
            size += len(records)
            entry |= {
                "high_watermark": end,
                "last_stable_offset": end,
                "log_start_offset": log.start,
                "preferred_read_replica": replica,
                "records": records,
            }
            urgent |= replica >= 0
        urgent |= bool(entry["error_code"])
        return entry

    responses = _each(call.body["topics"], "topic", one)  # which adds up the size
    return size, urgent, {"responses": responses}


def _end_at(log: PartitionLog, broker: int) -> int:
    """Return the offset of the next message at that broker."""
    follower = None if broker == log.leader else log.followers.get(broker)
    return log.end if follower is None or follower.end is None else min(log.end, follower.end)


def read_replica(log: PartitionLog, rack: str, offset: int) -> int:
    """Return the follower of a rack that has the offset, -1 if there is none."""
    for broker, follower in list(log.followers.items()):
        near = rack and follower.rack == rack and broker != log.leader
        if near and log.start <= offset <= _end_at(log, broker):
            return broker
    return -1


def list_offsets(call: PendingRequest) -> Body:
    """Answer offsets by time."""

    def one(topic: str, partition: Body) -> Body:
        number, timestamp = partition["partition_index"], partition["timestamp"]
        log, error = _led(call, topic, number, partition["current_leader_epoch"])
        if log is None or error:
            return {"partition_index": number, "error_code": error}
        if timestamp == _LATEST:
            found = (log.end, -1)
        elif timestamp == _EARLIEST:
            found = (log.start, -1)
        else:
            found = log.offset_at(timestamp)
        return {"partition_index": number, "offset": found[0], "timestamp": found[1], "leader_epoch": log.epoch}

    return {"topics": _each(call.body["topics"], "name", one)}


def offset_for_leader_epoch(call: PendingRequest) -> Body:
    """Answer the offsets at which leader epochs end."""

    def one(topic: str, partition: Body) -> Body:
        number = partition["partition"]
        log, error = _led(call, topic, number, partition["current_leader_epoch"])
        if log is None or error:
            return {"partition": number, "error_code": error}
        epoch, end = log.epoch_end(partition["leader_epoch"])
        return {"partition": number, "leader_epoch": epoch, "end_offset": end}

    return {"topics": _each(call.body["topics"], "topic", one)}


def init_producer_id(call: PendingRequest) -> Body:
    """Answer a producer id, for idempotence. There are no transactions."""
    if call.body["transactional_id"] is not None:
        return {"error_code": _NO_TRANSACTIONS}
    return {"producer_id": call.cluster.next_producer_id(), "producer_epoch": 0}


def create_topics(call: PendingRequest) -> Body:
    """Answer a CreateTopics. Configurations and the number of replicas are ignored."""
    results = []
    for topic in call.body["topics"]:
        name = topic["name"]
        count = len(topic["assignments"]) or max(topic["num_partitions"], 1)
        error = _TOPIC_EXISTS if call.cluster.logs(name) is not None else 0 if name else _INVALID_TOPIC
        if not error and not call.body["validate_only"]:
            call.cluster.create_topic(name, count)
        results.append({"name": name, "error_code": error, "num_partitions": count, "replication_factor": 1})
    return {"topics": results}


def delete_topics(call: PendingRequest) -> Body:
    """Answer a DeleteTopics. All groups lose their offsets of the topics."""
    results = []
    for name in call.body["topic_names"]:
        known = call.cluster.logs(name) is not None
        if known:
            call.cluster.delete_topic(name)
        results.append({"name": name, "error_code": 0 if known else _UNKNOWN_TOPIC_OR_PARTITION})
    return {"responses": results}


def create_partitions(call: PendingRequest) -> Body:
    """Answer a CreatePartitions."""
    results = []
    for topic in call.body["topics"]:
        logs = call.cluster.logs(topic["name"])
        error = _UNKNOWN_TOPIC_OR_PARTITION if logs is None else 0
        if logs is not None and topic["count"] <= len(logs):
            error = _INVALID_PARTITIONS
        if not error and not call.body["validate_only"]:
            call.cluster.add_partitions(topic["name"], topic["count"])
        results.append({"name": topic["name"], "error_code": error})
    return {"results": results}


# ---- inside ----


def _led(call: PendingRequest, topic: str, number: int, epoch: int = -1) -> tuple[PartitionLog | None, int]:
    """Return a partition's log, and the error if this broker does not lead it or the client's leader epoch differs."""
    log = call.cluster.log(topic, number)
    if log is None:
        return None, _UNKNOWN_TOPIC_OR_PARTITION
    if log.leader != call.broker_id:
        return log, _NOT_LEADER
    if epoch >= 0 and epoch != log.epoch:
        return log, _FENCED_EPOCH if epoch < log.epoch else _UNKNOWN_EPOCH
    return log, 0


def _each(topics: Iterable[Body], name: str, one: Callable[[str, Body], Body]) -> list[Body]:
    return [{name: topic[name], "partitions": [one(topic[name], p) for p in topic["partitions"]]} for topic in topics]


# ---- error answers that a test asked for ----


def _refuse(call: PendingRequest, code: int) -> Body:
    del call
    return {"error_code": code}


def _refuse_metadata(call: PendingRequest, code: int) -> Body:
    topics = [{**topic, "error_code": code, "partitions": ()} for topic in metadata(call)["topics"]]
    return {**metadata(call), "topics": topics}


def _refuse_partitions(answer: str, name: str, asked: str, told: str) -> Callable[[PendingRequest, int], Body]:
    def refuse(call: PendingRequest, code: int) -> Body:
        def one(_: str, partition: Body) -> Body:
            return {told: partition[asked], "error_code": code}

        return {answer: _each(call.body["topics"], name, one)}

    return refuse


def _refuse_names(answer: str) -> Callable[[PendingRequest, int], Body]:
    def refuse(call: PendingRequest, code: int) -> Body:
        names = call.body.get("topic_names") or [topic["name"] for topic in call.body.get("topics", ())]
        return {answer: [{"name": name, "error_code": code} for name in names]}

    return refuse


LOG_HANDLERS = {
    "ApiVersions": Handler(api_versions, _refuse),
    "Metadata": Handler(metadata, _refuse_metadata),
    "Produce": Handler(produce, _refuse_partitions("responses", "name", "index", "index")),
    "Fetch": Handler(fetch, _refuse_partitions("responses", "topic", "partition", "partition_index")),
    "ListOffsets": Handler(list_offsets, _refuse_partitions("topics", "name", "partition_index", "partition_index")),
    "OffsetForLeaderEpoch": Handler(
        offset_for_leader_epoch, _refuse_partitions("topics", "topic", "partition", "partition")
    ),
    "InitProducerId": Handler(init_producer_id, _refuse),
    "CreateTopics": Handler(create_topics, _refuse_names("topics")),
    "DeleteTopics": Handler(delete_topics, _refuse_names("responses")),
    "CreatePartitions": Handler(create_partitions, _refuse_names("results")),
}
