"""``membership=member``: the query as a live member of its group, beside Scala members, ours and other queries.

What registers, claims, releases and commits is the connector's own machinery; it only delivers to nobody: a batch
reads its ranges by itself, and tells how far it has finished by the positions' ``consumed``, which every commit and
every release writes, fenced. Where the brokers coordinate the group, its parts are those of ``coordinated``.

Threads: Spark calls on the main thread of the query's driver process, which the group never needs: its own thread
serves it between triggers. ``<consumer>-attendant`` looks after ``releaseAfter`` and the checkpoint, and
leaves the group when Spark's JVM, our parent, is gone while the main thread waits for something else. Both mark
positions as consumed, under a lock that guards only that and which batch runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final, Protocol

from zkconsumer.config import ConsumerConfig
from zkconsumer.connector import consumer_id
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.deadline import Deadline
from zkconsumer.errors import CoordinatorUnavailableError, OffsetCommitError, RegistryError
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.engine import Engine
from zkconsumer.member.events import LookAgain, StartsResolved
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.spark.batch_retention import Keeper, KeepingStrategy
from zkconsumer.spark.checkpoint import Checkpoint
from zkconsumer.spark.offset_ranges import Progress, encode_progress
from zkconsumer.spark.options import ReadOptions, Selection
from zkconsumer.stream_delivery import Delivery
from zkconsumer.wiring import Member, MemberParts
from zkconsumer.zookeeper.lease import Lease

log = logging.getLogger(__name__)

CLOSE_WITHIN: Final = 5.0
SETTLE_WITHIN: Final = 30.0
"""Seconds that a query which reads only what is there now (availableNow), or repeats a batch, waits for its share."""
_POLL: Final = 0.05
_SHORTEST_POLL: Final = 0.001
"""Most of what is waited for takes the group's thread some milliseconds, and a trigger waits for it."""
_ATTEND: Final = 0.5
_RETRY: Final = 1.0
"""Seconds until a commit that failed is tried again."""
_LAST_LOOK: Final = 1.0


class BatchDelivery(Delivery):
    """What the group's thread is told to deliver to, where batches read by themselves: it notes what is revoked."""

    def __init__(self, member: MemberParts) -> None:
        super().__init__(member.consumer, member.lease)
        self.refusal: Exception | None = None

    def accept(self, positions: Sequence[PartitionPosition]) -> Sequence[tuple[PartitionPosition, Any]]:
        """Let the next batch find them; it reads by itself."""
        return ()

    def started(self, position: PartitionPosition) -> bool:
        """Return whether it is known where this one starts, or that the group has no offset of it."""
        return True

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        """Let no batch that is planned from now on read these; the keeper has kept those of a running one."""
        for position in positions:
            position.revoked = True

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        """Wait for nobody: the strategy leaves the partitions of a running batch where they are."""

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        """Let the next batch find the new one."""
        new.paused = new.halted = old.paused
        self.revoke([old])

    def refuse(self, error: Exception | None) -> None:
        """The next call of Spark's raises ``error``; None takes it back."""
        self.refusal = error

    def fail(self, position: PartitionPosition, error: Exception) -> None:
        """The next call of Spark's raises ``error``."""
        self.refusal = error

    def held_by(self, position: PartitionPosition, thread: int) -> bool:
        """Nobody holds single messages."""
        return False


class ReadingMember(Protocol):
    """The parts of a member that reads in batches, whoever coordinates its group."""

    keeper: Keeper
    batches: BatchDelivery
    consumer: ConsumerId
    lease: Lease
    events: SimpleQueue[Any]
    committer: Committer | None
    rebalancer: Engine | None

    @property
    def request_timeout(self) -> float:
        """Seconds that a request on whoever coordinates may take."""

    @property
    def settled(self) -> bool:
        """Whether all that is ours is owned, as far as is known."""

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""

    def open(self, registration: Registration) -> None:
        """Join; see :meth:`MemberParts.open`."""

    def seek(self, offsets: Mapping[TopicPartition, int], deadline: Deadline) -> frozenset[TopicPartition]:
        """Go on at these offsets; see :meth:`MemberParts.seek`."""

    def close(self, deadline: Deadline, *, finished: bool) -> None:
        """Leave; see :meth:`MemberParts.close`."""


class QueryMember(Member):
    """The parts of a member that reads in batches."""

    def __init__(self, config: ConsumerConfig, consumer: ConsumerId, release_after: float | None) -> None:
        super().__init__(config, consumer)
        self.keeper = Keeper(release_after, lambda reason: self.events.put(LookAgain(reason)))
        self.batches = self.delivery = BatchDelivery(self)
        self.strategy = KeepingStrategy(config, self.keeper, self.positions)

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """What is owned now (a copy)."""
        return {} if self.rebalancer is None else self.rebalancer.positions()

    @property
    def settled(self) -> bool:
        """Whether all that is ours by the strategy is owned, as far as is known."""
        rebalancer = self.rebalancer
        return rebalancer is not None and rebalancer.state.phase is Phase.OWNING and self.session.lease.valid


