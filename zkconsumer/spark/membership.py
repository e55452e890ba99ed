"""The relation of a streaming query to its group: the partitions to read, and the place of the committed offsets.

:class:`LiveMembership` (``membership=member``, the default) is a live member beside Scala members, ours and other
queries. :class:`Bystander` (``membership=none``) reads every partition and owns none. It writes offsets without a
fence; the brokers' coordinator takes them only while the group has no members.

Threads: Spark calls on the main thread of the query's driver process. The group never needs this thread: the group
thread serves it between triggers. ``<consumer>-attendant`` looks after ``releaseAfter`` and the checkpoint, and leaves
the group when Spark's JVM, our parent, is gone while the main thread waits for something else. Both threads mark
positions as consumed, under a lock that guards only that and which batch runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Event, Thread
from time import monotonic
from typing import Final, Protocol

from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import ConfigException, CoordinatorUnavailableError, OffsetCommitError, RegistryError
from zkconsumer.member.events import StartsResolved
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.ownership.partition_position import NONE_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.spark.checkpoint import Checkpoint
from zkconsumer.spark.offset_ranges import Progress, encode_progress
from zkconsumer.spark.options import ReadOptions, Selection
from zkconsumer.spark.query_cluster import LiveMembersError, QueryCluster
from zkconsumer.spark.query_member import QueryMember
from zkconsumer.wiring import consumer_id

log = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds between two looks at the group's members, and after a commit that they prevented."""
CLOSE_WITHIN: Final = 5.0
SETTLE_WITHIN: Final = 30.0
"""Seconds for which a query waits for its share, if it repeats a batch, or reads what there is now (availableNow)."""
_POLL: Final = 0.05
_SHORTEST_POLL: Final = 0.001
"""Most waits are for the group thread, which takes some milliseconds while a trigger waits."""
ATTEND: Final = 0.5
"""Seconds between two looks of the attendant."""
RETRY: Final = 1.0
"""Seconds until a failed commit is tried again."""
_LAST_LOOK: Final = 1.0


