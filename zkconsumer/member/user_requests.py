"""Requests of the user while the group thread waits for that user: seeks, other subscriptions, a shutdown.

The group thread's only. A handler that seeks or subscribes while its message is waited for would otherwise wait for the
group thread, which waits for that handler.
"""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.member.events import ListenerReturned, SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.ownership.partition_position import Held, PartitionPosition


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
                if isinstance(event, SubscriptionChanged):
                    self._answer_if_awaited(event)
                self._inbox.postpone(event)
            event = self._inbox.wait(0.0)
        return self.stop is not None

    @property
    def stop(self) -> StopRequested | None:
        """The request to shut down, if there is one."""
        return self._inbox.stop

    @property
    def messages_of_leavers(self) -> Held:
        """The messages that callers held as they unsubscribed from their topics."""
        return self._inbox.changes.held

    def is_of_leaver(self, position: PartitionPosition) -> bool:
        """Return whether a caller that unsubscribes from this topic held the partition's message at its call.

        The caller waits for the group thread, so its message counts as finished.
        """
        return self._inbox.changes.holds(position)

    def _answer_if_awaited(self, change: SubscriptionChanged) -> None:
        """Answer a change of subscription at once if its caller holds a message that is waited for.

        The change is not in force then. A message of the caller counts as finished only in a balanced run, whose
        handler says so by unsubscribing.
        """
        leaving = [position for position in self._owned.positions.values() if position.revoked and position.held]
        if any(map(change.awaits, leaving)) and change.done.begin():
            change.answer_early()
