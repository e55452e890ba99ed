"""The streams of a member: which stream hands out which partition. The "delivery" of the group thread.

Threads: the group thread owns the table of streams. The application's thread fills the table before the group thread
runs. The queues guard themselves.

Mirrors the original's map from (topic, thread) to queue. There all queues are cleared in each rebalance; here only
what is revoked leaves them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import ref

from zkconsumer.core.poll_watchdog import Place, StreamKey
from zkconsumer.errors import LogTruncatedError, OffsetConflictError
from zkconsumer.model import ConsumerId
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.merged_streams import MergedStreams
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.zookeeper.lease import Lease

log = logging.getLogger(__name__)

ANY_TOPIC = ""
"""Stands for the topic of streams that serve all topics (a subscription by filter)."""


class MemberStreams:
    """The member's streams by topic and number: the :class:`~zkconsumer.member.interfaces.Delivery` of a connector."""

    def __init__(self, consumer: ConsumerId, lease: Lease) -> None:
        self._consumer = consumer
        self._lease = lease
        self._streams: dict[tuple[str, int], KafkaStream[Any, Any]] = {}
        self._merged: dict[int, ref[MergedStreams[Any, Any]]] = {}  # any thread: one step of the interpreter each

    def add(self, topic: str, streams: Iterable[KafkaStream[Any, Any]]) -> None:
        """Make these the streams of ``topic``, in thread order."""
        for number, stream in enumerate(streams):
            self._streams[topic, number] = stream

    def add_merged(self, merged: MergedStreams[Any, Any]) -> None:
        """Note that streams may be read through this too."""
        known, key = self._merged, id(merged)
        known[key] = ref(merged, lambda _: known.pop(key, None))

    def streams(self) -> list[tuple[str, int, KafkaStream[Any, Any]]]:
        """Return every stream with its topic (:data:`ANY_TOPIC` for a filter's) and number."""
        return [(topic, number, stream) for (topic, number), stream in list(self._streams.items())]

    @property
    def reads(self) -> bool:
        """Whether a stream is left to read: there is a subscription, and its end (``until``) is not reached."""
        return any(not stream.queue.closed and not stream.queue.at_end for _, _, stream in self.streams())

    def stream_of(self, position: PartitionPosition) -> KafkaStream[Any, Any]:
        """Return the stream that hands out this partition."""
        number = int(position.thread[len(self._consumer) + 1 :])
        streams = self._streams
        return streams.get((position.tp.topic, number)) or streams[ANY_TOPIC, number]

    # ---- who reads ----

    def places(self) -> dict[StreamKey, Place]:
        """Return the place of each stream whose reader is not waiting in it.

        A stream waits for its reader if a message is in hand, or there is one to read. It does not wait while the user
        has paused the partition in hand, nor for a message in hand alone of a partition that is no longer ours.
        """
        found = {}
        for topic, number, stream in self.streams():
            queue = stream.queue
            asks, taken, head = queue.asks, queue.taken, queue.head
            if queue.closed or stream.being_read:
                continue
            if taken is not None:
                position = taken.position
                to_read = head is not None if position.revoked else not position.paused
                found[topic, number] = Place(
                    position.tp, position.consumed, position.batch_until, in_hand=True, asks=asks, to_read=to_read
                )
            elif head is not None:
                found[topic, number] = Place(head.position.tp, head.fetch_offset, 0, in_hand=False, asks=asks)
            else:
                found[topic, number] = Place(None, None, 0, in_hand=False, asks=asks, to_read=False)
        return found

    def came_back(self, key: StreamKey, place: Place) -> bool:
        """Return whether the reader of a stream has come back since it was at this place, or the stream is gone."""
        stream = self._streams.get(key)
        return stream is None or stream.queue.closed or stream.being_read or stream.queue.asks != place.asks

    # ---- for the group's thread ----

    def accept(self, positions: Sequence[PartitionPosition]) -> Sequence[tuple[PartitionPosition, StreamQueue]]:
        """Allow the hand-out of these positions. Returns each with the queue of its stream."""
        return [(position, self.stream_of(position).queue) for position in positions]

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        """Stop the hand-out of these positions; return at once. Any thread."""
        for queue, of_queue in self._by_queue(positions).items():
            queue.revoke(of_queue)
        self._lease.wake()

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Wait until no message of these revoked positions is in the user's hands, or until the limit."""
        for queue, of_queue in self._by_queue(positions).items():
            if not queue.wait_not_held(of_queue, limit) and limit.at is not None:
                log.debug("a message of %s is still in the user's hands", of_queue[0].tp)

    def _by_queue(self, positions: Sequence[PartitionPosition]) -> dict[StreamQueue, list[PartitionPosition]]:
        found: dict[StreamQueue, list[PartitionPosition]] = {}
        for position in positions:
            with suppress(KeyError):  # its stream has just been retired, and ended with that
                found.setdefault(self.stream_of(position).queue, []).append(position)
        return found

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Replace ``old`` by ``new`` in the same stream, and stop the hand-out of ``old``."""
        self.stream_of(old).queue.replace(old, new)
        self._lease.wake()

    def retire(self, streams: Collection[KafkaStream[Any, Any]]) -> None:
        """End these streams; nothing will flow into them any more."""
        for key in [key for key, stream in list(self._streams.items()) if stream in streams]:
            del self._streams[key]
        for stream in streams:
            stream.queue.close()
        self._lease.wake()

    def fail(self, position: PartitionPosition, error: OffsetConflictError | LogTruncatedError) -> None:
        """Raise ``error`` to the reader of the stream of this partition, until the position ends."""
        self.stream_of(position).queue.fail(position, error)

    def refuse(self, error: Exception | None) -> None:
        """Make every reader raise ``error``, for there is nothing to read; None takes it back. Any thread."""
        for stream in list(self._streams.values()):
            stream.queue.fail_readers(error)

    def left_to_parent(self, error: Exception) -> None:
        """Make every reader raise ``error`` in a forked process, without a lock."""
        for stream in list(self._streams.values()):
            stream.left_to_parent(error)
        for merged in self._merged_alive():
            merged.left_to_parent()

    def end(self) -> None:
        """End all streams."""
        for stream in list(self._streams.values()):
            stream.queue.close()
        self._lease.wake()

    def interrupted(self, thread: int) -> bool:
        """Return whether that thread, which calls this, is in the middle of asking one of the streams for a message."""
        return any(reader.interrupted(thread) for reader in self._readers())

    def returning(self, thread: int) -> bool:
        """Return whether that thread is in an ask whose message, or rows, have not reached its caller yet."""
        return any(reader.returning(thread) for reader in self._readers())

    def _readers(self) -> list[KafkaStream[Any, Any] | MergedStreams[Any, Any]]:
        return [*self._streams.values(), *self._merged_alive()]

    def _merged_alive(self) -> list[MergedStreams[Any, Any]]:
        return [merged for known in list(self._merged.values()) if (merged := known()) is not None]

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Return whether that thread holds a message or batch of this partition's stream.

        It does if the thread reads the stream, its last call returned a message or batch, and no new call has begun.
        """
        stream = self.stream_of(position)
        return stream.held_by(thread) and not any(merged.withholds(stream) for merged in self._merged_alive())
