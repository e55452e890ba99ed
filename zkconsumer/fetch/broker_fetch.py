"""Sends fetch requests to one broker: how many bytes of which partitions, on which connection, and its metrics.

Threads: the fetcher's thread; any thread may call ``close``. Nothing else is shared, so nothing is guarded.

Mirrors the request half of the original's ``AbstractFetcherThread``. The original asks every partition for
``fetch.message.max.bytes``, whatever that adds up to. Here a request never asks for more than may come. Brokers from
0.10.1 on cap a response themselves, and serve partitions in the order of the request (KIP-74). Older brokers send all
that is asked for, so the request itself keeps to the limit: each partition gets a share, and if a share is too small
for its messages, partitions take turns. A broker that remembers earlier requests is sent only the changes
(:class:`FetchSession`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import ne
from time import monotonic
from typing import NamedTuple, TypeAlias

from zkconsumer.errors import BrokerResponseError
from zkconsumer.kafka import (
    BrokerChannel,
    EpochEndResponse,
    FetchPosition,
    FetchRequest,
    FetchResponse,
    ListedOffset,
    PartitionResponse,
    Security,
)
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.broker_channel import LARGEST_ANSWER
from zkconsumer.kafka.requests import CAPPED_FETCH
from zkconsumer.model import Endpoint, TopicPartition, new_tuple
from zkconsumer.ownership.fetch_cursor import Budget, FetchCursor, FetchRange
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.metrics import Backlog, MetricName, Metrics

log = logging.getLogger(__name__)

_SESSION_ERRORS = (codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The configuration of fetching, in seconds and bytes.

    ``largest_batch`` is ``fetch.max.bytes``; ``max_bytes`` may be less, by ``queued.max.bytes``. ``rack`` is
    ``client.rack``, empty to read from leaders alone.
    """

    client_id: str
    max_wait: float
    min_bytes: int
    partition_bytes: int
    max_bytes: int
    reset_to: int
    socket_timeout: float
    receive_buffer: int
    backoff: float
    isolation_level: int = 0
    security: Security | None = None
    skip_corrupt: bool = False
    largest_batch: int = 0
    raise_truncated: bool = False
    rack: str = ""

    def channel(self, endpoint: Endpoint) -> BrokerChannel:
        """Return a channel to that broker, not yet connected."""
        return BrokerChannel(
            endpoint,
            client_id=self.client_id,
            socket_timeout=self.socket_timeout,
            receive_buffer=self.receive_buffer,
            security=self.security,
            largest_fetch=max(self.largest_batch, LARGEST_ANSWER),
        )


class FetchedPart(NamedTuple):
    """One partition of a fetch: its part of the request and of the response."""

    fetch: FetchCursor
    request: FetchRange
    response: PartitionResponse


FetchResult: TypeAlias = tuple[list[FetchedPart], Sequence[FetchCursor] | None]
"""The requested parts of a response, and the partitions whose turn it was. None stands for all that got messages. In a
session nobody's turn counts, since the broker itself lets the partitions that it remembers take turns.
"""


SMALLEST_SHARE = 16 * 1024
"""The fewest bytes that a partition is asked for, so that a request is worth its cost, whatever is left of
``queued.max.bytes``. If ``fetch.max.bytes`` is less, it counts instead.
"""
SHORTEST_POLL = 0.002
QUIET_POLL, QUIET_TIMES = 0.3, 3
"""While nothing comes, a poll may take so many times ``fetch.wait.max.ms``, but no more than these seconds because of
that. A resumed or new partition of a quiet broker waits for the end of the poll.
"""
GROWTH = 4
"""A partition whose stream has had no room for ``GROWTH`` times the poll's length may be looked at that much later."""


class SizedRequest(NamedTuple):
    """The partitions to ask for and the bytes of each; ``turns`` is how many such requests serve all partitions."""

    asked: list[tuple[FetchCursor, int]]
    turns: int


_UNCHANGED = SizedRequest([], 1)


