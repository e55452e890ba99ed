"""The application's rebalance listener, and the thread that runs it.

Threads: :class:`ListenerThread` runs every call on a thread of its own, in order. The group thread waits for a call, up
to its limit, and then goes on. No lock is held while the application's code runs. Other threads answer the
application's commits, and the waiting group thread answers seeks. So the application cannot lock up with us, as in
KAFKA-4735.

Mirrors the original's ``ConsumerRebalanceListener``. Differs on purpose: partitions that stay are not released, so they
are not listed. A call that raises or blocks is reported and does not fail the rebalance. A shutdown releases partitions
and so calls the listener too. Lost partitions have a method of their own. Values are plain Python types (KAFKA-2284).
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread, get_ident
from typing import TYPE_CHECKING, Any

from zkconsumer.member.connector_state import LISTENERS
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.runtime.deadline import Deadline

if TYPE_CHECKING:
    from zkconsumer.ownership.partition_position import PartitionPosition

log = logging.getLogger(__name__)

CLOSING_LIMIT = 1.0
"""Seconds a call may take once the connector is being shut down."""
SERVE_EVERY = 0.25
UNBOUNDED = Deadline(None)


class ConsumerRebalanceListener:
    """Base class of an application's listener, which is told when partitions come and go. The defaults do nothing::

        class Flush(ConsumerRebalanceListener):
            def before_releasing_partitions(self, partitions):
                print("write what is open of", partitions)

        connector.set_consumer_rebalance_listener(Flush())  # before streams are created

    Every method is called on a thread of the connector's own, one at a time, and may call the connector's methods. The
    rebalance waits for it, up to ``rebalance.listener.timeout.ms``. ``connector.state`` shows its errors.
    """

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        """Called before these partitions (numbers by topic) leave this member.

        Nothing of them is handed out any more. They are still ours, so ``commit_offsets()`` works. With
        ``auto.commit.enable`` finished messages are committed after this returns.
        """

    def before_starting_fetchers(
        self, consumer_id: str, assignment: Mapping[TopicPartition, ThreadId]
    ) -> Mapping[TopicPartition, int] | None:
        """Called when the assignment changed, or before partitions that came to this member are fetched.

        Arguments: ``consumer_id`` is this member's; ``assignment`` names the thread of the group that owns each
        partition, by this member's strategy.
        Returns: offsets at which to start partitions that came just now. Other partitions start where the last owner
        ended.
        """

    def on_partitions_lost(self, partitions: Mapping[str, frozenset[int]]) -> None:
        """Called after these partitions were lost: the session expired, or their owner nodes were deleted.

        Other members may own them already, and no offset of them can be committed.
        """


def by_topic(positions: Iterable[PartitionPosition]) -> dict[str, frozenset[int]]:
    """Return the partitions of these in the form of a listener's argument."""
    found: dict[str, set[int]] = {}
    for position in positions:
        found.setdefault(position.tp.topic, set()).add(position.tp.partition)
    return {topic: frozenset(numbers) for topic, numbers in sorted(found.items())}


