"""One message on its way through the dispatcher, and the two sides of an executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from zkconsumer.balance.outcomes import Outcome
from zkconsumer.ownership.message_ledger import MessageLedger
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.stream_queue import Chunk


class Work:
    """One message that a handler is to be called with.

    * ``message``: what the handler gets
    * ``chunk``: the fetched chunk that the message is read from; None for one that was fetched alone (a pointer's)
    * ``lane``: the lane that keeps its order; None if it has none
    * ``attempts``: the failed attempts so far, the first at ``first_ms`` (milliseconds since 1970; 0: none)
    * ``failure``: why the last attempt failed, empty if none did, or nobody here knows
    * ``not_before``: when it may be handed out again (monotonic seconds; 0: at once)
    * ``answer``: the outcome that the application told before the handler ended
    * ``partition``: its partition in this stay, as the dispatcher sees it
    """

    attempts = 0
    first_ms = 0
    failure = ""
    not_before = 0.0
    answer: Outcome | None = None
    partition: Any = None

    def __init__(self, message: Any, offset: int, ledger: MessageLedger, chunk: Chunk | None, lane: Any = None) -> None:
        self.message = message
        self.offset = offset
        self.ledger = ledger
        self.chunk = chunk
        self.lane = lane


class WorkSource(Protocol):
    """The dispatcher, as executors see it. Any thread."""

    def take(self, most: int, deadline: Deadline) -> Sequence[Work]:
        """Return work to begin now, at most so many; nothing at the deadline, or when the run ends.

        Those of one lane are in order and follow each other. When one of them does not end with DONE, the later ones of
        its lane must be settled with NOT_STARTED.
        """

    @property
    def lease_until(self) -> float:
        """Until when handlers may begin: the lease's end, in monotonic seconds, which a machine's processes share."""

    def may_start(self, work: Work) -> bool:
        """Return whether the handler may begin now: the session's lease is good, the partition and slot are ours.

        If not, settle it with NOT_STARTED.
        """

    def look(self) -> None:
        """Have another worker look for messages: the caller has settled some, and will not take any soon."""

    def settle(self, outcomes: Sequence[tuple[Work, Outcome]]) -> None:
        """Note outcomes, several at once. A work that was taken is settled exactly once, PENDING then once more."""

    def took(self, messages: int, seconds: float) -> None:
        """Note how long the handlers of some messages took together. Any thread; returns at once."""

    def abort(self, error: BaseException) -> None:
        """End the run with an error that is nobody's handler's."""

    @property
    def ended(self) -> bool:
        """Whether nothing is to be taken any more."""


class Executor(Protocol):
    """Runs handlers. Made for one run; ``concurrency`` handlers at the same time at most."""

    def start(self, source: WorkSource) -> None:
        """Begin to take work, on threads of its own."""

    def wake(self) -> None:
        """There may be work to take. Any thread; returns at once."""

    def drained(self, deadline: Deadline) -> bool:
        """Take no more, and wait for handlers until the deadline; end none. Returns whether all have returned."""

    def stop(self, deadline: Deadline) -> bool:
        """End: take no more, wait for handlers until the deadline. Returns whether all have returned.

        Handlers in processes and coroutines that have not returned are ended; threads cannot be.
        """
