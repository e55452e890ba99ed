"""A request that a fake broker is handling, and the wait of a handler for an answer that comes later.

A request belongs to its connection's thread. Any thread may set its ``PendingAnswer``.
"""

# ruff: noqa: D102 - FakeCluster documents the methods of its protocol

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple, Protocol

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_clock import Clock
from zkconsumer.testing.fake_coordinator import GroupCoordinator
from zkconsumer.testing.faults import Forged, Parked, Recorded
from zkconsumer.testing.partition_log import PartitionLog
from zkconsumer.testing.wire_types import Body

_SLICE = 0.05


class BrokerStopped(Exception):
    """The broker stops or the client is gone, so the request gets no answer."""


class StopSignal(Protocol):
    """A signal that no client waits for the answer any more."""

    def is_set(self) -> bool:
        """Return whether the signal is set."""


class PendingAnswer:
    """An answer that another thread may set. It is a ticket for ``GroupCoordinator``."""

    def __init__(self) -> None:
        self._there = Event()
        self._value: Any = None

    def __call__(self, value: Any) -> None:
        """Set the answer."""
        self._value = value
        self._there.set()

    def wait(self, stop: StopSignal) -> Any:
        """Wait for the answer. Raises BrokerStopped."""
        while not self._there.wait(_SLICE):
            if stop.is_set():
                raise BrokerStopped
        return self._value


class Cluster(Protocol):
    """The cluster of a fake broker, as the broker and its handlers use it. ``FakeCluster`` documents the methods."""

    modern: bool
    cluster_id: str
    clock: Clock

    def address(self, broker_id: int) -> tuple[str, int]: ...
    def addresses(self) -> list[tuple[int, str, int]]: ...
    def coordinator(self, group_id: str) -> int | None: ...
    def group_error(self, broker_id: int, group_id: str, *, may_be_empty: bool = False) -> int: ...
    def topics(self) -> list[str]: ...
    def logs(self, topic: str) -> list[PartitionLog] | None: ...
    def log(self, topic: str, partition: int) -> PartitionLog | None: ...
    def create_topic(self, name: str, partitions: int = 1) -> None: ...
    def add_partitions(self, name: str, total: int) -> None: ...
    def delete_topic(self, name: str) -> None: ...
    def next_producer_id(self) -> int: ...
    def arrived(self) -> None: ...
    def arrivals(self) -> int: ...
    def await_arrival(self, since: int, deadline: Deadline) -> None: ...
    def record(self, request: Recorded) -> None: ...
    def code_for(self, request: Recorded) -> int: ...
    def forged_for(self, request: Recorded) -> Forged | None: ...
    def place_for(self, request: Recorded, at: str) -> Parked | None: ...


@dataclass(frozen=True)
class PendingRequest:
    """A request to one broker. ``stop`` is set when the broker stops or the client closes the connection."""

    cluster: Cluster
    broker_id: int
    groups: GroupCoordinator
    version: int
    client_id: str
    client_host: str
    body: Body
    stop: StopSignal


class Handler(NamedTuple):
    """The handler of one kind of request: its function, and the function that makes an error answer for a test."""

    answer: Callable[[PendingRequest], Body | None]
    refusal: Callable[[PendingRequest, int], Body]
