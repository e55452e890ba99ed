"""The events of one member in the order in which it deals with them.

The group thread's only; other threads put events on the queue that it is made with. While a round is performed, or the
application's listener is waited for, events are looked at and kept. Nothing that happens is ever dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from zkconsumer.errors import ConnectorClosedException
from zkconsumer.member.events import SeekRequested, StopRequested, SubscriptionChanged, first_stop
from zkconsumer.member.subscription_changes import SubscriptionChanges


class Inbox:
    """The events that still wait. ``changes`` are the requested subscriptions that are not in force yet."""

    def __init__(self, events: SimpleQueue[Any]) -> None:
        self._events = events
        self._postponed: list[Any] = []
        self._examined = 0
        self.changes = SubscriptionChanges()

    def gather(self, longest: float) -> deque[Any]:
        """Return all events, postponed ones first; wait at most ``longest`` seconds for one if there is none."""
        self._examined = 0
        if self._postponed:
            postponed, self._postponed = self._postponed, []
            return deque(postponed)
        first = self.wait(longest)
        return deque() if first is None else deque([first, *self._arrived()])

    def wait(self, seconds: float) -> Any:
        """Return the next event of the queue; None if none comes in time."""
        try:
            return self._events.get(timeout=seconds)
        except Empty:
            return None

    def put_back(self, events: Iterable[Any]) -> None:
        """Deal with these after all, before the events that were postponed since."""
        self._postponed = [*events, *self._postponed]

    def postpone(self, *events: Any) -> None:
        """Deal with these in the next step."""
        self._postponed += events

    def newer(self, matters: Callable[[Any], bool]) -> bool:
        """Return whether an event that matters came since this was last asked. All that came is postponed."""
        self._postponed += self._arrived()
        came, self._examined = self._postponed[self._examined :], len(self._postponed)
        return any(map(matters, came))

    @property
    def stop(self) -> StopRequested | None:
        """The request to shut down among postponed events; None if there is none. It stays to be dealt with."""
        return first_stop(event for event in self._postponed if isinstance(event, StopRequested))

    def fail_requests(self) -> None:
        """Drop everything; threads that wait for an answer hear that the connector is closed."""
        closed = ConnectorClosedException("the connector was shut down")
        self.changes.fail(closed)
        postponed, self._postponed = self._postponed, []
        for event in (*postponed, *self._arrived()):
            if isinstance(event, SeekRequested | SubscriptionChanged):
                event.done.set_exception(closed)

    def _arrived(self) -> Iterator[Any]:
        while True:
            try:
                yield self._events.get_nowait()
            except Empty:
                return
