"""Takes over and revokes the partitions that a group coordinator assigns, and gives each partition its stream.

Called by the group thread only. A partition that leaves is committed while we are still a member of the generation in
which we owned it. A partition has no release of its own: joining again without it is the release.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from zkconsumer.core.consumer_protocol import MemberAssignment
from zkconsumer.member.brokers.zkconsumer_assignor import streams_by_leader
from zkconsumer.member.events import StopRequested
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.revocation import Revocation
from zkconsumer.model import ConsumerId, TopicPartition, thread_id
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import ABSENT

CLOSING_COMMIT = 1.0
"""Seconds that the last commit of a shutdown may take, at most."""


class OwnedAssignment:
    """The assigned partitions of a member that consumes them.

    Arguments: ``commit_within`` in seconds for a last commit.
    """

    def __init__(
        self, consumer: ConsumerId, owned: OwnedPartitions, revocation: Revocation, commit_within: float
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


def partition_streams(
    assignment: MemberAssignment, streams: Mapping[str, int], before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the stream of each assigned partition, counted from 0.

    A leader with the strategy ``zkconsumer`` names the streams. Otherwise the partitions of each topic are spread
    evenly: a partition stays in its stream while that has no more than its share, and the rest fills the streams in
    order. Partitions of topics without a stream are left out: the member did not subscribe to them.

    Arguments: ``streams`` has the number of streams for each topic; ``before`` has the stream of each owned partition.
    """
    said = streams_by_leader(assignment)
    found: dict[TopicPartition, int] = {}
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in sorted(assignment.partitions):
        if said.get(tp, -1) in range(streams.get(tp.topic, 0)):
            found[tp] = said[tp]
        elif streams.get(tp.topic, 0) > 0:
            by_topic.setdefault(tp.topic, []).append(tp)
    for topic, unsaid in by_topic.items():
        found.update(_spread_evenly(unsaid, streams[topic], before))
    return found


def _spread_evenly(
    partitions: Sequence[TopicPartition], streams: int, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    kept: list[list[TopicPartition]] = [[] for _ in range(streams)]
    for tp in partitions:
        if before.get(tp, -1) in range(streams):
            kept[before[tp]].append(tp)
    least, larger = divmod(len(partitions), streams)
    fullest = sorted(range(streams), key=lambda number: -len(kept[number]))[:larger]
    shares = [least + (number in fullest) for number in range(streams)]
    found = {tp: number for number, held in enumerate(kept) for tp in held[: shares[number]]}
    free = iter([tp for tp in partitions if tp not in found])
    for number, held in enumerate(kept):
        found.update({next(free): number for _ in range(len(held), shares[number])})
    return found
