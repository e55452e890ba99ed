"""The commands of an operator, run in this process on one cluster."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from tests.cluster.kafka_tools import Printed
from tests.timing import scaled
from zkconsumer import cli
from zkconsumer.devcluster import DevCluster


def run_command(*words: str) -> Printed:
    """Run a command and return what it printed. For fixtures of any scope."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main(list(words))
    return Printed(code, out.getvalue(), err.getvalue())


class OperatorCommands:
    """Runs commands on one cluster. ``out`` and ``err`` are what the last one printed."""

    def __init__(self, cluster: DevCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.where = ["--zookeeper", cluster.zookeeper_connect, "--timeout", str(int(scaled(20) * 1000))]
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self._capsys.readouterr()
        try:
            code = cli.main([*words, *self.where])
        except SystemExit as usage:
            code = int(str(usage.code))
        self.out, self.err = self._capsys.readouterr()
        return code

    def document(self, *words: str) -> Any:
        """Return what a command prints in JSON."""
        self(*words, "--format", "json")
        return json.loads(self.out)

    def findings(self, group: str, *more: str) -> dict[str, dict[str, Any]]:
        """Return what the doctor finds, the worst finding of each check."""
        found: dict[str, dict[str, Any]] = {}
        for one in self.document("doctor", group, *more)[0]["findings"]:
            found.setdefault(one["check"], one)
        return found
