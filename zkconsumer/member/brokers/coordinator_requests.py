"""The requests to the coordinator, one at a time, on a thread of their own, so that the group thread never waits.

Threads: the group thread asks questions and is told each answer as an event; the thread of this module waits for them.
A question replaces the one that is under way, whose connection is closed: a broker answers in order, and a join may
take minutes. A leave is never replaced, and has a short limit.

Mirrors the Java consumer's ``ConsumerNetworkClient``, which the thread of every caller has to poll.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from time import monotonic

from zkconsumer.errors import BrokerError, BrokerResponseError, ConfigException, CoordinatorUnavailableError
from zkconsumer.kafka.cluster_metadata import TopicsSeen
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.error_codes import ErrorAction, action_for
from zkconsumer.kafka.group_channel import GroupChannel, Joined, Membership
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

log = logging.getLogger(__name__)

STATIC_FROM = 5
"""The version of JoinGroup that knows ``group.instance.id`` (brokers from 2.3 on)."""

Protocols = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Found:
    """The coordinator is known; ``topics`` if they were asked for too."""

    coordinator: Endpoint
    topics: TopicsSeen | None


@dataclass(frozen=True, slots=True)
class Synced:
    """Our assignment, encoded; the request was sent at ``sent_at`` (monotonic seconds)."""

    assignment: bytes
    sent_at: float


Answer = Found | Joined | TopicsSeen | Synced | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A question was answered, or failed. ``ticket`` says which."""

    ticket: int
    answer: Answer = None
    error: Exception | None = None


class CoordinatorRequests:
    """Sends requests to the group coordinator, one at a time.

    Arguments: ``name`` begins the thread's name; ``search`` is used by this thread alone; ``tell`` is called with every
    answer, on this thread; ``timeout`` in seconds for one exchange that the broker answers at once.
    """

    def __init__(
        self, name: str, search: CoordinatorSearch, tell: Callable[[Answered], None], *, timeout: float
    ) -> None:
        self._search = search
        self._tell = tell
        self._timeout = timeout
        self._coordinator: GroupChannel | None = None  # this and the next are the thread's
        self._place: Endpoint | None = None
        self._questions: SimpleQueue[tuple[int, bool, Callable[[], Answer]] | None] = SimpleQueue()
        self._lock = InterruptibleLock()  # guards the three below
        self._ticket = 0
        self._under_way = 0
        self._lasting = False
        self.thread = Thread(target=self._run, name=f"{name}-coordinator", daemon=True)

    @property
    def found(self) -> bool:
        """Whether a coordinator was ever found."""
        return self._place is not None

    def close(self, deadline: Deadline) -> None:
        """End the thread and close the connection; never waits beyond the deadline."""
        self._questions.put(None)
        self._search.close()
        if self.thread.is_alive():
            self.thread.join(deadline.remaining())

    # ---- questions; each returns the ticket of its answer

    def find(self, topics: Collection[str] | None, *, look: bool) -> int:
        """Find the coordinator again. ``look``: ask it for topics too (None: for all)."""

        def ask() -> Found:
            self._drop()
            channel = self._coordinator = self._search.find(Deadline(self._timeout))
            self._place = channel.endpoint
            return Found(channel.endpoint, self._look(channel, topics) if look else None)

        return self._put(ask)

    def join(self, who: Membership, protocols: Protocols, *, session: float, rebalance: float, limit: float) -> int:
        """Join. Times in seconds; the other members may take ``limit``."""

        def ask() -> Joined:
            channel = self._connected()
            if who.instance_id is not None and channel.versions["JoinGroup"] < STATIC_FROM:
                raise ConfigException(
                    "group.instance.id", f"broker {channel.endpoint.broker_id} is older than 2.3 and does not know it"
                )
            return channel.join(
                who, protocols, session_timeout=session, rebalance_timeout=rebalance, deadline=Deadline(limit)
            )

        return self._put(ask)

    def sync(self, who: Membership, protocol: str, assignments: Mapping[str, bytes], *, limit: float) -> int:
        """Sync; the leader gives the ``assignments``."""

        def ask() -> Synced:
            sent_at = monotonic()
            got = self._connected().sync(who, protocol=protocol, assignments=assignments, deadline=Deadline(limit))
            return Synced(got, sent_at)

        return self._put(ask)

    def topics(self, topics: Collection[str] | None) -> int:
        """Ask for topics; None: for all."""
        return self._put(lambda: self._look(self._connected(), topics))

    def leave(self, who: Membership, *, limit: float) -> int:
        """Leave over a new connection: the open connection may be waiting for a join.

        A coordinator that has moved is found once more. Otherwise the other members wait for the end of our session.
        """

        def ask() -> None:
            deadline, place = Deadline(limit), self._place
            self._drop()
            if place is not None:
                try:
                    self._leave(self._search.connect(place, deadline), who, deadline)
                    return
                except BrokerError as e:
                    if action_for(e) is not ErrorAction.FIND_COORDINATOR:
                        raise
            self._leave(self._search.find(deadline), who, deadline)

        return self._put(ask, lasting=True)

    def cancel(self) -> int:
        """Drop the present question. Returns a ticket that gets no answer."""
        with self._lock:
            self._ticket += 1
            self._interrupt()
            return self._ticket

    # ---- inside

    def _put(self, ask: Callable[[], Answer], *, lasting: bool = False) -> int:
        with self._lock:
            self._ticket += 1
            self._interrupt()
            self._questions.put((self._ticket, lasting, ask))
            return self._ticket

    def _interrupt(self) -> None:
        """The caller holds the lock."""
        if self._under_way and not self._lasting:
            self._search.interrupt()

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            ticket, lasting, ask = question
            with self._lock:
                if ticket != self._ticket and not lasting:
                    continue
                self._under_way, self._lasting = ticket, lasting
            try:
                answered = Answered(ticket, ask())
            except Exception as e:  # noqa: BLE001 (the asker decides about every error)
                answered = Answered(ticket, error=e)
                if not isinstance(e, BrokerResponseError):
                    self._drop()
            with self._lock:
                self._under_way = 0
            self._tell(answered)
        self._drop()

    def _connected(self) -> GroupChannel:
        """The coordinator as it was found; after an interrupted question over a new connection."""
        channel = self._coordinator
        if channel is None or not self._search.is_open(channel):
            if self._place is None:
                raise CoordinatorUnavailableError("the coordinator is not known")
            channel = self._coordinator = self._search.connect(self._place, Deadline(self._timeout))
            with self._lock:  # a question that replaced ours before we connected could not close this connection
                if self._under_way != self._ticket:
                    raise CoordinatorUnavailableError("nobody waits for this answer any more")
        return channel

    def _look(self, channel: GroupChannel, topics: Collection[str] | None) -> TopicsSeen:
        return channel.topics(topics, Deadline(self._timeout))

    def _leave(self, channel: GroupChannel, who: Membership, deadline: Deadline) -> None:
        try:
            channel.leave(who, deadline)
        finally:
            self._search.discard(channel)

    def _drop(self) -> None:
        channel, self._coordinator = self._coordinator, None
        if channel is not None:
            self._search.discard(channel)
