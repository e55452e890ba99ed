"""Performs the effects of ``state_machine`` for a coordinated member.

Called by the group thread only; ``rebalancer`` says when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from zkconsumer.core.poll_watchdog import PollWatchdog
from zkconsumer.errors import ZkConsumerError
from zkconsumer.member.coordinator.assignment import Assignment
from zkconsumer.member.coordinator.join_protocol import JoinProtocol
from zkconsumer.member.coordinator.settings import LEAVE_WITHIN, LOOK_FOR_MISSING, NEVER, MemberSettings
from zkconsumer.member.coordinator.state_machine import Effect, State, Trigger
from zkconsumer.member.coordinator.status import CoordinatedStatus
from zkconsumer.member.coordinator.streams_assignor import partition_streams
from zkconsumer.member.events import StopRequested
from zkconsumer.member.group_thread import Inbox
from zkconsumer.model import TopicPartition

log = logging.getLogger(__name__)


@dataclass
class MachineState:
    """The state of a member, its causes and its timers (monotonic seconds)."""

    state: State = State.UNJOINED
    cause: Trigger = Trigger.SUBSCRIPTION_CHANGED
    """The last trigger."""
    again: Trigger | None = None
    """Why to join again as soon as this generation is complete."""
    offered: int = 0
    """The number of subscription changes that the present join has told."""
    sent_back: int = 0
    """The number of times that we were told to join again, since the last assignment."""
    retry_at: float = NEVER
    look_at: float = NEVER
    """When topics are looked at."""
    stop_at: float = NEVER
    leave_by: float = NEVER
    """When a leave need not be answered any more."""
    stopping: StopRequested | None = None
    lost: int = 0
    """The number of generations that ended without us."""

    @property
    def due(self) -> float:
        """When the next timer is due."""
        return min(self.retry_at, self.look_at, self.stop_at, self.leave_by)


class Effects:
    """Performs the effects of one member.

    Arguments: ``machine`` is read and changed.
    """

    def __init__(
        self,
        settings: MemberSettings,
        machine: MachineState,
        inbox: Inbox,
        join: JoinProtocol,
        assignment: Assignment,
        watchdog: PollWatchdog,
        status: CoordinatedStatus,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._inbox = inbox
        self._join = join
        self._assignment = assignment
        self._watchdog = watchdog
        self._status = status
        self._effects = self._table()

    def perform(self, effect: Effect, reason: str) -> None:
        """Perform an effect; ``reason`` is in words."""
        began = monotonic()
        self._effects[effect](reason)
        if not self._assignment.partitions:
            self._watchdog.hold(began)  # since the drain began, no reader has anything to come back for

    def plan_look(self) -> None:
        """Look at topics after a while, or soon if one is missing."""
        every = self._settings.interval
        self._machine.look_at = monotonic() + (
            min(every, LOOK_FOR_MISSING) if self._join.interest.incomplete else every
        )

    def apply(self, count: int) -> None:
        """Bring so many subscription changes into force."""
        self._machine.offered = 0
        self._inbox.changes.apply(count)

    def _table(self) -> Mapping[Effect, Callable[[str], object]]:
        """Return how each effect is performed; each is told the reason."""
        return {
            Effect.FIND: lambda _: self._join.find(),
            Effect.GIVE_UP: lambda _: self._assignment.give_up(self._not_to_hold()),
            Effect.JOIN: lambda _: self._rejoin(),
            Effect.ASK_TOPICS: lambda _: self._join.topics(),
            Effect.SYNC: lambda _: self._sync(),
            Effect.ADOPT: lambda _: self._adopt(),
            Effect.BEAT: lambda _: self._found_again(),
            Effect.BACK_OFF: self._back_off,
            Effect.REMEMBER: lambda _: self._remember(),
            Effect.LOSE_ALL: self._lose,
            Effect.FORGET_GENERATION: lambda _: self._join.generation.forget(),
            Effect.FORGET_MEMBER: lambda _: self._join.generation.forget_member(),
            Effect.SURFACE: self._surface,
            Effect.ABANDON: self._abandon,
            Effect.GIVE_UP_ALL: lambda _: self._assignment.give_up(list(self._assignment.partitions)),
            Effect.LET_GO: lambda _: self._not_held(),
            Effect.LEAVE: lambda _: self._leave(),
        }

    def _not_to_hold(self) -> list[TopicPartition]:
        """Return the partitions to give up before a join."""
        if not self._join.generation.incremental:
            return list(self._assignment.partitions)
        return [tp for tp in self._assignment.partitions if tp.topic not in self._join.interest.streams]

    def _rejoin(self) -> None:
        self._machine.again, self._machine.offered = None, self._inbox.changes.begun
        self._join.join(self._assignment.partitions)

    def _sync(self) -> None:
        try:
            self._join.sync()
        except Exception as e:  # a plug-in raises whatever it likes
            log.exception("the strategy %s failed", self._join.generation.chosen)
            self._status.error = e
            self._inbox.postpone(self._join.failed(ZkConsumerError(f"the strategy failed: {e}")))

    def _found_again(self) -> None:
        """Continue as a member, because the coordinator answers again and knows this member."""
        self._status.well()
        self._join.beat()

    def _adopt(self) -> None:
        assignment, interest = self._assignment, self._join.interest
        before = assignment.streams
        wanted = partition_streams(self._join.share, interest.streams, before)
        self._join.resume()
        going = [tp for tp, number in before.items() if wanted.get(tp) != number]
        assignment.take({tp: number for tp, number in wanted.items() if tp not in before})
        assignment.give_up(going)
        assignment.take({tp: wanted[tp] for tp in going if tp in wanted})
        if self._join.generation.incremental and not wanted.keys() >= set(going):
            self._machine.again = self._machine.again or Trigger.GAVE_UP
        self._settled()

    def _settled(self) -> None:
        """Conclude a rebalance: the group has decided, and we own our partitions."""
        self._machine.sent_back = 0
        self._status.settled(len(self._assignment.partitions))
        if self._assignment.partitions:
            self._watchdog.go_on(monotonic())
        self.plan_look()
        self.apply(self._machine.offered)
        self._status.let_in()

    def _remember(self) -> None:
        self._machine.again = self._machine.cause

    def _back_off(self, trouble: str) -> None:
        self._join.cancel()
        self._machine.retry_at = monotonic() + self._status.failed(
            trouble, refused=self._machine.cause is Trigger.REFUSED
        )

    def _lose(self, why: str) -> None:
        self._machine.lost += self._join.generation.who.generation >= 0
        self._join.lose()
        self._assignment.lose(why)

    def _surface(self, trouble: str) -> None:
        self._status.surface(trouble, flowing=self._join.lease.valid)

    def _abandon(self, trouble: str) -> None:
        self._status.away(trouble)
        self._assignment.abandon()

    def _leave(self) -> None:
        unwanted = self._settings.static_leaves and self._machine.cause is Trigger.UNSUBSCRIBED
        answer = self._join.leave(static=unwanted)
        if answer is not None:
            self._inbox.postpone(answer)
        if self._machine.state is State.LEAVING:
            self._machine.leave_by = monotonic() + 2 * LEAVE_WITHIN

    def _not_held(self) -> None:
        """Finish. Each step has a time limit; if one fails, the next follows."""
        stop = self._machine.stopping
        assert stop is not None
        self._inbox.postpone(stop)  # hurries the listener
        self._assignment.end(stop)
        self._inbox.fail_requests()
        self._status.closed()
