"""Reports about a streaming query, in words and as metrics, made of the query's progress. Pure; any thread.

Spark describes a Python source by the name of a Java class, and takes no metrics from it. Its own Kafka source has both
(``sources[].metrics``, SPARK-34854). But the progress has the offsets of the batch and the logs' ends, and everything
else follows from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.errors import ConfigException
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark.offset_ranges import decode_progress, in_words, ranges_of


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One batch of one source.

    ``batch`` is Spark's number of the batch. ``ranges`` are the offsets [start, end) that it read. ``behind`` maps each
    partition of the query to the offsets that were in its log when the batch was planned, and that no batch has read
    yet. It is empty with ``readOnDriver=true``: Spark does not ask such a source for the logs' ends. ``str()`` has all
    of the report in one line.
    """

    batch: int
    ranges: tuple[OffsetRange, ...]
    behind: Mapping[TopicPartition, int]

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics of Spark's Kafka source, with its names and as texts. Empty if ``behind`` is."""
        counts = self.behind.values()
        if not counts:
            return {}
        return {
            "avgOffsetsBehindLatest": str(sum(counts) / len(counts)),
            "maxOffsetsBehindLatest": str(max(counts)),
            "minOffsetsBehindLatest": str(min(counts)),
        }

    def __str__(self) -> str:
        """Return for example "batch 7 read 300 offsets: events-0 [0, 200), events-1 [0, 100); 12 more are there"."""
        size = sum(range_.size for range_ in self.ranges)
        text = f"batch {self.batch} read {size} offsets"
        if self.ranges:
            text += f": {in_words(self.ranges)}"
        return f"{text}; {sum(self.behind.values())} more are there" if self.behind else text


def source_reports(progress: Mapping[str, Any] | None) -> list[SourceReport]:
    """Return a report for each source of this package; other sources of the query are left out."""
    found: list[SourceReport] = []
    if progress is None:
        return found
    for source in progress["sources"]:
        end = _json(source["endOffset"])
        try:
            done = decode_progress(end)
        except ConfigException:
            continue  # the offset of another source
        if done:
            ends = dict(_ends(_json(source.get("latestOffset"))))
            behind = {tp: max(0, end - done[tp].end) for tp, end in sorted(ends.items()) if tp in done}
            # a batch without messages of this source, for a watermark or another source, has the end of the one before
            ranges = [] if end == _json(source.get("startOffset")) else ranges_of(done)
            found.append(SourceReport(progress["batchId"], tuple(ranges), behind))
    return found


def _json(offset: object) -> object:
    """Return an offset: PySpark hands it over as text, and a missing one as "null" or "None"."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except (ValueError, RecursionError):
        return None


def _ends(latest: object) -> Iterable[tuple[TopicPartition, int]]:
    """Return the logs' ends; nothing that is not in the form of ``QueryRun.log_ends``."""
    for topic, partitions in latest.items() if isinstance(latest, Mapping) else ():
        for partition, end in partitions.items() if isinstance(partitions, Mapping) else ():
            if isinstance(partition, str) and partition.isdecimal() and type(end) is int:
                yield TopicPartition(topic, int(partition)), end
