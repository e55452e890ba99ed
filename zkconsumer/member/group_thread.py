"""The group thread of a member: takes events in order, runs timers, and goes on after failures.

While a round is performed, or the application's listener is waited for, the :class:`Inbox` keeps events for later.
Nothing that happens is ever dropped.

A :class:`Coordinator` decides the meaning of events: one for groups in ZooKeeper, one for groups that the brokers
coordinate. No other thread changes its state.

Threads: :meth:`GroupThread.step` is the group thread's. Other threads put events on the queue of the inbox and read
:attr:`GroupThread.state` and :attr:`GroupThread.first_round`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple, Protocol

from zkconsumer.errors import ConnectorClosedException
from zkconsumer.member.connector_state import ConnectorState
from zkconsumer.member.events import SeekRequested, StopRequested, SubscriptionChanged, first_stop
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.lease import Lease


class SubscriptionChanges:
    """The changes that wait, and those that have begun: the next round brings these into force."""

    def __init__(self) -> None:
        self._waiting: list[SubscriptionChanged] = []
        self._begun: list[SubscriptionChanged] = []

    def ask(self, change: SubscriptionChanged) -> None:
        """Note a change; :meth:`begin` begins it."""
        self._waiting.append(change)

    @property
    def waiting(self) -> bool:
        """Whether a change waits that :meth:`begin` may begin."""
        return bool(self._waiting) and not self._leaving

    @property
    def begun(self) -> int:
        """Number of changes that have begun and are not in force."""
        return len(self._begun)

    @property
    def _leaving(self) -> bool:
        return any(change.leaving for change in self._begun)

    def begin(self) -> Sequence[SubscriptionChanged]:
        """Begin the changes that may be told to the group now, and return them. A withdrawn change is dropped.

        No change begins while topics leave. It may want them again, and their streams must end before that.
        """
        found: list[SubscriptionChanged] = []
        while self.waiting:
            change = self._waiting.pop(0)
            if change.done.begin():
                self._begun.append(change)
                found.append(change)
                change.finish()
                change.begun()
            else:
                change.withdrawn()
                change.done.set_exception(TimeoutError())
        return found

    def apply(self, count: int | None = None) -> bool:
        """Bring all begun changes into force, or the first ``count``. Return whether a change may begin now."""
        count = len(self._begun) if count is None else count
        ready, self._begun = self._begun[:count], self._begun[count:]
        for change in ready:
            change.applied()
            change.done.set_result(None)
        return self.waiting

    def holds(self, position: PartitionPosition) -> bool:
        """Return whether a caller that leaves the topic of this position held its message, which thus is finished."""
        return any(position.tp.topic in change.leaving and change.holds(position) for change in self._begun)

    @property
    def held(self) -> Held:
        """The messages that callers held as they left topics. They count as finished."""
        return {
            position: offsets
            for change in self._begun
            for position, offsets in change.held.items()
            if position.tp.topic in change.leaving
        }

    def fail(self, error: Exception) -> None:
        """Tell the waiting threads that nothing will be brought into force any more."""
        for change in self._waiting:
            change.withdrawn()
        for change in (*self._begun, *self._waiting):
            change.done.set_exception(error)
        self._begun, self._waiting = [], []


log = logging.getLogger(__name__)

_SHUT_DOWN = "the connector was shut down"
LONGEST_WAIT = 60.0
LOOK_EVERY = 1.0
"""Seconds between two looks of the member at its own state."""


class Inbox:
    """The events that still wait. ``changes`` are the requested subscriptions that are not in force yet."""

    def __init__(self, events: SimpleQueue[Any]) -> None:
        self._events = events
        self._postponed: list[Any] = []
        self._examined = 0
        self._waiting = False
        self._asked_at = monotonic()
        self.changes = SubscriptionChanges()

    def gather(self, longest: float, *, one: bool = False) -> deque[Any]:
        """Return all events, or ``one`` at most, postponed ones first; wait ``longest`` seconds if there is none."""
        self._examined = 0
        self._asked_at = monotonic()
        if self._postponed:
            count = 1 if one else len(self._postponed)
            taken, self._postponed = self._postponed[:count], self._postponed[count:]
            return deque(taken)
        first = self.wait(longest)
        if first is None:
            return deque()
        return deque([first]) if one else deque([first, *self._arrived()])

    def wait(self, seconds: float) -> Any:
        """Return the next event of the queue; None if none comes in time."""
        self._waiting = True
        try:
            return self._events.get(timeout=seconds)
        except Empty:
            return None
        finally:
            self._asked_at = monotonic()
            self._waiting = False

    @property
    def silence(self) -> float:
        """The seconds since the group thread last asked for events; 0 while it waits for one. Any thread; no lock."""
        return 0.0 if self._waiting else monotonic() - self._asked_at

    def put_back(self, events: Iterable[Any]) -> None:
        """Deal with these after all, before the events that were postponed since."""
        self._postponed = [*events, *self._postponed]

    def postpone(self, *events: Any) -> None:
        """Deal with these in the next step."""
        self._postponed += events

    def newer(self, matters: Callable[[Any], bool]) -> bool:
        """Return whether an event that matters came since this was last asked. All that came is postponed."""
        self._asked_at = monotonic()
        self._postponed += self._arrived()
        came, self._examined = self._postponed[self._examined :], len(self._postponed)
        return any(map(matters, came))

    @property
    def stop(self) -> StopRequested | None:
        """The request to shut down among postponed events; None if there is none. It stays to be dealt with."""
        return first_stop(event for event in self._postponed if isinstance(event, StopRequested))

    def fail_requests(self) -> None:
        """Drop everything; threads that wait for an answer hear that the connector is closed."""
        self.changes.fail(ConnectorClosedException(_SHUT_DOWN))
        postponed, self._postponed = self._postponed, []
        _refuse(postponed)
        self.refuse_arrived()

    def refuse_arrived(self) -> None:
        """Tell the threads whose requests are still in the queue that the connector is closed. Any thread."""
        _refuse(self._arrived())

    def _arrived(self) -> Iterator[Any]:
        while True:
            try:
                yield self._events.get_nowait()
            except Empty:
                return


def _refuse(events: Iterable[Any]) -> None:
    for event in events:
        if isinstance(event, SubscriptionChanged):
            event.withdrawn()
        if isinstance(event, SeekRequested | SubscriptionChanged):
            event.done.set_exception(ConnectorClosedException(_SHUT_DOWN))


class Coordinator(Protocol):
    """Decides what the member owns, and when. Called by the group thread, unless a member says otherwise.

    ``waits_in_handlers`` is true if :meth:`handle` waits for the user, as in a drain. It then gets one event a step.
    """

    waits_in_handlers: bool

    @property
    def sessions_lost(self) -> int:
        """The sessions, or memberships of a brokers' group, that ended before the member left. Any thread."""

    @property
    def state(self) -> ConnectorState:
        """The member's state, for the user. Any thread."""

    @property
    def unsettled(self) -> str:
        """Why the member may not own its share, in words; empty if it does. Any thread; takes no lock."""

    @property
    def needs_lease(self) -> bool:
        """Whether the member owns nothing without a valid lease. Any thread; takes no lock."""

    @property
    def first_round(self) -> Future[None]:
        """Done with the first rebalance, or failed with an error that waiting cannot cure. Any thread."""

    @property
    def closed(self) -> bool:
        """Whether the member has left for good."""

    def begin(self) -> None:
        """Begin to join."""

    def handle(self, event: Any) -> None:
        """Deal with one event."""

    def due(self) -> float:
        """Return when :meth:`run_timers` has something to do (monotonic seconds)."""

    def run_timers(self) -> None:
        """Run the timers that are due. Called after each batch of events, and at :meth:`due`."""

    def step_failed(self, error: Exception) -> None:
        """Recover from an unexpected error in one of the methods above."""


