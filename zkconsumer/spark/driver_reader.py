"""``readOnDriver=true``: small batches of a stream, read where they are planned, without a task in Python.

PySpark starts a task in a Python worker for each batch of a source that plans partitions. That takes longer than
reading some hundred messages. A simple reader hands the messages over together with the end of the batch. Spark keeps
them as a block, which its own tasks read. A batch that is repeated after a restart is read by a task as ever.

Everything else is the stream's: the group, the offsets, and the ranges that the end of a batch names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import InputPartition, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from zkconsumer.errors import ConfigException
from zkconsumer.spark.offset_ranges import decode_progress, ranges_of
from zkconsumer.spark.options import READ_ON_DRIVER
from zkconsumer.spark.range_reader import RangePartition, RangeReader
from zkconsumer.spark.stream_reader import StreamReader

DRIVER_BYTES: Final = 256 * 1024 * 1024
"""The columns of a batch take at most so many bytes: the query's process and Spark's driver hold all of them."""

KEPT_FOR: Final = 30.0
"""Seconds for which a connection without use is believed to be open."""


class DriverReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each batch of a stream in the query's driver process."""

    def __init__(self, stream: StreamReader) -> None:
        self._stream = stream
        self._reader: RangeReader | None = None

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
        """Return the messages of a batch of the checkpoint, in a task. Its end alone names them."""
        return self._stream.read(RangePartition(ranges_of(decode_progress(end)), {}))

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
