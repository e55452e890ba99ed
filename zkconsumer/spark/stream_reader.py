"""``spark.readStream``: Spark's calls, handed on to the query's run.

The driver's process calls everything but ``read`` and keeps this object for the whole query. The planner makes a second
one, only to pickle it for the workers, which call ``read``. So the constructor does nothing, and the parts of a run are
neither pickled nor needed for reading.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from time import time
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from zkconsumer.errors import ConfigException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.frame_lock import LEAVES_WITHIN, FrameLock
from zkconsumer.spark.options import ReadOptions
from zkconsumer.spark.range_reader import RangeReader, read_partition
from zkconsumer.spark.streaming_query import QueryRun, end_cleanly_on_sigterm, leave_sigterm_alone

_READ_TWICE = (
    "another query reads this DataFrame, and each message of a group goes to one of its readers; load() a DataFrame "
    "for each query: with a group.id of its own it gets all messages, with the same one a share of them"
)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics of the options in batches, for one streaming query.

    Arguments: ``frame`` names the DataFrame, which only one query at a time may read.
    """

    def __init__(self, options: ReadOptions, schema: StructType, frame: str) -> None:
        self._options = options
        self._schema = schema
        self.lock = FrameLock(frame, since=time())
        self._run: QueryRun | None = None

    def __repr__(self) -> str:
        return f"<StreamReader of {self._options}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def _running(self) -> QueryRun:
        run = self._run
        if run is None:
            end_cleanly_on_sigterm()
            if not self.lock.acquire(Deadline(LEAVES_WITHIN)):
                raise ConfigException("group.id", f"{self._options.group!r}: {_READ_TWICE}")
            run = QueryRun(self._options, cluster_of(self._options))
            atexit.register(self._close, run)  # a signal may come between any two lines, also of stop()
            self._run = run
            try:
                run.open()
            except BaseException:
                self.stop()
                raise
        return run

    def _close(self, run: QueryRun) -> None:
        leave_sigterm_alone()
        self.lock.leaving()
        try:
            run.close()
        finally:
            self.lock.release()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return a constant: Spark asks again when it replays the first batch, and must get the same answer."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return ``maxOffsetsPerTrigger``, or else ``minOffsetsPerTrigger``, if given.

        Spark takes one limit of a Python source, and hands it back with each trigger. The trigger ``once`` alone hands
        over ReadAllAvailable in its place: then the batch neither has a limit nor waits.
        """
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Settle finished batches and plan the next one; see ``QueryRun.latest``."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._running().latest(start, most, at_once=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the logs' ends, for the query's progress."""
        return None if self._run is None else self._run.log_ends() or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read nothing that comes from now on."""
        self._running().fix_targets()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch, which its end offset alone decides."""
        return list(self._running().plan(end))

    def range_reader(self) -> RangeReader:
        """Return a reader for several calls of :meth:`read` in one process. It is the caller's to close."""
        return RangeReader(self._options, {})

    def read(self, partition: InputPartition, reader: RangeReader | None = None) -> Iterator[Any]:
        """Return the messages of one task as Arrow batches. Raises BrokerError, OffsetOutOfRangeError."""
        return read_partition(self._options, self._schema, partition, reader)

    def commit(self, end: dict[str, Any]) -> None:
        """Settle batches up to here: they are finished."""
        self._running().settle(end)

    def stop(self) -> None:
        """End the query."""
        run = self._run
        if run is not None:
            self._close(run)
            self._run = None
            atexit.unregister(self._close)
