"""The group's thread: it alone decides and does whatever concerns registration and ownership.

Everything that happens arrives as an event on one queue. A change makes a rebalance due after a short quiet time, so
that a burst costs one round; a round reads what changed, plans, gives up what leaves (stop fetching, let the message
in the user's hands finish, commit, release), claims what comes, and starts fetching it. What stays is not touched. A
round that fails is repeated, with growing pauses and for ever: never a registered member that has stopped trying,
which is what the original becomes after its last attempt.

Threads: :meth:`Rebalancer.step` is the thread's; other threads only put events and read :attr:`Rebalancer.state`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic

from zkconsumer.core.planner import Assign, GroupView, Plan, plan, possible
from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerIdInUseError,
    NotPermittedError,
    OffsetCommitError,
    RegistryAuthenticationError,
    RegistryError,
    RegistryUnavailableError,
)
from zkconsumer.group.events import (
    CommitsRefused,
    Event,
    ListenerReturned,
    LookAgain,
    NodeChanged,
    SeekRequested,
    StartResolved,
    StartsFound,
    StartStored,
    StopRequested,
    SubscriptionChanged,
)
from zkconsumer.group.holdings import Delivery, Holdings, Offsets
from zkconsumer.group.listener import Listening, by_topic
from zkconsumer.group.membership import Membership
from zkconsumer.group.ownership import Claimed, Ownership
from zkconsumer.group.reports import Reports
from zkconsumer.group.state import ConnectorState, Phase
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.registry import paths
from zkconsumer.registry.fenced import KnownOffset, Outcome
from zkconsumer.registry.session import Session, SessionChanged, SessionState
from zkconsumer.registry.watches import NodeCache

log = logging.getLogger(__name__)

NEVER = float("inf")
LONGEST_WAIT = 60.0
CLOSING_DRAIN = 1.5
"""Seconds that a shutdown waits for messages in the user's hands, at most: it is bounded as a whole."""
OWNER_QUIET = 0.005
"""Seconds of quiet after an owner node changed."""


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """What of the configuration concerns the group; seconds."""

    quiet: float
    backoff: float
    backoff_max: float
    drain: float
    interval: float
    request_timeout: float
    auto_commit: bool
    exclude_internal_topics: bool


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
        self._consumer = consumer
        self._group = group
        self._settings = settings
        self._events = events
        self._session = session
        self._cache = cache
        self._membership = membership
        self._ownership = Ownership(session, cache, group, reads_offsets=offsets.reads_nodes)
        self._holdings = Holdings(delivery, offsets, self._ownership, events.put)
        self._listening = listening or Listening()
        self._told: Assignment | None = None
        self._postponed: list[Event] = []
        self._changes: list[SubscriptionChanged] = []
        self._later: list[SubscriptionChanged] = []
        self._delivery = delivery
        self._offsets = offsets
        self._assign = assign
        self._in_force: Assignment = {}
        self._reports = reports or Reports()
        self._session_id = 0
        self._reasons: list[str] = []
        self._due = NEVER
        self._first_event = NEVER
        self._failures = 0
        self._started = 0.0
        self._owner_paths: frozenset[str] = frozenset()
        self._next_touch = 0.0
        self._next_reconcile = NEVER
        self._stopping: StopRequested | None = None
        self._ended = False
        self.state = ConnectorState(Phase.STARTING)
        self.first_round: Future[None] = Future()
        self._thread = Thread(target=self._run, name=f"{consumer}_watcher_executor", daemon=True)

    # ---- for other threads ----

    def start(self) -> None:
        """Start the thread; the first round begins at once."""
        self.begin()
        self._thread.start()

    def begin(self) -> None:
        """Make the first round due (:meth:`start` without the thread, for who steps it himself)."""
        self._session_id = self._session.session_id
        self._started = monotonic()
        self._reasons.append("joining")
        self._due = 0.0

    def join(self, deadline: Deadline) -> bool:
        """Wait for the thread's end after a :class:`StopRequested`; returns whether it ended."""
        if self._thread.is_alive():
            self._thread.join(deadline.remaining())
        return not self._thread.is_alive()

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""
        return dict(self._holdings.owned)

    # ---- the thread ----

    def _run(self) -> None:
        while not self._ended:
            try:
                self.step()
            except Exception as e:
                log.exception("the rebalancer failed unexpectedly and tries again")
                self._retry(str(e))

    def step(self, longest: float = LONGEST_WAIT) -> None:
        """Wait for the next event or timer, at most ``longest`` seconds, and deal with it."""
        for event in self._gather(longest):
            self._handle(event)
        if self._stopping is not None:
            self._shut_down(self._stopping)
            return
        now = monotonic()
        self._touch()
        if self._holdings.owned and not self._session.connected and now >= self._session.lease.ends_at:
            self._lose(list(self._holdings.owned.values()), "the session's lease ended without contact to ZooKeeper")
        if now >= self._next_reconcile:
            # against a lost watch, and against whatever was done to our nodes behind our back
            self._next_reconcile = now + self._settings.interval  # whatever becomes of it: a timer in the past spins
            self._cache.refresh()
            self._want("reconciliation", quiet=0.0)
        if now >= self._due and self._session.connected:
            self._round()

    def _touch(self) -> None:
        """Renew the lease from time to time."""
        now = monotonic()
        if now >= self._next_touch:
            self._session.touch()
            self._next_touch = now + self._session.timeout / 6

    def _gather(self, longest: float) -> Iterable[Event]:
        """The events there are; waits for one until the next timer."""
        if self._postponed:
            postponed, self._postponed = self._postponed, []
            return postponed
        timers = [self._next_touch, self._next_reconcile, self._due if self._session.connected else NEVER]
        if self._holdings.owned and not self._session.connected:
            timers.append(self._session.lease.ends_at)
        try:
            events = [self._events.get(timeout=max(0.0, min(min(timers) - monotonic(), longest)))]
            while True:
                try:
                    events.append(self._events.get_nowait())
                except Empty:
                    return events
        except Empty:
            return []

    def _handle(self, event: Event) -> None:
        match event:
            case StopRequested():
                self._stopping = event
            case NodeChanged() | LookAgain():
                self._noticed(event)
            case SessionChanged():
                self._session_changed(event)
            case StartsFound(starts):
                self._holdings.starts_found(starts)
            case StartResolved(position, offset):
                self._holdings.start_resolved(position, offset)
            case StartStored(position, offset, stored):
                if not self._holdings.start_stored(position, offset, stored):
                    self._restart([position], "its start offset could not be stored")
            case CommitsRefused(outcomes):
                self._commits_refused(outcomes)
            case SeekRequested():
                self._seek(event)
            case SubscriptionChanged():
                if any(change.leaving for change in self._changes):
                    self._later.append(event)  # it may want again what is leaving, whose streams must end before that
                    return
                self._membership.subscribe(event.registration)
                self._changes.append(event)
                self._want("subscribing to other topics", quiet=0.0)

    def _noticed(self, event: NodeChanged | LookAgain) -> None:
        if isinstance(event, LookAgain):
            self._want(event.reason, quiet=0.0)
        else:
            # a release that we wait for comes whole, in one transaction: nothing to wait for
            self._want(f"{event.path} changed", quiet=OWNER_QUIET if event.path in self._owner_paths else None)

    def _session_changed(self, event: SessionChanged) -> None:
        if event.state is SessionState.SUSPENDED:
            log.warning("the connection to ZooKeeper is gone; nothing is handed out or committed until it is back")
            self._show(Phase.SUSPENDED)
            return
        if event.state is SessionState.LOST or event.session_id != self._session_id:
            self._lose(list(self._holdings.owned.values()), "the ZooKeeper session expired")
            self._holdings.leftover.clear()
            self._session_id = event.session_id
        # watches do not survive a connection: believe nothing that was read before
        self._cache.refresh()
        if event.state is SessionState.CONNECTED:
            self._session.lease.resume(event.epoch)
            self._session_id = event.session_id
            self._next_touch = 0.0
            self._failures = 0
            if self.state.phase is not Phase.STARTING:
                self._want("connected to ZooKeeper again", quiet=0.0)
        else:
            self._show(Phase.REJOINING)

    def _commits_refused(self, outcomes: Mapping[PartitionPosition, Outcome]) -> None:
        ours = {position: outcome for position, outcome in outcomes.items() if self._holdings.holds(position)}
        moved = [position for position, outcome in ours.items() if outcome is Outcome.OFFSET_MOVED]
        gone = [position for position, outcome in ours.items() if outcome is Outcome.NOT_OURS]
        if moved:
            self._restart(moved, "somebody else wrote its offset")
        if gone:
            self._lose(gone, "their owner nodes are gone")
            self._cache.refresh()
            self._want("owner nodes are gone", quiet=0.0)

    def _want(self, reason: str, quiet: float | None = None) -> None:
        """A rebalance is due soon; further events within the quiet time join it."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        now = monotonic()
        pause = self._settings.quiet if quiet is None else quiet
        self._first_event = min(self._first_event, now)
        # not put off for ever by a stream of events
        self._due = min(now + pause, self._first_event + 4 * self._settings.quiet)

    # ---- one round ----

    def _round(self) -> None:
        began = monotonic()
        why = ", ".join(self._reasons[:3]) + (f" and {len(self._reasons) - 3} more" if len(self._reasons) > 3 else "")
        self._reasons.clear()
        self._due = self._first_event = NEVER
        deadline = Deadline(self._settings.request_timeout)
        try:
            registered = self._membership.register(deadline)
            view = self._membership.view(deadline)
            self._drop_deleted(deadline)
            todo, trouble = self._plan(view)
            self._sweep(todo, deadline)
            self._give_up(todo.release)
            claimed = self._take_over(todo)
        except (RegistryError, OffsetCommitError) as e:
            self._round_failed(e)
            return
        self._failures = 0
        self._next_reconcile = monotonic() + self._settings.interval
        self._conclude(todo, view, claimed, trouble, registered, why, monotonic() - began)
        self._apply_changes()
        self._rebalanced(monotonic() - began)

    def _apply_changes(self) -> None:
        changes, self._changes = self._changes, []
        for change in changes:
            change.applied()
            change.done.set_result(None)
        later, self._later = self._later, []
        for event in later:
            self._handle(event)

    def _plan(self, view: GroupView) -> tuple[Plan, str]:
        """What to do, and why it is not what the strategy says, if it is not.

        A strategy that raises leaves the assignment before it in force: it harms nothing that flows already, and what
        was lost meanwhile is claimed again as before.
        """
        self._reports.group(view)

        def made(assign: Assign) -> Plan:
            return plan(
                view,
                self._consumer,
                {tp: position.thread for tp, position in self._holdings.owned.items()},
                assign,
                exclude_internal_topics=self._settings.exclude_internal_topics,
            )

        try:
            todo = made(self._assign)
        except (Exception, SystemExit) as e:  # noqa: BLE001 (a plug-in raises whatever it likes; the member lives on)
            return made(lambda view, threads: possible(self._in_force, view, threads)), self._reports.strategy_failed(e)
        self._reports.strategy_worked()
        self._in_force = todo.assignment
        return todo, ""

    def _round_failed(self, error: Exception) -> None:
        if isinstance(error, NotPermittedError | RegistryAuthenticationError) and not self.first_round.done():
            self.first_round.set_exception(error)  # whoever waits to join cannot, and waiting longer does not help
        if isinstance(error, ConsumerIdInUseError):
            self._show(Phase.WAITING, detail=str(error))
        elif isinstance(error, RegistryUnavailableError) and not self._session.connected:
            self._show(Phase.SUSPENDED)
        self._retry(str(error))

    def _retry(self, trouble: str) -> None:
        self._failures += 1
        pause = min(self._settings.backoff_max, self._settings.backoff * 2 ** min(self._failures - 1, 10))
        pause *= random.uniform(0.5, 1.0)
        # the same thing once: what an operator has to cure can take long
        level = logging.DEBUG if trouble == self.state.detail and self._failures > 1 else logging.WARNING
        log.log(level, "rebalance failed (attempt %d), next try in %.1f s: %s", self._failures, pause, trouble)
        self._show(self.state.phase, detail=trouble)
        self._cache.refresh()
        self._reasons.append("retry")
        self._due = monotonic() + pause

    def _drop_deleted(self, deadline: Deadline) -> None:
        """Give up at once what we think we own and somebody deleted."""
        mine = self._ownership.mine(self._holdings.owned, deadline)
        gone = [position for tp, position in self._holdings.owned.items() if tp not in mine]
        if gone:
            self._lose(gone, "their owner nodes are gone")

    def _sweep(self, todo: Plan, deadline: Deadline) -> None:
        """Delete owner nodes of our session that an interrupted round left behind."""
        stray = [tp for tp in self._holdings.leftover if tp not in self._holdings.owned and tp not in todo.claim]
        if stray:
            mine = self._ownership.mine(stray, deadline)
            self._ownership.release({tp: KnownOffset(None, None) for tp in mine}, deadline)
        self._holdings.leftover.clear()

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        positions = [self._holdings.owned[tp] for tp in partitions]
        if not positions:
            return
        self._delivery.revoke(positions, Deadline(0.0))
        # the wait is not to cost what stays its lease
        self._session.touch()
        waiting_for = [position for position in positions if not self._held_by_who_asked(position)]
        self._delivery.revoke(waiting_for, Deadline(self._settings.drain))
        self._call_listener("before_releasing_partitions", by_topic(partitions))
        self._holdings.remove(partitions)
        deadline = Deadline(self._settings.request_timeout)  # anew: the user's part took its own time
        known = self._offsets.surrender(
            positions, commit=self._settings.auto_commit, count_held=self._held_by_who_asked, deadline=deadline
        )
        self._ownership.release({tp: known.get(tp, KnownOffset(None, None)) for tp in partitions}, deadline)
        self._holdings.leftover.difference_update(partitions)

    def _held_by_who_asked(self, position: PartitionPosition) -> bool:
        """Whether the thread that unsubscribes from this topic reads it: it waits for us, so its message counts as
        finished.
        """
        return any(
            position.topic in change.leaving and self._delivery.held_by(position, change.holder)
            for change in self._changes
        )

    def _take_over(self, todo: Plan) -> Claimed:
        claimed = Claimed()
        if todo.claim:
            self._holdings.leftover.update(todo.claim)
            claimed = self._ownership.claim(todo.claim, Deadline(self._settings.request_timeout))
            self._holdings.leftover.difference_update(todo.claim)
            self._holdings.add({tp: (todo.claim[tp], known) for tp, known in claimed.ours.items()})
        if self._listening.exists and (claimed.ours or todo.assignment != self._told):
            self._told = todo.assignment
            starts = self._call_listener("before_starting_fetchers", self._consumer, dict(todo.assignment))
            self._begin_elsewhere(starts, claimed)
        self._holdings.start(claimed.ours)
        return claimed

    def _begin_elsewhere(self, starts: object, claimed: Claimed) -> None:
        """Start where the listener says."""
        if starts is None:
            return
        if not isinstance(starts, Mapping):
            log.error("before_starting_fetchers must return offsets by partition or None, not %r", starts)
            return
        for tp, offset in starts.items():
            if tp not in claimed.ours:
                log.warning("the listener's offset for %s is not used: it did not come to us just now", tp)
            elif isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
                log.error("the listener's offset for %s is not used: %r is no offset", tp, offset)
            else:
                self._holdings.seek(TopicPartition(*tp), offset)

    def _call_listener(self, method: str, *arguments: object) -> object:
        return self._listening.call(method, *arguments, serve=self._serve)

    def _serve(self, seconds: float) -> bool:
        """While the listener is waited for: do what it may ask of us, and let everything else wait its turn."""
        self._touch()
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

    def _seek(self, request: SeekRequested) -> None:
        strange = {tp for tp, offset in request.offsets.items() if not self._holdings.seek(tp, offset)}
        request.done.set_result(frozenset(strange))

    def _conclude(
        self,
        todo: Plan,
        view: GroupView,
        claimed: Claimed,
        trouble: str,
        registered: bool,
        why: str,
        seconds: float,
    ) -> None:
        # a topic's node whose text is no JSON, or tells no partitions, is no error to anybody, so it must show here
        missing = [
            f"topic {topic} to {'have partitions' if topic in view.partitions else 'exist'}"
            for topic in self._static_topics(view)
            if not view.partitions.get(topic)
        ]
        waiting = "waiting for " + ", ".join(missing) if missing else ""
        unreadable = "unreadable: " + ", ".join(sorted(view.unreadable)) if view.unreadable else ""
        detail = "; ".join(filter(None, (trouble, self._listening.trouble, waiting, unreadable)))
        phase = Phase.WAITING if claimed.blocked else Phase.OWNING
        before = self.state
        changed = bool(todo.release or claimed.ours or registered or dict(claimed.blocked) != before.blocked)
        self.state = ConnectorState(
            phase, len(self._holdings.owned), todo.wanted, dict(claimed.blocked), detail, before.rebalances + 1
        )
        log.log(
            logging.INFO if changed or detail != before.detail else logging.DEBUG,
            "rebalanced group %s in %.0f ms (%s): released %s, claimed %s, kept %d; %s",
            self._group,
            seconds * 1000,
            why,
            _names(todo.release),
            _names(claimed.ours),
            len(todo.keep),
            self.state,
        )
        self._owner_paths = frozenset(paths.owner(self._group, tp) for tp in claimed.blocked)
        if claimed.blocked:
            # its owner node is watched; this is for a change that no watch tells
            self._reasons.append("another look at other owners")
            self._due = monotonic() + self._settings.backoff_max * random.uniform(0.5, 1.0)
        patient = claimed.blocked and monotonic() < self._started + self._settings.backoff_max
        if not self.first_round.done() and not patient:
            self.first_round.set_result(None)

    def _static_topics(self, view: GroupView) -> list[str]:
        mine = view.members.get(self._consumer)
        return [] if mine is None or mine.is_wildcard else sorted(mine.subscription)

    # ---- losing and restarting ----

    def _lose(self, positions: Sequence[PartitionPosition], why: str) -> None:
        """What is no longer ours: hand out and commit nothing of it; there is nothing to release."""
        if not positions:
            return
        self._holdings.lose(positions)
        log.warning("lost %s: %s", _names(p.tp for p in positions), why)
        self._listening.tell("on_partitions_lost", by_topic(p.tp for p in positions))

    def _restart(self, positions: Sequence[PartitionPosition], why: str) -> None:
        """Keep the ownership but take the offset anew from its node (``offset.conflict=adopt``)."""
        log.warning("%s: %s; reading it again and continuing from there", _names(p.tp for p in positions), why)
        try:
            if not self._holdings.read_again(positions, Deadline(self._settings.request_timeout)):
                self._want("an offset cannot be read")
        except RegistryError as e:
            # the partitions are given back in the next round and claimed anew
            self._retry(str(e))

    # ---- the end ----

    def _shut_down(self, request: StopRequested) -> None:
        """Finish: let go of everything in order, each step bounded, and go on with the next where one fails."""
        positions = list(self._holdings.owned.values())
        self._show(Phase.CLOSED)
        self._ended = True

        def holds(position: PartitionPosition) -> bool:
            return self._delivery.held_by(position, request.holder)

        # the thread that asked waits for us and will not ask for another message
        waiting_for = [position for position in positions if not holds(position)]
        self._delivery.end()
        self._delivery.revoke(positions, Deadline(0.0))
        # longer than this and the session would be closed before the last commit, also that of all other partitions
        self._delivery.revoke(waiting_for, Deadline(min(self._settings.drain, CLOSING_DRAIN)))
        if positions:
            self._postponed = [request]  # hurries the listener
            self._call_listener("before_releasing_partitions", by_topic(p.tp for p in positions))
        self._holdings.remove([position.tp for position in positions])
        self._fail_requests()
        if not self.first_round.done():
            self.first_round.set_exception(RegistryError("the connector was shut down while it joined the group"))
        deadline = Deadline(min(2.0, self._settings.request_timeout))
        known: Mapping[TopicPartition, KnownOffset] = {}
        try:
            known = self._offsets.surrender(
                positions,
                commit=self._settings.auto_commit,
                count_held=lambda position: request.finished and holds(position),
                deadline=deadline,
            )
        except (RegistryError, OffsetCommitError) as e:
            log.warning("the last commit failed; what was not committed is consumed again by the next owner: %s", e)
        try:
            if positions:
                self._ownership.release({p.tp: known.get(p.tp, KnownOffset(None, None)) for p in positions}, deadline)
            self._membership.deregister(deadline)
        except RegistryError as e:
            log.info("left without deleting our nodes, which end with the session: %s", e)

    def _fail_requests(self) -> None:
        """Nobody shall wait for an answer that does not come."""
        closed = ConnectorClosedException("the connector was shut down")
        for change in (*self._changes, *self._later):
            change.done.set_exception(closed)
        while True:
            try:
                event = self._postponed.pop() if self._postponed else self._events.get_nowait()
            except Empty:
                return
            if isinstance(event, SeekRequested | SubscriptionChanged):
                event.done.set_exception(closed)

    def _show(self, phase: Phase, detail: str | None = None) -> None:
        before = self.state
        self.state = ConnectorState(
            phase,
            len(self._holdings.owned),
            before.wanted,
            before.blocked if phase is Phase.WAITING else {},
            before.detail if detail is None else detail,
            before.rebalances,
        )


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in sorted(partitions)]
    return "nothing" if not names else ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
