"""A source of constant rows: shows the time that PySpark itself takes for a small batch of a Python source.

The rows have the columns of Spark's Kafka source, and nobody is asked for them. With ``readOnDriver=true`` the process
of the query hands the rows over; otherwise a task makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader

CONSTANT = "constant"
_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_VALUE = bytes(160)
_AT = "at"


class ConstantRows(DataSource):
    """Makes ``maxOffsetsPerTrigger`` rows a batch."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return CONSTANT

    def schema(self) -> str:
        """Return the schema."""
        return _SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of tasks. Raises PySparkNotImplementedError, by which Spark asks for the simple one."""
        if self.options.get("readOnDriver") == "true":
            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED", messageParameters={"feature": "streamReader"}
            )
        return _TaskRows(self._rows())

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
        """Return the reader of the query's process."""
        return _DriverRows(self._rows())

    def _rows(self) -> int:
        return int(self.options["maxOffsetsPerTrigger"])


class _TaskRows(DataSourceStreamReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._planned = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {_AT: 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802
        self._planned += self._rows
        return {_AT: self._planned}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [InputPartition(end[_AT] - start[_AT])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter([_batch(partition.value)])


class _DriverRows(SimpleDataSourceStreamReader):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {_AT: 0}

    def read(self, start: Any) -> tuple[Iterator[Any], dict[str, int]]:
        return iter([_batch(self._rows)]), {_AT: start[_AT] + self._rows}

    def readBetweenOffsets(self, start: Any, end: Any) -> Iterator[Any]:  # noqa: N802
        return iter([_batch(end[_AT] - start[_AT])])

    def commit(self, end: Any) -> None:
        pass


def _batch(rows: int) -> Any:
    import pyarrow as pa

    numbers = pa.array(range(rows), pa.int64())
    zeros = pa.array([0] * rows, pa.int32())
    columns = {"key": pa.nulls(rows, pa.binary()), "value": pa.array([_VALUE] * rows, pa.binary())}
    columns |= {"topic": pa.array(["t"] * rows), "partition": zeros, "offset": numbers}
    columns |= {"timestamp": numbers.cast(pa.timestamp("us", tz="UTC")), "timestampType": zeros}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