class ListenerThread:
    """Runs the methods of a listener, one after the other.

    Arguments: ``returned`` is called on this thread after each.
    """

    def __init__(self, listener: ConsumerRebalanceListener, name: str, returned: Callable[[], None]) -> None:
        self._listener = listener
        self._returned = returned
        self._calls: SimpleQueue[tuple[str, tuple[Any, ...], Future[Any]] | None] = SimpleQueue()
        self.thread = Thread(target=self._run, name=f"{name}-listener", daemon=True)

    def close(self, deadline: Deadline) -> None:
        """End the thread after all requested calls; a call that blocks is left behind at the deadline."""
        self._calls.put(None)
        if self.thread.is_alive() and not self.is_current:
            self.thread.join(deadline.remaining())
            if self.thread.is_alive():
                log.warning("the rebalance listener does not return; its thread %s is left behind", self.thread.name)

    @property
    def is_current(self) -> bool:
        """Whether the caller is inside the listener."""
        return self.thread.ident == get_ident()

    def ask(self, method: str, *arguments: Any) -> Future[Any]:
        """Have a method called after all earlier ones; return at once."""
        future: Future[Any] = Future()
        self._calls.put((method, arguments, future))
        return future

    def stack(self) -> str:
        """Return the stack of the thread, for a report."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            method, arguments, future = call
            try:
                future.set_result(getattr(self._listener, method)(*arguments))
            except BaseException as e:  # noqa: BLE001 (SystemExit too: it must be reported and not end this thread)
                future.set_exception(e)
            self._returned()


class ListenerCalls:
    """The listener as the group thread calls it; without one every call returns at once.

    Arguments: ``limit`` in seconds for a call; ``serve`` answers requests while a call is waited for. It gets the
    seconds that it may take, and returns whether a shutdown is requested, which hurries the listener.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        serve: Callable[[float], bool],
        thread: ListenerThread | None = None,
        limit: float = 3.0,
    ) -> None:
        self._consumer = consumer
        self._serve = serve
        self._thread = thread
        self._limit = limit
        self._told: Mapping[TopicPartition, ThreadId] | None = None
        self.trouble = ""
        """The trouble of the last call, in words for the user; empty if there was none."""

    @property
    def exists(self) -> bool:
        """Whether there is a listener."""
        return self._thread is not None

    def releasing(self, positions: Iterable[PartitionPosition], within: Deadline = UNBOUNDED) -> None:
        """Call ``before_releasing_partitions`` and wait for it, not beyond ``within``."""
        self._call("before_releasing_partitions", by_topic(positions), within=within)

    def lost(self, positions: Iterable[PartitionPosition]) -> None:
        """Have ``on_partitions_lost`` called, without waiting for it."""
        if self._thread is not None:
            method = "on_partitions_lost"
            future = self._thread.ask(method, by_topic(positions))
            future.add_done_callback(lambda late: _report_late(method, late))

    def start_offsets(
        self, assignment: Mapping[TopicPartition, ThreadId], came: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Call ``before_starting_fetchers``, unless nothing came and the assignment is the same as last time.

        Returns its valid offsets of partitions that ``came`` just now.
        """
        if not came and assignment == self._told:
            return {}
        self._told = dict(assignment)
        starts = self._call("before_starting_fetchers", self._consumer, dict(assignment))
        if starts is None:
            return {}
        if not isinstance(starts, Mapping):
            log.error("before_starting_fetchers must return offsets by partition or None, not %r", starts)
            return {}
        valid = {}
        for tp, offset in starts.items():
            if tp not in came:
                log.warning("the listener's offset for %s is not used: it did not come to us just now", tp)
            elif isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
                log.error("the listener's offset for %s is not used: %r is no offset", tp, offset)
            else:
                valid[TopicPartition(*tp)] = offset
        return valid

    def _call(self, method: str, *arguments: Any, within: Deadline = UNBOUNDED) -> Any:
        """Call a method and wait for it. Returns None if it raised or did not return in time, which is reported."""
        if self._thread is None:
            return None
        future = self._thread.ask(method, *arguments)
        limit, hurried = Deadline(within.bounded(self._limit)), False
        while not future.done() and not limit.expired:
            if self._serve(limit.bounded(SERVE_EVERY)) and not hurried:
                limit, hurried = Deadline(limit.bounded(CLOSING_LIMIT)), True
        if not future.done():
            self.trouble = f"{LISTENERS}{method} does not return, so the member goes on without it"
            log.error("%s. It stands at:\n%s", self.trouble, self._thread.stack())
            future.add_done_callback(lambda late: _report_late(method, late))
            return None
        error = future.exception()
        self.trouble = "" if error is None else _raised(method, error)
        return None if error is not None else future.result()


def _raised(method: str, error: BaseException) -> str:
    said = str(error).replace("; ", ", ")  # troubles in a state are separated so
    trouble = f"{LISTENERS}{method} raised {type(error).__name__}: {said}"
    log.error("%s; going on", trouble, exc_info=error)
    return trouble


def _report_late(method: str, future: Future[Any]) -> None:
    error = future.exception()
    if error is not None:
        _raised(method, error)
    else:
        log.debug("the listener's %s returned", method)
