"""A standalone Spark cluster on this machine, from PySpark's jars: a master and a worker."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Self

import pyspark

from tests.timing import eventually
from zkconsumer.devcluster import java_home_for_spark
from zkconsumer.devcluster.server_process import Launched, free_port

SPARK_HOME = Path(pyspark.__file__).parent
_START_S = 90.0
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # starts sooner


def plain_environment() -> dict[str, str]:
    """The variables that a login on a node has, and where Spark is. Nothing leads to the package."""
    return {
        "PATH": f"{SPARK_HOME}/bin:/usr/bin:/bin",
        "HOME": str(Path.home()),
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(java_home_for_spark()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class StandaloneCluster:
    """The processes end with ``stop``, and also when this process ends in any other way."""

    def __init__(self, folder: Path, *, cores: int = 2, memory: str = "1g") -> None:
        self.folder = folder
        self._cores, self._memory = cores, memory
        self._port, self._page = free_port(), free_port()
        self._processes: list[Launched] = []

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Start both, and return when the worker is registered."""
        master = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page)]
        self._launch("master.Master", *master)
        eventually(lambda: self._workers() is not None, _START_S, "the master's page")
        worker = ["--host", "127.0.0.1", "--cores", str(self._cores), "--memory", self._memory, "--webui-port", "0"]
        self._launch("worker.Worker", *worker, "--work-dir", str(self.folder / "work"), self.address)
        eventually(lambda: self._workers() == 1, _START_S, "the worker's registration")
        return self

    def _launch(self, name: str, *arguments: str) -> None:
        variables = {**plain_environment(), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JAVA}
        command = ["env", "-i", *(f"{key}={value}" for key, value in variables.items())]
        command += [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        self._processes.append(Launched(command, self.folder / f"{name}.log"))

    def _workers(self) -> int | None:
        assert all(process.running for process in self._processes), self.logs()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError):  # it may answer with an empty page as it starts
            return None

    def logs(self) -> str:
        """The end of all logs, of executors too."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("work/*/*/stderr")]
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.send(SIGTERM)
            if not process.wait(10):
                process.send(SIGKILL)
                process.wait(10)
