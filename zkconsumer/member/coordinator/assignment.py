"""Taking partitions over and giving them up, in a group that the brokers coordinate.

Called by the group's thread only. What leaves is drained, told to the listener, and committed while we are still a
member of the generation it was ours in; then it is forgotten, and the next generation gives it to others. Nothing is
released one by one: joining again without it is the release.

Mirrors ``member.zookeeper.rebalance_round``, which does the same with owner nodes, and the Java consumer's
``onJoinPrepare``. Differs from the latter on purpose: a message in hand is waited for, for
``rebalance.drain.timeout.ms``, in place of being consumed twice; the listener has a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import OffsetCommitError, RegistryError
from zkconsumer.member.events import Event, StopRequested
from zkconsumer.member.listener import Listening, by_topic
from zkconsumer.member.offset_conflicts import Conflicts
from zkconsumer.member.owned_partitions import Delivery, Holdings, Offsets
from zkconsumer.member.revocation import Drain
from zkconsumer.member.zookeeper.owner_nodes import Ownership
from zkconsumer.member.zookeeper.rebalance_round import names
from zkconsumer.model import ConsumerId, TopicPartition, thread_id
from zkconsumer.zookeeper.fenced_writes import KnownOffset

log = logging.getLogger(__name__)

CLOSING_COMMIT = 1.0
"""Seconds that the last commit of a shutdown may take, at most."""
LAST_COMMIT = 0.4
"""Seconds before the end of a shutdown from which on the listener is waited for no more."""
SERVE_EVERY = 0.1
"""Seconds between two looks at what else is asked of us, while messages in hand are waited for."""


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Seconds: ``drain`` is ``rebalance.drain.timeout.ms``, ``commit`` how long a last commit may take."""

    drain: float
    commit: float
    auto_commit: bool


class Shares:
    """Our share of the group's partitions.

    Arguments: ``serve`` is called while the application's listener is waited for (see :class:`Listening`);
    ``stopping`` returns the request to shut down, or None; ``tell`` takes events; ``held_by_who_asked``: whether the
    thread that asks for another subscription holds a position's message, which then counts as finished.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        settings: ShareSettings,
        *,
        delivery: Delivery,
        offsets: Offsets,
        listening: Listening,
        serve: Callable[[float], bool],
        stopping: Callable[[], StopRequested | None],
        tell: Callable[[Event], None],
        held_by_who_asked: Callable[[PartitionPosition], bool],
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._delivery = delivery
        self._offsets = offsets
        self._listening = listening
        self._serve = serve
        self._held_by_who_asked = held_by_who_asked
        # there are no owner nodes to read offsets from again
        self.holdings = Holdings(delivery, offsets, cast(Ownership, None), tell)
        self.left: Sequence[PartitionPosition] = ()
        """What was owned when the member left; empty before that."""
        self._drain = Drain(delivery, self.holdings.owned.values, stopping)

    def conflicts(self, way: str) -> Conflicts:
        """What is done where somebody else wrote an offset: a member of the group, since others are refused."""
        return Conflicts(way, self.holdings, cast(Ownership, None))

    @property
    def owned(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is ours."""
        return self.holdings.owned

    @property
    def streams(self) -> dict[TopicPartition, int]:
        """The number of the stream of each partition that is ours."""
        return {tp: int(position.thread[len(self._consumer) + 1 :]) for tp, position in self.owned.items()}

    # ---- coming

    def take(self, streams: Mapping[TopicPartition, int]) -> None:
        """These are ours from now on, in these streams: fetch them as soon as it is known from where."""
        if not streams:
            return
        absent = KnownOffset(None, None)
        self.holdings.add({tp: (thread_id(self._consumer, n), absent) for tp, n in streams.items()})
        if self._listening.exists:
            all_of_ours = {tp: position.thread for tp, position in self.owned.items()}
            starts = self._call("before_starting_fetchers", self._consumer, all_of_ours)
            self._begin_elsewhere(starts, streams)
        self.holdings.start(streams)

    def _begin_elsewhere(self, starts: object, came: Collection[TopicPartition]) -> None:
        """Start where the listener says."""
        if starts is None:
            return
        if not isinstance(starts, Mapping):
            log.error("before_starting_fetchers must return offsets by partition or None, not %r", starts)
            return
        for tp, offset in starts.items():
            if tp not in came:
                log.warning("the listener's offset for %s is not used: it did not come to us just now", tp)
            elif isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
                log.error("the listener's offset for %s is not used: %r is no offset", tp, offset)
            else:
                self.holdings.seek(TopicPartition(*tp), offset)

    # ---- going

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Let the messages in hand be finished, commit, and forget these."""
        positions = [self.owned[tp] for tp in partitions if tp in self.owned]
        if not positions:
            return
        waiting_for = [position for position in positions if not self._held_by_who_asked(position)]
        self._delivery.revoke(positions, Deadline(0.0))
        # what else is asked of us meanwhile is served
        self._drain.wait(waiting_for, Deadline(self._settings.drain), SERVE_EVERY, lambda: self._serve(0.0))
        self._call("before_releasing_partitions", by_topic(p.tp for p in positions))
        self._forget(positions, self._held_by_who_asked, self._settings.commit)

    def abandon(self) -> None:
        """Forget everything without waiting for a message in hand, whose reader does not come back."""
        positions = list(self.owned.values())
        if positions:
            self._delivery.revoke(positions, Deadline(0.0))
            self._call("before_releasing_partitions", by_topic(p.tp for p in positions))
            self._forget(positions, lambda _: False, self._settings.commit)

    def lose(self, why: str) -> None:
        """Nothing is ours any more: hand out and commit nothing of it."""
        positions = list(self.owned.values())
        if positions:
            self.holdings.lose(positions)
            self.holdings.leftover.clear()
            log.warning("lost %s: %s", names(p.tp for p in positions), why)
            self._listening.tell("on_partitions_lost", by_topic(p.tp for p in positions))

    def let_go(self, request: StopRequested) -> None:
        """The end: end the streams, wait for the messages in the user's hands as long as there is time left for the
        last commit, and commit.
        """
        leaving = self.left = tuple(self.owned.values())
        self._drain.end_streams()
        if any(position.held for position in leaving):
            self._offsets.hurry()  # what is finished is not to wait for what is not
        self._drain.wait(leaving, request.drain, SERVE_EVERY, lambda: self._serve(0.0))
        if leaving:
            within = request.deadline.earlier(LAST_COMMIT)
            told = by_topic(p.tp for p in leaving)
            self._listening.call("before_releasing_partitions", told, serve=self._serve, within=within)
            limit = request.deadline.bounded(min(self._settings.commit, CLOSING_COMMIT))
            self._forget(leaving, lambda _: False, limit)

    def _forget(
        self, positions: Sequence[PartitionPosition], count_held: Callable[[PartitionPosition], bool], limit: float
    ) -> None:
        self.holdings.remove([position.tp for position in positions])
        self.holdings.leftover.clear()
        try:
            self._offsets.surrender(
                positions,
                commit=self._settings.auto_commit,
                count_held=count_held,
                deadline=Deadline(limit),
                meanwhile=lambda: None,
            )
        except (RegistryError, OffsetCommitError) as e:
            log.warning("the last commit failed; what was not committed is consumed again by the next owner: %s", e)

    def _call(self, method: str, *arguments: object) -> object:
        return self._listening.call(method, *arguments, serve=self._serve)
