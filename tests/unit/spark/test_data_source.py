"""The data source as Spark's own processes use it, without a JVM: schemas to the letter, pickling, errors."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType, TimestampType

import zkconsumer.spark
from tests.programs import run_python
from zkconsumer.errors import ConfigException
from zkconsumer.model import Endpoint, OffsetRange, TopicPartition
from zkconsumer.spark import ZkConsumerDataSource
from zkconsumer.spark.range_reader import RangePartition
from zkconsumer.spark.schema import TYPES, arrow_schema, check_schema, source_schema

OPTIONS = {"zookeeper.connect": "zk:2181", "group.id": "g", "subscribe": "t", "membership": "none"}


def source(**options: str) -> ZkConsumerDataSource:
    return ZkConsumerDataSource(CaseInsensitiveDict({**OPTIONS, **options}))


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    assert source().schema().simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert source(includeHeaders="true").schema()["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )


@pytest.mark.parametrize(
    "schema",
    [
        source_schema(include_headers=False),
        source_schema(include_headers=True),
        StructType([StructField("value", BinaryType(), nullable=False), StructField("offset", LongType())]),
        StructType([StructField("timestamp", TimestampType()), StructField("key", BinaryType())]),
    ],
)
def test_arrow_batches_have_exactly_the_schema_of_spark(schema: StructType) -> None:
    check_schema(schema)
    wanted = to_arrow_schema(schema, timezone="UTC")
    assert wanted.equals(arrow_schema(schema), check_metadata=True)


def test_every_column_has_a_spark_and_an_arrow_type() -> None:
    schema = StructType([StructField(name, kind) for name, kind in TYPES.items()])
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(schema))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("values", BinaryType()), "schema: 'values': there is no such column"),
        (StructField("offset", IntegerType()), "schema: 'offset' is bigint, not int; cast it in the query"),
    ],
)
def test_a_schema_of_other_columns_is_refused(field: StructField, message: str) -> None:
    for make in (source().reader, source().streamReader):
        with pytest.raises(ConfigException, match=message):
            make(StructType([field]))


def test_a_column_named_twice_is_refused() -> None:
    with pytest.raises(ConfigException, match="named twice"):
        check_schema(StructType([StructField("key", BinaryType()), StructField("key", BinaryType())]))


def test_sources_readers_and_partitions_travel() -> None:
    made = pickle.loads(pickle.dumps(source(includeHeaders="true")))
    for make in (made.reader, made.streamReader):
        reader = pickle.loads(pickle.dumps(make(made.schema())))
        assert list(reader.read(InputPartition(None))) == []
    leaders = {TopicPartition("t", 0): Endpoint(1, "h", 9092), TopicPartition("t", 1): Endpoint(2, "h", 9093)}
    sent = RangePartition([OffsetRange("t", 0, 5, 9)], leaders)
    got = pickle.loads(pickle.dumps(sent))
    assert (got.ranges, got.leaders) == (sent.ranges, {TopicPartition("t", 0): Endpoint(1, "h", 9092)})
    assert repr(got) == "<RangePartition t-0 [5, 9)>"


WORKER = """
import pickle, sys
from pyspark.sql.datasource import InputPartition

for text in sys.argv[1:]:
    source, reader = pickle.loads(bytes.fromhex(text))
    assert list(reader.read(InputPartition(None))) == list(reader.readBetweenOffsets({}, {})) == []
print(*sorted(sys.modules))
"""
PLANS = {"batch_reader", "stream_reader", "streaming_query", "query_cluster", "query_member", "table_reader"}


def test_a_worker_loads_no_module_that_plans(tmp_path: Path) -> None:
    """Bug: each new worker of Spark imported members, offset stores and kazoo for a task that asks only brokers. That
    took longer than to read a hundred thousand messages.
    """
    by_tasks, on_driver = source(), source(readOnDriver="true", maxOffsetsPerTrigger="9")
    schema = by_tasks.schema()
    readers = [(by_tasks, by_tasks.reader(schema)), (by_tasks, by_tasks.streamReader(schema))]
    readers.append((on_driver, on_driver.simpleStreamReader(schema)))

    done = run_python("-c", WORKER, *(pickle.dumps(one).hex() for one in readers), folder=tmp_path)

    loaded = set(done.stdout.split())
    assert "zkconsumer.spark.range_reader" in loaded
    rooms = {"connector", "member", "offsets", "operations", "ownership", "streams", "wiring"}
    assert not loaded & {"kazoo.client", "regex", *(f"zkconsumer.{room}" for room in rooms)}
    assert not loaded & {f"zkconsumer.spark.{name}" for name in PLANS}


def test_a_stream_reader_answers_what_needs_no_cluster() -> None:
    reader = source().streamReader(source().schema())
    assert reader.initialOffset() == {} == reader.initialOffset()
    assert reader.getDefaultReadLimit() == ReadAllAvailable()
    assert reader.reportLatestOffset() is None
    reader.stop()
    limited = source(maxOffsetsPerTrigger="70").streamReader(source().schema())
    assert limited.getDefaultReadLimit() == ReadMaxRows(70)
    both = source(maxOffsetsPerTrigger="70", minOffsetsPerTrigger="30").streamReader(source().schema())
    assert both.getDefaultReadLimit() == ReadMaxRows(70)
    waiting = source(minOffsetsPerTrigger="30").streamReader(source().schema())
    assert waiting.getDefaultReadLimit() == ReadMinRows(30)


@pytest.mark.parametrize(
    "options",
    [
        {},
        OPTIONS,
        {"zookeeper.connect": "zk", "topic": "t"},
        {"zookeeper.connect": "zk", "group.id": "g"},
        {"path": "somewhere"},
        {"zookeeper.connect": "zk", "table": "lag"},
    ],
)
def test_a_write_is_refused_with_what_to_use_instead(options: dict[str, str]) -> None:
    """PySpark itself said only that the writer is not implemented, or which option of a read was missing."""
    made = ZkConsumerDataSource(CaseInsensitiveDict(options))
    for write in (made.writer, made.streamWriter):
        for overwrite in (False, True):
            with pytest.raises(
                ConfigException, match=r"^format: 'zkconsumer': This source only reads\. Write to topics"
            ):
                write(StructType([]), overwrite)


def test_a_read_that_names_nothing_to_read_is_refused() -> None:
    made = ZkConsumerDataSource({key: value for key, value in OPTIONS.items() if key != "subscribe"})
    with pytest.raises(ConfigException, match="subscribe: is missing"):
        made.schema()
    with pytest.raises(ConfigException, match="subscribe: is missing"):
        made.reader(source().schema())


_WITHOUT = """
import sys
if {version!r}:
    import pyspark
    pyspark.__version__ = {version!r}
