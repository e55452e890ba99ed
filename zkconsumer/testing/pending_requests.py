"""A request that a fake broker is handling, and the wait of a handler for an answer that comes later.

A request belongs to its connection's thread. Any thread may set its ``PendingAnswer``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from zkconsumer.testing.wire_types import Body

if TYPE_CHECKING:
    from zkconsumer.testing.fake_cluster import FakeCluster
    from zkconsumer.testing.fake_coordinator import GroupCoordinator

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


@dataclass(frozen=True)
class PendingRequest:
    """A request to one broker. ``stop`` is set when the broker stops or the client closes the connection."""

    cluster: FakeCluster
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
