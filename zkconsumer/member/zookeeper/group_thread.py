"""The group's thread: it alone decides and does whatever concerns registration and ownership.

Everything that happens arrives as an event on one queue, or is a timer; each is a trigger of the table in
``member.zookeeper.state_machine``, which says what to do. A change makes a round due after a short quiet time, so
that a burst costs one round. A round that fails is repeated, with growing pauses and for ever: never a registered
member that has stopped trying, which is what the original becomes after its last attempt.

Threads: :meth:`Rebalancer.step` is the thread's; other threads only put events and read :attr:`Rebalancer.state`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from time import monotonic

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConnectorClosedException, OffsetCommitError, RegistryError
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.events import (
    CommitsRefused,
    Event,
    ListenerReturned,
    LookAgain,
    NodeChanged,
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
from zkconsumer.member.listener import Listening, by_topic
from zkconsumer.member.offset_conflicts import Conflicts, Gone
from zkconsumer.member.owned_partitions import Delivery, Holdings, Offsets
from zkconsumer.member.position_changes import Repositioning
from zkconsumer.member.subscription_changes import Changes
from zkconsumer.member.zookeeper.group_warnings import Reports
from zkconsumer.member.zookeeper.node_triggers import Meanings
from zkconsumer.member.zookeeper.orphaned_partitions import Unowned
from zkconsumer.member.zookeeper.owner_nodes import Ownership
from zkconsumer.member.zookeeper.planner import Assign
from zkconsumer.member.zookeeper.rebalance_round import RebalanceSettings, Round, Rounds, names
from zkconsumer.member.zookeeper.registration import Membership
from zkconsumer.member.zookeeper.round_schedule import Schedule
from zkconsumer.member.zookeeper.round_status import Progress
from zkconsumer.member.zookeeper.session_monitor import Contact
from zkconsumer.member.zookeeper.state_machine import CONNECTED, DISCONNECTED, Effect, State, Trigger, transition
from zkconsumer.member.zookeeper.status import Standing
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.session import Session, SessionChanged

__all__ = ["RebalanceSettings", "Rebalancer"]

log = logging.getLogger(__name__)

NEVER = float("inf")
LONGEST_WAIT = 60.0


class Rebalancer:
    """One member's part in its group.

    Arguments: ``assign`` is the strategy; ``reports`` looks at each view of the group; ``listening`` calls the
    application's listener; ``rebalanced`` is told the seconds that each round took.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        group: str,
        settings: RebalanceSettings,
        *,
        events: SimpleQueue[Event],
        session: Session,
        cache: NodeCache,
        membership: Membership,
        delivery: Delivery,
        offsets: Offsets,
        assign: Assign,
        reports: Reports | None = None,
        listening: Listening | None = None,
        rebalanced: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._rebalanced = rebalanced
        self._group = group
        self._settings = settings
        self._inbox = Inbox(events)
        self._session = session
        self._cache = cache
        self._membership = membership
        self._changes = Changes(delivery)
        self._offsets = offsets
        self._ownership = Ownership(session, cache, group, reads_offsets=offsets.reads_nodes)
        self._holdings = Holdings(delivery, offsets, self._ownership, events.put)
        self._meanings = Meanings(group, self._holdings.owned)
        self._conflicts = Conflicts(settings.conflict, self._holdings, self._ownership)
        self._repositioning = Repositioning(
            self._holdings,
            self._conflicts,
            offsets,
            limit=settings.request_timeout,
            demand=lambda reason: self._on(Trigger.DEMANDED, reason),
            gone=self._found_gone,
        )
        self._unowned = Unowned(session, membership, group, settings.patience)
        self._listening = listening or Listening()
        self._rounds = Rounds(
            consumer,
            settings,
            session=session,
            membership=membership,
            ownership=self._ownership,
            holdings=self._holdings,
            delivery=delivery,
            offsets=offsets,
            assign=assign,
            reports=reports or Reports(),
            listening=self._listening,
            serve=self._serve,
            held_by_who_asked=self._changes.held_by_who_asked,
            newer=lambda: self._inbox.newer(self._meanings.matters_to_a_round),
            stopping=lambda: first_stop(self._inbox.all_of(StopRequested)),
        )
        self._progress = Progress(group, consumer)
        self._state = State.JOINING
        self._contact = Contact(session)
        self._schedule = Schedule(settings)
        self._perform = self._effects()
        self._started = 0.0
        self._next_touch = 0.0
        self._next_reconcile = NEVER
        self._stopping: StopRequested | None = None
        self._standing = Standing(self._holdings.owned)
        self.first_round: Future[None] = self._standing.first_round
        self._thread = Thread(target=self._run, name=f"{consumer}_watcher_executor", daemon=True)

    # ---- for other threads ----

    @property
    def state(self) -> ConnectorState:
        """Where the member stands."""
        return self._standing.state.beside(self._conflicts.trouble)

    def start(self) -> None:
        """Start the thread; the first round begins at once."""
        self.begin()
        self._thread.start()

    def begin(self) -> None:
        """Make the first round due (:meth:`start` without the thread, for who steps it himself)."""
        self._contact.begin()
        self._started = monotonic()
        self._schedule.now("joining")

    def join(self, deadline: Deadline) -> bool:
        """Wait for the thread's end after a :class:`StopRequested`; returns whether it ended."""
        if self._thread.is_alive():
            self._thread.join(deadline.remaining())
        return not self._thread.is_alive()

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""
        return dict(self._holdings.owned)

    @property
    def left(self) -> Sequence[PartitionPosition]:
        """What was owned when the member left; empty before that."""
        return self._rounds.left

    # ---- the thread ----

    def _run(self) -> None:
        while self._state is not State.CLOSED:
            try:
                self.step()
            except Exception as e:
                log.exception("the rebalancer failed unexpectedly and tries again")
                if self._state not in DISCONNECTED:
                    self._state = State.REBALANCING
                    self._failed(e, f"{type(e).__name__}: {e}")

    def step(self, longest: float = LONGEST_WAIT) -> None:
        """Wait for the next event or timer, at most ``longest`` seconds, and deal with it."""
        events = self._inbox.gather(min(longest, max(0.0, self._next_timer() - monotonic())))
        try:
            while events:
                self._handle(events.popleft())
        finally:
            self._inbox.put_back(events)  # an error in one is not to lose the others
        if self._stopping is not None:
            self._on(Trigger.STOPPED)
            return
        self._touch()
        if self._contact.gives_up():
            self._on(Trigger.SILENT, "nothing was answered")
        now = monotonic()
        if self._state in DISCONNECTED:
            if self._state is State.SUSPENDED and now >= self._session.lease.ends_at:
                self._on(Trigger.LEASE_ENDED, "the session's lease ended without contact to ZooKeeper")
            if now >= self._contact.next_look:
                self._contact.looked()
                self._on(Trigger.STUCK)
        if now >= self._next_reconcile:
            self._next_reconcile = self._after_interval()  # whatever becomes of it: a timer in the past spins
            self._on(Trigger.RECONCILE_DUE, "reconciliation")
            if self._state in DISCONNECTED and self._session.connected:
                # should its event ever be lost
                self._session_changed(self._contact.lost_event())
        if self._may_begin and now >= self._unowned.next_look:
            self._unowned.try_look(self._asides)
        if self._may_begin and now >= self._schedule.due:
            self._on(Trigger.ROUND_DUE)

    def _after_interval(self) -> float:
        # spread: members that started together would all ask at the same moment for ever
        return monotonic() + self._settings.interval * random.uniform(0.9, 1.0)

    @property
    def _may_begin(self) -> bool:
        return self._state in CONNECTED and self._session.connected

    def _touch(self) -> None:
        """Renew the lease from time to time."""
        now = monotonic()
        if now >= self._next_touch:
            self._next_touch = now + self._session.timeout / 6
            self._session.touch()

    def _next_timer(self) -> float:
        timers = [self._next_touch, self._next_reconcile]
        if self._may_begin:
            timers += [self._schedule.due, self._unowned.next_look]
        elif self._state in DISCONNECTED:
            timers.append(self._contact.next_look)
            if self._state is State.SUSPENDED:
                timers.append(self._session.lease.ends_at)
        return min(timers)

    # ---- what happens, as triggers ----

    def _handle(self, event: Event) -> None:
        match event:
            case StopRequested():
                self._stopping = first_stop([self._stopping or event, event])
            case NodeChanged(path):
                meaning = self._meanings.of(path)
                if meaning is not None:
                    self._on(meaning, f"{path} changed")
            case LookAgain(reason):
                self._on(Trigger.DEMANDED, reason)
            case SessionChanged():
                self._session_changed(event)
            case (
                StartsFound() | StartsResolved() | StartsStored() | CommitsRefused() | OffsetsMoved() | SeekRequested()
            ):
                self._repositioning.handle(event)
            case SubscriptionChanged():
                if self._changes.ask(event):
                    self._membership.subscribe(event.registration)
                    self._on(Trigger.DEMANDED, "subscribing to other topics")

    def _session_changed(self, event: SessionChanged) -> None:
        meaning = self._contact.changed(event)
        if meaning is None:
            return
        trigger, reason = meaning
        if trigger in (Trigger.RECONNECTED, Trigger.NEW_SESSION):
            self._next_touch = 0.0
            self._schedule.failures = 0
            self._schedule.not_before = self._contact.register_from
        self._on(trigger, reason)

    def _found_gone(self, gone: Gone) -> None:
        why = ", ".join(sorted({*gone.values()}))
        self._lose(list(gone), why)
        self._cache.refresh()
        self._on(Trigger.DEMANDED, why)

    # ---- the table ----

    def _on(self, trigger: Trigger, reason: str = "") -> None:
        """Something happened: do what the table says."""
        self._state, effects = transition(self._state, trigger)
        for effect in effects:
            self._perform[effect](reason)
        if self._state in _SHOWN and self.state.phase is not _SHOWN[self._state]:
            self._standing.show(_SHOWN[self._state])

    def _effects(self) -> Mapping[Effect, Callable[[str], object]]:
        """How each effect is performed; told the reason."""
        return {
            Effect.COMMIT: lambda _: self._offsets.hurry(),
            Effect.WAIT_QUIET: self._schedule.after_quiet,
            Effect.WAIT_BRIEFLY: self._schedule.briefly,
            Effect.BEGIN_NOW: self._schedule.now,
            Effect.PERFORM_ROUND: lambda _: self._round(),
            Effect.BACK_OFF: self._back_off,
            Effect.LOOK_AGAIN: lambda _: self._schedule.later("another look at other owners"),
            Effect.FORGET_VIEW: lambda _: self._cache.refresh(),
            Effect.DOUBT_VIEW: lambda _: self._membership.doubt(),
            Effect.DROP_ALL: self._drop_all,
            Effect.RESUME_LEASE: lambda _: self._session.lease.resume(self._contact.epoch),
            Effect.REPORT_UNOWNED: lambda _: self._reconcile(),
            Effect.REPLACE_CLIENT: lambda _: self._session.look_for_replacement(),
            Effect.ABANDON_SESSION: lambda _: self._session.abandon(),
            Effect.SHUT_DOWN: lambda _: self._shut_down(),
        }

    def _drop_all(self, why: str) -> None:
        self._lose(list(self._holdings.owned.values()), why)
        self._unowned.forget()

    def _back_off(self, trouble: str) -> None:
        pause = self._schedule.back_off()
        self._standing.backs_off(trouble, self._schedule.failures, pause)

    # ---- rounds ----

    def _round(self) -> None:
        why = self._schedule.begin()
        try:
            done = self._rounds.perform(self._lose)
        except (RegistryError, OffsetCommitError) as e:
            self._failed(e, str(e))
            return
        finally:
            self._unowned.gave(self._rounds.take_released())
        if done is None:
            self._on(Trigger.ROUND_REGISTERED, why)
            return
        if done.superseded:
            self._on(Trigger.ROUND_SUPERSEDED, why)
            return
        self._schedule.failures = 0
        self._contact.answered()
        if self._next_reconcile == NEVER:  # once: where rounds are frequent each would put it off
            self._next_reconcile = self._after_interval()
        self._conclude(done, why)
        if done.freed:
            self._inbox.postpone(LookAgain(f"{names(done.freed)} released meanwhile"))
        # they are events again: the table knows no others while a round is performed
        self._inbox.postpone(*self._changes.apply())
        self._rebalanced(done.seconds)
        self._repositioning.retry()
        self._on(Trigger.ROUND_BLOCKED if done.claimed.blocked else Trigger.ROUND_SETTLED)

    def _failed(self, error: Exception, trouble: str) -> None:
        self._standing.round_failed(error, connected=self._session.connected)
        self._on(Trigger.ROUND_FAILED, trouble)

    def _conclude(self, done: Round, why: str) -> None:
        self._unowned.concluded(done.todo.assignment, self._holdings.owned, done.view)
        troubles = (done.trouble, self._rounds.recreated.trouble, self._listening.trouble, self._unowned.report())
        self._standing.state = self._progress.concluded(
            done, self._standing.state, len(self._holdings.owned), "; ".join(filter(None, troubles)), why
        )
        self._meanings.wait_for({*done.claimed.blocked, *done.view.kept})
        waits = done.claimed.blocked.keys() - done.claimed.refused.keys()
        patient = waits and monotonic() < self._started + self._settings.backoff_max
        if not self.first_round.done() and not patient:
            self.first_round.set_result(None)

    def _serve(self, seconds: float) -> bool:
        """While the listener or a message in hand is waited for: do what may be asked of us there, and let everything
        else wait its turn.
        """
        self._touch()
        event = self._inbox.wait(seconds)
        while event is not None:
            if isinstance(event, SeekRequested):
                self._repositioning.seek(event)
            elif not isinstance(event, ListenerReturned):
                self._inbox.postpone(self._changes.unless_awaited(event, self._holdings.owned.values()))
            event = self._inbox.wait(0.0)
        return self._inbox.holds(StopRequested)

    def _reconcile(self) -> None:
        self._offsets.check()
        self._unowned.try_reconcile(self._asides)

    @property
    def _asides(self) -> float:
        """Seconds for a look that nothing depends on: it is not to keep us from seeing that nothing is answered."""
        return min(self._settings.request_timeout, self._session.timeout / 2)

    def _lose(self, positions: Sequence[PartitionPosition], why: str) -> None:
        """What is no longer ours: hand out and commit nothing of it."""
        if not positions:
            return
        self._holdings.lose(positions)
        log.warning("lost %s: %s", names(p.tp for p in positions), why)
        self._listening.tell("on_partitions_lost", by_topic(p.tp for p in positions))

    # ---- the end ----

    def _shut_down(self) -> None:
        """Finish: let go of everything in order, each step bounded, and go on with the next where one fails."""
        request = self._stopping
        assert request is not None
        self._standing.closed()
        self._inbox.postpone(request)  # hurries the listener
        steps: tuple[Callable[[], None], ...] = (
            lambda: self._rounds.let_go(request),
            self._fail_requests,
            lambda: self._rounds.leave(request),
        )
        for step in steps:
            try:
                step()
            except Exception:  # tried again for ever it would keep the thread, and what it holds, alive
                log.exception("a step of leaving the group failed unexpectedly; going on with the next")

    def _fail_requests(self) -> None:
        """Nobody shall wait for an answer that does not come."""
        closed = ConnectorClosedException("the connector was shut down")
        self._changes.fail(closed)
        for event in self._inbox.drain():
            if isinstance(event, SeekRequested | SubscriptionChanged):
                event.done.set_exception(closed)


_SHOWN = {
    State.SUSPENDED: Phase.SUSPENDED,
    State.CUT_OFF: Phase.SUSPENDED,
    State.EXPIRED: Phase.REJOINING,
    State.CLOSED: Phase.CLOSED,
}
