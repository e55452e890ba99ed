"""Fetches the owned partitions that a broker leads, on a thread, with one long-polled request at a time.

Threads: the fetcher's thread calls :meth:`Fetcher.step`; the leader finder, the group's thread and the streams call
:meth:`Fetcher.stop` and :class:`FetchedPartitions`, whose lock is not held during a request or another wait.

Mirrors the original's ``ConsumerFetcherThread``. Differs on purpose: a request leaves out a partition whose stream has
no room, so that partition holds up no other. The original's thread blocks there with all its partitions. An unexpected
response hands the partition back to the leader finder, and never ends the thread silently. A start position is stored
before the first message is handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Condition, Thread
from time import monotonic

from zkconsumer.errors import BrokerAuthenticationError, BrokerError
from zkconsumer.fetch.auto_offset_reset import UNANSWERED, reset_offsets
from zkconsumer.fetch.broker_failures import FailureLog, RefusedLogins
from zkconsumer.fetch.broker_fetch import FetchConnection, FetchSettings
from zkconsumer.fetch.replica_choice import ask_leader, leaves_follower, rack_to_tell
from zkconsumer.fetch.response_handler import Outcomes, ResponseHandler, park
from zkconsumer.fetch.truncation_check import TruncationCheck
from zkconsumer.kafka import CorruptRecordsError
from zkconsumer.kafka import error_codes as codes
from zkconsumer.model import LATEST, Endpoint, TopicPartition
from zkconsumer.ownership.fetch_cursor import LEADER, FetchCursor, Sink
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

log = logging.getLogger(__name__)

IDLE_WAIT = 1.0
LOOK_EVERY = 5.0
"""Seconds after which a fetcher looks at all its partitions again, although nobody woke it."""
QUIET_AFTER = 1.0
"""Seconds without messages, and without a reason to look at the partitions, after which polls may be longer."""


class FetchedPartitions:
    """The partitions of one fetcher, in the order of service. Any thread; the condition guards everything."""

    def __init__(self) -> None:
        self._cursors: dict[FetchCursor, None] = {}
        self._lock = InterruptibleLock()  # code enters the lock itself, not the condition; see streams.stream_queue
        self._changed = Condition(self._lock)
        self.woken = True
        """Whether the fetcher must look at its partitions again."""
        self.stopping = False
        """Whether the fetcher ends."""

    def add(self, cursors: Sequence[FetchCursor]) -> None:
        """Fetch these partitions too. A partition that is fetched already keeps its place."""
        with self._lock:
            self._cursors |= dict.fromkeys(cursors)
            self.wake()

    def wake(self) -> None:
        """Have the fetcher look at its partitions again: a stream has room, or a position was resolved."""
        with self._lock:
            self.woken = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End the waits of the fetcher, which ends."""
        with self._lock:
            self.stopping = True
            self._changed.notify_all()

    @property
    def trouble(self) -> str:
        """Why the last try for some partition here failed; empty if all are fetched."""
        with self._lock:
            return next((cursor.trouble for cursor in self._cursors if cursor.trouble), "")

    def __len__(self) -> int:
        with self._lock:
            return len({cursor.tp for cursor in self._cursors})

    @property
    def followed(self) -> list[FetchCursor]:
        """The partitions whose leader is another broker."""
        with self._lock:
            return [cursor for cursor in self._cursors if cursor.replica != LEADER]

    def drop_revoked(self) -> bool:
        """Drop the partitions that have left. Returns whether there are none any more."""
        with self._lock:
            for cursor in [cursor for cursor in self._cursors if cursor.position.revoked]:
                del self._cursors[cursor]
            return not self._cursors

    # ---- the fetcher's thread

    def look(self) -> list[FetchCursor]:
        """Return the partitions; what wakes the fetcher from now on is for the next look."""
        with self._lock:
            self.woken = False
            return list(self._cursors)

    def wait(self, seconds: float) -> None:
        """Wait until the fetcher is woken."""
        with self._lock:
            if not self.woken and not self.stopping:
                self._changed.wait(seconds)
                self.woken = True

    def pause(self, seconds: float) -> None:
        """Wait, unless the fetcher ends."""
        with self._lock:
            self._changed.wait_for(lambda: self.stopping, seconds)

    def rotate(self, served: Sequence[FetchCursor]) -> None:
        """Move served partitions to the end of the next request, so that a capped response starves none (KIP-74). In a
        session the broker does the same with the partitions that it remembers.
        """
        with self._lock:
            self.woken = True
            for cursor in served:
                if cursor in self._cursors:
                    self._cursors[cursor] = self._cursors.pop(cursor)

    def remove(self, cursors: Sequence[FetchCursor] | None, trouble: str) -> list[FetchCursor]:
        """Remove these partitions (None: all), and return those that have not left.

        ``trouble`` is the reason of those without an own one.
        """
        returned = []
        with self._lock:
            self.woken = True
            for cursor in list(self._cursors) if cursors is None else cursors:
                cursor.trouble = trouble or cursor.trouble
                self._cursors.pop(cursor, None)
                cursor.resolving = False
                if not cursor.position.revoked:
                    returned.append(cursor)
        return returned


