"""The requests of this client: their versions, how they are written, and how small responses are read.

Pure (no socket, no clock). aiokafka's protocol classes write requests and read small responses. They are not that
library's public API. So the library is pinned, and ``tests/contract/test_protocol_classes.py`` tests the parts that are
used here. ``fetch_request.py`` writes a fetch, and ``fetch_response.py`` reads its response.

Mirrors the original, which speaks Fetch 0 to 3, Metadata 0 and ListOffsets 0. Differs in that a broker of node version
3 or later is asked for its versions. Otherwise it would convert messages down, and lose headers and zstd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from aiokafka.protocol import admin, fetch, metadata, offset

from zkconsumer.core.leader_epochs import EpochEnd
from zkconsumer.errors import BrokerError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.schema import INT16, INT32, INT64, STRING, ApiRequest, ApiSchema, Field
from zkconsumer.model import TopicPartition


class Api(NamedTuple):
    """One kind of request: its number in the protocol, its name, and the class of each version that we write."""

    key: int
    name: str
    classes: tuple[Any, ...]


FETCH = Api(1, "Fetch", tuple(getattr(fetch, f"FetchRequest_v{v}") for v in range(12)))
# aiokafka's class for version 4 gives the leader epoch a wrong width, and its own builder stops at 3 as well
LIST_OFFSETS = Api(2, "ListOffsets", tuple(getattr(offset, f"OffsetRequest_v{v}") for v in range(4)))
METADATA = Api(3, "Metadata", tuple(getattr(metadata, f"MetadataRequest_v{v}") for v in range(6)))
API_VERSIONS = Api(18, "ApiVersions", (admin.ApiVersionRequest_v0,))
SASL_HANDSHAKE = Api(17, "SaslHandshake", tuple(getattr(admin, f"SaslHandShakeRequest_v{v}") for v in range(2)))
SASL_AUTHENTICATE = Api(
    36, "SaslAuthenticate", tuple(getattr(admin, f"SaslAuthenticateRequest_v{v}") for v in range(2))
)
EPOCH_END = Api(23, "OffsetForLeaderEpoch", (None,) * 4)  # written by epoch_ends_request
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", tuple(getattr(admin, f"DescribeConfigsRequest_v{v}") for v in range(2)))
NEGOTIATED = (FETCH, LIST_OFFSETS, METADATA)
LOGIN = (SASL_HANDSHAKE, SASL_AUTHENTICATE)
"""Requests that only a login needs, so that a broker may lack them (0.10 and 0.11 do not know the second)."""
OPTIONAL = (*LOGIN, EPOCH_END, DESCRIBE_CONFIGS)

Versions = Mapping[Api, int]
"""The version of each request on one connection."""

_BASE: Versions = {FETCH: 0, LIST_OFFSETS: 0, METADATA: 0, API_VERSIONS: 0}
CAPPED_FETCH = 3
"""From this version of a fetch on, brokers keep a whole response to the limit, but for one larger batch (KIP-74)."""
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
    """

    positions: Sequence[FetchPosition]
    max_wait: float
    min_bytes: int
    max_bytes: int
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    forgotten: Sequence[TopicPartition] = ()


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
    return {**_BASE, FETCH: 1} if generation == 2 else _BASE


def negotiated_versions(ranges: Mapping[int, tuple[int, int]], who: str) -> Versions:
    """Return the highest version of each request that both sides know.

    Arguments: the broker's ``ranges`` by the request's number; ``who`` is the broker. Raises: BrokerError if there is
    none.
    """
    chosen: dict[Api, int] = {API_VERSIONS: 0}
    for api in NEGOTIATED:
        low, high = ranges.get(api.key, (0, -1))
        best = min(high, len(api.classes) - 1)
        if best < low or best < 0:
            ours = f"0 to {len(api.classes) - 1}"
            theirs = f"{low} to {high}" if high >= low else "not at all"
            raise BrokerError(f"{who} speaks {api.name} {theirs}, this client {ours}")
        chosen[api] = best
    for api in OPTIONAL:
        low, high = ranges.get(api.key, (0, -1))
        best = min(high, len(api.classes) - 1)
        if best >= low:
            chosen[api] = best
    return chosen


# -- requests


def api_versions_request() -> Any:
    """Return the request for the broker's versions."""
    return API_VERSIONS.classes[0]()


def metadata_request(version: int, topics: Sequence[str]) -> Any:
    """Return the request for the leaders of ``topics`` (not empty: version 0 would read that as all topics)."""
    names = list(topics)
    return METADATA.classes[version](names, False) if version >= 4 else METADATA.classes[version](names)


def list_offsets_request(
    version: int, wanted: Mapping[TopicPartition, int], isolation_level: int, *, written: bool = False
) -> Any:
    """Return the request for the offset at a time of each partition (ms; -1 the end, -2 the beginning).

    With ``written`` the end is that of the leader's log, beyond the messages that consumers may read now.
    """
    who = _TOOL if written else _CONSUMER
    one: tuple[int, ...] = (1,) if version == 0 else ()  # version 0 answers with a list; one entry is enough
    topics = _by_topic((t, (p, timestamp, *one)) for (t, p), timestamp in wanted.items())
    if version >= 2:
        return LIST_OFFSETS.classes[version](who, isolation_level, topics)
    return LIST_OFFSETS.classes[version](who, topics)


