"""The coordinator of a member in ZooKeeper: turns events and timers into triggers, and performs their effects.

Each event and each timer is a trigger of the table in ``state_machine``, which says what to do. A change makes a round
due after a short quiet time, so that a burst costs one round. A failed round is repeated with growing pauses, for ever.
The original stays registered and does nothing after its last attempt. :class:`RoundSchedule` says when a round is due.

Called by the group thread; other threads read :attr:`Rebalancer.state` and :attr:`Rebalancer.first_round`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from time import monotonic

from zkconsumer.core.names import first_of
from zkconsumer.errors import OffsetCommitError, RegistryError
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.events import (
    Event,
    ListenerReturned,
    LookAgain,
    NodeChanged,
    StopRequested,
    SubscriptionChanged,
    first_stop,
)
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.offset_conflicts import OffsetConflicts, RoundNeeded
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.zookeeper.orphaned_partitions import OrphanedPartitions
from zkconsumer.member.zookeeper.rebalance_round import RebalanceRounds, RebalanceSettings, Round
from zkconsumer.member.zookeeper.session_monitor import SessionMonitor
from zkconsumer.member.zookeeper.state_machine import CONNECTED, DISCONNECTED, TABLE, Effect, State, Trigger
from zkconsumer.member.zookeeper.status import Status
from zkconsumer.runtime.deadline import backoff
from zkconsumer.zookeeper.session import SessionChanged

log = logging.getLogger(__name__)

NEVER = float("inf")
REASONS_KEPT = 4
OWNER_QUIET = 0.005
"""Seconds of quiet after an owner node changed. Members release all partitions of a round in one transaction."""


class RoundSchedule:
    """The times of the next round and reconciliation (monotonic seconds, :data:`NEVER`: none), and the reasons."""

    def __init__(self, settings: RebalanceSettings) -> None:
        self._settings = settings
        self._reasons: list[str] = []
        self._first_event = NEVER
        self.due = NEVER
        self.failures = 0
        self.not_before = 0.0
        """No requested round begins before this; a repeated one may."""
        self.reconcile_at = NEVER

    def reconcile_later(self) -> None:
        """Make the next reconciliation due after one interval."""
        # spread: members that started together would all ask at the same moment for ever
        self.reconcile_at = monotonic() + self._settings.interval * random.uniform(0.9, 1.0)

    def begin(self) -> str:
        """Begin a round. Returns the reasons for it, in words."""
        why = ", ".join(self._reasons[:3]) + (" and more" if len(self._reasons) > 3 else "")
        self._reasons.clear()
        self.due = self._first_event = NEVER
        return why

    def now(self, reason: str) -> None:
        """Make a round due at once."""
        self._want(reason, 0.0)

    def after_quiet(self, reason: str) -> None:
        """Make a round due after the quiet time; further events within it join that round.

        Members that see the same event do not all begin at the same moment.
        """
        self._want(reason, self._settings.quiet * random.uniform(0.5, 1.0))

    def briefly(self, reason: str) -> None:
        """Make a round due after a few milliseconds, so that all events of a transaction arrive first."""
        self._want(reason, min(OWNER_QUIET, self._settings.quiet))

    def later(self, reason: str) -> None:
        """Make a round due for a change that no watch tells."""
        self._note(reason)
        self.due = monotonic() + self._settings.backoff_max * random.uniform(0.5, 1.0)

    def not_later(self, moment: float, reason: str) -> None:
        """Make a round due at this moment, if none is due before it."""
        if moment < self.due:
            self._note(reason)
            self.due = moment

    def back_off(self) -> float:
        """Make a failed round due again. Returns the seconds until then, which grow with each failure up to a limit."""
        self.failures += 1
        pause = backoff(self.failures, self._settings.backoff, self._settings.backoff_max) * random.uniform(0.5, 1.0)
        self._note("retry")
        self.due = monotonic() + pause
        return pause

    def _want(self, reason: str, pause: float) -> None:
        self._note(reason)
        now = monotonic()
        self._first_event = min(self._first_event, now)
        # not put off for ever by a stream of events
        self.due = max(self.not_before, min(now + pause, self._first_event + 4 * self._settings.quiet))

    def _note(self, reason: str) -> None:
        if len(self._reasons) < REASONS_KEPT and reason not in self._reasons:
            self._reasons.append(reason)


class Rebalancer:
    """The coordinator of a group in ZooKeeper, as one member runs it."""

    waits_in_handlers = False  # it drains in a round, which a timer begins
    needs_lease = True  # the session is needed even to own nothing

    def __init__(
        self,
        settings: RebalanceSettings,
        *,
        inbox: Inbox,
        owned: OwnedPartitions,
        conflicts: OffsetConflicts,
        monitor: SessionMonitor,
        rounds: RebalanceRounds,
        orphaned: OrphanedPartitions,
        status: Status,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._owned = owned
        self.conflicts = conflicts
        self.monitor = monitor
        self.rounds = rounds
        self.orphaned = orphaned
        self._status = status
        self.schedule = RoundSchedule(settings)
        """When the next round and the next reconciliation are due."""
        self.phase = State.JOINING
        """The state by the table."""
        self._perform = self._effects()
        self._started = 0.0
        self._stopping: StopRequested | None = None
        self.sessions_lost = 0
        self._confirming = False
        """Whether the round that is due or under way only confirms a settled state (reconciliation)."""

    @property
    def state(self) -> ConnectorState:
        """The member's state, for the user. Any thread."""
        return self._status.state.beside(self.conflicts.trouble)

    @property
    def unsettled(self) -> str:
        """Why the member may not own its share, in words; empty if it does. Any thread; takes no lock."""
        phase, shown = self.phase, self._status.state
        if phase is State.SETTLED or (self._confirming and phase in (State.CHANGED, State.REBALANCING)):
            return ""
        if phase is State.WAITING and shown.blocked:
            return f"waiting for {first_of([f'{tp}, held by {owner}' for tp, owner in shown.blocked.items()], 3)}"
        return "; ".join(filter(None, (_UNSETTLED.get(phase, phase.value), shown.detail)))

    @property
    def first_round(self) -> Future[None]:
        """Done when the member has what it may have; failed with an error that no waiting cures. Any thread."""
        return self._status.first_round

    @property
    def closed(self) -> bool:
        """Whether the member has left for good."""
        return self.phase is State.CLOSED

    def begin(self) -> None:
        """Make the first round due."""
        self.monitor.begin()
        self._started = monotonic()
        self.schedule.now("joining")

    def step_failed(self, error: Exception) -> None:
        """Try a round again after an unexpected error."""
        if self.phase not in DISCONNECTED:
            self.phase = State.REBALANCING
            self._failed(error, f"{type(error).__name__}: {error}")

    # ---- timers ----

    def due(self) -> float:
        """Return when the next timer is due (monotonic seconds)."""
        timers = [self.monitor.next_touch, self.schedule.reconcile_at]
        if self._may_begin:
            timers += [self.schedule.due, self.orphaned.next_look]
        elif self.phase in DISCONNECTED:
            timers.append(self.monitor.next_look)
            if self.phase is State.SUSPENDED:
                timers.append(self.monitor.lease_ends_at)
        return min(timers)

    def run_timers(self) -> None:
        """Run the timers that are due."""
        if self._stopping is not None:
            self._on(Trigger.STOPPED)
            return
        self.monitor.touch()
        if self.monitor.gives_up():
            self._on(Trigger.SILENT, "nothing was answered")
        now = monotonic()
        if self.phase in DISCONNECTED:
            if self.phase is State.SUSPENDED and now >= self.monitor.lease_ends_at:
                self._on(Trigger.LEASE_ENDED, "the session's lease ended without contact to ZooKeeper")
            if now >= self.monitor.next_look:
                self.monitor.looked()
                self._on(Trigger.STUCK)
        if now >= self.schedule.reconcile_at:
            self.schedule.reconcile_later()  # before it is done, whatever becomes of it: a timer in the past spins
            self._on(Trigger.RECONCILE_DUE, "reconciliation")
            if self.phase in DISCONNECTED and self.monitor.session.connected:
                self._session_changed(self.monitor.lost_event())  # in case its event was lost
        if self._may_begin and now >= self.orphaned.next_look:
            self.orphaned.try_look(self._limit_of_looks)
        if self._may_begin and now >= self.schedule.due:
            self._on(Trigger.ROUND_DUE)

    @property
    def _may_begin(self) -> bool:
        return self.phase in CONNECTED and self.monitor.session.connected

    @property
    def _limit_of_looks(self) -> float:
        """Seconds for a look that nothing depends on. It must not keep us from seeing that nothing is answered."""
        return min(self._settings.request_timeout, self.monitor.session.timeout / 2)

    # ---- events, as triggers ----

    def handle(self, event: Event) -> None:
        """Deal with one event."""
        match event:
            case StopRequested():
                self._stopping = first_stop([self._stopping or event, event])
            case NodeChanged(path):
                if path == self.rounds.registration.path:
                    # an operator's tool writes it again after a reset; otherwise we would notice only at the next look
                    self._owned.commits.check()
                trigger = self.rounds.triggers.of(path)
                if trigger is not None:
                    self._on(trigger, f"{path} changed")
            case LookAgain(reason):
                self._on(Trigger.DEMANDED, reason)
            case SessionChanged():
                self._session_changed(event)
            case SubscriptionChanged():
                self._inbox.changes.ask(event)
                self._on(Trigger.DEMANDED, _SUBSCRIBING)
            case ListenerReturned():
                pass
            case _:
                self._follow(self.conflicts.handle(event))

    def _session_changed(self, event: SessionChanged) -> None:
        change = self.monitor.changed(event)
        if change is None:
            return
        trigger, reason = change
        if trigger in (Trigger.RECONNECTED, Trigger.NEW_SESSION):
            self.schedule.failures = 0
            self.schedule.not_before = self.monitor.register_from
        self._on(trigger, reason)

    def _follow(self, needed: RoundNeeded | None) -> None:
        if needed is None:
            return
        if needed.gone:
            self.rounds.lose(needed.gone, needed.reason)
            self.rounds.forget_view()
        self._on(Trigger.DEMANDED, needed.reason)

    # ---- the table ----

    def _on(self, trigger: Trigger, reason: str = "") -> None:
        """Do what the table says about a trigger."""
        before, (self.phase, effects) = self.phase, TABLE.next(self.phase, trigger)
        if before is not State.EXPIRED and (self.phase is State.EXPIRED or trigger is Trigger.NEW_SESSION):
            self.sessions_lost += 1
        if trigger is Trigger.RECONCILE_DUE:
            self._confirming = before is State.SETTLED
        elif trigger is not Trigger.ROUND_DUE:
            self._confirming = False
        for effect in effects:
            self._perform[effect](reason)
        if self.phase in _SHOWN and self._status.state.phase is not _SHOWN[self.phase]:
            self._status.show(_SHOWN[self.phase])

    def _effects(self) -> Mapping[Effect, Callable[[str], object]]:
        """Return how each effect is performed; each is told the reason."""
        return {
            Effect.COMMIT: lambda _: self._owned.commits.hurry(),
            Effect.WAIT_QUIET: self.schedule.after_quiet,
            Effect.WAIT_BRIEFLY: self.schedule.briefly,
            Effect.BEGIN_NOW: self.schedule.now,
            Effect.PERFORM_ROUND: lambda _: self._round(),
            Effect.BACK_OFF: self._back_off,
            Effect.LOOK_AGAIN: lambda _: self.schedule.later("another look at other owners"),
            Effect.FORGET_VIEW: lambda _: self.rounds.forget_view(),
            Effect.DOUBT_VIEW: lambda _: self.rounds.reader.doubt_view(),
            Effect.DROP_ALL: self._drop_all,
            Effect.RESUME_LEASE: lambda _: self.monitor.resume_lease(),
            Effect.REPORT_UNOWNED: lambda _: self._reconcile(),
            Effect.REPLACE_CLIENT: lambda _: self.monitor.session.look_for_replacement(),
            Effect.ABANDON_SESSION: lambda _: self.monitor.session.abandon(),
            Effect.SHUT_DOWN: lambda _: self._shut_down(),
        }

    def _drop_all(self, why: str) -> None:
        self.rounds.lose(list(self._owned.positions.values()), why)
        self.orphaned.forget()

    def _back_off(self, trouble: str) -> None:
        pause = self.schedule.back_off()
        self._status.backs_off(trouble, self.schedule.failures, pause)

    def _reconcile(self) -> None:
        self._owned.commits.check()
        self.orphaned.try_reconcile(self._limit_of_looks)

    # ---- rounds ----

    def _round(self) -> None:
        why = self.schedule.begin()
        try:
            done = self.rounds.perform()
        except (RegistryError, OffsetCommitError) as e:
            self._failed(e, str(e))
            return
        finally:
            self.orphaned.gave(self.rounds.take_released())
        if done is None:
            self._on(Trigger.ROUND_REGISTERED, why)
        elif done.superseded:
            self._on(Trigger.ROUND_SUPERSEDED, why)
        else:
            self._round_ended(done, why)

    def _round_ended(self, done: Round, why: str) -> None:
        self.schedule.failures = 0
        self.monitor.answered()
        if self.schedule.reconcile_at == NEVER:  # once: where rounds are frequent each would put it off
            self.schedule.reconcile_later()
        self.orphaned.concluded(done.todo.assignment, self._owned.positions, done.view)
        waits = done.claimed.blocked.keys() - done.claimed.refused.keys()
        patient = bool(waits or done.plan.waiting) and monotonic() < self._started + self._settings.backoff_max
        trouble = "; ".join(filter(None, (done.trouble, self.orphaned.report())))
        self._status.round_ended(done, trouble, why, patient=patient)
        if done.freed:
            self._inbox.postpone(LookAgain(f"{first_of(done.freed)} released meanwhile"))
        if self._inbox.changes.apply():
            # an event: the table knows no trigger while a round is performed
            self._inbox.postpone(LookAgain(_SUBSCRIBING))
        self._on(Trigger.ROUND_BLOCKED if done.claimed.blocked or done.plan.waiting else Trigger.ROUND_SETTLED)
        self.schedule.not_later(done.plan.again_at, "the plan may change")
        self._follow(self.conflicts.retry())

    def _failed(self, error: Exception, trouble: str) -> None:
        self._status.round_failed(error, connected=self.monitor.session.connected)
        self._on(Trigger.ROUND_FAILED, trouble)

    # ---- the end ----

    def _shut_down(self) -> None:
        """Release all partitions and leave. Each step has a time limit; if one fails, the next follows."""
        stop = self._stopping
        assert stop is not None
        self._status.closed()
        self._inbox.postpone(stop)  # hurries the listener
        steps: tuple[Callable[[], object], ...] = (
            lambda: self.rounds.revocation.end(stop),
            self._inbox.fail_requests,
            lambda: self.rounds.leave(stop),
        )
        for step in steps:
            try:
                step()
            except Exception:  # endless tries would keep the thread and its resources alive
                log.exception("a step of leaving the group failed unexpectedly; going on with the next")


_SUBSCRIBING = "subscribing to other topics"
_SHOWN = {
    State.SUSPENDED: Phase.SUSPENDED,
    State.CUT_OFF: Phase.SUSPENDED,
    State.EXPIRED: Phase.REJOINING,
    State.CLOSED: Phase.CLOSED,
}

_UNSETTLED = {
    State.JOINING: "joining the group",
    State.CHANGED: "a rebalance is due",
    State.REBALANCING: "a rebalance is under way",
    State.FAILED: "the rebalance failed",
    State.SUSPENDED: "the connection is gone",
    State.CUT_OFF: "the connection is gone for longer than the session lives",
    State.EXPIRED: "the session ended",
    State.CLOSED: "left the group",
}
"""Each state but the settled ones in words, for :attr:`Rebalancer.unsettled`."""
