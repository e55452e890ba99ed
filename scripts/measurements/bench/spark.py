"""Our data source beside Spark's own Kafka source, in one session: batches, availableNow, small micro-batches.

The topics are those of ``iterate``; the query adds up the lengths of the values. The time of a bulk query is that of
the whole query, and for availableNow that of its triggers, as Spark reports them. The time of micro-batches is the
median trigger, with ``readOnDriver=true`` and without. A source of constant rows, read in both ways, shows the part of
PySpark in it. CPU time and memory are those of the session's processes: driver, JVM, and Python workers of our source.

The package is compiled first, as pip does it. Otherwise each process of Spark would compile all modules anew.
"""

from __future__ import annotations

import compileall
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import zkconsumer
from scripts.measurements.bench import machine
from scripts.measurements.bench.constant_rows import CONSTANT
from scripts.measurements.bench.contest import Column, Measures, in_turns
from scripts.measurements.bench.iterate import BROKER, CASES, PARTITIONS
from scripts.measurements.bench.plan import Plan
from scripts.measurements.bench.producing import fill
from scripts.measurements.bench.spark_session import KAFKA, OURS
from zkconsumer.devcluster import DevCluster

NAME = "spark"
HELP = "the data source against Spark's own Kafka source: batch, availableNow, micro-batches"

MICRO_ROWS = 600
_SAMPLE_S = 0.1
_SOURCES = {OURS: OURS, "Spark's own source": KAFKA}
_MICRO_SOURCES: dict[str, tuple[str, dict[str, str]]] = {
    OURS: (OURS, {"readOnDriver": "true"}),
    "Spark's own source": (KAFKA, {}),
    f"{OURS}, by tasks": (OURS, {}),
    "constant, on the driver": (CONSTANT, {"readOnDriver": "true"}),
    "constant, by tasks": (CONSTANT, {}),
}
_BULK = (
    Column("rows_per_second", "M rows/s", 1e-6),
    Column("seconds", "seconds"),
    Column("cpu_seconds_per_million", "CPU s/M"),
    Column("java_cpu_seconds_per_million", "JVM"),
    Column("peak_mib", "MiB", digits=0),
)
_MICRO = (
    Column("trigger_ms", "trigger", digits=0),
    Column("p90_ms", "p90 ms", digits=0),
    Column("add_batch_ms", "addBatch", digits=0),
    Column("latest_offset_ms", "latest", digits=0),
    Column("cpu_ms", "CPU ms", digits=0),
)


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    compileall.compile_dir(Path(zkconsumer.__file__).parent, quiet=1)
    numbers = itertools.count(1)
    with DevCluster(broker_properties=BROKER) as cluster:
        sizes = {}
        for number, (case, bounds) in enumerate(CASES.items()):
            topic = f"spark-{number}"
            cluster.create_topic(topic, PARTITIONS)
            settings: dict[str, Any] = {"sizes": bounds, "partitions": PARTITIONS, "batch_bytes": plan.batch_bytes}
            sizes[case] = topic, fill(cluster.bootstrap_servers, topic, plan.messages, **settings)
        with Session.open(cluster) as session:
            print(f"Spark's own source: {session.about}\n", flush=True)
            about = session.about
            first = next(iter(sizes.values()))
            for source in _SOURCES.values():  # the first query of a session takes seconds more
                session.ask(what="batch", source=source, topic=first[0], group=f"warm-{next(numbers)}")
            cases = [
                in_turns(f"batch {case}", _bulk(session, plan, "batch", *found, numbers), plan.turns, _BULK)
                for case, found in sizes.items()
            ]
            case = "availableNow " + next(iter(sizes))
            cases.append(in_turns(case, _bulk(session, plan, "available", *first, numbers), plan.turns, _BULK))
            contestants = {
                name: _micro(session, plan, source, first[0], options, numbers)
                for name, (source, options) in _MICRO_SOURCES.items()
            }
            case = f"micro-batch of {MICRO_ROWS} rows"
            cases.append(in_turns(case, contestants, plan.turns, _MICRO, more_is_better=False))
    for case_ in cases:
        case_["messages"] = plan.messages
    return {"scenario": NAME, "partitions": PARTITIONS, "kafka_source": about, "cases": cases}


