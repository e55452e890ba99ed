"""The data of a fetcher: its settings, its partitions, and the protocols of the streams' queues and budget."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from zkconsumer.kafka import BrokerChannel, Security
from zkconsumer.kafka.broker_channel import LARGEST_ANSWER
from zkconsumer.model import Endpoint

log = logging.getLogger(__name__)


class Budget(Protocol):
    """The bytes that may wait for the application, in all streams together and on the way to them."""

    def free(self) -> int:
        """Return the bytes that are left; at 0 or less only a stream whose reader waits may be served."""

    def reserve(self, wanted: int) -> int:
        """Return the bytes that one request may ask for, at least 1; they count until :meth:`release`."""

    def release(self, count: int) -> None:
        """Count these bytes no more: they have arrived, or will not come."""


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