sys.modules[{missing!r}] = None
import zkconsumer.spark
from zkconsumer.errors import MissingExtraError
for use in (lambda: zkconsumer.spark.register(None), lambda: zkconsumer.spark.ZkConsumerDataSource):
    try:
        use()
    except MissingExtraError as error:
        assert {said!r} in str(error), error
        assert {version!r} == "" or "zkconsumer[spark]" not in str(error), error
    else:
        raise AssertionError("no error")
sys.path.insert(0, {folder!r})
import pyspark_zkconsumer
assert not hasattr(pyspark_zkconsumer, "DefaultSource")
"""


@pytest.mark.parametrize(
    ("missing", "version", "said"),
    [
        ("pyspark", "", "pip install 'zkconsumer[spark]'"),
        ("pyarrow", "4.1.1", "PySpark 4.1.1 was found, but no pyarrow: pip install 'pyarrow>=18'"),
        (
            "pyspark.sql.datasource",
            "3.5.1",
            "PySpark 3.5.1 was found, which has no Python data sources; its version is",
        ),
        ("nothing", "4.0.1", "PySpark 4.0.1 was found, which reads a DataFrame anew for each query; its version is"),
    ],
)
def test_what_is_missing_is_named_and_hides_no_other_data_source(missing: str, version: str, said: str) -> None:
    """Bug: with PySpark 4.1 the advice was to install the extra: a newer PySpark under an older cluster."""
    folder = str(zkconsumer.spark.__path__[0]) + "/discovered"
    script = _WITHOUT.format(missing=missing, folder=folder, version=version, said=said)
    run_python("-c", script)


def test_batches_and_tables_need_no_module_of_streams() -> None:
    """PySpark 4.1 has none. The refusal of a stream names the abilities of that version."""
    script = """
import sys, pyspark
import pyspark.sql.datasource  # of a later version, which imports the module that is hidden now
pyspark.__version__ = "4.1.1"
sys.modules["pyspark.sql.streaming.datasource"] = None
import zkconsumer.spark
from zkconsumer.errors import MissingExtraError
given = {"zookeeper.connect": "zk:2181", "group.id": "g", "subscribe": "t"}
source = zkconsumer.spark.ZkConsumerDataSource(given)
assert type(source.reader(source.schema())).__name__ == "BatchReader"
table = zkconsumer.spark.ZkConsumerDataSource({"zookeeper.connect": "zk:2181", "group.id": "g", "table": "lag"})
assert type(table.reader(table.schema())).__name__ == "TableReader"
for make in (source.streamReader, source.simpleStreamReader):
    try:
        make(source.schema())
    except MissingExtraError as error:
        assert "PySpark 4.1.1 was found, which can read batches, snapshots and tables" in str(error), error
        assert "pip install" not in str(error), error
    else:
        raise AssertionError("no error")
"""
    run_python("-c", script)


def test_importing_the_source_imports_no_pyspark_or_pyarrow() -> None:
    script = "import sys, zkconsumer.spark; assert not {'pyspark', 'pyarrow'} & set(sys.modules)"
    run_python("-c", script)


def test_an_unknown_name_in_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = zkconsumer.spark.Nothing


def test_a_snapshot_can_be_asked_for_again() -> None:
    # A module of the package with this name would take the function's place once it is imported.
    for _ in range(2):
        with pytest.raises(ConfigException, match="subscribe"):
            zkconsumer.spark.snapshot({"zookeeper.connect": "zk:2181", "group.id": "g"})


def test_a_snapshot_takes_values_as_spark_does() -> None:
    given = {
        "zookeeper.connect": "zk:2181",
        "group.id": "g",
        "subscribe": "t",
        "includeHeaders": True,
        "maxRecordsPerPartition": None,
    }
    with pytest.raises(ConfigException, match="minPartitions: '0'"):
        zkconsumer.spark.snapshot({**given, "minPartitions": 0})


def test_a_schema_without_columns_is_refused() -> None:
    # Arrow cannot say how many rows without columns there are: each count would be 0.
    source = ZkConsumerDataSource({"zookeeper.connect": "zk:2181", "group.id": "g", "subscribe": "t"})
    for reader in (source.reader, source.streamReader):
        with pytest.raises(ConfigException, match="schema: names no column"):
            reader(StructType([]))
