"""The data source itself: from options to readers.

Spark makes one in a process of its own, asks for the schema, pickles it, and hands it to the planner and to a stream's
driver process, which ask for readers. It holds nothing but the options.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from zkconsumer.spark.batch_reader import BatchReader, FilteringReader
from zkconsumer.spark.options import parse
from zkconsumer.spark.schema import check_schema, source_schema
from zkconsumer.spark.stream_reader import StreamReader


class ZkConsumerDataSource(DataSource):
    """``spark.read.format("zkconsumer")`` and ``spark.readStream.format("zkconsumer")``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._frame = uuid4().hex  # the same in all copies, and so in all queries of one DataFrame
        self._parsed = parse(options)  # here, so that a wrong option fails in load()

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "zkconsumer"

    def schema(self) -> StructType:
        """Return the schema of Spark's Kafka source, with ``includeHeaders`` also the headers."""
        return source_schema(self._parsed.include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch. Raises ConfigException."""
        self._parsed.check_batch()
        check_schema(schema)
        return (FilteringReader if self._parsed.pushdown else BatchReader)(self._parsed, schema)

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        """Return the reader of a stream. Raises ConfigException."""
        self._parsed.check_stream()
        check_schema(schema)
        return StreamReader(self._parsed, schema, self._frame)
