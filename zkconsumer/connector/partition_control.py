"""The calls of an application that concern single partitions: look, pause, move, commit.

:class:`PartitionControl` is a base of the connector, because these methods would only forward to a part. The connector
for asyncio has one as a part for calls that block, and calls the functions below with the messages that its task holds.
A plain pair (topic, number) will do for a partition everywhere; anything else raises TypeError. Any thread may call,
also the listener's. Only the group thread changes positions; callers ask it and wait.

The original has nothing of this but ``commitOffsets``; names and meanings follow Kafka's newer consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from threading import get_native_id
from typing import TYPE_CHECKING, Literal

from zkconsumer.connector.health import Health, health_of
from zkconsumer.connector.lifecycle import Lifecycle
from zkconsumer.errors import (
    ConnectorClosedException,
    OffsetCommitError,
    PartitionNotOwnedError,
    RegistryError,
    RegistryUnavailableError,
)
from zkconsumer.member.connector_state import ConnectorState
from zkconsumer.model import EARLIEST, LATEST, PartitionLike, TopicPartition, is_offset, partition_of, partitions_of
from zkconsumer.runtime.deadline import Deadline

if TYPE_CHECKING:
    from zkconsumer.offsets.commit_schedule import GivenOffset
    from zkconsumer.offsets.committer import Committer
    from zkconsumer.ownership.partition_position import Held, PartitionPosition
    from zkconsumer.runtime.metrics import MetricName, Value

log = logging.getLogger(__name__)

_PLACES = {"earliest": EARLIEST, "smallest": EARLIEST, "latest": LATEST, "largest": LATEST}


SECONDS = range(10**9, 10**10)
"""Times that are seconds since 1970 for whoever lives today; in ms they are days early in 1970."""
BEYOND_MS = 10**14
"""The first of the times that only micro- and nanoseconds reach for whoever lives today; in ms it is the year 5138."""


def _check_time(what: object, time: object) -> None:
    """Raise ValueError for anything that is no time in ms since 1970, or surely in another unit."""
    if isinstance(time, bool) or not isinstance(time, int) or not 0 <= time < 1 << 63:
        advice = "; write int(seconds * 1000)" if isinstance(time, float) else ""
        raise ValueError(f"{what}: a time is a whole number of ms since 1970, not {time!r}{advice}")
    if time in SECONDS:
        raise ValueError(f"{what}: {time} are seconds since 1970, it seems; a time is in ms: write {time} * 1000")
    if time >= BEYOND_MS:
        raise ValueError(f"{what}: {time} are micro- or nanoseconds since 1970, it seems; a time is in ms")


class PromptCalls:
    """The calls that return at once, of a connector with this ``lifecycle``, for threads or for asyncio."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle

    def __dir__(self) -> list[str]:
        hidden = ("lifecycle",)  # for other parts of the connector
        return [name for name in super().__dir__() if name.startswith("__") or (name[0] != "_" and name not in hidden)]

    @property
    def state(self) -> ConnectorState:
        """The present state of the member, and what it waits for."""
        return self.lifecycle.state

    def health(self) -> Health:
        """Return whether this member is live and ready, and why not; for the probes of a scheduler.

        Any thread, also a signal handler: this takes no lock and waits for nothing.
        """
        return health_of(self.lifecycle)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that this member owns now."""
        return frozenset(self.lifecycle.positions())

    def position(self, partition: PartitionLike) -> int | None:
        """Return the offset of the next message to hand out; None while the start is not known yet.

        Raises: :class:`PartitionNotOwnedError`.
        """
        return owned_position(self.lifecycle, partition_of(partition)).finished(including_held=True)

    def lag(self) -> dict[TopicPartition, int | None]:
        """Return for each owned partition how many messages follow those that are finished.

        None if that is not known: nothing was fetched yet, or nobody leads the partition now. The high watermark of the
        last fetch counts, so the lag of a paused partition is as old as the pause. With
        ``isolation.level=read_committed`` the last stable offset counts: messages that an open transaction holds back
        are left out.
        """
        member = self.lifecycle.member
        return {} if member is None else member.lags()

    # ---- pausing ----

    def pause(self, partitions: Iterable[PartitionLike]) -> None:
        """Fetch and hand out nothing of these until :meth:`resume`. They stay ours, and other partitions of a stream
        flow on.

        A message that is in hand stays so. A partition that a rebalance takes away is no longer paused when it comes
        back.
        Raises: :class:`PartitionNotOwnedError` for the first that is not ours; those before it are paused.
        """
        for tp in partitions_of(partitions):
            self._gate(tp, paused=True)

    def resume(self, partitions: Iterable[PartitionLike]) -> None:
        """Go on with paused partitions where they stopped.

        Raises: :class:`PartitionNotOwnedError` for the first that is not ours; those before it are resumed.
        """
        for tp in partitions_of(partitions):
            self._gate(tp, paused=False)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return frozenset(tp for tp, position in self.lifecycle.positions().items() if position.paused)

    def _gate(self, tp: TopicPartition, *, paused: bool) -> None:
        member = self.lifecycle.live()
        while True:
            position = owned_position(self.lifecycle, tp)
            queue = member.delivery.stream_of(position).queue
            if paused:
                queue.pause(position)
            else:
                queue.resume(position)
            if not position.revoked or self.lifecycle.positions().get(tp) is position:
                return  # ours, or leaving us; otherwise the partition has a new position, which is meant


class PartitionControl(PromptCalls):
    """The calls for single partitions of the connector with this ``lifecycle``."""

    # ---- looking ----

    def committed(self, partition: PartitionLike, timeout: float | None = None) -> int | None:
        """Return the committed offset of the group for a partition; None if nothing is stored yet.

        For an owned partition it is the offset that this member last read or wrote. For any other one the store of
        offsets is asked, for at most ``timeout`` seconds (by default the session timeout, at least 5).
        Raises: :class:`PartitionNotOwnedError` before streams are created; :class:`RegistryUnavailableError` if the
        store did not answer in time, and its own errors.
        """
        tp = partition_of(partition)
        position = self.lifecycle.positions().get(tp)
        if position is not None:
            return position.stored.committed
        deadline = self.lifecycle.deadline(timeout)
        committer = self.lifecycle.live().committer
        if committer is None:
            raise PartitionNotOwnedError("this member owns nothing yet: create streams first")
        try:
            stored = committer.of_group([tp]).result(deadline.remaining()).get(tp, -1)
        except TimeoutError:
            raise RegistryUnavailableError(f"the offset of {tp} could not be read in time") from None
        return stored if stored >= 0 else None

    def metrics(self) -> Mapping[MetricName, Value]:
        """Return every metric of this member with its value now, under the original's names.

        A name is (group, type, name, tags). Its text is as in JMX, such as
        ``kafka.consumer:type=ConsumerTopicMetrics,name=MessagesPerSec,clientId=readers,topic=events``. Values are
        numbers, texts, :class:`~zkconsumer.runtime.metrics.MeterValue`, :class:`~zkconsumer.runtime.metrics.TimerValue`
        (milliseconds) and :class:`~zkconsumer.runtime.metrics.HistogramValue`. Cheap enough to be asked every second.
        """
        member = self.lifecycle.member
        return {} if member is None else member.parts.metrics.snapshot()

    # ---- moving ----

    def seek(
        self,
        partition: PartitionLike,
        offset: int | Literal["earliest", "latest", "smallest", "largest"],
        timeout: float | None = None,
    ) -> None:
        """Go on at another offset of a partition.

        Fetched messages of it are dropped, and one that is in hand counts no more. The position before is never
        committed after this; the new one is, with the next commit. ``auto.offset.reset`` applies to an offset that is
        not in the log. An error means that the position did not move, unless the error says otherwise.

        Arguments: ``offset``, or the word for the beginning or the end of the log, which its leader is asked for;
        ``timeout`` in seconds, by default the session timeout (at least 5).
        Raises: :class:`PartitionNotOwnedError`; :class:`BrokerUnavailableError`; TimeoutError, also for a commit under
        way; :class:`OffsetCommitError` if the outcome of an earlier commit cannot be found out; ValueError.
        """
        seek_to(self.lifecycle, partition, offset, self.lifecycle.deadline(timeout))

    def seek_to_timestamp(
        self, timestamp: int, partitions: Iterable[PartitionLike] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Go on at the first message that is not older than a time, or at the end if there is none.

        Arguments: ``timestamp`` in ms since 1970 (``int(time.time() * 1000)``); ``partitions``, by default all of ours;
        ``timeout`` as for :meth:`seek`. Brokers before 0.10.1 know only when segments of the log ended. They tell a
        place at most a whole segment too early, or the beginning if no whole segment is older.
        Returns: the offset at which each goes on. Raises: as :meth:`seek`.
        """
        return seek_to_time(self.lifecycle, timestamp, partitions, self.lifecycle.deadline(timeout))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first message that is not older than a time; None if there is none.

        Arguments: ``times`` in ms since 1970, of any partitions, not only ours; ``timeout`` as for :meth:`seek`.
        Raises: :class:`BrokerUnavailableError` if a leader did not answer in time; ValueError for a value that is no
        time.
        """
        if not isinstance(times, Mapping):
            raise TypeError(f"a mapping from partitions to times is wanted, not {times!r}")
        wanted = {partition_of(tp): time for tp, time in times.items()}
        for tp, time in wanted.items():
            _check_time(tp, time)
        return self.lifecycle.live().lookup.find(wanted, self.lifecycle.deadline(timeout)) if wanted else {}

    # ---- committing ----

    def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Write the progress of all owned partitions now, or the given offsets as they are.

        Without ``offsets``, a message that the calling thread holds counts as finished, so ``process(m);
        connector.commit_offsets()`` commits ``m``. Messages that other threads hold do not count.

        Arguments: ``offsets`` maps partitions to the next offset to consume; ``timeout`` in seconds, by default the
        session timeout (at least 5). Given offsets do not move the consumption, and with ``auto.commit.enable`` the
        next automatic commit writes the progress again. The offset of a partition that this member does not own is
        written only while nobody owns it (the original overwrites its owner's).
        A call that ends by its timeout or by an exception sends nothing after that. A commit that was sent before may
        still land, and counts no message that the thread takes later.
        Raises: :class:`OffsetCommitError` naming the offsets that could not be written, and why;
        :class:`ConnectorClosedException`; ValueError or TypeError for a value that is no offset.
        """
        commit(self.lifecycle, given_offsets(self.lifecycle, offsets), timeout)

    def commit_offsets_async(
        self,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None,
        callback: Callable[[BaseException | None], object] | None = None,
        timeout: float | None = None,
    ) -> Future[None]:
        """Begin a :meth:`commit_offsets`, and return at once.

        Messages that the calling thread holds at this moment count as finished. Later messages do not.

        Arguments: as for :meth:`commit_offsets`; ``callback`` is called at the end with the error, or None. It runs on
        the thread that does all commits: return soon, and wait there for no other commit and no shutdown. The
        callback's exceptions are logged.
        Returns: a future, which raises as :meth:`commit_offsets` does. Raises at once: ConnectorClosedException;
        ValueError or TypeError for a value that is no offset.
        """
        given, held = given_offsets(self.lifecycle, offsets), _held_here(self.lifecycle)
        done, _ = begin_commit(self.lifecycle, given, held, timeout)
        if callback is not None:
            done.add_done_callback(lambda done: _tell(callback, done.exception()))
        return done


