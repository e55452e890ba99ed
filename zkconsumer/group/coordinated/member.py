"""The thread of a member whose group the brokers coordinate: it alone decides and does whatever concerns the group.

Answers, failed heartbeats and what the application asks arrive as events on one queue, or are timers; each is a trigger
of the table in ``core.coordinated.machine``, which says what to do. What takes time is asked on other threads (the
line, the heartbeats, the committer), so that this one can be told to stop at any moment.

Threads: :meth:`CoordinatedMember.step` is the thread's; others only put events and read :attr:`CoordinatedMember.state`
and :attr:`CoordinatedMember.who`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from zkconsumer.brokers.cluster import TopicsSeen
from zkconsumer.brokers.group_requests import Joined, Membership
from zkconsumer.core.coordinated.interest import Interest
from zkconsumer.core.coordinated.machine import ASKING, TRYING, Effect, State, Trigger, transition
from zkconsumer.core.coordinated.protocol import MemberAssignment
from zkconsumer.core.coordinated.readers import ReaderWatch
from zkconsumer.core.coordinated.streams import streams_of
from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    ConnectorClosedException,
    MemberIdRequiredError,
    ZkConsumerError,
)
from zkconsumer.group.coordinated.events import Answered, Found, HeartbeatFailed, Synced
from zkconsumer.group.coordinated.generation import Generation
from zkconsumer.group.coordinated.heartbeats import Heartbeats
from zkconsumer.group.coordinated.line import Line
from zkconsumer.group.coordinated.meanings import SHOWN, trigger_of
from zkconsumer.group.coordinated.settings import (
    AT_ONCE,
    LEAVE_WITHIN,
    LONGEST_WAIT,
    LOOK_FOR_MISSING,
    LOOK_FOR_READER,
    NEVER,
    OTHERS_MAY_TAKE,
    REFUSED_MOST,
    MemberSettings,
    Streams,
)
from zkconsumer.group.coordinated.shares import Shares
from zkconsumer.group.events import (
    ListenerReturned,
    SeekRequested,
    StartResolved,
    StartsFound,
    StartStored,
    StopRequested,
    SubscriptionChanged,
)
from zkconsumer.group.holdings import Offsets
from zkconsumer.group.listener import Listening
from zkconsumer.group.state import ConnectorState, Phase
from zkconsumer.model import ConsumerId, Endpoint, TopicPartition
from zkconsumer.registry.lease import Lease

__all__ = ["CoordinatedMember", "MemberSettings"]

log = logging.getLogger(__name__)

_LISTENING = (*ASKING, State.STABLE)
"""Where a coordinator that is silent for a session timeout is given up."""
_LOST = (Trigger.OUTDATED, Trigger.FORGOTTEN)


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
        interest: Interest,
        delivery: Streams,
        offsets: Offsets,
        listening: Listening | None = None,
        rebalanced: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._events = events
        self._line = line
        self._heartbeats = heartbeats
        self._lease = lease
        self._generation = generation
        self._interest = interest
        self._delivery = delivery
        self._rebalanced = rebalanced
        self._listening = listening or Listening()
        self._shares = Shares(
            consumer,
            settings.shares,
            delivery=delivery,
            offsets=offsets,
            listening=self._listening,
            serve=self._serve,
            tell=events.put,
            held_by_who_asked=self._held_by_who_asked,
        )
        self._readers = ReaderWatch(settings.max_poll)
        self._perform = self._effects()
        self._state = State.UNJOINED
        self._where: Endpoint | None = None
        self._ticket = self._looking = self._leaving = 0
        self._looked_for: Collection[str] | None = None
        self._share = MemberAssignment()
        self._postponed: list[Any] = []
        self._changes: list[SubscriptionChanged] = []
        self._offered: list[SubscriptionChanged] = []
        self._later: list[SubscriptionChanged] = []
        self._again: Trigger | None = None
        self._cause = Trigger.SUBSCRIPTION_CHANGED
        self._error: Exception | None = None
        self._began = self._beating_since = monotonic()
        self._failures = self._thrown_out = 0
        self._retry_at = self._look_at = self._leave_by = self._stop_at = NEVER
        self._look_at_readers = monotonic()
        self._surfaced = False
        self._stopping: StopRequested | None = None
        self._detail = ""
        self._rebalances = 0
        self.first_round: Future[None] = Future()
        self._thread = Thread(target=self._run, name=f"{consumer}_watcher_executor", daemon=True)

    # ---- for other threads ----

    def start(self) -> None:
        """Start the thread; joining begins at once."""
        self.begin()
        self._thread.start()

    def begin(self) -> None:
        """Begin to join (:meth:`start` without the thread, for who steps it himself)."""
        self._began = monotonic()
        if self._interest.empty:
            self.first_round.set_result(None)
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
    def state(self) -> ConnectorState:
        """Where the member stands, for the user."""
        state, owned = self._state, len(self._shares.owned)
        phase = SHOWN[state]
        if state is State.UNJOINED and not self._readers.stalled:
            phase = Phase.OWNING if self.first_round.done() else Phase.STARTING
        elif phase is Phase.REJOINING and not self.first_round.done():
            phase = Phase.STARTING
        elif owned and not self._lease.valid and state is not State.CLOSED:
            phase = Phase.SUSPENDED
        detail = "; ".join(filter(None, (self._detail, self._interest.trouble, self._listening.trouble)))
        return ConnectorState(phase, owned, owned, detail=detail, rebalances=self._rebalances)

    # ---- the thread ----

    def _run(self) -> None:
        while self._state is not State.CLOSED:
            try:
                self.step()
            except Exception as e:
                log.exception("the group's thread failed unexpectedly and goes on")
                if self._state in TRYING:
                    self._state = State.FINDING
                    self._on(Trigger.NOT_NOW, str(e))
                elif self._state is State.LEAVING:
                    self._on(Trigger.LEFT)

    def step(self, longest: float = LONGEST_WAIT) -> None:
        """Wait for the next event or timer, at most ``longest`` seconds, and deal with it."""
        event = self._next(longest)
        if event is not None:
            self._handle(event)
        self._timers(monotonic())

    def _next(self, longest: float) -> Any:
        if self._postponed:
            return self._postponed.pop(0)
        timers = (self._retry_at, self._look_at, self._leave_by, self._stop_at, self._look_at_readers, self._silent_at)
        try:
            return self._events.get(timeout=max(0.0, min(min(timers) - monotonic(), longest)))
        except Empty:
            return None

    @property
    def _silent_at(self) -> float:
        """When the coordinator has been silent for a session timeout, unless it is heard of again."""
        if self._state not in _LISTENING or not self._heartbeats.beating:
            return NEVER
        return max(self._lease.ends_at, self._beating_since + self._settings.session)

    def _timers(self, now: float) -> None:
        if now >= self._retry_at:
            self._on(Trigger.RETRY_DUE)
        if now >= self._leave_by:
            self._on(Trigger.LEFT)
        if self._stop_at < NEVER and (self._state is not State.LEADING or now >= self._stop_at):
            self._stop_at = NEVER
            self._on(Trigger.STOPPED)
        if now >= self._silent_at:
            self._on(Trigger.LEASE_ENDED, "the coordinator was silent for a session timeout")
        if now >= self._look_at:
            self._look_at = now + self._settings.interval
            topics = self._interest.look_for
            if self._state is State.STABLE and (topics is None or topics):
                self._looking = self._line.topics(topics)
                self._looked_for = topics
        if now >= self._look_at_readers:
            self._look_at_readers = now + self._look_at_the_readers(now)

    def _look_at_the_readers(self, now: float) -> float:
        """See whether readers come back; returns the seconds until the next look."""
        readers = self._readers
        if self._state is State.UNJOINED and readers.stalled:
            for key, place in list(readers.stalled.items()):
                if self._delivery.came_back(key, place):
                    readers.back(key)
            if not readers.stalled and not self._interest.empty:
                self._on(Trigger.READER_BACK, "the reader is back")
            return LOOK_FOR_READER
        if self._state in TRYING and self._lease.valid:
            if readers.look(self._delivery.unread(), now):
                self._on(Trigger.READER_GONE, readers.describe())
                return LOOK_FOR_READER
        else:
            readers.forget()  # nobody can come back while nothing is handed out
        return readers.every

    # ---- what happens, as triggers ----

    def _handle(self, event: Any) -> None:
        match event:
            case Answered():
                self._answered(event)
            case HeartbeatFailed(who, error):
                self._heartbeat_failed(who, error)
            case StopRequested():
                self._stopping = event
                # nobody's commit is taken before the leader has decided, and the last one is to come: decide before it
                self._stop_at = monotonic() + (LEAVE_WITHIN if self._state is State.LEADING else 0.0)
            case SeekRequested():
                self._seek(event)
            case SubscriptionChanged():
                self._subscribe(event)
            case StartsFound(starts):
                self._shares.holdings.starts_found(starts)
            case StartResolved(position, offset):
                self._shares.holdings.start_resolved(position, offset)
            case StartStored(position, offset, stored):
                self._start_stored(position, offset, stored)

    def _answered(self, event: Answered) -> None:
        if event.ticket == self._looking:
            self._looking = 0
            self._looked(event)
        elif event.ticket == self._leaving:
            self._leaving = 0
            self._on(Trigger.LEFT)
        elif event.ticket == self._ticket:
            self._ticket = 0
            try:
                trigger = self._meaning(event)
            except ZkConsumerError as e:
                self._failed(e)
            else:
                self._on(trigger)

    def _meaning(self, event: Answered) -> Trigger:
        """What the answer to our question means. Raises: whatever went wrong."""
        if event.error is not None:
            raise event.error if isinstance(event.error, ZkConsumerError) else ZkConsumerError(repr(event.error))
        match event.answer:
            case Found(coordinator, topics):
                self._where = coordinator
                if topics is not None:
                    self._interest.saw(None, topics.partitions, topics.unsure)
                if self._heartbeats.beating:
                    self._beat()  # at its new place
                return Trigger.COORDINATOR_FOUND
            case Joined():
                leads = self._generation.joined(event.answer)
                self._beat()  # the coordinator's clock runs from here on
                return Trigger.CHOSEN if leads else Trigger.JOINED
            case TopicsSeen(partitions, unsure):
                self._interest.saw(self._generation.group_topics, partitions, unsure)
                return Trigger.TOPICS_KNOWN
            case Synced(assignment, sent_at):
                self._share = self._generation.adopt(assignment)
                self._lease.renew(sent_at, self._settings.session)
                return Trigger.SYNCED
            case answer:
                raise ZkConsumerError(f"an answer that nobody asked for: {answer!r}")

    def _failed(self, error: ZkConsumerError) -> None:
        if isinstance(error, MemberIdRequiredError):
            self._generation.named(error.member_id)
        self._error = error
        trigger = trigger_of(error)
        if trigger in _LOST:
            self._thrown_out += 1
            if self._thrown_out > AT_ONCE:
                self._on(Trigger.NOT_NOW, str(error))
        self._on(trigger, str(error))

    def _heartbeat_failed(self, who: Membership, error: Exception) -> None:
        """A heartbeat or a commit told something, or nobody answered it."""
        if who != self._generation.who:
            return  # of a former life
        trigger = trigger_of(error)
        if trigger is Trigger.OUTDATED and self._state in ASKING:
            return  # the group is complete, with us in it: the answer to our join is on its way
        if trigger is Trigger.FORGOTTEN and self._state in ASKING:
            self._lease.suspend()  # that answer will say so too; until then hand out nothing
        elif trigger is Trigger.TAKEN_OVER or self._state is State.STABLE:
            self._error = error
            self._on(trigger, str(error))
        elif trigger in _LOST or (trigger is Trigger.COORDINATOR_LOST and self._state in ASKING):
            self._on(trigger, str(error))

    def _looked(self, event: Answered) -> None:
        """Topics were looked at: does the group have to decide anew?"""
        if isinstance(event.answer, TopicsSeen):
            self._interest.saw(self._looked_for, event.answer.partitions, event.answer.unsure)
        self._plan_look()
        cause = self._interest.cause()
        if cause is not None and self._state is State.STABLE:
            self._on(cause, cause.value)

    def _plan_look(self) -> None:
        every = self._settings.interval
        self._look_at = monotonic() + (min(every, LOOK_FOR_MISSING) if self._interest.incomplete else every)

    def _subscribe(self, event: SubscriptionChanged) -> None:
        if any(change.leaving for change in self._changes):
            self._later.append(event)  # it may want again what is leaving, whose streams must end before that
            return
        self._changes.append(event)
        self._interest.subscribe(event.registration())
        self._on(Trigger.UNSUBSCRIBED if self._interest.empty else Trigger.SUBSCRIPTION_CHANGED, "another subscription")
        if self._state is State.UNJOINED:
            self._apply(list(self._changes))

    def _start_stored(self, position: PartitionPosition, offset: int, stored: bool) -> None:
        if not self._shares.holdings.start_stored(position, offset, stored) and position.committed is not None:
            position.begin(position.committed)  # the user has committed another one meanwhile: that is where to start
            self._delivery.wake()

    def _seek(self, request: SeekRequested) -> None:
        strange = {tp for tp, offset in request.offsets.items() if not self._shares.holdings.seek(tp, offset)}
        request.done.set_result(frozenset(strange))

    # ---- the table ----

    def _on(self, trigger: Trigger, reason: str = "") -> None:
        """Something happened: do what the table says, and what follows from that."""
        before = self._state
        self._state, effects = transition(before, trigger)
        if effects:
            log.debug("%s: %s -> %s: %s", trigger.value, before.value, self._state.value, reason)
        if before is State.STABLE and self._state is State.JOINING:
            self._began = monotonic()
            log.info("rebalancing: %s", reason or trigger.value)
        self._cause = trigger
        if self._state not in (State.BACKING_OFF, State.SEARCHING) or trigger is Trigger.RETRY_DUE:
            self._retry_at = NEVER
        for effect in effects:
            self._perform[effect](reason)
        if self._state is State.CLOSED:
            self._leave_by = NEVER
        elif self._state is State.STABLE and self._again is not None:
            again, self._again = self._again, None
            self._on(again, again.value)

    def _effects(self) -> Mapping[Effect, Callable[[str], object]]:
        """How each effect is performed; told the reason."""
        return {
            Effect.FIND: lambda _: self._find(),
            Effect.GIVE_UP: lambda _: self._shares.give_up(self._not_to_hold()),
            Effect.JOIN: lambda _: self._join(),
            Effect.ASK_TOPICS: lambda _: self._ask(self._line.topics(self._generation.group_topics)),
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

    def _ask(self, ticket: int) -> None:
        self._ticket, self._looking = ticket, 0

    def _find(self) -> None:
        self._ask(self._line.find(None, look=self._interest.wildcard))

    def _not_to_hold(self) -> list[TopicPartition]:
        """What must be given up before a join."""
        if not self._generation.incremental:
            return list(self._shares.owned)
        return [tp for tp in self._shares.owned if tp.topic not in self._interest.streams]

    def _join(self) -> None:
        settings = self._settings
        self._again, self._offered = None, list(self._changes)
        protocols = self._generation.offer(self._shares.owned)
        self._ask(
            self._line.join(
                self._generation.who,
                protocols,
                session=settings.session,
                rebalance=settings.max_poll,
                limit=max(settings.max_poll, OTHERS_MAY_TAKE) + settings.request_timeout,
            )
        )

    def _sync(self) -> None:
        limit = max(self._settings.max_poll, OTHERS_MAY_TAKE)
        try:
            assignments = self._generation.decide()
        except Exception as e:  # a plug-in raises whatever it likes
            log.exception("the strategy %s failed", self._generation.chosen)
            self._error = e
            self._postponed.append(Answered(self._line.cancel(), error=ZkConsumerError(f"the strategy failed: {e}")))
            self._ticket = self._postponed[-1].ticket
            return
        self._ask(self._line.sync(self._generation.who, self._generation.chosen, assignments, limit=limit))

    def _beat(self) -> None:
        assert self._where is not None
        self._beating_since = monotonic()
        self._heartbeats.beat(self._generation.who, self._where)

    def _found_again(self) -> None:
        """The coordinator answers again, and knows us: nothing is wrong any more."""
        self._all_is_well()
        self._beat()

    def _adopt(self) -> None:
        shares, wanted = self._shares, streams_of(self._share, self._interest.streams, self._shares.streams)
        self._lease.resume(self._lease.epoch)
        before = shares.streams
        going = [tp for tp, number in before.items() if wanted.get(tp) != number]
        shares.take({tp: number for tp, number in wanted.items() if tp not in before})
        shares.give_up(going)
        shares.take({tp: wanted[tp] for tp in going if tp in wanted})
        if self._generation.incremental and not wanted.keys() >= set(going):
            self._again = self._again or Trigger.GAVE_UP
        self._settled()

    def _settled(self) -> None:
        """The group has decided, and we have what is ours."""
        self._all_is_well()
        self._rebalances += 1
        self._thrown_out = 0
        took = monotonic() - self._began
        self._rebalanced(took)
        log.info("owning %d partitions, after %.2f s", len(self._shares.owned), took)
        self._readers.forget()
        self._plan_look()
        self._apply(self._offered)
        if not self.first_round.done():
            self.first_round.set_result(None)

    def _all_is_well(self) -> None:
        self._failures, self._detail = 0, ""
        if self._surfaced:
            self._surfaced = False
            self._delivery.refuse(None)

    def _apply(self, changes: Sequence[SubscriptionChanged]) -> None:
        self._changes = [change for change in self._changes if change not in changes]
        for change in changes:
            change.applied()
            change.done.set_result(None)
        if not self._changes:
            self._postponed += self._later
            self._later = []

    def _remember(self) -> None:
        self._again = self._cause

    def _back_off(self, trouble: str) -> None:
        self._line.cancel()
        self._ticket = self._looking = 0
        settings = self._settings
        self._failures += 1
        longest = max(settings.backoff_max, REFUSED_MOST if self._cause is Trigger.REFUSED else 0.0)
        pause = min(settings.backoff * 2.0 ** min(self._failures - 1, 16), longest) * random.uniform(0.8, 1.2)
        self._retry_at = monotonic() + pause
        level = logging.DEBUG if trouble == self._detail and self._failures > 1 else logging.WARNING
        log.log(level, "no way into the group (attempt %d), next try in %.1f s: %s", self._failures, pause, trouble)
        self._detail = trouble

    def _lose(self, why: str) -> None:
        self._heartbeats.pause()
        self._lease.void()
        self._shares.lose(why)
        self._generation.lives += 1

    def _surface(self, trouble: str) -> None:
        """Nothing that we could do helps: whoever waits to join hears of it, and whoever reads, if nothing flows."""
        error = self._error or ZkConsumerError(trouble)
        self._detail = trouble
        if not self.first_round.done():
            self.first_round.set_exception(error)
        if not self._lease.valid:
            self._surfaced = True
            self._delivery.refuse(error)

    def _abandon(self, trouble: str) -> None:
        log.warning("leaving the group: %s", trouble)
        self._detail = f"outside the group: {trouble}"
        self._shares.abandon()

    # ---- the end ----

    def _leave(self) -> None:
        self._heartbeats.pause()
        self._lease.void()
        who = self._generation.who
        self._ticket = self._looking = 0
        unwanted = self._settings.static_leaves and self._cause is Trigger.UNSUBSCRIBED
        if who.member_id and (who.instance_id is None or unwanted):
            self._leaving = self._line.leave(who, limit=LEAVE_WITHIN)
        else:  # nobody knows us, or what is ours is to be kept for us
            self._leaving = self._line.cancel()
            self._postponed.append(Answered(self._leaving))
        if self._state is State.LEAVING:
            self._leave_by = monotonic() + 2 * LEAVE_WITHIN

    def _let_go(self) -> None:
        """Finish, each step bounded; go on with the next where one fails."""
        assert self._stopping is not None
        request, self._postponed = self._stopping, [*self._postponed, self._stopping]  # hurries the listener
        self._shares.let_go(request)
        self._postponed = [event for event in self._postponed if event is not request]
        closed = ConnectorClosedException("the connector was shut down")
        for change in (*self._changes, *self._later):
            change.done.set_exception(closed)
        for event in self._postponed:
            if isinstance(event, SeekRequested | SubscriptionChanged):
                event.done.set_exception(closed)
        self._postponed, self._changes, self._later = [], [], []
        if not self.first_round.done():
            self.first_round.set_exception(ConnectorClosedException("the connector was shut down while it joined"))

    # ---- while others are waited for ----

    def _serve(self, seconds: float) -> bool:
        """While the listener is waited for: do what it may ask of us, and let everything else wait its turn."""
        try:
            event = self._events.get(timeout=seconds)
        except Empty:
            pass
        else:
            if isinstance(event, SeekRequested):
                self._seek(event)
            elif not isinstance(event, ListenerReturned):
                self._postponed.append(event)
        return any(isinstance(event, StopRequested) for event in self._postponed)

    def _held_by_who_asked(self, position: PartitionPosition) -> bool:
        """Whether the thread that unsubscribes from this topic reads it: it waits for us, so its message counts as
        finished.
        """
        return any(
            position.topic in change.leaving and self._delivery.held_by(position, change.holder)
            for change in self._changes
        )
