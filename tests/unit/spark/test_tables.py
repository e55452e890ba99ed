"""The tables about groups without a JVM: options, columns, and rows from group snapshots."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tests.group_snapshots import NOW, group_snapshot, stat
from zkconsumer.errors import ConfigException
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_lookup import UnknownGroupError
from zkconsumer.operations.group_snapshot import (
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    KafkaOffset,
    LogState,
    MemberNode,
    OffsetNode,
    OwnerNode,
    Problem,
)
from zkconsumer.spark import ZkConsumerDataSource, table_reader
from zkconsumer.spark.batch_reader import BatchReader
from zkconsumer.spark.table_reader import TABLES, batches, parse_table, table_schema, table_types

BASE = {"zookeeper.connect": "zk:2181/kafka", "table": "lag"}
T0 = TopicPartition("t", 0)
NOW_TIME = datetime.fromtimestamp(NOW / 1000, UTC)
LIVING = group_snapshot(
    members={"g_host-1-1700000000000-abcdef01": {"t": 2}, "g_b": {"t": 1}},
    owners={"t:0": "g_b-0", "t:1": "g_gone-0"},
    offsets={"t:0": 5, "old:3": 9},
    logs={"t:0": (0, 8), "t:1": (2, 4), "t:2": (0, 0)},
    extra={"g_b": {"zkconsumer": "0.1", "host": "b.example"}},
)
BY_BROKERS = GroupSnapshot(
    "k",
    NOW,
    bootstrap="b:9092",
    kafka_offsets={T0: KafkaOffset(7, "note", 3), TopicPartition("t", 1): KafkaOffset(None, problem="refused")},
    brokers_group=BrokersGroup(
        "Stable", "range", members=(BrokersMember("m-1", "c", "/10.0.0.1", "i", (T0,), ("t",)),)
    ),
    logs={T0: LogState(0, 9, 2, message_time=NOW - 1500)},
)


class Source:
    """Snapshots in memory."""

    def __init__(self, *snapshots: GroupSnapshot) -> None:
        self._known = {snapshot.group: snapshot for snapshot in snapshots}
        self.times: list[bool] = []

    def groups(self) -> list[str]:
        return sorted(self._known)

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        self.times.append(message_times)
        return self._known.get(group, GroupSnapshot(group, NOW))

    def history(self, group: str) -> list[GroupSnapshot]:
        return [self.snapshot(group)]

    def close(self) -> None:
        raise AssertionError("the reader closes it")


def rows(name: str, *snapshots: GroupSnapshot, columns: str = "", groups: str = "") -> list[dict[str, Any]]:
    """Return the rows of a table with these columns, by default with all columns."""
    types = table_types(name)
    chosen = columns.split() or list(types)
    schema = StructType([StructField(column, types[column]) for column in chosen])
    options = parse_table({**BASE, "table": name, **({"groups": groups} if groups else {})})
    return [row for batch in batches(Source(*snapshots), options, schema) for row in batch.to_pylist()]


def test_members_tell_who_they_are_and_what_they_own() -> None:
    chosen = "group coordination member kind host topics streams partitions session"
    assert [tuple(row.values()) for row in rows("members", LIVING, BY_BROKERS, columns=chosen)] == [
        ("g", "zookeeper", "g_b", "zkconsumer", "b.example", ["t"], 1, 1, 2),
        ("g", "zookeeper", "g_host-1-1700000000000-abcdef01", "Scala", "host-1", ["t"], 2, 0, 1),
        ("k", "kafka", "m-1", None, "/10.0.0.1", ["t"], None, 1, None),
    ]
    assert rows("members", BY_BROKERS, columns="client_id instance_id joined taken") == [
        {"client_id": "c", "instance_id": "i", "joined": None, "taken": NOW_TIME}
    ]


def test_owners_join_with_members() -> None:
    chosen = "group topic partition coordination member thread session"
    assert [tuple(row.values()) for row in rows("owners", LIVING, BY_BROKERS, columns=chosen)] == [
        ("g", "t", 0, "zookeeper", "g_b", "g_b-0", 2),
        ("g", "t", 1, "zookeeper", "g_gone", "g_gone-0", 999),
        ("k", "t", 0, "kafka", "m-1", None, None),
    ]


def test_offsets_have_a_row_for_each_store() -> None:
    both = replace(LIVING, kafka_offsets={T0: KafkaOffset(4)})
    chosen = "topic partition store offset version leader_epoch metadata problem"
    assert [tuple(row.values()) for row in rows("offsets", both, BY_BROKERS, columns=chosen)] == [
        ("old", 3, "zookeeper", 9, 10, None, None, None),
        ("t", 0, "zookeeper", 5, 10, None, None, None),
        ("t", 0, "kafka", 4, None, None, None, None),
        ("t", 0, "kafka", 7, None, 3, "note", None),
        ("t", 1, "kafka", None, None, None, None, "refused"),
    ]


def test_lag_has_each_partition_that_counts_for_the_group() -> None:
    chosen = "group topic partition current_offset log_start log_end lag owner subscribed"
    assert [tuple(row.values()) for row in rows("lag", LIVING, BY_BROKERS, columns=chosen)] == [
        ("g", "old", 3, 9, None, None, None, None, False),
        ("g", "t", 0, 5, 0, 8, 3, "g_b-0", True),
        ("g", "t", 1, None, 2, 4, None, "g_gone-0", True),
        ("g", "t", 2, None, 0, 0, None, None, True),
        ("k", "t", 0, 7, 0, 9, 2, "m-1", True),
        ("k", "t", 1, None, None, None, None, None, True),
    ]


def test_a_group_without_members_keeps_its_lag() -> None:
    dead = group_snapshot(offsets={"t:0": 5}, logs={"t:0": (0, 8)})
    assert rows("lag", dead, columns="lag owner subscribed") == [{"lag": 3, "owner": None, "subscribed": None}]


@pytest.mark.parametrize(("columns", "asked"), [("lag", False), ("lag lag_seconds", True), ("message_time", True)])
def test_times_of_messages_are_read_only_for_their_columns(columns: str, asked: bool) -> None:
    source = Source(BY_BROKERS)
    types = table_types("lag")
    schema = StructType([StructField(name, types[name]) for name in columns.split()])
    found = [row for batch in batches(source, parse_table(BASE), schema) for row in batch.to_pylist()]
    assert source.times == [asked]
    if "lag_seconds" in columns:
        assert [row["lag_seconds"] for row in found] == [1.5, None]


def test_what_a_node_holds_cannot_break_a_table() -> None:
    """The nodes have names beyond Unicode, numbers beyond 64 bits and times beyond all calendars, or are unreadable."""
    far = 1 << 62
    hostile = group_snapshot(members={"g_\ud800\n": {"t": 1}}, owners={"t:0": "\udfff"}, logs={"t:0": (0, 8)})
    hostile = replace(
        hostile,
        members={**hostile.members, ConsumerId("g_x"): MemberNode(None, stat(ctime=far), "is no JSON")},
        offsets={T0: OffsetNode(1 << 70, stat(mtime=far)), TopicPartition("t", 1 << 40): OffsetNode(None, None, "no")},
        owners={T0: OwnerNode("", None, "is empty"), **hostile.owners},
    )
    members = rows("members", hostile, columns="member joined topics problem")
    assert members[0]["member"] == "g_x" or "?" in members[0]["member"]
    assert [row for row in members if row["problem"]] == [
        {"member": "g_x", "joined": None, "topics": None, "problem": "is no JSON"}
    ]
    assert rows("offsets", hostile, columns="partition offset committed") == [
        {"partition": 0, "offset": None, "committed": None},
        {"partition": None, "offset": None, "committed": None},
    ]
    for name in TABLES:
        assert rows(name, hostile)


def test_an_unknown_group_is_named_with_similar_ones() -> None:
    assert len(rows("lag", LIVING, BY_BROKERS, groups="k")) == 2
    with pytest.raises(UnknownGroupError, match="Consumer group 'reader' does not exist"):
        rows("lag", LIVING, groups="reader")


def test_what_is_known_of_a_group_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    half = replace(LIVING, logs={}, topics={}, problems=(Problem("brokers", "no answer"),))
    assert [row["lag"] for row in rows("lag", half, columns="lag")] == [None, None, None]
    assert "group 'g': brokers: no answer" in caplog.text


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_the_arrow_type_of_its_spark_type(name: str) -> None:
    schema = StructType([StructField(column, kind) for column, kind in table_types(name).items()])
    made = [batch.schema for batch in batches(Source(LIVING), parse_table({**BASE, "table": name}), schema)]
    assert made == [to_arrow_schema(schema, timezone="UTC")]
    assert isinstance(made[0], pa.Schema)
    assert set(schema.names) - set(table_schema(name).names) == TABLES[name].on_request


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "lags"}, "table: 'lags': there is no such table, only members, owners, offsets, lag"),
        ({"table": ""}, "table: '': there is no such table"),
        ({"subscribe": "t"}, "subscribe: 't': has no meaning for table=lag, which reads no messages"),
        ({"membership": "member"}, "membership: 'member': has no meaning for table=lag"),
        ({"gruops": "a"}, "gruops: 'a': unknown option"),
        ({"zookeeper.connect": None}, "zookeeper.connect: is missing; name ZooKeeper, or brokers"),
        ({"groups": "a", "group.id": "b"}, "groups: 'a': contradicts group.id='b'"),
        ({"groups": "a,,b"}, "groups: 'a,,b': a name is empty"),
        ({"groups": "a/b"}, "groups: 'a/b': "),
        ({"socket.timeout.ms": "soon"}, "socket.timeout.ms: 'soon': milliseconds from 1"),
        ({"security.protocol": "SSH"}, "security.protocol: "),
    ],
)
def test_a_wrong_option_of_a_table_is_named(given: Mapping[str, str | None], message: str) -> None:
    options = {name: value for name, value in {**BASE, **given}.items() if value is not None}
    with pytest.raises(ConfigException) as refused:
        parse_table(options)
    assert str(refused.value).startswith(message)


def test_a_table_needs_groups_and_zookeeper_no_more_than_named() -> None:
    assert parse_table({**BASE, "TABLE": "Lag", "groups": " a, b ,a"}).groups == ("a", "b")
    assert parse_table({**BASE, "group.id": "g"}).groups == ("g",)
    by_brokers = parse_table({"table": "lag", "kafka.bootstrap.servers": "b:9092", "socket.timeout.ms": "1500"})
    assert (by_brokers.config.zookeeper_connect, by_brokers.timeout, by_brokers.groups) == ("", 1.5, ())
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    secured = parse_table({**BASE, **login, "kafka.sasl.password": "hidden"})
    assert (secured.config.sasl_username, "hidden" in repr(secured)) == ("me", False)
    assert pickle.loads(pickle.dumps(secured)) == secured


def test_a_table_is_read_in_a_batch_with_its_own_columns() -> None:
    source = pickle.loads(pickle.dumps(ZkConsumerDataSource({**BASE, "table": "owners"})))
    assert source.schema().names[:3] == ["group", "topic", "partition"]
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    assert len(reader.partitions()) == 1
    with pytest.raises(ConfigException, match="table: 'owners': a table about groups is read in a batch"):
        source.streamReader(source.schema())
    for field, message in (
        (StructField("offset", LongType()), "'offset': there is no such column, only group, topic"),
        (StructField("partition", StringType()), "'partition' is int, not string; cast it"),
    ):
        with pytest.raises(ConfigException, match=message):
            source.reader(StructType([field]))
    assert source.reader(StructType([StructField("partition", IntegerType())]))


def created(options: Mapping[str, str]) -> StructType:
    """The columns that Spark's catalog stores for ``CREATE TABLE t USING zkconsumer OPTIONS (...)``."""
    copies = {f"option.{name}": value for name, value in options.items()}
    found = ZkConsumerDataSource({**options, **copies, "provider": "zkconsumer", "owner": "root", "comment": "mine"})
    return StructType.fromJson(found.schema().jsonValue())


