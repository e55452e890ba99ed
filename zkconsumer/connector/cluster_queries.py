"""The calls of an application that concern the cluster, and not what its member owns: topics, partitions, log ends.

A base of the connector, with reads of partitions outside of the group. Each answers also before streams are created. It
then connects for this question alone, and joins no group. A plain pair (topic, number) will do for a partition. Any
thread may call.

The original has nothing of this; the names are those of Kafka's newer consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from time import time_ns
from typing import TYPE_CHECKING, Any

from zkconsumer.connector.lifecycle import Lifecycle
from zkconsumer.model import EARLIEST, LATEST, PartitionLike, TopicPartition, partitions_of
from zkconsumer.runtime import fork_guard
from zkconsumer.runtime.deadline import Deadline

if TYPE_CHECKING:
    from zkconsumer.cluster.offset_lookup import OffsetLookup
    from zkconsumer.streams.message import Decoder, K, V
    from zkconsumer.wiring.groupless_reader import PartitionStream

_NUMBERS = count()

LEAST_SECONDS = 5.0
"""Seconds that a question may take at least, unless the caller says how long it may take."""


class ClusterQueries:
    """The calls about the cluster of the connector with this ``lifecycle``."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle

    def topics(self, timeout: float | None = None) -> frozenset[str]:
        """Return the names of all topics, without Kafka's own unless ``exclude.internal.topics=false``.

        Arguments: ``timeout`` in seconds, by default the session timeout (at least 5).
        Raises: :class:`BrokerUnavailableError` if no broker answered in time, :class:`RegistryUnavailableError`;
        :class:`ConnectorClosedException`.
        """
        from zkconsumer.core.topic_filter import INTERNAL_TOPICS

        with self._lookup(timeout) as (lookup, deadline):
            found = lookup.topics(deadline)
        return found - INTERNAL_TOPICS if self.lifecycle.config.exclude_internal_topics else found

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[TopicPartition]:
        """Return the partitions of a topic in ascending order, also those without a leader.

        Arguments: ``timeout`` as for :meth:`topics`. Brokers before 0.11 create an unknown topic with
        ``auto.create.topics.enable``. Raises: as :meth:`topics`; :class:`UnknownTopicError` after ``timeout``.
        """
        with self._lookup(timeout) as (lookup, deadline):
            return sorted(lookup.partitions([topic], deadline))

    def beginning_offsets(
        self, partitions: Iterable[PartitionLike], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset that the log of each partition still has. Any partitions, not only ours.

        Arguments: ``timeout`` as for :meth:`topics`. Raises: as :meth:`topics`.
        """
        return self._ends(partitions, EARLIEST, timeout)

    def end_offsets(
        self, partitions: Iterable[PartitionLike], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return for each partition the offset after the last message that may be read. Any partitions, not only ours.

        With ``isolation.level=read_committed`` this is the last stable offset.
        Arguments: ``timeout`` as for :meth:`topics`. Raises: as :meth:`topics`.
        """
        return self._ends(partitions, LATEST, timeout)

    def read(
        self,
        partitions: str | Iterable[PartitionLike],
        start: Any = "earliest",
        until: Any = "end",
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        timeout: float | None = None,
    ) -> PartitionStream[K | None, V | None]:
        """Read partitions without the group: nothing is committed, and no other member is disturbed.

        Returns a stream, which is read like any other, with threads of its own. It closes itself at its end.

        Arguments: ``partitions``, or the name of a topic. ``start`` is ``"earliest"``, ``"latest"``, a mapping from the
        partitions to offsets, or a time as a datetime with a time zone or in milliseconds since 1970. A start that is
        not in the log any more becomes the log's beginning, with a warning in the log; one beyond the log is refused.
        ``until`` as for :meth:`run`; None reads on for ever. Decoders as for :meth:`create_message_streams`.
        ``timeout`` in seconds for looking all this up.
        Raises: as :meth:`topics`; :class:`UnknownTopicError` for a topic that no broker knows after ``timeout``;
        ValueError and TypeError for arguments that make no sense.
        """
        from zkconsumer.streams.message import message_class
        from zkconsumer.streams.until import requested_end
        from zkconsumer.wiring.groupless_reader import PartitionReading

        wanted = partitions if isinstance(partitions, str) else partitions_of(partitions)
        if not wanted:
            raise ValueError("read: no partition is named")
        end = None if until is None else requested_end(until, time_ns() // 1_000_000)
        self.lifecycle.check_open()
        reading = PartitionReading(self.lifecycle.config, f"{self.lifecycle.consumer_id}-read-{next(_NUMBERS)}")
        fork_guard.watch(reading)
        try:
            stream = reading.open(wanted, start, end, message_class(key_decoder, value_decoder), self._limit(timeout))
        except BaseException:
            reading.close()
            raise
        self.lifecycle.readings.add(reading)
        return stream

    def _ends(
        self, partitions: Iterable[PartitionLike], which: int, timeout: float | None
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions_of(partitions), which)
        if not wanted:
            return {}
        with self._lookup(timeout) as (lookup, deadline):
            return {tp: offset or 0 for tp, offset in lookup.find(wanted, deadline).items()}

    def _limit(self, timeout: float | None) -> Deadline:
        session = self.lifecycle.config.zookeeper_session_timeout_ms / 1000
        return Deadline(max(session, LEAST_SECONDS) if timeout is None else timeout)

    @contextmanager
    def _lookup(self, timeout: float | None) -> Iterator[tuple[OffsetLookup, Deadline]]:
        self.lifecycle.check_open()
        member, deadline = self.lifecycle.member, self._limit(timeout)
        if member is not None:
            yield member.lookup, deadline
            return
        from zkconsumer.cluster.cluster_client import ClusterClient

        config = self.lifecycle.config
        with ClusterClient(config, socket_timeout=config.socket_timeout_ms / 1000) as client:
            yield client.open(deadline).lookup, deadline
