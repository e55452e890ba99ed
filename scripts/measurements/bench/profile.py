"""The cost of each part of the fetch path, in CPU time of one thread, ns for each message.

The bytes of one fetch from a real broker pass through ever more of the path, again and again. The cost of a part is the
time that it adds. It is CPU time of the thread, not time of the clock, so that a busy machine disturbs little. The
least of several rounds counts. Waiting for the interpreter's lock and for data is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from time import monotonic, thread_time
from typing import Any, NamedTuple

from scripts.measurements.bench import machine
from scripts.measurements.bench.iterate import BROKER, CASES, PARTITIONS
from scripts.measurements.bench.plan import Plan
from scripts.measurements.bench.producing import fill
from tests.streams import new_stream
from zkconsumer import KafkaStream, MessageAndMetadata
from zkconsumer.devcluster import DevCluster
from zkconsumer.kafka import BrokerChannel, FetchPosition, FetchRequest
from zkconsumer.kafka.fetched_batches import batches, extent
from zkconsumer.model import Endpoint, ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.zookeeper.lease import Lease

NAME = "profile"
HELP = "where the time of a message goes: receive, check, decode, hand-over, object, user (ns of CPU)"

_MESSAGES = 400_000
_FETCH_BYTES = 1024 * 1024
_FOR_EVER = 1e9
_MILLION = 1_000_000


class Fetched(NamedTuple):
    """The bytes of one fetch of one partition."""

    where: TopicPartition
    records: bytes
    first: int
    end: int


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: ns of CPU a message for each part, by kind of messages."""
    rounds, found = (2 if plan.quick else 7), {}
    with DevCluster(broker_properties=BROKER) as cluster:
        host, _, port = cluster.bootstrap_servers.partition(":")
        for number, (case, sizes) in enumerate(CASES.items()):
            topic = f"profile-{number}"
            cluster.create_topic(topic, PARTITIONS)
            count = _MESSAGES // 10 if plan.quick else _MESSAGES
            fill(cluster.bootstrap_servers, topic, count, sizes=sizes, partitions=PARTITIONS)
            channel = BrokerChannel(Endpoint(0, host, int(port)), client_id="profile", socket_timeout=30.0)
            channel.connect(Deadline(30.0))
            try:
                found[case] = _parts(channel, topic, count, rounds)
            finally:
                channel.close()
            _print(case, found[case])
    return {"scenario": NAME, "load_average": machine.load(), "nanoseconds": found}


def _parts(channel: BrokerChannel, topic: str, count: int, rounds: int) -> dict[str, float]:
    chunks = list(_fetch(channel, topic, count))

    def cost(work: Callable[[], object]) -> float:
        return min(_timed(work) for _ in range(rounds)) / count * 1e9

    receive = cost(lambda: _exhaust(_fetch(channel, topic, count)))
    heads = cost(lambda: [_exhaust(_batches(chunk, check=False)) for chunk in chunks])
    checked = cost(lambda: [_exhaust(_batches(chunk, check=True)) for chunk in chunks])
    decoded = cost(lambda: [_exhaust(batch) for chunk in chunks for batch in _batches(chunk, check=False)])
    streams = _Streams(chunks, count, 2 * rounds)
    handed = cost(streams.iterate)
    used = cost(streams.use)
    place = ("topic", 0)
    made = cost(lambda: [MessageAndMetadata(None, place) for _ in range(count)]) - cost(
        lambda: [None for _ in range(count)]
    )
    parts = {
        "receive": receive,
        "heads": heads,
        "check": checked - heads,
        "decode": decoded - heads,
        "hand-over": handed - made - decoded - (checked - heads),
        "object": made,
        "user": used - handed,
    }
    parts["all of the reader's thread"] = used
    batches_ = _Streams(chunks, count, rounds)
    parts["as columns, of the reader's thread"] = cost(batches_.columns)
    return parts


def _timed(work: Callable[[], object]) -> float:
    began = thread_time()
    work()
    return thread_time() - began


def _exhaust(items: Iterable[Any]) -> None:
    for _ in items:
        pass


def _fetch(channel: BrokerChannel, topic: str, count: int) -> Iterable[Fetched]:
    """All of a topic, as a fetcher asks for it: every partition at once."""
    places = dict.fromkeys(range(PARTITIONS), 0)
    while sum(places.values()) < count:
        deadline = Deadline(30.0)
        wanted = [FetchPosition(topic, number, offset, _FETCH_BYTES) for number, offset in places.items()]
        request = FetchRequest(wanted, 0.1, 1, PARTITIONS * _FETCH_BYTES, 0)
        for part in channel.receive_fetch(channel.send_fetch(request, deadline), deadline).partitions:
            where, first = TopicPartition(topic, part.partition), places[part.partition]
            end = extent(part.records, where, first).next_offset if part.records else None
            if end is not None:
                places[part.partition] = end
                yield Fetched(where, part.records, first, end)


def _batches(chunk: Fetched, *, check: bool) -> Iterable[Any]:
    return batches(chunk.records, check_crc=check, where=chunk.where, fetch_offset=chunk.first)


class _Streams:
    """Streams whose queues hold everything already, one for each time that they are asked for."""

    def __init__(self, chunks: list[Fetched], count: int, times: int) -> None:
        self._count = count
        self._ready = [_filled(chunks) for _ in range(times)]

    def iterate(self) -> None:
        """The messages, not looked at."""
        _exhaust(islice(self._ready.pop(), self._count))

    def use(self) -> None:
        """The lengths of the values."""
        size = 0
        for message in islice(self._ready.pop(), self._count):
            size += len(message.value or b"")

    def columns(self) -> None:
        """The lengths of the values, by Arrow."""
        import pyarrow.compute as pc

        count = size = 0
        for batch in self._ready.pop().batches():
            count += batch.num_rows
            size += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
            if count == self._count:
                return


def _filled(chunks: list[Fetched]) -> KafkaStream[bytes, bytes]:
    lease = Lease()
    lease.renew(monotonic(), _FOR_EVER)
    lease.resume(lease.epoch)
    queue = StreamQueue(_MILLION, lambda: None)
    thread = ThreadId("profile-0")
    positions: dict[TopicPartition, PartitionPosition] = {}
    for chunk in chunks:
        position = positions.setdefault(chunk.where, PartitionPosition(chunk.where, thread, chunk.first))
        queue.deliver(position, chunk.records, (chunk.first, chunk.end), ())
    return new_stream("profile", queue, lease, timeout=0.0)


def _print(case: str, parts: dict[str, float]) -> None:
    print(f"{case}: CPU ns a message\n")
    for name, nanoseconds in parts.items():
        print(f"  {name:<36}{nanoseconds:6.0f}")
    print(flush=True)
