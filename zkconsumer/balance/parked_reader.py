"""Brings parked messages back when they are due: reads each from the broker and hands it to the dispatcher.

Threads: one thread of its own, ``<consumer>-parked``. Any thread may read the fields for monitoring.

Retention may have deleted the message, or somebody has made the topic anew. Then its pointer becomes a dead one, so
that the loss stays visible. The :class:`RetentionWatch` tells of that before it happens. Retention deletes whole
segments, so each estimate is the earliest time. It follows from the message's timestamp and the topic's
``retention.ms``, and from how fast the start of the log moves, which also covers ``retention.bytes``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Thread
from typing import Any, NamedTuple

from zkconsumer.balance.dispatched_work import PointerWorks, ReadPart, ReadWork
from zkconsumer.balance.message_intake import MessageIntake
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.core.message_pointers import LOST, Pointer, PointerKind
from zkconsumer.errors import BrokerError, RegistryError
from zkconsumer.fetch.message_lookup import MessageLookup
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.runtime.deadline import Deadline, backoff

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Messages of one partition that are read at once."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of the messages that are in hand at the same time; a single message may be larger."""
READ_WITHIN = 5.0
"""Seconds for reading from one partition. Those of other brokers wait as long."""
LONGEST_PAUSE = 1.0
"""Seconds between two looks at the pointers: an operator may have changed them."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
"""Seconds until a partition is tried again that could not be read."""
BELIEVED_AFTER = 60.0
"""Seconds after which a log that ends before the message is believed. A new leader may know less for some time."""


class ParkedReader:
    """Hands parked messages to the dispatcher when they are due.

    Arguments: ``name`` of the consumer; ``partitions`` are those that are read; ``intake`` takes the messages;
    ``lookup`` reads messages; ``most`` messages of pointers are in hand at the same time; ``now_ms`` is the time in
    milliseconds since 1970, ``monotonic`` that of deadlines.

    * ``lost``: number of messages that were no longer in the log
    * ``trouble``: why the messages of a partition cannot be read at present
    * ``works``: the messages that the dispatcher has
    * ``retention``: tells of pointers whose messages will be deleted soon (``retention.at_risk``)
    """

    def __init__(
        self,
        name: str,
        partitions: Iterable[OpenPartition],
        intake: MessageIntake,
        lookup: MessageLookup,
        most: int = AT_ONCE,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost = 0
        self.trouble: dict[TopicPartition, str] = {}
        self.retention = RetentionWatch(lookup)
        self._partitions = partitions
        self._intake = intake
        self._lookup = lookup
        self._most = most
        self._now_ms = now_ms
        self._monotonic = monotonic
        self.works = PointerWorks()
        self._standing: set[BalancedLedger] = set()
        self._failures: dict[TopicPartition, tuple[int, float]] = {}
        self._doubtful: dict[tuple[TopicPartition, int], float] = {}
        self._ending = False
        self._thread = Thread(target=self._run, name=f"{name}-parked", daemon=True)

    # ---- any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, deadline: Deadline) -> bool:
        """End. Returns whether the thread has ended by the deadline."""
        self._ending = True
        self._lookup.close()
        self.works.flag.set()
        if self._thread.is_alive():
            self._thread.join(deadline.bounded(READ_WITHIN))
        return not self._thread.is_alive()

    # ---- the thread

    def _run(self) -> None:
        while not self._ending:
            try:
                pause = self.look()
                self.retention.look(list(self._partitions), self._now_ms())
            except Exception:  # the next look may do better, and a dead thread would leave them parked for ever
                log.exception("parked messages could not be looked at; the next try is in %d s", LONGEST_BACKOFF)
                pause = LONGEST_BACKOFF
            self.works.flag.wait(pause)

    def look(self) -> float:
        """Hand out what is due, of every owned partition. Returns the seconds until the next look."""
        pause = LONGEST_PAUSE
        owned = set()
        partitions = list(self._partitions)
        # Messages of a partition that stands still take no room. Otherwise those of other partitions would starve.
        self._standing = {one.ledger for one in partitions if one.stopped or one.position.halted}
        for partition in partitions:
            position = partition.position
            if self._ending or position.revoked or not partition.own:
                continue
            owned.add(position.tp)
            pointers = partition.ledger.pointers
            if pointers or partition.parked or partition.full_because:
                self._intake.refresh_parked(partition)
            if partition.ledger in self._standing:
                # Otherwise each partition that stands still would have as many messages in memory as all may have
                # together. They are read again when it goes on.
                if self.works.offsets(partition.ledger):
                    self._intake.return_pointer_works(partition)
            else:
                pause = min(pause, self._look_at(partition, pointers))
        for known in (self.trouble, self._failures):
            for tp in [tp for tp in known if tp not in owned]:
                del known[tp]
        self._doubtful = {place: since for place, since in self._doubtful.items() if place[0] in owned}
        self.works.forget_ended()
        return pause

    def _room(self) -> tuple[int, int]:
        """Return how many more messages, and how many bytes of them, may be in hand."""
        sizes = self.works.sizes(self._standing)
        return min(self._most - len(sizes), AT_ONCE), MOST_BYTES - sum(sizes)

    def _look_at(self, partition: OpenPartition, pointers: Mapping[int, Pointer]) -> float:
        """Hand out what is due of one partition. Returns the seconds until something of it may be due."""
        tp, now_ms = partition.position.tp, self._now_ms()
        due, next_ms = due_pointers(pointers.values(), self.works.offsets(partition.ledger), now_ms)
        pause = LONGEST_PAUSE if next_ms is None else max(0.0, (next_ms - now_ms) / 1000)
        if not due:
            self._worked(tp)
            return pause
        failures, retry_at = self._failures.get(tp, (0, 0.0))
        wait = retry_at - self._monotonic()
        if wait > 0:
            return min(pause, wait)
        most, size = self._room()
        if most <= 0 or size <= 0:
            return pause  # this thread is woken when a message is settled
        try:
            trouble = self._hand_out(partition, due[:most], size)
        except BrokerError as error:
            trouble = str(error)
        if not trouble:
            self._worked(tp)
            return pause
        if self.trouble.get(tp) != trouble:
            log.warning("%s: parked messages have to wait: %s", tp, trouble)
        self.trouble[tp] = trouble
        wait = backoff(failures + 1, FIRST_BACKOFF, LONGEST_BACKOFF)
        self._failures[tp] = (failures + 1, self._monotonic() + wait)
        return min(pause, wait)

    def _worked(self, tp: TopicPartition) -> None:
        self.trouble.pop(tp, None)
        self._failures.pop(tp, None)

    def _hand_out(self, partition: OpenPartition, due: Sequence[Pointer], size: int) -> str:
        """Read and hand out. Returns why some have to wait, or an empty text. Raises BrokerError."""
        position, ledger, tp = partition.position, partition.ledger, partition.position.tp
        found = self._lookup.read(tp, [p.offset for p in due], Deadline(READ_WITHIN), size)
        present = ledger.pointers
        trouble = ""
        for pointer in due:
            one, now = found.get(pointer.offset), present.get(pointer.offset)
            if position.revoked or self._ending:
                return ""
            if now is None or now.kind is not PointerKind.PARKED:
                continue  # an operator dropped it in the meantime
            if one is None:
                self.works.flag.set()  # the limit of bytes: it comes with the next look
                continue
            problem = one.problem
            other = not problem and not now.is_of(one.record.key)
            if other:
                problem = "a message of another key has its offset, so the topic was made anew"
            if not problem:
                self._doubtful.pop((tp, pointer.offset), None)
                self._add(partition, now, one.record)
            elif one.certain or self._believed(tp, pointer.offset):
                trouble = self._bury(tp, ledger, now, problem, lost=one.gone or other) or trouble
            else:
                trouble = f"offset {pointer.offset}: {problem}"
        return trouble

    def _add(self, partition: OpenPartition, pointer: Pointer, record: Any) -> None:
        work = ReadWork(record, pointer.offset, record.key, ReadPart(partition, None, 0))
        work.attempts, work.first_ms, work.failure = pointer.attempts, pointer.first_ms, pointer.reason
        work.pointer = self.works
        size = len(record.key or b"") + len(record.value or b"")
        self.works.add(work, size)  # before: it may be settled at once
        if not self._intake.add_pointer_work(work):
            self.works.forget(work)  # it comes with a later look; to wake this thread now would ask without a pause

    def _believed(self, tp: TopicPartition, offset: int) -> bool:
        since = self._doubtful.setdefault((tp, offset), self._monotonic())
        return self._monotonic() - since >= BELIEVED_AFTER

    def _bury(self, tp: TopicPartition, ledger: BalancedLedger, pointer: Pointer, problem: str, *, lost: bool) -> str:
        """Make the pointer a dead one. Returns why that cannot be, or an empty text."""
        reason = f"{LOST}: {problem}" if lost else problem
        if lost:
            ledger.lose(pointer, problem, self._now_ms())
        elif not ledger.point_at([replace(pointer, kind=PointerKind.DEAD, due_ms=0, reason=reason)]):
            return f"offset {pointer.offset} is {reason}, and there is no room for more dead letters"
        self._doubtful.pop((tp, pointer.offset), None)
        self.lost += 1
        log.error("%s: the parked message at offset %d is lost: %s", tp, pointer.offset, reason)
        return ""


def due_pointers(pointers: Iterable[Pointer], in_hand: Container[int], now_ms: int) -> tuple[list[Pointer], int | None]:
    """Return the parked pointers of one partition whose messages may be handed out now, and when the next one is due.

    Only the first parked message of a key is handed out. Otherwise a later one could overtake it, if it fails again.
    Dead letters hold up nothing. Arguments: ``in_hand`` are offsets that the dispatcher has; ``now_ms`` is the time in
    milliseconds since 1970.
    """
    due: list[Pointer] = []
    next_ms: int | None = None
    keys: set[str] = set()
    for pointer in sorted((p for p in pointers if p.kind is PointerKind.PARKED), key=lambda p: p.offset):
        if pointer.key:
            if pointer.key in keys:
                continue
            keys.add(pointer.key)
        if pointer.offset in in_hand:
            continue
        if pointer.due_ms <= now_ms:
            due.append(pointer)
        else:
            next_ms = pointer.due_ms if next_ms is None else min(next_ms, pointer.due_ms)
    return due, next_ms


LOOK_AFTER_MS = 60_000
"""Milliseconds between two looks at a partition."""
WARN_MS = 24 * 3600 * 1000
"""Milliseconds before a deletion at which it is reported. For a short retention a quarter of that counts."""
MOVE_WARN_MS = 3600 * 1000
"""The same for a deletion that is foreseen by the moving start of the log alone."""


@dataclass(frozen=True, slots=True)
class PointerAtRisk:
    """The oldest pointer of a partition, whose message will be deleted soon, or is gone already.

    ``deleted_ms`` is the earliest time of that in milliseconds since 1970, 0 if it has happened.
    """

    partition: TopicPartition
    offset: int
    kind: PointerKind
    deleted_ms: int
    text: str


class LogStart(NamedTuple):
    """The first offset of a log at a time, in milliseconds since 1970."""

    offset: int
    at_ms: int


def deletion_ms(
    offset: int, message_ms: int | None, retention_ms: int | None, first: LogStart | None, last: LogStart | None
) -> tuple[int | None, int | None]:
    """Return the earliest time at which a message may be deleted: by its age, and by the moving start of its log.

    Both are in milliseconds since 1970, None if they cannot be foreseen.

    Arguments: ``message_ms`` is the message's timestamp; ``first`` and ``last`` are two looks at the start of the log.
    """
    by_age = None if message_ms is None or retention_ms is None else message_ms + retention_ms
    if first is None or last is None or last.at_ms <= first.at_ms or last.offset <= first.offset:
        return by_age, None
    left = max(0, offset - last.offset)
    return by_age, last.at_ms + left * (last.at_ms - first.at_ms) // (last.offset - first.offset)


@dataclass(slots=True)
class _Watched:
    """The last looks at one partition."""

    looked_ms: int = 0
    offset: int = -1
    message_ms: int | None = None
    first: LogStart | None = None
    last: LogStart | None = None


class RetentionWatch:
    """Watches the oldest pointer of each owned partition. ``at_risk`` are those to report now."""

    def __init__(self, lookup: MessageLookup) -> None:
        self.at_risk: tuple[PointerAtRisk, ...] = ()
        self._lookup = lookup
        self._watched: dict[TopicPartition, _Watched] = {}
        self._risks: dict[TopicPartition, PointerAtRisk] = {}

    def look(self, partitions: Iterable[OpenPartition], now_ms: int) -> None:
        """Look at one partition whose turn it is, and forget those that have left or have no pointers."""
        oldest: dict[TopicPartition, Pointer] = {}
        for partition in partitions:
            waiting = [one for one in partition.ledger.pointers.values() if not one.lost_ms]
            if waiting and partition.own and not partition.position.revoked:
                oldest[partition.position.tp] = min(waiting, key=lambda one: one.offset)
        for tp in [tp for tp in self._watched if tp not in oldest]:
            del self._watched[tp]
            self._risks.pop(tp, None)
        for tp, pointer in oldest.items():
            watched = self._watched.setdefault(tp, _Watched())
            if now_ms - watched.looked_ms >= LOOK_AFTER_MS:
                watched.looked_ms = now_ms
                self._note(tp, pointer, self._risk(tp, pointer, watched, now_ms))
                break  # one at a time: parked messages that are due wait for this
        self.at_risk = tuple(self._risks.values())

    def _note(self, tp: TopicPartition, pointer: Pointer, risk: PointerAtRisk | None) -> None:
        known = self._risks.pop(tp, None)
        if risk is None:
            return
        self._risks[tp] = risk
        if known is None or known.offset != risk.offset or bool(known.deleted_ms) is not bool(risk.deleted_ms):
            log.warning("%s: %s", tp, risk.text)

    def _risk(self, tp: TopicPartition, pointer: Pointer, watched: _Watched, now_ms: int) -> PointerAtRisk | None:
        try:
            retention = self._lookup.retention(tp, Deadline(READ_WITHIN))
            if watched.offset != pointer.offset:
                watched.offset, watched.message_ms = pointer.offset, self._message_ms(tp, pointer.offset)
        except (BrokerError, RegistryError) as error:
            log.debug("%s: its retention is not known now: %s", tp, error)
            return self._risks.get(tp)
        kind = "a dead letter" if pointer.kind is PointerKind.DEAD else "parked"
        what = f"the message at offset {pointer.offset}, {kind},"
        start = retention.log_start
        if start is not None:
            watched.last = LogStart(start, now_ms)
            watched.first = watched.first or watched.last
            if start > pointer.offset:
                text = f"{what} is no longer in the log, which begins at offset {start}"
                return PointerAtRisk(tp, pointer.offset, pointer.kind, 0, text)
        by_age, by_move = deletion_ms(
            pointer.offset, watched.message_ms, retention.milliseconds, watched.first, watched.last
        )
        ahead = min(WARN_MS, (retention.milliseconds or WARN_MS) // 4)
        due = [at for at, warn in ((by_age, ahead), (by_move, MOVE_WARN_MS)) if at is not None and at - now_ms <= warn]
        if not due:
            return None
        at = max(1, min(due))
        text = f"{what} may be deleted by retention from {_utc(at)} on: see 'zkconsumer dead export'"
        return PointerAtRisk(tp, pointer.offset, pointer.kind, at, text)

    def _message_ms(self, tp: TopicPartition, offset: int) -> int | None:
        record = self._lookup.read(tp, [offset], Deadline(READ_WITHIN))[offset].record
        return None if record is None or record.timestamp is None or record.timestamp < 0 else int(record.timestamp)


def _utc(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return f"{ms} ms since 1970"  # from a message: any number
