"""Reads a table about groups: one task reads all groups in turn, and hands the rows on as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.operations.snapshot_source import SnapshotSource
from zkconsumer.spark import table_rows as tables
from zkconsumer.spark.table_options import TableOptions
from zkconsumer.spark.table_rows import TABLES

log = logging.getLogger(__name__)

_TYPES: dict[str, DataType] = {
    tables.STRING: StringType(),
    tables.INT: IntegerType(),
    tables.LONG: LongType(),
    tables.DOUBLE: DoubleType(),
    tables.FLAG: BooleanType(),
    tables.TIME: TimestampType(),
    tables.STRINGS: ArrayType(StringType()),
}


def table_types(name: str) -> dict[str, DataType]:
    """Return the Spark type of every column of a table."""
    return {column: _TYPES[kind] for column, kind in TABLES[name].columns.items()}


def table_schema(name: str) -> StructType:
    """Return the columns of a table if the user names none."""
    table = TABLES[name]
    return StructType([StructField(n, t) for n, t in table_types(name).items() if n not in table.on_request])


class TableReader(DataSourceReader):
    """Reads the columns of a checked schema, of one table."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return one task."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the rows of each group as an Arrow batch.

        Raises UnknownGroupError for a named group that does not exist; RegistryError, BrokerError if neither ZooKeeper
        nor the brokers answer.
        """
        del partition
        options = self.options
        source = LiveSource(ClusterClient(options.config, options.timeout))
        try:
            yield from batches(source, options, self._schema)
        finally:
            source.close()


def batches(source: SnapshotSource, options: TableOptions, schema: StructType) -> Iterator[Any]:
    """Yield an Arrow batch with the columns of ``schema`` for each group that has rows."""
    table = TABLES[options.table]
    with_times = bool({"message_time", "lag_seconds"}.intersection(schema.names) & set(table.columns))
    for group in options.groups or source.groups():
        if options.groups:
            snapshot = require_group(source, group, message_times=with_times)
        else:
            snapshot = source.snapshot(group, message_times=with_times)
        _report(snapshot)
        rows = tables.table_rows(table, snapshot)
        if rows:
            yield _batch(rows, table, schema)


def _report(snapshot: GroupSnapshot) -> None:
    for problem in snapshot.problems:
        log.warning("group %r: %s: %s", snapshot.group, problem.what, problem.why)


def _batch(rows: list[tables.Row], table: tables.GroupTable, schema: StructType) -> Any:
    import pyarrow as pa

    types = {
        tables.STRING: pa.string(),
        tables.INT: pa.int32(),
        tables.LONG: pa.int64(),
        tables.DOUBLE: pa.float64(),
        tables.FLAG: pa.bool_(),
        tables.TIME: pa.timestamp("us", tz="UTC"),
        tables.STRINGS: pa.list_(pa.field("element", pa.string())),
    }
    fields, columns = [], []
    for field in schema.fields:
        kind = table.columns[field.name]
        values = [row[field.name] for row in rows]
        if kind == tables.TIME:
            values = [None if value is None else value * 1000 for value in values]
        fields.append(pa.field(field.name, types[kind], nullable=field.nullable))
        columns.append(pa.array(values, types[kind]))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
