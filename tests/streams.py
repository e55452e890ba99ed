"""Makes streams for tests, with the settings that most tests have."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

from zkconsumer import KafkaStream, MessageAndMetadata
from zkconsumer.streams.chunk_reader import ChunkReader, CountConsumed, ReadSettings
from zkconsumer.streams.member_streams import MemberStreams
from zkconsumer.streams.rate_limit import HandOutGate
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.zookeeper.lease import Lease


def valid_lease() -> Lease:
    """Return a lease that lasts as long as any test."""
    lease = Lease()
    lease.renew(monotonic(), 3600.0)
    lease.resume(lease.epoch)
    return lease


def delivery_of(stream: KafkaStream[Any, Any]) -> MemberStreams:
    """Return the delivery of a member that has this one stream."""
    fake = SimpleNamespace(streams=lambda: [("t", 0, stream)], stream_of=lambda _: stream)
    return cast(MemberStreams, fake)


def new_stream(
    name: str,
    queue: StreamQueue,
    lease: HandOutGate,
    *,
    timeout: float | None = 0,
    ends_on_timeout: bool = False,
    message_class: type[MessageAndMetadata[Any, Any]] = MessageAndMetadata,
    count: CountConsumed = lambda _topic, _messages, _bytes: None,
    **settings: Any,
) -> KafkaStream[Any, Any]:
    """Return a stream that reads ``queue``; ``settings`` are fields of :class:`ReadSettings`."""
    reader = ChunkReader(name, queue, lease, ReadSettings(**settings), count)
    return KafkaStream(reader, timeout=timeout, ends_on_timeout=ends_on_timeout, message_class=message_class)