class ReadyPartitions:
    """The partitions that could be fetched at the last look, and their streams. The fetcher's thread."""

    def __init__(self) -> None:
        self._cursors: list[FetchCursor] = []
        self._sinks: Sequence[Sink] = ()
        self.looked_at = 0.0
        self.stirred_at = 0.0
        """When messages came last, or the fetcher was woken (monotonic seconds)."""
        self._full_since: float | None = None
        self.rack: str | None = None
        """As in a ``FetchRequest``."""

    def found(self, cursors: list[FetchCursor], rack: str) -> None:
        """Note the partitions that can be fetched, and the rack of this client."""
        self._cursors, self._sinks = cursors, tuple(dict.fromkeys(cursor.sink for cursor in cursors))
        self.rack = rack_to_tell(cursors, rack, self.looked_at)

    def welcome(self, free: int) -> list[FetchCursor]:
        """Return the partitions whose streams have room now, with ``free`` bytes left for all streams."""
        full = None
        for sink in self._sinks:
            if not sink.has_room(free):
                full = [each for each in self._sinks if each is sink or not each.has_room(free)]
                break
        if not full:
            self._full_since = None
            return self._cursors
        if self._full_since is None:
            self._full_since = monotonic()
        return [cursor for cursor in self._cursors if cursor.sink not in full]

    @property
    def full_for(self) -> float:
        """Seconds for which some stream has had no room; 0 if all have."""
        return 0.0 if self._full_since is None else monotonic() - self._full_since + 1e-6


