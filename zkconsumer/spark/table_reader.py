"""The tables about groups, ``option("table", ...)``: options, columns, rows from group snapshots, and the reader.

One task reads all groups in turn, and hands the rows on as Arrow batches. All but the reader is pure. An unknown value
is null. Text comes from nodes that anyone may have written, so whatever Arrow cannot hold is replaced.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import types
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import keys_of
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot, NodeStat, SnapshotSource
from zkconsumer.operations.group_view import GroupAnalysis, member_host, member_kind
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.spark.options import NAMES, TABLE, as_written, refuse, refuse_all, unknown

Row = dict[str, Any]

BY_ZOOKEEPER: Final = "zookeeper"
BY_BROKERS: Final = "kafka"
"""The values of the column ``coordination``: those of ``group.coordination``."""

STRING, INT, LONG, DOUBLE, FLAG = "string", "int", "bigint", "double", "boolean"
TIME: Final = "timestamp"
"""A time in a row is milliseconds since 1970."""
STRINGS: Final = "array<string>"

_LARGEST: Final = {INT: (1 << 31) - 1, LONG: (1 << 63) - 1, TIME: 253_402_300_799_999}
"""The largest value of a type; that of times is the last millisecond of the year 9999, as Spark has it."""


class GroupTable(NamedTuple):
    """A table: the type of each column by name, the columns that only a schema asks for, and the rows of a group."""

    columns: Mapping[str, str]
    on_request: frozenset[str]
    rows: Callable[[GroupSnapshot], Iterator[Row]]


def table_rows(table: GroupTable, snapshot: GroupSnapshot) -> list[Row]:
    """Return the rows of one group, each with all columns of the table and values that fit their types."""
    common = {"group": snapshot.group, "taken": snapshot.taken}
    return [
        {name: _fitting(kind, {**common, **row}.get(name)) for name, kind in table.columns.items()}
        for row in table.rows(snapshot)
    ]


def _fitting(kind: str, value: Any) -> Any:
    """Return the value, or null if a column of this type cannot hold it."""
    if value is None:
        return None
    if kind == STRING:
        return _clean(str(value))
    if kind == STRINGS:
        return [_clean(str(each)) for each in value]
    largest = _LARGEST.get(kind)
    return value if largest is None or -largest - 1 <= value <= largest else None


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _members(snapshot: GroupSnapshot) -> Iterator[Row]:
    analysis = GroupAnalysis(snapshot)
    owned = Counter(_member_of(node.thread) for node in snapshot.owners.values())
    for consumer, node in sorted(snapshot.members.items()):
        threads = analysis.threads.get(consumer)
        yield {
            "coordination": BY_ZOOKEEPER,
            "member": consumer,
            "kind": member_kind(node).value,
            "host": member_host(snapshot.group, consumer, node),
            "topics": None if threads is None else sorted(threads),
            "streams": None if threads is None else len({thread for ids in threads.values() for thread in ids}),
            "partitions": owned[consumer],
            "joined": _created(node.stat),
            "session": _session(node.stat),
            "problem": node.problem or None,
        }
    for member in () if snapshot.brokers_group is None else snapshot.brokers_group.members:
        yield {
            "coordination": BY_BROKERS,
            "member": member.member_id,
            "host": member.host,
            "client_id": member.client_id,
            "instance_id": member.instance_id,
            "topics": sorted(member.topics) or None,
            "partitions": None if member.assignment is None else len(member.assignment),
        }


def _owners(snapshot: GroupSnapshot) -> Iterator[Row]:
    for tp, node in sorted(snapshot.owners.items()):
        yield {
            **_place(tp),
            "coordination": BY_ZOOKEEPER,
            "member": _member_of(node.thread),
            "thread": node.thread or None,
            "since": _created(node.stat),
            "session": _session(node.stat),
            "problem": node.problem or None,
        }
    for tp, member in sorted(_assigned(snapshot).items()):
        yield {**_place(tp), "coordination": BY_BROKERS, "member": member}


def _offsets(snapshot: GroupSnapshot) -> Iterator[Row]:
    for tp, node in sorted(snapshot.offsets.items()):
        yield {
            **_place(tp),
            "store": BY_ZOOKEEPER,
            "offset": node.offset,
            "committed": None if node.stat is None else node.stat.mtime,
            "version": None if node.stat is None else node.stat.version,
            "problem": node.problem or None,
        }
    for tp, stored in sorted((snapshot.kafka_offsets or {}).items()):
        yield {
            **_place(tp),
            "store": BY_BROKERS,
            "offset": stored.offset,
            "leader_epoch": stored.leader_epoch if stored.leader_epoch >= 0 else None,
            "metadata": stored.metadata or None,
            "problem": stored.problem or None,
        }


def _lag(snapshot: GroupSnapshot) -> Iterator[Row]:
    analysis = GroupAnalysis(snapshot)
    owners: Mapping[TopicPartition, str] = {**_assigned(snapshot), **analysis.owners}
    wanted = set(snapshot.partitions()) | set(snapshot.partitions_of(analysis.subscribed))
    anyone = bool(snapshot.members) or bool(snapshot.brokers_group and snapshot.brokers_group.members)
    for tp in sorted(wanted):
        log, offset = snapshot.logs.get(tp), snapshot.offsets.get(tp)
        late = snapshot.lag_ms(tp)
        yield {
            **_place(tp),
            "current_offset": snapshot.committed(tp),
            "log_start": None if log is None else log.start,
            "log_end": None if log is None else log.end,
            "lag": snapshot.lag(tp),
            "lag_seconds": None if late is None else late / 1000,
            "owner": owners.get(tp) or None,
            "subscribed": tp.topic in analysis.subscribed if anyone else None,
            "last_commit": None if offset is None or offset.stat is None else offset.stat.mtime,
            "leader": None if log is None else log.leader,
            "message_time": None if log is None else log.known_time,
            "problem": (None if log is None else log.problem) or None,
        }


def _assigned(snapshot: GroupSnapshot) -> Mapping[TopicPartition, str]:
    """Return the member id that the coordinator names for each partition."""
    members = () if snapshot.brokers_group is None else snapshot.brokers_group.members
    return {tp: member.member_id for member in members for tp in member.assignment or ()}


def _member_of(thread: str) -> str | None:
    """Return the consumer id in a thread id."""
    return thread.rpartition("-")[0] or None


def _place(tp: TopicPartition) -> Row:
    return {"topic": tp.topic, "partition": tp.partition}


def _created(stat: NodeStat | None) -> int | None:
    return None if stat is None else stat.ctime


def _session(stat: NodeStat | None) -> int | None:
    """Return the session that a node ends with, 0 for a persistent node. It is unsigned in ZooKeeper's own texts."""
    return None if stat is None else stat.ephemeral_owner


