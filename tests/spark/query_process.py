"""Spark drivers as processes of their own: one with a streaming query, see ``ours/query.py``, and others."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.spark.conftest import DISCOVERED, child_processes
from tests.timing import eventually, scaled
from zkconsumer.devcluster import java_home_for_spark
from zkconsumer.devcluster.server_process import Launched

_SCRIPTS = Path(__file__).parent / "ours"
START_S = 240.0


class DriverProcess:
    """A process with a Spark session, to be killed with all that belongs to it.

    Arguments: ``script`` of the folder ``ours``, whose one argument is the ``task`` as JSON; ``folder`` for Spark's
    files; further ``conf`` of the session, which the script finds in the task.
    """

    def __init__(
        self, script: str, task: Mapping[str, Any], folder: Path, *, conf: Mapping[str, str] | None = None
    ) -> None:
        self.log = folder / "driver.log"
        self._process: Launched | None = None
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
        }
        self._script = _SCRIPTS / script
        self._task = {**task, "conf": {**settings, **(conf or {})}}

    def start(self) -> Self:
        """Start the process, and return at once."""
        environment = {
            "JAVA_HOME": str(java_home_for_spark()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(DISCOVERED), *sys.path]),
        }
        command = ["env", *(f"{name}={value}" for name, value in environment.items())]
        self._process = Launched([*command, sys.executable, str(self._script), json.dumps(self._task)], self.log)
        return self

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def processes(self, text: str) -> list[int]:
        """Return the driver's child processes whose command line has this text."""
        assert self._process is not None
        return [pid for pid, command in child_processes(self._process.pid).items() if text in command]

    def kill_all(self) -> None:
        """The machine of the driver dies: all its processes end at once, and can tell nobody."""
        assert self._process is not None
        self._process.send(signal.SIGKILL)
        for pid in self.processes("python"):  # those that are no longer in the group of processes
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process.wait(scaled(20))

    def wait_end(self, seconds: float = START_S) -> None:
        """Waits for a clean end of a query that ends by itself."""
        assert self._process is not None
        assert self._process.wait(scaled(seconds)), f"the query does not end:\n{self.log_text()}"

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """End the process by any means. May be called again."""
        if self._process is not None:
            if self.running:
                self.kill_all()
            self._process.wait(scaled(20))  # closes what we hold of it


class QueryProcess(DriverProcess):
    """One query in a driver of its own. A later query may go on from the checkpoint and the output in the folder.

    Arguments: ``trigger`` as Spark takes it; ``master`` and further ``conf`` of the session.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str],
        *,
        trigger: Mapping[str, Any] | None = None,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.out = folder / "out"
        task = {
            "options": {"startingOffsets": "earliest", **options},
            "checkpoint": str(folder / "checkpoint"),
            "out": str(self.out),
            "trigger": dict(trigger or {"availableNow": True}),
            "master": master,
        }
        super().__init__("query.py", task, folder, conf=conf)

    def start(self) -> Self:
        """Start the process, and return at once."""
        self.out.mkdir(exist_ok=True)
        return super().start()

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(partition, offset) of all batches, in order."""
        return sorted((partition, offset) for rows in self.batches.values() for partition, offset, _ in rows)

    @property
    def batches(self) -> dict[int, list[tuple[int, int, str]]]:
        """The rows of each batch by its number: partition, offset, value."""
        files = self.out.glob("batch-*.json")
        return {int(file.stem.removeprefix("batch-")): json.loads(file.read_text()) for file in files}

    def hold(self) -> None:
        """Makes the next batch wait in its middle."""
        self.out.mkdir(exist_ok=True)
        (self.out / "hold").touch()

    def wait_held(self) -> None:
        """Waits until a batch is in its middle."""
        held = self.out / "held"
        eventually(lambda: held.exists() or not self.running, START_S, "a batch in its middle")
        assert self.running, self.log_text()

    def go_on(self) -> None:
        """Ends the waiting."""
        for name in ("hold", "held"):
            (self.out / name).unlink(missing_ok=True)
