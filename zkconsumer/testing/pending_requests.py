"""One request that a fake broker is dealing with, and how a handler waits for an answer that comes later.

A call belongs to the thread of its connection. ``Answer`` is set by whichever thread brings the answer about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from zkconsumer.testing.wire_types import Body

if TYPE_CHECKING:
    from zkconsumer.testing.fake_cluster import FakeCluster
    from zkconsumer.testing.fake_coordinator import Groups

_SLICE = 0.05


class BrokerStopped(Exception):
    """The broker stops, or who asked is gone, so nobody will be answered any more."""


class End(Protocol):
    """Whether nobody waits for an answer any more."""

    def is_set(self) -> bool:
        """That."""


class Answer:
    """An answer that another thread may bring; a ticket for ``Groups``."""

    def __init__(self) -> None:
        self._there = Event()
        self._value: Any = None

    def __call__(self, value: Any) -> None:
        """Bring the answer."""
        self._value = value
        self._there.set()

    def wait(self, stop: End) -> Any:
        """The answer, once it is there. Raises BrokerStopped."""
        while not self._there.wait(_SLICE):
            if stop.is_set():
                raise BrokerStopped
        return self._value


@dataclass(frozen=True)
class Call:
    """A request: who asks which broker what. ``stop`` is set when the broker stops or who asked has closed."""

    cluster: FakeCluster
    broker_id: int
    groups: Groups
    version: int
    client_id: str
    client_host: str
    body: Body
    stop: End


class Handler(NamedTuple):
    """How a kind of request is answered: what it does, and what it says where a test wants an error instead."""

    answer: Callable[[Call], Body | None]
    refusal: Callable[[Call, int], Body]
