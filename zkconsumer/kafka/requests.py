"""The requests of this client: their versions, their values, and what small responses mean.

Pure (no socket, no clock). ``broker_schemas.py`` describes the requests, and ``data_plane/fetch_response.py`` reads
the response to a fetch. :func:`encode_fetch` writes a fetch, versions 0 to 11. The schema gives the same bytes, and the
tests compare them. But the schema makes a dictionary of each partition and walks its fields, which takes longer than to
read a small response.

Mirrors the original, which speaks Fetch 0 to 3, Metadata 0 and ListOffsets 0. Differs in that a broker of node version
3 or later is asked for its versions. Otherwise it would convert messages down, and lose headers and zstd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from zkconsumer.core.leader_epochs import EpochEnd
from zkconsumer.errors import BrokerError
from zkconsumer.kafka import broker_schemas as schemas
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.api_schema import ApiRequest, ApiSchema, Values
from zkconsumer.model import TopicPartition

NEGOTIATED = (schemas.FETCH, schemas.LIST_OFFSETS, schemas.METADATA)
LOGIN = (schemas.SASL_HANDSHAKE, schemas.SASL_AUTHENTICATE)
"""Requests that only a login needs, so that a broker may lack them (0.10 and 0.11 do not know the second)."""
OPTIONAL = (*LOGIN, schemas.OFFSET_FOR_LEADER_EPOCH, schemas.DESCRIBE_CONFIGS)

Versions = Mapping[ApiSchema, int]
"""The version of each request on one connection."""

_BASE: Versions = {schemas.FETCH: 0, schemas.LIST_OFFSETS: 0, schemas.METADATA: 0, schemas.API_VERSIONS: 0}
CAPPED_FETCH = 3
"""From this version of a fetch on, brokers keep a whole response to the limit, but for one larger batch (KIP-74)."""
LEADERS_FETCH = 10
"""Up to this version of a fetch, a broker answers only for partitions that it leads."""
ASK_FROM_GENERATION = 3
"""Brokers that registered with this node version or later (0.10) can be asked for their versions."""

_CONSUMER = -1  # the replica id of a client that is no replica
_TOOL = -2  # the replica id of Kafka's own tools, which see messages that consumers may not see yet


class FetchPosition(NamedTuple):
    """One partition of a fetch: the offset to read on, and the most bytes (a first batch may be larger)."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """One fetch request to one broker.

    - ``positions``: their order is the order of service if bytes are short
    - ``max_wait``: in seconds; ``min_bytes`` of data end the wait early
    - ``max_bytes``: the limit of the response, for brokers from 0.10.1 on
    - ``isolation_level``: 0 is read_uncommitted, 1 read_committed; dropped for brokers before 0.11, without
      transactions
    - ``session_id``, ``session_epoch``: the fetch session (KIP-227, from 1.1 on); the defaults ask for none
    - ``forgotten``: the partitions to drop from the session
    - ``rack``: of the client (KIP-392, from 2.4 on), empty for none; None: only the leader shall answer
    """

    positions: Sequence[FetchPosition]
    max_wait: float
    min_bytes: int
    max_bytes: int
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    forgotten: Sequence[TopicPartition] = ()
    rack: str | None = None


class ClusterMetadata(NamedTuple):
    """The metadata of topics, as one broker sees it.

    It has the address (host, port) of each broker, and the leader of each partition that has one. If the broker has no
    metadata of a topic or partition, it has its error code.
    """

    brokers: Mapping[int, tuple[str, int]]
    leaders: Mapping[TopicPartition, int]
    errors: Mapping[str | TopicPartition, int]


class ListedOffset(NamedTuple):
    """The answer for one partition: the offset, -1 for none; ``timestamp`` in ms, -1 if unknown; error code."""

    offset: int
    timestamp: int
    error: int


def base_versions(generation: int) -> Versions:
    """Return the versions that a broker knows by its node in ZooKeeper, unasked: version 1 (0.8) or 2 (0.9).

    A newer broker that refuses to be asked gets version 0 of everything.
    """
    return {**_BASE, schemas.FETCH: 1} if generation == 2 else _BASE


def negotiated_versions(ranges: Mapping[int, tuple[int, int]], who: str) -> Versions:
    """Return the highest version of each request that both sides know.

    Arguments: the broker's ``ranges`` by the request's number; ``who`` is the broker. Raises: BrokerError if there is
    none.
    """
    chosen: dict[ApiSchema, int] = {schemas.API_VERSIONS: 0}
    for api in (*NEGOTIATED, *OPTIONAL):
        low, high = ranges.get(api.key, (0, -1))
        best = min(high, api.highest)
        if best >= max(low, api.lowest):
            chosen[api] = best
        elif api in NEGOTIATED:
            theirs = f"{low} to {high}" if high >= low else "not at all"
            raise BrokerError(f"{who} speaks {api.name} {theirs}, this client {api.lowest} to {api.highest}")
    return chosen


# -- requests


def api_versions_request() -> ApiRequest:
    """Return the request for the broker's versions."""
    return ApiRequest(schemas.API_VERSIONS, 0, {})


