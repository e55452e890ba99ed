"""The data source itself: from options to readers.

Spark makes one in a process of its own, asks for the schema, pickles it, and hands it to the planner and to a stream's
driver process, which ask for readers. It holds nothing but the options.

Each task unpickles it too. So it imports a module that plans, or that reads tables, only to make its reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import uuid4

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from zkconsumer.errors import ConfigException
from zkconsumer.spark import stream_readers
from zkconsumer.spark.kafka_source_options import READ_ONLY
from zkconsumer.spark.options import READ_ON_DRIVER, TABLE, ReadOptions, parse
from zkconsumer.spark.schema import (
    check_schema,
    overridden,
    source_schema,
    stored_options,
    with_options,
    without_copies,
)

if TYPE_CHECKING:
    from zkconsumer.spark.table_reader import TableOptions

_WHERE: Final = {"zookeeper.connect", "bootstrap.servers", "kafka.bootstrap.servers"}
_WHAT: Final = {"subscribe", "subscribepattern", "assign", TABLE}
_FORGOTTEN: Final = (
    "is missing. If this is a table: Spark forgets the options of a table whose columns are named, so create it without"
    " them, or create a temporary view"
)


class ZkConsumerDataSource(DataSource):
    """``spark.read.format("zkconsumer")`` and ``spark.readStream.format("zkconsumer")``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._frame = uuid4().hex  # the same in all copies, and so in all queries of one DataFrame
        self._given, self._creates_table = without_copies(options)
        # A query of a table has the table's options in the columns, and only its own options here. A write names
        # nothing to read. Options of all other queries are parsed here, so that a wrong option fails in load().
        names = {name.lower() for name in self._given}
        self._parsed = _parsed(self._given) if _WHERE & names and _WHAT & names else None

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "zkconsumer"

    def schema(self) -> StructType:
        """Return the columns of a table about groups, or those of messages: the schema of Spark's Kafka source, with
        ``includeHeaders`` also the headers. Raises ConfigException.
        """
        parsed = self._parsed or _parsed(self._given)
        if isinstance(parsed, ReadOptions):
            found = source_schema(parsed.include_headers)
        else:
            from zkconsumer.spark.table_reader import table_schema

            found = table_schema(parsed.table)
        return with_options(found, self._given) if self._creates_table else found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises ConfigException."""
        parsed = self._options_of(schema)
        if not isinstance(parsed, ReadOptions):
            from zkconsumer.spark.table_reader import TableReader, table_types

            check_schema(schema, table_types(parsed.table))
            return TableReader(parsed, schema)
        from zkconsumer.spark.batch_reader import BatchReader

        parsed.check_batch()
        check_schema(schema)
        return BatchReader(parsed, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        """Return the reader of a stream whose batches tasks read.

        Raises ConfigException; MissingExtraError with PySpark before 4.2; PySparkNotImplementedError, by which Spark
        asks for the simple reader instead.
        """
        parsed = self._stream_options(schema)
        if parsed.read_on_driver:
            raise PySparkNotImplementedError(
                errorClass="NOT_IMPLEMENTED", messageParameters={"feature": f"streamReader with {READ_ON_DRIVER}=true"}
            )
        return stream_readers().StreamReader(parsed, schema, self._frame)

    def simpleStreamReader(self, schema: StructType) -> Any:  # noqa: N802
        """Return the reader of a stream whose batches the driver reads. Raises ConfigException."""
        readers = stream_readers()
        return readers.DriverReader(readers.StreamReader(self._stream_options(schema), schema, self._frame))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse ``df.write``, ``df.writeTo`` and ``INSERT``. Raises ConfigException."""
        raise ConfigException("format", f"{self.name()!r}: {READ_ONLY}")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """Refuse ``df.writeStream``; Spark asks with the first batch. Raises ConfigException."""
        self.writer(schema, overwrite)

    def _stream_options(self, schema: StructType) -> ReadOptions:
        parsed = self._options_of(schema)
        if not isinstance(parsed, ReadOptions):
            reason = "a table about groups is read in a batch: it is their state at one moment"
            raise ConfigException(TABLE, f"{parsed.table!r}: {reason}")
        parsed.check_stream()
        check_schema(schema)
        return parsed

    def _options_of(self, schema: StructType) -> ReadOptions | TableOptions:
        """Return the options of this source, or the options in the columns of a table."""
        stored = stored_options(schema)
        if stored:
            return _parsed(overridden(stored, self._given))
        if self._parsed is None and not self._given:
            raise ConfigException("zookeeper.connect", _FORGOTTEN)
        return self._parsed or _parsed(self._given)


def _parsed(given: Mapping[str, str]) -> ReadOptions | TableOptions:
    if not any(name.lower() == TABLE for name in given):
        return parse(given)
    from zkconsumer.spark.table_reader import parse_table

    return parse_table(given)