class GroupThread:
    """The thread that drives one coordinator.

    Arguments: ``name`` begins the thread's name.
    """

    def __init__(self, name: str, inbox: Inbox, coordinator: Coordinator) -> None:
        self._inbox = inbox
        self.coordinator = coordinator
        self.thread = Thread(target=self._run, name=f"{name}_watcher_executor", daemon=True)
        self._look: Callable[[], None] | None = None
        self._ended = False

    @property
    def silence(self) -> float:
        """The seconds for which the thread has been busy with one thing. Any thread; takes no lock."""
        return self._inbox.silence

    @property
    def state(self) -> ConnectorState:
        """The member's state, for the user. Any thread."""
        return self.coordinator.state

    @property
    def first_round(self) -> Future[None]:
        """Done with the first rebalance, or failed with an error that waiting cannot cure. Any thread."""
        return self.coordinator.first_round

    def start(self, look: Callable[[], None] | None = None) -> None:
        """Begin to join, and start the thread. ``look`` is called on the thread between its steps, once a second."""
        self._look = look
        self.coordinator.begin()
        self.thread.start()

    def join(self, deadline: Deadline) -> bool:
        """Wait for the end of the thread after a :class:`StopRequested`; returns whether it ended."""
        if self.thread.is_alive():
            self.thread.join(deadline.remaining())
        return not self.thread.is_alive()

    def step(self, longest: float = LONGEST_WAIT) -> None:
        """Wait for an event or a timer, at most ``longest`` seconds, and handle all events and timers."""
        longest = min(longest, max(0.0, self.coordinator.due() - monotonic()))
        # A handler that waits must find the events behind its own in the inbox. Otherwise a drain would not hear of a
        # shutdown, nor serve the seek of the very thread whose message it waits for.
        events = self._inbox.gather(longest, one=self.coordinator.waits_in_handlers)
        try:
            while events:
                self.coordinator.handle(events.popleft())
        finally:
            self._inbox.put_back(events)  # an error in one event must not lose the others
        self.coordinator.run_timers()

    def _run(self) -> None:
        longest = LONGEST_WAIT if self._look is None else LOOK_EVERY
        while not self.coordinator.closed:
            try:
                self.step(longest)
                if self._look is not None:
                    self._look()
            except Exception as e:
                log.exception("the group thread failed unexpectedly and goes on")
                self.coordinator.step_failed(e)
        self._ended = True
        self._inbox.fail_requests()

    def refuse_late(self) -> None:
        """Refuse the requests that came after the thread's end, which nobody would answer. Any thread.

        Call this after each request: the thread marks its end before it looks for requests the last time.
        """
        if self._ended:
            self._inbox.refuse_arrived()


class PartitionGroupThread(GroupThread):
    """The group thread of a member that owns partitions."""

    def __init__(self, name: str, inbox: Inbox, coordinator: Coordinator, owned: OwnedPartitions) -> None:
        super().__init__(name, inbox, coordinator)
        self._owned = owned

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """Return the positions that are owned now (a copy). Any thread."""
        return dict(self._owned.positions)

    @property
    def left(self) -> Sequence[PartitionPosition]:
        """The positions that were owned when the member left; empty before that. Any thread."""
        return self._owned.left


class CoordinationHealth(NamedTuple):
    """One coordination of a member, for the health. A bridge has two.

    ``coordinator`` is a name in words. ``lease`` is the lease that this coordination renews. ``doubt`` is why the
    assignment may be wrong, in words, empty without a doubt.
    """

    coordinator: str
    group: GroupThread
    lease: Lease
    doubt: str = ""
