"""The coordinator of a member in the brokers' group: turns events and timers into triggers of ``state_machine``.

The table says which effects follow. Requests that take time run on other threads (coordinator requests,
heartbeats, committer), so that the group thread can be told to stop at any moment.

Called by the group thread; other threads read :attr:`BrokersRebalancer.state` and ``first_round``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from zkconsumer.core.poll_watchdog import PollWatchdog
from zkconsumer.errors import FencedInstanceIdError, MemberIdRequiredError, ZkConsumerError
from zkconsumer.kafka.error_codes import ErrorAction, action_for
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.member.brokers.assignment import OwnedAssignment, partition_streams
from zkconsumer.member.brokers.coordinator_requests import Answered
from zkconsumer.member.brokers.heartbeats import HeartbeatFailed
from zkconsumer.member.brokers.join_protocol import LEAVE_WITHIN, NEVER, JoinProtocol, MemberSettings, Question
from zkconsumer.member.brokers.state_machine import ASKING, TABLE, TRYING, Effect, State, Trigger
from zkconsumer.member.brokers.status import CoordinatedStatus
from zkconsumer.member.connector_state import ConnectorState
from zkconsumer.member.events import ListenerReturned, StopRequested, SubscriptionChanged, first_stop
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.interfaces import Readers
from zkconsumer.member.offset_conflicts import OffsetConflicts
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper.lease import Lease

if TYPE_CHECKING:
    from zkconsumer.member.migration_bridge import WishedPartitions

    Assignment: TypeAlias = OwnedAssignment | WishedPartitions

log = logging.getLogger(__name__)

LOOK_FOR_MISSING = 1.0
"""Seconds between two looks for a topic that somebody in the group waits for."""
AT_ONCE = 3
"""Times that a member that is sent back to join does so without a pause, before it has its assignment."""
LOOK_FOR_READER = 0.1
"""Seconds between two looks for a reader that did not come back."""


def trigger_of(error: Exception) -> Trigger:
    """Return the trigger of a failure."""
    if isinstance(error, FencedInstanceIdError):
        return Trigger.TAKEN_OVER
    return _TRIGGERS[action_for(error)]


_TRIGGERS = {
    ErrorAction.RETRY: Trigger.NOT_NOW,
    ErrorAction.FIND_COORDINATOR: Trigger.COORDINATOR_LOST,
    ErrorAction.REJOIN: Trigger.GROUP_CHANGED,
    ErrorAction.REJOIN_WITH_GIVEN_ID: Trigger.MEMBER_NAMED,
    ErrorAction.REJOIN_WITHOUT_PARTITIONS: Trigger.OUTDATED,
    ErrorAction.REJOIN_AS_NEW_MEMBER: Trigger.FORGOTTEN,
    ErrorAction.RAISE: Trigger.REFUSED,
}


_LISTENING = (*ASKING, State.STABLE)
"""States in which a coordinator that is silent for a session timeout is given up."""
_AWAY = (State.BACKING_OFF, State.SEARCHING)
"""States in which the coordinator does not answer."""
_LOST = (Trigger.OUTDATED, Trigger.FORGOTTEN)
_SENT_BACK = (*_LOST, Trigger.GROUP_CHANGED, Trigger.MEMBER_NAMED)
"""Triggers that make us join again at once."""


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


class BrokersRebalancer:
    """The coordinator's group, as one member takes part in it.

    Arguments: ``conflicts`` moves owned partitions, ``readers`` are watched for ``max.poll.interval.ms``. A bridge has
    neither, because it consumes by owner nodes in ZooKeeper.
    """

    waits_in_handlers = True

    def __init__(
        self,
        settings: MemberSettings,
        *,
        inbox: Inbox,
        join: JoinProtocol,
        lease: Lease,
        assignment: Assignment,
        status: CoordinatedStatus,
        conflicts: OffsetConflicts | None = None,
        readers: Readers | None = None,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._join = join
        self._lease = lease
        self._assignment = assignment
        self._status = status
        self.first_round: Future[None] = status.first_round
        self._conflicts = conflicts
        self._readers = readers
        self._watchdog = PollWatchdog(settings.max_poll)
        self._look_at_readers = NEVER if readers is None else monotonic()
        self._machine = MachineState()
        self._effects = self._table()

    @property
    def state(self) -> ConnectorState:
        """The member's state, for the user. Any thread."""
        interest = self._join.interest
        conflicts = "" if self._conflicts is None else self._conflicts.trouble
        return self._status.shown(
            self._machine.state,
            len(self._assignment.partitions),
            valid=self._lease.valid,
            away=bool(self._watchdog.stalled),
            beside=(interest.trouble, interest.waiting, self._assignment.trouble, conflicts),
        )

    @property
    def unsettled(self) -> str:
        """Why the member may not own its share, in words; empty if it does. Any thread; takes no lock."""
        state = self._machine.state
        if state in (State.STABLE, State.SEARCHING) or (state is State.UNJOINED and not self._watchdog.stalled):
            return ""  # without a coordinator the lease tells how long that is so
        said = "no reader comes back for its messages" if state is State.UNJOINED else state.value
        return "; ".join(filter(None, (said, self._status.detail)))

    @property
    def sessions_lost(self) -> int:
        """How often the group went on without this member. Any thread."""
        return self._machine.lost

    @property
    def needs_lease(self) -> bool:
        """Whether the member is in the group, or wants to be."""
        return self._machine.state is not State.UNJOINED

    @property
    def closed(self) -> bool:
        """Whether the member has left for good."""
        return self._machine.state is State.CLOSED

    def begin(self) -> None:
        """Begin to join, if anything is subscribed."""
        self._status.began()
        if self._join.interest.empty:
            self._status.let_in()
        else:
            self._on(Trigger.SUBSCRIPTION_CHANGED, "joining")

    def step_failed(self, error: Exception) -> None:
        """Look for the coordinator again after an unexpected error, or end a leave."""
        if self._machine.state in TRYING:
            self._machine.state = State.FINDING
            self._on(Trigger.NOT_NOW, str(error))
        elif self._machine.state is State.LEAVING:
            self._on(Trigger.LEFT)

    # ---- timers ----

    def due(self) -> float:
        """Return when the next timer is due (monotonic seconds)."""
        return min(self._machine.due, self._look_at_readers, self._silent_at)

    @property
    def _silent_at(self) -> float:
        """When a coordinator that is silent is given up."""
        return self._join.silent_at if self._machine.state in _LISTENING else NEVER

    def run_timers(self) -> None:
        """Run the timers that are due."""
        machine, now = self._machine, monotonic()
        if self._inbox.changes.waiting:
            self._subscribe()
        if now >= machine.retry_at:
            self._on(Trigger.RETRY_DUE)
        if now >= machine.leave_by:
            self._on(Trigger.LEFT)
        if machine.stop_at < NEVER and (machine.state is not State.LEADING or now >= machine.stop_at):
            machine.stop_at = NEVER
            self._on(Trigger.STOPPED)
        if now >= self._silent_at:
            self._on(Trigger.LEASE_ENDED, "the coordinator was silent for a session timeout")
        if now >= machine.look_at:
            machine.look_at = now + self._settings.interval
            if machine.state is State.STABLE:
                self._join.look()
        if self._readers is not None and now >= self._look_at_readers:
            self._look_at_readers = now + self._watch(self._readers, now)

    def _watch(self, readers: Readers, now: float) -> float:
        """See whether readers come back; returns the seconds until the next look."""
        watchdog = self._watchdog
        if self._machine.state is State.UNJOINED and watchdog.stalled:
            for key, place in list(watchdog.stalled.items()):
                if readers.came_back(key, place):
                    watchdog.back(key)
            if not watchdog.stalled and not self._join.interest.empty:
                self._on(Trigger.READER_BACK, "the reader is back")
            return LOOK_FOR_READER
        if self._machine.state in TRYING and self._lease.valid and self._assignment.partitions:
            watchdog.go_on(now)
            if watchdog.look(readers.places(), now):
                self._on(Trigger.READER_GONE, watchdog.describe())
                return LOOK_FOR_READER
        else:
            watchdog.hold(now)  # nobody can come back while nothing is handed out
        return watchdog.every

    # ---- events, as triggers ----

    def handle(self, event: Any) -> None:
        """Deal with one event."""
        match event:
            case Answered():
                self._answered(event)
            case HeartbeatFailed(who, error):
                self._heartbeat_failed(who, error)
            case StopRequested():
                machine = self._machine
                if machine.stopping is None:
                    # no commit is taken before the leader has decided, and the last one is to come: decide before
                    machine.stop_at = monotonic() + (LEAVE_WITHIN if machine.state is State.LEADING else 0.0)
                machine.stopping = first_stop([machine.stopping or event, event])
            case SubscriptionChanged():
                self._inbox.changes.ask(event)
            case ListenerReturned():
                pass
            case _ if self._conflicts is not None:
                self._conflicts.handle(event)

    def _answered(self, event: Answered) -> None:
        match self._join.take(event):
            case Question.LOOKING:
                self._looked()
            case Question.LEAVING:
                self._on(Trigger.LEFT)
            case Question.ON_THE_WAY:
                try:
                    trigger = self._join.meaning(event)
                except ZkConsumerError as e:
                    self._failed(e)
                else:
                    self._on(trigger)

    def _failed(self, error: ZkConsumerError) -> None:
        if isinstance(error, MemberIdRequiredError):
            self._join.generation.named(error.member_id)
        self._status.error = error
        trigger = trigger_of(error)
        if trigger in _SENT_BACK:
            self._machine.sent_back += 1
            if self._machine.sent_back > AT_ONCE:
                self._on(Trigger.NOT_NOW, str(error))
                if trigger not in _LOST:
                    return  # the join is still to come
        self._on(trigger, str(error))

    def _heartbeat_failed(self, who: Membership, error: Exception) -> None:
        """Deal with a refused or unanswered heartbeat or commit."""
        if who != self._join.generation.who:
            return  # of a former generation
        trigger, state = trigger_of(error), self._machine.state
        if trigger is Trigger.OUTDATED and state in ASKING:
            return  # the group is complete, with us in it: the answer to our join is on its way
        if trigger is Trigger.FORGOTTEN and state in ASKING:
            self._lease.suspend()  # that answer will say so too; until then hand out nothing
        elif trigger is Trigger.TAKEN_OVER or state is State.STABLE:
            self._status.error = error
            self._on(trigger, str(error))
        elif trigger in _LOST or (trigger is Trigger.COORDINATOR_LOST and state in ASKING):
            self._on(trigger, str(error))

    def _looked(self) -> None:
        """Have the group decide again if topics changed."""
        self._plan_look()
        cause = self._join.interest.rejoin_trigger()
        if cause is not None and self._machine.state is State.STABLE:
            self._on(cause, cause.value)

    def _subscribe(self) -> None:
        """Begin the subscription changes that wait. While the coordinator is away, their callers may withdraw them."""
        changes, interest = self._inbox.changes, self._join.interest
        if self._machine.state in _AWAY:
            return
        while begun := changes.begin():
            for change in begun:
                interest.subscribe(change.revise)
                if interest.empty and self._settings.static_leaves:  # ZooKeeper coordinated, if only for a moment
                    self._on(Trigger.UNSUBSCRIBED, "ZooKeeper coordinates")
            self._on(Trigger.UNSUBSCRIBED if interest.empty else Trigger.SUBSCRIPTION_CHANGED, "another subscription")
            if self._machine.state is State.UNJOINED:
                self._apply(changes.begun)

    # ---- the table ----

    def _on(self, trigger: Trigger, reason: str = "") -> None:
        """Do what the table says about a trigger, and what follows from that."""
        machine = self._machine
        before = machine.state
        machine.state, effects = TABLE.next(before, trigger)
        if effects:
            log.debug("%s: %s -> %s: %s", trigger.value, before.value, machine.state.value, reason)
        if before is State.STABLE and machine.state is State.JOINING:
            self._status.began(reason or trigger.value)
        machine.cause = trigger
        if machine.state not in (State.BACKING_OFF, State.SEARCHING) or trigger is Trigger.RETRY_DUE:
            machine.retry_at = NEVER
        for effect in effects:
            self._perform(effect, reason)
        if machine.state is State.CLOSED:
            machine.leave_by = NEVER
        elif machine.state is State.STABLE and machine.again is not None:
            again, machine.again = machine.again, None
            self._on(again, again.value)

    # ---- effects ----

    def _perform(self, effect: Effect, reason: str) -> None:
        """Perform an effect; ``reason`` is in words."""
        began = monotonic()
        self._effects[effect](reason)
        if not self._assignment.partitions:
            self._watchdog.hold(began)  # since the drain began, no reader has anything to come back for

    def _plan_look(self) -> None:
        """Look at topics after a while, or soon if one is missing."""
        every = self._settings.interval
        self._machine.look_at = monotonic() + (
            min(every, LOOK_FOR_MISSING) if self._join.interest.incomplete else every
        )

    def _apply(self, count: int) -> None:
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
            Effect.SYNC: lambda _: self._hear(self._join.sync()),
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

    def _hear(self, answer: Answered | None) -> None:
        """Take the answer to a question that was not sent, if there is one, in the next step."""
        if answer is not None:
            self._inbox.postpone(answer)

    def _found_again(self) -> None:
        """Continue as a member, because the coordinator answers again and knows this member."""
        self._status.well()
        self._join.beat()

    def _adopt(self) -> None:
        assignment, interest = self._assignment, self._join.interest
        before = assignment.streams
        wanted = partition_streams(self._join.share, interest.streams, before)
        self._lease.resume(self._lease.epoch)
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
        self._plan_look()
        self._apply(self._machine.offered)
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
        self._status.surface(trouble, flowing=self._lease.valid)

    def _abandon(self, trouble: str) -> None:
        self._status.away(trouble)
        self._assignment.abandon()

    def _leave(self) -> None:
        unsubscribed = self._machine.cause is Trigger.UNSUBSCRIBED
        unwanted = self._settings.static_leaves and unsubscribed
        if unsubscribed:
            self._join.generation.lose(leaving=True)
        self._hear(self._join.leave(static=unwanted))
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
