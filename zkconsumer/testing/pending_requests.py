"""A request that a fake broker is handling, and the waits of a handler: for an answer, and for messages.

A request belongs to its connection's thread. Any thread may set its ``PendingAnswer``, and tell of arrivals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Event
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_coordinator import GroupCoordinator
from zkconsumer.testing.wire_types import Body

if TYPE_CHECKING:
    from zkconsumer.testing.fake_cluster import FakeCluster

_SLICE = 0.05
_LONGEST_SLEEP = 60.0


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


class Arrivals:
    """Counts the arrivals of messages, and changes of leaders, which waiting fetches look at."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._count = 0

    def count(self) -> int:
        """Return a number that changes with each arrival."""
        with self._changed:
            return self._count

    def add(self) -> None:
        """Wake the waiting fetches."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, since: int, deadline: Deadline) -> None:
        """Wait until messages arrive after the count ``since``, or until the deadline."""
        with self._changed:
            while self._count == since and not deadline.expired:
                self._changed.wait(deadline.bounded(_LONGEST_SLEEP))


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