class GroupMember:
    """How a query stands to its group as a live member of it (``progress.Membership``). The constructor does no I/O."""

    def __init__(self, options: ReadOptions, parent: Callable[[], int] = os.getppid) -> None:
        self._options = options
        self._member = _reading_member(options)
        self._checkpoint = Checkpoint(options.checkpoint) if options.checkpoint is not None else None
        self._marking = Lock()
        self._running: tuple[int, Progress] | None = None
        self._finished: Progress = {}
        self._settled_for: Mapping[TopicPartition, PartitionPosition] = {}
        self._refused: Mapping[TopicPartition, int | None] = {}
        self._try_at = 0.0
        self._ending = Event()
        self._tired = False
        self._parent = parent
        self._attendant = Thread(target=self._attend, name=f"{self._member.consumer}-attendant", daemon=True)

    @property
    def consumer(self) -> ConsumerId:
        """The member's name."""
        return self._member.consumer

    def join(self) -> None:
        """Register and own a share. Raises RegistryError, ConsumerRebalanceFailedException, ConfigException."""
        self._attendant.start()
        self._member.open(registration(self._options.selection))

    def leave(self) -> None:
        """Commit what is finished, release, deregister; within seconds. May be called again."""
        self._ending.set()
        if self._attendant.is_alive():
            self._attendant.join(_LAST_LOOK)
        self._member.close(Deadline(CLOSE_WITHIN), finished=False)
        if self._attendant.is_alive():
            self._attendant.join(CLOSE_WITHIN)

    # ---- Spark's calls ----

    def settle(self, done: Progress) -> None:
        """Batches up to here are finished: write that for what is ours. What cannot be written is written later, or
        repeated by the next owner, which is logged; the query need not end for that.
        """
        with self._marking:
            ours = self._mark(done)
        self._write(ours)

    def _mark(self, done: Progress) -> Mapping[TopicPartition, PartitionPosition]:
        """Note how far the batches are that are finished. Returns what is ours. The lock is held."""
        member = self._member
        ours = member.positions()
        self._finished, self._settled_for = done, ours if all(map(member.batches.started, ours.values())) else {}
        for tp, span in done.items():
            position = ours.get(tp)
            if position is not None and position.consumed is not None and position.consumed < span.end:
                position.consumed = span.end  # never back: others may have gone on from there
        return ours

    def _write(self, ours: Mapping[TopicPartition, PartitionPosition]) -> None:
        """Commit; one that failed is tried again only after a second: an idle query has many triggers in that time."""
        member = self._member
        due = {tp: position.consumed for tp, position in ours.items() if position.consumed != position.committed}
        if not due or (due == self._refused and monotonic() < self._try_at):
            return
        assert member.committer is not None
        try:
            member.committer.commit(lambda _: False, Deadline(member.request_timeout))
        except (OffsetCommitError, RegistryError) as error:
            level = logging.DEBUG if due == self._refused else logging.WARNING  # each once
            log.log(level, "the group's offsets do not follow this batch (yet): %s", error)
            self._refused, self._try_at = due, monotonic() + _RETRY
        else:
            self._refused = {}

    def claim(self, partitions: Collection[TopicPartition], *, patient: bool) -> frozenset[TopicPartition]:
        """What of the existing partitions is ours and may be read in the next batch; it is kept from now on.

        Arguments: ``patient``: wait for all of our share, not beyond a limit, and not again for what did not come then.
        Raises CoordinatorUnavailableError where a patient one is not in the brokers' group (of a ZooKeeper that is away
        the query hears when it asks for partitions); whatever nobody but the user can help against.
        """
        member = self._member
        if member.batches.refusal is not None:
            raise member.batches.refusal
        if patient or not self._all_started():
            member.keeper.end(member.keeper.batch)  # Spark plans the next one: who waits for its partitions may go on
        if patient and not self._tired and not self._await(lambda: member.settled, SETTLE_WITHIN):
            self._tired = True
            log.warning(
                "going on without all of our share of the group: %s", member.rebalancer and member.rebalancer.state
            )
        if not member.lease.valid:
            self.reserve({})
            if patient and self._options.config.coordinated_by_brokers and not self._ending.is_set():
                reason = f"outside group {self._options.group!r}, and nothing says that all is read: "
                raise CoordinatorUnavailableError(f"{reason}{member.rebalancer and member.rebalancer.state}")
            return frozenset()  # what we owned may be another's by now
        self._await(self._all_started, member.request_timeout)
        if member.positions() != self._settled_for:
            self.settle(self._finished)  # for what came to us only since then
        started = member.batches.started
        kept = member.keeper.keep(tp for tp, p in member.positions().items() if not p.revoked and started(p))
        # looked at again, for the group's thread may have released what was just kept
        ours = {tp: position for tp, position in member.positions().items() if tp in kept and not position.revoked}
        return frozenset(ours).intersection(partitions)

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offset of those that are ours and have one, or how far we are beyond it."""
        ours = self._member.positions()
        return {
            tp: position.consumed
            for tp in partitions
            if (position := ours.get(tp)) is not None and position.consumed is not None
        }

    def begin(self, starts: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Store where these begin, fenced, before anything of them is read. Returns those that are stored; the others
        wait for a later batch.
        """
        ours = self._member.positions()
        waiting = {tp: ours[tp] for tp in starts if tp in ours}
        self._member.events.put(StartsResolved({position: starts[tp] for tp, position in waiting.items()}))
        self._await(
            lambda: all(p.consumed is not None or p.revoked for p in waiting.values()), self._member.request_timeout
        )
        return frozenset(tp for tp, position in waiting.items() if position.consumed is not None)

    def set_back(self, starts: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Set the group's offsets of these back, fenced, before anything is read from there. Returns those that are
        stored; the others wait for a later batch.
        """
        member = self._member
        with self._marking:
            self._running = None  # or the attendant marks the end of a batch that read the log before
            self._finished = {tp: span for tp, span in self._finished.items() if tp not in starts}
        ours = member.positions()
        begun = {tp: start for tp, start in starts.items() if tp in ours and ours[tp].consumed is not None}
        self.begin({tp: start for tp, start in starts.items() if tp in ours and tp not in begun})
        if begun:
            try:
                member.seek(begun, Deadline(member.request_timeout))
            except TimeoutError:
                log.warning("the group's offsets could not be set back in time; it is tried with the next batch")
        self._await(
            lambda: all(p.consumed is not None or p.revoked for tp, p in member.positions().items() if tp in starts),
            member.request_timeout,
        )
        now = member.positions()
        self._write(now)
        return frozenset(tp for tp, start in starts.items() if tp in now and now[tp].committed == start)

    def made_anew(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those of claimed partitions whose topics are younger than the group's offsets of them."""
        ours = self._member.positions()
        return [tp for tp in partitions if tp in ours and ours[tp].from_start]

    def reserve(self, progress: Progress) -> None:
        """The next batch is planned; what it does not read may leave at once. Empty: no batch."""
        keeper = self._member.keeper
        keeper.keep_only([tp for tp, span in progress.items() if span.end > span.start])
        with self._marking:
            self._running = (keeper.batch, progress) if progress else None

    def repeat(self, progress: Progress) -> None:
        """Spark repeats this batch from its checkpoint: claim what it reads if we can, for it is read in any case."""
        member = self._member
        partitions = {tp for tp, span in progress.items() if span.end > span.start}
        member.keeper.keep(partitions)
        with self._marking:
            self._running = (member.keeper.batch, progress)
        self._await(lambda: member.settled or member.positions().keys() >= partitions, SETTLE_WITHIN)
        foreign = sorted(partitions.difference(member.positions()))
        if foreign:
            log.warning(
                "a batch of the checkpoint is repeated that reads %s, which others of the group own: they may get the "
                "same messages",
                ", ".join(map(str, foreign[:5])),
            )

    # ---- inside ----

    def _all_started(self) -> bool:
        batches = self._member.batches
        return all(position.revoked or batches.started(position) for position in self._member.positions().values())

    def _await(self, ready: Callable[[], bool], seconds: float) -> bool:
        deadline, pause = Deadline(seconds), _SHORTEST_POLL
        while not ready():
            if deadline.expired or self._ending.wait(pause):
                return ready()
            pause = min(2 * pause, _POLL)
        return True

    def _attend(self) -> None:
        parent = self._parent()
        while self._parent() == parent and not self._ending.wait(min(_ATTEND, self._member.keeper.look_at_the_time())):
            self._look_for_an_end()
        self._look_for_an_end()  # of the last batch, of which Spark tells no more
        if not self._ending.is_set():
            log.warning("Spark is gone; leaving the group")
            self._ending.set()
            self._member.close(Deadline(CLOSE_WITHIN), finished=False)

    def _look_for_an_end(self) -> None:
        try:
            self._look_at_the_checkpoint()
        except Exception:  # whatever it is, it only means to wait for Spark to tell
            log.exception("the end of a batch could not be looked for")

    def _look_at_the_checkpoint(self) -> None:
        running = self._running
        if self._checkpoint is None or running is None:
            return
        batch, progress = running
        if not self._checkpoint.has_ended(encode_progress(progress)):
            return
        with self._marking:
            if self._running is not running:
                return  # Spark has told meanwhile
            self._running = None
            ours = self._mark(progress)  # under the lock: who sets an offset back does so before this, or after it
        self._write(ours)
        self._member.keeper.end(batch)


def _reading_member(options: ReadOptions) -> ReadingMember:
    consumer = consumer_id(options.config)
    if options.config.coordinated_by_brokers:
        from zkconsumer.spark.coordinator_member import CoordinatedQueryMember

        return CoordinatedQueryMember(options.config, consumer, options.release_after)
    return QueryMember(options.config, consumer, options.release_after)


def registration(selection: Selection) -> Registration:
    """What a query registers: its topics, or its expression, with one stream."""
    if selection.allowed is not None:
        return Registration(selection.allowed.pattern, {selection.allowed.regex: 1})
    return Registration(STATIC, dict.fromkeys(selection.topics, 1))
