"""Takes over and revokes the partitions that a group coordinator assigns.

Called by the group thread only. A partition that leaves is committed while we are still a member of the generation in
which we owned it. A partition has no release of its own: joining again without it is the release.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zkconsumer.member.events import StopRequested
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.revocation import Revocation
from zkconsumer.model import ConsumerId, TopicPartition, thread_id
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.fenced_writes import ABSENT

CLOSING_COMMIT = 1.0
"""Seconds that the last commit of a shutdown may take, at most."""


class OwnedAssignment:
    """The assigned partitions of a member that consumes them.

    Arguments: ``commit_within`` in seconds for a last commit.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        owned: OwnedPartitions,
        revocation: Revocation,
        commit_within: float,
    ) -> None:
        self._consumer = consumer
        self._owned = owned
        self._starts = owned.starts
        self._revocation = revocation
        self._listener = revocation.listener
        self._commit_within = commit_within

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The owned partitions. Any thread."""
        return self._owned.positions

    @property
    def streams(self) -> Mapping[TopicPartition, int]:
        """The stream number of each owned partition."""
        return {tp: int(p.thread[len(self._consumer) + 1 :]) for tp, p in self._owned.positions.items()}

    @property
    def trouble(self) -> str:
        """The last problem with the listener, as a text for the user. Any thread."""
        return self._listener.trouble

    def take(self, streams: Mapping[TopicPartition, int]) -> None:
        """Add these partitions, each with its stream. Fetching begins when their starts are known."""
        if not streams:
            return
        self._owned.add({tp: (thread_id(self._consumer, number), ABSENT) for tp, number in streams.items()})
        if self._listener.exists:
            ours = {tp: position.thread for tp, position in self._owned.positions.items()}
            for tp, offset in self._listener.start_offsets(ours, streams).items():
                self._owned.seek(tp, offset)
        self._starts.start(streams)

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Wait for the messages in hand, commit, and remove these partitions."""
        positions = [self._owned.positions[tp] for tp in partitions if tp in self._owned.positions]
        if positions:
            self._revocation.revoke(positions)
            self._revocation.try_last_commit(positions, Deadline(self._commit_within))

    def abandon(self) -> None:
        """Revoke all partitions without waiting for messages in hand, because their reader does not come back."""
        positions = list(self._owned.positions.values())
        if positions:
            self._revocation.revoke(positions, drain=False)
            self._revocation.try_last_commit(positions, Deadline(self._commit_within), count_requester=False)

    def lose(self, why: str) -> None:
        """Drop all partitions immediately, without a commit."""
        self._revocation.lose(list(self._owned.positions.values()), why)

    def end(self, stop: StopRequested) -> None:
        """Revoke all partitions for the shutdown, within the time that it leaves."""
        leaving = self._revocation.end(stop)
        if leaving:
            deadline = Deadline(stop.deadline.bounded(min(self._commit_within, CLOSING_COMMIT)))
            self._revocation.try_last_commit(leaving, deadline, count_requester=False)