class QueryMembership(Protocol):
    """How a query stands to its group."""

    def join(self) -> None:
        """Join before anything is read. Raises ConfigException, RegistryError, ConsumerRebalanceFailedException."""

    def settle(self, done: Progress) -> None:
        """Write to the group that batches up to here are finished. Raises OffsetCommitError, RegistryError."""

    def claim(self, partitions: Collection[TopicPartition], *, patient: bool) -> Collection[TopicPartition]:
        """Return the existing partitions that the next batch may read; ``patient`` waits for the whole share."""

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's offsets of claimed partitions, as far as such offsets exist and count.

        The group's offset does not count for a partition that the query has read all along.
        """

    def begin(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Begin partitions without an offset here. Returns the partitions that may be read now."""

    def set_back(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Set the group's offsets of these back, because their logs end before them.

        No earlier batch counts as finished for them after this. Returns the partitions that may be read from there now.
        """

    def made_anew(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return the claimed partitions whose topics are younger than the group's offsets of them."""

    def reserve(self, progress: Progress) -> None:
        """Note the next batch; empty: there is none."""

    def repeat(self, progress: Progress) -> None:
        """Note that a batch is repeated from the checkpoint."""

    def leave(self) -> None:
        """Leave at the end of the query."""


class Bystander:
    """``membership=none``: reads all partitions beside the group, and moves the group's offsets.

    Arguments: ``allow_live_members`` goes on although others consume in the same group; they get the same messages and
    write the same offsets. A group that the brokers coordinate takes offsets from its members alone, as long as there
    are any. The query's offsets follow with the first batch after that.
    """

    def __init__(self, cluster: QueryCluster, group: str, *, allow_live_members: bool) -> None:
        self._cluster = cluster
        self._group = group
        self._allowed = allow_live_members
        self._warned = False
        self._look_at = self._try_at = 0.0
        self._trouble = ""
        self._settled: dict[TopicPartition, int] = {}
        self._asked: set[TopicPartition] = set()

    def join(self) -> None:
        """Refuse a group with live members."""
        members = self._cluster.live_members(self._group)
        if members and not self._allowed:
            raise ConfigException(
                "membership",
                f"'none': group {self._group!r} has live members ({', '.join(members[:3])}), which would consume the "
                "same messages and write the same offsets; use another group.id, or say allowLiveMembers=true",
            )
        self._warned = bool(members)

    def claim(self, partitions: Collection[TopicPartition], *, patient: bool) -> Collection[TopicPartition]:
        """Return all of them. Warns once of a member that joins while the query runs; looks once a second."""
        if self._warned or monotonic() < self._look_at:
            return partitions
        self._look_at = monotonic() + PAUSE
        if members := self._cluster.live_members(self._group):
            self._warned = True
            log.warning(
                "%s joined group %s while a query with membership=none reads it: messages are consumed twice",
                ", ".join(members[:3]),
                self._group,
            )
        return partitions

    def settle(self, done: Progress) -> None:
        """Write the offsets that changed since the last time; never backwards."""
        news = {tp: span.end for tp, span in done.items() if self._settled.get(tp) != span.end}
        if not news or monotonic() < self._try_at:
            return
        try:
            self._cluster.commit(self._group, news)
        except LiveMembersError as error:
            self._refused(error)
        else:
            self._settled.update(news)
            self._trouble = ""

    def _refused(self, error: LiveMembersError) -> None:
        """Log the refusal once, and pause: an idle query has hundreds of triggers a second."""
        self._try_at = monotonic() + PAUSE
        if not self._trouble:
            log.warning("the query goes on; the group's offsets are its members' for now: %s", error)
        self._trouble = str(error)

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the group's offsets of partitions that are read for the first time; later the query's own place
        counts.
        """
        new = [tp for tp in partitions if tp not in self._asked]
        self._asked.update(new)
        return self._cluster.committed(self._group, new) if new else {}

    def begin(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Return all of them: nothing has to be stored first."""
        return starts.keys()

    def set_back(self, starts: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Write the starts of these partitions. Otherwise a later query would start at their old offsets."""
        try:
            self._cluster.commit(self._group, starts, also_back=True)
        except LiveMembersError as error:
            self._refused(error)
        self._settled.update(starts)
        return starts.keys()

    def made_anew(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return none: nothing is claimed, so nothing is compared."""
        return ()

    def reserve(self, progress: Progress) -> None:
        """Do nothing: there is nobody to reserve them from."""

    def repeat(self, progress: Progress) -> None:
        """Do nothing: the query reads all partitions in any case."""

    def leave(self) -> None:
        """Do nothing: nothing was claimed."""


class LiveMembership:
    """``membership=member``: the query is a live member of its group. The constructor does no I/O.

    Arguments: ``parent`` returns the id of the parent process.
    """

    def __init__(self, options: ReadOptions, parent: Callable[[], int] = os.getppid) -> None:
        self._options = options
        self.member = QueryMember(options.config, consumer_id(options.config), options.release_after)
        self._checkpoint = Checkpoint(options.checkpoint) if options.checkpoint is not None else None
        self._marking = InterruptibleLock()
        self._running: tuple[int, Progress] | None = None
        self._finished: Progress = {}
        self._settled_for: Mapping[TopicPartition, PartitionPosition] = {}
        self._refused: Mapping[TopicPartition, int | None] = {}
        self._try_at = 0.0
        self._ending = Event()
        self._tired = False
        self._parent = parent
        self._attendant = Thread(target=self._attend, name=f"{self.member.group.consumer}-attendant", daemon=True)

    @property
    def consumer(self) -> ConsumerId:
        """The name of the member."""
        return self.member.group.consumer

    def join(self) -> None:
        """Register, and own a share. Raises RegistryError, ConsumerRebalanceFailedException, ConfigException."""
        self._attendant.start()
        self.member.group.open(registration(self._options.selection))

    def leave(self) -> None:
        """Commit finished batches, release and deregister, within seconds. May be called again."""
        self._ending.set()
        if self._attendant.is_alive():
            self._attendant.join(_LAST_LOOK)
        self.member.group.close(Deadline(CLOSE_WITHIN), finished=False)
        if self._attendant.is_alive():
            self._attendant.join(CLOSE_WITHIN)

    # ---- Spark's calls ----

    def settle(self, done: Progress) -> None:
        """Write that batches up to here are finished, for owned partitions.

        A commit that fails is logged, and is no reason to end the query: a later commit writes the offsets, or the next
        owner repeats the messages.
        """
        with self._marking:
            ours = self._mark(done)
        self._write(ours)

    def _mark(self, done: Progress) -> Mapping[TopicPartition, PartitionPosition]:
        """Mark the progress of finished batches, and return the owned positions. The lock is held."""
        member = self.member
        ours = member.group.positions()
        self._finished, self._settled_for = (done, ours if all(map(member.delivery.started, ours.values())) else {})
        for tp, span in done.items():
            position = ours.get(tp)
            if position is not None and position.consumed is not None and position.consumed < span.end:
                position.consumed = span.end  # never back: others may have gone on from there
        return ours

    def _write(self, ours: Mapping[TopicPartition, PartitionPosition]) -> None:
        """Commit. A failed commit is tried again only after a second: an idle query has many triggers in that time."""
        member = self.member
        due = {tp: position.consumed for tp, position in ours.items() if position.consumed != position.stored.committed}
        if not due or (due == self._refused and monotonic() < self._try_at):
            return
        assert member.group.committer is not None
        try:
            member.group.committer.commit(NONE_HELD, Deadline(member.group.request_timeout))
        except (OffsetCommitError, RegistryError) as error:
            level = logging.DEBUG if due == self._refused else logging.WARNING  # each once
            log.log(level, "the group's offsets do not follow this batch (yet): %s", error)
            self._refused, self._try_at = due, monotonic() + RETRY
        else:
            self._refused = {}

    def claim(self, partitions: Collection[TopicPartition], *, patient: bool) -> frozenset[TopicPartition]:
        """Return the existing partitions that are ours and that the next batch may read; keep them from now on.

        Arguments: ``patient`` waits for the whole share, up to a limit. After one wait in vain there is no second.
        Raises: CoordinatorUnavailableError if a patient query is not in the brokers' group; otherwise only errors that
        the user alone can cure. (If ZooKeeper is away, the query notices when it asks for partitions.)
        """
        member = self.member
        if member.delivery.refusal is not None:
            raise member.delivery.refusal
        if patient or not self._all_started():
            member.retention.end(member.retention.batch)  # the batch has ended: others may have its partitions
        if patient and not self._tired and not self._await(lambda: member.settled, SETTLE_WITHIN):
            self._tired = True
            log.warning("going on without all of our share of the group: %s", member.group.state)
        if not member.group.lease.valid:
            self.reserve({})
            if patient and self._options.config.coordinated_by_brokers and not self._ending.is_set():
                reason = f"outside group {self._options.group!r}, and nothing says that all is read: "
                raise CoordinatorUnavailableError(f"{reason}{member.group.state}")
            return frozenset()  # our partitions may be another member's by now
        self._await(self._all_started, member.group.request_timeout)
        if member.group.positions() != self._settled_for:
            self.settle(self._finished)  # for partitions that came only since then
        started = member.delivery.started
        kept = member.retention.keep(tp for tp, p in member.group.positions().items() if not p.revoked and started(p))
        # looked at again: the group thread may have released partitions just before they were kept
        ours = {
            tp: position for tp, position in member.group.positions().items() if tp in kept and not position.revoked
        }
        return frozenset(ours).intersection(partitions)

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets of owned partitions, or how far this query is beyond them."""
        ours = self.member.group.positions()
        return {
            tp: position.consumed
            for tp in partitions
            if (position := ours.get(tp)) is not None and position.consumed is not None
        }

    def begin(self, starts: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Store where these begin, fenced, before anything of them is read.

        Returns the partitions whose start is stored; the others wait for a later batch.
        """
        ours = self.member.group.positions()
        waiting = {tp: ours[tp] for tp in starts if tp in ours}
        self.member.group.events.put(StartsResolved({position: starts[tp] for tp, position in waiting.items()}))
        self._await(
            lambda: all(p.consumed is not None or p.revoked for p in waiting.values()),
            self.member.group.request_timeout,
        )
        return frozenset(tp for tp, position in waiting.items() if position.consumed is not None)

    def set_back(self, starts: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """Set the group's offsets of these back, fenced, before anything is read from there.

        Returns the partitions whose offset is stored; the others wait for a later batch.
        """
        member = self.member
        with self._marking:
            self._running = None  # or the attendant marks the end of a batch that read the former log
            self._finished = {tp: span for tp, span in self._finished.items() if tp not in starts}
        ours = member.group.positions()
        begun = {tp: start for tp, start in starts.items() if tp in ours and ours[tp].consumed is not None}
        self.begin({tp: start for tp, start in starts.items() if tp in ours and tp not in begun})
        if begun:
            try:
                offsets = {ours[tp]: start for tp, start in begun.items()}
                member.group.seek(offsets, Deadline(member.group.request_timeout))
            except (TimeoutError, OffsetCommitError) as error:
                log.warning("the group's offsets could not be set back; it is tried with the next batch: %s", error)
        self._await(
            lambda: all(
                p.consumed is not None or p.revoked for tp, p in member.group.positions().items() if tp in starts
            ),
            member.group.request_timeout,
        )
        now = member.group.positions()
        self._write(now)
        return frozenset(tp for tp, start in starts.items() if tp in now and now[tp].stored.committed == start)

    def made_anew(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the claimed partitions whose topics are younger than the group's offsets of them."""
        ours = self.member.group.positions()
        return [tp for tp in partitions if tp in ours and ours[tp].from_start]

    def reserve(self, progress: Progress) -> None:
        """Note the next batch; partitions that it does not read may leave at once. Empty: there is no batch."""
        retention = self.member.retention
        retention.keep_only([tp for tp, span in progress.items() if span.end > span.start])
        with self._marking:
            self._running = (retention.batch, progress) if progress else None

    def repeat(self, progress: Progress) -> None:
        """Claim the free partitions of a batch that Spark repeats from its checkpoint.

        The batch reads the other partitions without a claim.
        """
        member = self.member
        partitions = {tp for tp, span in progress.items() if span.end > span.start}
        member.retention.keep(partitions)
        with self._marking:
            self._running = (member.retention.batch, progress)
        self._await(lambda: member.settled or member.group.positions().keys() >= partitions, SETTLE_WITHIN)
        foreign = sorted(partitions.difference(member.group.positions()))
        if foreign:
            log.warning(
                "a batch of the checkpoint is repeated that reads %s, which others of the group own: they may get the "
                "same messages",
                ", ".join(map(str, foreign[:5])),
            )

    # ---- inside ----

    def _all_started(self) -> bool:
        delivery = self.member.delivery
        return all(
            position.revoked or delivery.started(position) for position in self.member.group.positions().values()
        )

    def _await(self, ready: Callable[[], bool], seconds: float) -> bool:
        deadline, pause = Deadline(seconds), _SHORTEST_POLL
        while not ready():
            if deadline.expired or self._ending.wait(pause):
                return ready()
            pause = min(2 * pause, _POLL)
        return True

    def _attend(self) -> None:
        parent = self._parent()
        while self._parent() == parent and not self._ending.wait(min(ATTEND, self.member.retention.look_at_the_time())):
            self._look_for_an_end()
        self._look_for_an_end()  # the end of the last batch, of which Spark does not tell
        if not self._ending.is_set():
            log.warning("Spark is gone; leaving the group")
            self._ending.set()
            self.member.group.close(Deadline(CLOSE_WITHIN), finished=False)

    def _look_for_an_end(self) -> None:
        try:
            self._look_at_the_checkpoint()
        except Exception:  # then the query waits until Spark tells of the end
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
            ours = self._mark(progress)  # under the lock: an offset is set back before this or after it
        self._write(ours)
        self.member.retention.end(batch)


def registration(selection: Selection) -> Registration:
    """Return the registration of a query: topics or an expression, with one stream."""
    if selection.allowed is not None:
        return Registration(selection.allowed.pattern, {selection.allowed.regex: 1})
    return Registration(STATIC, dict.fromkeys(selection.topics, 1))