def table_options(schema: StructType, **given: str) -> table_reader.TableOptions:
    """The options of a query of a table with these columns."""
    reader = ZkConsumerDataSource(given).reader(schema)
    assert isinstance(reader, table_reader.TableReader)
    return reader.options


def test_a_query_of_a_table_finds_the_options_in_its_columns() -> None:
    """Spark gives the query none of the table's options, only those that stand in the query."""
    schema = created({**BASE, "groups": "a"})
    assert [field.name for field in schema.fields] == table_schema("lag").names
    found = table_options(schema)
    assert (found.groups, found.config.zookeeper_connect) == (("a",), "zk:2181/kafka")
    assert table_options(schema, groups="b").groups == ("b",)


def test_a_table_of_messages_can_be_created_too() -> None:
    schema = created({"zookeeper.connect": "zk", "group.id": "g", "subscribe": "t"})
    assert isinstance(ZkConsumerDataSource({}).reader(schema), BatchReader)
    with pytest.raises(ConfigException, match="maxOffsetsPerTrigger: '5': a batch has no triggers"):
        ZkConsumerDataSource({"maxOffsetsPerTrigger": "5"}).reader(schema)
    with pytest.raises(ConfigException, match="subscrib: 'x': unknown option; did you mean 'subscribe'"):
        created({"zookeeper.connect": "zk", "group.id": "g", "subscrib": "x"})


def test_a_table_whose_columns_are_named_says_what_to_do() -> None:
    named = StructType([StructField("lag", LongType())])
    with pytest.raises(ConfigException, match="Spark forgets the options of a table whose columns are named"):
        ZkConsumerDataSource({}).reader(named)


@pytest.mark.parametrize("secret", [{"sasl.password": "hidden"}, {"sasl.jaas.config": 'x required password="hidden";'}])
def test_a_secret_is_not_stored_in_a_table(secret: Mapping[str, str]) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    user = {} if "sasl.jaas.config" in secret else {"sasl.username": "me"}
    with pytest.raises(ConfigException) as refused:
        created({**BASE, **login, **user, **secret})
    assert next(iter(secret)) in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": 1}'])
def test_damaged_options_in_columns_are_an_error(text: str) -> None:
    schema = StructType([StructField("lag", LongType(), True, {"zkconsumer.options": text})])
    with pytest.raises(ConfigException, match="create the table anew"):
        ZkConsumerDataSource({}).reader(schema)
