"""The Spark side of the ``spark`` scenario: one session in a process of its own, told by lines of JSON what to run.

The command is ``python -m scripts.measurements.bench.spark_session '<settings as JSON>'``. Each line of standard input
is a question. The answer is one line on standard output that begins with "result ".
Both sources run here in turns, so that session, JVM, workers and settings are the same.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from scripts.measurements.bench import machine
from scripts.measurements.bench.constant_rows import CONSTANT, ConstantRows
from zkconsumer.devcluster import java_home_for_spark, resolve
from zkconsumer.devcluster.cluster_errors import JarResolutionError
from zkconsumer.spark import register

OURS, KAFKA = "zkconsumer", "kafka"
_SOURCE, _TOKENS = "spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"
# Newest first, after the installed PySpark's own. A repository may lack a version. The preview is for repositories that
# have no other token provider.
_VERSIONS = ("4.3.0", "4.2.1", "4.2.0", "4.1.1", "4.1.0", "4.1.0-preview1", "4.0.1", "4.0.0")
_WANTED = re.compile(r"(spark-(sql|token-provider)-kafka|kafka-clients-|commons-pool2-)")
_SUM = ("count(1)", "sum(length(value))")
_MICRO_WARM_UP, _MICRO_BATCHES = 8, 20
_LIMIT_S = 150.0


def kafka_source() -> tuple[list[Path], dict[str, str]]:
    """Spark's own source as far as it resolves for the installed PySpark. Returns: the jars that PySpark lacks, and
    the versions by name. Raises JarResolutionError.
    """
    source, version = _newest(_SOURCE, [_TOKENS])
    tokens, token_version = _newest(_TOKENS, [])
    jars = {jar.name.rpartition("-")[0]: jar for jar in [*tokens, *source] if _WANTED.match(jar.name)}
    found = {"spark-sql-kafka-0-10": version, "spark-token-provider-kafka-0-10": token_version}
    clients = next(jar.stem.rpartition("-")[2] for name, jar in jars.items() if name == "kafka-clients")
    return list(jars.values()), {**found, "kafka-clients": clients}


def _newest(artifact: str, without: list[str]) -> tuple[list[Path], str]:
    import pyspark

    hadoop = [f"org.apache.hadoop:hadoop-client-{part}" for part in ("api", "runtime")]
    exclude = [*hadoop, "org.scala-lang:scala-library", *(f"org.apache.spark:{name}" for name in without)]
    versions = dict.fromkeys([pyspark.__version__, *_VERSIONS])
    for version in versions:
        try:
            return resolve(f"org.apache.spark:{artifact}:{version}", exclude=exclude, progress=lambda _: None), version
        except JarResolutionError as error:
            last = error
    raise last


def main() -> None:
    """Serves questions until the end of the input."""
    settings = json.loads(sys.argv[1])
    jars, versions = kafka_source()
    runs = Runs(settings, jars)
    try:
        _say({**versions, "java": runs.java, "session": runs.settings})
        for line in sys.stdin:
            question = json.loads(line)
            _say(getattr(runs, question.pop("what"))(**question))
    finally:
        runs.session.stop()


def _say(answer: dict[str, Any]) -> None:
    print("result " + json.dumps(answer), flush=True)


def _ended(query: Any) -> int:
    """Return the number of batches that have ended. Asking for ``recentProgress`` took a fifth of all CPU time."""
    last = query.lastProgress
    return 0 if last is None else int(last["batchId"]) + 1


class Runs:
    """A Spark session and the queries that run in it."""

    def __init__(self, settings: dict[str, str], jars: list[Path]) -> None:
        from pyspark.sql import SparkSession

        os.environ["JAVA_HOME"] = str(java_home_for_spark())
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        self._where = settings
        self._folder = Path(tempfile.mkdtemp(prefix="zkconsumer-bench-spark-"))
        self.settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.memory": "1g",
        }
        builder = SparkSession.builder.master("local[2]").appName("zkconsumer bench")
        for name, value in self.settings.items():
            builder = builder.config(name, value)
        builder = builder.config("spark.jars", ",".join(map(str, jars))).config("spark.local.dir", str(self._folder))
        self.session = builder.config("spark.sql.warehouse.dir", str(self._folder / "warehouse")).getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")
        register(self.session)
        self.session.dataSource.register(ConstantRows)
        self.java = self.session.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]

    def batch(self, source: str, topic: str, group: str) -> dict[str, Any]:
        """A batch query over a whole topic, from ``load()`` to its result."""
        began = perf_counter()
        frame = self.session.read.format(source).options(**self._options(source, topic, group)).load()
        rows, size = frame.selectExpr(*_SUM).collect()[0]
        return {"seconds": perf_counter() - began, "rows": rows, "bytes": size}

    def available(self, source: str, topic: str, group: str) -> dict[str, Any]:
        """Run a streaming query over the whole topic. Return also the time of the triggers that Spark reports."""
        found: list[Any] = []

        def sink(frame: Any, _: int) -> None:
            found.append(frame.selectExpr(*_SUM).collect()[0])

        began = perf_counter()
        writer = self._stream(source, topic, group).writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", self._checkpoint(group)).trigger(availableNow=True).start()
        if not query.awaitTermination(_LIMIT_S):
            query.stop()
            raise TimeoutError(f"{source} did not end")
        seconds = perf_counter() - began
        triggers = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
        counted = [(rows, size or 0) for rows, size in found]
        totals = {"rows": sum(rows for rows, _ in counted), "bytes": sum(size for _, size in counted)}
        return {"seconds": seconds, "trigger_seconds": sum(triggers) / 1000, "batches": len(counted), **totals}

    def micro(
        self, source: str, topic: str, group: str, rows: int, options: dict[str, str], batches: int = _MICRO_BATCHES
    ) -> dict[str, Any]:
        """Run a streaming query in batches of ``rows``, into nothing. Return the times of triggers, and the mean CPU
        time of one, in all processes of this session.
        """
        stream = self._stream(source, topic, group, maxOffsetsPerTrigger=str(rows), **options)
        writer = stream.writeStream.format("noop").option("checkpointLocation", self._checkpoint(group))
        began = monotonic()
        warm: tuple[int, float] | None = None
        query = writer.start()
        try:
            while (ended := _ended(query)) < _MICRO_WARM_UP + batches:
                if warm is None and ended >= _MICRO_WARM_UP:
                    warm = ended, machine.tree(os.getpid()).cpu_seconds
                failure = query.exception()
                if failure is not None:
                    raise failure
                if monotonic() - began > _LIMIT_S:
                    raise TimeoutError(f"{source}: {ended} batches only")
                sleep(0.05)
            assert warm is not None
            cpu = (machine.tree(os.getpid()).cpu_seconds - warm[1]) / (ended - warm[0])
            progress = query.recentProgress[_MICRO_WARM_UP : _MICRO_WARM_UP + batches]
        finally:
            query.stop()
        durations: dict[str, list[float]] = {}
        for one in progress:
            for name, value in one["durationMs"].items():
                durations.setdefault(name, []).append(value)
        return {"rows": [one["numInputRows"] for one in progress], "durations_ms": durations, "cpu_seconds": cpu}

    def _checkpoint(self, group: str) -> str:
        return str(self._folder / f"checkpoint-{group}")

    def _stream(self, source: str, topic: str, group: str, **more: str) -> Any:
        options = {**self._options(source, topic, group), "startingOffsets": "earliest", **more}
        return self.session.readStream.format(source).options(**options).load()

    def _options(self, source: str, topic: str, group: str) -> dict[str, str]:
        if source == CONSTANT:
            return {}
        if source == KAFKA:
            return {"kafka.bootstrap.servers": self._where["bootstrap"], "subscribe": topic}
        return {"zookeeper.connect": self._where["zookeeper"], "group.id": group, "subscribe": topic}


if __name__ == "__main__":
    main()
