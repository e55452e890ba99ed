"""The thread of a member whose group the brokers coordinate: it alone decides and does whatever concerns the group.

Answers, failed heartbeats and what the application asks arrive as events on one queue, or are timers; each is a trigger
of the table in ``member.coordinator.state_machine``, which says what to do. What takes time is asked on other threads
(the line, the heartbeats, the committer), so that this one can be told to stop at any moment. What is asked of the
coordinator is :class:`Questions`', what becomes of partitions :class:`Shares`', what the user is told
:class:`Standing`'s; here is what happens, in :class:`Deeds` what is done about it.

Threads: :meth:`CoordinatedMember.step` is the thread's; others only put events and read :attr:`CoordinatedMember.state`
and :attr:`CoordinatedMember.first_round`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.poll_watchdog import PollWatchdog
from zkconsumer.deadline import Deadline
from zkconsumer.errors import MemberIdRequiredError, ZkConsumerError
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.member.connector_state import ConnectorState
from zkconsumer.member.coordinator.assignment import Shares
from zkconsumer.member.coordinator.coordinator_requests import Line
from zkconsumer.member.coordinator.effects import Course, Deeds
from zkconsumer.member.coordinator.error_triggers import trigger_of
from zkconsumer.member.coordinator.events import Answered, HeartbeatFailed
from zkconsumer.member.coordinator.generation import Generation
from zkconsumer.member.coordinator.heartbeats import Heartbeats
from zkconsumer.member.coordinator.join_protocol import Asked, Questions
from zkconsumer.member.coordinator.settings import (
    AT_ONCE,
    LEAVE_WITHIN,
    LONGEST_WAIT,
    LOOK_FOR_READER,
    NEVER,
    MemberSettings,
    Streams,
)
from zkconsumer.member.coordinator.state_machine import ASKING, TRYING, State, Trigger, transition
from zkconsumer.member.coordinator.status import Standing
from zkconsumer.member.coordinator.topic_interest import TopicInterest
from zkconsumer.member.events import (
    ListenerReturned,
    OffsetsMoved,
    SeekRequested,
    StartsFound,
    StartsResolved,
    StartsStored,
    StopRequested,
    SubscriptionChanged,
    first_stop,
)
from zkconsumer.member.inbox import Inbox
from zkconsumer.member.listener import Listening
from zkconsumer.member.owned_partitions import Offsets
from zkconsumer.member.position_changes import answer_seek
from zkconsumer.member.subscription_changes import Changes
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.zookeeper.lease import Lease

__all__ = ["CoordinatedMember", "MemberSettings"]

log = logging.getLogger(__name__)

_LISTENING = (*ASKING, State.STABLE)
"""Where a coordinator that is silent for a session timeout is given up."""
_LOST = (Trigger.OUTDATED, Trigger.FORGOTTEN)
_SENT_BACK = (*_LOST, Trigger.GROUP_CHANGED, Trigger.MEMBER_NAMED)
"""What makes us join again at once."""


class CoordinatedMember:
    """One member's part in its group.

    Arguments: ``line`` and ``heartbeats`` reach the coordinator; ``lease`` is what streams look at; ``generation`` is
    who we are, ``interest`` what we want; ``rebalanced`` is told the seconds that each rebalance took.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        settings: MemberSettings,
        *,
        events: SimpleQueue[Any],
        line: Line,
        heartbeats: Heartbeats,
        lease: Lease,
        generation: Generation,
        interest: TopicInterest,
        delivery: Streams,
        offsets: Offsets,
        listening: Listening | None = None,
        rebalanced: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._inbox = Inbox(events)
        self._questions = Questions(settings, line, heartbeats, lease, generation, interest)
        self._lease = lease
        self._generation = generation
        self._interest = interest
        self._delivery = delivery
        self._changes = Changes(delivery)
        self._listening = listening or Listening()
        self._shares = Shares(
            consumer,
            settings.shares,
            delivery=delivery,
            offsets=offsets,
            listening=self._listening,
            serve=self._serve,
            stopping=lambda: first_stop(self._inbox.all_of(StopRequested)),
            tell=events.put,
            held_by_who_asked=self._changes.held_by_who_asked,
        )
        self._offsets = offsets
        self._conflicts = self._shares.conflicts(settings.conflict)
        self._readers = PollWatchdog(settings.max_poll)
        self._look_at_readers = monotonic()
        self._standing = Standing(settings, delivery.refuse, rebalanced)
        self.first_round = self._standing.first_round
        self._course = Course()
        self._deeds = Deeds(
            settings,
            self._course,
            inbox=self._inbox,
            questions=self._questions,
            heartbeats=heartbeats,
            lease=lease,
            generation=generation,
            interest=interest,
            shares=self._shares,
            changes=self._changes,
            readers=self._readers,
            standing=self._standing,
        )
        self._thread = Thread(target=self._run, name=f"{consumer}_watcher_executor", daemon=True)

    # ---- for other threads ----

    def start(self) -> None:
        """Start the thread; joining begins at once."""
        self.begin()
        self._thread.start()

    def begin(self) -> None:
        """Begin to join (:meth:`start` without the thread, for who steps it himself)."""
        self._standing.began()
        if self._interest.empty:
            self._standing.let_in()
        else:
            self._on(Trigger.SUBSCRIPTION_CHANGED, "joining")

    def join(self, deadline: Deadline) -> bool:
        """Wait for the thread's end after a :class:`StopRequested`; returns whether it ended."""
        if self._thread.is_alive():
            self._thread.join(deadline.remaining())
        return not self._thread.is_alive()

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""
        return dict(self._shares.owned)

    @property
    def left(self) -> Sequence[PartitionPosition]:
        """What was owned when the member left; empty before that."""
        return self._shares.left

    @property
    def state(self) -> ConnectorState:
        """Where the member stands, for the user."""
        return self._standing.shown(
            self._course.state,
            len(self._shares.owned),
            valid=self._lease.valid,
            away=bool(self._readers.stalled),
            beside=(self._interest.trouble, self._interest.waiting, self._listening.trouble, self._conflicts.trouble),
        )

    # ---- the thread ----

    def _run(self) -> None:
        while self._course.state is not State.CLOSED:
            try:
                self.step()
            except Exception as e:
                log.exception("the group's thread failed unexpectedly and goes on")
                if self._course.state in TRYING:
                    self._course.state = State.FINDING
                    self._on(Trigger.NOT_NOW, str(e))
                elif self._course.state is State.LEAVING:
                    self._on(Trigger.LEFT)

    def step(self, longest: float = LONGEST_WAIT) -> None:
        """Wait for the next event or timer, at most ``longest`` seconds, and deal with it."""
        event = self._next(longest)
        if event is not None:
            self._handle(event)
        self._timers(monotonic())

    def _next(self, longest: float) -> Any:
        due = min(self._course.due, self._look_at_readers, self._silent_at)
        return self._inbox.next(max(0.0, min(due - monotonic(), longest)))

    @property
    def _silent_at(self) -> float:
        """When a coordinator that is silent is given up."""
        return self._questions.silent_at if self._course.state in _LISTENING else NEVER

    def _timers(self, now: float) -> None:
        course = self._course
        if now >= course.retry_at:
            self._on(Trigger.RETRY_DUE)
        if now >= course.leave_by:
            self._on(Trigger.LEFT)
        if course.stop_at < NEVER and (course.state is not State.LEADING or now >= course.stop_at):
            course.stop_at = NEVER
            self._on(Trigger.STOPPED)
        if now >= self._silent_at:
            self._on(Trigger.LEASE_ENDED, "the coordinator was silent for a session timeout")
        if now >= course.look_at:
            course.look_at = now + self._settings.interval
            if course.state is State.STABLE:
                self._questions.look()
        if now >= self._look_at_readers:
            self._look_at_readers = now + self._look_at_the_readers(now)

    def _look_at_the_readers(self, now: float) -> float:
        """See whether readers come back; returns the seconds until the next look."""
        readers = self._readers
        if self._course.state is State.UNJOINED and readers.stalled:
            for key, place in list(readers.stalled.items()):
                if self._delivery.came_back(key, place):
                    readers.back(key)
            if not readers.stalled and not self._interest.empty:
                self._on(Trigger.READER_BACK, "the reader is back")
            return LOOK_FOR_READER
        if self._course.state in TRYING and self._lease.valid and self._shares.owned:
            readers.go_on(now)
            if readers.look(self._delivery.places(), now):
                self._on(Trigger.READER_GONE, readers.describe())
                return LOOK_FOR_READER
        else:
            readers.hold(now)  # nobody can come back while nothing is handed out
        return readers.every

    # ---- what happens, as triggers ----

    def _handle(self, event: Any) -> None:
        match event:
            case Answered():
                self._answered(event)
            case HeartbeatFailed(who, error):
                self._heartbeat_failed(who, error)
            case StopRequested():
                if self._course.stopping is None:
                    # nobody's commit is taken before the leader has decided, and the last one is to come: decide before
                    self._course.stop_at = monotonic() + (LEAVE_WITHIN if self._course.state is State.LEADING else 0.0)
                self._course.stopping = first_stop([self._course.stopping or event, event])
            case SeekRequested():
                self._seek(event)
            case SubscriptionChanged():
                self._subscribe(event)
            case StartsFound(starts):
                self._shares.holdings.starts_found(starts)
            case StartsResolved(starts):
                self._shares.holdings.starts_resolved(starts)
            case StartsStored(starts, refused):
                self._starts_stored(starts, refused)
            case OffsetsMoved(offsets):
                self._conflicts.resolve_elsewhere(offsets)
                if self._conflicts.settled_by_us:
                    self._offsets.hurry()

    def _answered(self, event: Answered) -> None:
        match self._questions.take(event):
            case Asked.LOOKING:
                self._looked(event)
            case Asked.LEAVING:
                self._on(Trigger.LEFT)
            case Asked.ON_THE_WAY:
                try:
                    trigger = self._questions.meaning(event)
                except ZkConsumerError as e:
                    self._failed(e)
                else:
                    self._on(trigger)

    def _failed(self, error: ZkConsumerError) -> None:
        if isinstance(error, MemberIdRequiredError):
            self._generation.named(error.member_id)
        self._standing.error = error
        trigger = trigger_of(error)
        if trigger in _SENT_BACK:
            self._course.sent_back += 1
            if self._course.sent_back > AT_ONCE:
                self._on(Trigger.NOT_NOW, str(error))
                if trigger not in _LOST:
                    return  # the join is still to come
        self._on(trigger, str(error))

    def _heartbeat_failed(self, who: Membership, error: Exception) -> None:
        """A heartbeat or a commit told something, or nobody answered it."""
        if who != self._generation.who:
            return  # of a former life
        trigger = trigger_of(error)
        if trigger is Trigger.OUTDATED and self._course.state in ASKING:
            return  # the group is complete, with us in it: the answer to our join is on its way
        if trigger is Trigger.FORGOTTEN and self._course.state in ASKING:
            self._lease.suspend()  # that answer will say so too; until then hand out nothing
        elif trigger is Trigger.TAKEN_OVER or self._course.state is State.STABLE:
            self._standing.error = error
            self._on(trigger, str(error))
        elif trigger in _LOST or (trigger is Trigger.COORDINATOR_LOST and self._course.state in ASKING):
            self._on(trigger, str(error))

    def _looked(self, event: Answered) -> None:
        """Topics were looked at: does the group have to decide anew?"""
        self._questions.saw(event)
        self._deeds.plan_look()
        cause = self._interest.cause()
        if cause is not None and self._course.state is State.STABLE:
            self._on(cause, cause.value)

    def _subscribe(self, event: SubscriptionChanged) -> None:
        if not self._changes.ask(event):
            return
        self._interest.subscribe(event.registration())
        self._on(Trigger.UNSUBSCRIBED if self._interest.empty else Trigger.SUBSCRIPTION_CHANGED, "another subscription")
        if self._course.state is State.UNJOINED:
            self._deeds.apply(self._changes.asked)

    def _starts_stored(self, starts: Mapping[PartitionPosition, int], refused: Collection[PartitionPosition]) -> None:
        for position in self._shares.holdings.starts_stored(starts, refused):
            if position.committed is not None:  # the user has committed another one meanwhile: that is where to start
                position.begin(position.committed)
        self._delivery.wake()

    def _seek(self, request: SeekRequested) -> None:
        answer_seek(request, self._shares.holdings)

    # ---- the table ----

    def _on(self, trigger: Trigger, reason: str = "") -> None:
        """Something happened: do what the table says, and what follows from that."""
        course = self._course
        before = course.state
        course.state, effects = transition(before, trigger)
        if effects:
            log.debug("%s: %s -> %s: %s", trigger.value, before.value, course.state.value, reason)
        if before is State.STABLE and course.state is State.JOINING:
            self._standing.began(reason or trigger.value)
        course.cause = trigger
        if course.state not in (State.BACKING_OFF, State.SEARCHING) or trigger is Trigger.RETRY_DUE:
            course.retry_at = NEVER
        for effect in effects:
            self._deeds.perform(effect, reason)
        if course.state is State.CLOSED:
            course.leave_by = NEVER
        elif course.state is State.STABLE and course.again is not None:
            again, course.again = course.again, None
            self._on(again, again.value)

    # ---- while others are waited for ----

    def _serve(self, seconds: float) -> bool:
        """While the listener or a message in hand is waited for: do what may be asked of us there, and let everything
        else wait its turn.
        """
        event = self._inbox.wait(seconds)
        while event is not None:
            if isinstance(event, SeekRequested):
                self._seek(event)
            elif not isinstance(event, ListenerReturned):
                self._inbox.postpone(self._changes.unless_awaited(event, self._shares.owned.values()))
            event = self._inbox.wait(0.0)
        return self._inbox.holds(StopRequested)