def metadata_request(version: int, topics: Sequence[str] | None) -> ApiRequest:
    """Return the request for the brokers and the leaders of ``topics``; None asks for all topics.

    Version 0 reads an empty list as all topics, and cannot be asked for none.
    """
    if version == 0:
        topics = topics or ()
    names = None if topics is None else [{"name": topic} for topic in topics]
    return ApiRequest(schemas.METADATA, version, {"topics": names})


def list_offsets_request(
    version: int, wanted: Mapping[TopicPartition, int], isolation_level: int, *, written: bool = False
) -> ApiRequest:
    """Return the request for the offset at a time of each partition (ms; -1 the end, -2 the beginning).

    With ``written`` the end is that of the leader's log, beyond the messages that consumers may read now.
    """
    topics = [
        {"name": topic, "partitions": [{"partition_index": tp.partition, "timestamp": wanted[tp]} for tp in run]}
        for topic, run in _by_topic(wanted)
    ]
    who = _TOOL if written else _CONSUMER
    values = {"replica_id": who, "isolation_level": isolation_level, "topics": topics}
    return ApiRequest(schemas.LIST_OFFSETS, version, values)


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, Iterable[TopicPartition]]]:
    """Return runs of equal topics."""
    return groupby(partitions, lambda tp: tp.topic)


_TOPIC_CONFIG = 2  # the kind of resource


def topic_configs_request(version: int, topics: Sequence[str], names: Sequence[str]) -> ApiRequest:
    """Return the request for some settings of topics, the brokers' defaults included."""
    resources = [
        {"resource_type": _TOPIC_CONFIG, "resource_name": topic, "configuration_keys": names} for topic in topics
    ]
    return ApiRequest(schemas.DESCRIBE_CONFIGS, version, {"resources": resources})


def mechanism_request(version: int, mechanism: str) -> ApiRequest:
    """Return the request for a login by a mechanism of SASL."""
    return ApiRequest(schemas.SASL_HANDSHAKE, version, {"mechanism": mechanism})


def token_request(version: int, token: bytes) -> ApiRequest:
    """Return the request with the next token of a login."""
    return ApiRequest(schemas.SASL_AUTHENTICATE, version, {"auth_bytes": token})


_ANY = -1  # no leader epoch is expected


