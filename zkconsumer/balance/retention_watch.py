"""Tells before retention deletes a message that a pointer names.

Retention deletes whole segments, so each estimate is the earliest time. It follows from the message's timestamp and the
topic's ``retention.ms``, and from how fast the start of the log moves, which also covers ``retention.bytes``.

:func:`deletion_ms` is pure. The thread of the parked messages calls :meth:`RetentionWatch.look`; any thread may read
``at_risk``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.core.message_pointers import Pointer, PointerKind
from zkconsumer.errors import BrokerError, RegistryError
from zkconsumer.fetch.message_lookup import MessageAt, Retention
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline

log = logging.getLogger(__name__)

LOOK_AFTER_MS = 60_000
"""Milliseconds between two looks at a partition."""
WARN_MS = 24 * 3600 * 1000
"""Milliseconds before a deletion at which it is reported. For a short retention a quarter of that counts."""
MOVE_WARN_MS = 3600 * 1000
"""The same for a deletion that is foreseen by the moving start of the log alone."""
LOOK_WITHIN = 5.0
"""Seconds for one partition."""


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


class RetentionReader(Protocol):
    """Reads from brokers; see :class:`zkconsumer.fetch.message_lookup.MessageLookup`."""

    def read(self, tp: TopicPartition, offsets: Iterable[int], deadline: Deadline) -> dict[int, MessageAt]:
        """Return what stands at the offsets. Raises BrokerError."""

    def retention(self, tp: TopicPartition, deadline: Deadline) -> Retention:
        """Return what may delete messages. Raises BrokerError, RegistryError."""


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


class _Watched:
    """The last looks at one partition."""

    __slots__ = ("first", "last", "looked_ms", "message_ms", "offset")

    def __init__(self) -> None:
        self.looked_ms = 0
        self.offset = -1
        self.message_ms: int | None = None
        self.first: LogStart | None = None
        self.last: LogStart | None = None


class RetentionWatch:
    """Watches the oldest pointer of each owned partition. ``at_risk`` are those to report now."""

    def __init__(self, lookup: RetentionReader) -> None:
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
            retention = self._lookup.retention(tp, Deadline(LOOK_WITHIN))
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
        record = self._lookup.read(tp, [offset], Deadline(LOOK_WITHIN))[offset].record
        return None if record is None or record.timestamp is None or record.timestamp < 0 else int(record.timestamp)


def _utc(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return f"{ms} ms since 1970"  # from a message: any number
