"""Reads a table about groups: one task reads all groups in turn, and hands the rows on as Arrow batches.

The options of such a table, ``option("table", ...)``, are parsed here too. Parsing is pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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

from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import keys_of
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.spark import table_rows as tables
from zkconsumer.spark.options import NAMES, as_written, refuse, refuse_all, unknown
from zkconsumer.spark.table_rows import TABLES

TABLE: Final = "table"
_CONNECT, _BOOTSTRAP = "zookeeper.connect", "bootstrap.servers"
_PROPERTIES: Final = (
    *("client.id", "broker.address.map", "zookeeper.session.timeout.ms"),
    *keys_of(SecurityConfig),
)
_TIMEOUT: Final = "socket.timeout.ms"
_OWN: Final = (TABLE, "groups", "group.id", _CONNECT, _BOOTSTRAP, _TIMEOUT, *_PROPERTIES)
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds for the answers about one group."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options in typed form.

    ``table`` is a key of :data:`TABLES`. ``groups`` are the named groups; empty: all. ``timeout`` in seconds limits the
    reading of one group.
    """

    table: str
    config: ConsumerConfig
    groups: tuple[str, ...] = ()
    timeout: float = DEFAULT_TIMEOUT


def names_table(options: Mapping[str, str]) -> bool:
    """Return whether these are the options of a table about groups, rather than of messages."""
    return any(name.lower() == TABLE for name in options)


def parse_table(given: Mapping[str, str]) -> TableOptions:
    """Return the options in typed form. Raises ConfigException naming the option as the user wrote it."""
    return as_written(given, _parsed)


def _parsed(options: Mapping[str, str], spelled: Mapping[str, str]) -> TableOptions:
    table = options[TABLE].strip().lower()
    if table not in TABLES:
        refuse(TABLE, options[TABLE], f"there is no such table, only {', '.join(TABLES)}")
    for name, value in options.items():
        if name not in _OWN:
            if name in NAMES:
                refuse(NAMES[name], value, f"has no meaning for table={table}, which reads no messages")
            refuse_all([unknown(name, value)], spelled)
    if _CONNECT not in options and _BOOTSTRAP not in options:
        raise ConfigException(_CONNECT, "is missing; name ZooKeeper, or brokers with bootstrap.servers, or both")
    config, _warnings = command_config(
        options.get(_CONNECT), options.get(_BOOTSTRAP), {name: options[name] for name in _PROPERTIES if name in options}
    )
    return TableOptions(table, config, _groups(options), _timeout(options))


def _groups(options: Mapping[str, str]) -> tuple[str, ...]:
    if "groups" in options and "group.id" in options:
        refuse("groups", options["groups"], f"contradicts group.id={options['group.id']!r}; say one of them")
    if "group.id" in options:
        names = [options["group.id"]]
    else:
        names = [name.strip() for name in options.get("groups", "").split(",")] if "groups" in options else []
    option = "group.id" if "group.id" in options else "groups"
    for name in names:
        problem = name_problem(name) if name else "a name is empty"
        if problem is not None:
            refuse(option, options[option], problem)
    return tuple(dict.fromkeys(names))


def _timeout(options: Mapping[str, str]) -> float:
    text = options.get(_TIMEOUT)
    if text is None:
        return DEFAULT_TIMEOUT
    if not (text.strip().isascii() and text.strip().isdecimal() and 0 < int(text) <= 86_400_000):
        refuse(_TIMEOUT, text, "milliseconds from 1 to 86400000 are wanted")
    return int(text) / 1000


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