def owned_position(lifecycle: Lifecycle, tp: TopicPartition) -> PartitionPosition:
    """Return the position of an owned partition. Raises PartitionNotOwnedError, ForkedProcessError."""
    if lifecycle.forked is not None:
        raise lifecycle.forked
    position = lifecycle.positions().get(tp)
    if position is None:
        raise PartitionNotOwnedError(f"{tp} is not owned by this member")
    return position


# ---- moving


def seek_to(
    lifecycle: Lifecycle,
    partition: PartitionLike,
    offset: int | Literal["earliest", "latest", "smallest", "largest"],
    deadline: Deadline,
) -> None:
    """Go on at another offset of a partition. Arguments and errors: as :meth:`PartitionControl.seek`."""
    tp = partition_of(partition)
    if isinstance(offset, str):
        if offset not in _PLACES:
            raise ValueError(f"{offset!r} is no place; there are {', '.join(map(repr, _PLACES))}")
        owned_position(lifecycle, tp)
        found = lifecycle.live().lookup.find({tp: _PLACES[offset]}, deadline)[tp]
        offset = found if found is not None else 0
    if not is_offset(offset):
        raise ValueError(f"{tp}: an offset is a whole number from 0 on of 64 bits, not {offset!r}")
    _seek(lifecycle, {tp: offset}, deadline)


