"""A blocking channel to one broker: requests out, answers in, in the order of asking.

Threads: one thread at a time (the owner: a fetcher, the leader finder) calls everything but ``close()``, which may come
from any thread and wakes the owner; see ``connection.py`` for how. Nothing else is shared, so nothing else is guarded.
Mirrors the original's SimpleConsumer and BlockingChannel. Differs on purpose: correlation ids are checked, requests
are pipelined (the next fetch is under way while the last answer is decoded), every wait has an end, no request is
silently repeated on a new connection, and brokers that can be asked for their versions are asked.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple, Protocol

from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerError, BrokerUnavailableError
from zkconsumer.kafka import error_codes, fetch_request, fetch_response, requests
from zkconsumer.kafka.connection import Connection, PeerClosedError, Receive, receive_bounded
from zkconsumer.kafka.fetch_response import FetchResponse
from zkconsumer.kafka.requests import Api, ClusterMetadata, EpochEndResponse, FetchRequest, ListedOffset, Versions
from zkconsumer.model import Endpoint, TopicPartition

logger = logging.getLogger(__name__)

_HEAD = Struct(">ii")  # the length of what follows, the correlation id
_BUFFER = 256 * 1024
_SMALL = 16 * 1024  # what is received together with a head; enough for an answer with little news
_KEPT_BUFFER = 4 * 1024 * 1024 + 65536  # the receive buffer grows up to this
_LARGEST_TOKEN = 1024 * 1024
LARGEST_ANSWER = 100 * 1024 * 1024
"""Bytes of one batch, unless more is asked for: brokers take no larger request (``socket.request.max.bytes``)."""
_BESIDE_RECORDS = 8 * 1024 * 1024  # names, heads and aborted transactions in the answer to a fetch
_LARGEST_OTHER = 8 * 1024 * 1024  # any other answer, which takes some 15 times that; metadata of 180,000 partitions fit
_BEGINNING = -2  # of a log, in place of a time
_LOGIN_SHARE = 0.8  # of the time that a login is good for, after which it is renewed


class Security(Protocol):
    """What is put between a connection and its use: TLS, a login."""

    def wrap(self, sock: socket.socket, host: str) -> socket.socket:
        """The socket with TLS over it, not yet shaken hands (``do_handshake_on_connect=False``), or the same socket."""

    def authenticate(self, channel: BrokerChannel, deadline: Deadline) -> float | None:
        """Log in, by exchanges on the channel; returns for how many seconds, None without a limit.

        Raises BrokerError.
        """


class _PendingResponse(NamedTuple):
    """An answer that is owed to us: of how many bytes and, of a fetch, partitions at most."""

    correlation_id: int
    api: Api
    version: int
    max_wait: float
    most_bytes: int
    most_partitions: int = 0


class BrokerChannel:
    """One connection to one broker.

    After any error but BrokerResponseError the channel is unusable until ``connect()`` is called again; what was
    outstanding is lost then. After ``close()`` it stays closed.

    Arguments: ``client_id`` is what the broker's quotas and logs call us; ``socket_timeout`` in seconds is how long
    the broker may be silent (beyond the wait that a fetch asks for); ``receive_buffer`` in bytes is the socket's, 0
    leaves it to the system; ``security`` adds TLS and a login; ``largest_fetch`` in bytes is how large a batch may be
    that the broker sends although less was asked for (KIP-74). The constructor does no I/O.
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
        # one of bootstrap.servers has no id that is known
        who = f"broker {endpoint.broker_id}" if endpoint.broker_id >= 0 else "the broker"
        self._connection = Connection(who, endpoint.host, endpoint.port, receive_buffer)
        self._versions: Versions | None = None
        self._login_until = Deadline(None)
        self._buffer = bytearray(_BUFFER)
        self._next_id = 0
        self._named = 0
        self._expected: deque[_PendingResponse] = deque()
        self._early: dict[int, FetchResponse] = {}

    def __repr__(self) -> str:
        return f"<BrokerChannel {self._connection.name}>"

    @property
    def name(self) -> str:
        """The broker and its address, as errors call it."""
        return self._connection.name

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each request on this connection, by its name; empty while not connected."""
        return {api.name: version for api, version in (self._versions or {}).items()}

    def connect(self, deadline: Deadline) -> None:
        """Connect, log in, and agree on versions; drops an older connection first.

        Raises BrokerUnavailableError, BrokerError where no version of a request is known to both sides.
        """
        self._open(deadline)
        versions = requests.base_versions(self.endpoint.generation)
        if self.endpoint.generation >= requests.ASK_FROM_GENERATION:
            versions = self._ask_versions(deadline) or versions
        self._versions = versions
        self._log_in(deadline)

    def close(self) -> None:
        """Close for good; from any thread, without waiting. A blocked call raises BrokerUnavailableError."""
        self._connection.close()

    # -- exchanges

    def metadata(self, topics: Sequence[str], deadline: Deadline) -> ClusterMetadata:
        """Who leads the partitions of the topics.

        No topic is created by the question where the protocol lets us say so (brokers from 0.11 on); older ones
        create unknown topics if ``auto.create.topics.enable`` is on, as they do for the original. No topics ask for
        nothing. Raises BrokerUnavailableError, BrokerError.
        """
        if not topics:
            return ClusterMetadata({}, {}, {})
        version = self._version(requests.METADATA)
        return requests.cluster_metadata(
            self.exchange(requests.METADATA, requests.metadata_request(version, topics), deadline)
        )

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        deadline: Deadline,
        *,
        isolation_level: int = 0,
        written: bool = False,
    ) -> Mapping[TopicPartition, ListedOffset]:
        """The offset at a time for each partition, of which this broker must be the leader.

        Arguments: -1 asks for the log end, -2 for its beginning, else ms since 1970: the first message not older.
        Brokers before 0.10.1 know no times of messages, only when segments ended: theirs is the beginning of the last
        segment that is older as a whole, or of the log, with timestamp -1. ``isolation_level`` 1 takes the last stable
        offset for the end; ``written`` the end of the leader's log, which may hold messages that consumers cannot read
        yet. Errors of single partitions are in the result. Raises BrokerUnavailableError, BrokerError.
        """
        if not wanted:
            return {}
        version = self._version(requests.LIST_OFFSETS)
        request = requests.list_offsets_request(version, wanted, isolation_level, written=written)
        listed = requests.listed_offsets(self.exchange(requests.LIST_OFFSETS, request, deadline))
        # where such a broker tells nothing, no segment is older: not "no such message", but everything may be newer
        newer = {
            tp: _BEGINNING
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
        """Where leader epochs end in the logs of partitions that this broker leads; nothing where it knows no epochs
        (before 0.11). Errors of single partitions are in the result. Raises BrokerUnavailableError, BrokerError.
        """
        self._version(requests.FETCH)
        version = (self._versions or {}).get(requests.EPOCH_END)
        if version is None or not epochs:
            return {}
        request = requests.epoch_ends_request(version, epochs)
        return requests.epoch_ends(self.exchange(requests.EPOCH_END, request, deadline), epochs)

    def send_fetch(self, request: FetchRequest, deadline: Deadline) -> int:
        """Send a fetch and return its correlation id; several may be outstanding.

        Raises BrokerUnavailableError.
        """
        version = self._version(requests.FETCH)
        correlation_id = self._next(deadline)
        data = fetch_request.encode(version, request, correlation_id, self._client_name)
        self._send(data, self._fetch_expected(correlation_id, version, request), deadline)
        return correlation_id

    def _fetch_expected(self, correlation_id: int, version: int, request: FetchRequest) -> _PendingResponse:
        """What the answer to a fetch may be at most."""
        # an answer in a session may name any partition that was named in it before
        self._named = len(request.positions) + (self._named if request.session_epoch > 0 else 0)
        sizes = [position.max_bytes for position in request.positions]
        if version >= requests.CAPPED_FETCH:
            most = max(request.max_bytes, self._largest_fetch, *sizes)
        else:
            most = sum(sizes)
        most += _BESIDE_RECORDS
        return _PendingResponse(correlation_id, requests.FETCH, version, request.max_wait, most, self._named)

    def receive_fetch(self, correlation_id: int, deadline: Deadline) -> FetchResponse:
        """The answer to a fetch. Those sent before it and not yet received are read on the way and kept.

        Raises BrokerUnavailableError; BrokerError for an answer that cannot be read; BrokerResponseError where the
        broker refuses the whole request (the channel stays usable); ValueError for an id that is not outstanding.
        """
        while (answer := self._early.pop(correlation_id, None)) is None:
            if correlation_id not in [expected.correlation_id for expected in self._expected]:
                if self._versions is None:
                    raise BrokerUnavailableError(f"{self._connection.name}: not connected")
                raise ValueError(f"no fetch {correlation_id} is outstanding")
            self._receive_one(deadline)
        if answer.error:
            raise error_codes.error(answer.error, f"{self._connection.name}, Fetch")
        return answer

    def exchange(self, api: Api, request: Any, deadline: Deadline, max_wait: float = 0.0) -> Any:
        """Send a request of ``protocol`` and decode its answer, for what this package builds on a channel (a login).

        Arguments: ``max_wait`` in seconds is how much longer than usual the broker may be silent, where that is what
        is asked of it. Fetch answers that come first are kept for ``receive_fetch``. Raises BrokerUnavailableError,
        BrokerError.
        """
        correlation_id = self._next(deadline)
        data = requests.encode(request, correlation_id, self._client_id)
        self._send(data, _PendingResponse(correlation_id, api, request.API_VERSION, max_wait, _LARGEST_OTHER), deadline)
        try:
            while True:
                expected, size, have = self._receive_head(deadline)
                if expected.correlation_id == correlation_id:
                    begun = memoryview(self._buffer)[_HEAD.size : _HEAD.size + have]
                    payload = receive_bounded(begun, size, self._buffer, self._receiver(deadline))
                    return requests.decode(request, payload, self._connection.name)
                self._keep(expected, size, have, deadline)
        except BaseException:
            self._forget()
            raise

    def exchange_token(self, token: bytes, awaited: bool, deadline: Deadline) -> bytes:
        """Send bytes that are no request and receive such, each behind its length: a login before 1.0.

        Arguments: ``awaited`` False: no answer is due, and none is returned. Raises BrokerUnavailableError,
        BrokerError.
        """
        try:
            self._connection.send(len(token).to_bytes(4, "big") + token, deadline, self._timeout)
            if not awaited:
                return b""
            head = bytearray(4)
            self._connection.receive(memoryview(head), deadline, self._timeout)
            size = int.from_bytes(head, "big")
            if size > _LARGEST_TOKEN:
                raise BrokerError(f"{self.name}: it sends {size} bytes in a login")
            return receive_bounded(b"", size, self._buffer, self._receiver(deadline))
        except BaseException:
            self._forget()
            raise

    # -- inside

    def _log_in(self, deadline: Deadline) -> None:
        """Log in, the first time or again: a broker may end connections whose login has become too old (KIP-368)."""
        if self._security is None:
            return
        self._login_until = Deadline(None)
        try:
            lifetime = self._security.authenticate(self, deadline)
        except BaseException:
            self._forget()
            raise
        if lifetime is not None:
            self._login_until = Deadline(_LOGIN_SHARE * lifetime)

    def _open(self, deadline: Deadline) -> None:
        self._forget()
        wrap = None if self._security is None else self._security.wrap
        self._connection.connect(deadline, self._timeout, wrap)

    def _forget(self) -> None:
        """Nothing of the old connection may be mistaken for an answer on the next."""
        self._versions = None
        self._expected.clear()
        self._early.clear()
        self._connection.drop()

    def _ask_versions(self, deadline: Deadline) -> Versions | None:
        """The versions agreed on; None where the broker closes the connection on the question, as 0.8 does.

        It is asked twice, because a broker that is being stopped or has too many connections closes them as well, and
        version 0 would cost headers and timestamps without anybody noticing. Silence is no such answer, since a newer
        broker may hang (0.9 is silent too, but known by its node in ZooKeeper and therefore not asked).
        """
        name = self._connection.name
        for last in (False, True):
            try:
                answer = self.exchange(requests.API_VERSIONS, requests.api_versions_request(), deadline)
                return requests.negotiated_versions(requests.api_ranges(answer, name), name)
            except PeerClosedError:
                self._open(deadline)
                if last:
                    logger.warning("%s does not say which versions it speaks: taken for one older than 0.10", name)
            except BrokerError:
                self._forget()
                raise
        return None

    def _version(self, api: Api) -> int:
        if self._versions is None:
            raise BrokerUnavailableError(f"{self._connection.name}: not connected")
        return self._versions[api]

    def _next(self, deadline: Deadline) -> int:
        """The correlation id of the next request; logs in again first, where that is due."""
        if self._login_until.expired:
            self._log_in(deadline)
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        return self._next_id

    def _send(self, data: bytes, expected: _PendingResponse, deadline: Deadline) -> None:
        try:
            self._connection.send(data, deadline, self._timeout)
        except BaseException:
            self._forget()
            raise
        self._expected.append(expected)

    def _receiver(self, deadline: Deadline) -> Receive:
        return lambda view: self._connection.receive(view, deadline, self._timeout)

    def _receive_one(self, deadline: Deadline) -> None:
        try:
            self._keep(*self._receive_head(deadline), deadline)
        except BaseException:
            self._forget()
            raise

    def _keep(self, expected: _PendingResponse, size: int, have: int, deadline: Deadline) -> None:
        """Read the answer to a fetch, whose head and first ``have`` bytes have come."""
        receive = self._receiver(deadline)
        whole = _HEAD.size + size
        if len(self._buffer) < min(whole, _KEPT_BUFFER):
            # Each return from the system may wait for a thread that computes, so: in as few pieces as may be. A buffer
            # of just the records' size takes two a partition, the second one for a few bytes, and moves all the rest.
            begun = self._buffer[: _HEAD.size + have]
            self._buffer = bytearray(min(max(whole, 2 * len(self._buffer)), _KEPT_BUFFER))
            self._buffer[: len(begun)] = begun
        view = memoryview(self._buffer)[_HEAD.size : whole]
        if len(view) == size:
            if have < size:
                receive(view[have:])
            reader = fetch_response.ResponseReader.over(view)
        else:
            reader = fetch_response.ResponseReader(self._buffer, size, receive, bytes(view[:have]))
        name = self._connection.name
        self._early[expected.correlation_id] = fetch_response.read(
            reader, expected.version, name, expected.most_partitions
        )

    def _receive_head(self, deadline: Deadline) -> tuple[_PendingResponse, int, int]:
        """The head of the next answer: what it answers, how many bytes follow, and how many of them have come with it.

        They are in the buffer. A small answer is received in one piece with its head, where no other can follow it.
        """
        expected = self._expected[0]
        alone = len(self._expected) == 1
        view = memoryview(self._buffer)[: _SMALL if alone else _HEAD.size]
        limit = self._timeout + expected.max_wait
        have = self._connection.receive_some(view, _HEAD.size, deadline, limit) - _HEAD.size
        size, correlation_id = _HEAD.unpack_from(view)
        size -= 4
        if correlation_id != expected.correlation_id or not have <= size:
            raise BrokerError(
                f"{self.name}: answer {correlation_id} of {size + 4} bytes came in place of {expected.correlation_id}"
                f" ({expected.api.name}); is this a Kafka listener of the right security protocol?"
            )
        if size > expected.most_bytes:
            advice = "; a larger message needs a larger fetch.max.bytes" if expected.api is requests.FETCH else ""
            raise BrokerError(
                f"{self.name}: an answer of {size} bytes came to {expected.api.name}, where {expected.most_bytes} are"
                f" the most{advice}"
            )
        self._expected.popleft()
        return expected, size, have
