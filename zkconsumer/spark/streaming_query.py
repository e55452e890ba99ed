"""One run of a streaming query, in its driver process: plans batches and settles finished batches.

Spark starts one process a query and calls everything on its main thread; the run lives from the first call to
``close``. The end offset of a batch holds all that the batch reads (see ``offset_ranges.Progress``). So a replayed
batch is the same whatever happened meanwhile, and nothing here has to survive a crash.

Spark calls ``commit`` only when it plans the next batch: never for the last one of availableNow, and not while the
stream is idle. But it asks for the latest offset at every trigger, with the end of the last finished batch. Both write.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from zkconsumer.core.names import first_of
from zkconsumer.errors import BrokerUnavailableError, OffsetOutOfRangeError, RegistryUnavailableError, SessionLostError
from zkconsumer.model import TopicPartition
from zkconsumer.spark import offset_ranges
from zkconsumer.spark.batch_reader import at_time, check_existing, check_given
from zkconsumer.spark.membership import Bystander, LiveMembership, QueryMembership
from zkconsumer.spark.offset_ranges import LATEST, LogSpan, Progress, Span, TriggerDelay, decode_progress
from zkconsumer.spark.options import ReadOptions
from zkconsumer.spark.query_cluster import QueryCluster
from zkconsumer.spark.range_reader import ADVICE, FROM_BEGINNING, RangePartition

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _FromBeginning:
    """One partition that is read from its beginning.

    Contents: ``before`` is the offset in the log before; ``known`` is the checkpoint's offset then, None where the
    checkpoint did not know the partition; ``start`` is where its log begins; ``planned`` is the first batch from there.
    """

    before: int
    known: int | None
    start: int
    planned: Span | None = None


class ReplacedLogs:
    """Partitions whose log is not the one that the query has read: the topic was made anew, or the log was cut.

    Such a log ends before the offset at which the query would go on, or the topic's node in ZooKeeper is another one.
    No offset tells the query's progress in the new log, so the query reads the log from its beginning, once. A
    partition leaves this table when the batch from its beginning has ended. Pure.
    """

    def __init__(self) -> None:
        self._found: dict[TopicPartition, _FromBeginning] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._found

    def add(self, partition: TopicPartition, before: int, known: int | None, start: int) -> None:
        """Note that the offset ``before`` of a partition is of another log than the present one, which begins at
        ``start``.
        """
        self._found[partition] = _FromBeginning(before, known, start)

    def ended(self, done: Progress) -> None:
        """Forget the partitions whose first batch from the beginning is the one that has ended."""
        self._found = {tp: one for tp, one in self._found.items() if one.planned is None or one.planned != done.get(tp)}

    def plan(self, progress: Progress) -> None:
        """Note the first batch that reads from the beginning."""
        for tp, one in self._found.items():
            if tp in progress and progress[tp].start == one.start:
                one.planned = progress[tp]

    def position(self, partition: TopicPartition, position: int, committed: int | None) -> int:
        """Return where a partition is read on; ``position`` unless it is read from its beginning.

        The place stays the beginning also where the log has grown beyond ``before`` meanwhile. An offset of the group
        other than ``before`` was written since, by another member that reads the new log.
        """
        one = self._found.get(partition)
        if one is None:
            return position
        if committed is not None and committed != one.before:
            one.start = max(committed, one.start)
        return one.start

    def waiting(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where those of these begin that no batch has read from the beginning yet."""
        return {tp: one.start for tp, one in self._found.items() if tp in partitions and one.planned is None}

    def finished(self, done: Progress) -> Mapping[TopicPartition, Span]:
        """Return the progress of finished batches, without offsets that belong to an earlier log."""
        return {tp: span for tp, span in done.items() if tp not in self._found or self._found[tp].known != span.end}


