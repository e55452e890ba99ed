"""Runs a pipeline script that waits, to be killed, before or after a write of Parquet: see ``test_pipeline.py``.

``stopping_pipeline.py '<task as JSON>'`` runs a ``script`` with its ``arguments``, in a session with a ``conf``. Before
or after the write of the number ``hold`` (as ``where`` says), if not None, it makes the file ``held`` and waits.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter


def main(task: dict[str, Any]) -> None:
    builder = SparkSession.builder.master("local[2]")
    for name, value in task["conf"].items():
        builder = builder.config(name, value)
    builder.getOrCreate().sparkContext.setLogLevel("ERROR")
    write, writes = DataFrameWriter.parquet, 0

    def hold() -> None:
        Path(task["held"]).touch()
        threading.Event().wait()  # for ever: the test kills the process

    def waiting(self: DataFrameWriter, path: str, *arguments: Any, **options: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == task["hold"] and task["where"] == "before":
            hold()
        write(self, path, *arguments, **options)
        if writes == task["hold"]:
            hold()

    DataFrameWriter.parquet = waiting  # type: ignore[method-assign]
    sys.argv = [task["script"], *task["arguments"]]
    runpy.run_path(task["script"], run_name="__main__")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
