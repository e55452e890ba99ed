"""One thread that fetches from one broker: every partition it leads and we own, long-polled, in one request after the
other.

Threads: :meth:`Fetcher.step` is the thread's; ``add``, ``stop`` and ``wake`` come from the leader finder, the group's
thread and the streams. The condition guards the list of flows only; nothing is sent or awaited while it is held.

Mirrors the original's ``ConsumerFetcherThread``. Differs on purpose: a partition whose stream has no room is left out
of the request and so holds up nobody (there the thread blocks with all its partitions); no more is asked for than may
come, whatever the broker's generation; where the broker remembers, only what is new is said (``session``); the fetched
offset moves on only after the chunk is queued (KAFKA-154) and is taken from the data's own headers; an unexpected
answer hands the partition back to the leader finder and never ends the thread silently; a start position is stored
before the first message is handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Condition, Thread
from time import monotonic

from zkconsumer.brokers import (
    BrokerChannel,
    CorruptRecordsError,
    FetchAnswer,
    FetchedPartition,
    FetchRequest,
    ListedOffset,
)
from zkconsumer.brokers import errors as codes
from zkconsumer.brokers.extent import extent, offset_after_partial
from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    MessageSizeTooLargeException,
    UnreadableMessageError,
)
from zkconsumer.fetch.flow import EARLIEST, LATEST, Budget, FetchSettings, Flow, Sink, Unlimited
from zkconsumer.fetch.logins import Logins
from zkconsumer.fetch.measures import FetchMeasures
from zkconsumer.fetch.session import FetchSession, Wanted
from zkconsumer.fetch.sizing import patience, sized
from zkconsumer.metrics import Metrics
from zkconsumer.model import Endpoint, TopicPartition

__all__ = ["EARLIEST", "LATEST", "FetchSettings", "Fetcher", "Flow", "Sink"]

log = logging.getLogger(__name__)

IDLE_WAIT = 1.0
CAPPING_FETCH = 3
"""From this version of the request on brokers keep to the limit of a whole answer (KIP-74)."""
_SESSION_ERRORS = (codes.FETCH_SESSION_ID_NOT_FOUND, codes.INVALID_FETCH_SESSION_EPOCH)
_STRANGER: tuple[Flow | None, int, int] = (None, 0, 0)
_UNANSWERED = ListedOffset(-1, -1, codes.UNKNOWN_SERVER_ERROR)


class _Told:
    """What a fetch answer said of partitions, by what is to be done about them."""

    __slots__ = ("corrupt", "moved", "out_of_range", "served")

    def __init__(self) -> None:
        self.served: list[Flow] = []
        self.moved: list[Flow] = []
        self.out_of_range: list[Flow] = []
        self.corrupt: list[tuple[Flow, CorruptRecordsError]] = []


class Fetcher:
    """Fetches from one broker on a thread of its own.

    Arguments: ``give_back`` takes the flows whose leader must be found again; ``resolved`` is told the start offset
    of a partition that had none (the flow waits until its position has begun there). Both are called on the fetcher's
    thread. ``budget`` is shared with the streams and the other fetchers.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        settings: FetchSettings,
        *,
        give_back: Callable[[Sequence[Flow]], None],
        resolved: Callable[[PartitionPosition, int], None],
        logins: Logins | None = None,
        metrics: Metrics | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.measures = FetchMeasures(metrics or Metrics(), settings.client_id, endpoint)
        self._logins = logins or Logins()
        self._settings = settings
        self._give_back = give_back
        self._resolved = resolved
        self._flows: dict[TopicPartition, Flow] = {}
        self._changed = Condition()
        self._woken = False
        self._stopping = False
        self._channel = BrokerChannel(
            endpoint,
            client_id=settings.client_id,
            socket_timeout=settings.socket_timeout,
            receive_buffer=settings.receive_buffer,
            security=settings.security,
        )
        self._budget = budget or Unlimited()
        self._session = FetchSession()
        self._ends: dict[TopicPartition, int] = {}
        self._full_since: float | None = None
        self._capping = False
        self._connected = False
        self._failing = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end and interrupt what it waits for; returns at once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._channel.close()
        self._logins.forget(self)

    def join(self, deadline: Deadline) -> bool:
        """Wait for the thread's end; returns whether it ended."""
        if self._thread.is_alive():
            self._thread.join(deadline.remaining())
        return not self._thread.is_alive()

    def add(self, flows: Sequence[Flow]) -> None:
        """Fetch these too; one that is fetched already keeps its place."""
        with self._changed:
            for flow in flows:
                self._flows[flow.tp] = flow
            self._woken = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Something changed (a stream has room, a position was resolved): look again."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    @property
    def trouble(self) -> str:
        """Why some partition here could not be fetched when it was tried last; empty where all go well."""
        with self._changed:
            return next((flow.trouble for flow in self._flows.values() if flow.trouble), "")

    @property
    def partitions(self) -> int:
        """How many partitions are fetched here."""
        with self._changed:
            return len(self._flows)

    @property
    def idle(self) -> bool:
        """Whether no partition of ours is left here."""
        with self._changed:
            self._drop_revoked()
            return not self._flows

    def _drop_revoked(self) -> None:
        for tp in [tp for tp, flow in self._flows.items() if flow.position.revoked]:
            del self._flows[tp]

    # ---- the thread ----

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.step()
            except BrokerAuthenticationError as e:
                self._refused(e)
            except BrokerError as e:
                if not self._stopping:
                    # once, not at every try while a broker is away
                    level = logging.DEBUG if self._failing else logging.WARNING
                    log.log(level, "fetching from broker %d failed: %s", self.endpoint.broker_id, e)
                self._failing = True
                self._lose_connection(str(e))
            except Exception as e:
                # whatever it was, the partitions must not stall behind a dead thread
                log.exception("fetching from broker %d failed unexpectedly", self.endpoint.broker_id)
                self._lose_connection(repr(e))
        self._channel.close()
        self.measures.settle()
        self._return_all()

    def step(self) -> None:
        """One round: resolve start positions, fetch what has room, queue the answer; or wait for something to do."""
        with self._changed:
            self._drop_revoked()
            flows = list(self._flows.values())
            self._woken = False
        unresolved = [f for f in flows if f.position.fetched is None and not f.resolving and not f.parked]
        if unresolved:
            self._connect()
            self._resolve(unresolved, initial=True)
        ready = [flow for flow in flows if flow.position.fetched is not None and not flow.position.paused]
        # looked at again: room that was made before it was known that somebody wants it has woken nobody
        welcome = self._welcome(ready) or self._welcome(ready)
        if not welcome:
            self._wait(IDLE_WAIT)
            return
        self._connect()
        self._fetch(welcome)

    def _welcome(self, ready: Sequence[Flow]) -> list[Flow]:
        """Those whose streams have room now."""
        free = self._budget.free()
        rooms: dict[Sink, bool] = {}
        for flow in ready:
            if flow.sink not in rooms:
                rooms[flow.sink] = flow.sink.has_room(free)
        if all(rooms.values()):
            self._full_since = None
        elif self._full_since is None:
            self._full_since = monotonic()
        return [flow for flow in ready if rooms[flow.sink]]

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._woken and not self._stopping:
                self._changed.wait(seconds)

    def _connect(self) -> None:
        if not self._connected:
            self._session.forget()
            self._channel.connect(Deadline(self._settings.socket_timeout))
            self._capping = self._channel.versions["Fetch"] >= CAPPING_FETCH
            self._logins.accepted(self)
            self._connected = True

    def _refused(self, error: BrokerAuthenticationError) -> None:
        """Keep the partitions for a while, so that the leader finder does not send them here again at once."""
        if self._stopping:
            return
        pause = self._logins.refused(self, error)
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, pause)
        if self._stopping:
            self._logins.forget(self)
        self._lose_connection(str(error))

    def _lose_connection(self, trouble: str) -> None:
        # connect() makes a fresh one; whoever leads these partitions now is asked for again
        self._connected = False
        self._return_all(trouble)

    def _return_all(self, trouble: str = "") -> None:
        with self._changed:
            flows = list(self._flows.values())
            self._flows.clear()
        self._return(flows, trouble)

    def _return(self, flows: Sequence[Flow], trouble: str = "") -> None:
        """Give these back to the leader finder. ``trouble`` says why, where the flows do not say it themselves."""
        returned = []
        with self._changed:
            for flow in flows:
                flow.trouble = trouble or flow.trouble
                if self._flows.get(flow.tp) is flow:
                    del self._flows[flow.tp]
                flow.resolving = False
                if not flow.position.revoked:
                    returned.append(flow)
        if returned:  # when stopping too: only this fetcher may end, in favour of one at the broker's new address
            self._give_back(returned)

    def _fetch(self, flows: Sequence[Flow]) -> None:
        settings = self._settings
        limit = self._budget.reserve(settings.max_bytes)
        try:
            plan = sized(flows, limit, settings.partition_bytes, capped=self._capping)
            asked: dict[TopicPartition, tuple[Flow | None, int, int]] = {}
            for asking, size in plan.asked:
                start = asking.position.fetched
                if start is not None:
                    asked[asking.tp] = (asking, start, size)
            full_for = 0.0 if self._full_since is None else monotonic() - self._full_since + 1e-6
            wait = patience(settings.max_wait, plan.turns, full_for)
            answer = self._exchange({tp: Wanted(start, size) for tp, (_, start, size) in asked.items()}, limit, wait)
        finally:
            self._budget.release(limit)
        if answer is None:
            return
        self._failing = False
        told = _Told()
        flow: Flow | None
        for part in answer.partitions:
            flow, offset, size = asked.get(TopicPartition(part.topic, part.partition), _STRANGER)
            if flow is not None and not flow.position.revoked and flow.position.fetched == offset:
                self._judge(flow, offset, size, part, told)
            # else it left, or moved, while the answer was under way
        self._know_ends(asked, answer)
        self._rotate(told.served if plan.turns == 1 else [flow for flow, _ in plan.asked])
        if told.out_of_range:
            self._resolve(told.out_of_range, initial=False)
        if told.corrupt:
            self._corrupt(told.corrupt)
        if told.moved:
            self._return(told.moved)

    def _know_ends(self, asked: Mapping[TopicPartition, tuple[Flow | None, int, int]], answer: FetchAnswer) -> None:
        """In a session the broker tells the log's end when it has changed. A position that is new (after a seek) learns
        it from what was told before.
        """
        ends = self._ends
        for part in answer.partitions:
            ends[TopicPartition(part.topic, part.partition)] = part.high_watermark if part.error == codes.NONE else -1
        for tp, (flow, _, _) in asked.items():
            if flow is not None and flow.position.log_end < 0:
                flow.position.log_end = ends.get(tp, -1)

    def _exchange(self, wanted: Mapping[TopicPartition, Wanted], limit: int, wait: float) -> FetchAnswer | None:
        """One request and its answer; None where the broker has forgotten what it was told, and all is to be said
        anew.
        """
        settings = self._settings
        if not self._session.incremental:
            self._ends.clear()
        say = self._session.next(wanted)
        for tp in say.forgotten:
            self._ends.pop(tp, None)
        request = FetchRequest(
            say.positions,
            wait,
            settings.min_bytes,
            limit,
            settings.isolation_level,
            say.session_id,
            say.epoch,
            say.forgotten,
        )
        deadline = Deadline(settings.socket_timeout + wait)
        began = monotonic()
        try:
            answer = self._channel.receive_fetch(self._channel.send_fetch(request, deadline), deadline)
        except BrokerResponseError as e:
            if e.code not in _SESSION_ERRORS or not self._session.refused():
                raise
            log.debug("%s: everything is said anew", e)
            return None
        self.measures.fetched(monotonic() - began, answer)
        self._session.answered(answer.session_id)
        return answer

    def _judge(self, flow: Flow, offset: int, size: int, part: FetchedPartition, told: _Told) -> None:
        """Take one partition's data, or find out what to do about it instead."""
        broker = self.endpoint.broker_id
        if part.error == codes.NONE:
            flow.trouble = ""
            try:
                if self._take(flow, offset, size, part):
                    told.served.append(flow)
            except CorruptRecordsError as e:
                told.corrupt.append((flow, e))
        elif part.error == codes.CORRUPT_MESSAGE:
            reason = f"broker {broker} cannot read it and answers {codes.name(part.error)}"
            told.corrupt.append((flow, CorruptRecordsError(flow.tp, offset, offset + 1, reason)))
        elif part.error == codes.OFFSET_OUT_OF_RANGE:
            told.out_of_range.append(flow)
        else:
            flow.trouble = f"{flow.tp}: broker {broker} answered {codes.name(part.error)}"
            log.info("%s", flow.trouble)
            told.moved.append(flow)

    def _rotate(self, served: Sequence[Flow]) -> None:
        """Who had its turn goes to the end of the next request, so that a limited answer starves nobody (KIP-74). In a
        session the broker does the same with those that it remembers.
        """
        with self._changed:
            for flow in served:
                if self._flows.get(flow.tp) is flow:
                    self._flows[flow.tp] = self._flows.pop(flow.tp)

    def _take(self, flow: Flow, offset: int, size: int, part: FetchedPartition) -> bool:
        """Queue one partition's data, for which ``size`` bytes were asked; returns whether there was any. Raises
        CorruptRecordsError where not even the first batch can be told.
        """
        position = flow.position
        position.log_end = part.high_watermark
        if not part.records:
            return False
        reach = extent(part.records, flow.tp, offset)
        if reach.next_offset is None:
            if reach.wanted:
                self._grow(flow, offset, (size, reach.wanted), part.records)
            return False
        flow.sink.deliver(position, part.records, (offset, reach.next_offset), part.aborted, reach.messages)
        # only now: an interruption before this line fetches the chunk again, after it nothing is lost (KAFKA-154)
        position.fetched = reach.next_offset
        flow.least = min(flow.least, self._settings.partition_bytes)  # one huge message makes no others
        return True

    def _grow(self, flow: Flow, offset: int, sizes: tuple[int, int], records: bytes) -> None:
        """Only a part of a message came: it is larger than what was asked for (KAFKA-160, KAFKA-994)."""
        asked, wanted = sizes
        limit = max(self._settings.max_bytes, self._settings.partition_bytes)
        if wanted <= limit and asked < wanted:
            flow.least = wanted
            log.info("%s: the message at offset %d needs a fetch of %d bytes", flow.tp, offset, wanted)
            return
        self._fail(
            flow,
            MessageSizeTooLargeException(
                f"{flow.tp} at offset {offset}: the message takes {wanted} bytes, the largest fetch allowed is {limit}:"
                " raise fetch.max.bytes, or call skip() on the stream",
                flow.tp,
                offset,
                offset_after_partial(records, offset),
            ),
        )

    @staticmethod
    def _fail(flow: Flow, error: UnreadableMessageError) -> None:
        """Have the stream raise when it comes to that place, and fetch nothing behind it until it is given up."""
        flow.parked = True
        flow.position.fetched = None  # before anybody can give the place up, which sets it
        flow.sink.fail(flow.position, error)

    def _corrupt(self, places: Sequence[tuple[Flow, CorruptRecordsError]]) -> None:
        if not self._settings.skip_corrupt:
            for flow, error in places:
                self._fail(flow, error)
            return
        # never beyond the end: out of range there, auto.offset.reset would start all over again
        wanted = {flow.tp: LATEST for flow, _ in places}
        listed = self._channel.list_offsets(wanted, Deadline(self._settings.socket_timeout))
        for flow, error in places:
            answer = listed.get(flow.tp, _UNANSWERED)
            if answer.error != codes.NONE or answer.offset < error.next_offset:
                self._return([flow], str(error))
                continue
            flow.sink.skip(flow.position, error)
            flow.position.fetched = error.next_offset

    def _resolve(self, flows: Sequence[Flow], *, initial: bool) -> None:
        """Ask where ``auto.offset.reset`` begins: for partitions without an offset, and for those whose offset is not
        in the log.
        """
        wanted = {flow.tp: self._settings.reset_to for flow in flows}
        deadline = Deadline(self._settings.socket_timeout)
        listed = self._channel.list_offsets(wanted, deadline, isolation_level=self._settings.isolation_level)
        failed = []
        for flow in flows:
            answer = listed.get(flow.tp, _UNANSWERED)
            offset = answer.offset
            if answer.error != codes.NONE or offset < 0:
                said = f"broker {self.endpoint.broker_id} says no start offset: {codes.name(answer.error)}"
                flow.trouble = f"{flow.tp}: {said}"
                log.info("%s", flow.trouble)
                failed.append(flow)
            elif initial:
                flow.resolving = True
                self._resolved(flow.position, offset)
            else:
                log.warning(
                    "%s: offset %s is not in the log; continuing at %d by auto.offset.reset",
                    flow.tp,
                    flow.position.fetched,
                    offset,
                )
                flow.position.fetched = offset
                flow.sink.jump(flow.position, offset)
        if failed:
            self._return(failed)
