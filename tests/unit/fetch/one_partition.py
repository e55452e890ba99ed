"""One partition from a scripted broker through a stepped fetcher into a stream: no thread but the broker's."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.streams import new_stream, valid_lease
from tests.timing import scaled
from tests.unit.kafka.scripted import Peer, Script, ScriptedBroker, fetched, response
from tests.unit.kafka.sets import WHERE
from zkconsumer import KafkaStream
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.fetch.broker_failures import FailureLog, RefusedLogins
from zkconsumer.fetch.broker_fetch import FetchConnection, FetchSettings
from zkconsumer.fetch.fetcher import Fetcher
from zkconsumer.fetch.fetcher_manager import FetcherManager
from zkconsumer.kafka.broker_schemas import FETCH, LIST_OFFSETS
from zkconsumer.model import EARLIEST, Endpoint, ThreadId
from zkconsumer.ownership.fetch_cursor import Budget, FetchCursor
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.metrics import Metrics
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.stream_queue import StreamQueue

Directory = Callable[[Deadline], Sequence[Endpoint]]
"""The registered brokers."""


def manager_of(settings: FetchSettings, brokers: Directory, **more: Any) -> FetcherManager:
    """Return a fetcher manager without its thread, whose queues have room."""
    given: dict[str, Any] = {"resolved": lambda *_: None, "metrics": Metrics(), "budget": QueueBudget(1 << 40)}
    return FetcherManager("m", settings, brokers, **{**given, **more})


@contextmanager
def closing(manager: FetcherManager) -> Iterator[FetcherManager]:
    try:
        yield manager
    finally:
        manager.close(Deadline(scaled(10)))


Log = Callable[[int, int], bytes | int]
"""(offset, max bytes) -> the records, or an error code."""


class OnePartition:
    """The fetcher, its flow, and the stream that it feeds. ``asked`` holds (offset, max bytes) of each fetch."""

    def __init__(self, *, start: int = 0, skip_corrupt: bool = False, check_crc: bool = True, **settings: Any) -> None:
        self.asked: list[tuple[int, int]] = []
        self.returned: list[FetchCursor] = []
        self.resolved: list[int] = []
        self.listed = (0, 0)  # error, offset
        self.log_start: int | None = None  # the offset that is answered for EARLIEST, if it is another
        self.position = PartitionPosition(WHERE, ThreadId("g_c-0"), start)
        lease = valid_lease()
        self.room = 0
        self.queue = StreamQueue(10, self.on_room)
        self.stream: KafkaStream[Any, Any] = new_stream(
            "t/g_c-0", self.queue, lease, timeout=0, check_crc=check_crc, skip_corrupt=skip_corrupt
        )
        base: dict[str, Any] = {
            "client_id": "test",
            "max_wait": 0.0,
            "min_bytes": 1,
            "partition_bytes": 1000,
            "max_bytes": 4000,
            "reset_to": EARLIEST,
            "socket_timeout": scaled(10),
            "receive_buffer": 65536,
            "backoff": 0.1,
            "skip_corrupt": skip_corrupt,
        }
        self.settings = FetchSettings(**{**base, **settings})

    def on_room(self) -> None:
        self.room += 1

    def serve(self, log: Log) -> Script:
        """Return the script of a broker with this log, for one connection."""

        def script(peer: Peer) -> None:
            peer.versions()
            for asked in peer.requests():
                if asked.api == LIST_OFFSETS.key:
                    error, offset = self.listed
                    if self.log_start is not None and struct.unpack(">q", asked.body[-8:])[0] == EARLIEST:
                        offset = self.log_start
                    topics = [("t", [(3, error, -1, offset)])]
                    peer.answer(asked.correlation_id, response(LIST_OFFSETS, 3, 0, topics))
                    continue
                assert (asked.api, asked.version) == (FETCH.key, 10)
                offset, _, max_bytes = struct.unpack_from(">qqi", asked.body, 44)
                self.asked.append((offset, max_bytes))
                answer = log(offset, max_bytes)
                body = fetched(error=answer) if isinstance(answer, int) else fetched(answer)
                peer.answer(asked.correlation_id, body)

        return script

    def fetcher(self, endpoint: Endpoint, budget: Budget | None = None) -> Fetcher:
        """Return a fetcher for that broker, without partitions."""
        return Fetcher(
            "fetcher",
            FetchConnection(endpoint, self.settings, budget or QueueBudget(1 << 40), Metrics()),
            self.settings,
            give_back=self.returned.extend,
            resolved=lambda starts: self.resolved.extend(starts.values()),
            logins=RefusedLogins(),
            failures=FailureLog(),
        )

    def flow(self, *, waiting: bool = False) -> FetchCursor:
        """Return what a fetcher has of the partition. A ``waiting`` one waits for its start, and is not asked for."""
        fetch = self.position.cursor.deliver_to(self.queue)
        if waiting:
            self.position.cursor.fetched = None
            fetch.resolving = True
        return fetch

    @contextmanager
    def fetching(self, *logs: Log) -> Iterator[Fetcher]:
        """A fetcher on a broker that serves one connection for each log."""
        with self.fetching_from(*map(self.serve, logs)) as fetcher:
            yield fetcher

    @contextmanager
    def fetching_from(self, *scripts: Script, budget: Budget | None = None) -> Iterator[Fetcher]:
        """A fetcher on a broker that follows one script for each connection."""
        with ScriptedBroker(*scripts) as broker:
            fetcher = self.fetcher(broker.endpoint(), budget)
            fetcher.partitions.add([self.flow()])
            try:
                yield fetcher
            finally:
                fetcher.stop()
                self.queue.close()

    def read(self) -> list[int]:
        """The offsets of all messages that there are now."""
        offsets = []
        while True:
            try:
                offsets.append(self.stream.get(timeout=0).offset)
            except ConsumerTimeoutException:
                return offsets