class _ChangedWarnings:
    """Warns of missing things, and again only when other things are missing."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[object, ...]] = {}

    def warn(self, text: str, missing: tuple[object, ...], said: str) -> None:
        """Log ``text`` with ``said`` if something is missing that was not the last time."""
        if missing and missing != self._last.get(text):
            log.warning(text, said)
        self._last[text] = missing


class QueryRun:
    """The run of one query. The constructor does no I/O. ``clock`` returns a monotonic time in seconds."""

    def __init__(
        self,
        options: ReadOptions,
        cluster: QueryCluster,
        membership: QueryMembership | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.options = options
        least = options.min_offsets
        self._delay = None if least is None else TriggerDelay(least, options.max_trigger_delay)
        self._clock = clock
        self._cluster = cluster
        self._membership = membership or _membership(options, cluster)
        self._planned = False
        self._targets: dict[TopicPartition, int] | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._warnings = _ChangedWarnings()
        self._former: dict[TopicPartition, int] = {}  # how far those were read that are gone
        self._not_there: tuple[tuple[str, ...], tuple[TopicPartition, ...]] = (), ()
        self._waiting: dict[TopicPartition, int] = {}  # starts that could not be stored yet
        self._replaced = ReplacedLogs()
        self._claimed: set[TopicPartition] = set()  # partitions that were ours once in this run

    def open(self) -> None:
        """Join. Raises ConfigException, RegistryError, ConsumerRebalanceFailedException."""
        log.info("reading %s", self.options)
        self._membership.join()

    def close(self) -> None:
        """Leave the group and close all connections."""
        try:
            self._membership.leave()
        finally:
            self._cluster.close()

    def fix_targets(self) -> None:
        """Read nothing from now on that is not in the logs now (availableNow)."""
        partitions, missing = self._cluster.partitions(self.options.selection)
        self._not_there = missing, tuple(sorted(set(self.options.selection.partitions).difference(partitions)))
        self._targets = self._cluster.log_ends(partitions)

    def _check_there(self, done: Progress) -> None:
        """Refuse, with availableNow, a topic that does not exist: it would be read as an empty one, and nobody told.

        A topic that the checkpoint knows has existed: its loss is another matter.
        """
        topics, partitions = self._not_there
        known = {tp.topic for tp in done}
        check_existing(
            self.options,
            [topic for topic in topics if topic not in known],
            [tp for tp in partitions if tp.topic not in topics and tp not in done],
        )
        self._not_there = (), ()

    def settle(self, offset: object) -> None:
        """Settle batches up to this offset: they are finished."""
        self._membership.settle(self._replaced.finished(decode_progress(offset)))

    def latest(self, start: dict[str, Any], limit: int | None, *, at_once: bool = False) -> dict[str, Any]:
        """Return the end of the next batch, at most ``limit`` offsets long; ``start`` itself if there is nothing new,
        or too little to be read now. ``at_once`` waits for nothing.

        If ZooKeeper is away, a member waits for it, as every member of the group does, however long; there is no new
        batch then. With availableNow that would mean that everything is read, so there it is an error.
        Raises OffsetOutOfRangeError, ConfigException, RegistryError, BrokerError.
        """
        try:
            return self._next(start, limit, at_once=at_once)
        except (RegistryUnavailableError, SessionLostError) as error:
            if not self.options.is_member or self._targets is not None:
                raise
            log.warning("no new batch for now: %s", error)
            self._membership.reserve({})
            return start

    def _next(self, start: dict[str, Any], limit: int | None, *, at_once: bool) -> dict[str, Any]:
        done = decode_progress(start)
        self._replaced.ended(done)
        self._membership.settle(self._replaced.finished(done))
        self._check_there(done)
        existing = self._partitions()
        self._check_gone(done, existing)
        self._take_up_new_topics(done, existing)
        claimed = self._membership.claim(existing, patient=self._targets is not None)
        self._take_up_what_the_group_found(done, claimed)
        partitions = [tp for tp in existing if tp in claimed and (self._targets is None or tp in self._targets)]
        try:
            self._ends = self._cluster.log_ends(partitions)
        except BrokerUnavailableError:
            if not self._cluster.gone(partitions):
                raise
            # a topic was deleted just now: without it, or with the error that it is
            return self._next(start, limit, at_once=at_once)
        positions = self._positions(partitions, existing, done)
        targets = self._ends if self._targets is None else self._targets
        # the end may be the smaller one where messages were lost since
        ends = {tp: min(self._ends[tp], targets[tp]) for tp in positions}
        progress = offset_ranges.remembered(offset_ranges.advance(positions, ends, limit), done, existing)
        self._planned = True
        waits = self._waits(positions, ends, done, at_once=at_once)
        news = not waits and offset_ranges.is_news(progress, done)
        if news and progress == done:  # a log from its beginning, as long as the last batch that began there
            # Spark runs no batch whose end is the end of the one before: an empty batch comes first
            progress = {tp: Span(span.start, span.start) for tp, span in progress.items()}
        if news:
            self._replaced.plan(progress)
        self._membership.reserve(progress if news else {})
        return offset_ranges.encode_progress(progress) if news else start

    def plan(self, end: dict[str, Any]) -> list[RangePartition]:
        """Return the tasks of a batch, from its end offset alone. Raises ConfigException, RegistryError,
        NoBrokersError.
        """
        progress = decode_progress(end)
        ranges = offset_ranges.ranges_of(progress)
        partitions = [TopicPartition(range_.topic, range_.partition) for range_ in ranges]
        if not self._planned:  # the run before planned this batch, and did not finish it
            self._planned = True
            self._membership.repeat(progress)
        leaders = self._cluster.seen_leaders(partitions)  # no need of ZooKeeper for a batch that is planned
        tasks = offset_ranges.pieces(ranges, self.options.min_partitions, self.options.max_records)
        return [RangePartition(piece, leaders) for piece in tasks]

    def log_ends(self) -> dict[str, Any]:
        """Return the logs' ends as last seen, as topic -> partition -> offset."""
        topics: dict[str, dict[str, int]] = {}
        for tp, end in sorted(self._ends.items()):
            topics.setdefault(tp.topic, {})[str(tp.partition)] = end
        return topics

    # ---- inside ----

    def _waits(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        done: Progress,
        *,
        at_once: bool,
    ) -> bool:
        """Return whether the batch waits for ``minOffsetsPerTrigger``; availableNow waits for nothing."""
        if self._delay is None or at_once or self._targets is not None:
            return False
        return self._delay.waits(positions, ends, done, self._clock())

    def _partitions(self) -> tuple[TopicPartition, ...]:
        partitions, missing = self._cluster.partitions(self.options.selection)
        if self._targets is not None:
            return partitions  # what comes now is not waited for
        self._warnings.warn("there is no topic %s (yet); waiting for it", missing, ", ".join(missing))
        absent = tuple(sorted(set(self.options.selection.partitions).difference(partitions)))
        self._warnings.warn("there is no partition %s (yet); waiting for it", absent, first_of(absent, 5))
        return partitions

    def _check_gone(self, done: Progress, existing: tuple[TopicPartition, ...]) -> None:
        gone = tuple(sorted(set(done).difference(existing)))
        problem = f"{first_of(gone, 5)} is in the checkpoint, but exists no more or is not selected any more"
        if gone and self.options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{problem}; {ADVICE}")
        self._warnings.warn("%s; going on without", gone, problem)
        self._former |= {tp: done[tp].end for tp in gone}

    def _take_up_new_topics(self, done: Progress, existing: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Read partitions from their beginning if their topic was deleted and made anew while the query runs. Returns
        them.

        Raises OffsetOutOfRangeError if that is an error; RegistryError, BrokerError.
        """
        topics = self._cluster.made_anew()
        self._waiting = {tp: at for tp, at in self._waiting.items() if tp.topic not in topics}
        known = {**self._former, **{tp: span.end for tp, span in done.items()}}
        lost = [tp for tp in existing if tp.topic in topics and tp in known]
        if lost:
            self._read_from_beginning(lost, known)
        return lost

    def _take_up_what_the_group_found(self, done: Progress, claimed: Collection[TopicPartition]) -> None:
        """Do the same for topics that were made anew before the query saw them.

        The group's offsets tell a member so when it first claims their partitions. The checkpoint alone cannot tell.
        """
        first = sorted(set(claimed).difference(self._claimed))
        lost = [tp for tp in self._membership.made_anew(first) if tp in done and tp not in self._replaced]
        if lost:
            self._read_from_beginning(lost, {tp: done[tp].end for tp in lost})
        self._claimed.update(first)

    def _read_from_beginning(self, lost: Sequence[TopicPartition], known: Mapping[TopicPartition, int]) -> None:
        problem = f"{first_of(lost, 5)}: the topic was deleted and made anew"
        if self.options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{problem}, and the query has come to offset {known[lost[0]]}; {ADVICE}")
        for tp, span in self._cluster.log_spans(lost).items():
            self._replaced.add(tp, known[tp], known[tp], span.first)
            self._former.pop(tp, None)
        log.warning("%s; it is read from its beginning", problem)

    def _positions(
        self, partitions: Sequence[TopicPartition], existing: tuple[TopicPartition, ...], done: Progress
    ) -> dict[TopicPartition, int]:
        """Return where each partition is read on; without partitions whose start could not be stored yet."""
        wanted = self.options.starting or LATEST
        unknown = [tp for tp in partitions if tp not in done]
        if unknown and not done:
            check_given("starting", wanted, existing)
        committed = self._membership.committed(partitions)
        starting = [tp for tp in unknown if tp not in committed]
        spans = self._cluster.log_spans(starting)
        times = at_time(self._cluster, self.options, starting, begun=bool(done)) if starting else {}
        positions = {}
        for tp in partitions:
            span = spans.get(tp, LogSpan(-1, self._ends[tp]))
            position = offset_ranges.stream_position(tp, done, committed.get(tp), wanted, span, times.get(tp))
            if tp in starting and self._waiting.get(tp, span.end + 1) <= span.end:  # beyond, it is another topic's
                position = max(self._waiting[tp], span.first)
            positions[tp] = self._replaced.position(tp, position, committed.get(tp))
        positions |= self._within_the_logs(positions, existing, done, committed)
        back = self._replaced.waiting(positions)
        waiting = {tp: position for tp, position in positions.items() if tp not in committed and tp not in back}
        stored = {*self._membership.begin(waiting), *(self._membership.set_back(back) if back else ())}
        # the end of a log, once it is taken for the start, stays it: what comes after it is to be read, also where we
        # are without the partition for a while
        away = {tp: at for tp, at in self._waiting.items() if tp in existing and tp not in positions}
        self._waiting = {**away, **{tp: positions[tp] for tp in starting if tp not in stored}}
        return {
            tp: position for tp, position in positions.items() if tp in stored or (tp in committed and tp not in back)
        }

    def _within_the_logs(
        self,
        positions: Mapping[TopicPartition, int],
        existing: Sequence[TopicPartition],
        done: Progress,
        committed: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return the places of partitions whose logs end before them: the logs lost messages, or are of another topic.

        Raises OffsetOutOfRangeError where that is an error.
        """
        beyond = [tp for tp, position in positions.items() if position > self._ends[tp]]
        written = self._cluster.written_ends(beyond) if beyond else {}
        lost = {tp: positions[tp] for tp in beyond if positions[tp] > written[tp]}
        if not lost:
            return {}
        self._cluster.gone(list(lost))  # looks at the topics, of which a watch may tell only later, and then once more
        anew = [tp for tp in self._take_up_new_topics(done, existing) if tp in positions]
        places = {tp: self._replaced.position(tp, positions[tp], committed.get(tp)) for tp in anew}
        problems = {
            tp: f"{tp}: {self._who(tp, done, committed, position)} {position}, but its log ends at {written[tp]}"
            for tp, position in lost.items()
            if tp not in places
        }
        if problems and self.options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{'; '.join(problems.values())}; {ADVICE}")
        for tp, span in self._cluster.log_spans(list(problems)).items():
            if tp in done or tp in committed or tp in self._replaced:
                self._replaced.add(tp, lost[tp], done[tp].end if tp in done else None, span.first)
                places[tp], told = span.first, FROM_BEGINNING
            else:
                places[tp], told = self._ends[tp], "it is read from its end,"
            log.warning("%s; %s offset %d", problems[tp], told, places[tp])
        return places

    def _who(self, tp: TopicPartition, done: Progress, committed: Mapping[TopicPartition, int], position: int) -> str:
        """Return, in words, the source of the offset at which a partition is to be read on."""
        if tp in done and position == done[tp].end:
            return "the query has come to offset"
        if position == committed.get(tp):
            return f"group {self.options.group!r} has come to offset"
        return "the query is to go on at offset" if tp in self._replaced else "startingOffsets names offset"


def _membership(options: ReadOptions, cluster: QueryCluster) -> QueryMembership:
    if options.is_member:
        return LiveMembership(options)
    return Bystander(cluster, options.group, allow_live_members=options.allow_live_members)


def end_cleanly_on_sigterm() -> None:
    """Make Spark's way of ending the driver process reach ``stop()``.

    Spark sends SIGTERM, twice; Python's default is to die at once, and what we hold in ZooKeeper would stay until its
    session times out. Now the first one ends the process by SystemExit, and the second cannot cut that short. Does
    nothing but on the main thread, where alone signals can be set.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def end(*_: object) -> None:
        leave_sigterm_alone()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)


def leave_sigterm_alone() -> None:
    """Ignore SIGTERM: the process ends already, and no signal of Spark's may cut that short. Main thread only."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