def seek_to_time(
    lifecycle: Lifecycle, timestamp: int, partitions: Iterable[PartitionLike] | None, deadline: Deadline
) -> dict[TopicPartition, int]:
    """Go on at the first message from a time on. As :meth:`PartitionControl.seek_to_timestamp`."""
    _check_time("seek_to_timestamp", timestamp)
    wanted = list(lifecycle.positions()) if partitions is None else partitions_of(partitions)
    for tp in wanted:
        owned_position(lifecycle, tp)
    lookup = lifecycle.live().lookup
    found = lookup.find(dict.fromkeys(wanted, timestamp), deadline) if wanted else {}
    ends = [tp for tp in wanted if found[tp] is None]
    places = {**found, **(lookup.find(dict.fromkeys(ends, LATEST), deadline) if ends else {})}
    offsets = {tp: place if place is not None else 0 for tp, place in places.items()}
    _seek(lifecycle, offsets, deadline)
    return offsets


def _seek(lifecycle: Lifecycle, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> None:
    positions = {owned_position(lifecycle, tp): offset for tp, offset in offsets.items()}
    strange = lifecycle.live().seek(positions, deadline)
    if strange:
        raise PartitionNotOwnedError(f"not owned by this member: {', '.join(map(str, sorted(strange)))}")


# ---- committing


def commit(lifecycle: Lifecycle, given: Mapping[TopicPartition, GivenOffset] | None, timeout: float | None) -> None:
    """Write the progress, or given offsets. As :meth:`PartitionControl.commit_offsets`."""
    held = _held_here(lifecycle)
    committer, deadline, closing = _committer(lifecycle, given, held, timeout)
    if committer is not None:
        committer.commit(held, deadline, given)
        if closing and given is None:
            _check_committed(held)


def begin_commit(
    lifecycle: Lifecycle,
    given: Mapping[TopicPartition, GivenOffset] | None,
    held: Held,
    timeout: float | None,
    *,
    in_listener: bool = False,
) -> tuple[Future[None], Deadline]:
    """Begin a commit. Arguments: the messages that the caller ``held`` count as finished.

    Returns: its future, and its time. It is withdrawn if the time ends before it begins.
    """
    committer, deadline, closing = _committer(lifecycle, given, held, timeout, in_listener=in_listener)
    done: Future[None] = Future()
    if committer is None:
        done.set_result(None)
        return done, deadline
    asked = committer.begin_commit(held, deadline, given)
    asked.add_done_callback(lambda asked: _hand_on(asked, done, held if closing and given is None else {}))
    return done, deadline


def _committer(
    lifecycle: Lifecycle,
    given: Mapping[TopicPartition, GivenOffset] | None,
    held: Held,
    timeout: float | None,
    *,
    in_listener: bool = False,
) -> tuple[Committer | None, Deadline, bool]:
    """Return the committer, None before streams are created; the time of a commit; and whether a shutdown has begun.

    A shutdown waits for messages in hand, so a thread may still commit what it ``held``.
    """
    member = lifecycle.member
    closing = lifecycle.end.begun and not (in_listener or (member is not None and member.in_listener))
    if closing and not held:
        raise lifecycle.forked or ConnectorClosedException("the connector was shut down; its last commit is done")
    if member is None or member.committer is None:
        if given:
            raise OffsetCommitError("not connected: create streams first (an empty mapping makes none)")
        return None, Deadline(0.0), closing
    limit = member.request_timeout if timeout is None else timeout
    if closing:  # no longer than the shutdown waits for what is in hand
        limit = lifecycle.end.remaining if timeout is None else min(timeout, lifecycle.end.remaining)
    return member.committer, Deadline(limit), closing


def _held_here(lifecycle: Lifecycle) -> Held:
    """Return the messages that the calling thread has in its hands."""
    member = lifecycle.member
    return {} if member is None else member.held_by(get_native_id())


def given_offsets(
    lifecycle: Lifecycle, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None
) -> Mapping[TopicPartition, GivenOffset] | None:
    """Return offsets that a caller gave, each with the ownership of its partition now.

    Raises: as :func:`checked_offsets`.
    """
    if offsets is None:
        return None
    from zkconsumer.offsets.commit_schedule import GivenOffset

    positions = lifecycle.positions()
    return {tp: GivenOffset.as_of_call(positions.get(tp), offset) for tp, offset in checked_offsets(offsets).items()}


def checked_offsets(offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
    """Return the offsets that a caller gave. Raises ValueError or TypeError for a value that is no offset."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"a mapping from partitions to offsets is wanted, not {offsets!r}")
    found = {partition_of(tp): offset for tp, offset in offsets.items()}
    for tp, offset in found.items():
        if not is_offset(offset):
            kind = TypeError if isinstance(offset, bool) or not isinstance(offset, int) else ValueError
            raise kind(f"{tp}: an offset is a whole number from 0 on of 64 bits, not {offset!r}")
    return found


def _check_committed(held: Held) -> None:
    """Raise ConnectorClosedException if the last commit came before this one, which then wrote nothing."""
    late = [f"{one.tp} at {one.consumed}" for one, offsets in held.items() if one.stored.committed != offsets.stop]
    if late:
        raise ConnectorClosedException(
            f"the connector was shut down, and its last commit was done without {', '.join(late)}: it is consumed again"
        )


def _hand_on(asked: Future[None], done: Future[None], held: Held) -> None:
    """Give the end of a commit to its caller, who may have cancelled its future."""
    if not done.set_running_or_notify_cancel():
        return
    error = asked.exception()
    if error is None:
        try:
            _check_committed(held)
        except ConnectorClosedException as late:
            error = late
    elif isinstance(error, RegistryError):
        refused = OffsetCommitError(f"the commit failed: {error}")
        refused.__cause__ = error
        error = refused
    try:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
    except BaseException:  # SystemExit of a callback, say, would end the thread that all commits need
        log.exception("a callback of a commit failed")


def _tell(callback: Callable[[BaseException | None], object], error: BaseException | None) -> None:
    """Call the callback of a commit."""
    try:
        callback(error)
    except BaseException:  # as in _hand_on
        log.exception("the callback of a commit failed")
