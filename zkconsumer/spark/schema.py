"""The columns: those of Spark's own Kafka source, headers on request, or those that the user's schema names.

Pure; any thread. ``kafka.arrow_columns.NAMES`` has the names and their order. Spark cannot tell a Python source which
columns a query needs, so a user's schema is the way to read fewer.

The columns also keep the options of ``CREATE TABLE t USING zkconsumer OPTIONS (...)`` for the queries of the table.
Spark gives a Python data source the options of a table only when the table is created, to ask it for the columns. Each
option comes twice then: as ``subscribe`` and as the copy ``option.subscribe``. All other properties of the table come,
too. :func:`without_copies` leaves out copies and properties. A query of the table gets the stored columns and none of
the options. So the options are stored in the metadata of the first column. Secrets are not, because metadata goes on
into everything that is written from the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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

from zkconsumer.config.config_definition import holds_credentials, is_secret
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


_KEY: Final = "zkconsumer.options"
"""The name of our entry in a column's metadata."""


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a new table with its options in them.

    Raises ConfigException for an option that is, or may hold, a secret.
    """
    for name, value in options.items():
        if is_secret(name) or holds_credentials(value):
            reason = (
                "a secret has no place in a table, whose options anyone can read; give it in each query, after WITH"
            )
            raise ConfigException(name, reason)
    first, *others = schema.fields
    stored = {**first.metadata, _KEY: json.dumps({name.lower(): value for name, value in sorted(options.items())})}
    return StructType([StructField(first.name, first.dataType, first.nullable, stored), *others])


def stored_options(schema: StructType) -> Mapping[str, str]:
    """Return the options that :func:`with_options` stored; empty if these are no columns of a table.

    Raises ConfigException for metadata that somebody else wrote.
    """
    text = next((field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata), None)
    if text is None:
        return {}
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("they are no texts by name")
    except (TypeError, ValueError) as error:
        reason = f"the options that CREATE TABLE stored in the columns cannot be read: {error}; create the table anew"
        raise ConfigException("schema", reason) from None
    return found


def overridden(stored: Mapping[str, str], given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a query: the table's options, overridden by options given ``WITH`` the query."""
    own = {name.lower() for name in given}
    return {**{name: value for name, value in stored.items() if name not in own}, **given}


_COPY: Final = "option."
_PROVIDER: Final = "provider"
"""A property that the catalog adds to each table."""


class GivenOptions(NamedTuple):
    """The options of the user, and whether they are those of a new table."""

    options: Mapping[str, str]
    creates_table: bool


def without_copies(given: Mapping[str, str]) -> GivenOptions:
    """Return the options without Spark's copies, and without the properties of a table, which are no options.

    Raises ConfigException for a copy that differs from its original, or has none.
    """
    lower = {name.lower(): value for name, value in given.items()}
    copies = {name.removeprefix(_COPY): value for name, value in lower.items() if name.startswith(_COPY)}
    for name, value in copies.items():
        if name not in lower:
            raise ConfigException(_COPY + name, f"unknown option; it is Spark's name for a copy of {name}")
        if lower[name] != value:
            raise ConfigException(_COPY + name, f"contradicts {name}, of which it should be a copy; say one of them")
    if _PROVIDER in lower:
        return GivenOptions({name: value for name, value in given.items() if name.lower() in copies}, True)
    return GivenOptions({name: value for name, value in given.items() if not name.lower().startswith(_COPY)}, False)