def epoch_ends_request(version: int, epochs: Mapping[TopicPartition, int]) -> ApiRequest:
    """Return the request for the ends of these leader epochs (OffsetForLeaderEpoch).

    Brokers from 0.11 on answer it. Up to 2.0 it was for brokers alone: with access rights checked, they refuse a
    client.
    """
    topics = [
        {
            "topic": topic,
            "partitions": [
                {"partition": tp.partition, "current_leader_epoch": _ANY, "leader_epoch": epochs[tp]} for tp in run
            ],
        }
        for topic, run in _by_topic(sorted(epochs))
    ]
    return ApiRequest(schemas.OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": _CONSUMER, "topics": topics})


# -- small responses


def decode(request: ApiRequest, payload: bytes, who: str) -> dict[str, Any]:
    """Return the response to ``request``. Raises BrokerError for bytes that are none."""
    try:
        return request.decode(payload)
    except (ValueError, MemoryError) as failure:
        raise BrokerError(f"{who}: its answer to {request.name} cannot be read: {failure!r}") from failure


def api_ranges(answer: Values, who: str) -> Mapping[int, tuple[int, int]]:
    """Return the (lowest, highest) version of each request. Raises BrokerResponseError if the broker refuses."""
    code = answer["error_code"]
    if code and code != error_codes.UNSUPPORTED_VERSION:
        raise error_codes.error(code, f"{who}, which versions it speaks")
    return {api["api_key"]: (api["min_version"], api["max_version"]) for api in answer["api_keys"] or ()}


def cluster_metadata(answer: Values) -> ClusterMetadata:
    """Return metadata of any version in our own form.

    A partition with REPLICA_NOT_AVAILABLE (only some follower is down) has a leader and no error for a consumer.
    """
    leaders: dict[TopicPartition, int] = {}
    failed: dict[str | TopicPartition, int] = {}
    for topic in answer["topics"] or ():
        name = topic["name"]
        if topic["error_code"]:
            failed[name] = topic["error_code"]
        for partition in topic["partitions"] or ():
            which = TopicPartition(name, partition["partition_index"])
            leader, code = partition["leader_id"], partition["error_code"]
            if leader >= 0 and code in (error_codes.NONE, error_codes.REPLICA_NOT_AVAILABLE):
                leaders[which] = leader
            else:
                failed[which] = code or error_codes.LEADER_NOT_AVAILABLE
    brokers = {one["node_id"]: (one["host"] or "", one["port"]) for one in answer["brokers"] or ()}
    return ClusterMetadata(brokers, leaders, failed)


def listed_offsets(answer: Values) -> dict[TopicPartition, ListedOffset]:
    """Return offsets of any version in our own form. Version 0 has no timestamps and answers with a list."""
    found: dict[TopicPartition, ListedOffset] = {}
    for topic in answer["topics"] or ():
        for one in topic["partitions"] or ():
            if "offset" in one:
                listed = ListedOffset(one["offset"], one["timestamp"], one["error_code"])
            else:
                offsets = one["old_style_offsets"]
                listed = ListedOffset(offsets[0] if offsets else -1, -1, one["error_code"])
            found[TopicPartition(topic["name"], one["partition_index"])] = listed
    return found


def topic_configs(answer: Values) -> dict[str, dict[str, str]]:
    """Return the settings by topic, without topics that the broker does not describe to us."""
    found: dict[str, dict[str, str]] = {}
    for resource in answer["results"] or ():
        if resource["error_code"] == error_codes.NONE and resource["resource_type"] == _TOPIC_CONFIG:
            found[resource["resource_name"]] = {
                one["name"]: one["value"]
                for one in resource["configs"] or ()
                if one["name"] and one["value"] is not None
            }
    return found


class EpochEndResponse(NamedTuple):
    """The answer for one partition: an error code, 0 for none, and the end of the epoch."""

    error: int
    end: EpochEnd


def epoch_ends(answer: Values, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEndResponse]:
    """Return the answers for the requested partitions; UNKNOWN_SERVER_ERROR for one without an answer."""
    found = dict.fromkeys(epochs, EpochEndResponse(error_codes.UNKNOWN_SERVER_ERROR, EpochEnd(-1)))
    for topic in answer["topics"] or ():
        for one in topic["partitions"] or ():
            tp = TopicPartition(topic["topic"], one["partition"])
            if tp in found:
                found[tp] = EpochEndResponse(
                    one["error_code"], EpochEnd(one["end_offset"], one.get("leader_epoch", -1))
                )
    return found


_HEADER = Struct(">ihhih").pack  # length of the rest, kind, version, correlation id, length of the client id
_HEADER_SIZE = 10  # bytes of it that the length counts
_WAIT = Struct(">iii").pack  # replica, wait in ms, least bytes
_WAIT_3 = Struct(">iiii").pack  # + most bytes
_WAIT_4 = Struct(">iiiib").pack  # + isolation level
_WAIT_7 = Struct(">iiiibii").pack  # + session id, epoch
_POSITION = Struct(">iqi").pack  # partition, offset, bytes
_POSITION_5 = Struct(">iqqi").pack  # + the log's start (replicas only), before the bytes
_POSITION_9 = Struct(">iiqqi").pack  # + the leader's epoch, before the offset
_INT16 = Struct(">h").pack
_INT32 = Struct(">i").pack

_UNKNOWN = -1
_INT32_MAX = 2**31 - 1
_NOTHING = _INT32(0)


def encode_fetch(version: int, request: FetchRequest, correlation_id: int, client_id: bytes) -> bytes:
    """Return the request as its bytes, length included; fields that the version does not have are left out."""
    if version >= LEADERS_FETCH and len(request[0]) == 1 and not request[7]:
        return _one_partition(version, request, correlation_id, client_id)
    body = client_id + _limits(version, request) + _topics(request.positions, _position(version))
    if version >= 7:
        body += _topics(request.forgotten, _forgotten) if request.forgotten else _NOTHING
    if version >= 11:
        body += _rack(request)
    return _HEADER(_HEADER_SIZE + len(body), schemas.FETCH.key, version, correlation_id, len(client_id)) + body


def _rack(request: FetchRequest) -> bytes:
    rack = (request.rack or "").encode()
    return _INT16(len(rack)) + rack


def _one_partition(version: int, request: FetchRequest, correlation_id: int, client_id: bytes) -> bytes:
    """Return a request of version 10 or 11 for one partition, as most are where the broker remembers."""
    positions, seconds, least, most, level, session, epoch, _, _ = request
    topic, partition, offset, size = positions[0]
    name, rack = topic.encode(), b"" if version == LEADERS_FETCH else _rack(request)
    pack, length = _one_layout(len(client_id), len(name), len(rack))
    head = (length, schemas.FETCH.key, version, correlation_id, len(client_id), client_id)
    limits = (_CONSUMER, min(round(seconds * 1000), _INT32_MAX), least, min(most, _INT32_MAX), level, session, epoch)
    return pack(*head, *limits, 1, len(name), name, 1, partition, _UNKNOWN, offset, _UNKNOWN, size, 0, rack)


@cache
def _one_layout(client: int, topic: int, rack: int) -> tuple[Callable[..., bytes], int]:
    """Return the packer of such a request, and the request's length, for names of so many bytes."""
    layout = Struct(f">ihhih{client}siiiibiiih{topic}siiiqqii{rack}s")
    return layout.pack, layout.size - 4


def _limits(version: int, request: FetchRequest) -> bytes:
    _, seconds, least, most, level, session, epoch, _, _ = request
    wait = min(round(seconds * 1000), _INT32_MAX)
    most = min(most, _INT32_MAX)
    if version >= 7:
        return _WAIT_7(_CONSUMER, wait, least, most, level, session, epoch)
    if version >= 4:
        return _WAIT_4(_CONSUMER, wait, least, most, level)
    return _WAIT_3(_CONSUMER, wait, least, most) if version == 3 else _WAIT(_CONSUMER, wait, least)


def _position(version: int) -> Callable[[FetchPosition], bytes]:
    return _position_9 if version >= 9 else _position_5 if version >= 5 else _position_0


def _position_9(position: FetchPosition) -> bytes:
    _, partition, offset, size = position
    return _POSITION_9(partition, _UNKNOWN, offset, _UNKNOWN, size)


def _position_5(position: FetchPosition) -> bytes:
    _, partition, offset, size = position
    return _POSITION_5(partition, offset, _UNKNOWN, size)


def _position_0(position: FetchPosition) -> bytes:
    _, partition, offset, size = position
    return _POSITION(partition, offset, size)


def _forgotten(tp: TopicPartition) -> bytes:
    return _INT32(tp[1])


def _topics(parts: Sequence[Any], write: Callable[[Any], bytes]) -> bytes:
    """Write runs of equal topics as one entry; the order stays, since it decides which partition is served first."""
    if not parts:
        return _NOTHING
    runs = [(topic.encode(), [write(part) for part in run]) for topic, run in groupby(parts, itemgetter(0))]
    written = [_INT32(len(runs))]
    for name, entries in runs:
        written += (_INT16(len(name)), name, _INT32(len(entries)), *entries)
    return b"".join(written)