def _bulk(
    session: Session, plan: Plan, what: str, topic: str, size: int, numbers: Iterator[int]
) -> dict[str, Callable[[int], Measures]]:
    def contestant(source: str) -> Callable[[int], Measures]:
        def query(_: int) -> Measures:
            question = {"what": what, "source": source, "topic": topic, "group": f"g{next(numbers)}"}
            answer, cpu, java, peak = session.measured(**question)
            if (answer["rows"], answer["bytes"]) != (plan.messages, size):
                raise RuntimeError(f"{source} read {answer}, not {plan.messages} messages of {size} bytes")
            seconds = answer.get("trigger_seconds", answer["seconds"])
            rate = {"rows_per_second": plan.messages / seconds, "seconds": answer["seconds"]}
            million = plan.messages / 1e6
            costs = {"cpu_seconds_per_million": cpu / million, "java_cpu_seconds_per_million": java / million}
            return {**rate, **costs, "peak_mib": peak}

        return query

    return {name: contestant(source) for name, source in _SOURCES.items()}


def _micro(
    session: Session, plan: Plan, source: str, topic: str, options: dict[str, str], numbers: Iterator[int]
) -> Callable[[int], Measures]:
    def query(_: int) -> Measures:
        batches = 10 if plan.quick else 20
        question = {"source": source, "topic": topic, "rows": MICRO_ROWS, "batches": batches, "options": options}
        answer = session.ask(what="micro", group=f"g{next(numbers)}", **question)
        if set(answer["rows"]) != {MICRO_ROWS}:
            raise RuntimeError(f"{source}: batches of {set(answer['rows'])} rows")
        took = {name: sorted(values) for name, values in answer["durations_ms"].items()}
        triggers = took["triggerExecution"]
        inside = {"add_batch_ms": median(took["addBatch"]), "latest_offset_ms": median(took["latestOffset"])}
        inside["cpu_ms"] = answer["cpu_seconds"] * 1000
        return {"trigger_ms": median(triggers), "p90_ms": triggers[int(len(triggers) * 0.9)], **inside}

    return query


class Session:
    """The process of ``scripts.measurements.bench.spark_session``, seen from here."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.about = self._answer()

    @classmethod
    @contextmanager
    def open(cls, cluster: DevCluster) -> Iterator[Session]:
        """A session for the duration of the block."""
        folder = Path(tempfile.mkdtemp(prefix="zkconsumer-bench-spark-"))
        where = json.dumps({"zookeeper": cluster.zookeeper_connect, "bootstrap": cluster.bootstrap_servers})
        log = folder / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "scripts.measurements.bench.spark_session", where],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        try:
            yield cls(process, log)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10.0)
            process.stdout.close()
            shutil.rmtree(folder, ignore_errors=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Has something run; see ``spark_session.Runs``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        return self._answer()

    def measured(self, **question: Any) -> tuple[dict[str, Any], float, float, float]:
        """The same. Returns: also CPU seconds of all processes of the session, of its JVM alone; peak resident MiB."""
        end = threading.Event()
        pid = self._process.pid
        before = machine.tree(pid)
        peak = [before.resident_mib]

        def sample() -> None:
            while not end.wait(_SAMPLE_S):
                peak.append(machine.tree(pid).resident_mib)

        sampler = threading.Thread(target=sample, name="bench-sampler", daemon=True)
        sampler.start()
        try:
            answer = self.ask(**question)
        finally:
            end.set()
            sampler.join()
        after = machine.tree(pid)
        return answer, after.cpu_seconds - before.cpu_seconds, after.java_seconds - before.java_seconds, max(peak)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("result "):
                found: dict[str, Any] = json.loads(line.removeprefix("result "))
                return found
        raise RuntimeError(f"the Spark session ended:\n{self._log.read_text(errors='replace')[-6000:]}")
