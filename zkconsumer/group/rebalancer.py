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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Protocol

from zkconsumer.core.planner import Assign, GroupView, Plan, plan, possible
from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import ConsumerIdInUseError, OffsetCommitError, RegistryError, RegistryUnavailableError
from zkconsumer.group.events import (
    CommitsRefused,
    Event,
    NodeChanged,
    StartResolved,
    StartsFound,
    StartStored,
    StopRequested,
)
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
OWNER_QUIET = 0.005
"""Seconds of quiet after an owner node changed."""


class Delivery(Protocol):
    """Fetching and streams, as the group's thread sees them."""

    def start(self, positions: Sequence[PartitionPosition]) -> None:
        """Fetch these into their streams."""

    def revoke(self, positions: Sequence[PartitionPosition], drain: Deadline) -> None:
        """Hand out nothing more of these; wait for the messages in the user's hands until the deadline."""

    def wake(self) -> None:
        """A start position is known now."""

    def end(self) -> None:
        """End all streams: their readers wake and finish."""

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Whether that thread reads the stream of this partition."""


class Offsets(Protocol):
    """The committer, as the group's thread sees it."""

    @property
    def asks(self) -> bool:
        """Whether starts are to be asked for."""

    @property
    def reads_nodes(self) -> bool:
        """Whether the offset nodes matter."""

    def find_starts(
        self, positions: Sequence[PartitionPosition], found: Callable[[Mapping[PartitionPosition, int | None]], None]
    ) -> Sequence[PartitionPosition]:
        """Have starts looked up; returns those that need none."""

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        """Partitions were claimed."""

    def store_start(self, position: PartitionPosition, offset: int, done: Callable[[bool], None]) -> None:
        """Store a resolved start offset."""

    def surrender(
        self,
        positions: Collection[PartitionPosition],
        *,
        commit: bool,
        count_held: Callable[[PartitionPosition], bool],
        deadline: Deadline,
    ) -> Mapping[TopicPartition, KnownOffset]:
        """The last commit before giving partitions up."""

    def forget(self, positions: Collection[PartitionPosition]) -> None:
        """Partitions are lost."""


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

    Arguments: ``assign`` is the strategy; ``on_failure`` is told of an error that the user's next call must raise
    (None: it is over).
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
    ) -> None:
        self._consumer = consumer
        self._group = group
        self._settings = settings
        self._events = events
        self._session = session
        self._cache = cache
        self._membership = membership
        self._ownership = Ownership(session, cache, group, reads_offsets=offsets.reads_nodes)
        self._delivery = delivery
        self._offsets = offsets
        self._assign = assign
        self._in_force: Assignment = {}
        self._reports = reports or Reports()
        self._owned: dict[TopicPartition, PartitionPosition] = {}
        self._leftover: set[TopicPartition] = set()
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
        return dict(self._owned)

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
        if now >= self._next_touch:
            self._session.touch()
            self._next_touch = now + self._session.timeout / 6
        if self._owned and not self._session.connected and now >= self._session.lease.ends_at:
            self._lose(list(self._owned.values()), "the session's lease ended without contact to ZooKeeper")
        if now >= self._next_reconcile:
            # against a lost watch, and against whatever was done to our nodes behind our back
            self._cache.refresh()
            self._want("reconciliation", quiet=0.0)
        if now >= self._due and self._session.connected:
            self._round()

    def _gather(self, longest: float) -> Iterable[Event]:
        """The events there are; waits for one until the next timer."""
        timers = [self._next_touch, self._next_reconcile, self._due if self._session.connected else NEVER]
        if self._owned and not self._session.connected:
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
            case NodeChanged(path):
                # a release that we wait for comes whole, in one transaction: nothing to wait for
                self._want(f"{path} changed", quiet=OWNER_QUIET if path in self._owner_paths else None)
            case SessionChanged():
                self._session_changed(event)
            case StartsFound(starts):
                self._starts_found(starts)
            case StartResolved(position, offset):
                if self._owned.get(position.tp) is position:
                    self._offsets.store_start(
                        position, offset, lambda stored: self._events.put(StartStored(position, offset, stored))
                    )
            case StartStored(position, offset, stored):
                self._start_stored(position, offset, stored)
            case CommitsRefused(outcomes):
                self._commits_refused(outcomes)

    def _starts_found(self, starts: Mapping[PartitionPosition, int | None]) -> None:
        ours = [position for position in starts if self._owned.get(position.tp) is position]
        for position in ours:
            start = starts[position]
            if start is not None:
                position.begin(start)
        if ours:
            self._delivery.start(ours)

    def _start_stored(self, position: PartitionPosition, offset: int, stored: bool) -> None:
        if self._owned.get(position.tp) is not position:
            return
        if stored:
            position.begin(offset)
            self._delivery.wake()
        else:
            self._restart([position], "its start offset could not be stored")

    def _session_changed(self, event: SessionChanged) -> None:
        if event.state is SessionState.SUSPENDED:
            log.warning("the connection to ZooKeeper is gone; nothing is handed out or committed until it is back")
            self._show(Phase.SUSPENDED)
            return
        if event.state is SessionState.LOST or event.session_id != self._session_id:
            self._lose(list(self._owned.values()), "the ZooKeeper session expired")
            self._leftover.clear()
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
        ours = {position: outcome for position, outcome in outcomes.items() if self._owned.get(position.tp) is position}
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
            self._give_up(todo.release, deadline)
            claimed = self._take_over(todo, deadline)
        except (RegistryError, OffsetCommitError) as e:
            self._round_failed(e)
            return
        self._failures = 0
        self._next_reconcile = monotonic() + self._settings.interval
        self._conclude(todo, view, claimed, trouble, registered, why, monotonic() - began)

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
                {tp: position.thread for tp, position in self._owned.items()},
                assign,
                exclude_internal_topics=self._settings.exclude_internal_topics,
            )

        try:
            todo = made(self._assign)
        except Exception as e:  # noqa: BLE001 (a plug-in raises whatever it likes; the member lives on)
            return made(lambda view, threads: possible(self._in_force, view, threads)), self._reports.strategy_failed(e)
        self._reports.strategy_worked()
        self._in_force = todo.assignment
        return todo, ""

    def _round_failed(self, error: Exception) -> None:
        if isinstance(error, ConsumerIdInUseError):
            self._show(Phase.WAITING, detail=str(error))
        elif isinstance(error, RegistryUnavailableError) and not self._session.connected:
            self._show(Phase.SUSPENDED)
        self._retry(str(error))

    def _retry(self, trouble: str) -> None:
        self._failures += 1
        pause = min(self._settings.backoff_max, self._settings.backoff * 2 ** min(self._failures - 1, 10))
        pause *= random.uniform(0.5, 1.0)
        log.warning("rebalance failed (attempt %d), next try in %.1f s: %s", self._failures, pause, trouble)
        self._show(self.state.phase, detail=trouble)
        self._cache.refresh()
        self._reasons.append("retry")
        self._due = monotonic() + pause

    def _drop_deleted(self, deadline: Deadline) -> None:
        """Give up at once what we think we own and somebody deleted."""
        mine = self._ownership.mine(self._owned, deadline)
        gone = [position for tp, position in self._owned.items() if tp not in mine]
        if gone:
            self._lose(gone, "their owner nodes are gone")

    def _sweep(self, todo: Plan, deadline: Deadline) -> None:
        """Delete owner nodes of our session that an interrupted round left behind."""
        stray = [tp for tp in self._leftover if tp not in self._owned and tp not in todo.claim]
        if stray:
            mine = self._ownership.mine(stray, deadline)
            self._ownership.release({tp: KnownOffset(None, None) for tp in mine}, deadline)
        self._leftover.clear()

    def _give_up(self, partitions: Sequence[TopicPartition], deadline: Deadline) -> None:
        positions = [self._owned[tp] for tp in partitions]
        if not positions:
            return
        self._delivery.revoke(positions, Deadline(self._settings.drain))
        self._leftover.update(partitions)
        for tp in partitions:
            del self._owned[tp]
        known = self._offsets.surrender(
            positions, commit=self._settings.auto_commit, count_held=lambda _: False, deadline=deadline
        )
        self._ownership.release({tp: known.get(tp, KnownOffset(None, None)) for tp in partitions}, deadline)
        self._leftover.difference_update(partitions)

    def _take_over(self, todo: Plan, deadline: Deadline) -> Claimed:
        if not todo.claim:
            return Claimed()
        self._leftover.update(todo.claim)
        claimed = self._ownership.claim(todo.claim, deadline)
        self._leftover.difference_update(todo.claim)
        started = []
        for tp, known in claimed.ours.items():
            started.append((PartitionPosition(tp, todo.claim[tp], self._start(known)), known))
        # the committer first: it must know a partition before anything of it can be finished
        self._offsets.track(started)
        for position, _ in started:
            self._owned[position.tp] = position
        self._deliver([position for position, _ in started])
        return claimed

    def _start(self, known: KnownOffset) -> int | None:
        """The start that the offset node tells, None where it tells none or is not the only one to be asked."""
        return None if self._offsets.asks or known.offset is None or known.offset < 0 else known.offset

    def _deliver(self, positions: Sequence[PartitionPosition]) -> None:
        """Fetch what is ours now; what starts where another store than ZooKeeper says, once that has answered."""
        ready = self._offsets.find_starts(positions, lambda starts: self._events.put(StartsFound(starts)))
        if ready:
            self._delivery.start(ready)

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
        detail = "; ".join(filter(None, (trouble, waiting, unreadable)))
        phase = Phase.WAITING if claimed.blocked else Phase.OWNING
        changed = bool(todo.release or claimed.ours or registered or claimed.blocked)
        before = self.state
        self.state = ConnectorState(
            phase, len(self._owned), todo.wanted, dict(claimed.blocked), detail, before.rebalances + 1
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
        self._delivery.revoke(positions, Deadline(0.0))
        self._offsets.forget(positions)
        for position in positions:
            self._owned.pop(position.tp, None)
        log.warning("lost %s: %s", _names(p.tp for p in positions), why)

    def _restart(self, positions: Sequence[PartitionPosition], why: str) -> None:
        """Keep the ownership but take the offset anew from its node (``offset.conflict=adopt``)."""
        log.warning("%s: %s; reading it again and continuing from there", _names(p.tp for p in positions), why)
        self._delivery.revoke(positions, Deadline(0.0))
        self._offsets.forget(positions)
        deadline = Deadline(self._settings.request_timeout)
        for old in positions:
            self._owned.pop(old.tp, None)
            self._leftover.add(old.tp)
        restarted = []
        try:
            for old in positions:
                known = self._ownership.read_offset(old.tp, deadline)
                if known is not None:
                    restarted.append((PartitionPosition(old.tp, old.thread, self._start(known)), known))
        except RegistryError as e:
            # the partitions are given back in the next round and claimed anew
            self._retry(str(e))
            return
        self._offsets.track(restarted)
        for position, _ in restarted:
            self._owned[position.tp] = position
            self._leftover.discard(position.tp)
        self._deliver([position for position, _ in restarted])
        if len(restarted) < len(positions):
            self._want("an offset cannot be read")

    # ---- the end ----

    def _shut_down(self, request: StopRequested) -> None:
        """Finish: let go of everything in order, each step bounded, and go on with the next where one fails."""
        positions = list(self._owned.values())
        self._owned.clear()
        self._show(Phase.CLOSED)
        self._ended = True

        def holds(position: PartitionPosition) -> bool:
            return self._delivery.held_by(position, request.holder)

        # the thread that asked waits for us and will not ask for another message
        waiting_for = [position for position in positions if not holds(position)]
        self._delivery.end()
        self._delivery.revoke(positions, Deadline(0.0))
        self._delivery.revoke(waiting_for, Deadline(self._settings.drain))
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

    def _show(self, phase: Phase, detail: str | None = None) -> None:
        before = self.state
        self.state = ConnectorState(
            phase,
            len(self._owned),
            before.wanted,
            before.blocked if phase is Phase.WAITING else {},
            before.detail if detail is None else detail,
            before.rebalances,
        )


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in sorted(partitions)]
    return "nothing" if not names else ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