class Fetcher:
    """Fetches from one broker on a thread of its own.

    Arguments: ``give_back`` takes the partitions whose leader must be found again; ``resolved`` takes the start offsets
    of partitions that had none, which are fetched once their position has begun there. Both are called on the fetcher's
    thread.
    """

    def __init__(
        self,
        name: str,
        broker: FetchConnection,
        settings: FetchSettings,
        *,
        give_back: Callable[[Sequence[FetchCursor]], None],
        resolved: Callable[[Mapping[PartitionPosition, int]], None],
        logins: RefusedLogins,
        failures: FailureLog,
    ) -> None:
        self.metrics = broker.metrics
        self.partitions = FetchedPartitions()
        self._logins = logins
        self._failures = failures
        self._settings = settings
        self._give_back = give_back
        self._resolved = resolved
        self._ready = ReadyPartitions()
        self._broker = broker
        broker_id = broker.endpoint.broker_id
        self._handler = ResponseHandler(broker_id, settings)
        self._truncation_check = TruncationCheck(broker, self._handler, broker_id, settings)
        self._served: Sequence[FetchCursor] = ()  # got chunks whose readers are not woken yet
        self._answered = False
        self.thread = Thread(target=self._run, name=name, daemon=True)
        self.step_began = monotonic()
        """When the thread began its last round (monotonic seconds). Any thread."""

    @property
    def endpoint(self) -> Endpoint:
        """The address of the broker."""
        return self._broker.endpoint

    def stop(self) -> None:
        """Tell the thread to end, and interrupt its wait; returns at once."""
        self.partitions.stop()
        self._broker.close()
        self._logins.forget(self)

    def join(self, deadline: Deadline) -> bool:
        """Wait for the thread's end; returns whether it ended."""
        if self.thread.is_alive():
            self.thread.join(deadline.remaining())
        return not self.thread.is_alive()

    # ---- the thread ----

    def _run(self) -> None:
        while not self.partitions.stopping:
            self.step_began = monotonic()
            try:
                self.step()
            except BrokerAuthenticationError as e:
                self._refused(e)
            except BrokerError as e:
                if not self.partitions.stopping:
                    self._failures.failed(self._name, f"{self._name} failed: {e}")
                self._answered = False
                self.lose_connection(str(e))
            except Exception as e:
                # any error: the partitions must not stall behind a dead thread
                log.exception("fetching from broker %d failed unexpectedly", self.endpoint.broker_id)
                self.lose_connection(repr(e))
        self._wake_readers()
        self._broker.close()
        self.metrics.settle()
        self._return(None)

    @property
    def _name(self) -> str:
        return f"fetching from broker {self.endpoint.broker_id}"

    def step(self) -> None:
        """Do one round: resolve start positions, send a fetch, queue the response.

        If there is nothing to fetch, it waits.
        """
        try:
            sent = self._send()
        finally:
            self._wake_readers()
        if sent:
            self._receive()
        else:
            self.partitions.wait(IDLE_WAIT)

    def _send(self) -> bool:
        """Resolve start positions and send a fetch; returns whether there was anything to fetch."""
        now, ready, budget = monotonic(), self._ready, self._broker.budget
        if self.partitions.woken:
            ready.stirred_at = now
        if self.partitions.woken or now - ready.looked_at >= LOOK_EVERY:
            self._look()
        # twice: room that was made between the look and the note that a fetcher wants it has woken no fetcher
        welcome = ready.welcome(budget.free()) or ready.welcome(budget.free())
        if not welcome:
            return False
        if not self._broker.prompt:
            self._wake_readers()  # a broker, or the source of a login's token, may take long
            self._connect()
        self._broker.send(welcome, ready.full_for, quiet=now - ready.stirred_at > QUIET_AFTER, rack=ready.rack)
        return True

    def _look(self) -> None:
        """Find the partitions that can be fetched, and resolve start positions.

        A response changes only the partitions that it names. Any other thread that changes one wakes the fetcher. So
        hundreds of idle partitions are not looked at for each message of another.
        """
        fetches = self.partitions.look()
        self._ready.looked_at = monotonic()
        if self._settings.rack:
            fetches = self._without_leaving(fetches)
        ready, unresolved = self._sorted(fetches)
        if unresolved:
            self._wake_readers()
            self._connect()
            self._resolve(unresolved)
            ready, _ = self._sorted(fetches)
        self._ready.found(ready, self._settings.rack)

    def _without_leaving(self, fetches: list[FetchCursor]) -> list[FetchCursor]:
        """Give back the partitions that are no longer to be read from this follower. Return the others."""
        leaving = [fetch for fetch in fetches if leaves_follower(fetch)]
        if leaving:
            self._return(leaving)
        return [fetch for fetch in fetches if fetch not in leaving]

    def _wake_readers(self) -> None:
        """Wake the readers of the chunks that were queued in the last round.

        They are woken after the next request was sent. Otherwise the two threads would take turns in the interpreter
        while it is written, which costs as much as a small response itself.
        """
        served, self._served = self._served, ()
        if len(served) == 1:
            served[0].sink.wake_reader()
        else:
            for sink in dict.fromkeys(fetch.sink for fetch in served):
                sink.wake_reader()

    def _connect(self) -> None:
        if self._broker.connect():
            self._logins.accepted(self)

    def _sorted(self, fetches: Sequence[FetchCursor]) -> tuple[list[FetchCursor], list[FetchCursor]]:
        """Return the partitions that can be fetched, and those whose start offset must be looked up. Ended partitions
        are dropped.

        A member that claims a partition may still borrow slots of it. A request names a partition once, so the last one
        of its cursors is fetched, and the other one after that has ended.
        """
        ready: dict[TopicPartition, FetchCursor] = {}
        unresolved, ended = [], False
        for fetch in fetches:
            position = fetch.position
            if fetch.fetch_from is not None:  # the reader has it fetched again from there
                fetch.fetched, fetch.fetch_from = fetch.fetch_from, None
            if position.halted and position.revoked:
                ended = True
            elif fetch.fetched is None:
                if not fetch.resolving and not fetch.parked:
                    unresolved.append(fetch)
            elif not position.paused and not position.full:
                ready[fetch.tp] = fetch
        if ended:
            self.partitions.drop_revoked()
        return list(ready.values()), unresolved

    def _refused(self, error: BrokerAuthenticationError) -> None:
        """Keep the partitions for a while. Otherwise the leader finder would send them here again at once."""
        if self.partitions.stopping:
            return
        self._wake_readers()  # messages that came before the refusal can be read meanwhile
        pause = self._logins.refused(self, error)
        self.partitions.pause(pause)
        if self.partitions.stopping:
            self._logins.forget(self)
        self.lose_connection(str(error))

    def lose_connection(self, trouble: str) -> None:
        """Give all partitions back: their leader may be another broker now. The next connect makes a new connection."""
        self._broker.lost()
        self._return(None, trouble)

    def _return(self, cursors: Sequence[FetchCursor] | None, trouble: str = "") -> None:
        """Return these partitions (None: all) to the leader finder. ``trouble`` is the reason of those without one."""
        returned = self.partitions.remove(cursors, trouble)
        for cursor in returned:
            if cursor.replica == self.endpoint.broker_id:
                ask_leader(cursor)
        if returned:  # also when stopping: another fetcher may take over, at the broker's new address
            self._give_back(returned)

    def _receive(self) -> None:
        """Receive the response, and queue its chunks."""
        answered = self._broker.receive()
        if answered is None:
            return
        if not self._answered:
            self._answered = True
            self._failures.over(self._name)
        parts, turned = answered
        if not parts:
            return
        self._ready.stirred_at = monotonic()
        outcomes = Outcomes()
        self._served = outcomes.served
        for part in parts:
            self._handler.handle(part, outcomes)
            fetch = part[0]
            if fetch.position.halted or fetch.position.full or fetch.fetched is None or fetch.fetch_from is not None:
                self.partitions.woken = True
        if outcomes.suspects or outcomes.out_of_range or outcomes.corrupt or outcomes.moved:
            self._settle(outcomes)
        if turned is None:
            turned = outcomes.served
        if turned:
            self.partitions.rotate(turned)

    def _settle(self, outcomes: Outcomes) -> None:
        """Deal with the partitions that did not simply get a chunk. The broker may be asked more."""
        self.partitions.woken = True
        self._wake_readers()
        self._served = outcomes.served  # which may grow
        self._truncation_check.settle(outcomes)
        if outcomes.corrupt:
            self._corrupt(outcomes.corrupt)
        if outcomes.moved:
            self._return(outcomes.moved)

    def _corrupt(self, places: Sequence[tuple[FetchCursor, CorruptRecordsError]]) -> None:
        if not self._settings.skip_corrupt:
            for fetch, error in places:
                park(fetch, error)
            return
        # never beyond the log's end: that is out of range, so auto.offset.reset would start all over again
        wanted = {fetch.tp: LATEST for fetch, _ in places}
        listed = self._broker.list_offsets(wanted)
        for fetch, error in places:
            answer = listed.get(fetch.tp, UNANSWERED)
            if answer.error != codes.NONE or answer.offset < error.next_offset:
                self._return([fetch], str(error))
                continue
            fetch.sink.skip(fetch.position, error)
            fetch.fetched = fetch.reached = error.next_offset

    def _resolve(self, fetches: Sequence[FetchCursor]) -> None:
        """Look up the start offset by ``auto.offset.reset``, for partitions without an offset."""
        resolved, failed = reset_offsets(self._broker, fetches, self._settings)
        if resolved:
            self._resolved(resolved)
        if failed:
            self._return(failed)