_GROUP: Final = {"group": STRING}
_PARTITION: Final = {"topic": STRING, "partition": INT}
_LAST: Final = {"problem": STRING, "taken": TIME}

TABLES: Final[Mapping[str, GroupTable]] = {
    "members": GroupTable(
        {
            **_GROUP,
            "coordination": STRING,
            "member": STRING,
            "kind": STRING,
            "host": STRING,
            "client_id": STRING,
            "instance_id": STRING,
            "topics": STRINGS,
            "streams": INT,
            "partitions": INT,
            "joined": TIME,
            "session": LONG,
            **_LAST,
        },
        frozenset(),
        _members,
    ),
    "owners": GroupTable(
        {
            **_GROUP,
            **_PARTITION,
            "coordination": STRING,
            "member": STRING,
            "thread": STRING,
            "since": TIME,
            "session": LONG,
            **_LAST,
        },
        frozenset(),
        _owners,
    ),
    "offsets": GroupTable(
        {
            **_GROUP,
            **_PARTITION,
            "store": STRING,
            "offset": LONG,
            "committed": TIME,
            "version": INT,
            "leader_epoch": INT,
            "metadata": STRING,
            **_LAST,
        },
        frozenset(),
        _offsets,
    ),
    "lag": GroupTable(
        {
            **_GROUP,
            **_PARTITION,
            "current_offset": LONG,
            "log_start": LONG,
            "log_end": LONG,
            "lag": LONG,
            "owner": STRING,
            "subscribed": FLAG,
            "last_commit": TIME,
            "leader": INT,
            "message_time": TIME,
            "lag_seconds": DOUBLE,
            **_LAST,
        },
        frozenset({"message_time", "lag_seconds"}),
        _lag,
    ),
}
"""All tables by name."""


_CONNECT, _BOOTSTRAP = "zookeeper.connect", "bootstrap.servers"
_PROPERTIES: Final = (*("client.id", "broker.address.map", "zookeeper.session.timeout.ms"), *keys_of(SecurityConfig))
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

_TYPES: dict[str, types.DataType] = {
    STRING: types.StringType(),
    INT: types.IntegerType(),
    LONG: types.LongType(),
    DOUBLE: types.DoubleType(),
    FLAG: types.BooleanType(),
    TIME: types.TimestampType(),
    STRINGS: types.ArrayType(types.StringType()),
}


def table_types(name: str) -> dict[str, types.DataType]:
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
        rows = table_rows(table, snapshot)
        if rows:
            yield _batch(rows, table, schema)


def _report(snapshot: GroupSnapshot) -> None:
    for problem in snapshot.problems:
        log.warning("group %r: %s: %s", snapshot.group, problem.what, problem.why)


def _batch(rows: list[Row], table: GroupTable, schema: StructType) -> Any:
    import pyarrow as pa

    arrow = {
        STRING: pa.string(),
        INT: pa.int32(),
        LONG: pa.int64(),
        DOUBLE: pa.float64(),
        FLAG: pa.bool_(),
        TIME: pa.timestamp("us", tz="UTC"),
        STRINGS: pa.list_(pa.field("element", pa.string())),
    }
    fields, columns = [], []
    for field in schema.fields:
        kind = table.columns[field.name]
        values = [row[field.name] for row in rows]
        if kind == TIME:
            values = [None if value is None else value * 1000 for value in values]
        fields.append(pa.field(field.name, arrow[kind], nullable=field.nullable))
        columns.append(pa.array(values, arrow[kind]))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
