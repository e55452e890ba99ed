"""One member of a group, from joining to leaving, however the group is coordinated. No algorithm, no decision.

Threads: the application's thread makes and opens a member; any thread shuts it down. In between the member only holds
its parts, which guard themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Thread, get_native_id
from time import monotonic
from typing import Any

from zkconsumer.core.registration import Registration
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerRebalanceFailedException,
    OffsetCommitError,
    RegistryUnavailableError,
)
from zkconsumer.member.close_times import CloseTimes
from zkconsumer.member.connector_state import ConnectorState, Phase, StandstillLog, stands_still
from zkconsumer.member.events import SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.group_thread import PartitionGroupThread
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.committer import Committer, LateCommitError
from zkconsumer.ownership.partition_position import NOTHING_HELD, Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.wiring.member_parts import Coordination, MemberParts

log = logging.getLogger(__name__)

A_MOMENT = 5.0
"""Seconds for a step of the group thread that has begun and waits for nothing."""
WHY_LASTS = 0.1
"""Seconds for which reads that got nothing tell the same state."""


class GroupMember:
    """One member of a group. Nothing is connected or started before :meth:`open`."""

    def __init__(self, parts: MemberParts, coordination: Coordination) -> None:
        self.parts = parts
        self.coordination = coordination
        self.config = parts.config
        self.consumer = parts.consumer
        self.lease = parts.lease
        self.events = parts.events
        self.fetching = parts.fetching
        self.delivery = parts.delivery
        self.lookup = parts.lookup
        self.committer: Committer | None = None
        self.engine: PartitionGroupThread | None = None
        self._closing = False
        self._standstill = StandstillLog(parts.consumer)
        self._why_nothing_came = "", -WHY_LASTS
        self.not_committed: Sequence[str] = ()
        """After the end: positions from which messages are consumed again, although a commit was due."""

    # ---- joining and leaving

    def open(self, registration: Registration) -> None:
        """Connect, start all threads, and wait for the first rebalance.

        Waiting for it turns a wrong set-up into an exception here; otherwise the user would get a silent stream.
        Raises: as :meth:`ZookeeperConsumerConnector.create_message_streams`; close the member then.
        """
        log.debug("%s: effective configuration: %s", self.consumer, self.config.masked())
        self._check_open()
        engine, committer = self.prepare(registration)
        self._check_open()  # from here on close() finds the group thread, and stops it
        if self.parts.listener is not None:
            self.parts.listener.thread.start()
        committer.open()
        self.fetching.open()
        engine.start(self._look)
        self._await_first_round(engine)
        self._check_open()

    def prepare(self, registration: Registration) -> tuple[PartitionGroupThread, Committer]:
        """Connect, and make the group thread and the committer without starting them. Raises as :meth:`open`."""
        self.coordination.connect()
        committer = self.parts.committer(self.coordination.offsets(), self.coordination.request_timeout)
        self.committer = committer
        self.engine = self.coordination.engine(registration, committer)
        return self.engine, committer

    def _check_open(self) -> None:
        if self._closing:
            raise ConnectorClosedException("the connector was shut down while it joined the group")

    def close(self, deadline: Deadline, *, finished: bool) -> None:
        """End everything within the deadline. ``finished``: the message in the calling thread's hands is finished.

        Each step leaves time for the later ones, so that no step cuts another short. May be called again, to close the
        parts that :meth:`open` began at the same time. From its beginning on no stream hands out a message, and readers
        that wait for one end.
        """
        self._closing = True
        times = CloseTimes.within(deadline)
        with ExitStack() as last:  # in reverse, and each step also if one before it failed
            if self.parts.listener is not None:
                last.callback(self.parts.listener.close, times.end)
            last.callback(self.coordination.disconnect, times.before_last(1))
            if self.committer is not None:
                last.callback(self.committer.close, times.before_last(2))
            last.callback(self.fetching.close, times.before_last(3))
            last.callback(self.lookup.close)
            last.callback(self.delivery.end)
            if self.engine is not None:
                last.callback(self._end_group, self.engine, times)
                self.settle_in_hand(get_native_id(), finished=finished)
                # the group thread does so too, but it may be waiting for an answer, and readers must not wait for it
                self.end_streams()
                self.fetching.forget()

    def end_streams(self) -> None:
        """Hand out no message any more, end readers that wait for one, and have :meth:`open` raise.

        Any thread, but no signal handler: it takes the locks of queues. Returns at once.
        """
        self._closing = True
        self.delivery.end()
        self.delivery.revoke(list(self.positions().values()))

    def _end_group(self, engine: PartitionGroupThread, times: CloseTimes) -> None:
        """Have the group thread leave.

        If it waits for an answer that does not come, close the connection it waits on.
        """
        patience = times.patience
        self.events.put(StopRequested(deadline=patience))
        if not engine.join(patience):
            if self.committer is not None:
                self.committer.interrupt()
            try:
                self.coordination.disconnect(times.before_last(5))
            finally:
                engine.join(times.before_last(4))
        if self.config.auto_commit_enable and not (self.committer is not None and self.committer.copies):
            positions = engine.left or engine.positions().values()
            self.not_committed = [text for text in map(_not_committed, positions) if text]
            if self.not_committed:
                log.warning(
                    "%s was shut down; these messages are consumed again, for they are not committed: %s",
                    self.consumer,
                    ", ".join(self.not_committed),
                )

    def _await_first_round(self, engine: PartitionGroupThread) -> None:
        began, limit = monotonic(), self.coordination.joining_limit()
        try:
            while True:
                try:
                    engine.first_round.result(max(0.0, began + limit - monotonic()))
                    return
                except FutureTimeoutError:
                    if limit >= (limit := self.coordination.joining_limit()):
                        raise
        except (FutureTimeoutError, CancelledError) as e:
            detail = engine.state.detail
            better = self.coordination.why_not_joined(detail)
            if better is not None:
                raise better from e
            raise ConsumerRebalanceFailedException(
                f"{self.consumer} could not join group {self.config.group_id!r} within {limit:.0f} s: "
                f"{detail or engine.state}"
            ) from e

    # ---- messages in hand

    def held_by(self, thread: int) -> Held:
        """Return the messages, or rows, that the calling thread (native identifier) has in its hands."""
        return {position: position.range_in_hand for position in self.in_hand(thread) if position.ledger is None}

    def in_hand(self, thread: int) -> Sequence[PartitionPosition]:
        """Return the positions whose message, or rows, that thread (native identifier) has in its hands."""
        found = []
        for position in self.positions().values():
            with suppress(KeyError):  # its stream has just been retired
                if position.held and self.delivery.held_by(position, thread):
                    found.append(position)
        return found

    def settle_in_hand(self, thread: int, *, finished: bool) -> None:
        """Take messages out of the hands of the calling thread, which waits for the end and asks for no more.

        Arguments: ``thread`` is its native identifier; ``finished``: its message counts as finished. Otherwise the
        message is consumed again, unless the thread has committed it explicitly.
        """
        self.settle_positions(self.in_hand(thread), finished=finished)

    def settle_positions(self, positions: Iterable[PartitionPosition], *, finished: bool) -> None:
        """Take the messages of these positions out of the hands of their reader, as :meth:`settle_in_hand` does."""
        for position in positions:
            end = position.finished(including_held=True)
            committed = self.committer is not None and self.committer.tracker.counted_in_hand(position) == end
            if (finished or committed) and end is not None:
                position.held_until = end  # finished and no longer held at once, by the next line
                position.consumed = end
            else:
                position.held_until = NOTHING_HELD
            with suppress(KeyError):  # its stream has just been retired, and nothing waits for it any more
                self.delivery.stream_of(position).queue.wake_revocation()

    # ---- questions and requests of the application

    @property
    def request_timeout(self) -> float:
        """The limit of a request to the coordinator, in seconds."""
        return self.coordination.request_timeout

    @property
    def state(self) -> ConnectorState | None:
        """The member's state, with the problems that the group thread does not know of; None before there is one."""
        if self.engine is None:
            return None
        followers = {fetch.tp: fetch.replica for fetch in self.fetching.fetchers.followed}
        return replace(self.engine.state, followers=followers).beside("; ".join(filter(None, self.troubles)))

    def _look(self) -> None:
        """Log a standstill and its end. The group thread calls this."""
        if (state := self.state) is not None and self.engine is not None:
            reads = self.delivery.reads and not self._closing
            still = reads and stands_still(self.engine.state, self._obstacle)
            self._standstill.look(state, monotonic(), still=still)

    @property
    def _obstacle(self) -> str:
        """Why owned partitions are not fetched; empty if they are, or if the application has paused them all."""
        if (owned := self.positions().values()) and all(position.paused for position in owned):
            return ""
        starts = "" if self.committer is None else self.committer.tracker.starts.trouble
        return self.fetching.trouble or starts

    def why_nothing_came(self) -> str:
        """Return the state, if the member does not own and has not read all that it should; else an empty text.

        Any thread. A read that gave up tells this. The text is at most :data:`WHY_LASTS` old: it takes a millisecond
        for a thousand partitions. A program may poll thousands of times a second, and so do streams read as one.
        """
        text, since = self._why_nothing_came
        if monotonic() - since >= WHY_LASTS:
            text = self._made_why()
            self._why_nothing_came = text, monotonic()
        return text

    def _made_why(self) -> str:
        state = self.state
        if state is None:
            return ""
        unread = sum(max(0, position.lag) for position in self.positions().values())
        if state.phase is Phase.OWNING and 0 < state.owned == state.wanted and not state.detail and not unread:
            return ""
        return f"{state}; {unread} messages are not read yet" if unread else str(state)

    def streams(
        self, topic: str, count: int, message: type[MessageAndMetadata[Any, Any]], ended: Callable[[], None]
    ) -> list[KafkaStream[Any, Any]]:
        """Return new streams of a topic, in thread order; ``ended`` is called at the end of each."""
        name = f"{topic}/{self.consumer}" if topic else self.consumer
        new, why = self.parts.new_stream, self.why_nothing_came
        return [new(f"{name}-{number}", message, ended, KafkaStream, why) for number in range(count)]

    @property
    def threads(self) -> Sequence[Thread]:
        """All threads of this member, also those that have not begun or have ended. Any thread; takes no lock."""
        groups = [side.group.thread for side in self.coordination.sides]
        offsets = [] if self.committer is None else [self.committer.thread]
        listener = [] if self.parts.listener is None else [self.parts.listener.thread]
        return [*groups, *self.coordination.threads, *self.fetching.threads, *offsets, *listener]

    @property
    def troubles(self) -> tuple[str, ...]:
        """The problems that the group thread does not know of, for the user; some may be empty."""
        starts = self.committer.trouble if self.committer is not None else ""
        return (self.coordination.concern, self.coordination.trouble, self.fetching.trouble, starts)

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """Return the partitions that are owned now (a copy)."""
        return {} if self.engine is None else self.engine.positions()

    def lags(self) -> dict[TopicPartition, int | None]:
        """Return the lag of each owned partition; None if nothing was fetched yet, or the partition has no leader."""
        leaderless, owned = self.fetching.leaderless, self.positions().items()
        return {tp: None if tp in leaderless or position.lag < 0 else position.lag for tp, position in owned}

    @property
    def in_listener(self) -> bool:
        """Whether the calling thread is the one of the application's listener, for which the group thread waits."""
        listener = self.parts.listener
        return listener is not None and listener.is_current

    def ask(self, request: SeekRequested | SubscriptionChanged) -> None:
        """Hand a request to the group thread. One that comes after the thread's end fails at once."""
        self.events.put(request)
        if self.engine is not None:
            self.engine.refuse_late()

    def seek(self, offsets: Mapping[PartitionPosition, int], deadline: Deadline) -> frozenset[TopicPartition]:
        """Continue the ownerships of these positions at these offsets. Return the partitions whose ownership has ended.

        No commit of the positions before is under way afterwards. Raises: TimeoutError and :class:`OffsetCommitError`;
        the positions that they name did not move, unless they say otherwise.
        """
        assert self.committer is not None, "it owns partitions"
        left, ended = dict(offsets), set[TopicPartition]()
        try:
            while left:
                try:
                    self.committer.prepare_seek(left, deadline)
                except LateCommitError as e:
                    raise TimeoutError(f"{self._unmoved(left)}: a commit under way was not answered in time") from e
                except OffsetCommitError as e:
                    raise OffsetCommitError(f"{self._unmoved(left)}: {e}") from e
                unmoved = self._seek(left, deadline)
                moved_on = {position.latest: offset for position, offset in left.items() if position in unmoved}
                # another seek, or an offset that somebody else wrote, came in between: the ownership is the same
                owned = self.positions()
                left = {one: offset for one, offset in moved_on.items() if owned.get(one.tp) is one and not one.revoked}
                ended.update(one.tp for one in moved_on if one not in left)
        finally:
            deadline.expire()  # commits of positions that did not move go on
        return frozenset(ended)

    def _seek(self, offsets: Mapping[PartitionPosition, int], deadline: Deadline) -> frozenset[PartitionPosition]:
        request = SeekRequested(dict(offsets), Request(deadline))
        try:
            return request.done.ask(lambda: self.ask(request))
        except TimeoutError:
            if request.done.withdrawn:
                raise TimeoutError(f"{self._unmoved(offsets)} in time; {self.state or ''}") from None
        try:
            return request.done.result(A_MOMENT)  # it has begun, and waits for nothing
        except TimeoutError:
            if request.done.withdrawn:  # the group thread was about to decide that
                raise TimeoutError(f"{self._unmoved(offsets)} in time; {self.state or ''}") from None
            names = ", ".join(str(position.tp) for position in offsets)
            raise TimeoutError(f"{self.consumer}: the seek of {names} has begun, and did not end in time") from None

    def _unmoved(self, positions: Iterable[PartitionPosition]) -> str:
        return f"{self.consumer}: {', '.join(str(position.tp) for position in positions)} did not move"

    def change_deadline(self, timeout: float | None) -> Deadline:
        """Return the time of a subscription change: ``timeout`` seconds, by default as long as a rebalance may take.

        In the listener a call returns at once, because the rebalance waits for it. Its change has no end.
        """
        if self.in_listener:
            return Deadline(None)
        config = self.config
        users = config.rebalance_drain_timeout_ms + 2 * config.rebalance_listener_timeout_ms
        return Deadline(2 * self.request_timeout + users / 1000 if timeout is None else timeout)

    def await_change(self, change: Request[None]) -> None:
        """Wait until the group knows the subscription. Inside the listener return at once: the rebalance waits for it.

        Raises: RegistryUnavailableError at the deadline, ConnectorClosedException.
        """
        if self.in_listener:
            return
        try:
            change.result(change.deadline.remaining())
        except TimeoutError:
            change.deadline.expire()
            fate = "the subscription stays as it was" if change.withdrawn else "it has begun, and is tried further"
            raise RegistryUnavailableError(
                f"{self.consumer}: the group could not be told in time of the other topics; {fate}: {self.state or ''}"
            ) from None


def _not_committed(position: PartitionPosition) -> str:
    """Describe finished or held messages that are not committed after the end; empty if there are none."""
    finished, committed = position.finished(including_held=False), position.stored.committed
    held = position.held
    in_hand = held and position.ledger is not None  # one of several: what is finished does not count it
    if finished is None or (committed == position.finished(including_held=True) and not in_hand):
        return ""
    if held:
        return f"{position.tp} at {finished} (it was still in hand when time was up)"
    return "" if finished == committed else f"{position.tp} at {finished if committed is None else committed}"
