"""Requested changes of the subscription, until they are in force. The group thread's only."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zkconsumer.member.events import SubscriptionChanged


class SubscriptionChanges:
    """The changes that the next round brings into force, and those that wait for them."""

    def __init__(self) -> None:
        self._asked: list[SubscriptionChanged] = []
        self._later: list[SubscriptionChanged] = []

    def ask(self, change: SubscriptionChanged) -> bool:
        """Note a change; returns whether it may be registered now.

        It may not while topics leave. It may want them again, and their streams must end before that.
        """
        now = not any(asked.leaving for asked in self._asked)
        (self._asked if now else self._later).append(change)
        return now

    @property
    def asked(self) -> int:
        """Number of changes that may be registered and are not in force."""
        return len(self._asked)

    def apply(self, count: int | None = None) -> Sequence[SubscriptionChanged]:
        """Bring all registered changes into force, or the first ``count``. Returns the changes that waited for all."""
        count = len(self._asked) if count is None else count
        asked, self._asked = self._asked[:count], self._asked[count:]
        for change in asked:
            change.applied()
            change.done.set_result(None)
        if self._asked:
            return ()
        later, self._later = self._later, []
        return later

    def leaving(self, topic: str) -> Collection[int]:
        """Return the threads (native identifiers) that unsubscribe from this topic, and wait for that."""
        return [change.holder for change in self._asked if topic in change.leaving]

    def fail(self, error: Exception) -> None:
        """Tell the waiting threads that nothing will be brought into force any more."""
        for change in (*self._asked, *self._later):
            change.done.set_exception(error)
        self._asked, self._later = [], []
