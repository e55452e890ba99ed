"""``spark.readStream``: Spark's calls, handed on to the query's run.

The driver's process calls everything but ``read`` and keeps this object for the whole query. The planner makes a second
one, only to pickle it for the workers, which call ``read``. So the constructor does nothing, and a worker unpickles a
:class:`TaskReader`, without the parts of a run.

Two queries of one streaming DataFrame are refused. Both would be members of the same group, or beside it. So each
message would go to one query only. With Spark's own sources every query gets every message. Spark makes one data
source for each ``load()``. All queries of that DataFrame get copies of it, each query in its own process on the
driver's host. Each process locks a file that is named after the data source. The system unlocks the file when the
process ends, also when it is killed. A DataFrame that is loaded twice has two locks: its queries share a group.

``readOnDriver=true``: small batches are read where they are planned, without a task in Python. PySpark starts a task in
a Python worker for each batch of a source that plans partitions. That takes longer than reading some hundred messages.
A simple reader hands the messages over together with the end of the batch. Spark keeps them as a block, which its own
tasks read. A batch that is repeated after a restart is read by a task as ever.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import nan
from pathlib import Path
from threading import Event
from time import time
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader
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
from zkconsumer.spark.options import READ_ON_DRIVER, ReadOptions
from zkconsumer.spark.range_reader import RangeReader, TaskReader, whole_batch
from zkconsumer.spark.streaming_query import QueryRun, end_cleanly_on_sigterm, leave_sigterm_alone

_READ_TWICE = (
    "another query reads this DataFrame, and each message of a group goes to one of its readers; load() a DataFrame "
    "for each query: with a group.id of its own it gets all messages, with the same one a share of them"
)


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics of the options in batches, for one streaming query.

    Arguments: ``frame`` names the DataFrame, which only one query at a time may read.
    """

    def __init__(self, options: ReadOptions, schema: StructType, frame: str) -> None:
        super().__init__(options, schema)
        self.lock = FrameLock(frame, since=time())
        self._run: QueryRun | None = None

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


log = logging.getLogger(__name__)

LEAVES_WITHIN: Final = 15.0
"""Seconds that a query which has begun to leave may take."""
_POLL: Final = 0.05
_LONGEST: Final = 32


class FrameLock:
    """The lock of a DataFrame. Only the main thread of a query's process uses it.

    Arguments: ``frame`` names the DataFrame; ``since`` is the time (s since 1970) at which this query began.
    """

    def __init__(self, frame: str, since: float) -> None:
        self.path = Path(tempfile.gettempdir()) / f"zkconsumer-frame-{frame}.lock"
        self._since = since
        self.file: int | None = None
        """The descriptor of the locked file; None while it is not locked."""
        self._left = nan  # when the query that has the lock began to leave; it compares with nothing while it stays

    def acquire(self, deadline: Deadline) -> bool:
        """Return whether this query may read the DataFrame.

        A query that began to leave before this query began is waited for until the deadline. A query that stays longer
        has read messages that this query would miss, also if it ends meanwhile. Where no file can be made there is no
        lock, which is logged.
        """
        pause = Event()
        try:
            while not self._try():
                if not self._left <= self._since or deadline.expired:
                    return False
                pause.wait(deadline.bounded(_POLL))
        except OSError as error:
            log.warning("whether other queries read the same DataFrame cannot be seen: %s", error)
        return True

    def leaving(self) -> None:
        """Tell a query that waits that this one is about to leave."""
        if self.file is not None:
            with suppress(OSError):
                os.pwrite(self.file, f"{time():.6f}\n".encode(), 0)

    def release(self) -> None:
        """Let another query read the DataFrame. May be called again."""
        file, self.file = self.file, None
        if file is not None:
            with suppress(OSError):
                self.path.unlink()  # before the lock is given up, so that nobody's is
            os.close(file)

    def _try(self) -> bool:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.fstat(file).st_ino == self.path.stat().st_ino  # else its holder has just removed it
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if ours:
            os.ftruncate(file, 0)  # a query that was killed may have written into it
            self.file = file
            return True
        with suppress(ValueError):
            self._left = float(os.pread(file, _LONGEST, 0) or "nan")
        os.close(file)
        return False


DRIVER_BYTES: Final = 256 * 1024 * 1024
"""The columns of a batch take at most so many bytes: the query's process and Spark's driver hold all of them."""

KEPT_FOR: Final = 30.0
"""Seconds for which a connection without use is believed to be open."""


class DriverReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each batch of a stream in the query's driver process."""

    def __init__(self, stream: StreamReader) -> None:
        self._stream = stream
        self._reader: RangeReader | None = None

    def __reduce__(self) -> Any:
        return self._stream.__reduce__()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return a constant, as the stream does."""
        return self._stream.initialOffset()

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """Settle finished batches, plan the next one, and read it. Returns its Arrow batches, and its end.

        Raises as the planning and the reading of a stream, and ConfigException for a batch of more than
        ``DRIVER_BYTES``.
        """
        end = self._stream.latestOffset(start, self._stream.getDefaultReadLimit())
        if end == start:
            return iter(()), end
        partitions = self._stream.partitions(start, end)
        return iter(self._batches(partitions)), end  # an iterator of a list: Spark copies it for each attempt

    def _batches(self, partitions: Sequence[InputPartition]) -> list[Any]:
        """Return the messages of a batch. The connections stay open for the next one, which may come soon."""
        reader = self._reader = self._reader or self._stream.range_reader()
        reader.close_unused(KEPT_FOR)
        batches, size = [], 0
        try:
            for partition in partitions:
                for batch in self._stream.read(partition, reader):
                    size += batch.nbytes
                    if size > DRIVER_BYTES:
                        reason = f"a batch takes more than {DRIVER_BYTES >> 20} MB; lower maxOffsetsPerTrigger"
                        raise ConfigException(READ_ON_DRIVER, f"'true': {reason}, or let tasks read")
                    batches.append(batch)
        except BaseException:
            self.close()
            raise
        return batches

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802
        """Return the messages of a batch of the checkpoint, in a task."""
        return self._stream.read(whole_batch(end))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read nothing that comes from now on."""
        self._stream.prepareForTriggerAvailableNow()

    def commit(self, end: dict[str, Any]) -> None:
        """Settle batches up to here: they are finished."""
        self._stream.commit(end)

    def close(self) -> None:
        """Close the connections. Otherwise they are closed with the process, since Spark does not stop such readers."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
