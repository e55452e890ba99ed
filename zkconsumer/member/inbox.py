"""The events of one member in the order in which it deals with them, with those that came while it could not.

The group's thread's only; others put events on the queue that it is made with. While a round is performed, or the
application's listener is waited for, events are looked at and kept: nothing that happens is ever dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Event = TypeVar("Event")
Kind = TypeVar("Kind")


class Inbox(Generic[Event]):
    """What has happened and is not dealt with yet."""

    def __init__(self, events: SimpleQueue[Event]) -> None:
        self._events = events
        self._postponed: list[Event] = []
        self._examined = 0

    def gather(self, longest: float) -> deque[Event]:
        """The events there are, postponed ones first; waits for one at most ``longest`` seconds where there is none."""
        self._examined = 0
        if self._postponed:
            postponed, self._postponed = self._postponed, []
            return deque(postponed)
        first = self.wait(longest)
        return deque() if first is None else deque([first, *self._arrived()])

    def next(self, longest: float) -> Event | None:
        """The next event, postponed ones first; None where none comes within ``longest`` seconds."""
        return self._postponed.pop(0) if self._postponed else self.wait(longest)

    def wait(self, seconds: float) -> Event | None:
        """The next event of the queue; None where none comes in time."""
        try:
            return self._events.get(timeout=seconds)
        except Empty:
            return None

    def put_back(self, events: Iterable[Event]) -> None:
        """These were not dealt with after all, and come before what was postponed since."""
        self._postponed = [*events, *self._postponed]

    def postpone(self, *events: Event) -> None:
        """Deal with these with the next step."""
        self._postponed += events

    def newer(self, matters: Callable[[Event], bool]) -> bool:
        """Whether something that matters has come since this was last asked; all that came is postponed."""
        self._postponed += self._arrived()
        came, self._examined = self._postponed[self._examined :], len(self._postponed)
        return any(map(matters, came))

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        """The events of that kind among what was postponed. They stay to be dealt with."""
        return [event for event in self._postponed if isinstance(event, kind)]

    def holds(self, kind: type[Event]) -> bool:
        """Whether an event of that kind is among what was postponed."""
        return any(isinstance(event, kind) for event in self._postponed)

    def drain(self) -> Iterator[Event]:
        """All that is left, with which nobody will deal any more."""
        postponed, self._postponed = self._postponed, []
        yield from postponed
        yield from self._arrived()

    def _arrived(self) -> Iterator[Event]:
        while True:
            try:
                yield self._events.get_nowait()
            except Empty:
                return
