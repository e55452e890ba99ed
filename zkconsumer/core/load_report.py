"""The reports of members to the planner of ``lag-aware``: the lag of each partition, and its rate of messages. Pure.

The content of a node may be anybody's. A report that cannot be read counts as none, since it only decides about moves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.model import TopicPartition

VERSION = 1
MAX_REPORT_BYTES = 256 * 1024
"""The size of the largest report. A member with more partitions tells nothing of the last ones."""
_LARGEST = 1e15
_ENTRY_BYTES = 40


class PartitionLoad(NamedTuple):
    """The messages that a partition still has, and the new ones in a second."""

    lag: float
    rate: float


Loads = Mapping[TopicPartition, PartitionLoad]


@dataclass(slots=True)
class _Seen:
    """A position as it was when its log's end was last known: then (monotonic seconds), with the rate until then."""

    end: int
    fetched: int | None
    at: float
    rate: float | None = None


class LoadMeter:
    """Measures the loads of owned partitions. One thread.

    A stream whose reader is slow has no room, and then none of its partitions is fetched. Their log ends stay as they
    were, so a slow or stuck reader would look idle, and would be given more. So while a stream is full, its partitions
    keep the last known rates, and lags grow by these rates.
    """

    def __init__(self) -> None:
        self._before: dict[PartitionPosition, _Seen] = {}

    def measure(
        self, positions: Mapping[TopicPartition, PartitionPosition], now: float
    ) -> dict[TopicPartition, PartitionLoad]:
        """Return the loads of partitions that were fetched twice. ``now`` in monotonic seconds."""
        known = {tp: one for tp, one in positions.items() if one.cursor.log_end >= 0 and one.lag >= 0}
        fetched = {one.thread for one in known.values() if self._was_fetched(one)}
        full = {one.thread for one in known.values() if _is_unread(one)} - fetched
        found: dict[TopicPartition, PartitionLoad] = {}
        seen: dict[PartitionPosition, _Seen] = {}
        for tp, position in known.items():
            before, end, lag = self._before.get(position), position.cursor.log_end, float(position.lag)
            if before is None or now <= before.at:
                seen[position] = before or _Seen(end, position.cursor.fetched, now)
                continue
            grown, seconds = max(0, end - before.end), now - before.at
            if (position.paused or position.thread in full) and not grown:
                seen[position] = before
                if before.rate is not None:
                    more = 0.0 if position.paused else before.rate * seconds
                    found[tp] = PartitionLoad(lag + more, before.rate)
                continue
            seen[position] = _Seen(end, position.cursor.fetched, now, grown / seconds)
            found[tp] = PartitionLoad(lag, grown / seconds)
        self._before = seen
        return found

    def _was_fetched(self, position: PartitionPosition) -> bool:
        before = self._before.get(position)
        return before is None or (before.end, before.fetched) != (position.cursor.log_end, position.cursor.fetched)


def _is_unread(position: PartitionPosition) -> bool:
    """Return whether fetched messages wait for their reader."""
    fetched, consumed = position.cursor.fetched, position.consumed
    return fetched is not None and consumed is not None and consumed < fetched


def encode_loads(loads: Loads) -> bytes:
    """Return the content of a member's node."""
    topics: dict[str, dict[str, list[float]]] = {}
    size = 0
    for tp, load in sorted(loads.items()):
        size += _ENTRY_BYTES + (len(tp.topic.encode()) if tp.topic not in topics else 0)
        if size > MAX_REPORT_BYTES:
            break
        topics.setdefault(tp.topic, {})[str(tp.partition)] = [round(load.lag), round(load.rate, 3)]
    return json.dumps({"version": VERSION, "loads": topics}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_loads(data: bytes) -> dict[TopicPartition, PartitionLoad]:
    """Return the loads in a member's node; those that can be read."""
    if len(data) > MAX_REPORT_BYTES:
        return {}
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or type(version := document.get("version")) is not int or version != VERSION:
        return {}
    topics = document.get("loads")
    return {
        TopicPartition(topic, int(number)): PartitionLoad(*load)
        for topic, numbers in (topics.items() if isinstance(topics, dict) else ())
        for number, load in (numbers.items() if isinstance(numbers, dict) else ())
        if number.isascii() and number.isdecimal() and len(number) <= 10 and _is_load(load)
    }


def _is_load(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_amount, value))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST
