"""What a coordinated member does, effect by effect of the table in ``member.coordinator.state_machine``.

Called by the group's thread only, through :meth:`Deeds.perform`: :class:`CoordinatedMember` says when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from zkconsumer.core.poll_watchdog import PollWatchdog
from zkconsumer.errors import ConnectorClosedException, ZkConsumerError
from zkconsumer.member.coordinator.assignment import Shares
from zkconsumer.member.coordinator.generation import Generation
from zkconsumer.member.coordinator.heartbeats import Heartbeats
from zkconsumer.member.coordinator.join_protocol import Questions
from zkconsumer.member.coordinator.settings import LEAVE_WITHIN, LOOK_FOR_MISSING, NEVER, MemberSettings
from zkconsumer.member.coordinator.state_machine import Effect, State, Trigger
from zkconsumer.member.coordinator.status import Standing
from zkconsumer.member.coordinator.streams_assignor import partition_streams
from zkconsumer.member.coordinator.topic_interest import TopicInterest
from zkconsumer.member.events import SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.inbox import Inbox
from zkconsumer.member.subscription_changes import Changes
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper.lease import Lease

log = logging.getLogger(__name__)


@dataclass
class Course:
    """Where a member stands, why, and what it is about to do; times are monotonic seconds."""

    state: State = State.UNJOINED
    cause: Trigger = Trigger.SUBSCRIPTION_CHANGED
    """The last trigger."""
    again: Trigger | None = None
    """Why to join again as soon as this generation is complete."""
    offered: int = 0
    """How many of the changes of the subscription the join that is under way has told."""
    sent_back: int = 0
    """How often we were told to join again, since we had a share."""
    retry_at: float = NEVER
    look_at: float = NEVER
    """When topics are looked at."""
    stop_at: float = NEVER
    leave_by: float = NEVER
    """When a leave need not be answered any more."""
    stopping: StopRequested | None = None

    @property
    def due(self) -> float:
        """When the next of these is due."""
        return min(self.retry_at, self.look_at, self.stop_at, self.leave_by)


class Deeds:
    """Performs.

    Arguments: ``course`` is read and changed; the others are the member's parts.
    """

    def __init__(
        self,
        settings: MemberSettings,
        course: Course,
        *,
        inbox: Inbox[Any],
        questions: Questions,
        heartbeats: Heartbeats,
        lease: Lease,
        generation: Generation,
        interest: TopicInterest,
        shares: Shares,
        changes: Changes,
        readers: PollWatchdog,
        standing: Standing,
    ) -> None:
        self._settings = settings
        self._course = course
        self._inbox = inbox
        self._questions = questions
        self._heartbeats = heartbeats
        self._lease = lease
        self._generation = generation
        self._interest = interest
        self._shares = shares
        self._changes = changes
        self._readers = readers
        self._standing = standing
        self._effects = self._table()

    def perform(self, effect: Effect, reason: str) -> None:
        """Do this; ``reason`` is why, in words."""
        began = monotonic()
        self._effects[effect](reason)
        if not self._shares.owned:
            self._readers.hold(began)  # nobody has anything to come back for, since the drain began

    def plan_look(self) -> None:
        """Look at topics after a while, or soon where one is missing."""
        every = self._settings.interval
        self._course.look_at = monotonic() + (min(every, LOOK_FOR_MISSING) if self._interest.incomplete else every)

    def apply(self, count: int) -> None:
        """So many of the changes are in force."""
        self._course.offered = 0
        self._inbox.postpone(*self._changes.apply(count))

    def _table(self) -> Mapping[Effect, Callable[[str], object]]:
        """How each effect is performed; told the reason."""
        return {
            Effect.FIND: lambda _: self._questions.find(),
            Effect.GIVE_UP: lambda _: self._shares.give_up(self._not_to_hold()),
            Effect.JOIN: lambda _: self._join(),
            Effect.ASK_TOPICS: lambda _: self._questions.topics(),
            Effect.SYNC: lambda _: self._sync(),
            Effect.ADOPT: lambda _: self._adopt(),
            Effect.BEAT: lambda _: self._found_again(),
            Effect.BACK_OFF: self._back_off,
            Effect.REMEMBER: lambda _: self._remember(),
            Effect.LOSE_ALL: self._lose,
            Effect.FORGET_GENERATION: lambda _: self._generation.forget(),
            Effect.FORGET_MEMBER: lambda _: self._generation.forget_member(),
            Effect.SURFACE: self._surface,
            Effect.ABANDON: self._abandon,
            Effect.GIVE_UP_ALL: lambda _: self._shares.give_up(list(self._shares.owned)),
            Effect.LET_GO: lambda _: self._let_go(),
            Effect.LEAVE: lambda _: self._leave(),
        }

    def _not_to_hold(self) -> list[TopicPartition]:
        """What must be given up before a join."""
        if not self._generation.incremental:
            return list(self._shares.owned)
        return [tp for tp in self._shares.owned if tp.topic not in self._interest.streams]

    def _join(self) -> None:
        self._course.again, self._course.offered = None, self._changes.asked
        self._questions.join(self._shares.owned)

    def _sync(self) -> None:
        try:
            self._questions.sync()
        except Exception as e:  # a plug-in raises whatever it likes
            log.exception("the strategy %s failed", self._generation.chosen)
            self._standing.error = e
            self._inbox.postpone(self._questions.failed(ZkConsumerError(f"the strategy failed: {e}")))

    def _found_again(self) -> None:
        """The coordinator answers again, and knows us: nothing is wrong any more."""
        self._standing.well()
        self._questions.beat()

    def _adopt(self) -> None:
        shares, wanted = (
            self._shares,
            partition_streams(self._questions.share, self._interest.streams, self._shares.streams),
        )
        self._lease.resume(self._lease.epoch)
        before = shares.streams
        going = [tp for tp, number in before.items() if wanted.get(tp) != number]
        shares.take({tp: number for tp, number in wanted.items() if tp not in before})
        shares.give_up(going)
        shares.take({tp: wanted[tp] for tp in going if tp in wanted})
        if self._generation.incremental and not wanted.keys() >= set(going):
            self._course.again = self._course.again or Trigger.GAVE_UP
        self._settled()

    def _settled(self) -> None:
        """The group has decided, and we have what is ours."""
        self._course.sent_back = 0
        self._standing.settled(len(self._shares.owned))
        if self._shares.owned:
            self._readers.go_on(monotonic())
        self.plan_look()
        self.apply(self._course.offered)
        self._standing.let_in()

    def _remember(self) -> None:
        self._course.again = self._course.cause

    def _back_off(self, trouble: str) -> None:
        self._questions.cancel()
        self._course.retry_at = monotonic() + self._standing.failed(
            trouble, refused=self._course.cause is Trigger.REFUSED
        )

    def _lose(self, why: str) -> None:
        self._heartbeats.pause()
        self._lease.void()
        self._generation.lose()
        self._shares.lose(why)

    def _surface(self, trouble: str) -> None:
        self._standing.surface(trouble, flowing=self._lease.valid)

    def _abandon(self, trouble: str) -> None:
        self._standing.away(trouble)
        self._shares.abandon()

    def _leave(self) -> None:
        self._heartbeats.pause()
        self._lease.void()
        unwanted = self._settings.static_leaves and self._course.cause is Trigger.UNSUBSCRIBED
        answer = self._questions.leave(static=unwanted)
        if answer is not None:
            self._inbox.postpone(answer)
        if self._course.state is State.LEAVING:
            self._course.leave_by = monotonic() + 2 * LEAVE_WITHIN

    def _let_go(self) -> None:
        """Finish, each step bounded; go on with the next where one fails."""
        assert self._course.stopping is not None
        self._inbox.postpone(self._course.stopping)  # hurries the listener
        self._shares.let_go(self._course.stopping)
        closed = ConnectorClosedException("the connector was shut down")
        self._changes.fail(closed)
        for event in self._inbox.drain():
            if isinstance(event, SeekRequested | SubscriptionChanged):
                event.done.set_exception(closed)
        self._standing.closed()
