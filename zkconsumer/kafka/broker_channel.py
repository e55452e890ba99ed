"""A blocking channel to one broker: sends requests and receives responses, in the order of the requests.

Threads: one thread at a time (the owner: a fetcher, the leader finder) calls everything but ``close()``. Any thread may
call ``close()``, which wakes the owner; see ``connection.py``. Nothing else is shared, so nothing else is guarded.

Mirrors the original's SimpleConsumer and BlockingChannel. Differs on purpose: correlation ids are checked, and requests
are pipelined, so that the next fetch is under way while the last response is decoded. Every wait has an end. No request
is silently repeated on a new connection. Brokers that can be asked for their versions are asked.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple, Protocol

from zkconsumer.data_plane.fetch_response import FetchResponse, Receive, ResponseReader, read, receive_bounded
from zkconsumer.errors import BrokerError, BrokerUnavailableError
from zkconsumer.kafka import error_codes, requests
from zkconsumer.kafka.api_schema import ApiRequest, ApiSchema
from zkconsumer.kafka.broker_schemas import DESCRIBE_CONFIGS, FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH
from zkconsumer.kafka.connection import Connection, PeerClosedError
from zkconsumer.kafka.requests import ClusterMetadata, EpochEndResponse, FetchRequest, ListedOffset, Versions
from zkconsumer.model import EARLIEST, Endpoint, TopicPartition, new_tuple
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.protocol_probe import instead_of_broker

logger = logging.getLogger(__name__)

_HEAD, _HEAD_SIZE = Struct(">ii"), 8  # the length of the rest, the correlation id
_BUFFER = 256 * 1024
_SMALL = 16 * 1024  # received together with a head; enough for a response with little news
_KEPT_BUFFER = 4 * 1024 * 1024 + 65536  # the receive buffer grows up to this
_LARGEST_TOKEN = 1024 * 1024
LARGEST_ANSWER = 100 * 1024 * 1024
"""Bytes of one batch, unless more is asked for: brokers take no larger request (``socket.request.max.bytes``)."""
_BESIDE_RECORDS = 8 * 1024 * 1024  # names, heads and aborted transactions in a fetch response
# any other response; decoded it takes 15 times that. Metadata of 180,000 partitions fit.
_LARGEST_OTHER = 8 * 1024 * 1024
_LOGIN_SHARE = 0.8  # a login is renewed after this share of its lifetime


class WrongPortError(BrokerUnavailableError):
    """Something else than a broker of the wanted security protocol answers at the address."""


class Security(Protocol):
    """Secures a new connection: TLS, a login."""

    def wrap(self, sock: socket.socket, host: str) -> socket.socket:
        """Return the socket with TLS over it before its handshake (``do_handshake_on_connect=False``), or the same
        socket.
        """

    def authenticate(self, channel: BrokerChannel, deadline: Deadline) -> float | None:
        """Log in over the channel. Return the lifetime of the login in seconds, or None if unlimited.

        Raises: BrokerError.
        """


class _PendingResponse(NamedTuple):
    """A response that the broker owes us, and the most bytes and (of a fetch) partitions that it may have."""

    correlation_id: int
    api: ApiSchema
    version: int
    max_wait: float
    most_bytes: int
    most_partitions: int = 0


class BrokerChannel:
    """One connection to one broker.

    After any error but BrokerResponseError the channel is unusable until ``connect()`` is called again; outstanding
    responses are lost then. After ``close()`` it stays closed.

    Arguments: ``client_id`` is our name in the broker's quotas and logs. ``socket_timeout`` in seconds is how long the
    broker may be silent, beyond the wait of a fetch. ``receive_buffer`` in bytes is the socket's; 0 leaves it to the
    system. ``security`` adds TLS and a login. ``largest_fetch`` in bytes is the largest batch that the broker may send
    although less was asked for (KIP-74). The constructor does no I/O.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        client_id: str,
        socket_timeout: float,
        receive_buffer: int = 65536,
        security: Security | None = None,
        largest_fetch: int = LARGEST_ANSWER,
    ) -> None:
        self.endpoint = endpoint
        self._client_id = client_id
        self._client_name = client_id.encode()
        self._timeout = socket_timeout
        self._security = security
        self._largest_fetch = largest_fetch
        # the id of a bootstrap server is not known
        who = f"broker {endpoint.broker_id}" if endpoint.broker_id >= 0 else "the broker"
        self.connection = Connection(who, endpoint.host, endpoint.port, receive_buffer)
        self.name = self.connection.name
        """The broker and its address, for errors."""
        self._versions: Versions | None = None
        self.login_until = Deadline(None)
        self.buffer = bytearray(_BUFFER)
        self._next_id = 0
        self._named = 0
        self._expected: deque[_PendingResponse] = deque()
        self._early: dict[int, FetchResponse] = {}

    def __repr__(self) -> str:
        return f"<BrokerChannel {self.name}>"

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each request on this connection, by its name; empty while not connected."""
        return {api.name: version for api, version in (self._versions or {}).items()}

    @property
    def login_is_due(self) -> bool:
        """Whether the next request logs in again first, which may take long."""
        return self.login_until.at is not None and self.login_until.expired

    def connect(self, deadline: Deadline) -> None:
        """Connect, log in, and agree on versions; drops an older connection first.

        Raises: BrokerUnavailableError; BrokerError if no version of a request is known to both sides.
        """
        versions = requests.base_versions(self.endpoint.generation)
        try:
            self._open(deadline)
            if self.endpoint.generation >= requests.ASK_FROM_GENERATION:
                versions = self._ask_versions(deadline) or versions
        except WrongPortError:
            raise
        except BrokerError as e:
            self._check_port(deadline, e)
            raise
        self._versions = versions
        self._log_in(deadline)

    def close(self) -> None:
        """Close for good; from any thread, without waiting. A blocked call raises BrokerUnavailableError."""
        self.connection.close()

    # -- exchanges

    def metadata(self, topics: Sequence[str], deadline: Deadline) -> ClusterMetadata:
        """Return the leaders of the topics' partitions. Without topics, nothing is asked.

        From 0.11 on the request creates no topic. Older brokers create unknown topics if ``auto.create.topics.enable``
        is on, as they do for the original. Raises: BrokerUnavailableError, BrokerError.
        """
        if not topics:
            return ClusterMetadata({}, {}, {})
        version = self._version(METADATA)
        return requests.cluster_metadata(self.exchange(requests.metadata_request(version, topics), deadline))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        deadline: Deadline,
        *,
        isolation_level: int = 0,
        written: bool = False,
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Return the offset at a time for each partition, of which this broker must be the leader.

        Arguments: a time of -1 asks for the log end, -2 for its beginning, else it is in ms since 1970 and asks for the
        first message not older. Brokers before 0.10.1 know only when segments ended, not the times of messages. They
        return the beginning of the last segment that is older as a whole, or of the log, with timestamp -1.
        ``isolation_level`` 1 takes the last stable offset for the end. ``written`` takes the end of the leader's log,
        which may hold messages that consumers cannot read yet. Returns: errors of single partitions too. Raises:
        BrokerUnavailableError, BrokerError.
        """
        if not wanted:
            return {}
        version = self._version(LIST_OFFSETS)
        request = requests.list_offsets_request(version, wanted, isolation_level, written=written)
        listed = requests.listed_offsets(self.exchange(request, deadline))
        # If such a broker returns no offset, no segment is older: all messages may be newer, from the beginning on.
        newer = {
            tp: EARLIEST
            for tp, time in wanted.items()
            if version == 0
            and time >= 0
            and tp in listed
            and listed[tp].error == error_codes.NONE
            and listed[tp].offset < 0
        }
        return {**listed, **self.list_offsets(newer, deadline)}

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], deadline: Deadline
    ) -> Mapping[TopicPartition, EpochEndResponse]:
        """Return where leader epochs end in the logs of partitions that this broker leads.

        The result is empty if the broker knows no epochs (before 0.11), and holds errors of single partitions too.
        Raises: BrokerUnavailableError, BrokerError.
        """
        self._version(FETCH)
        version = (self._versions or {}).get(OFFSET_FOR_LEADER_EPOCH)
        if version is None or not epochs:
            return {}
        request = requests.epoch_ends_request(version, epochs)
        return requests.epoch_ends(self.exchange(request, deadline), epochs)

    def topic_configs(
        self, topics: Sequence[str], names: Sequence[str], deadline: Deadline
    ) -> Mapping[str, Mapping[str, str]]:
        """Return settings of topics by their names, the brokers' defaults included.

        Topics that the broker does not describe to us are left out. A broker before 0.11 describes none.
        Raises: BrokerUnavailableError, BrokerError.
        """
        self._version(FETCH)
        version = (self._versions or {}).get(DESCRIBE_CONFIGS)
        if version is None or not topics:
            return {}
        request = requests.topic_configs_request(version, topics, names)
        return requests.topic_configs(self.exchange(request, deadline))

    def send_fetch(self, request: FetchRequest, deadline: Deadline) -> int:
        """Send a fetch and return its correlation id; several may be outstanding. Raises: BrokerUnavailableError."""
        version = self._version(FETCH)
        positions, max_wait, _, max_bytes, _, _, epoch, _, rack = request
        if rack is None and version > requests.LEADERS_FETCH:
            version = requests.LEADERS_FETCH
        if self.login_until.at is None:
            correlation_id = self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        else:
            correlation_id = self._next(deadline)
        data = requests.encode_fetch(version, request, correlation_id, self._client_name)
        # a response in a session may name any partition that an earlier request of the session named
        self._named = len(positions) + (self._named if epoch > 0 else 0)
        if version >= requests.CAPPED_FETCH:
            most = max_bytes if max_bytes > self._largest_fetch else self._largest_fetch
            for position in positions:
                if position[3] > most:
                    most = position[3]
        else:
            most = sum([position[3] for position in positions])
        most += _BESIDE_RECORDS
        self._send(
            data, new_tuple(_PendingResponse, (correlation_id, FETCH, version, max_wait, most, self._named)), deadline
        )
        return correlation_id

    def receive_fetch(self, correlation_id: int, deadline: Deadline) -> FetchResponse:
        """Return the response to a fetch. Earlier ones that were not received yet are read on the way and kept.

        Raises: BrokerUnavailableError; BrokerError for an unreadable response; BrokerResponseError if the broker
        refuses the whole request (the channel stays usable); ValueError for an id that is not outstanding.
        """
        while (answer := self._early.pop(correlation_id, None) if self._early else None) is None:
            if not self._expected or self._expected[0].correlation_id != correlation_id:
                self._check_outstanding(correlation_id)
            try:
                expected, size, have = self._receive_head(deadline)
                answer = self._fetched(expected, size, have, deadline)
            except BaseException:
                self._forget()
                raise
            if expected.correlation_id == correlation_id:
                break
            self._early[expected.correlation_id] = answer
        if answer.error:
            raise error_codes.error(answer.error, f"{self.name}, Fetch")
        return answer

    def _check_outstanding(self, correlation_id: int) -> None:
        if self._versions is None:
            raise BrokerUnavailableError(f"{self.name}: not connected")
        if correlation_id not in [expected.correlation_id for expected in self._expected]:
            raise ValueError(f"no fetch {correlation_id} is outstanding")

    def exchange(
        self, request: ApiRequest, deadline: Deadline, max_wait: float = 0.0, answer: float | None = None
    ) -> dict[str, Any]:
        """Send a request and return its decoded response, for code built on a channel, such as a login.

        Arguments: ``max_wait`` in seconds is how much longer than usual the broker may be silent, if the request asks
        for that. ``answer`` is the time limit of the response in seconds after sending (default: ``deadline``). Fetch
        responses that come first are kept for ``receive_fetch``. Raises: BrokerUnavailableError, BrokerError.
        """
        correlation_id = self._next(deadline)
        data = request.encode(correlation_id, self._client_id)
        expected = _PendingResponse(correlation_id, request.message, request.version, max_wait, _LARGEST_OTHER)
        self._send(data, expected, deadline)
        deadline = deadline if answer is None else Deadline(answer)
        try:
            while True:
                expected, size, have = self._receive_head(deadline)
                if expected.correlation_id == correlation_id:
                    begun = memoryview(self.buffer)[_HEAD_SIZE : _HEAD_SIZE + have]
                    payload = receive_bounded(begun, size, self.buffer, self._receiver(deadline))
                    return requests.decode(request, payload, self.name)
                self._early[expected.correlation_id] = self._fetched(expected, size, have, deadline)
        except BaseException:
            self._forget()
            raise

    def exchange_token(self, token: bytes, awaited: bool, deadline: Deadline) -> bytes:
        """Send and receive bytes that are no request, each behind its length: a login before 1.0.

        Arguments: with ``awaited`` False no answer is due, and none is returned. Raises: BrokerUnavailableError,
        BrokerError.
        """
        try:
            self.connection.send(len(token).to_bytes(4, "big") + token, deadline, self._timeout)
            if not awaited:
                return b""
            head = bytearray(4)
            self.connection.receive(memoryview(head), deadline, self._timeout)
            size = int.from_bytes(head, "big")
            if size > _LARGEST_TOKEN:
                raise BrokerError(f"{self.name}: it sends {size} bytes in a login")
            return receive_bounded(b"", size, self.buffer, self._receiver(deadline))
        except BaseException:
            self._forget()
            raise

    # -- inside

    def _log_in(self, deadline: Deadline) -> None:
        """Log in, the first time or again: a broker may end connections whose login has become too old (KIP-368)."""
        if self._security is None:
            return
        self.login_until = Deadline(None)
        try:
            lifetime = self._security.authenticate(self, deadline)
        except BaseException:
            self._forget()
            raise
        if lifetime is not None:
            self.login_until = Deadline(_LOGIN_SHARE * lifetime)

    def _open(self, deadline: Deadline) -> None:
        self._forget()
        wrap = None if self._security is None else self._security.wrap
        self.connection.connect(deadline, self._timeout, wrap)

    def _forget(self) -> None:
        """Drop the connection; otherwise an old response could be mistaken for one on the next connection."""
        self._versions = None
        self._expected.clear()
        self._early.clear()
        self.connection.drop()

    def _ask_versions(self, deadline: Deadline) -> Versions | None:
        """Return the agreed versions; None if the broker closes the connection on the request, as 0.8 does.

        It is asked twice. A broker that stops or has too many connections closes them as well, and version 0 would cost
        headers and timestamps without notice. Silence counts as an error, since a newer broker may hang. 0.9 is silent
        too, but its node in ZooKeeper tells, so it is not asked.
        """
        name = self.name
        for last in (False, True):
            try:
                answer = self.exchange(requests.api_versions_request(), deadline)
                return requests.negotiated_versions(requests.api_ranges(answer, name), name)
            except PeerClosedError as e:
                if last:
                    self._check_port(deadline, e)
                self._open(deadline)
                if last:
                    logger.warning("%s does not say which versions it speaks: taken for one older than 0.10", name)
            except BrokerError:
                self._forget()
                raise
        return None

    def _check_port(self, deadline: Deadline, failure: BrokerError) -> None:
        """After a connection that came about and failed: raise WrongPortError if no such broker answers at the port."""
        if self.connection.reached:
            endpoint = self.endpoint
            why = instead_of_broker(endpoint.host, endpoint.port, deadline, tls=endpoint.protocol.endswith("SSL"))
            if why:
                self._forget()
                raise WrongPortError(why) from failure

    def _version(self, api: ApiSchema) -> int:
        if self._versions is None:
            raise BrokerUnavailableError(f"{self.name}: not connected")
        return self._versions[api]

    def _next(self, deadline: Deadline) -> int:
        """Return the correlation id of the next request; logs in again first if that is due."""
        if self.login_is_due:
            self._log_in(deadline)
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        return self._next_id

    def _send(self, data: bytes, expected: _PendingResponse, deadline: Deadline) -> None:
        try:
            self.connection.send(data, deadline, self._timeout)
        except BaseException:
            self._forget()
            raise
        self._expected.append(expected)

    def _receiver(self, deadline: Deadline) -> Receive:
        return lambda view: self.connection.receive(view, deadline, self._timeout)

    def _fetched(self, expected: _PendingResponse, size: int, have: int, deadline: Deadline) -> FetchResponse:
        """Return a fetch response, of which the head and the first ``have`` bytes have come; receive the rest."""
        whole = _HEAD_SIZE + size
        if len(self.buffer) < whole:
            self._enlarge_buffer(whole, _HEAD_SIZE + have)
        view = memoryview(self.buffer)[_HEAD_SIZE:whole]
        if len(view) < size:
            view = memoryview(bytes(view[:have]))
        elif have < size:
            self.connection.receive(view[have:], deadline, self._timeout)
        reader = ResponseReader(
            self.buffer, size, lambda rest: self.connection.receive(rest, deadline, self._timeout), view
        )
        return read(reader, expected.version, self.name, expected.most_partitions)

    def _enlarge_buffer(self, wanted: int, have: int) -> None:
        """Make room for ``wanted`` bytes, as far as that is allowed; ``have`` bytes are there.

        Then a response comes in as few calls as possible, since each return from the system may wait for a thread that
        computes. A buffer of just the records' size takes two calls a partition, and moves all the rest for a few
        bytes.
        """
        size = min(max(wanted, 2 * len(self.buffer)), _KEPT_BUFFER)
        if size > len(self.buffer):
            begun = self.buffer[:have]
            self.buffer = bytearray(size)
            self.buffer[:have] = begun

    def _receive_head(self, deadline: Deadline) -> tuple[_PendingResponse, int, int]:
        """Return the request that the next response answers, its size, and how many of its bytes have come. They are in
        the buffer. A small response is received together with its head, if no further response can follow.
        """
        expected = self._expected[0]
        view = memoryview(self.buffer)[: _SMALL if len(self._expected) == 1 else _HEAD_SIZE]
        have = self.connection.receive_some(view, _HEAD_SIZE, deadline, self._timeout + expected.max_wait) - _HEAD_SIZE
        size, correlation_id = _HEAD.unpack_from(view)
        size -= 4
        if correlation_id != expected[0] or have > size:
            raise BrokerError(
                f"{self.name}: answer {correlation_id} of {size + 4} bytes came in place of {expected.correlation_id}"
                f" ({expected.api.name}); is this a Kafka listener of the right security protocol?"
            )
        if size > expected[4]:
            advice = "; a larger message needs a larger fetch.max.bytes" if expected.api is FETCH else ""
            raise BrokerError(
                f"{self.name}: an answer of {size} bytes came to {expected.api.name}, where {expected.most_bytes} are"
                f" the most{advice}"
            )
        self._expected.popleft()
        return expected, size, have
