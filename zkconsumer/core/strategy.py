"""From the configured strategy to the function that the planner calls. Pure."""

from __future__ import annotations

from zkconsumer.core.planner import Assign, GroupView, Threads
from zkconsumer.model import Assignment, ThreadId, TopicPartition, utf16_key


def assignment_strategy(config: object) -> Assign:
    def range_(view: GroupView, threads: Threads) -> Assignment:
        out: dict[TopicPartition, ThreadId] = {}
        topics: dict[str, list[ThreadId]] = {}
        for by in threads.values():
            for t, ids in by.items():
                topics.setdefault(t, []).extend(ids)
        for t, ids in topics.items():
            parts = view.partitions.get(t, ())
            ids = sorted(ids, key=utf16_key)
            n, extra = divmod(len(parts), len(ids))
            for k, th in enumerate(ids):
                start = k * n + min(k, extra)
                for p in parts[start : start + n + (1 if k < extra else 0)]:
                    out[TopicPartition(t, p)] = th
        return out

    return range_
