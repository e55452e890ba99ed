"""Changes of the subscription that are asked for, until they are in force.

The group's thread's only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, TypeVar

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.member.events import SubscriptionChanged

E = TypeVar("E")
NOBODY = 0
"""No thread's identifier."""


class Readers(Protocol):
    """Who reads what."""

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Whether that thread reads the stream of this partition."""


class Changes:
    """The changes that the next round brings into force, and those that have to wait for them."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._asked: list[SubscriptionChanged] = []
        self._later: list[SubscriptionChanged] = []

    def ask(self, change: SubscriptionChanged) -> bool:
        """Somebody asks for a change; returns whether it may be registered now. It may not while topics leave: it may
        want again what is leaving, whose streams must end before that.
        """
        now = not any(asked.leaving for asked in self._asked)
        (self._asked if now else self._later).append(change)
        return now

    def unless_awaited(self, event: E, owned: Iterable[PartitionPosition]) -> E | SubscriptionChanged:
        """An event came while messages in hand are waited for. A thread that holds one of them must not wait for us: it
        is answered now, before the change is in force, and no message of it counts as finished then. Returns the event
        that is to be dealt with later.
        """
        if not isinstance(event, SubscriptionChanged):
            return event
        leaving = [position for position in owned if position.revoked and position.held]
        if not any(self._readers.held_by(position, event.holder) for position in leaving):
            return event
        event.done.set_result(None)
        return replace(event, holder=NOBODY, done=Future())

    @property
    def asked(self) -> int:
        """How many may be registered and are not in force."""
        return len(self._asked)

    def apply(self, count: int | None = None) -> Sequence[SubscriptionChanged]:
        """A round has brought what was asked into force, or the first ``count`` of it; returns what had to wait for all
        of that.
        """
        count = len(self._asked) if count is None else count
        asked, self._asked = self._asked[:count], self._asked[count:]
        for change in asked:
            change.applied()
            change.done.set_result(None)
        if self._asked:
            return ()
        later, self._later = self._later, []
        return later

    def held_by_who_asked(self, position: PartitionPosition) -> bool:
        """Whether the thread that unsubscribes from this topic reads it: it waits for us, so its message counts as
        finished.
        """
        return any(
            position.topic in change.leaving and self._readers.held_by(position, change.holder)
            for change in self._asked
        )

    def fail(self, error: Exception) -> None:
        """Nothing will be brought into force any more."""
        for change in (*self._asked, *self._later):
            change.done.set_exception(error)
        self._asked, self._later = [], []