_TOPIC_CONFIG = 2  # the kind of resource


def topic_configs_request(version: int, topics: Sequence[str], names: Sequence[str]) -> Any:
    """Return the request for some settings of topics, the brokers' defaults included."""
    resources = [(_TOPIC_CONFIG, topic, list(names)) for topic in topics]
    if version == 0:
        return DESCRIBE_CONFIGS.classes[0](resources)
    return DESCRIBE_CONFIGS.classes[version](resources, False)


def topic_configs(answer: Any) -> dict[str, dict[str, str]]:
    """Return the settings by topic, without topics that the broker does not describe to us."""
    found: dict[str, dict[str, str]] = {}
    for code, _, kind, topic, entries in answer.resources or ():
        if code == error_codes.NONE and kind == _TOPIC_CONFIG:
            found[topic] = {name: value for name, value, *_ in entries or () if name and value is not None}
    return found


def _by_topic(parts: Iterable[tuple[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Make runs of equal topics one entry; the order stays, since it decides which partition is served first."""
    return [(topic, [part for _, part in run]) for topic, run in groupby(parts, itemgetter(0))]


def encode(request: Any, correlation_id: int, client_id: str) -> bytes:
    """Return a request as its bytes, length included."""
    body: bytes = request.build_request_header(correlation_id, client_id).encode() + request.encode()
    return len(body).to_bytes(4, "big") + body


# -- small responses


def decode(request: Any, payload: bytes, who: str) -> Any:
    """Return the response to ``request`` as aiokafka's object. Raises BrokerError for bytes that are none."""
    try:
        return request.RESPONSE_TYPE.decode(payload)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError) as failure:
        kind = getattr(request, "name", type(request).__name__)
        raise BrokerError(f"{who}: its answer to {kind} cannot be read: {failure!r}") from failure


def api_ranges(answer: Any, who: str) -> Mapping[int, tuple[int, int]]:
    """Return the (lowest, highest) version of each request. Raises BrokerResponseError if the broker refuses."""
    if answer.error_code and answer.error_code != error_codes.UNSUPPORTED_VERSION:
        raise error_codes.error(answer.error_code, f"{who}, which versions it speaks")
    return {key: (low, high) for key, low, high in answer.api_versions or ()}


def cluster_metadata(answer: Any) -> ClusterMetadata:
    """Return metadata of any version in our own form.

    A partition with REPLICA_NOT_AVAILABLE (only some follower is down) has a leader and no error for a consumer.
    """
    leaders: dict[TopicPartition, int] = {}
    failed: dict[str | TopicPartition, int] = {}
    for code, topic, *_, partitions in answer.topics or ():
        if code:
            failed[topic] = code
        for partition_code, partition, leader, *_ in partitions or ():
            which = TopicPartition(topic, partition)
            if leader >= 0 and partition_code in (error_codes.NONE, error_codes.REPLICA_NOT_AVAILABLE):
                leaders[which] = leader
            else:
                failed[which] = partition_code or error_codes.LEADER_NOT_AVAILABLE
    brokers = {node: (host or "", port) for node, host, port, *_ in answer.brokers or ()}
    return ClusterMetadata(brokers, leaders, failed)


def listed_offsets(answer: Any) -> dict[TopicPartition, ListedOffset]:
    """Return offsets of any version in our own form. Version 0 has no timestamps and answers with a list."""
    found: dict[TopicPartition, ListedOffset] = {}
    for topic, partitions in answer.topics or ():
        for partition, code, *rest in partitions or ():
            if isinstance(rest[0], int):
                listed = ListedOffset(rest[1], rest[0], code)
            else:
                listed = ListedOffset(rest[0][0] if rest[0] else -1, -1, code)
            found[TopicPartition(topic, partition)] = listed
    return found


_ANY = -1  # no leader epoch is expected

OFFSET_FOR_LEADER_EPOCH = ApiSchema(
    *(23, "OffsetForLeaderEpoch", 0, 3, 4),
    request=(
        Field("replica_id", INT32, 3),
        Field(
            "topics",
            (
                Field("topic", STRING),
                Field(
                    "partitions",
                    (Field("partition", INT32), Field("current_leader_epoch", INT32, 2), Field("leader_epoch", INT32)),
                    many=True,
                ),
            ),
            many=True,
        ),
    ),
    response=(
        Field("throttle_time_ms", INT32, 2, default=0),
        Field(
            "topics",
            (
                Field("topic", STRING),
                Field(
                    "partitions",
                    (
                        Field("error_code", INT16),
                        Field("partition", INT32),
                        Field("leader_epoch", INT32, 1, default=-1),
                        Field("end_offset", INT64),
                    ),
                    many=True,
                ),
            ),
            many=True,
        ),
    ),
)


class EpochEndResponse(NamedTuple):
    """The answer for one partition: an error code, 0 for none, and the end of the epoch."""

    error: int
    end: EpochEnd


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
        for topic, run in groupby(sorted(epochs), lambda tp: tp.topic)
    ]
    return ApiRequest(OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": _CONSUMER, "topics": topics})


def epoch_ends(
    answer: Mapping[str, Any], epochs: Mapping[TopicPartition, int]
) -> dict[TopicPartition, EpochEndResponse]:
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
