"""Requests of the user while the group thread waits for that user: seeks, other subscriptions, a shutdown.

The group thread's only. A handler that seeks or subscribes while its message is waited for would otherwise wait for the
group thread, which waits for that handler.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.member.events import ListenerReturned, SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.owned_partitions import OwnedPartitions

NOBODY = 0
"""No thread's identifier."""


class UserRequests:
    """Answers requests that cannot wait, and keeps all other events for later.

    Arguments: ``keep_alive`` is called each time and renews the lease of partitions that stay.
    """

    def __init__(self, inbox: Inbox, owned: OwnedPartitions, keep_alive: Callable[[], object] = lambda: None) -> None:
        self._inbox = inbox
        self._owned = owned
        self._keep_alive = keep_alive

    def serve(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for events and answer requests. Return whether a shutdown is requested."""
        self._keep_alive()
        event = self._inbox.wait(seconds)
        while event is not None:
            if isinstance(event, SeekRequested):
                self._owned.answer_seek(event)
            elif not isinstance(event, ListenerReturned):
                self._inbox.postpone(self._unless_awaited(event))
            event = self._inbox.wait(0.0)
        return self.stop is not None

    @property
    def stop(self) -> StopRequested | None:
        """The request to shut down, if there is one."""
        return self._inbox.stop

    def held_by_requester(self, position: PartitionPosition) -> bool:
        """Return whether a thread that is unsubscribing from this topic holds the partition's message.

        That thread waits for the group thread, so its message counts as finished.
        """
        return any(self._owned.held_by(position, thread) for thread in self._inbox.changes.leaving(position.topic))

    def _unless_awaited(self, event: Any) -> Any:
        """Answer a change of subscription at once if its thread holds a message that is waited for.

        The change is not in force then, and no message of that thread counts as finished. Returns the event to deal
        with later.
        """
        if not isinstance(event, SubscriptionChanged):
            return event
        leaving = [position for position in self._owned.positions.values() if position.revoked and position.held]
        if not any(self._owned.held_by(position, event.holder) for position in leaving):
            return event
        event.done.set_result(None)
        return replace(event, holder=NOBODY, done=Future())
