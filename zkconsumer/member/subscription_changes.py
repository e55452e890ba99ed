"""Requested changes of the subscription, until they are in force. The group thread's only."""

from __future__ import annotations

from collections.abc import Sequence

from zkconsumer.core.partition_position import Held, PartitionPosition
from zkconsumer.member.events import SubscriptionChanged


class SubscriptionChanges:
    """The changes that wait, and those that have begun: the next round brings these into force."""

    def __init__(self) -> None:
        self._waiting: list[SubscriptionChanged] = []
        self._begun: list[SubscriptionChanged] = []

    def ask(self, change: SubscriptionChanged) -> None:
        """Note a change; :meth:`begin` begins it."""
        self._waiting.append(change)

    @property
    def waiting(self) -> bool:
        """Whether a change waits that :meth:`begin` may begin."""
        return bool(self._waiting) and not self._leaving

    @property
    def begun(self) -> int:
        """Number of changes that have begun and are not in force."""
        return len(self._begun)

    @property
    def _leaving(self) -> bool:
        return any(change.leaving for change in self._begun)

    def begin(self) -> Sequence[SubscriptionChanged]:
        """Begin the changes that may be told to the group now, and return them. A withdrawn change is dropped.

        No change begins while topics leave. It may want them again, and their streams must end before that.
        """
        found: list[SubscriptionChanged] = []
        while self.waiting:
            change = self._waiting.pop(0)
            if change.done.begin():
                self._begun.append(change)
                found.append(change)
                change.finish()
                change.begun()
            else:
                change.withdrawn()
                change.done.set_exception(TimeoutError())
        return found

    def apply(self, count: int | None = None) -> bool:
        """Bring all begun changes into force, or the first ``count``. Return whether a change may begin now."""
        count = len(self._begun) if count is None else count
        ready, self._begun = self._begun[:count], self._begun[count:]
        for change in ready:
            change.applied()
            change.done.set_result(None)
        return self.waiting

    def holds(self, position: PartitionPosition) -> bool:
        """Return whether a caller that leaves the topic of this position held its message, which thus is finished."""
        return any(position.topic in change.leaving and change.holds(position) for change in self._begun)

    @property
    def held(self) -> Held:
        """The messages that callers held as they left topics. They count as finished."""
        return {
            position: offsets
            for change in self._begun
            for position, offsets in change.held.items()
            if position.topic in change.leaving
        }

    def fail(self, error: Exception) -> None:
        """Tell the waiting threads that nothing will be brought into force any more."""
        for change in self._waiting:
            change.withdrawn()
        for change in (*self._begun, *self._waiting):
            change.done.set_exception(error)
        self._begun, self._waiting = [], []
