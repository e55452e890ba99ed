"""A member's side of the group protocol: questions to the coordinator, and the meaning of the answers.

Called by the group thread only. On its way into a generation the member asks one question at a time. While it is in a
generation it looks at topics now and then. A question replaces the one before, whose answer is dropped: each has a
ticket.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from time import monotonic

from zkconsumer.core.consumer_protocol import MemberAssignment
from zkconsumer.errors import ZkConsumerError
from zkconsumer.kafka.cluster_metadata import TopicsSeen
from zkconsumer.kafka.group_channel import Joined
from zkconsumer.member.brokers.coordinator_requests import Answered, CoordinatorRequests, Found, Synced
from zkconsumer.member.brokers.generation import Generation
from zkconsumer.member.brokers.heartbeats import Heartbeats
from zkconsumer.member.brokers.state_machine import Trigger
from zkconsumer.member.brokers.topic_interest import TopicInterest
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.zookeeper.lease import Lease

log = logging.getLogger(__name__)

NEVER = float("inf")
LEAVE_WITHIN = 0.75
"""Seconds that leaving waits for a coordinator: a dead one finds out by itself."""
OTHERS_MAY_TAKE = 600.0
"""Seconds that a join, or the leader, may take at the least: the other members' rebalance timeouts are not ours."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The part of the configuration that concerns the group; times in seconds.

    ``max_poll`` is ``max.poll.interval.ms``, ``drain`` is ``rebalance.drain.timeout.ms``. Topics are looked at once an
    ``interval``. ``backoff`` is the first pause after a failure. ``static_leaves``: a static member leaves, too, once
    it wants nothing while it lives on. ``conflict`` is ``offset.conflict``.
    """

    session: float
    max_poll: float
    interval: float
    backoff: float
    backoff_max: float
    request_timeout: float
    drain: float
    auto_commit: bool
    static_leaves: bool = False
    conflict: str = "adopt"


class Question(Enum):
    """The purpose of a question."""

    ON_THE_WAY = "on the way into a generation"
    LOOKING = "a look at topics"
    LEAVING = "a leave"


class JoinProtocol:
    """One member of a group.

    Arguments: ``line`` sends the requests. Answers change ``generation`` (who we are) and ``interest`` (what we want).
    ``heartbeats`` keep the membership alive from the answer to a join on. The answer to a sync renews ``lease``.
    """

    def __init__(
        self,
        settings: MemberSettings,
        line: CoordinatorRequests,
        heartbeats: Heartbeats,
        lease: Lease,
        generation: Generation,
        interest: TopicInterest,
    ) -> None:
        self._settings = settings
        self._line = line
        self._heartbeats = heartbeats
        self._renewal = heartbeats.renewal
        self._lease = lease
        self.generation = generation
        self.interest = interest
        self._where: Endpoint | None = None
        self._beating_since = self._joining_since = monotonic()
        self._ticket = self._looking = self._leaving = 0
        self._looked_for: Collection[str] | None = None
        self.share = MemberAssignment()
        """Our assignment by the last sync."""

    # ---- the membership ----

    def lose(self) -> None:
        """Hand out and commit nothing of this generation any more."""
        self._pause()
        self.generation.lose()

    def _pause(self) -> None:
        self._heartbeats.pause()
        self._lease.void()

    # ---- asking ----

    def find(self) -> None:
        """Ask where the coordinator is; with all topics, if we subscribe by pattern."""
        self._ask(self._line.find(None, look=self.interest.wildcard))

    def join(self, owned: Collection[TopicPartition]) -> None:
        """Ask to join, and keep ``owned`` meanwhile."""
        settings = self._settings
        protocols = self.generation.offer(owned)
        self._heartbeats.synced(None)
        self._joining_since = monotonic()
        self._ask(
            self._line.join(
                self.generation.who,
                protocols,
                session=settings.session,
                rebalance=settings.max_poll,
                limit=self._patience + settings.request_timeout,
            )
        )

    def topics(self) -> None:
        """Ask, as the leader, which partitions the group's topics have."""
        self._ask(self._line.topics(self.generation.group_topics))

    def sync(self) -> Answered | None:
        """Ask for our assignment; tell that of every member, if we lead.

        Returns the answer if the strategy failed, so that nothing is asked.
        """
        try:
            assignments = self.generation.decide()
        except Exception as e:  # a plug-in raises whatever it likes
            log.exception("the strategy %s failed", self.generation.chosen)
            self._ask(self._line.cancel())
            return Answered(self._ticket, error=ZkConsumerError(f"the strategy failed: {e}"))
        self._ask(self._line.sync(self.generation.who, self.generation.chosen, assignments, limit=self._patience))
        return None

    def look(self) -> None:
        """Look at the topics that we want, if there are any."""
        topics = self.interest.metadata_topics
        if topics is None or topics:
            self._looking, self._looked_for = self._line.topics(topics), topics

    def leave(self, *, static: bool) -> Answered | None:
        """Leave the group; a static member does so only if ``static``.

        Returns the answer if nobody has to be asked: nobody knows us, or the group keeps what is ours for us.
        """
        self._pause()
        who = self.generation.who
        self._ticket = self._looking = 0
        if who.member_id and (who.instance_id is None or static):
            self._leaving = self._line.leave(who, limit=LEAVE_WITHIN)
            return None
        self._leaving = self._line.cancel()
        return Answered(self._leaving)

    def cancel(self) -> None:
        """Drop the present question."""
        self._line.cancel()
        self._ticket = self._looking = 0

    def beat(self) -> None:
        """Keep the membership alive from now on, at the coordinator that was found last."""
        assert self._where is not None
        self._beating_since = monotonic()
        self._heartbeats.beat(self.generation.who, self._where)

    @property
    def silent_at(self) -> float:
        """When the coordinator has been silent for a session timeout (monotonic seconds)."""
        if not self._heartbeats.beating:
            return NEVER
        heard_of = max(self._beating_since, self._renewal.heard_at)
        return max(self._lease.ends_at, heard_of + self._settings.session)

    @property
    def _patience(self) -> float:
        """The seconds that the other members may take."""
        return max(self._settings.max_poll, OTHERS_MAY_TAKE)

    def _ask(self, ticket: int) -> None:
        self._ticket, self._looking = ticket, 0

    # ---- answers ----

    def take(self, event: Answered) -> Question | None:
        """Return the question of an answer; None: nobody waits for it any more.

        What a look at topics saw is noted here. A failed look changes nothing.
        """
        if event.ticket == self._looking:
            self._looking = 0
            if isinstance(event.answer, TopicsSeen):
                self.interest.take_metadata(self._looked_for, event.answer.partitions, event.answer.unsure)
            return Question.LOOKING
        if event.ticket == self._leaving:
            self._leaving = 0
            return Question.LEAVING
        if event.ticket == self._ticket:
            self._ticket = 0
            return Question.ON_THE_WAY
        return None

    def meaning(self, event: Answered) -> Trigger:
        """Return the trigger of an answer on the way into a generation. Raises ZkConsumerError for a failure."""
        if event.error is not None:
            raise event.error if isinstance(event.error, ZkConsumerError) else ZkConsumerError(repr(event.error))
        match event.answer:
            case Found(coordinator, topics):
                self._where = coordinator
                if topics is not None:
                    self.interest.take_metadata(None, topics.partitions, topics.unsure)
                if self._heartbeats.beating:
                    self.beat()  # at its new place
                return Trigger.COORDINATOR_FOUND
            case Joined():
                leads = self.generation.joined(event.answer)
                self._heartbeats.joined(self._joining_since, event.answer.protocol)
                self.beat()  # the coordinator's clock runs from here on
                return Trigger.CHOSEN if leads else Trigger.JOINED
            case TopicsSeen(partitions, unsure):
                self.interest.take_metadata(self.generation.group_topics, partitions, unsure)
                return Trigger.TOPICS_KNOWN
            case Synced(assignment, sent_at):
                self.share = self.generation.adopt(assignment)
                self._heartbeats.synced(sent_at)
                self._lease.renew(sent_at, min(self._settings.session, self._settings.max_poll))
                return Trigger.SYNCED
            case answer:
                raise ZkConsumerError(f"an unexpected answer: {answer!r}")
