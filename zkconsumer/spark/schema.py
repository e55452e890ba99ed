"""The columns: those of Spark's own Kafka source, headers on request, or those that the user's schema names.

Pure. Spark cannot tell a Python source which columns a query needs, so a user's schema is the way to read fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zkconsumer.errors import ConfigException
from zkconsumer.kafka import arrow_columns

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

TYPES: dict[str, DataType] = {
    arrow_columns.KEY: BinaryType(),
    arrow_columns.VALUE: BinaryType(),
    arrow_columns.TOPIC: StringType(),
    arrow_columns.PARTITION: IntegerType(),
    arrow_columns.OFFSET: LongType(),
    arrow_columns.TIMESTAMP: TimestampType(),
    arrow_columns.TIMESTAMP_TYPE: IntegerType(),
    arrow_columns.HEADERS: ArrayType(_HEADER),
}
"""Every column that there can be."""


def source_schema(include_headers: bool) -> StructType:
    """Return the default schema of a source."""
    names = (*arrow_columns.NAMES, arrow_columns.HEADERS) if include_headers else arrow_columns.NAMES
    return StructType([StructField(name, TYPES[name]) for name in names])


def check_schema(schema: StructType, types: Mapping[str, DataType] = TYPES) -> None:
    """Check that all columns of a user's schema exist and have the right types, those of messages by default.

    Raises ConfigException naming the column.
    """
    if not schema.fields:  # Arrow cannot say how many rows without columns there are
        raise ConfigException("schema", "names no column; name one, were it only to count")
    seen = set()
    for field in schema.fields:
        known = types.get(field.name)
        if known is None:
            raise ConfigException("schema", f"{field.name!r}: there is no such column, only {', '.join(types)}")
        if field.dataType != known:
            told = f"{field.name!r} is {known.simpleString()}, not {field.dataType.simpleString()}"
            raise ConfigException("schema", f"{told}; cast it in the query")
        if field.name in seen:
            raise ConfigException("schema", f"{field.name!r} is named twice")
        seen.add(field.name)


def arrow_schema(schema: StructType) -> Any:
    """Return the ``pyarrow.Schema`` of Arrow batches of a checked schema, exactly as Spark compares it."""
    import pyarrow as pa

    types = arrow_columns.arrow_types()
    return pa.schema([pa.field(field.name, types[field.name], nullable=field.nullable) for field in schema.fields])
