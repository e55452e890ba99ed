"""One request that a fake broker is dealing with, and how a handler waits for an answer that comes later.

A call belongs to the thread of its connection. ``PendingAnswer`` is set by whichever thread brings the answer about.
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
    """The broker stops, or who asked is gone, so nobody will be answered any more."""


class StopSignal(Protocol):
    """Whether nobody waits for an answer any more."""

    def is_set(self) -> bool:
        """That."""


class PendingAnswer:
    """An answer that another thread may bring; a ticket for ``GroupCoordinator``."""

    def __init__(self) -> None:
        self._there = Event()
        self._value: Any = None

    def __call__(self, value: Any) -> None:
        """Bring the answer."""
        self._value = value
        self._there.set()

    def wait(self, stop: StopSignal) -> Any:
        """The answer, once it is there. Raises BrokerStopped."""
        while not self._there.wait(_SLICE):
            if stop.is_set():
                raise BrokerStopped
        return self._value


@dataclass(frozen=True)
class PendingRequest:
    """A request: who asks which broker what. ``stop`` is set when the broker stops or who asked has closed."""

    cluster: FakeCluster
    broker_id: int
    groups: GroupCoordinator
    version: int
    client_id: str
    client_host: str
    body: Body
    stop: StopSignal


class Handler(NamedTuple):
    """How a kind of request is answered: what it does, and what it says where a test wants an error instead."""

    answer: Callable[[PendingRequest], Body | None]
    refusal: Callable[[PendingRequest, int], Body]
