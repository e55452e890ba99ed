"""Giving partitions up: stop the hand-out, wait for messages in hand, call the listener, make the last commit.

Called by the group thread only. The coordinator does the rest: it deletes owner nodes, or joins again without the
partitions.

The wait ends when no message is held, at its limit, or at the end of a shutdown's own wait. A shutdown that comes
meanwhile ends all streams at once, so that every reader finishes its message in the same time.

While the group thread waits for the user, :class:`UserRequests` answers that user: seeks, other subscriptions, a
shutdown. A handler that seeks or subscribes while its message is waited for would otherwise wait for the group thread,
which waits for that handler.

Differs from the original and from the Java consumer's ``onJoinPrepare`` on purpose: both wait for nothing, so a message
in hand is consumed twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zkconsumer.core.names import first_of
from zkconsumer.errors import OffsetCommitError, RegistryError
from zkconsumer.member.events import ListenerReturned, SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.listener import ListenerCalls
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import NONE_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import KnownOffset

log = logging.getLogger(__name__)

LAST_COMMIT = 0.4
"""Seconds before the end of a shutdown from which on the listener is waited for no more: the last commit needs them."""
SLICE = 0.1
"""Seconds between two looks at other requests, while messages in the user's hands are waited for."""


@dataclass(frozen=True, slots=True)
class RevocationSettings:
    """``drain`` is ``rebalance.drain.timeout.ms`` in seconds, ``auto_commit`` is ``auto.commit.enable``."""

    drain: float
    auto_commit: bool


class Revocation:
    """Gives partitions up."""

    def __init__(
        self,
        settings: RevocationSettings,
        inbox: Inbox,
        owned: OwnedPartitions,
        requests: UserRequests,
        listener: ListenerCalls,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._owned = owned
        self._requests = requests
        self.listener = listener
        self._ended = False

    def revoke(self, positions: Sequence[PartitionPosition], *, drain: bool = True) -> None:
        """Stop the hand-out, wait for messages in hand, call the listener, and remove these positions.

        A message that a caller held as it unsubscribed is not waited for: the caller waits for us. None is waited for
        without ``drain``: their reader does not come back.
        """
        self._owned.revoke(positions)
        if drain:
            waited_for = [position for position in positions if not self._inbox.changes.holds(position)]
            self._drain(waited_for, Deadline(self._settings.drain))
        self.listener.releasing(positions)
        self._owned.remove(positions)

    def end(self, stop: StopRequested) -> Sequence[PartitionPosition]:
        """End all streams and revoke all partitions, within the shutdown's time. Returns the revoked positions."""
        leaving = self._owned.left = tuple(self._owned.positions.values())
        self._end_streams()
        if any(position.held for position in leaving):
            self._owned.commits.hurry()  # finished messages must not wait for those in hand
        self._drain(leaving, stop.drain)
        if leaving:
            self.listener.releasing(leaving, within=stop.deadline.earlier(LAST_COMMIT))
        self._owned.remove(leaving)
        return leaving

    def lose(self, positions: Sequence[PartitionPosition], why: str) -> None:
        """Drop these positions immediately, without a commit, because other members may own the partitions by now."""
        if positions:
            self._owned.revoke(positions)
            self._owned.commits.forget(positions)
            self._owned.remove(positions)
            log.warning("lost %s: %s", first_of(position.tp for position in positions), why)
            self.listener.lost(positions)

    # ---- the last commit ----

    def last_commit(
        self,
        positions: Sequence[PartitionPosition],
        deadline: Deadline,
        *,
        commit: bool = True,
        count_requester: bool = True,
        meanwhile: Callable[[], None] = lambda: None,
        release: bool = False,
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """Make the last commit of given-up positions, if commits are automatic and ``commit`` is true.

        Arguments: ``count_requester``: messages that callers held as they unsubscribed count as finished.
        Returns and raises as :meth:`Commits.commit_last`.
        """
        return self._owned.commits.commit_last(
            positions,
            commit=commit and self._settings.auto_commit,
            held=self._inbox.changes.held if count_requester else NONE_HELD,
            deadline=deadline,
            meanwhile=meanwhile,
            release=release,
        )

    def try_last_commit(
        self, positions: Sequence[PartitionPosition], deadline: Deadline, **options: Any
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        """As :meth:`last_commit`; a failure is logged, and nothing is returned then."""
        try:
            return self.last_commit(positions, deadline, **options)
        except (RegistryError, OffsetCommitError) as e:
            log.warning("the last commit failed; the next owner consumes uncommitted messages again: %s", e)
            return {}

    # ---- waiting ----

    def _end_streams(self) -> None:
        self._ended = True
        self._owned.delivery.end()
        self._owned.revoke(list(self._owned.positions.values()))

    def _drain(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Wait for the messages of revoked positions; ``limit`` holds until a shutdown brings its own."""
        while True:
            # a seek or subscription of a thread whose message is waited for would wait for us
            self._requests.serve(0.0)
            self._owned.delivery.wait(positions, Deadline(limit.bounded(SLICE)))
            stop = self._inbox.stop
            if stop is not None:
                limit = stop.drain
                if not self._ended:
                    self._end_streams()
            positions = [position for position in positions if position.held]
            if not positions or limit.expired:
                return


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
        return self._inbox.stop is not None

    def _answer_if_awaited(self, change: SubscriptionChanged) -> None:
        """Answer a change of subscription at once if its caller holds a message that is waited for.

        The change is not in force then. A message of the caller counts as finished only in a balanced run, whose
        handler says so by unsubscribing.
        """
        leaving = [position for position in self._owned.positions.values() if position.revoked and position.held]
        if any(map(change.awaits, leaving)) and change.done.begin():
            change.answer_early()
