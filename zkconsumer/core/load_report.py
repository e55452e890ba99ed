"""The reports of members to the planner of ``lag-aware``: the lag of each partition, and its rate of messages. Pure.

The content of a node may be anybody's. A report that cannot be read counts as none, since it only decides about moves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

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
