"""Reading partitions without a group: the fetchers and the stream of a member, and nothing else of it.

Nothing is committed, and no group sees the reader. Its positions begin where the caller says.

Threads: those of the fetching, and one of the application's at a time that reads. A dropped stream is closed on a
thread of its own, because Python may find it garbage on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, ClassVar, Self
from weakref import finalize

from zkconsumer.cluster.cluster_client import CLOSE_WITHIN, ClusterClient
from zkconsumer.cluster.offset_lookup import OffsetLookup
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ForkedProcessError
from zkconsumer.model import EARLIEST, LATEST, ConsumerId, TopicPartition, is_offset, partition_of, thread_id
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.message import K, MessageAndMetadata, V
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.streams.until import DELETED_AFTER, RunEnd, RunEndRequest, ends_of
from zkconsumer.wiring.member_parts import MemberEnvironment, MemberParts
from zkconsumer.zookeeper.lease import Lease

_FOR_EVER = float("inf")
_PLACES = {"earliest": EARLIEST, "smallest": EARLIEST, "latest": LATEST, "largest": LATEST}
_FORMS = (
    'start is "earliest", "latest", a mapping from (topic, partition) to offsets, or a time (a datetime with a time'
    " zone, or milliseconds since 1970)"
)


class PartitionStream(KafkaStream[K, V]):
    """The messages of some partitions, read without a group::

        for message in connector.read("events", start="earliest", until="end"):
            print(message.partition, message.offset, message.value)

    A :class:`KafkaStream` that closes itself at its end. Close it, or use it as a context manager, to end it before
    that. Nothing is committed.
    """

    shown: ClassVar[Collection[str]] = (*KafkaStream.shown, "close")
    _closing: PartitionReading | None = None

    def close(self) -> None:
        """End the stream, and its threads within two seconds. May be called again."""
        if self._closing is not None:
            self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class PartitionsEnd:
    """The end of a stream without a group: the :class:`~zkconsumer.streams.stream_queue.ReadEnd` of its queue.

    Nothing is left of a deleted topic. ``unknown_for`` returns the seconds for which brokers have not known a topic.
    """

    end: RunEnd
    positions: Sequence[PartitionPosition]
    unknown_for: Callable[[str], float]

    def limit(self, tp: TopicPartition) -> int:
        """Return the offset before which a partition is read."""
        return self.end.limit(tp)

    def reached(self, ahead: Mapping[PartitionPosition, int]) -> bool:
        """Return whether everything before the end is finished, or before the offsets of ``ahead``."""
        return not self.left(ahead)

    def left(self, ahead: Mapping[PartitionPosition, int]) -> int:
        """Return the number of offsets that are left."""
        deleted = {topic for topic, _ in self.end.ends if self.unknown_for(topic) >= DELETED_AFTER}
        positions = [one for one in self.positions if one.tp.topic not in deleted]
        reached = {one: max(one.consumed or 0, ahead.get(one, -1)) for one in positions}
        return sum(max(0, self.limit(one.tp) - offset) for one, offset in reached.items())


class _Refusals:
    """Takes the place of a member's streams: raises a refused login to the reader."""

    queue: StreamQueue | None = None

    def refuse(self, error: Exception | None) -> None:
        if self.queue is not None:
            self.queue.fail_readers(error)


class PartitionReading:
    """What runs behind a :class:`PartitionStream`: connections and threads. It does not keep the stream alive."""

    def __init__(self, config: ConsumerConfig, name: str) -> None:
        # a start that is not in the log any more: as much as there is, and not nothing
        self._config = config.replace(auto_offset_reset="smallest")
        self._name = name
        self._client = ClusterClient(self._config, socket_timeout=config.socket_timeout_ms / 1000)
        self._parts: MemberParts | None = None
        self._queue: StreamQueue | None = None
        self._positions: Sequence[PartitionPosition] = ()
        self._finalizer: finalize[Any, Any] | None = None

    def open(
        self,
        partitions: Collection[TopicPartition] | str,
        start: Any,
        until: RunEndRequest | None,
        message: type[MessageAndMetadata[Any, Any]],
        deadline: Deadline,
    ) -> PartitionStream[Any, Any]:
        """Return the stream. Raises: as ``connector.read``; close this then."""
        lookup = self._client.open(deadline).lookup
        if isinstance(partitions, str):
            partitions = sorted(lookup.partitions([partitions], deadline))
        starts = find_starts(start, partitions, lookup, deadline)
        end = None if until is None else ends_of(until, partitions, lookup, deadline)
        thread = thread_id(ConsumerId(self._name), 0)
        positions = self._positions = [PartitionPosition(tp, thread, offset) for tp, offset in starts.items()]
        refusals = _Refusals()
        parts = self._parts = self._made_parts(refusals)
        stream: PartitionStream[Any, Any] = parts.new_stream(self._name, message, self.close, PartitionStream)
        queue = self._queue = refusals.queue = stream.queue
        if end is not None:
            queue.stop_at(PartitionsEnd(end, positions, parts.fetching.leaders.unknown_for))
        stream._closing = self
        self._finalizer = finalize(stream, self._close_later)
        self._finalizer.atexit = False  # threads cannot be started then
        parts.fetching.open()
        parts.fetching.start([(position, queue) for position in positions])
        return stream

    def _made_parts(self, refusals: _Refusals) -> MemberParts:
        lease = Lease()
        lease.until = _FOR_EVER  # nobody takes the partitions away
        return MemberParts(
            self._config,
            ConsumerId(self._name),
            lease=lease,
            brokers=self._client.brokers,
            channels=self._client.channels,
            events=SimpleQueue(),
            listener=None,
            environment=MemberEnvironment(delivery=refusals),
        )

    def close(self, within: float = CLOSE_WITHIN) -> None:
        """End the stream, the threads and the connections, ``within`` so many seconds and never more than
        :data:`CLOSE_WITHIN`. May be called again.
        """
        within = min(within, CLOSE_WITHIN)
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._queue is not None:
            self._queue.revoke(self._positions)  # else messages of the present batch would still come
            self._queue.close()
        if self._parts is not None:
            self._parts.fetching.close(Deadline(within))
            self._parts.lookup.close()
        self._client.close(within)

    def _close_later(self) -> None:
        Thread(target=self.close, name=f"{self._name}-closing", daemon=True).start()

    def left_to_parent(self, parent: int) -> None:
        """Become an empty shell in a forked process; process ``parent`` reads on. See ``fork_guard``."""
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._queue is not None:
            self._queue.left_to_parent(ForkedProcessError(f"{self._name} is read by process {parent}: read anew here"))
        self._queue = self._parts = None


def find_starts(
    start: Any, partitions: Iterable[TopicPartition], lookup: OffsetLookup, deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the offset at which each partition begins.

    Arguments: ``start`` as for ``connector.read``. Raises: TypeError and ValueError for a value that makes no sense;
    ValueError for an offset beyond the log; BrokerUnavailableError, BrokerAuthenticationError.
    """
    wanted = list(dict.fromkeys(partitions))
    if isinstance(start, Mapping):
        given = {partition_of(tp): offset for tp, offset in start.items()}
        wrong = sorted(given.keys() ^ set(wanted))
        if wrong:
            raise ValueError(
                f"start must name the partitions that are read, and no others: {', '.join(map(str, wrong))}"
            )
        for offset in given.values():
            if not is_offset(offset):
                raise ValueError(f"start: an offset is a whole number from 0 on of 64 bits, not {offset!r}")
        _check_within(given, lookup.find(dict.fromkeys(wanted, LATEST), deadline, isolation_level=0))
        return given
    found = lookup.find(dict.fromkeys(wanted, _place(start)), deadline)
    later = [tp for tp, offset in found.items() if offset is None]  # than the last message
    ends = lookup.find(dict.fromkeys(later, LATEST), deadline) if later else {}
    return {tp: ends.get(tp) or 0 if offset is None else offset for tp, offset in found.items()}


def _check_within(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int | None]) -> None:
    """Raise ValueError for a start beyond the log: a broker refuses it as one that is deleted."""
    for tp, offset in starts.items():
        end = ends[tp]
        if end is not None and offset > end:
            raise ValueError(f"start: {tp} has no offset {offset} yet, it ends at offset {end}: begin there, or before")


def _place(start: Any) -> int:
    if isinstance(start, str):
        if start not in _PLACES:
            raise ValueError(f"{_FORMS}; not {start!r}")
        return _PLACES[start]
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"start is a time without a time zone, {start.isoformat()}: give it one")
        start = int(start.timestamp() * 1000)
    if isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"{_FORMS}; not {start!r}")
    if not 0 <= start < 1 << 63:
        raise ValueError(f"start is a time before 1970: {start}")
    return start
