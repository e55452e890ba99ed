"""The data source "zkconsumer" for PySpark: a ZooKeeper group's topics as DataFrames, in batches and as a stream.

::

    spark.read.format("zkconsumer").options(**{"zookeeper.connect": "localhost:2181", "group.id": "g"}) \
        .option("subscribe", "flights").load()

Spark finds the data source by itself where the package is installed as a wheel; ``register(spark)`` does it anywhere.
This module imports neither pyspark nor pyarrow, so that what is missing is said in our own words.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zkconsumer.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zkconsumer.spark.group_snapshot import Snapshot

__all__ = ["ZkConsumerDataSource", "register", "snapshot"]

_FEATURE = "the Spark data source (pyspark 4.2 or later, and pyarrow)"


def register(spark: SparkSession) -> None:
    """Make ``format("zkconsumer")`` known to a session. May be called again.

    Raises MissingExtraError where pyspark (4.2 or later) or pyarrow is not installed.
    """
    source = _data_source()  # first, so that what is missing is said before Spark complains
    spark.dataSource.register(source)


def snapshot(options: Mapping[str, object]) -> Snapshot:
    """A batch with its ranges fixed now, which can be read and then committed for the group::

        part = zkconsumer.spark.snapshot({"zookeeper.connect": "localhost:2181", "group.id": "g",
                                          "subscribe": "flights", "startingOffsets": "group"})
        part.load(spark).write.parquet("flights")
        part.commit()

    Arguments: the options of ``spark.read``.
    Raises: ConfigException, OffsetOutOfRangeError, RegistryError, BrokerError; MissingExtraError.
    """
    _data_source()
    made: Snapshot = importlib.import_module("zkconsumer.spark.group_snapshot").make(options)
    return made


def _data_source() -> Any:
    try:
        for needed in ("pyarrow", "pyspark.sql.datasource", "pyspark.sql.streaming.datasource"):
            importlib.import_module(needed)
    except ImportError as error:
        raise MissingExtraError(_FEATURE, "spark") from error
    return importlib.import_module("zkconsumer.spark.data_source").ZkConsumerDataSource


def __getattr__(name: str) -> Any:
    if name == "ZkConsumerDataSource":
        return _data_source()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