def size_request(
    fetches: Sequence[FetchCursor], limit: int, partition_bytes: int, *, capped: bool, most: int
) -> SizedRequest:
    """Return the request for ``fetches`` in the order of service: at least one partition, whatever the limit.

    Arguments: ``limit`` in bytes for the whole response, ``most`` its upper bound (``fetch.max.bytes``);
    ``partition_bytes`` is ``fetch.message.max.bytes``; ``capped`` says that the broker itself keeps to the limit.
    """
    if capped:
        return SizedRequest(
            [(fetch, partition_bytes if fetch.least <= partition_bytes else fetch.least) for fetch in fetches], 1
        )
    share = min(partition_bytes, max(min(SMALLEST_SHARE, most), limit // max(1, len(fetches))))
    asked: list[tuple[FetchCursor, int]] = []
    left = limit
    for fetch in fetches:
        size = max(share, fetch.least)
        if asked and size > left:
            break
        asked.append((fetch, size))
        left -= size
    return SizedRequest(asked, -(-len(fetches) // max(1, len(asked))))


def poll_seconds(max_wait: float, turns: int, full_for: float, *, quiet: bool = False) -> float:
    """Return how long the broker may wait for data, in seconds.

    It is longer than a short ``max_wait`` if nothing has come for a while (``quiet``), since the answers to an idle
    member are most of its work. The first message ends the wait in any case.

    It is less than ``max_wait`` while partitions wait for their turn. It is also less if a stream has had no room for
    ``full_for`` seconds (0: all have room), since it may get some at any moment. The longer that lasts, the longer the
    poll may be: the stream's reader is slow then, and has enough.
    """
    wait = max_wait / turns
    if quiet and turns == 1 and not full_for:
        return max(wait, min(QUIET_POLL, QUIET_TIMES * wait))
    return min(wait, max(SHORTEST_POLL, full_for / GROWTH)) if full_for else wait


class FetchConnection:
    """The connection to one broker, and the fetch requests on it.

    Arguments: ``budget`` is shared with the streams and the other fetchers; ``metrics`` takes the measurements.
    """

    def __init__(self, endpoint: Endpoint, settings: FetchSettings, budget: Budget, metrics: Metrics) -> None:
        self.budget = budget
        self.metrics = FetchMetrics(metrics, settings.client_id, endpoint)
        self._settings = settings
        self._channel = settings.channel(endpoint)
        self._session = FetchSession()
        self._ends: dict[tuple[str, int], int] = {}
        # of the last request: its partitions in the order of service, and the same by their names
        self._planned: Sequence[FetchCursor] = ()
        self._named: list[FetchCursor] = []  # of these, the ones in the response
        self._asked: dict[tuple[str, int], FetchCursor] = {}
        self._sized = _UNCHANGED
        self._remembered = False  # the broker remembered the partitions of the request before it
        self._reserved = 0  # bytes of the budget for the response
        self._sent = 0.0, Deadline(None), 0
        self._capping = False
        self.connected = False
        """Whether there is a connection. Only the fetcher's thread changes it."""

    def connect(self) -> bool:
        """Connect unless connected; returns whether this made a connection. Raises BrokerError."""
        if self.connected:
            return False
        self._session.forget()
        self._channel.connect(Deadline(self._settings.socket_timeout))
        self._capping = self._channel.versions["Fetch"] >= CAPPED_FETCH
        self.connected = True
        return True

    @property
    def endpoint(self) -> Endpoint:
        """The address of the broker."""
        return self._channel.endpoint

    @property
    def prompt(self) -> bool:
        """Whether the next request goes out at once: it waits for no connection and no login."""
        return self.connected and not self._channel.login_is_due

    def lost(self) -> None:
        """Note that the connection is unusable; :meth:`connect` makes a new one."""
        self.connected = False
        self._release()

    def close(self) -> None:
        """Close for good, from any thread; interrupts a wait."""
        self._channel.close()

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> Mapping[TopicPartition, ListedOffset]:
        """See ``BrokerChannel.list_offsets``. Raises BrokerError."""
        deadline = Deadline(self._settings.socket_timeout)
        return self._channel.list_offsets(wanted, deadline, isolation_level=isolation_level)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEndResponse]:
        """See ``BrokerChannel.epoch_ends``. Raises BrokerError."""
        return self._channel.epoch_ends(epochs, Deadline(self._settings.socket_timeout))

    def send(
        self, fetches: Sequence[FetchCursor], full_for: float, *, quiet: bool = False, rack: str | None = None
    ) -> None:
        """Send a request for the next chunks of these partitions, in the order of service; :meth:`receive` follows.

        Arguments: ``fetches`` is the same list as last time only if nothing has changed but the partitions of the last
        response. ``full_for`` is for how many seconds some stream has had no room, 0 if all have. ``quiet`` says that
        nothing has come for a while. ``rack`` lets the broker name a replica there to read from; without one
        (None) it answers only as the leader, with an empty one also as a follower. Raises: BrokerError.
        """
        settings, session = self._settings, self._session
        self._reserved = limit = self.budget.reserve(settings.max_bytes)
        try:
            self._remembered = session.epoch != FULL
            if not self._remembered:
                self._ends.clear()
            asked = self._changes(fetches) or self._all(fetches, limit)
            positions, forgotten, session_id, epoch = asked
            for tp in forgotten:
                self._ends.pop(tp, None)
            wait, turns = settings.max_wait, self._sized.turns
            if quiet or full_for or turns > 1:
                quiet = quiet and settings.min_bytes <= 1  # otherwise some messages wait for the end of the poll
                wait = poll_seconds(wait, turns, full_for, quiet=quiet)
            level = settings.isolation_level
            fields = (positions, wait, settings.min_bytes, limit, level, session_id, epoch, forgotten, rack)
            request = new_tuple(FetchRequest, fields)
            deadline = Deadline(settings.socket_timeout + wait)
            self._sent = monotonic(), deadline, self._channel.send_fetch(request, deadline)
        except BaseException:
            self._release()
            raise

    def receive(self) -> FetchResult | None:
        """Return the response to the last request; None if all must be requested anew, as the broker lost the session.

        Raises: BrokerError.
        """
        began, deadline, correlation_id = self._sent
        try:
            answer = self._channel.receive_fetch(correlation_id, deadline)
        except BrokerResponseError as e:
            if e.code not in _SESSION_ERRORS or not self._session.refused():
                raise
            log.debug("%s: all partitions are requested anew", e)
            return None
        finally:
            reserved, self._reserved = self._reserved, 0
            self.budget.release(reserved)
        self._session.answered(answer.session_id)
        parts, size = self._parts(answer)
        self.metrics.fetched(monotonic() - began, answer.throttle, size)
        if self._remembered:
            return parts, ()
        sized = self._sized
        return parts, None if sized.turns == 1 else [fetch for fetch, _ in sized.asked]

    def _release(self) -> None:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self.budget.release(reserved)

    def _changes(self, fetches: Sequence[FetchCursor]) -> SessionRequest | None:
        """Return the request of a session in which only partitions of the last response may have changed.

        So each message does not cost a look at all partitions. Returns None if more may have changed.
        """
        if not (self._remembered and self._capping and fetches is self._planned):
            return None
        bytes_each = self._settings.partition_bytes
        changes: dict[TopicPartition, FetchRange] = {}
        for fetch in self._named:
            offset = fetch.fetched
            if offset is None:
                return None
            size = bytes_each if fetch.least <= bytes_each else fetch.least
            known = fetch.range
            if known[0] != offset or known[1] != size:
                changes[fetch.tp] = fetch.range = new_tuple(FetchRange, (offset, size))
            if fetch.log_end < 0:
                fetch.log_end = self._ends.get(fetch.tp, -1)
        self._sized = _UNCHANGED
        return self._session.next_changes(changes)

    def _all(self, fetches: Sequence[FetchCursor], limit: int) -> SessionRequest:
        """Return the request for the range of each of these partitions, as far as the limit allows."""
        settings = self._settings
        self._planned, self._asked = fetches, {}
        wanted: dict[TopicPartition, FetchRange] = {}
        self._sized = size_request(
            fetches, limit, settings.partition_bytes, capped=self._capping, most=settings.max_bytes
        )
        for fetch, size in self._sized.asked:
            tp = fetch.tp
            start = fetch.fetched
            if start is None:
                continue
            self._asked[tp] = fetch
            wanted[tp] = fetch.range_from(start, size)
            if fetch.log_end < 0:
                # In a session the broker names a log's end only when it has changed. So a new position, after a seek,
                # takes the end that was named before.
                fetch.log_end = self._ends.get(tp, -1)
        return self._session.next(wanted)

    def _parts(self, answer: FetchResponse) -> tuple[list[FetchedPart], int]:
        """Return the requested parts of a response and the bytes of all records. Store the log ends that it names."""
        asked, ends, level = self._asked, self._ends, self._settings.isolation_level
        parts, self._named, size = [], [], 0
        for part in answer.partitions:
            tp = part[:2]
            size += len(part.records)
            ends[tp] = -1 if part.error else part.end(level)
            fetch = asked.get(tp)
            if fetch is not None:
                parts.append(new_tuple(FetchedPart, (fetch, fetch.range, part)))
                self._named.append(fetch)
        return parts, size


class FetchMetrics:
    """The metrics of fetching from one broker, under the original's names: the broker's own, and those over all
    brokers.

    Threads: its fetcher calls ``fetched`` once a request, which only notes the values (``metrics.Backlog``).
    """

    def __init__(self, metrics: Metrics, client_id: str, endpoint: Endpoint) -> None:
        client = (("clientId", client_id),)
        broker = (*client, ("brokerHost", endpoint.host), ("brokerPort", str(endpoint.port)))
        kind = ("kafka.consumer", "FetchRequestAndResponseMetrics")
        server = ("kafka.server", "FetcherStats")
        times, throttles, sizes = (
            [MetricName(*kind, name, tags) for tags in (client, broker)]
            for name in ("FetchRequestRateAndTimeMs", "FetchRequestThrottleRateAndTimeMs", "FetchResponseSize")
        )
        volume, count = MetricName(*server, "BytesPerSec", broker), MetricName(*server, "RequestsPerSec", broker)
        self._metrics = metrics
        self._of_broker = (times[1], throttles[1], sizes[1], volume, count)
        self._times = [metrics.timer(name) for name in times]
        self._throttles = [metrics.timer(name) for name in throttles]
        self._sizes = [metrics.histogram(name) for name in sizes]
        self._bytes = metrics.meter(volume)
        self._requests = metrics.meter(count)
        self._fresh: Backlog[tuple[float, float, int]] = Backlog(metrics, self._tell)

    def remove(self) -> None:
        """Remove the broker's own metrics: nothing is fetched from it any more."""
        self._metrics.remove(self._of_broker)

    def fetched(self, seconds: float, throttle: float, size: int) -> None:
        """Note a response that took so many seconds, with so many bytes of records."""
        self._fresh.add((seconds, throttle, size))

    def settle(self) -> None:
        """Pass the noted values to the instruments; any thread."""
        self._fresh.settle()

    def _tell(self, answers: Sequence[tuple[float, float, int]]) -> None:
        seconds, throttled, sizes = zip(*answers, strict=True)
        for timer in self._times:
            timer.update_all(seconds)
        for throttle in self._throttles:
            throttle.update_all(throttled)
        for histogram in self._sizes:
            histogram.update_all(sizes)
        self._requests.mark(len(answers))
        if any(sizes):
            self._bytes.mark(sum(sizes))

    @property
    def request_rate(self) -> float:
        """Requests per second over the last minute."""
        self.settle()
        return self._requests.value().one_minute_rate


NO_SESSION = 0
FULL = 0
"""The epoch of a request that names all partitions and asks for a new session."""
_LAST_EPOCH = 2**31 - 1


class SessionRequest(NamedTuple):
    """The session's part of a request: the partitions to name, those to forget, and the session itself."""

    positions: list[FetchPosition]
    forgotten: list[TopicPartition]
    session_id: int
    epoch: int


class FetchSession:
    """One session with one broker (KIP-227), or none yet. Pure.

    A broker from 1.1 on keeps in a session which partitions are fetched, from which offset, and how many bytes of each.
    A request then names only new or moved partitions, and the response only those with news. So a hundred idle
    partitions cost no more than one. A broker without sessions, or without room for another one, answers with session
    id 0, and every request names all partitions. Mirrors the ``FetchSessionHandler`` of Kafka's newer clients. The
    original names all partitions in each request.
    """

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FULL
        self._told: dict[TopicPartition, FetchRange] = {}

    @property
    def incremental(self) -> bool:
        """Whether the next request need only name changes."""
        return self.epoch != FULL

    def next(self, wanted: dict[TopicPartition, FetchRange]) -> SessionRequest:
        """Return the next request, for the ranges in the order of service. They are kept: the session changes them.

        :meth:`answered` or :meth:`forget` must follow before the next request.
        """
        told, self._told = self._told, wanted
        if self.epoch == FULL:
            return SessionRequest([FetchPosition(*tp, *want) for tp, want in wanted.items()], [], self.id, FULL)
        # compared in C, since one in a hundred partitions may have changed
        changed = compress(wanted.items(), map(ne, map(told.get, wanted), wanted.values()))
        news = [FetchPosition(*tp, *want) for tp, want in changed]
        forgotten = [] if told.keys() == wanted.keys() else [tp for tp in told if tp not in wanted]
        return SessionRequest(news, forgotten, self.id, self.epoch)

    def next_changes(self, changes: Mapping[TopicPartition, FetchRange]) -> SessionRequest:
        """Return the next request of a session, in which nothing but the ranges of these partitions differs from the
        last one. They are not compared with all others.

        As after :meth:`next`, :meth:`answered` or :meth:`forget` must follow.
        """
        self._told.update(changes)
        positions = []
        # No comprehension: it would call a function, nearly always for one partition.
        for tp, want in changes.items():
            positions.append(new_tuple(FetchPosition, tp + want))
        return new_tuple(SessionRequest, (positions, [], self.id, self.epoch))  # type: ignore[no-any-return]

    def answered(self, session_id: int) -> None:
        """Note the response to the request, with its session id."""
        if session_id == NO_SESSION or (self.epoch != FULL and session_id != self.id):
            self.forget()
            return
        self.id = session_id
        self.epoch = self.epoch + 1 if self.epoch < _LAST_EPOCH else 1

    def refused(self) -> bool:
        """Begin a new session; returns whether that may help.

        The broker knows no such session (it restarted, or needed the room), or is at another epoch. A new session does
        not help if the request named all partitions already.
        """
        was = self.incremental or self.id != NO_SESSION
        self.forget()
        return was

    def forget(self) -> None:
        """Reset to no session, because the connection or the session is lost."""
        self.id, self.epoch = NO_SESSION, FULL
        self._told = {}
