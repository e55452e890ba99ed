"""The data source "zkconsumer" for PySpark: a ZooKeeper group's topics as DataFrames, in batches and as a stream.

::

    spark.read.format("zkconsumer").options(**{"zookeeper.connect": "localhost:2181", "group.id": "g"}) \
        .option("subscribe", "flights").load()

Spark finds the data source by itself where the package is installed as a wheel; ``register(spark)`` does it anywhere.
This module imports neither pyspark nor pyarrow, so that an error of ours names a missing package.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zkconsumer.errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from zkconsumer.spark.batch_reader import Snapshot
    from zkconsumer.spark.progress_reports import SourceReport

__all__ = ["ZkConsumerDataSource", "register", "snapshot", "source_reports"]

_FEATURE = "the Spark data source (pyspark 4.1 or later, streams 4.2 or later, and pyarrow)"
_CLUSTER = "its version is that of the cluster's Spark"


def register(spark: SparkSession) -> None:
    """Make ``format("zkconsumer")`` known to a session: ``zkconsumer.spark.register(spark)``. May be called again.

    If the package came with ``--py-files`` or ``addPyFile``, the processes of streaming sources find it as well.
    Raises MissingExtraError where pyspark (4.1 or later, streams 4.2 or later) or pyarrow is not installed.
    """
    source = _data_source()  # first, so that what is missing is said before Spark complains
    context = getattr(spark, "sparkContext", None)  # not there over Spark Connect
    if context is not None:
        _lead_streams_to_spark_files(context)
    spark.dataSource.register(source)


def _lead_streams_to_spark_files(context: SparkContext) -> None:
    """Add this package to the module path of workers, if it is a file that Spark hands out.

    Spark 4.3 lets the process of a streaming source search the files of ``--py-files`` in a folder
    ``streaming_job``, which nothing fills. Without this, a query fails with "No module named 'zkconsumer'".
    """
    # A program that imported this package before it made a session uses the original file, not Spark's copy.
    copy = Path(importlib.import_module("pyspark").SparkFiles.get(Path(__file__).parents[2].name))
    if copy.is_file():
        known = [path for path in context.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        if str(copy) not in known:
            context.environment["PYTHONPATH"] = os.pathsep.join([str(copy), *known])


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
    made: Snapshot = importlib.import_module("zkconsumer.spark.batch_reader").make_snapshot(options)
    return made


def source_reports(progress: Mapping[str, Any] | None) -> list[SourceReport]:
    """Return this source's part of a query's progress: the ranges of a batch, and the offsets not yet read::

        for report in zkconsumer.spark.source_reports(query.lastProgress):
            print(report)  # batch 7 read 300 offsets: events-0 [0, 200), events-1 [0, 100); 12 more are there
            print(report.metrics["maxOffsetsBehindLatest"])

    Arguments: ``query.lastProgress``, an item of ``query.recentProgress``, or ``event.progress`` of a listener.
    Returns a report for each source of this package in the query; none for None, which ``lastProgress`` is until the
    first batch has ended. Needs no pyspark. Any thread.
    """
    made: list[SourceReport] = importlib.import_module("zkconsumer.spark.progress_reports").source_reports(progress)
    return made


def _data_source() -> Any:
    for needed in ("pyspark.sql.datasource", "pyarrow"):
        try:
            importlib.import_module(needed)
        except ImportError as error:
            raise _missing(needed) from error
    # Spark 4.0 plans each query of a DataFrame anew: two counts of the same DataFrame differ while messages arrive.
    if (_pyspark() or "").startswith("4.0."):
        raise _missing("pyspark.sql.datasource")
    return importlib.import_module("zkconsumer.spark.data_source").ZkConsumerDataSource


def stream_readers() -> Any:
    """Return the module with the readers of streams. Raises MissingExtraError with PySpark 4.1.

    It is imported for a stream only, so that batches and tables work with that version.
    """
    try:
        importlib.import_module("pyspark.sql.streaming.datasource")
    except ImportError as error:
        can = f"PySpark {_pyspark()} was found, which can read batches, snapshots and tables; {_CLUSTER}"
        raise MissingExtraError("a streaming query (pyspark 4.2 or later)", "spark", can) from error
    return importlib.import_module("zkconsumer.spark.stream_reader")


def _missing(module: str) -> MissingExtraError:
    """Return the error for a missing module. Its advice never puts another PySpark under a cluster."""
    version = _pyspark()
    if version is None:
        return MissingExtraError(_FEATURE, "spark")
    if module == "pyarrow":
        found = f"PySpark {version} was found, but no pyarrow: pip install 'pyarrow>=18'"
    else:
        reason = "reads a DataFrame anew for each query" if version.startswith("4.0.") else "has no Python data sources"
        found = f"PySpark {version} was found, which {reason}; {_CLUSTER}"
    return MissingExtraError(_FEATURE, "spark", found)


def _pyspark() -> str | None:
    """Return the version of the installed PySpark, or None."""
    try:
        return str(importlib.import_module("pyspark").__version__)
    except ImportError:
        return None


def __getattr__(name: str) -> Any:
    if name == "ZkConsumerDataSource":
        return _data_source()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
